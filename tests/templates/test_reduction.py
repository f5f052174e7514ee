"""Reductions over rows, columns and everything, of every combiner, and argmax with its ties."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from hlo_mlc.expr.core import Buffer, loads
from hlo_mlc.loops.core import Accumulate, For, LoopKind, LoopProgram, Stmt, Store, walk
from hlo_mlc.target.cpu import named
from hlo_mlc.templates.base import lanes
from hlo_mlc.templates.columns import FAR, ROWS
from hlo_mlc.templates.program import schedule_program
from hlo_mlc.templates.reduction import ROWS as TOGETHER
from hlo_mlc.tensor.guards import guards

SHAPES = ((1, 1), (1, 17), (17, 1), (5, 15), (16, 16), (17, 33), (31, 63), (65, 7), (2, 129))


@pytest.mark.parametrize("shape", SHAPES)
def test_rows_columns_and_everything(check, arrays, shape):
    (x,) = arrays("float32", shape)

    def function(x):
        return (
            x.sum(0),
            x.sum(1),
            x.sum(),
            x.max(0),
            x.min(1),
            jnp.argmax(x, 0),
            jnp.argmin(x, 1),
            (x * x).mean(1),
        )

    check(function, x, magnitude=float(x.size))


@pytest.mark.parametrize("rows", [16, 31, 48, 63, 64, 65, 130])
def test_results_that_take_longer_than_folds(check, arrays, rows):
    """They are computed in vectors of rows, of which there may be fewer than in a block."""
    (x,) = arrays("float32", (rows, 63))

    def function(x):
        total = x.sum(1, keepdims=True) / 64
        return (
            jnp.exp(total) * jnp.cos(total)
            + jnp.sin(total * 2) * jnp.exp(-total)
            + jnp.cos(jnp.exp(total * 3) + 1)
        )

    check(function, x)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "int8", "int32", "uint8"])
def test_element_types(check, arrays, dtype):
    (x,) = arrays(dtype, (19, 37))

    def function(x):
        return (
            x.sum(0, dtype=x.dtype),
            x.sum(1, dtype=x.dtype),
            x.max(1),
            x.min(0),
            jnp.prod(x, 1, dtype=x.dtype),
            jnp.argmax(x, 1),
            jnp.argmin(x, 0),
            jnp.argmax(x),
        )

    check(function, x, ulps=40)


@pytest.mark.parametrize("columns", [2, 3, 5, 8, 9, 16, 31, 67])
def test_conditions_of_rows(check, arrays, columns):
    """All lanes are asked at once, also where some are none."""
    (x,) = arrays("float32", (37, columns))
    x[::3], x[1::3] = -np.abs(x[::3]), np.abs(x[1::3])
    check(lambda x: ((x > 0).any(1), (x > 0).all(1), (x > 0).any(0), (x[:, ::-1] < 0).all(1)), x)


def test_booleans(check, arrays):
    x, y = arrays("bool", (20, 37), (20, 37))
    y = y | (np.arange(20) > 10)[:, None]
    check(
        lambda x, y: [
            f(a, axis)
            for f in (jnp.any, jnp.all, jnp.sum, jnp.argmax, jnp.max)
            for a in (x & ~y, y)
            for axis in (0, 1, None)
        ],
        x,
        y,
    )


def test_middle_axes(check, arrays):
    (x,) = arrays("float32", (4, 9, 5, 18))
    check(
        lambda x: (
            x.sum(1),
            x.sum((0, 2)),
            x.sum((1, 3)),
            x.max((0, 1)),
            x.min(2),
            jnp.argmax(x, 2),
            x.transpose(2, 0, 3, 1).sum((0, 3)),
        ),
        x,
        magnitude=20,
    )


@pytest.mark.parametrize("shape", [(1, 300_007), (3, 100_003), (100_003, 3), (517, 1031)])
def test_cut_into_chunks(check, arrays, shape):
    """Few long rows or columns are folded in pieces; whole numbers make every order exact."""
    x = np.round(arrays("float32", shape)[0] * 4)

    def function(x):
        return x.sum(1), x.sum(0), x.sum(), x.max(1), jnp.argmax(x, 1), jnp.argmin(x, 0)

    check(function, x, ulps=0)


@pytest.mark.parametrize("shape", [(64, 65, 67), (3, 517, 256), (1, 300_007)])
@pytest.mark.parametrize("level", ["x86-64-v3", "x86-64-v4"])
def test_whole_vectors_are_folded_without_conditions(
    machine_code, take_apart, arrays, shape, level
):
    """What lies behind an end of a row is nothing; whole numbers make every order exact."""
    (x,), target = arrays("float32", shape), named(level)
    x = np.round(x * 4)

    def function(x):
        behind = [(0, 0)] * (x.ndim - 1) + [(0, 1)]
        return jnp.sum(jnp.abs(x - jnp.pad(x[..., 1:], behind)))

    parts = take_apart(function, x)
    (program,) = parts.programs
    loops, _ = schedule_program(program, target)
    asked = {
        bool(guards(term))
        for stmt in walk(loops.body)
        if isinstance(stmt, Accumulate)
        for term in stmt.terms
        if any(one.source in program.operands for one in loads(term))
    }
    assert asked == {True, False}
    execute = machine_code.executing(target=target, threads=2, fence_at="end")
    np.testing.assert_array_equal(parts.run((x,), execute)[0], function(x))


@pytest.mark.parametrize("shape", [(50, 1024), (51, 1019), (50, 700), (3, 17, 1024), (3, 1024)])
@pytest.mark.parametrize("level", ["x86-64-v2", "x86-64-v3", "x86-64-v4"])
def test_long_rows_in_the_second_level_are_read_by_the_page(
    machine_code, take_apart, arrays, shape, level
):
    """A vector by a matrix with rows of four pieces, which registers of AVX-512 hold one of."""
    y, x = (np.round(a * 4) for a in arrays("float32", shape[:-1], shape))

    def function(y, x):
        return jnp.einsum("...k,...kn->...n", y, x)

    parts, target = take_apart(function, y, x), named(level)
    target = replace(target, l2_bytes=1 << 20)
    (decision,) = (d for p in parts.programs for d in schedule_program(p, target)[1])
    far = x.nbytes > target.l1_bytes and shape[-1] > 1000 and level != "x86-64-v4"
    assert decision.template.name == "columns"
    assert decision.parameters["rows"] == (ROWS if far else 1)
    execute = machine_code.executing(target=target, threads=2, fence_at="end")
    np.testing.assert_array_equal(parts.run((y, x), execute)[0], function(y, x))


@pytest.mark.parametrize("columns", [16, 100, 129])
def test_the_first_of_what_takes_long(machine_code, take_apart, arrays, columns):
    """Four vectors at a time, as each is a chain of operations, whose ties are those of one."""
    (x,), target = arrays("float32", (5, columns)), named("x86-64-v4")
    x[1], x[2, 3:] = 0.5, x[2, 2]

    def function(x):
        return jnp.argmax(jnp.exp(jnp.sin(jnp.tanh(x) + x)), 1)

    parts = take_apart(function, x)
    (program,) = parts.programs
    loops, _ = schedule_program(program, target)
    partial = {
        buffer.shape[0]
        for stmt in walk(loops.body)
        if isinstance(stmt, Accumulate)
        for buffer in stmt.buffers
        if len(buffer.shape) == 2
    }
    assert partial == {min(4, columns // 16)}
    execute = machine_code.executing(target=target, threads=2, fence_at="end")
    np.testing.assert_array_equal(parts.run((x,), execute)[0], function(x))


@pytest.mark.parametrize("shape", [(301, 1500), (1100, 301), (3, 130, 1027)])
@pytest.mark.parametrize("level", ["x86-64-v3", "x86-64-v4"])
def test_large_arrays_are_read_some_rows_at_a_time(machine_code, take_apart, arrays, shape, level):
    """Sums wait in L1 while other columns are added up; whole numbers make every order exact."""
    x, y = (np.round(a * 4) for a in arrays("float32", shape, shape[:-1]))

    def function(x, y):
        return x.sum(-2) + 1, x.max(-2), jnp.argmax(x, -2), jnp.einsum("...k,...kn->...n", y, x)

    parts, target = take_apart(function, x, y), named(level)
    target = replace(target, l2_bytes=x.nbytes // (FAR + 1))
    chosen = [d for p in parts.programs for d in schedule_program(p, target)[1]]
    assert {d.parameters["rows"] for d in chosen if d.template.name == "columns"} == {ROWS}
    for rows in (ROWS, 7):
        tuned = {n: ("columns", {"rows": rows}) for n in range(len(chosen))}
        results = parts.run(
            (x, y), machine_code.executing(tuned=tuned, target=target, threads=2, fence_at="end")
        )
        for result, expected in zip(results, function(x, y), strict=True):
            np.testing.assert_array_equal(result, expected)


SHARING = {
    "product": (lambda a, v: a @ v, (37, 133), (133,)),
    "one tile": (lambda a, v: a @ v, (3, 133), (133,)),
    "many rows": (lambda a, v: a @ v, (1031, 517), (517,)),
    "distance": (lambda a, v: jnp.abs(a - v).sum(1), (37, 133), (133,)),
    "largest": (lambda a, v: (a * v).max(1), (37, 133), (133,)),
    "batch": (lambda a, v: jnp.einsum("bij,bj->bi", a, v), (5, 37, 133), (5, 133)),
    "summed twice": (lambda a, v: jnp.einsum("jik,jk->i", a, v), (3, 37, 133), (3, 133)),
    "epilogue": (lambda a, v: (a @ v).astype(jnp.int32) * 2 + 1, (37, 133), (133,)),
    "heavy epilogue": (lambda a, v: jnp.round(jnp.tanh(jnp.exp(a @ v)) + 3), (70, 133), (133,)),
}


@pytest.mark.parametrize("name", SHARING)
@pytest.mark.parametrize("level", ["x86-64-v2", "x86-64-v3", "x86-64-v4"])
def test_rows_that_meet_the_same_row(machine_code, take_apart, arrays, name, level):
    """A few of them go along it together; whole numbers make every order exact."""
    function, *shapes = SHARING[name]
    args, target = [np.round(a * 3) for a in arrays("float32", *shapes)], named(level)
    parts = take_apart(function, *args)
    chosen = [d for p in parts.programs for d in schedule_program(p, target)[1]]
    assert [(d.template.name, d.parameters["rows"]) for d in chosen] == [("reduction", TOGETHER)]
    for rows in (1, 3, TOGETHER, 8):
        (result,) = parts.run(
            args,
            machine_code.executing(
                tuned={0: ("reduction", {"rows": rows})}, target=target, threads=2, fence_at="end"
            ),
        )
        np.testing.assert_array_equal(result, function(*args))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "int32"])
@pytest.mark.parametrize("shape", [(2, 64), (300, 300), (301, 299), (130, 1027)])
def test_products_with_a_vector(check, arrays, dtype, shape):
    args = arrays(dtype, shape, shape[1:], shape[:1])

    def function(a, v, w):
        return a @ v, w @ a, a.T @ w, jnp.tanh(a @ v + w)

    check(function, *args, magnitude=shape[1], ulps=64)


def test_nothing_to_fold(check, arrays):
    """Axes of length 0 and 1."""
    x, y = arrays("float32", (0, 5), (7, 1))
    check(
        lambda x, y: (
            x.sum(0),
            jnp.prod(x, 0),
            x.max(0, initial=-3.0),
            y.sum(1),
            y.max(1),
            jnp.argmax(y, 1),
            x.T @ x,
            jnp.any(x > 0, 0),
        ),
        x,
        y,
    )


def test_first_of_equal_extremes(check):
    """Ties fall on the lowest index, also across lanes and chunks."""
    zeros = np.zeros((5, 140), np.float32)
    two = zeros.copy()
    two[:, [77, 131, 40, 139]] = 1
    signs = np.where(np.arange(140) % 3 == 0, -0.0, 0.0).astype(np.float32) + zeros
    check(
        lambda *arrays: [
            f(x, axis) for x in arrays for f in (jnp.argmax, jnp.argmin) for axis in (0, 1, None)
        ],
        zeros,
        two,
        signs,
        zeros - np.inf,
        zeros + np.inf,
    )


@pytest.mark.parametrize("shape", [(20, 37), (6, 1001), (3, 70_001), (700, 9)])
def test_nans_win(arrays, shape, run):
    """The first NaN is the extreme.  XLA's own min and max lose NaNs, so NumPy is the judge."""
    (x,) = arrays("float32", shape, special=True)
    x[0] = np.nan
    functions = ("argmax", "argmin", "max", "min")
    results = run(lambda x: [getattr(jnp, f)(x, axis) for f in functions for axis in (0, 1)], x)
    expected = [getattr(np, f)(x, axis) for f in functions for axis in (0, 1)]
    for actual, wanted in zip(results, expected, strict=True):
        np.testing.assert_array_equal(actual, wanted)


def test_combiners_that_do_not_commute(check, arrays):
    """A monoid keeps the order of its terms: the first and the last that is not 0, affine maps."""
    (mask,) = arrays("bool", (20, 67))
    x, y = arrays("float32", (20, 67), (20, 67))
    x = x * mask

    def zero(x):
        return jnp.zeros((), x.dtype)

    def first(a, b):
        here = a[0] != 0
        return jnp.where(here, a[0], b[0]), jnp.where(here, a[1], b[1])

    def last(a, b):
        return jnp.where(b != 0, b, a)

    def after(a, b):
        return a[0] * b[0], a[1] * b[0] + b[1]

    def function(x, y):
        return (
            lax.reduce((x, y), (zero(x), zero(x)), first, (1,)),
            lax.reduce(x, zero(x), last, (1,)),
            lax.reduce(x, zero(x), last, (0,)),
            lax.reduce(x, zero(x), last, (0, 1)),
            lax.reduce((y, x), (zero(x) + 1, zero(x)), after, (1,)),
        )

    check(function, x, y)


def test_windows(check, arrays):
    (x,) = arrays("float32", (9, 20))

    def function(x):
        lowest, zero = jnp.full((), -jnp.inf, x.dtype), jnp.zeros((), x.dtype)
        return (
            lax.reduce_window(x, lowest, lax.max, (2, 3), (2, 2), "SAME"),
            lax.reduce_window(x, zero, lax.add, (3, 1), (1, 1), "VALID"),
            jnp.cumsum(x, 0),
            jnp.cumsum(x, 1),
            lax.cummax(x, 1),
            lax.cumprod(x, 0),
            lax.cumlogsumexp(x, 1),
        )

    check(function, x)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize(
    "shape", [(1, 16, 7), (1, 67, 9), (1, 200, 10), (3, 130, 33), (2, 65, 129)]
)
def test_results_that_take_longer_than_their_folds(check, arrays, shape, dtype):
    """They are computed in vectors of rows, behind the folds of a block of them."""
    with jax.enable_x64(dtype == "float64"):
        x, y = arrays(dtype, shape, shape[:-1])
        x[0, 3, 2], x[0, 5, 1], x[-1, -1, -1] = np.nan, np.inf, 0

        def function(x, y):
            total = jnp.tanh((x * x).sum(-1))
            return (
                total * jnp.exp(y),
                jnp.exp(-jnp.abs(x.max(-1))) + 1,
                jnp.sin(jnp.argmax(x, -1).astype(x.dtype)) * y,
            )

        report = check(function, x, y, magnitude=4)
        written = [nest.template for kernel in report.kernels for nest in kernel.nests]
        assert not {"reduction", "side_by_side"}.isdisjoint(written)


def stores_of(loops: LoopProgram, buffer: Buffer) -> tuple[list[Store], set[Stmt]]:
    """What stores into a buffer, and all that stands in loops of vectors."""
    vectors = (s for s in walk(loops.body) if isinstance(s, For) and s.kind is LoopKind.VECTORIZE)
    stores = [s for s in walk(loops.body) if isinstance(s, Store) and s.buffer == buffer]
    return stores, {stmt for vector in vectors for stmt in walk(vector.body)}


@pytest.mark.parametrize("shape", [(70, 7), (3, 37, 12), (2, 65, 17)])
def test_what_is_folded_is_a_result_too(check, take_apart, arrays, shape):
    """Terms are stored as they are folded; what follows from the fold goes in vectors still."""
    x, y = arrays("float32", shape, shape[-1:])

    def function(x, y):
        apart = jnp.tanh(x - y)
        distance = jnp.sqrt((apart * apart).sum(-1) + 1e-6)
        return apart, jnp.exp(-distance) * jnp.tanh(distance) * jnp.sin(distance)

    check(function, x, y)
    (program,) = take_apart(function, x, y).programs
    loops, _ = schedule_program(program, named("x86-64-v4"))
    results, in_vectors = stores_of(loops, program.results[1])
    assert results and in_vectors.issuperset(results)


def test_results_of_a_block_are_stored_behind_its_folds(take_apart, arrays):
    """70 rows: a block of 64 and one of 6, whose results are vectors."""
    (x,) = arrays("float32", (70, 10))
    (program,) = take_apart(lambda x: jnp.tanh(x.sum(1)), x).programs
    loops, _ = schedule_program(program, named("x86-64-v4"))
    results, in_vectors = stores_of(loops, program.results[0])
    assert len(results) == 2 and in_vectors.issuperset(results)


@pytest.mark.parametrize("level", ["x86-64-v2", "x86-64-v3", "x86-64-v4"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("shape", [(19, 137), (9, 65), (7, 5, 31)])
def test_the_largest_of_narrow_floats_are_looked_for_by_their_bits(
    machine_code, take_apart, arrays, shape, dtype, level
):
    """In vectors of as many as a register has room for."""
    (x,), target = arrays(dtype, shape), named(level)
    x = x.copy()
    x.flat[::29] = np.nan
    x.flat[::31] = np.inf

    def function(x):
        return x.max(-1), x.min(0), jnp.abs(x).max()

    parts = take_apart(function, x)
    for program in parts.programs:
        loops, _ = schedule_program(program, target)
        folds = [s for s in walk(loops.body) if isinstance(s, Accumulate)]
        assert {b.dtype.name for s in folds for b in s.buffers} == {"i16"}
        stages = tuple(s for step in program.steps for s in step.stages)
        assert lanes(stages, target) == target.vector_bytes // 2
    execute = machine_code.executing(target=target, threads=2, fence_at="end")
    for actual, expected in zip(parts.run((x,), execute), function(x), strict=True):
        np.testing.assert_array_equal(actual.astype(np.float32), expected.astype(np.float32))
