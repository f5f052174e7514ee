"""Scans along every axis, from both ends, of every combiner; accuracy over long axes."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from hlo_mlc.loops.interpret import interpret
from hlo_mlc.target.cpu import named
from hlo_mlc.target.levels import runnable
from hlo_mlc.templates.program import schedule_program
from making.verified import unproven

# What is expected of choices does not depend on the machine that the tests run on.
TARGET = named("x86-64-v4")
LEVELS = ["host", *(level for level in ("x86-64", "x86-64-v3") if level in runnable())]

SHAPES = ((1, 2), (17, 1), (5, 15), (16, 16), (17, 33), (65, 7), (33, 521))


@pytest.fixture
def templates(take_apart):
    """`templates(function, *args)`: the templates that compute it, by name."""

    def templates(function, *args):
        return [
            decision.template.name
            for program in take_apart(function, *args).programs
            for decision in schedule_program(program, TARGET)[1]
        ]

    return templates


@pytest.mark.parametrize("shape", SHAPES)
def test_every_axis_from_both_ends(check, arrays, shape):
    (x,) = arrays("float32", shape)

    def function(x):
        return [
            f(x, axis, reverse=reverse)
            for f in (lax.cumsum, lax.cummax, lax.cummin)
            for axis in (0, 1)
            for reverse in (False, True)
        ]

    check(function, x, magnitude=float(max(shape)))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64", "int8", "int32", "uint8"])
def test_element_types(check, arrays, dtype):
    with jax.enable_x64(dtype == "float64"):
        (x,) = arrays(dtype, (18, 37))

        def function(x):
            return [f(x, axis) for f in (lax.cumsum, lax.cummax, lax.cumprod) for axis in (0, 1)]

        check(function, x, ulps=40)


def test_more_axes_and_layouts(check, arrays):
    (x,) = arrays("float32", (4, 9, 5, 18))
    check(
        lambda x: (
            lax.cumsum(x, 0),
            lax.cumsum(x, 1),
            lax.cumsum(x, 2, reverse=True),
            lax.cumsum(x, 3),
            lax.cumsum(x.transpose(2, 0, 3, 1), 2),
            lax.cummax(x.transpose(3, 2, 1, 0), 3),
            jnp.cumsum(x),
        ),
        x,
        magnitude=40,
    )


def test_what_surrounds_a_scan_is_computed_in_it(take_apart, check, arrays):
    x, y = arrays("float32", (40, 70), (40, 70))

    def function(x, y):
        total = jnp.cumsum(jnp.exp(x) * y, 1)
        return total, total * 2 + y, (total > 0) & (y > 0)

    check(function, x, y, magnitude=70)
    (program,) = take_apart(function, x, y).programs
    assert len(program.steps) == 1
    (stage,) = program.steps[0].stages
    assert stage.scan is not None
    assert len(stage.assigns) == 3


def test_results_that_meet_elsewhere_are_not_computed_in_it(check, arrays):
    """A consumer that reads a scan at other points, and one scan of another."""
    (x,) = arrays("float32", (21, 34))

    def function(x):
        total = jnp.cumsum(x, 1)
        return total[:, ::-1] + x, total - total[:, -1:], jnp.cumsum(total, 0), total.sum(0)

    check(function, x, magnitude=1000)


@pytest.mark.parametrize("shape", [(1_000_003,), (3, 100_003), (100_003, 3), (12, 20_011)])
def test_cut_into_chunks(check, arrays, templates, shape):
    """Whole numbers make every order exact."""
    x = np.round(arrays("float32", shape)[0] * 4)
    axis = int(np.argmax(shape))

    def function(x):
        return (
            lax.cumsum(x, axis),
            lax.cumsum(x, axis, reverse=True),
            lax.cummax(x, axis),
            lax.cummin(x, axis, reverse=True),
        )

    assert templates(function, x) == ["scan"] * 4
    check(function, x, ulps=0)


@pytest.mark.parametrize(("steps", "chunks"), [(65_536, 64), (20_000, 96), (30_720, 64)])
def test_chunks_leave_few_steps_behind_the_last(take_apart, steps, chunks):
    """Those of 64 would leave 544 of 20,000, which no lanes share."""
    (program,) = take_apart(jnp.cumsum, jnp.ones(steps)).programs
    (decision,) = schedule_program(program, TARGET)[1]
    assert decision.parameters["chunks"] == chunks


@pytest.mark.parametrize("shape", [(1_000_003,), (40, 33_333), (33_333, 40), (100, 9_999)])
@pytest.mark.parametrize("reverse", [False, True])
def test_long_sums_are_as_exact_as_theirs(run, arrays, shape, reverse):
    """Errors of the order of those of XLA, which sums in a tree, where terms have one sign and
    where they cancel."""
    (x,) = arrays("float32", shape)
    axis = int(np.argmax(shape))

    def function(x):
        return lax.cumsum(x, axis, reverse=reverse), lax.cumsum(jnp.abs(x), axis, reverse=reverse)

    wide = x.astype(np.float64)
    for ours, theirs, terms in zip(
        run(function, x), jax.jit(function)(x), (wide, np.abs(wide)), strict=True
    ):
        exact = (
            np.flip(np.cumsum(np.flip(terms, axis), axis), axis)
            if reverse
            else np.cumsum(terms, axis)
        )
        error, allowed = (np.max(np.abs(r - exact)) for r in (ours, np.asarray(theirs)))
        bound = 4 * np.finfo(np.float32).eps * np.max(np.abs(exact))
        assert error <= max(2 * allowed, bound)


def test_special_values(run, arrays):
    """NaN and infinities go on to all later results; signs of zeros."""
    (x,) = arrays("float32", (19, 50), special=True)
    zeros = np.where(np.arange(50) % 3, 0.0, -0.0).astype(np.float32) + np.zeros((3, 1), np.float32)

    def function(x, zeros):
        return lax.cumsum(x, 1), lax.cumprod(x, 0), lax.cummax(zeros, 1)

    sums, products, maxima = run(function, x, zeros)
    with np.errstate(invalid="ignore"):
        for ours, exact in (
            (sums, np.cumsum(x, 1, np.float64)),
            (products, np.cumprod(x, 0, np.float64)),
        ):
            np.testing.assert_array_equal(np.isnan(ours), np.isnan(exact))
            np.testing.assert_array_equal(np.isposinf(ours), np.isposinf(exact))
    np.testing.assert_array_equal(maxima, 0)


def test_extremes_propagate_nans(run, arrays):
    (x,) = arrays("float32", (19, 50), special=True)
    results = run(lambda x: (lax.cummax(x, 1), lax.cummin(x, 0), lax.cummax(x, 0, reverse=True)), x)
    flipped = np.flip(np.maximum.accumulate(np.flip(x, 0), 0), 0)
    for ours, exact in zip(
        results, (np.maximum.accumulate(x, 1), np.minimum.accumulate(x, 0), flipped), strict=True
    ):
        np.testing.assert_array_equal(ours, exact)


def test_extremes_of_constant_nans(run):
    """Their terms are literals of machine code."""

    def function(x):
        return lax.cummax(jnp.full_like(x, jnp.nan)), lax.cummin(jnp.full_like(x, jnp.nan))

    for result in run(function, np.zeros(40, np.float32)):
        assert np.isnan(result).all()


@pytest.mark.parametrize("shape", [(50,), (3, 50), (50, 20)])
def test_sums_that_are_places(check, arrays, shape):
    """What is looked up at a sum is looked up anew at each."""
    steps, rows = arrays("bool", shape)[0], arrays("float32", (60,))[0]
    check(lambda steps, rows: rows[jnp.cumsum(steps, axis=0)], steps, rows, ulps=0)


@pytest.mark.parametrize("shape", [(6, 40), (2, 3001)])
def test_logsumexp(check, arrays, shape):
    (x,) = arrays("float32", shape)
    check(
        lambda x: [
            lax.cumlogsumexp(x, axis, reverse=reverse)
            for axis in (0, 1)
            for reverse in (False, True)
        ],
        x,
    )


def window_scan(operands, initial, body, axis, reverse):
    """A reduce_window that takes in all up to a point of the axis, or all from it on."""
    extent, rank = jax.tree.leaves(operands)[0].shape[axis], 2
    around = (0, extent - 1) if reverse else (extent - 1, 0)
    return lax.reduce_window(
        operands,
        initial,
        body,
        [extent if d == axis else 1 for d in range(rank)],
        [1] * rank,
        [around if d == axis else (0, 0) for d in range(rank)],
    )


@pytest.mark.parametrize("shape", [(20, 67), (3, 2000), (2000, 3)])
def test_combiners_that_do_not_commute(run, arrays, shape):
    """The last value that is not 0, from either end.  XLA combines them in another order."""
    x, mask = arrays("float32", shape)[0], arrays("bool", shape)[0]
    x, axis = x * mask, int(np.argmax(shape))

    def function(x):
        return [
            window_scan(
                x, jnp.zeros((), x.dtype), lambda a, b: jnp.where(b != 0, b, a), axis, reverse
            )
            for reverse in (False, True)
        ]

    forward, backward = (np.moveaxis(r, axis, 0) for r in run(function, x))
    rows = np.moveaxis(x, axis, 0)
    last = np.zeros_like(rows[0])
    for ours, row in zip(forward, rows, strict=True):
        last = np.where(row != 0, row, last)
        np.testing.assert_array_equal(ours, last)
    last = np.where(rows != 0, np.arange(len(rows))[:, None], -1).max(0)
    for n, ours in enumerate(backward):
        expected = np.where(last >= n, np.take_along_axis(rows, last[None], 0)[0], 0)
        np.testing.assert_array_equal(ours, expected)


@pytest.mark.parametrize("reverse", [False, True])
def test_several_values_at_once(run, arrays, reverse):
    """The running maximum and where it is first reached."""
    (x,) = arrays("int32", (12, 45))
    place = np.broadcast_to(np.arange(45, dtype=np.int32), x.shape)

    def larger(a, b):
        keep = a[0] >= b[0]
        return jnp.where(keep, a[0], b[0]), jnp.where(keep, a[1], b[1])

    def function(x, place):
        return window_scan((x, place), (jnp.int32(-(2**31)), jnp.int32(0)), larger, 1, reverse)

    largest, first = run(function, x, place)
    for n in range(45):
        part, start = (x[:, n:], n) if reverse else (x[:, : n + 1], 0)
        np.testing.assert_array_equal(largest[:, n], part.max(1))
        np.testing.assert_array_equal(first[:, n], start + part.argmax(1))


def test_windows_that_are_no_scans(check, arrays, templates):
    """Shorter windows, windows over two axes, strides, and an initial value that counts."""
    (x,) = arrays("float32", (8, 9))

    def window(x, size, padding, strides=(1, 1), initial=0.0):
        return lax.reduce_window(x, jnp.float32(initial), lax.add, size, strides, padding)

    def function(x):
        return (
            window(x, (1, 8), [(0, 0), (7, 0)]),
            window(x, (8, 9), [(7, 0), (8, 0)]),
            window(x, (1, 9), [(0, 0), (8, 0)], (1, 2)),
            window(x, (1, 9), [(0, 0), (4, 4)]),
        )

    assert "scan" not in templates(function, x)
    check(function, x, magnitude=10)
    assert "scan" not in templates(lambda x: window(x, (1, 9), [(0, 0), (8, 0)], initial=1.0), x)


def test_in_loops_and_gradients(check, arrays):
    (x,) = arrays("float32", (9, 40))
    check(lambda x: lax.fori_loop(0, 3, lambda i, c: jnp.cumsum(c, 1) * 0.1 + x, x), x, ulps=64)
    check(jax.grad(lambda x: (jnp.cumsum(x, 1) ** 2).sum()), x, magnitude=4000)
    check(jax.vmap(lambda row: jnp.cumsum(row * 2)), x, magnitude=100)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("chunks", [1, 4, 16])
def test_machine_code_does_what_the_loops_say(take_apart, machine_code, arrays, level, chunks):
    """Bit by bit, at the edges of blocks and strips; buffers border on memory without access."""
    target = named(level)
    tuned = {0: ("scan", {"chunks": chunks, "vectors": 4})}
    for shape, axis in (((5, 300), 1), ((300, 21), 0), ((18, 67), 1)):
        (x,) = arrays("float32", shape)
        for reverse in (False, True):
            parts = take_apart(lambda x, a=axis, r=reverse: lax.cumsum(x, a, reverse=r) * 2 + x, x)
            (program,) = parts.programs
            loops, (decision,) = schedule_program(program, target, tuned)
            assert decision.template.name == "scan"
            assert unproven(loops) == ()
            expected = interpret(loops, [x], seed=chunks)
            for place in ("start", "end"):
                actual = machine_code.executing(
                    tuned=tuned, target=target, threads=2, fence_at=place
                )(program, [x])
                np.testing.assert_array_equal(actual[0], expected[0])


@pytest.mark.parametrize("shape", [(700, 1031), (2, 150_001), (150_001, 3)])
def test_results_do_not_depend_on_threads(take_apart, machine_code, arrays, shape):
    (x,) = arrays("float32", shape)
    parts = take_apart(lambda x: (jnp.cumsum(x, 0), jnp.cumsum(x, 1)), x)
    results = [parts.run([x], machine_code.executing(threads=threads)) for threads in (1, 2, 8)]
    for other in results[1:]:
        assert [r.tobytes() for r in results[0]] == [r.tobytes() for r in other]
