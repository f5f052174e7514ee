"""Quotients and remainders of integers, which vectors compute as floats: every bit of them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from hlo_mlc.expr import dtypes as t
from hlo_mlc.expr import index
from hlo_mlc.expr.build import apply, const, load, variable
from hlo_mlc.expr.core import Buffer, Expr, Var
from hlo_mlc.expr.dtypes import DType
from hlo_mlc.expr.ops import compute
from hlo_mlc.loops.core import For, LoopKind, LoopProgram, Store
from hlo_mlc.target.cpu import CpuTarget

LANES = 32
OPS = ("div", "rem")
INTEGERS = [d for d in t.ALL if d.is_integer and d is not t.INDEX]


def _edges(dtype: DType) -> np.ndarray:
    """Zero, the ends of the range, thirds and halves of it, powers of two, and their neighbours."""
    low, high = np.iinfo(dtype.numpy).min, np.iinfo(dtype.numpy).max
    near = {0, high // 3, high // 2, *(1 << n for n in range(dtype.bits + 1)), low, high}
    close = {v + d for v in near for d in range(-2, 3)} | {-v for v in near}
    return np.array(sorted(v for v in close if low <= v <= high), dtype.numpy)


def _pairs(dtype: DType) -> tuple[np.ndarray, np.ndarray]:
    """Dividends and divisors: all there are of 8 bits; of more, all pairs of edges, numbers of
    random lengths, and multiples of the divisor with their neighbours, where rounding would tell.
    """
    info = np.iinfo(dtype.numpy)
    if dtype.bits == 8:
        every = np.arange(info.min, info.max + 1).astype(dtype.numpy)
        return tuple(a.ravel() for a in np.meshgrid(every, every))
    x, y = (a.ravel() for a in np.meshgrid(_edges(dtype), _edges(dtype)))
    random = np.random.default_rng(dtype.bits)

    def numbers(count: int) -> np.ndarray:
        drawn = random.integers(info.min, info.max, count, dtype.numpy, endpoint=True)
        return drawn >> random.integers(0, dtype.bits, count).astype(dtype.numpy)

    divisors = numbers(1 << 15)
    with np.errstate(over="ignore"):
        multiples = divisors * numbers(len(divisors))
        near = [multiples + np.array(d).astype(dtype.numpy) for d in (-1, 0, 1)]
    dividends = np.concatenate((x, numbers(len(divisors)), *near))
    divisors = np.concatenate((y, *[divisors] * 4))
    whole = len(dividends) // LANES * LANES
    return dividends[:whole], divisors[:whole]


def _literals(dtype: DType) -> list[int]:
    """Divisors on either side of those that one step is enough for, the ends, and what is not
    computed as floats: zero, one and powers of two."""
    high = np.iinfo(dtype.numpy).max
    near = (0, 1, 7, 64, 10**9 + 7, *((1 << 15) + d for d in (-1, 1)), high // 3, high)
    kept = [v for v in near if v <= high]
    return kept + [-v for v in kept if v and dtype.is_signed] + [np.iinfo(dtype.numpy).min]


def _in_vectors(
    count: int,
    operands: tuple[Buffer, ...],
    results: dict[Buffer, Expr],
    at: Expr,
    axes: tuple[Var, Var],
) -> LoopProgram:
    outer, lane = axes
    stores = tuple(Store(r, (at,), value) for r, value in results.items())
    inner = For(lane, index.constant(LANES), LoopKind.VECTORIZE, stores)
    loops = (For(outer, index.constant(count // LANES), LoopKind.SERIAL, (inner,)),)
    return LoopProgram("divide", operands, tuple(results), loops)


def _place(count: int) -> tuple[Expr, tuple[Var, Var]]:
    """An index that counts elements, and the axes that it is made of."""
    outer, lane = variable("outer", count // LANES), variable("lane", LANES)
    return index.add(index.multiply(outer, index.constant(LANES)), lane), (outer, lane)


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_every_bit_of_vectors(dtype: DType, target: CpuTarget, machine) -> None:
    pairs = _pairs(dtype)
    assert min(np.count_nonzero(pairs[1] == v) for v in (0, 1, np.array(-1).astype(dtype.numpy)))
    count = len(pairs[0])
    operands = tuple(Buffer(name, dtype, (count,), "operand") for name in "xy")
    at, axes = _place(count)
    loads = [load(b, (at,)) for b in operands]
    results = {Buffer(op, dtype, (count,), "result"): apply(op, *loads) for op in OPS}
    program = _in_vectors(count, operands, results, at, axes)
    for op, actual in zip(OPS, machine.run(program, pairs, target=target), strict=True):
        expected = compute(op, pairs, dtype)
        wrong = np.flatnonzero(actual != expected)[:5]
        assert not wrong.size, [(op, *(a[wrong] for a in (*pairs, actual, expected)))]


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_every_bit_by_literals(dtype: DType, target: CpuTarget, machine) -> None:
    literals = _literals(dtype)
    drawn = np.random.default_rng(dtype.bits).choice(_pairs(dtype)[0], 1 << 10)
    with np.errstate(over="ignore"):
        multiples = np.outer(np.array(literals, dtype.numpy), drawn).ravel()
        one = np.array(1, dtype.numpy)
        near = (drawn, multiples - one, multiples, multiples + one)
    x = np.concatenate((np.resize(_edges(dtype), 1 << 10), *near))
    operand = Buffer("x", dtype, (len(x),), "operand")
    at, axes = _place(len(x))
    value = load(operand, (at,))
    cases = [(op, v) for op in OPS for v in literals]
    results = {
        Buffer(f"r{n}", dtype, (len(x),), "result"): apply(op, value, const(v, dtype))
        for n, (op, v) in enumerate(cases)
    }
    program = _in_vectors(len(x), (operand,), results, at, axes)
    for (op, v), actual in zip(cases, machine.run(program, (x,), target=target), strict=True):
        expected = compute(op, (x, np.full_like(x, v)), dtype)
        wrong = np.flatnonzero(actual != expected)[:5]
        assert not wrong.size, (op, v, x[wrong], actual[wrong], expected[wrong])


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
@pytest.mark.parametrize("shape", [(0,), (1,), (3, 5), (15,), (17,), (4, 67)], ids=str)
def test_functions(dtype: DType, shape: tuple[int, ...], check) -> None:
    random = np.random.default_rng(len(shape))
    info = np.iinfo(dtype.numpy)
    x = random.integers(info.min, info.max, shape, dtype.numpy, endpoint=True)
    y = random.integers(0, 9, shape[-1:], dtype.numpy) - np.array(2 * dtype.is_signed, dtype.numpy)
    x.flat[:1], y.flat[:1] = info.min, np.array(-1).astype(dtype.numpy)
    with jax.enable_x64(True):
        check(
            lambda x, y: (
                x % y,
                x // y,
                lax.div(x, jnp.broadcast_to(y, x.shape)),
                lax.rem(x, x * 0 + y),
                (x % (y | 1)).sum(-1),
            ),
            jnp.asarray(x),
            jnp.asarray(y),
            kernels=None,
        )
