"""Elementwise kernels: shapes around the vector width, layouts, element types, special values."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from hlo_mlc.expr.core import loads
from hlo_mlc.loops.core import For, LoopKind, Store, walk
from hlo_mlc.loops.interpret import interpret
from hlo_mlc.loops.prove import prove
from hlo_mlc.loops.rewrite import expressions
from hlo_mlc.loops.text import program_text
from hlo_mlc.target.cpu import named
from hlo_mlc.templates.elementwise import ElementwiseTemplate
from hlo_mlc.templates.program import schedule_program

EXTENTS = (1, 2, 7, 15, 16, 17, 31, 32, 33, 63, 65, 127)
FLOATS = ("float32", "bfloat16", "float16")
INTEGERS = ("int8", "int32", "uint8", "uint32")


@pytest.mark.parametrize("n", EXTENTS)
def test_extents(check, arrays, n):
    x, y, z = arrays("float32", (n,), (n, 5), (3, n))
    check(lambda x, y, z: (x * 2 + 1, y.T - z[:1], jnp.exp(z), y[:, 0] * x), x, y, z, ulps=2)


@pytest.mark.parametrize("shape", [(0,), (0, 5), (3, 0), (2, 0, 4)])
def test_no_elements(check, arrays, shape):
    x, y = arrays("float32", shape, shape)
    check(
        lambda x, y: (jnp.exp(x) + y, x.T * 2, lax.rev(x, (0,)), jnp.concatenate([x, y])),
        x,
        y,
        kernels=False,
    )


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS])
def test_layouts(check, arrays, dtype):
    x, y, row = arrays(dtype, (33, 17), (17, 33), (17,))

    def function(x, y, row):
        return (
            x.T + y,
            x[::2, 1:] * 3,
            x[::-1] - row,
            jnp.concatenate([x, y.T, x[:1]], 0),
            jnp.pad(x, ((1, 2), (0, 3))),
            lax.pad(x, x[0, 0], ((-1, 2, 1), (3, -2, 0))),
            jnp.roll(x, 5, 1) + y.reshape(33, 17),
            jnp.broadcast_to(row[:, None], (17, 4)),
        )

    check(function, x, y, row)


def test_high_rank_transposes(check, arrays):
    (x,) = arrays("float32", (3, 5, 17, 4))
    check(lambda x: [x.transpose(p) * 2 for p in ((3, 1, 2, 0), (0, 2, 1, 3), (2, 3, 0, 1))], x)


@pytest.mark.parametrize("shape", [(1030, 517), (3, 100_003), (300, 7, 131)])
def test_shared_out_over_threads(check, arrays, shape):
    """Enough work for several tasks, with a rest in each direction."""
    x, y = arrays("float32", shape, shape)
    check(lambda x, y: (jnp.tanh(x) * y, jnp.swapaxes(x, 0, -1) + 1, x[::-1] - y), x, y)


def test_special_values(check, arrays):
    """NaN, infinities and both zeros; the sign of a zero shows in a division."""
    x, y = arrays("float32", (37, 19), (37, 19), special=True)

    def function(x, y):
        return (
            x + y,
            x * y,
            x / y,
            jnp.maximum(x, y),
            jnp.minimum(x, y),
            jnp.where(x > y, x, y),
            1 / (x + y),
            1 / (-x),
            jnp.abs(x),
            jnp.sign(x),
            x == y,
            x != x,
            jnp.isfinite(x),
            jnp.floor(x),
            jnp.round(y),
            x.astype(jnp.int32),
            x.astype(bool),
            lax.clamp(jnp.asarray(-1, x.dtype), x, y),
            jnp.exp(x),
            jnp.tanh(y),
            jnp.sqrt(x),
        )

    check(function, x, y, ulps=2, magnitude=0)


def test_integer_edges(check):
    """Wrap-around, division by zero, the lowest integer, shifts by more than the width."""
    edges = np.array([0, 1, -1, 2, -3, 31, 32, 40, 2**31 - 1, -(2**31)], np.int32)
    x, y = (a.ravel().copy() for a in np.meshgrid(edges, edges))

    def function(x, y):
        return (
            x + y,
            x - y,
            x * y,
            lax.div(x, y),
            lax.rem(x, y),
            jnp.abs(x),
            -x,
            lax.shift_left(x, y),
            lax.shift_right_arithmetic(x, y),
            lax.shift_right_logical(x, y),
            lax.max(x, y),
            x < y,
            lax.population_count(x),
            lax.clz(x),
            x.astype(jnp.int8),
            x.astype(jnp.uint8),
            x.astype(jnp.float32),
            x.astype(jnp.uint32) < y.astype(jnp.uint32),
            ~x & y,
            x ^ y,
            lax.integer_pow(x, 3),
        )

    check(function, x, y)


def test_conversions(check):
    values = np.array(
        [
            0,
            -0.0,
            0.5,
            1.5,
            2.5,
            -2.5,
            127.6,
            128,
            255.9,
            300,
            -129,
            3e9,
            -3e9,
            1e20,
            np.inf,
            -np.inf,
            np.nan,
            1e-8,
            65504,
            65519,
            65520,
            3e38,
        ],
        np.float32,
    )

    def function(x):
        return [
            x.astype(t)
            for t in (
                jnp.int8,
                jnp.uint8,
                jnp.int16,
                jnp.uint16,
                jnp.int32,
                jnp.uint32,
                jnp.bool_,
                jnp.float16,
                jnp.bfloat16,
            )
        ]

    check(function, values)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_narrow_floats_are_rounded_after_every_op(run, arrays, dtype):
    """As NumPy does; XLA keeps more of f16."""
    x, y = arrays(dtype, (41, 9), (41, 9))

    def function(x, y):
        return x * y + x - y * x, (x + y * y) - x, x / (y * y + x * x)

    for actual, expected in zip(run(function, x, y), function(x, y), strict=True):
        np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize(
    "functions",
    [
        (jnp.exp, jnp.log1p, jnp.tanh, jax.nn.sigmoid),
        (jnp.sin, jnp.cos, jnp.arctan, jnp.sinh),
        (jax.nn.gelu, jax.nn.silu, lax.erf, jax.nn.softplus),
        (
            lax.rsqrt,
            lambda x: jnp.power(jnp.abs(x), 1.7),
            lambda x: jnp.arctan2(x, x[::-1]),
            jnp.cbrt,
        ),
    ],
)
def test_mathematical_functions(check, arrays, functions):
    (x,) = arrays("float32", (4, 67))
    x = np.abs(x) if lax.rsqrt in functions else x
    check(lambda x: [f(x) for f in functions], x, ulps=4)


def test_shared_values_are_not_computed_for_ever(check, arrays):
    """A chain in which each value is used twice stays linear in size."""
    (x,) = arrays("float32", (37,))

    def chain(x):
        for _ in range(40):
            x = jnp.sin(x) * 0.9 + x[::-1] * 0.1
        return x

    check(chain, x, ulps=64)


def test_forwarded_values_keep_their_guards(check, arrays):
    """A value that is at hand replaces a load only where that load takes place."""
    x, y = arrays("float32", (24, 6), (24, 6))

    def function(x, y):
        e = jnp.exp(x)
        spliced = jnp.concatenate([e[:, :3], y[:, 3:]], 1)
        return e, spliced + 1, spliced.sum(1), spliced * e.max(1, keepdims=True)

    check(function, x, y)


MOVES = {
    "channels": lambda x: x * x[0, 0] + x[0, 1],
    "turned": lambda x: x[..., ::-1],
    "repeated": lambda x: jnp.repeat(jnp.repeat(x, 2, 0), 2, 1),
    "scaled": lambda x: x * x[..., :1],
    "cut": lambda x: x[..., :-1] + x[..., 1:],
}


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "uint8", "bool"])
@pytest.mark.parametrize("name", MOVES)
def test_along_short_rows(check, arrays, name, dtype):
    """Vectors go from one short row into the next."""
    with jax.enable_x64(dtype == "float64"):
        for shape in ((5, 7, 3), (33, 65, 3), (4, 100, 5), (2, 129, 10), (301, 4)):
            (x,) = arrays("uint8" if dtype == "bool" else dtype, shape)
            x = x > 1 if dtype == "bool" else x
            check(
                MOVES[name]
                if dtype != "bool" or name in ("turned", "repeated")
                else lambda x: x & x[:1],
                x,
            )


def test_constants_of_channels_are_vectors(check, arrays):
    x, scale = arrays("float32", (50, 60, 3), (3,))
    report = check(lambda x, scale: x * scale, x, scale)
    assert [n.parameters["along"] for k in report.kernels for n in k.nests] == [2]


@pytest.mark.parametrize("dtype", ["float32", "float64", "int8"])
@pytest.mark.parametrize("n", [1, 2, 3])
def test_short_rows_of_different_elements(check, arrays, n, dtype):
    """Matrices joined of others, a column and a row."""
    with jax.enable_x64(dtype == "float64"):
        a, b, c = arrays(dtype, (77, n, n), (77, n), (n + 1,))

        def function(a, b, c):
            row = jnp.broadcast_to(c, (77, 1, n + 1))
            return jnp.concatenate([jnp.concatenate([a, b[:, :, None]], -1), row], 1)

        check(function, a, b, c)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_skew_matrices(check, arrays, dtype):
    with jax.enable_x64(dtype == "float64"):
        (v,) = arrays(dtype, (101, 3))

        def function(v):
            (x, y, z), o = v.T, jnp.zeros_like(v[:, 0])
            return jnp.stack(
                [jnp.stack(row, -1) for row in ((o, -z, y), (z, o, -x), (-y, x, o))], 1
            )

        check(function, v)


@pytest.mark.parametrize("shape", [(1, 40), (2, 70), (33, 65), (5, 6, 37), (3, 700)])
@pytest.mark.parametrize("dtype", ["float32", "int8", "bfloat16"])
def test_between_borders(check, arrays, shape, dtype):
    """Neighbours of which those beyond an edge come from the other side, from a pad, from another
    tensor, or from the edge itself."""
    x, y = arrays(dtype, shape, shape)

    def function(x, y):
        around = sum(jnp.roll(x, by, axis) * (by + 3) for by in (-2, 1) for axis in range(x.ndim))
        wide = jnp.pad(x, 1)
        edges = jnp.pad(x, 1, mode="edge")
        inner = tuple(slice(1, -1) for _ in shape[:-1])
        return (
            around,
            jnp.roll(x, (1,) * x.ndim, tuple(range(x.ndim))),
            wide[(*inner, slice(2, None))] - wide[(*inner, slice(None, -2))] * 2,
            edges[..., 2:] * 2 + edges[..., :-2],
            jnp.concatenate([x, y * 2, x[..., :3]], -1),
            jnp.where(jnp.arange(shape[-1]) == 17, x, y),
        )

    check(function, x, y)


@pytest.mark.parametrize("times", [2, 3])
def test_most_rows_may_write_nothing(check, arrays, times):
    (x,) = arrays("float32", (20 * times, 20 * times))

    def function(x):
        rows, columns = jnp.indices(x.shape)
        return jnp.zeros((20, 20)).at[rows + 1, columns].add(x, mode="drop")

    check(function, x)


@pytest.mark.parametrize(("dtype", "elsewhere"), [("uint8", False), ("float32", True)])
def test_no_lane_is_off_between_borders(take_apart, arrays, dtype, elsewhere):
    """Nor in the first and the last rows, where elements are too narrow for masks."""
    (x,) = arrays(dtype, (40, 100))
    (program,) = take_apart(
        lambda x: sum(jnp.roll(x, (i, j), (0, 1)) for i in (-1, 0, 1) for j in (-1, 0, 1)), x
    ).programs
    loops, _ = schedule_program(program, named("x86-64-v3"))
    found = {}
    for lanes in walk(loops.body):
        if isinstance(lanes, For) and lanes.kind is LoopKind.VECTORIZE:
            asked = any(
                read.guard is not None and lanes.var in read.guard.free
                for stmt in walk(lanes.body)
                for e in expressions(stmt)
                for read in loads(e)
            )
            found.setdefault(".e" in lanes.var.name, []).append(asked)
    assert not any(found[False])
    assert any(found[True]) is elsewhere


@pytest.mark.parametrize("n", [9, 13, 35, 100])
def test_tails_begin_early_without_masks_that_cost_nothing(take_apart, arrays, n):
    (x,) = arrays("float32", (40, n))
    (program,) = take_apart(lambda x: x[:, ::-1] * 2, x).programs
    loops, _ = schedule_program(program, named("x86-64-v3"))
    assert {
        s.extent.value
        for s in walk(loops.body)
        if isinstance(s, For) and s.kind is LoopKind.VECTORIZE
    } == {8}


@pytest.mark.parametrize(
    ("dtype", "level", "n"),
    [
        ("float32", "x86-64-v3", 42),
        ("float32", "x86-64-v4", 10),
        ("float32", "x86-64-v4", 42),
        ("uint8", "x86-64-v3", 21),
        ("uint8", "x86-64-v3", 58),
        ("int16", "x86-64-v3", 29),
    ],
)
def test_what_comes_from_the_other_side_is_between_borders(
    check, take_apart, arrays, dtype, level, n
):
    """Also where rows are short, and are of different elements then: lanes of different rows read
    far apart."""
    (x,) = arrays(dtype, (n - 2, n - 2))

    def padded(x):
        return jnp.pad(x, 1, mode="wrap")

    (program,) = take_apart(padded, x).programs
    _, (decision,) = schedule_program(program, named(level))
    assert decision.template.name == "elementwise"
    assert decision.parameters["borders"] == 1
    check(padded, x)
    check(lambda x: jax.lax.fori_loop(0, 3, lambda _, x: padded(x)[2:, :-2] + x, x), x)


@pytest.mark.parametrize("level", ["x86-64-v3", "x86-64-v4"])
def test_rows_of_few_short_ones_are_between_borders(check, take_apart, arrays, level):
    """As the edges of images are, of a few colours each: of which row they are is asked once."""
    (x,) = arrays("float32", (4, 16, 16, 3))

    def padded(x):
        return jnp.pad(x, ((0, 0), (4, 4), (4, 4), (0, 0)), mode="reflect")

    (program,) = take_apart(padded, x).programs
    loops, decisions = schedule_program(program, named(level))
    assert [d.parameters["borders"] for d in decisions] == [1, 1, 1]
    read = [x for s in walk(loops.body) for e in expressions(s) for x in loads(e)]
    assert read
    assert all(x.guard is None for x in read)
    check(padded, x)


def test_few_copies_of_rows_are_cut_around(check, take_apart, arrays):
    """Short rows within borders along four axes: 625 copies would be too many, and what is cut is
    not written out as well."""

    def padded(x: jax.Array, width: int, value: float) -> jax.Array:
        sides = ((0, 0), *[(width, width)] * 4, (0, 0))
        return jnp.pad(x, sides, constant_values=value)

    def function(x: jax.Array) -> jax.Array:
        rows = padded(x, 2, 0) + padded(padded(x, 1, 1), 1, 2)
        return rows * jnp.arange(8, dtype=rows.dtype)

    (x,) = arrays("float32", (2, 12, 12, 12, 12, 8))
    (program,) = take_apart(function, x).programs
    loops, (decision,) = schedule_program(program, named("x86-64-v3"))
    assert decision.parameters["borders"]
    assert sum(isinstance(s, For) for s in walk(loops.body)) < 300
    check(function, x[:, :6, :6, :6, :6])


@pytest.mark.parametrize("level", ["x86-64-v2", "x86-64-v3", "x86-64-v4"])
@pytest.mark.parametrize("shape", [(3, 5, 9, 3), (2, 8, 4, 5)])
def test_few_rows_are_cut_or_written_out(take_apart, arrays, level, shape):
    """Not both: the loop along them is gone once it was cut."""
    (x,) = arrays("float32", shape)
    pads = ((0, 0), (2, 2), (2, 2), (0, 0))
    (program,) = take_apart(lambda x: jnp.pad(x, pads, mode="wrap"), x).programs
    loops, _ = schedule_program(program, named(level))
    (padded,) = interpret(loops, [x])
    np.testing.assert_array_equal(padded, np.pad(x, pads, mode="wrap"))


def test_much_between_borders_is_shared_out(check, arrays):
    (x,) = arrays("float32", (1030, 517))
    check(lambda x: jnp.roll(x, (1, -1), (0, 1)) * 2 + jnp.roll(x, 3, 0) - jnp.roll(x, -5, 1), x)


@pytest.mark.parametrize("border", [3, 40, 20_000])
def test_the_longest_part_between_borders_of_one_row_is_shared_out(
    check, take_apart, arrays, border
):
    """Whatever comes before it, which may be a vector."""
    (x,) = arrays("float32", (90_001,))

    def padded(x):
        return jnp.pad(jnp.sin(jnp.tanh(x)), (border, 2), constant_values=1.5) * 2

    (program,) = take_apart(padded, x).programs
    loops, _ = schedule_program(program, named("x86-64-v4"))
    (shared,) = [
        stmt
        for stmt in walk(loops.body)
        if isinstance(stmt, For) and stmt.kind is LoopKind.PARALLEL
    ]
    assert any(loads(e) for stmt in walk(shared.body) for e in expressions(stmt))
    check(padded, x)
    check(lambda x: jnp.roll(x, border) * jnp.tanh(x), x)


def test_as_many_vectors_go_side_by_side_as_registers_leave_room_for(take_apart, arrays):
    for rows, levels in ((1024, {"x86-64-v3": 2, "x86-64-v4": 4}), (64, {"x86-64-v4": 2})):
        (program,) = take_apart(jnp.exp, *arrays("float32", (rows, 1024))).programs
        for level, unroll in levels.items():
            _, (decision,) = schedule_program(program, named(level))
            assert decision.parameters["unroll"] == unroll


@pytest.mark.parametrize("level", ["x86-64-v3", "x86-64-v4"])
@pytest.mark.parametrize("function", [lax.lgamma, lax.digamma, lambda x: lax.zeta(x + 2, x)])
def test_a_function_that_fills_a_processor_alone_is_written_once(
    take_apart, arrays, function, level
):
    """Its copies would not lie side by side: each branches around rare arguments."""
    (program,) = take_apart(function, *arrays("float32", (1024, 1024))).programs
    _, (decision,) = schedule_program(program, named(level))
    assert (decision.template.name, decision.parameters["unroll"]) == ("elementwise", 1)


@pytest.mark.parametrize("level", ["x86-64-v3", "x86-64-v4"])
def test_vectors_of_long_chains_go_side_by_side(check, take_apart, arrays, level):
    """Long bodies fill a processor by themselves unless each of their operations waits for the one
    before."""
    (x,) = arrays("uint32", (500, 1001))

    def chain(x):
        for step in range(1, 30):
            x = (x ^ (x >> (step % 13 + 1))) * np.uint32(2 * step + 1)
        return x

    def wide(x):
        return sum((x ^ np.uint32(n)) >> np.uint32(n % 13) for n in range(60))

    for function, unroll in ((chain, 4), (wide, 1)):
        (program,) = take_apart(function, x).programs
        _, (decision,) = schedule_program(program, named(level))
        assert (decision.template.name, decision.parameters["unroll"]) == ("elementwise", unroll)
        check(function, x)
    (program,) = take_apart(chain, x[:3]).programs
    _, (decision,) = schedule_program(program, named(level))
    assert decision.parameters["unroll"] == 1  # not worth the code


@pytest.mark.parametrize("shape", [(9000, 1000), (123_457, 1000), (40, 3000, 1000)])
def test_large_maps_of_which_the_last_task_is_shorter_are_proved(take_apart, shape) -> None:
    """However many vectors there are, in however many tasks."""
    (program,) = take_apart(lambda x: x * 2 + 1, jax.ShapeDtypeStruct(shape, "float32")).programs
    for level in ("x86-64-v3", "x86-64-v4"):
        loops, _ = schedule_program(program, named(level))
        prove(loops)


@pytest.mark.parametrize(("rows", "is_large"), [(10_000, False), (20_000, True)])
@pytest.mark.parametrize("level", ["x86-64-v3", "x86-64-v4"])
def test_results_that_no_cache_holds_are_stored_past_them(
    take_apart, rows, is_large, level
) -> None:
    """Of 40 and 80 MB."""
    x = jax.ShapeDtypeStruct((rows, 1000), "float32")
    (program,) = take_apart(lambda x: x * 2 + 1, x).programs
    loops, _ = schedule_program(program, named(level))
    assert ("streaming" in program_text(loops)) == is_large


def test_what_is_overwritten_is_not_stored_past_the_caches(take_apart) -> None:
    """It is in a cache, as it was read."""
    x = jax.ShapeDtypeStruct((20_000, 1000), "float32")
    (program,) = take_apart(lambda x: x * 2 + 1, x).programs
    (nest,), target = program.steps, named("x86-64-v4")
    (stage,) = nest.stages
    in_place = replace(nest, stages=(replace(stage, overwrites=program.operands),))
    assert ElementwiseTemplate().default(nest, target)["streaming"]
    assert not ElementwiseTemplate().default(in_place, target)["streaming"]


@pytest.mark.parametrize("level", ["x86-64-v2", "x86-64-v3", "x86-64-v4"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int8", "bfloat16"])
@pytest.mark.parametrize("rows", [3, 64, 67])
def test_columns_are_filled_one_by_one(check, take_apart, arrays, rows, dtype, level) -> None:
    """Every lane of a vector would be taken out of it, in code of its own."""
    with jax.enable_x64(dtype == "float64"):
        x, y = arrays(dtype, (rows, 16), (rows, 9))

        def function(x, y):
            for column in range(5):
                y = y.at[:, 2 * column].set(x[:, 3 * column])
            return y.at[:, 1].set(7)

        (program,) = take_apart(function, x, y).programs
        loops, _ = schedule_program(program, named(level))
        stores = [s for s in walk(loops.body) if isinstance(s, Store)]
        apart = {v for s in stores for v in s.indices[-2].free if not s.indices[-1].free}
        vectors = {
            s.var for s in walk(loops.body) if isinstance(s, For) and s.kind is LoopKind.VECTORIZE
        }
        assert apart.isdisjoint(vectors)
        check(function, x, y)
