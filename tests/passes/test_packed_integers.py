"""Integers of 4 and 2 bits: bytes in kernels, packed outside, right where XLA is not.

What is expected is computed in 32 bits, whose last ones are the result of everything that adds and
multiplies, and of what stays within the limits: XLA crashes or errs on many of these (a sort of
int2 writes where it must not, joining them ends the process, bits of int4 are counted up to 8).
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from hlo_mlc import mlc_jit
from hlo_mlc.expr.dtypes import PACKED, TensorType
from hlo_mlc.expr.layout import restored, stored
from hlo_mlc.ops.registry import references
from hlo_mlc.passes.packed_integers import has_packed, in_bytes
from hlo_mlc.passes.simplify import simplify
from hlo_mlc.report import Report

NAMES = ("int4", "uint4", "int2", "uint2")
SHAPES = ((8, 16), (5, 7), (3,), (), (2, 3, 4), (1, 1), (64, 33))


def some(dtype: str, *shape: int, seed: int = 0) -> np.ndarray:
    """Every value, in any order."""
    limits = jnp.iinfo(dtype)
    rng = np.random.default_rng(seed)
    return rng.integers(int(limits.min), int(limits.max) + 1, shape).astype(jnp.dtype(dtype))


def wrapped(values: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """The last bits of whole numbers, as numbers of a type."""
    limits = jnp.iinfo(dtype)
    least, many = int(limits.min), int(limits.max) - int(limits.min) + 1
    return ((values.astype(np.int64) - least) % many + least).astype(dtype)


def wide(value: object) -> object:
    is_packed = isinstance(value, np.ndarray) and value.dtype.name in NAMES
    return value.astype(np.int32) if is_packed else value


def check(function: Callable, *args: object, right: Callable | None = None) -> Report:
    """Against `right`, or the same function, of 32 bits."""
    compiled = mlc_jit(function, choose="ours")
    types = jax.tree.leaves(jax.eval_shape(function, *args))
    expected = jax.tree.leaves(jax.jit(right or function)(*map(wide, args)))
    for ours, one, kind in zip(jax.tree.leaves(compiled(*args)), expected, types, strict=True):
        assert (ours.dtype, ours.shape) == (kind.dtype, kind.shape)
        one = np.asarray(one)
        if kind.dtype.name in NAMES:
            one = wrapped(one, kind.dtype)
        np.testing.assert_array_equal(np.asarray(ours).astype(np.float64), one.astype(np.float64))
    report = compiled.report(*args)
    assert report.coverage == 1, report.left_lines()
    return report


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", NAMES)
def test_they_come_and_go_packed(dtype: str, shape: tuple[int, ...]) -> None:
    """Rows end with a byte or not; what is computed wraps."""
    x, y = some(dtype, *shape), some(dtype, *shape, seed=1)
    check(lambda x: x.astype(jnp.float32) * 2, x)
    check(lambda x: (x.astype(jnp.int8), x.astype(jnp.bfloat16), x.astype(bool)), x)
    check(lambda x, y: (x + y, x * y - y), x, y)
    check(lambda x: x.astype(jnp.int32).sum(), x)
    numbers = np.arange(x.size, dtype=np.int32).reshape(shape) - 5
    check(lambda n: n.astype(dtype), numbers, right=lambda n: n)


@pytest.mark.parametrize("dtype", NAMES)
@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: -x,
        lambda x, y: ~x,
        lambda x, y: x < y,
        lax.max,
        lambda x, y: lax.sign(x),
        lambda x, y: x.T,
        lambda x, y: x[1:5, 3:9],
        lambda x, y: jnp.concatenate([x, y], 1),
        lambda x, y: x[:, ::-1],
        lambda x, y: jnp.where(x > y, x, y),
        lambda x, y: jnp.pad(x, 1),
        lambda x, y: jnp.sum(x, axis=0, dtype=x.dtype),
        lambda x, y: jnp.cumsum(x, 1, dtype=x.dtype),
        lambda x, y: jnp.sort(x, axis=1),
        lambda x, y: jnp.argmax(x, axis=1),
        lambda x, y: lax.top_k(x, 3),
        lambda x, y: x[jnp.array([3, 1, 1, 0])],
        lambda x, y: x.at[2:4].set(y[0]),
        lambda x, y: x.at[jnp.array([3, 1, 1])].add(y[:3]),
        lambda x, y: lax.dynamic_update_slice(x, y[:2, :3], (1, 2)),
        lambda x, y: lax.fori_loop(0, 5, lambda i, c: c + x, y),
        lambda x, y: lax.scan(lambda c, v: (c + v, c * v), y[0], x),
        lambda x, y: x.astype(jnp.float32) @ y.astype(jnp.float32).T,
        lambda x, y: x.astype(jnp.int32) @ y.astype(jnp.int32).T,
        lambda x, y: (
            x.astype(jnp.int32) + jnp.asarray(np.arange(16) % 2, x.dtype).astype(jnp.int32)
        ),
    ],
    ids=lambda f: "",
)
def test_ops(function: Callable, dtype: str) -> None:
    check(function, some(dtype, 8, 16), some(dtype, 8, 16, seed=1))


@pytest.mark.parametrize("dtype", NAMES)
def test_quotients(dtype: str) -> None:
    x, y = some(dtype, 8, 16), some(dtype, 8, 16, seed=1)
    y = np.where(y == 0, np.ones_like(y), y)
    check(lax.div, x, y)
    check(lax.rem, x, y)


@pytest.mark.parametrize("dtype", NAMES)
def test_bits(dtype: str) -> None:
    """Shifts by more than there are bits give none, or the sign; all are counted among so few."""
    bits, x = jnp.iinfo(dtype).bits, some(dtype, 8, 16)
    amount = some(dtype, 8, 16, seed=1)
    pattern = x.astype(np.int32) & ((1 << bits) - 1)
    far = amount.astype(np.int32) & ((1 << bits) - 1)
    is_off = far >= bits
    check(lax.shift_left, x, amount, right=lambda *_: np.where(is_off, 0, pattern << far))
    check(lax.shift_right_logical, x, amount, right=lambda *_: np.where(is_off, 0, pattern >> far))
    if dtype.startswith("int"):
        check(
            lax.shift_right_arithmetic,
            x,
            amount,
            right=lambda *_: x.astype(np.int32) >> np.minimum(far, bits),
        )
    check(lax.population_count, x, right=lambda _: np.bitwise_count(pattern))
    check(
        lax.clz,
        x,
        right=lambda _: (
            bits - np.array([int(p).bit_length() for p in pattern.ravel()]).reshape(8, 16)
        ),
    )


@pytest.mark.parametrize("dtype", NAMES)
def test_bits_of_others(dtype: str) -> None:
    """Bytes and longer words are taken apart into them and put together."""
    bits = jnp.iinfo(dtype).bits
    words = np.random.default_rng(0).integers(0, 1 << 32, (6, 5), np.uint32)
    apart = (words[..., None] >> np.arange(0, 32, bits, np.uint32)) & ((1 << bits) - 1)
    apart = apart.astype(np.int32)
    check(lambda w: lax.bitcast_convert_type(w, dtype), words, right=lambda _: apart)
    parts = apart.astype(jnp.dtype(dtype))
    together = mlc_jit(lambda p: lax.bitcast_convert_type(p, jnp.uint32), choose="ours")
    np.testing.assert_array_equal(together(parts), words)
    assert together.report(parts).coverage == 1
    other = dtype.removeprefix("u") if dtype.startswith("u") else f"u{dtype}"
    check(lambda p: lax.bitcast_convert_type(p, other), parts, right=lambda p: p)


def test_floats_end_at_the_limits() -> None:
    values = np.array(
        [-99, -8.6, -8, -7.5, -0.5, 0.9, 7, 7.6, 15.2, 99, np.inf, -np.inf, np.nan], np.float32
    )
    for dtype in NAMES:
        limits = jnp.iinfo(dtype)
        right = np.trunc(np.clip(np.nan_to_num(values, nan=0), int(limits.min), int(limits.max)))
        check(lambda v, t=dtype: v.astype(t), values, right=lambda _, r=right: r.astype(np.int32))


@pytest.mark.parametrize("rows", [1, 3, 16])
@pytest.mark.parametrize(("depth", "columns"), [(64, 96), (37, 50), (33, 31)])
@pytest.mark.parametrize("dtype", ["int4", "uint2"])
def test_products_read_them_packed(dtype: str, depth: int, columns: int, rows: int) -> None:
    """Weights by rows and by columns, with scales; no kernel stores them as floats."""
    x = np.random.default_rng(0).integers(-4, 5, (rows, depth)).astype(np.float32)
    scale = np.float32(2) ** np.arange(columns, dtype=np.float32)[None] % 8
    w, wt = some(dtype, depth, columns), some(dtype, columns, depth)
    one = check(lambda x, w, s: x @ (w.astype(jnp.float32) * s), x, w, scale)
    other = check(lambda x, w: x @ w.astype(jnp.float32).T, x, wt)
    if columns >= 32 and rows <= 8:
        assert len(one.kernels) == len(other.kernels) == 1


def test_donated_memory_is_of_the_same_type() -> None:
    x = jnp.asarray(some("int4", 6, 8))
    expected = np.asarray(x)[:1, :1].astype(np.int8)
    y = mlc_jit(lambda x: (x[0, 0] + x[0, 1], x.astype(jnp.float32)), choose="ours")(x)
    assert y[0].shape == () and np.asarray(y[0]).astype(np.int8) == wrapped(
        expected[0, 0] + np.asarray(x)[0, 1].astype(np.int8), np.dtype("int4")
    )


@pytest.mark.parametrize("dtype", PACKED, ids=str)
@pytest.mark.parametrize("shape", SHAPES)
def test_stored_and_restored(dtype: object, shape: tuple[int, ...]) -> None:
    array, tensor = some(dtype.numpy.name, *shape), TensorType(shape, dtype)
    memory = stored(array)
    assert (memory.shape, memory.nbytes) == (tensor.stored.shape, tensor.bytes)
    np.testing.assert_array_equal(restored(memory, tensor).astype(np.int8), array.astype(np.int8))


def test_others_stay_as_they_are(traced: Callable) -> None:
    graph = traced(lambda x: x + 1, np.ones(3, np.int8))
    assert not has_packed(graph) and in_bytes(graph) is graph


def test_only_borders_are_packed(traced: Callable) -> None:
    graph = traced(lambda x, y: (x + y, x @ y), some("int4", 8, 8), some("int4", 8, 8))
    found, _ = simplify(in_bytes(graph), references)
    packed = [
        node.op
        for node in found.walk()
        if any(v.type.dtype in PACKED for v in (*node.operands, *node.results))
    ]
    assert set(packed) == {"stablehlo.convert"}
