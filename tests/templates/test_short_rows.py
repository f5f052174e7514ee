"""Maps over rows of a few elements: points, colours, matrices, bits; right for any shape, type and
layout, in place, too.

What is done for each of them differs: vectors along the axis before, vectors in pieces, elements
written out, parts stored one by one.
"""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from hlo_mlc.loops.text import program_text
from hlo_mlc.target.cpu import named
from hlo_mlc.templates.program import schedule_program

DTYPES = ["float32", "float64", "bfloat16", "int32", "uint8"]


def _repeated(step, x):
    return lax.fori_loop(0, 3, lambda _, v: step(v).astype(x.dtype), x)


# Of rows `x`, of a factor for each row, and for each element of a row.
FUNCTIONS = {
    "scaled": lambda x, row, column: x * row[..., None] + column,
    "crossed": lambda x, row, column: jnp.stack(
        [x[..., k] * row - x[..., k - 1] for k in range(x.shape[-1])], -1
    ),
    "turned": lambda x, row, column: x[..., ::-1] - x,
    "moved": lambda x, row, column: jnp.moveaxis(x, -1, 0) * row,
    "moved_back": lambda x, row, column: (
        jnp.moveaxis(jnp.stack([row + x[..., k] for k in range(x.shape[-1])]), 0, -1) * x
    ),
    "in_place": lambda x, row, column: _repeated(lambda v: v + v * column, x),
    "in_place_rows": lambda x, row, column: _repeated(
        lambda v: jnp.where(row[..., None] > 1, v * 2, v - column), x
    ),
    "centred": lambda x, row, column: _repeated(lambda v: v - v.sum(-1, keepdims=True) * column, x),
    "end_to_end": lambda x, row, column: jnp.stack(
        [x[..., 0] + row, row * 2, x[..., -1] - row], -1
    ).ravel(),
    "repeated": lambda x, row, column: (
        jnp.repeat(x.ravel(), 3) * jnp.tile(jnp.repeat(column, 3), row.size)
    ),
    "edges": lambda x, row, column: jnp.pad(x, [(2, 3)] * (x.ndim - 1) + [(0, 0)], mode="edge"),
    "mirrored": lambda x, row, column: jnp.pad(
        x, [(2, 3)] * (x.ndim - 1) + [(0, 0)], mode="reflect"
    ),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_values(check, arrays, name, dtype) -> None:
    rng = np.random.default_rng([*name.encode(), *dtype.encode()])
    with jax.enable_x64(dtype == "float64"):
        for lead in ((16,), (37,), (5, 70), (1000,)):
            wide = int(rng.integers(2, 12))
            x, row, column = arrays(dtype, (*lead, wide), lead, (wide,))
            if not np.issubdtype(x.dtype, np.integer):
                x[..., 1, 0], x[..., 3, 1] = np.nan, np.inf
            check(FUNCTIONS[name], x, row, column, magnitude=64)


@pytest.mark.parametrize("wide", range(2, 8))
@pytest.mark.parametrize("dtype", ["float32", "uint8"])
def test_rows_that_are_written_where_they_are_read(check, arrays, wide, dtype) -> None:
    """For all lengths around those of vectors."""
    for rows in (1, 15, 16, 17, 33, 200):
        x, column = arrays(dtype, (rows, wide), (wide,))
        check(lambda x, c: _repeated(lambda v: v * c + v, x), x, column, magnitude=64)


@pytest.mark.parametrize("parts", [2, 4, 5, 9, 16, 24, 48])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "uint8"])
def test_arrays_side_by_side(check, arrays, parts, dtype) -> None:
    """Stored along with each other, and searched by windows."""
    given = arrays(dtype, *[(12, 37)] * parts)
    check(lambda *a: jnp.stack(a, -1) + 1, *given)
    zero = np.zeros((), given[0].dtype)
    check(
        lambda *a: lax.reduce_window(jnp.stack(a, -1), zero, lax.max, (3, 3, 1), (1, 1, 1), "SAME"),
        *given,
    )


@pytest.mark.parametrize(
    "function",
    [
        lambda x: jnp.unpackbits(x),
        lambda x: jnp.packbits(x > 100),
        lambda x: x.reshape(20, 2, 15, 2, 3).transpose(0, 2, 1, 3, 4).reshape(20, 15, 12),
        lambda x: x.reshape(20, 30, 2, 3)[:, ::-1] * 2,
        lambda x: jnp.repeat(jnp.repeat(x.reshape(40, 30, 3), 2, 0), 2, 1),
    ],
)
def test_bits_and_pixels(check, arrays, function) -> None:
    check(function, *arrays("uint8", (3600,)))


def test_matrices_of_quaternions(check, arrays) -> None:
    """Nine elements, each of them computed by something else, of one row."""

    def function(q):
        w, x, y, z = jnp.moveaxis(q, -1, 0)
        return jnp.stack(
            [
                1 - 2 * (y * y + z * z),
                2 * (x * y - z * w),
                2 * (x * z + y * w),
                2 * (x * y + z * w),
                1 - 2 * (x * x + z * z),
                2 * (y * z - x * w),
                2 * (x * z - y * w),
                2 * (y * z + x * w),
                1 - 2 * (x * x + y * y),
            ],
            -1,
        ).reshape(-1, 3, 3)

    check(function, *arrays("float32", (1001, 4)), magnitude=8)


def _scheduled(take_apart, function, *args):
    """The templates of its only kernel, and its loops."""
    (program,) = take_apart(function, *args).programs
    loops, decisions = schedule_program(program, named("x86-64-v4"))
    return [d.template.name for d in decisions], program_text(loops)


def test_what_is_joined_has_a_lane_for_each_row(take_apart, arrays) -> None:
    given = arrays("float32", *[(12, 37)] * 9)
    templates, _ = _scheduled(take_apart, lambda *a: jnp.stack(a, -1) + 1, *given)
    assert templates == ["side_by_side"]


def test_what_is_the_same_all_along_a_row_is_not_written_out(take_apart, arrays) -> None:
    """Of a rolled row, conditions say where an element is read; the rest, 64 times as long, is
    computed for all."""

    def function(x):
        near = sum(jnp.roll(x, d, axis) for d in (1, -1) for axis in (0, 1))
        return jnp.where(jnp.tanh((x * near).astype(jnp.float32)) > 0.3, -x, x)

    templates, _ = _scheduled(take_apart, function, *arrays("int8", (64, 64)))
    assert templates == ["elementwise"]


@pytest.mark.parametrize(
    "function",
    [
        lambda x, row: jnp.stack([x[:, 0] * row, x[:, 1] - row, x[:, 2]], -1),
        lambda x, row: jnp.stack([x[:, 0] * row, x[:, 1] - row, x[:, 2]], -1).ravel(),
        lambda x, row: x * row[:, None],
    ],
)
def test_points_have_vectors_of_coordinates(take_apart, arrays, function) -> None:
    """Each coordinate of 16 points at a time."""
    templates, loops = _scheduled(take_apart, function, *arrays("float32", (200, 3), (200,)))
    assert templates == ["elementwise"]
    assert re.search(r"in 0..3 unroll:\n *for \S+ in 0..16 vectorize:", loops)


def test_points_of_neighbours_have_vectors_of_coordinates(check, take_apart, arrays) -> None:
    """Conditions say which neighbours there are; they lie side by side."""

    def function(x):
        before = jnp.pad(x, [(0, 0), (1, 0)], mode="edge")[:, :-1]
        return jnp.stack([x, jnp.sqrt(jnp.abs(before + x)), before - x * 2], -1)

    given = arrays("float32", (90, 130))
    check(function, *given)
    _, loops = _scheduled(take_apart, function, *given)
    assert re.search(r"in 0..3 unroll:\n *for \S+ in 0..16 vectorize:", loops)


@pytest.mark.parametrize("wide", [5, 7, 70])
def test_no_vector_under_a_mask_is_written_where_it_is_read(take_apart, arrays, wide) -> None:
    """Along such rows processors wait for every one before."""
    _, loops = _scheduled(
        take_apart,
        lambda x, c: lax.fori_loop(0, 40, lambda _, v: v * c + v, x),
        *arrays("float32", (200, wide), (wide,)),
    )
    _, _, inside = loops.partition("for n0 in")
    lanes = {int(n) for n in re.findall(r"in 0..(\d+) vectorize", inside)}
    assert lanes
    assert all(n & (n - 1) == 0 for n in lanes)


def test_joined_images_are_filled_part_by_part(take_apart, arrays) -> None:
    """Neither is a part looked for at each pixel."""
    _, loops = _scheduled(
        take_apart,
        lambda x: jnp.pad(x, [(4, 4), (4, 4), (0, 0)], mode="edge"),
        *arrays("uint8", (200, 300, 3)),
    )
    stored = re.findall(r"\br0\[.*", loops)
    assert len(stored) >= 3
    assert not any(re.search(r"i1\S* (<|>=)", line) for line in stored)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.reshape(2, 3, 4, 5, 2)[:, ::-1] + 1,
        lambda x: x.reshape(12, 20).repeat(2, 1).reshape(2, 6, 5, 8).swapaxes(1, 2),
        lambda x: x.reshape(10, 2, 6, 2).transpose(0, 2, 1, 3).reshape(10, 6, 4),
        lambda x: jnp.stack([x, x * 2, x - 1], 1).reshape(9, 80).T.ravel(),
        lambda x: jnp.tile(x.reshape(24, 10), (2, 3)).ravel() * 2,
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "uint8"])
def test_axes_in_axes(check, arrays, function, dtype) -> None:
    """Whatever is counted within what."""
    check(function, *arrays(dtype, (240,)))


# Of an image: what is read for a vector of results lies in several rows.
BLOCKS = {
    "to_depth": lambda x, b: (
        x.reshape(6, -1, b, x.shape[2] // b, b, x.shape[3])
        .transpose(0, 1, 3, 2, 4, 5)
        .reshape(6, -1, x.shape[2] // b, b * b * x.shape[3])
    ),
    "columns_first": lambda x, b: (
        x.reshape(6, -1, b, x.shape[2] // b, b, x.shape[3])
        .transpose(0, 1, 3, 4, 2, 5)
        .reshape(6, -1, x.shape[2] // b, b * b * x.shape[3])
        + 1
    ),
    "to_space": lambda x, b: (
        x.reshape(6, -1, x.shape[2] // b // b, b, b, x.shape[3])
        .transpose(0, 1, 3, 2, 4, 5)
        .reshape(-1, x.shape[2] // b, x.shape[3])
    ),
}


@pytest.mark.parametrize("dtype", ["uint8", "bfloat16", "float32", "bool"])
@pytest.mark.parametrize("name", BLOCKS)
def test_blocks_of_images(check, arrays, name, dtype) -> None:
    for block, wide, deep in ((2, 36, 1), (2, 20, 3), (3, 27, 1), (4, 48, 1), (4, 32, 2)):
        (x,) = arrays("uint8" if dtype == "bool" else dtype, (6, 4 * block, wide, deep))
        if dtype == "bool":
            check(lambda x: BLOCKS[name](x > 100, block), x)  # noqa: B023
        else:
            check(lambda x: BLOCKS[name](x, block), x)  # noqa: B023


# Of rows `x` and `y`: conditions say which is which.
JOINED = {
    "side_by_side": lambda x, y: jnp.concatenate([x, y], -1),
    "between": lambda x, y: jnp.concatenate([x[..., :2], y * 2, x[..., 2:]], -1),
    "padded": lambda x, y: jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(2, 1)]),
    "apart": lambda x, y: lax.pad(
        y, jnp.zeros((), x.dtype), [(0, 0, 0)] * (x.ndim - 1) + [(1, 2, 1)]
    ),
    "backwards": lambda x, y: jnp.concatenate([x[..., ::-1], y], -1),
    "rolled": lambda x, y: jnp.roll(x, 1, -1),
    "below": lambda x, y: jnp.stack([jnp.concatenate([x, y], -1), jnp.concatenate([y, x], -1)], -2),
    "shared": lambda x, y: jnp.concatenate([x, jnp.broadcast_to(y[0], y.shape)], -1),
    "divided": lambda x, y: jnp.concatenate([x, y], -1) // jnp.concatenate([y, x], -1).clip(1),
}


@pytest.mark.parametrize("dtype", ["uint8", "float32", "bfloat16", "int32"])
@pytest.mark.parametrize("name", JOINED)
def test_rows_joined_of_two(check, arrays, name, dtype) -> None:
    for lead, wide, other in (((101,), 3, 4), ((3, 57), 4, 5), ((64,), 5, 1), ((200,), 2, 9)):
        check(JOINED[name], *arrays(dtype, (*lead, wide), (*lead, other)))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.reshape(60, 2, 60, 2).transpose(0, 2, 1, 3).reshape(60, 60, 4),
        lambda x: x.reshape(40, 3, 40, 3).transpose(0, 2, 1, 3).reshape(40, 40, 9),
        lambda x: x.reshape(30, 4, 30, 4).transpose(0, 2, 1, 3).reshape(30, 30, 16),
        lambda x: jnp.concatenate([x.reshape(-1, 3)[:3600], x.reshape(-1, 4)], -1),
        lambda x: jnp.pad(x.reshape(-1, 3), ((0, 0), (2, 1))),
    ],
)
def test_whole_vectors_go_along_rows_of_several_arrays(take_apart, arrays, function) -> None:
    """No lane is off, and none is read alone."""
    templates, loops = _scheduled(take_apart, function, *arrays("uint8", (120, 120)))
    assert templates == ["elementwise"]
    assert re.search(r"in 0..(16|32|64) vectorize", loops)


@pytest.mark.parametrize("dtype", ["uint8", "bfloat16", "float32"])
@pytest.mark.parametrize("shape", [(4, 4), (8, 4), (4, 8), (6, 6), (5, 7), (12, 6), (3, 9), (8, 8)])
def test_small_matrices_transposed(check, arrays, shape, dtype) -> None:
    for lead in ((70,), (3, 11)):
        x, y = arrays(dtype, (*lead, *shape), (*lead, *shape[::-1]))
        check(lambda x: jnp.swapaxes(x, -1, -2), x)
        check(lambda x, y: jnp.swapaxes(x, -1, -2) + y, x, y, magnitude=64)


@pytest.mark.parametrize("level", ["x86-64-v2", "x86-64-v3", "x86-64-v4"])
@pytest.mark.parametrize(
    "shape", [(8, 3), (3, 8), (6, 4), (8, 4), (2, 16), (16, 2), (3, 7), (7, 5)]
)
def test_several_small_matrices_in_a_vector(machine_code, take_apart, arrays, shape, level) -> None:
    """Their bytes are shuffled as one, as long as matrices begin at the same lanes again soon."""
    for count in (1, 7, 64, 101):
        (x,) = arrays("uint8", (count, *shape))
        parts = take_apart(lambda x: x.swapaxes(1, 2) ^ jnp.uint8(1), x)
        (result,) = parts.run(
            (x,), machine_code.executing(target=named(level), threads=2, fence_at="end")
        )
        np.testing.assert_array_equal(result, x.swapaxes(1, 2) ^ 1)
    (program,) = take_apart(lambda x: x.swapaxes(1, 2), x).programs
    (decision,) = schedule_program(program, named("x86-64-v4"))[1]
    assert decision.parameters.get("along") == 3 or shape[0] * shape[1] not in (24, 32)


def test_short_rows_in_parts_of_longer_ones_are_one_vector(check, take_apart, arrays) -> None:
    """Four columns of three colours between others."""

    def function(x):
        return jnp.pad(x, ((0, 0), (0, 0), (4, 4), (0, 0)), mode="reflect")

    (x,) = arrays("float32", (3, 20, 32, 3))
    _, loops = _scheduled(take_apart, function, x)
    assert loops.count("in 0..12 vectorize") == 2
    check(function, x, ulps=0)
