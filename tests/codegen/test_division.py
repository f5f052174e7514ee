"""Quotients and remainders of integers, which vectors compute as floats: every bit of them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from hlo_mlc.expr import dtypes as t
from hlo_mlc.expr import index
from hlo_mlc.expr.build import apply, load, variable
from hlo_mlc.expr.core import Buffer
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


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_every_bit_of_vectors(dtype: DType, target: CpuTarget, machine) -> None:
    pairs = _pairs(dtype)
    assert min(np.count_nonzero(pairs[1] == v) for v in (0, 1, np.array(-1).astype(dtype.numpy)))
    count = len(pairs[0])
    operands = tuple(Buffer(name, dtype, (count,), "operand") for name in "xy")
    results = tuple(Buffer(name, dtype, (count,), "result") for name in OPS)
    outer, lane = variable("outer", count // LANES), variable("lane", LANES)
    at = index.add(index.multiply(outer, index.constant(LANES)), lane)
    loads = [load(b, (at,)) for b in operands]
    stores = tuple(Store(r, (at,), apply(r.name, *loads)) for r in results)
    program = LoopProgram(
        "divide",
        operands,
        results,
        (
            For(
                outer,
                index.constant(count // LANES),
                LoopKind.SERIAL,
                (For(lane, index.constant(LANES), LoopKind.VECTORIZE, stores),),
            ),
        ),
    )
    for op, actual in zip(OPS, machine.run(program, pairs, target=target), strict=True):
        expected = compute(op, pairs, dtype)
        wrong = np.flatnonzero(actual != expected)[:5]
        assert not wrong.size, [(op, *(a[wrong] for a in (*pairs, actual, expected)))]


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
