"""Loops that are recurrences, as scans: which are, and that they are as exact as the loops."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from hlo_mlc.loops.interpret import interpret
from hlo_mlc.target.cpu import named
from hlo_mlc.templates.program import schedule_program
from hlo_mlc.tensor.canonical import stages
from hlo_mlc.tensor.core import Branch, Loop
from making.verified import unproven

LENGTHS = (1024, 1500, 20_001)


def scanned(step, *, reverse=False, first=0.0):
    """The function that goes through its arguments by `step`, which gives state and result."""

    def function(*xs):
        start = jnp.asarray(first, xs[0].dtype)
        return lax.scan(lambda s, x: step(s, *x), start, xs, reverse=reverse)

    return function


def both(value):
    return value, value


def fill(x):
    def step(t, series):
        return series.at[t + 1].set(0.9 * series[t] + x[t])

    return lax.fori_loop(0, x.shape[0], step, jnp.ones(x.shape[0] + 1, x.dtype))


def counted(x):
    def step(state):
        t, y, kept = state
        y = 0.5 * y + x[t]
        return t + 1, y, kept.at[t].set(y * y)

    start = (0, jnp.ones((), x.dtype), jnp.zeros_like(x))
    return lax.while_loop(lambda state: state[0] < x.shape[0], step, start)[1:]


def averages(x):
    def step(state, x):
        m, v = 0.9 * state[0] + 0.1 * x, 0.99 * state[1] + 0.01 * (x * x)
        return (m, v), m / jnp.sqrt(v + 1)

    return lax.scan(step, (x[0], x[0] * x[0]), x)


def moments(x):
    """Of three states, the last reads the others, and is what the next trip begins with."""

    def step(state, x):
        m, v, p = state
        m, v = 0.9 * m + 0.1 * (x + 1e-3 * jnp.sin(x)), 0.99 * v + 0.01 * (x * x)
        return (m, v, p - 0.01 * m / (jnp.sqrt(v) + 1e-3)), (p, v)

    zero = jnp.zeros_like(x[0])
    return lax.scan(step, (zero, zero, zero), x)


FUNCTIONS = {
    "filled": fill,
    "counted": counted,
    "averages": averages,
    "moments": moments,
    "discounted": scanned(lambda s, x: both(x + 0.99 * s), reverse=True),
    "last": scanned(lambda s, x: (0.5 * s + x, None), first=1.0),
    "before": scanned(lambda s, x: (0.75 * s + x, s)),
    "before, reversed": scanned(lambda s, x: (0.75 * s + x, s), reverse=True),
    "alternating": scanned(lambda s, x: both(x - s)),
    "negative": scanned(lambda s, x: both(x - 0.8 * s)),
    "small": scanned(lambda s, x: both(2.0**-7 * s + x)),
    "near one": scanned(lambda s, x: both(0.9999 * s + 1e-2 * x)),
    "sum": scanned(lambda s, x: both(s + x)),
    "largest": scanned(lambda s, x: both(jnp.maximum(s, x))),
    "decay": scanned(lambda s, x: (s * 0.99, s * x), first=5.0),
}


@pytest.fixture
def loops_of(take_apart):
    """`loops_of(function, *args)`: (how many loops, how many recurrences as scans)."""

    def loops_of(function, *args):
        programs = take_apart(function, *args).programs
        every = [stage for program in programs for step in program.steps for stage in stages(step)]
        found = [s for s in every if s.scan is not None and s.trips]
        loops = [step for program in programs for step in program.steps if isinstance(step, Loop)]
        return len(loops), len(found)

    return loops_of


@pytest.fixture
def as_exact(run):
    """`as_exact(function, *args)`: errors against an evaluation in f64 are below twice those of
    jax.jit, or some units in the last place of the largest result; of f64, that evaluation is one
    more that rounds."""

    def as_exact(function, *args):
        ours, theirs = run(function, *args), jax.tree.leaves(jax.jit(function)(*args))
        with jax.enable_x64(True):
            wide = [x.astype(np.float64) if x.dtype != bool else x for x in map(np.asarray, args)]
            true = [np.asarray(r) for r in jax.tree.leaves(jax.jit(function)(*wide))]

        def error(results):
            pairs = zip(results, true, strict=True)
            return max(np.max(np.abs(np.asarray(r).astype(np.float64) - t)) for r, t in pairs)

        ulps = 64 if ours[0].dtype == np.float64 else 4
        largest = max(np.max(np.abs(t)) for t in true)
        bound = ulps * float(jnp.finfo(ours[0].dtype).eps) * largest
        assert error(ours) <= max(2 * error(theirs), bound)

    return as_exact


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("length", LENGTHS)
def test_is_a_scan_as_exact_as_the_loop(name, length, as_exact, arrays, loops_of):
    (x,) = arrays("float32", (length,))
    loops, scans = loops_of(FUNCTIONS[name], x)
    assert loops == 0
    assert scans >= 1
    as_exact(FUNCTIONS[name], x)


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
@pytest.mark.parametrize("name", ["filled", "discounted", "before", "sum", "near one"])
def test_other_floats(name, dtype, as_exact, arrays, loops_of):
    with jax.enable_x64(dtype == "float64"):
        (x,) = arrays(dtype, (1500,))
        loops, scans = loops_of(FUNCTIONS[name], x)
        assert (loops, scans) == (0, 1)
        as_exact(FUNCTIONS[name], x)


@pytest.mark.parametrize("dtype", ["int32", "uint8", "int8"])
def test_integers_are_exact_with_any_factor(dtype, run, arrays, loops_of):
    x, a = arrays(dtype, (1500,), (1500,))
    function = scanned(lambda s, x, a: both(s * a + x), first=3)
    assert loops_of(function, x, a) == (0, 1)
    for ours, theirs in zip(run(function, x, a), jax.jit(function)(x, a), strict=True):
        np.testing.assert_array_equal(ours, np.asarray(theirs))


@pytest.mark.parametrize(
    "factor",
    [
        lambda ended: jnp.where(ended, 0.0, 0.9),
        lambda ended: 0.95 * (1.0 - ended),
        lambda ended: jnp.where(ended, 0.5, jnp.where(ended, 0.25, -0.75)),
    ],
    ids=["chosen", "masked", "nested"],
)
def test_factors_that_are_chosen_from_a_few(factor, as_exact, arrays, loops_of):
    """As advantages of a policy are, which end with an episode."""
    x, at = arrays("float32", (3001,), (3001,))
    function = scanned(lambda s, x, at: both(x + factor(at > 1) * s), reverse=True)
    assert loops_of(function, x, at) == (0, 1)
    as_exact(function, x, at)


@pytest.mark.parametrize("name", ["discounted", "filled", "small", "sum", "negative", "averages"])
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan, 1e30])
def test_what_is_not_finite_stays_as_long_as_in_the_loop(name, value, check):
    """An infinity is forgotten by no factor, however often it is applied; what is large is."""
    x = np.zeros(5000, np.float32)
    x[1700] = value
    check(FUNCTIONS[name], jnp.asarray(x), ulps=64, magnitude=0)


@pytest.mark.parametrize("ended", [[1701], [1699], [300, 4000]])
def test_infinities_that_meet_a_zero(ended, check):
    x, at = np.zeros(5000, np.float32), np.zeros(5000, bool)
    x[1700], at[ended] = np.inf, True
    function = scanned(lambda s, x, at: both(x + jnp.where(at, 0.0, 0.9) * s))
    check(function, jnp.asarray(x), jnp.asarray(at))


def test_what_cancels(as_exact):
    """Sums that come back to nothing, and impulses whose traces vanish."""
    x = np.tile(np.float32([1e6, -1e6, 3.0, -3.0]), 1000)
    for name in ("sum", "near one", "alternating"):
        as_exact(FUNCTIONS[name], jnp.asarray(x))


def by_factors(a, x):
    """Any factors, as gates and masks of floats are."""
    return scanned(lambda s, a, x: both(a * s + x), first=1.0, reverse=True)(a, x)


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize(
    "special", [{}, {700: 0.0, 2100: 0.0}, {700: 1.0, 701: -1.0}], ids=["gates", "masks", "ones"]
)
def test_of_factors_that_nobody_knows_it_is_asked(dtype, special, as_exact, arrays, take_apart):
    with jax.enable_x64(dtype == "float64"):
        a, x = arrays(dtype, (2500,), (2500,))
        a = jax.nn.sigmoid(a)
        for place, factor in special.items():
            a = a.at[place].set(factor)
        (program,) = take_apart(by_factors, a, x).programs
        (branch,) = (step for step in program.steps if isinstance(step, Branch))
        assert [isinstance(step, Loop) for step in branch.otherwise] == [True]
        as_exact(by_factors, a, x)


@pytest.mark.parametrize("factor", [1.01, -1e5, 1e-3, np.inf, np.nan, 1e-40])
@pytest.mark.parametrize("value", [2.0, np.inf])
def test_the_loop_runs_where_one_factor_is_another_one(factor, value, check, arrays):
    a, x = arrays("float32", (2500,), (2500,))
    a, x = jax.nn.sigmoid(a).at[1200].set(factor), jnp.asarray(x).at[1300].set(value)
    check(by_factors, a, x, ulps=64)


def test_factors_that_another_state_makes_stay_in_a_loop(check, arrays, loops_of):
    (x,) = arrays("float32", (1100,))

    def function(x):
        def step(state, x):
            m, s = 0.9 * state[0] + 0.1 * x, state[1]
            return (m, m * s + x), s

        return lax.scan(step, (x[0], x[0]), x)

    assert loops_of(function, x)[1] == 0
    check(function, x, ulps=64)


def test_what_is_left_of_a_sum_is_a_fold(as_exact, arrays, take_apart):
    x, y = arrays("float32", (3000,), (3000,))

    def function(x, y):
        def step(t, state):
            return state[0] + x[t] * y[t], jnp.maximum(state[1], x[t])

        return lax.fori_loop(0, 3000, step, (x[0], x[0]))

    (program,) = take_apart(function, x, y).programs
    every = [stage for step in program.steps for stage in stages(step)]
    assert sum(bool(stage.reduce_axes) for stage in every) == 2
    assert all(buffer.size == 1 for buffer in program.temporaries)
    as_exact(function, x, y)


def test_nothing_is_kept_of_each_trip_where_nothing_is_there(run, take_apart):
    """A loop over next to nothing needs no more memory, however long it is."""

    def summed(x):
        return lax.fori_loop(0, 100_000, lambda t, s: s + 1 / (x + t.astype(jnp.float32)) ** 2, x)

    def random(x):
        return lax.fori_loop(0, 100_000, lambda _, s: s * 1_664_525 + 1_013_904_223, x)

    for function, x in ((summed, jnp.float32(1)), (random, jnp.uint32(1))):
        (program,) = take_apart(function, x).programs
        assert all(buffer.size == 1 for buffer in program.temporaries)
        (ours,) = run(function, x)
        np.testing.assert_allclose(ours, np.asarray(jax.jit(function)(x)), rtol=1e-3)


@pytest.mark.parametrize("chunks", [1, 4, 16, 64])
@pytest.mark.parametrize("factor", [2.0**-7, 0.9, -0.999])
def test_no_part_is_longer_than_factors_last(chunks, factor, take_apart):
    """Whatever is tried: an infinity in the first trips is there in the last ones."""
    x = np.zeros(3001, np.float32)
    x[5] = np.inf
    function = scanned(lambda s, x: both(x + factor * s))
    (program,) = take_apart(function, x).programs
    (scan,) = (
        n for n, step in enumerate(program.steps) if any(s.scan is not None for s in stages(step))
    )
    loops, _ = schedule_program(program, named("x86-64-v4"), {scan: ("scan", {"chunks": chunks})})
    assert unproven(loops) == ()
    for ours, theirs in zip(interpret(loops, [x]), jax.jit(function)(x), strict=True):
        np.testing.assert_array_equal(ours, np.asarray(theirs))


@pytest.mark.parametrize("length", [0, 1, 7, 1023])
def test_short_loops_stay(length, check, arrays, loops_of):
    (x,) = arrays("float32", (length,))
    function = scanned(lambda s, x: both(0.9 * s + x), first=1.0)
    assert loops_of(function, x)[1] == 0
    check(function, x, kernels=None)


@pytest.mark.parametrize(
    "step",
    [
        lambda s, x: both(jnp.where(s > 1, 0.0, 0.9 * s + x)),
        lambda s, x: both(1.001 * s + x),
        lambda s, x: both(2.0**-9 * s + x),
        lambda s, x: both(jnp.sin(s) + x),
        lambda s, x: both(s + 0.01 * (x - s)),
        lambda s, x: both(jnp.where(x > 0, x, 0.9 * s)),
    ],
    ids=["reset", "grows", "vanishes", "sine", "twice", "forgets"],
)
def test_loops_that_are_none(step, check, arrays, loops_of):
    (x,) = arrays("float32", (1100,))
    function = scanned(step)
    assert loops_of(function, x) == (1, 0)
    check(function, x, ulps=64)


def test_states_that_read_each_other_stay(check, arrays, loops_of):
    (x,) = arrays("float32", (1100,))

    def function(x):
        def step(state, x):
            a, b = state
            return (0.9 * a + 0.1 * b + x, 0.5 * b - 0.1 * a), a

        return lax.scan(step, (x[0], x[1]), x)

    assert loops_of(function, x)[1] == 0
    check(function, x, ulps=64)


def test_errors_of_what_a_loop_rounds_stay_in_it(as_exact, arrays, loops_of):
    """Sums that are compensated by what each of their steps rounds off."""
    (x,) = arrays("float32", (4099,))
    x = x + 100

    def function(x):
        def step(t, state):
            sums, lost = state
            lost = lost + (x[t] - ((sums[t] + x[t]) - sums[t]))
            return sums.at[t + 1].set(sums[t] + x[t]), lost

        sums, lost = lax.fori_loop(0, 4099, step, (jnp.zeros(4100, x.dtype), x[0] * 0))
        return sums[-1] + lost

    assert loops_of(function, x)[1] == 0
    as_exact(function, x)


@pytest.mark.parametrize("factor", [0.5, 1.0])
def test_zeros_keep_their_sign(factor, check):
    function = scanned(lambda s, x: both(factor * s + x), first=-0.0)
    check(lambda x: jnp.copysign(1.0, function(x)[1]), -jnp.zeros(5000), ulps=0)


def test_in_the_body_of_another_loop(check, arrays):
    """What an inner loop leaves is read by the next trip of the outer one."""
    (x,) = arrays("float32", (1200,))

    def function(x):
        def outer(_, state):
            inner = lax.scan(lambda s, x: both(0.9 * s + x), state[0], state[1])
            return inner[0] * 0.5, inner[1] * 0.25 + x

        return lax.fori_loop(0, 3, outer, (x[0], x))

    check(function, x)


def test_the_cut_does_not_depend_on_the_machine(take_apart, arrays):
    """`deterministic` promises the same results on any number of cores."""
    (program,) = take_apart(fill, *arrays("float32", (20_000,))).programs
    target = named("x86-64-v4")
    one, other = (schedule_program(program, replace(target, cores=n))[0] for n in (1, 64))
    assert one.scratch == other.scratch


def test_what_is_handed_on_to_the_next_trip(as_exact, arrays, loops_of):
    """Values of the trip before, and values that several of one trip read."""
    rewards, values, at = arrays("float32", (2000,), (2000,), (2000,))

    def function(rewards, values, at):
        def step(state, x):
            advantage, following = state
            reward, value, at = x
            goes_on = 1 - (at > 1)
            error = reward + 0.99 * following * goes_on - value
            advantage = error + 0.94 * goes_on * advantage
            return (advantage, value), advantage

        start = jnp.zeros_like(values[0]), values[-1]
        return lax.scan(step, start, (rewards, values, at), reverse=True)

    assert loops_of(function, rewards, values, at) == (0, 1)
    as_exact(function, rewards, values, at)
