"""Matrix products: every pattern of dimension numbers, element types, prologues and epilogues."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from hlo_mlc.codegen.cpu.assemble import assembly
from hlo_mlc.codegen.cpu.printer import print_program
from hlo_mlc.loops.core import For, LoopKind, Prefetch, Stmt, walk
from hlo_mlc.loops.rewrite import constant_extent, paths
from hlo_mlc.loops.text import program_text
from hlo_mlc.target.cpu import named
from hlo_mlc.target.levels import runnable
from hlo_mlc.templates.contraction import AHEAD, ROWS_AT_A_TIME
from hlo_mlc.templates.program import schedule_program

# (lhs, rhs, contracting dimensions, batch dimensions)
PATTERNS = {
    "plain": ((17, 33), (33, 65), ((1,), (0,)), ((), ())),
    "lhs transposed": ((33, 17), (33, 65), ((0,), (0,)), ((), ())),
    "rhs transposed": ((17, 33), (65, 33), ((1,), (1,)), ((), ())),
    "both transposed": ((33, 7), (9, 33), ((0,), (1,)), ((), ())),
    "batch": ((3, 7, 5), (3, 5, 9), ((2,), (1,)), ((0,), (0,))),
    "batch in the middle": ((7, 3, 5), (5, 9, 3), ((2,), (0,)), ((1,), (2,))),
    "two batches": ((2, 3, 17, 5), (2, 3, 5, 16), ((3,), (2,)), ((0, 1), (0, 1))),
    "two contracted": ((4, 3, 5, 6), (5, 9, 6), ((2, 3), (0, 2)), ((), ())),
    "two contracted, crossed": ((4, 3, 5, 6), (6, 5, 9, 3), ((2, 3), (1, 0)), ((1,), (3,))),
    "matrix and vector": ((37, 21), (21,), ((1,), (0,)), ((), ())),
    "vector and matrix": ((21,), (21, 37), ((0,), (0,)), ((), ())),
    "dot": ((67,), (67,), ((0,), (0,)), ((), ())),
    "outer": ((5, 3), (17,), ((), ()), ((), ())),
    "batch of dots": ((3, 25), (3, 25), ((1,), (1,)), ((0,), (0,))),
    "batch of vectors": ((3, 5, 17), (3, 5), ((1,), (1,)), ((0,), (0,))),
    "everything is batch": ((3, 17), (3, 17), ((), ()), ((0, 1), (0, 1))),
    "single": ((1, 1), (1, 1), ((1,), (0,)), ((), ())),
    "a row and a column": ((1, 35), (35, 1), ((1,), (0,)), ((), ())),
    "four-dimensional": ((3, 4, 5), (5, 2, 17), ((2,), (0,)), ((), ())),
}
NARROW = ("bfloat16", "float16", "int8", "uint8", "bool")


@pytest.mark.parametrize("pattern", PATTERNS)
def test_patterns(check, arrays, pattern):
    """All element types in one function; narrow ones also with wide results."""
    left, right, *numbers = PATTERNS[pattern]
    numbers = tuple(numbers)
    pairs = [arrays(dtype, left, right) for dtype in ("float32", "int32", *NARROW)]

    def function(pairs):
        narrow = [lax.dot_general(a, b, numbers) for a, b in pairs]
        wide = [
            lax.dot_general(a, b, numbers, preferred_element_type=t)
            for (a, b), t in zip(pairs[2:5], ("float32", "float32", "int32"), strict=True)
        ]
        return narrow + wide

    check(
        function,
        pairs,
        exact=lambda pairs: [lax.dot_general(a, b, numbers) for a, b in (*pairs, *pairs[2:5])],
    )


@pytest.mark.parametrize("pattern", ["plain", "lhs transposed", "batch", "matrix and vector"])
def test_f64(check, arrays, pattern):
    left, right, *numbers = PATTERNS[pattern]
    with jax.enable_x64(True):
        a, b = arrays("float64", left, right)
        check(lambda a, b: lax.dot_general(a, b, tuple(numbers)), a, b)


# Of those that code is run for, what this machine has.
LEVELS = [level for level in ("x86-64-v2", "x86-64-v3", "x86-64-v4") if level in runnable()]

ACROSS = {
    "plain": (lambda a, b: a.T @ b, (70, 37), (70, 65)),
    "deep": (lambda a, b: a.T @ b, (1301, 19), (1301, 33)),
    "batch": (lambda a, b: jnp.einsum("xki,xkj->xij", a, b), (3, 33, 17), (3, 33, 40)),
    "of few terms": (lambda a, b: jnp.einsum("xki,xkj->xij", a, b), (4, 3, 17), (4, 3, 40)),
    "two contracted": (lambda a, b: jnp.einsum("kli,klj->ij", a, b), (5, 9, 21), (5, 9, 34)),
    "computed": (lambda a, b: (a * 2 + 1).T @ b, (70, 37), (70, 65)),
    "both sides": (lambda a, b: jnp.abs((a * 2).T @ b + b[0]), (70, 37), (70, 65)),
    "with itself": (lambda a, b: a.T @ a - b[0, 0], (70, 37), (1, 1)),
}


@pytest.mark.parametrize("name", ACROSS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32"])
@pytest.mark.parametrize("level", LEVELS)
def test_left_factors_laid_out_along_the_depth(
    machine_code, take_apart, arrays, name, dtype, level
):
    """Small whole numbers, so that every order of summation is exact."""
    function, *shapes = ACROSS[name]
    args = [np.round(a).clip(-2, 2).astype(a.dtype) for a in arrays(dtype, *shapes)]
    parts = take_apart(function, *args)
    results = [
        parts.run(
            args,
            machine_code.executing(
                tuned={0: ("contraction", {"turn": turn})},
                target=named(level),
                threads=2,
                fence_at="end",
            ),
        )
        for turn in (0, 1)
    ]
    for straight, turned in zip(*results, strict=True):
        np.testing.assert_array_equal(turned, straight)
        np.testing.assert_array_equal(turned, np.asarray(function(*map(jnp.asarray, args))))


def test_large_left_factors_across_the_depth(take_apart):
    """They are laid out along it by themselves; small ones and such as lie along it are not."""

    def turned(function, m, k, n):
        a, b = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((k, m), (k, n)))
        parts = take_apart(function, a, b)
        (decision,) = (
            d for p in parts.programs for d in schedule_program(p, named("x86-64-v3"))[1]
        )
        return decision.parameters["turn"]

    assert turned(lambda a, b: a.T @ b, 1024, 1024, 1024)
    assert not turned(lambda a, b: a.T @ b, 64, 64, 1024)
    assert not turned(lambda a, b: a.T @ b, 1024, 1024, 16)
    assert not turned(lambda a, b: a.reshape(b.shape[1], -1) @ b, 1024, 1024, 1024)


ALONG = {
    "widened": (jnp.matmul, "bfloat16", (37, 70), (70, 150)),
    "scaled": (lambda a, b: (a * 2 + 1) @ b, "float32", (37, 70), (70, 150)),
    "batch": (jnp.matmul, "float16", (3, 17, 33), (3, 33, 150)),
    "two contracted": (
        lambda a, b: jnp.einsum("ikl,klj->ij", a, b),
        "bfloat16",
        (21, 5, 9),
        (5, 9, 150),
    ),
    "heads side by side": (lambda a, b: _heads(a) @ b, "bfloat16", (5, 21, 16), (80, 150)),
    "short heads": (lambda a, b: _heads(a) @ b, "bfloat16", (5, 21, 6), (30, 150)),
}


def _heads(a):
    """[heads, rows, width] as [rows, heads * width]."""
    return a.transpose(1, 0, 2).reshape(a.shape[1], -1)


@pytest.mark.parametrize("name", ALONG)
@pytest.mark.parametrize("level", LEVELS)
def test_left_factors_computed_first(machine_code, take_apart, arrays, name, level):
    """To the same bits as tile by tile."""
    function, dtype, *shapes = ALONG[name]
    args = [np.round(a).clip(-2, 2).astype(a.dtype) for a in arrays(dtype, *shapes)]
    parts = take_apart(function, *args)
    for turn in (0, 1):
        tuned = {0: ("contraction", {"turn": turn, "pack_rows": 1 - turn})}
        execute = machine_code.executing(
            tuned=tuned, target=named(level), threads=2, fence_at="end"
        )
        (result,) = parts.run(args, execute)
        np.testing.assert_array_equal(result, np.asarray(function(*map(jnp.asarray, args))))


def test_left_factors_are_computed_first_where_many_panels_read_them(take_apart):
    """And they stay in the caches; batches and few columns read each number less often."""

    def first(m, k, n, dtype=jnp.bfloat16, batch=()):
        a, b = (jax.ShapeDtypeStruct((*batch, *shape), dtype) for shape in ((m, k), (k, n)))
        (program,) = take_apart(jnp.matmul, a, b).programs
        _, (decision,) = schedule_program(program, named("x86-64-v3"))
        return decision.parameters["turn"], decision.parameters["pack_rows"]

    assert first(64, 256, 512) == (1, 0)
    assert first(64, 256, 512, jnp.float32) == (0, 0)
    assert first(64, 256, 64) == (0, 1)
    assert first(64, 64, 64, batch=(12,)) == (0, 1)
    assert first(8192, 256, 512) == (0, 1)


def test_left_factors_across_the_depth_are_computed_first_where_they_fit(take_apart):
    """However few panels read them: the rows of a tile would be computed one number after the
    other. Those that do not fit are computed where they multiply, if that takes little."""

    def first(m, k, n, dtype=jnp.bfloat16):
        a, b = (jax.ShapeDtypeStruct(shape, dtype) for shape in ((k, m), (k, n)))
        (program,) = take_apart(lambda a, b: a.T @ b, a, b).programs
        _, (decision,) = schedule_program(program, named("x86-64-v3"))
        return decision.parameters["turn"], decision.parameters["pack_rows"]

    assert first(64, 256, 512) == (1, 0)
    assert first(64, 256, 16) == (1, 0)
    assert first(64, 256, 16, jnp.float16) == (1, 0)
    assert first(64, 256, 16, jnp.float32) == (0, 0)
    assert first(32768, 128, 16) == (0, 0)


@pytest.mark.parametrize(("width", "turn"), [(64, 1), (12, 0)])
def test_left_factors_that_lie_in_pieces_are_computed_in_vectors(take_apart, width, turn):
    """Where each vector is of one piece, as of heads that lie one behind the other."""
    shapes = (8, 128, width), (8 * width, 512)
    a, b = (jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in shapes)
    (program,) = take_apart(lambda a, b: _heads(a) @ b, a, b).programs
    _, (decision,) = schedule_program(program, named("x86-64-v3"))
    assert decision.parameters["turn"] == turn
    by_tiles = {0: ("contraction", {**decision.parameters, "turn": 0, "pack_rows": 1})}
    loops, _ = schedule_program(program, named("x86-64-v3"), by_tiles)
    (column,) = {
        s.var.name.split(".h.")[0]
        for s in walk(loops.body)
        if isinstance(s, For) and ".h." in s.var.name and ".o.i.h." not in s.var.name
    }
    rows = [s for s in walk(loops.body) if isinstance(s, For) and f"{column}.h." in s.var.name]
    assert any(s.kind is LoopKind.VECTORIZE for s in rows) == turn


@pytest.mark.parametrize("m", [1, 2, 13])
@pytest.mark.parametrize("n", [1, 15, 16, 17, 64, 129])
@pytest.mark.parametrize("k", [1, 31, 300])
def test_extents(machine_code, take_apart, arrays, m, n, k):
    """Whole numbers, so that every order of summation is exact."""
    a, b = (np.round(x * 3) for x in arrays("float32", (m, k), (k, n)))
    parts = take_apart(jnp.matmul, a, b)
    (result,) = parts.run((a, b), machine_code.executing())
    np.testing.assert_array_equal(result, a @ b)


@pytest.mark.parametrize("shape", [(300, 517, 130), (64, 1100, 700), (1000, 40, 9), (9, 40, 1000)])
def test_shared_out_and_packed(check, arrays, shape):
    m, k, n = shape
    a, b, c = arrays("float32", (m, k), (k, n), (n, k))
    check(lambda a, b, c: (a @ b, a @ c.T), a, b, c, magnitude=k)


def _asked(parts) -> list[str]:
    """What is asked for of the right factor."""
    loops, _ = schedule_program(parts.programs[0], named("x86-64-v3"))
    return [line for line in program_text(loops).splitlines() if "prefetch a1" in line]


@pytest.mark.parametrize("groups", [3, 5, 8])
def test_blocks_of_a_short_depth_fit_on_the_stack(check, arrays, groups):
    """Of two depths the last is short, and so much of it fits that one more element does not."""
    rows, weights = arrays("float32", (groups, 1024, 256), (groups, 256, 128))
    numbers = (((2, 0), (1, 0)), ((), ()))
    check(lambda x, w: lax.dot_general(x, w, numbers), rows, weights, magnitude=256 * groups)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("channels", [33, 64])
def test_factors_along_one_of_several_depths_are_copied_in_vectors(
    check, take_apart, arrays, dtype, channels
):
    """Frames, of which some lie beyond an end, and windows: both have channels side by side."""
    with jax.enable_x64(True):
        x, windows = arrays(dtype, (2, 19, channels), (64, channels, 1))

        def synthesis(x, windows):
            return lax.conv_transpose(
                x, windows, (32,), "VALID", dimension_numbers=("NWC", "WIO", "NWC")
            )

        check(synthesis, x, windows)
        (program,) = take_apart(synthesis, x, windows).programs
    loops, _ = schedule_program(program, named("x86-64-v3"))
    copied = [
        [inner for inner in walk(stmt.body) if isinstance(inner, For)]
        for stmt in walk(loops.body)
        if isinstance(stmt, For) and ".h." in stmt.var.name
    ]
    assert copied
    for inside in filter(None, copied):
        assert any(inner.kind is LoopKind.VECTORIZE for inner in inside)


@pytest.mark.parametrize(
    ("m", "n", "k", "ahead"), [(9, 1000, 251, AHEAD * 1000), (9, 64, 251, None)]
)
def test_rows_that_lie_far_apart_are_fetched(machine_code, take_apart, arrays, m, n, k, ahead):
    """Those of large right factors, where they are not packed."""
    a, b = arrays("float32", (m, k), (k, n))
    parts = take_apart(jnp.matmul, a, b)
    assert {int(line.rpartition("+ ")[2]) for line in _asked(parts)} == (
        set() if ahead is None else {ahead}
    )
    (result,) = parts.run((a, b), machine_code.executing(fence_at="end"))
    np.testing.assert_allclose(result, a.astype(np.float64) @ b, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("m", "n", "k"), [(8, 1024, 512), (11, 1003, 701), (3, 2051, 523)])
def test_a_few_whole_rows_at_a_time_come_from_memory(
    machine_code, take_apart, arrays, dtype, m, n, k
):
    """All panels go along some rows of a right factor that comes from memory, before the next rows;
    with AVX-512, whose panels are several lines, each panel goes along all of them."""
    a, b = arrays(dtype, (m, k), (k, n))
    with jax.enable_x64(True):
        parts = take_apart(lambda a, b: a @ b + 1, a, b)
    for level in LEVELS[1:]:
        target = named(level)
        loops, _ = schedule_program(parts.programs[0], target)
        inner = {
            loop: [s for s in walk(loop.body) if isinstance(s, For)]
            for loop in walk(loops.body)
            if isinstance(loop, For) and constant_extent(loop) == -(-k // ROWS_AT_A_TIME)
        }
        swept = [f for s in inner.values() for f in s if f.var.name.endswith(".o.i")]
        assert bool(swept) == (level == "x86-64-v3")
        for threads in (1, 2):
            (result,) = parts.run(
                (a, b), machine_code.executing(target=target, threads=threads, fence_at="end")
            )
            np.testing.assert_allclose(result, a.astype(np.float64) @ b + 1, rtol=1e-4, atol=1e-3)


def test_sums_of_many_rows_are_sums_of_parts(machine_code, take_apart):
    """2^24 and then ones, of which none would be seen if they were added one after the other."""
    depth, columns = 4096, 512
    a = np.ones((4, depth), np.float32)
    a[:, 0] = 2.0**24
    b = np.ones((depth, columns), np.float32)
    parts = take_apart(jnp.matmul, a, b)
    (result,) = parts.run((a, b), machine_code.executing(target=named("x86-64-v3")))
    np.testing.assert_allclose(result, a.astype(np.float64) @ b, rtol=2 * ROWS_AT_A_TIME / 2**24)


def _scaled(b, scale):
    return (b.astype(np.float32) * scale).T


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "int8", "float32"])
@pytest.mark.parametrize(("m", "n", "k"), [(24, 64, 128), (33, 70, 131)])
@pytest.mark.parametrize("level", ["x86-64-v2", "x86-64-v3", "x86-64-v4"])
def test_right_factors_are_computed_along_the_depth_in_squares(
    machine_code, take_apart, arrays, dtype, m, n, k, level
):
    """Whole numbers make every order exact."""
    (a, scale), (b,) = arrays("float32", (m, k), (n, 1)), arrays(dtype, (n, k))
    a, scale, b = np.round(a * 4), np.round(scale * 4), np.round(b * 2).astype(b.dtype)
    parts = take_apart(lambda a, b, scale: a @ _scaled(b, scale), a, b, scale)
    execute = machine_code.executing(
        tuned={0: ("contraction", {"pack": 1})}, target=named(level), threads=2, fence_at="end"
    )
    np.testing.assert_array_equal(parts.run((a, b, scale), execute)[0], a @ _scaled(b, scale))


@pytest.mark.parametrize(
    "rows",
    [
        lambda b, places: b,
        lambda b, places: b[places],
        lambda b, places: jnp.pad(b[:48], ((9, 7), (0, 0))),
        lambda b, places: jnp.pad(b[:, :80], ((0, 0), (24, 24))),
    ],
    ids=["all", "gathered", "with rows around", "with columns around"],
)
def test_rows_that_are_only_read_are_packed_in_squares(take_apart, rows):
    """From wherever they are, and with borders: a few numbers of each of a vector's rows at a time,
    as whole columns went through all rows' lines of the cache again and again."""
    shapes = ((24, 128), "float32"), ((64, 128), "float32"), ((64,), "int32")
    args = [jax.ShapeDtypeStruct(*one) for one in shapes]
    parts = take_apart(lambda a, b, places: a @ rows(b, places).T, *args)
    (program,), target = parts.programs, named("x86-64-v3")
    loops, _ = schedule_program(program, target, {0: ("contraction", {"pack": 1})})
    lines = program_text(loops).splitlines()
    assert any(".h." in line and "in 0..4 unroll" in line for line in lines)


@pytest.mark.parametrize(("dtype", "bits"), [("bfloat16", 16), ("float16", 16), ("int8", 8)])
def test_no_number_of_a_square_is_read_alone(take_apart, dtype, bits):
    shapes = ((24, 128), "float32"), ((64, 128), dtype), ((64, 1), "float32")
    args = [jax.ShapeDtypeStruct(*one) for one in shapes]
    parts = take_apart(lambda a, b, scale: a @ _scaled(b, scale), *args)
    (program,), target = parts.programs, named("x86-64-v3")
    loops, _ = schedule_program(program, target, {0: ("contraction", {"pack": 1})})
    assert f"load i{bits}," not in print_program(loops, target)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(
    ("m", "n", "k", "count"),
    [(300, 1100, 251, 2), (300, 1100, 2100, 2), (300, 64, 251, 0), (9, 1100, 251, 0)],
)
def test_the_panel_after_this_one_is_fetched(
    machine_code, take_apart, arrays, m, n, k, count, transposed
):
    """By all tiles of large right factors that are packed: the first one packs and multiplies."""
    a, b = arrays("float32", (m, k), (n, k) if transposed else (k, n))
    parts = take_apart(lambda a, b: a @ (b.T if transposed else b), a, b)
    asked = [line for line in _asked(parts) if line.endswith("+ 0")]
    assert len(asked) == (count // 2 if transposed else count)
    (result,) = parts.run((a, b), machine_code.executing(fence_at="end"))
    expected = a.astype(np.float64) @ (b.T if transposed else b)
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-2)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "int8"])
@pytest.mark.parametrize("layout", ["kn", "nk"])
@pytest.mark.parametrize("level", ["x86-64", "x86-64-v3", "x86-64-v4"])
def test_packed_beside_multiplying(machine_code, take_apart, arrays, dtype, layout, level):
    """The first tile of every panel packs it; whole numbers make every order exact."""
    a, b = (np.round(x * 2) for x in arrays(dtype, (47, 131), (131, 75)))
    given = b if layout == "kn" else np.ascontiguousarray(b.T)
    parts = take_apart(
        lambda a, b: (
            lax.dot_general(
                a, b, (((1,), (layout.index("k"),)), ((), ())), preferred_element_type=jnp.float32
            )
            + 1
        ),
        a,
        given,
    )
    for blocks, apart in ((1, 1), (2, 8)):
        tuned = {
            0: (
                "contraction",
                {
                    "pack": 1,
                    "next_panel": apart,
                    "ahead": 4,
                    "rows": 6,
                    "vectors": 2,
                    "row_blocks": blocks,
                    "depth": 256,
                },
            )
        }
        (result,) = parts.run(
            (a, given),
            machine_code.executing(tuned=tuned, target=named(level), threads=2, fence_at="end"),
        )
        np.testing.assert_array_equal(result, a.astype(np.float64) @ b.astype(np.float64) + 1)


@pytest.mark.parametrize(("level", "tile"), [("x86-64-v3", (6, 2)), ("x86-64-v4", (6, 4))])
@pytest.mark.parametrize("depth", [512, 509])
def test_to_ask_for_the_next_panel_costs_no_step(take_apart, arrays, level, tile, depth):
    """A step of the depth holds multiplications only; what is asked for stands in front of some."""
    parts = take_apart(lambda a, b: a @ b, *arrays("float32", (509, depth), (depth, 512)))
    (program,) = parts.programs
    scheduled, (decision,) = schedule_program(program, named(level))
    parameters = decision.parameters
    assert (parameters["rows"], parameters["vectors"]) == tile
    assert parameters["pack"] and parameters["next_panel"] == 8
    asking = [around_it(path) for path in paths(scheduled.body) if isinstance(path[-1], Prefetch)]
    assert asking
    for loop in asking:
        steps = [s for s in loop.body if isinstance(s, For) and s.kind is LoopKind.SERIAL]
        assert steps and not any(isinstance(s, Prefetch) for s in walk(steps))


def around_it(path: tuple[Stmt, ...]) -> For:
    """The innermost loop around a statement that runs one step after the other."""
    return next(s for s in reversed(path) if isinstance(s, For) and s.kind is LoopKind.SERIAL)


def test_the_matrix_is_fetched_and_nothing_else(machine_code, take_apart, arrays):
    """Not the scales of its columns; nor rows whose places stand in memory themselves."""
    a, b, scales = (np.round(x * 2) for x in arrays("float32", (47, 131), (140, 75), (75,)))
    order = np.random.default_rng(0).permutation(140)[:131].astype(np.int32)
    tuned = {0: ("contraction", {"pack": 1, "next_panel": 1, "rows": 6, "vectors": 2})}
    for function, args, expected, count in (
        (lambda a, s, b: a @ (s * b), (a, scales, b[:131]), a @ (scales * b[:131]), 2),
        (lambda a, o, b: a @ b[o], (a, order, b), a @ b[order], 0),
    ):
        parts = take_apart(function, *args)
        asked = [
            stmt.buffer.shape
            for program in parts.programs
            for stmt in walk(schedule_program(program, named("x86-64-v3"), tuned)[0].body)
            if isinstance(stmt, Prefetch)
        ]
        assert asked == [(131, 75)] * count
        (result,) = parts.run(args, machine_code.executing(tuned=tuned, fence_at="end"))
        np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize(
    ("dtype", "level", "cpu", "computed"),
    [
        ("bfloat16", "x86-64-v4", "znver4", 0),
        ("bfloat16", "x86-64-v4", "sapphirerapids", 1),
        ("bfloat16", "x86-64-v3", "znver3", 1),
        ("float16", "x86-64-v4", "znver4", 1),
        ("float32", "x86-64-v4", "sapphirerapids", 0),
    ],
)
def test_rows_are_computed_beforehand_unless_that_costs_nothing(
    take_apart, arrays, dtype, level, cpu, computed
):
    parts = take_apart(jnp.matmul, *arrays(dtype, (33, 70), (70, 90)))
    target = replace(named(level), cpu=cpu)
    _, (decision,) = schedule_program(parts.programs[0], target)
    assert decision.parameters["pack_rows"] == computed


def test_rows_joined_along_the_depth_are_written_out(check, take_apart, arrays):
    """Nobody asks for each element which of the arrays side by side has it."""
    *parts, w = arrays("float32", *[(6000,)] * 16, (16, 3))

    def function(parts, w):
        return jnp.maximum(jnp.stack(parts, -1) @ w, 0)

    check(function, parts, w)
    joined = [
        stmt
        for program in take_apart(function, parts, w).programs
        for stmt in walk(schedule_program(program, named("x86-64-v4"))[0].body)
        if isinstance(stmt, For) and ".h." in stmt.var.name and constant_extent(stmt) == 16
    ]
    assert joined and all(stmt.kind is LoopKind.UNROLL for stmt in joined)


@pytest.mark.parametrize("m", [1, 5, 17, 33])
def test_sums_on_top_of_what_is_there(check, arrays, m):
    """Rows are computed once where what they are added to is overwritten."""
    a, b, c = arrays("float32", (m, 20), (20, 33), (m, 33))
    check(lambda a, b, c: lax.fori_loop(0, 3, lambda _, c: c + a @ b, c), a, b, c)


def test_prologues_and_epilogues(check, arrays):
    x, w, bias, y = arrays("float32", (37, 65), (65, 50), (50,), (37, 50))

    def function(x, w, bias, y):
        return (
            jax.nn.gelu(x @ w + bias),
            jnp.maximum(jnp.tanh(x) @ w, 0) * y + 1,
            (x * 2 - 1) @ (w / 3),
            (x @ w).T + bias[:, None],
            (x @ w).sum(1),
            jax.nn.softmax(x @ w + bias),
            x.at[0].set(0) @ w,
            (x @ w)[::-1, 3:],
        )

    check(function, x, w, bias, y, ulps=64)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_factors_that_read_nothing(check, arrays, dtype):
    """Masks of indices, as gradients of slices and triangular matrices have: they are put aside for
    a tile, or packed, like any other factor that is computed."""

    def function(a):
        at = jnp.arange(33)
        triangle, steps = at[:, None] >= at, (at[:, None] < 29) & (at % 2 == 0)
        results = [mask.astype(a.dtype) @ a for mask in (triangle, steps)]
        results += [a.T @ mask.astype(a.dtype) for mask in (triangle, steps)]
        if dtype == "int8":
            return results
        part, pull = jax.vjp(lambda a: (a.T @ a)[:-1, ::2], a)
        return [*results, *pull(jnp.ones_like(part))]

    check(function, *arrays(dtype, (33, 17)))


@pytest.mark.parametrize(("depth", "columns"), [(3, 3), (3, 4), (2, 2), (64, 5), (3, 5), (17, 1)])
def test_few_columns_of_rows_side_by_side(check, take_apart, arrays, depth, columns):
    """Vectors along the rows, whose results are put in turns; else along the columns."""
    for dtype in ("float32", "bfloat16", "float64", "int8"):
        x, a, b = arrays(dtype, (depth, 77), (depth, columns), (columns,))
        with jax.enable_x64(dtype == "float64"):
            check(lambda x, a: x.T @ a, x, a)
            check(lambda x, a, b: jnp.maximum(x.T @ a + b, 0), x, a, b)
    x, a = arrays("float32", (depth, 77), (depth, columns))
    (program,) = take_apart(lambda x, a: x.T @ a, x, a).programs
    loops, (decision,) = schedule_program(program, named("x86-64-v4"))
    vectors = [s for s in walk(loops.body) if isinstance(s, For) and s.kind is LoopKind.VECTORIZE]
    if decision.template.name == "contraction":
        assert (max(s.var.extent for s in vectors) == 16) == ((depth, columns) != (3, 5))


def test_layouts(check, arrays):
    x, w = arrays("float32", (40, 30), (60, 40))
    check(
        lambda x, w: (
            w[:, ::-1] @ x,
            jnp.broadcast_to(x[:, :1], (40, 40)) @ x,
            jnp.concatenate([x, x]).T @ jnp.tile(x, (2, 1)),
            x[1::2, ::2].T @ x[::2],
            jnp.pad(x, ((0, 20), (7, 3))) @ w.T[:40].T[:40],
        ),
        x,
        w,
    )


def test_special_values(check, arrays):
    """NaN and infinities go where they must; 0 * inf is NaN."""
    a, b = arrays("float32", (17, 33), (33, 9))
    a[3, 5], a[4, 7], b[2, 3], b[9, 8] = np.nan, np.inf, -np.inf, 0.0
    a[6, 9] = np.inf
    check(lambda a, b: (a @ b, jnp.maximum(a @ b, 0)), a, b)


def test_attention_and_its_gradient(check, arrays):
    q, k, v = arrays("float32", (2, 3, 17, 8), (2, 3, 21, 8), (2, 3, 21, 5))

    def attention(q, k, v):
        scores = jnp.einsum("bhqd,bhkd->bhqk", q, k) / np.float32(np.sqrt(8))
        return jnp.einsum("bhqk,bhkd->bqhd", jax.nn.softmax(scores), v)

    check(
        lambda *a: (attention(*a), jax.grad(lambda *b: (attention(*b) ** 2).sum(), (0, 1, 2))(*a)),
        q,
        k,
        v,
        ulps=64,
    )


def test_convolutions(check, arrays):
    x, w, d = arrays("float32", (2, 9, 11, 3), (3, 3, 3, 8), (3, 3, 1, 3))
    layout = ("NHWC", "HWIO", "NHWC")

    def function(x, w, d):
        return (
            lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=layout),
            lax.conv_general_dilated(
                x, w, (2, 1), ((1, 0), (0, 2)), rhs_dilation=(1, 2), dimension_numbers=layout
            ),
            lax.conv_general_dilated(
                x, w, (1, 1), ((0, 0), (0, 0)), lhs_dilation=(2, 1), dimension_numbers=layout
            ),
            lax.conv_general_dilated(
                x, d, (1, 1), "SAME", dimension_numbers=layout, feature_group_count=3
            ),
        )

    check(function, x, w, d, ulps=64)


@pytest.mark.parametrize(
    ("m", "k", "n"), [(65, 64, 100), (130, 200, 70), (33, 512, 1000), (300, 30, 150), (64, 64, 128)]
)
def test_results_one_behind_the_other(check, arrays, m, k, n):
    """Rows and columns share an index: tasks are shown to be apart by how far panels can go."""
    x, w = arrays("float32", (m, k), (k, n))

    def function(x, w):
        product = x @ w
        return product.reshape(-1), jnp.maximum(product[::-1], 0).reshape(-1, 2)

    check(function, x, w, ulps=64)
    check(lambda x, w: (x @ w).reshape(-1), x, w, ulps=64)


def _of_bytes(a: jax.Array, b: jax.Array) -> jax.Array:
    return lax.dot(a, b, preferred_element_type=jnp.int32)


@pytest.mark.parametrize("level", ["x86-64", "x86-64-v3", "x86-64-v4"])
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16"])
@pytest.mark.parametrize(
    ("m", "n", "k"), [(24, 64, 128), (33, 70, 131), (8, 5, 7), (13, 40, 4096), (9, 33, 4098)]
)
def test_products_of_pairs(machine_code, take_apart, dtype, m, n, k, level):
    """Of the largest and smallest numbers, too, of which two products of i16 wrap; at any level,
    with what is left of an odd depth, and in parts of a long one."""
    kind, rng = np.iinfo(dtype), np.random.default_rng(0)
    a, b = (rng.integers(kind.min, kind.max, s, dtype, endpoint=True) for s in ((m, k), (k, n)))
    a[0], b[:, 0] = kind.min, kind.min
    parts = take_apart(lambda a, b: _of_bytes(a, b) * 2, a, b)
    execute = machine_code.executing(
        tuned={0: ("contraction", {"pairs": 1, "pack": 0})}, target=named(level), fence_at="end"
    )
    expected = (a.astype(np.int64) @ b.astype(np.int64) * 2).astype(np.int32)
    np.testing.assert_array_equal(parts.run((a, b), execute)[0], expected)


@pytest.mark.parametrize(
    ("level", "features", "instruction"),
    [
        ("x86-64-v4", "+avx512vnni", "vpdpwssd"),
        ("x86-64-v4", "", "vpmaddwd"),
        ("x86-64-v3", "", "vpmaddwd"),
        ("x86-64-v2", "", "pmaddwd"),
    ],
)
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(
    ("dtype", "rows"), [("int8", 24), ("int16", 8), ("uint16", 24), ("int8", 4)]
)
def test_pairs_are_added_at_once(take_apart, dtype, rows, transposed, level, features, instruction):
    """On x86, where what is multiplied fits into i16, for some rows."""
    target = named(level)
    target = replace(target, features=f"{target.features},{features}") if features else target
    shapes = (rows, 64), ((96, 64) if transposed else (64, 96))
    args = [jax.ShapeDtypeStruct(shape, dtype) for shape in shapes]
    (program,) = take_apart(lambda a, b: _of_bytes(a, b.T if transposed else b), *args).programs
    loops, (decision,) = schedule_program(program, target)
    is_paired = dtype != "uint16" and rows >= 8
    assert decision.parameters.get("pairs", 0) == is_paired
    assert (instruction in assembly(print_program(loops, target), target)) == is_paired
    loops, (decision,) = schedule_program(program, named("aarch64"))
    assert not decision.parameters.get("pairs")
