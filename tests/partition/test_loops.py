"""Loops as steps of a kernel: what is updated in place, and what takes turns or is copied."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from hlo_mlc import mlc_jit
from hlo_mlc.templates.base import points
from hlo_mlc.tensor.canonical import stages
from hlo_mlc.tensor.core import Branch, Loop
from making.left import by_xla


@pytest.fixture
def loop_of(take_apart, arrays):
    """`loop_of(body, *shapes)`: (the kernel's program, its loop), of ten trips of the body."""

    def loop_of(body, *shapes, dtype="float32"):
        def function(*args):
            return lax.fori_loop(0, 10, lambda i, s: body(i, *s), args)

        (program,) = take_apart(function, *arrays(dtype, *shapes)).programs
        (loop,) = (step for step in program.steps if isinstance(step, Loop))
        return program, loop

    return loop_of


def test_elementwise_updates_are_in_place(loop_of):
    """No second buffer, no copy: the carried buffer is the result."""
    program, loop = loop_of(lambda i, x: (x * 0.5 + i,), (9, 20))
    assert loop.trip_count == 10
    assert len(loop.body) == 1
    assert program.temporaries == ()


def test_rows_are_set_in_place(loop_of):
    program, loop = loop_of(lambda i, x: (x.at[i].set(x[i] * 0.5),), (10, 20))
    written = [a for nest in loop.body for s in nest.stages for a in s.assigns]
    assert sum(a.buffer.size for a in written if a.buffer.shape == (10, 20)) == 200
    assert all(b.size < 200 for b in program.temporaries)


@pytest.mark.parametrize(
    "body",
    [
        lambda i, x, y: (
            lax.dynamic_update_slice(x, lax.dynamic_slice(x, (i + 1, 0), (5, 20)), (i, 0)),
            y.at[i].set(x[i] * 2),
        ),
        lambda i, x, y: (x.at[i + 1].set(jnp.sin(x[i])), y.at[i].set(jnp.cos(x[i]))),
    ],
    ids=["taken out", "noted"],
)
def test_old_values_are_read_before_they_are_overwritten(loop_of, body):
    """What is noted in each trip is computed first: both are updated in place."""
    program, loop = loop_of(body, (30, 20), (30, 20))
    assert loop.trip_count == 10
    written = [points(s) * len(s.assigns) for nest in loop.body for s in nest.stages]
    assert sum(written) <= 2 * 100 + 20
    assert all(b.size <= 100 for b in program.temporaries)


@pytest.mark.parametrize("place", [lambda i: i + 1, lambda i: 39 - i], ids=["next", "last"])
def test_updates_of_updates_are_in_place(loop_of, place):
    """What later ones read of old values is put aside before the first is written."""

    def body(i, x):
        one = lax.dynamic_update_slice(x, x[i][None] * 2, (i, 0))
        return (lax.dynamic_update_slice(one, (x[place(i)] + x[i])[None], (place(i), 0)),)

    program, loop = loop_of(body, (40, 30))
    assert sum(points(s) * len(s.assigns) for nest in loop.body for s in nest.stages) <= 6 * 30
    assert all(b.size <= 30 for b in program.temporaries)


def test_new_values_are_not_read_early(loop_of):
    """What reads the row that has just been written stays behind it."""

    def body(i, x, y):
        x = x.at[i].set(x[i] * 0.5)
        return x, y.at[i].set(x[i] + y[i])

    program, loop = loop_of(body, (30, 20), (30, 20))
    first, last = (
        place
        for place, nest in enumerate(loop.body)
        for s in nest.stages
        for a in s.assigns
        if a.buffer in program.results
    )
    assert first <= last


def test_stencils_take_turns(loop_of):
    """Two buffers, each read to write the other: half the trips, and no copy in the loop."""

    def body(i, x):
        return (x.at[1:-1].set(x[:-2] + x[2:]),)

    program, loop = loop_of(body, (30, 20))
    assert loop.trip_count == 5
    assert len(loop.body) == 2
    assert [b.shape for b in program.temporaries] == [(30, 20)]


def test_small_updates_of_short_loops_do_not_take_turns(loop_of):
    """Filling a second buffer would move more than ten rows do that are put aside."""

    def body(i, x):
        return (x.at[0].set(x[1] * x[0, 0] + x[2]),)

    program, loop = loop_of(body, (30, 20))
    assert loop.trip_count == 10
    assert all(b.size <= 20 for b in program.temporaries)


def test_what_is_computed_anew_and_then_updated_takes_turns(loop_of):
    """Elimination: all elements depend on a row, then a column is added to."""

    def body(i, x):
        return ((x - x[:, i, None] * x[i]).at[:, i].add(x[:, 0]),)

    program, loop = loop_of(body, (30, 20))
    assert loop.trip_count == 5
    assert [b.shape for b in program.temporaries if b.size > 1] == [(30, 20)]


@pytest.mark.parametrize(
    "body",
    [
        lambda i, x: (x.at[:, i + 2].set(x[:, i + 1] * 0.5 + x[:, i]),),
        lambda i, x: (x.at[17 - i].set(x[18 - i] * 0.5 + x[19 - i]),),
        lambda i, x: (
            lax.dynamic_update_slice(x, lax.dynamic_slice(x, (i + 3, 0), (2, 20)) + 1, (i, 0)),
        ),
    ],
    ids=["columns", "backwards", "slices"],
)
def test_recurrences_are_one_nest_in_place(loop_of, body):
    """What is read lies elsewhere than what is written: nothing is put aside.  Indices that count
    are not wrapped, clamped, or kept in memory."""
    program, loop = loop_of(body, (30, 20))
    assert loop.trip_count == 10
    (nest,) = loop.body
    assert program.temporaries == ()
    assert all(a.guard is None for s in nest.stages for a in s.assigns)


def test_updates_one_after_the_other_are_one_kernel(take_apart, arrays):
    """A copy at the beginning, none in between."""

    def function(x, y):
        x = x.at[0].set(y[0]).at[1].set(y[1] * 2)
        x = lax.fori_loop(2, 30, lambda i, v: v.at[i].set(v[i - 1] * 0.5 + v[i - 2]), x)
        return x.at[:, 0].set(1)

    x, y = arrays("float32", (700, 600), (700, 600))
    parts = take_apart(function, x, y)
    (program,) = parts.programs
    assert program.temporaries == ()
    whole = [
        s
        for step in program.steps
        if not isinstance(step, Loop)
        for s in step.stages
        if len(s.axes) == 2
    ]
    assert len(whole) == 1


def test_what_others_read_is_not_joined_to_its_update(take_apart, check, arrays):
    def function(x, y):
        x = x.at[0].set(y[0])
        return x, x.at[1].set(y[1])

    x, y = arrays("float32", (700, 600), (700, 600))
    assert len(take_apart(function, x, y).programs) == 2
    check(function, x, y)


def test_what_does_not_change_is_read_from_outside(loop_of):
    _, loop = loop_of(lambda i, x, y: (x * 0.5 + y, y), (9, 20), (9, 20))
    assert len(loop.body) == 1
    written = {a.buffer for nest in loop.body for s in nest.stages for a in s.assigns}
    assert len(written) == 1


def test_counters_are_not_carried(take_apart, arrays):
    """A counter is a variable of the loop, so loads of rows at it have known bounds."""
    (x,) = arrays("float32", (10, 20))
    parts = take_apart(lambda x: lax.scan(lambda c, row: (c + row, row * 2), x[0], x), x)
    (program,) = parts.programs
    (loop,) = (step for step in program.steps if isinstance(step, Loop))
    assert loop.trip_count == 10
    assert all(b.dtype.is_float for b in program.temporaries)


def test_a_trip_count_known_at_run_time_only(take_apart, arrays):
    (x,) = arrays("float32", (10, 20))
    (program,) = take_apart(
        lambda x, n: lax.fori_loop(0, n, lambda i, c: c * 0.5, x), x, np.int32(3)
    ).programs
    (loop,) = (step for step in program.steps if isinstance(step, Loop))
    assert loop.trip_count is None
    assert loop.condition is not None
    assert loop.test


@pytest.mark.parametrize("op", ["set", "add"])
def test_places_that_change_are_not_taken_for_steady(check, arrays, op):
    """Turns are right only if every trip overwrites the same elements."""
    x, y = arrays("float32", (8, 6), (8, 6))

    def function(x, y):
        def body(i, s):
            c, k = s
            return getattr(c.at[k], op)(c[k - 1] * 0.5 + c.sum(0) * 0.1), (k * 3 + 1) % 8

        return lax.fori_loop(0, 7, body, (x, jnp.int32(0)))

    check(function, x, y)


@pytest.mark.parametrize(
    "body",
    [
        lambda i, c, y: c.at[np.array([0, 3, 3, 7])].add(y[:4] * c[i]),
        lambda i, c, y: c.at[np.array([0, 3, 3, 7])].set(c[:4] + 1),
        lambda i, c, y: c.at[c[:, 0].astype(jnp.int32) % 8].set(y),
        lambda i, c, y: c.at[c[:, 0].astype(jnp.int32) % 8].add(c[i]),
        lambda i, c, y: c.at[2:5].set(c[1:4]).at[4:7].set(c[3:6]),
        lambda i, c, y: c.at[2:5].set(c[1:4]) + c,
        lambda i, c, y: (c - c[i] * y).at[i % 5].add(c[2] * 2),
        lambda i, c, y: (c[::-1] + y).at[c[:, 0].astype(jnp.int32) % 8].set(c + 1),
        lambda i, c, y: jnp.concatenate([c[4:], c[:4]]).at[:, i].max(c[:, 5]),
        lambda i, c, y: lax.dynamic_update_slice(c, c[2:4] + y[:2], (c[0, 0].astype(jnp.int32), 0)),
    ],
)
def test_updates_that_read_what_they_overwrite(check, arrays, body):
    """All old values are read before the first new one is written, or in the order of the trips."""
    x, y = (np.round(a) for a in arrays("float32", (8, 6), (8, 6)))

    def function(x, y):
        return [
            lax.fori_loop(0, n, lambda i, c: jnp.clip(body(i, c, y), -99, 99), x) for n in (1, 2, 5)
        ] + [lax.fori_loop(0, 3, lambda i, c: body(i, c, y), x)]

    check(function, x, y, ulps=0)


def test_a_loop_that_stays_with_xla_has_a_reason(check, arrays):
    (x,) = arrays("float32", (4,))
    report = check(
        lambda x: lax.fori_loop(0, 3, lambda i, c: by_xla(c) * 0.5, x), x, coverage=0, kernels=None
    )
    assert any("convert" in item.op for item in report.left)


X = np.random.default_rng(7).normal(size=(12, 16)).astype(np.float32)
NUMBERS = np.array([0, 1, 2, 3, -1, 1, 0], np.int32)


def sorts_or_sets(i, k, x):
    return lax.switch(
        k[i],
        [
            lambda x: jnp.sort(x, 1),
            lambda x: x.at[i].set(x.sum(0)),
            lambda x: lax.fori_loop(0, i, lambda j, x: x + x[j].sum() / 9, x),
        ],
        x,
    )


def multiplies_or_not(i, k, x):
    return lax.cond(k[i] > 0, lambda x: jnp.tanh(x @ x.T @ x), lambda x: x, x)


def chooses_twice(i, k, x):
    def other(x):
        return lax.cond(x[0, 0] > x[1, 1], lambda x: jnp.cumsum(x, 0) / 4, lambda x: x[::-1], x)

    return lax.cond(i % 2 == 0, other, lambda x: x - x.max(1, keepdims=True), x)


def gives_one_value_twice(i, k, x):
    y, z = lax.cond(k[i] > 1, lambda: (jnp.sort(x, 0),) * 2, lambda: (x, x[::-1]))
    return y + z / 2


def chooses_what_the_test_reads(i, k, x):
    y = lax.cond(x.sum() > 0, lambda x: x - jnp.sort(x, 1) / 2, lambda x: x + 1, x)
    return lax.cond(y.sum() > x.sum(), lambda: jnp.sort(y, 0), lambda: x)


@pytest.mark.parametrize(
    "trip",
    [
        sorts_or_sets,
        multiplies_or_not,
        chooses_twice,
        gives_one_value_twice,
        chooses_what_the_test_reads,
    ],
)
@pytest.mark.parametrize("ends", ["when counted", "when data says so"])
def test_loops_choose_between_branches(trip, ends, check, take_apart):
    """Also numbers that no branch has; one kernel does it all."""

    def function(k, x):
        if ends == "when counted":
            return lax.fori_loop(0, 7, lambda i, x: trip(i, k, x), x)
        return lax.while_loop(
            lambda c: (c[0] < 7) & (c[1][0, 0] < 1e9),
            lambda c: (c[0] + 1, trip(c[0], k, c[1])),
            (0, x),
        )[1]

    assert check(function, NUMBERS, X, ulps=256).coverage == 1
    (program,) = take_apart(function, NUMBERS, X).programs
    (loop,) = (step for step in program.steps if isinstance(step, Loop))
    assert any(isinstance(step, Branch) for step in loop.body)


def test_what_a_branch_leaves_alone_is_not_copied(take_apart):
    """A large sum that one of the branches adds to, in place."""

    def function(x, k):
        def trip(i, total):
            return lax.cond(k[i] > 0, lambda t: t + jnp.sort(x[i]), lambda t: t, total)

        return lax.fori_loop(0, 7, trip, jnp.zeros_like(x))

    (program,) = take_apart(function, X, NUMBERS).programs
    (loop,) = (step for step in program.steps if isinstance(step, Loop))
    whole = [
        s
        for step in loop.body
        for s in stages(step)
        for a in s.assigns
        if a.buffer.shape == X.shape
    ]
    assert len(whole) == 1


def test_what_depends_on_a_value_that_is_carried_reads_the_new_one(take_apart, check, arrays):
    """In a branch, too: both are changed in place."""
    weights, moments = arrays("float32", (60, 70), (60, 70))

    def function(weights, moments):
        def change(weights, moments):
            moments = 0.9 * moments + 2.0 * weights
            return weights - 0.1 * moments, moments

        def step(i, state):
            return lax.cond(i % 3 == 0, change, lambda *state: state, *state)

        return lax.fori_loop(0, 10, step, (weights, moments))

    (program,) = take_apart(function, weights, moments).programs
    assert all(b.size == 1 for b in program.temporaries)
    check(function, weights, moments, ulps=256)


def test_a_branch_that_cannot_be_compiled_leaves_its_loop_to_xla():
    def trip(i, x):
        return lax.cond(i > 1, by_xla, lambda x: jnp.sort(x), x)

    compiled = mlc_jit(lambda x: lax.fori_loop(0, 3, trip, x), choose="ours")
    compiled(X)
    why = {left.op: left.reason for left in compiled.report(X).left}
    assert "not modelled" in why["stablehlo.while"]


def test_an_update_that_nobody_reads(check):
    def trip(i, x):
        return lax.pad(x.at[jnp.arange(1)].add(2), x[0, 0] * 0, ((-12, 12, 0), (2, -2, 0)))

    assert check(lambda x: lax.fori_loop(0, 3, trip, x), X).coverage == 1


def test_two_of_three_branches_leave_all_as_it_is(check):
    def trip(k, i, x):
        return lax.switch(k[i], [lambda x: x - jnp.sort(x, 1) / 2, lambda x: x, lambda x: x], x)

    assert (
        check(lambda x, k: lax.fori_loop(0, 3, lambda i, x: trip(k, i, x), x), X, NUMBERS).coverage
        == 1
    )
