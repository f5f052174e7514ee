"""Inputs that stand for all there are, and what counts as the same result."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from functools import cache

import numpy as np

from hlo_mlc.expr.dtypes import BOOL, DType
from hlo_mlc.graph.core import Graph
from proving.program import Arrays


def every(graph: Graph) -> Iterator[Arrays]:
    """Every place, number of trips or branch, and bool; elements that are all different."""
    values = [*graph.parameters, *(v for node in graph.nodes for v in node.results)]
    # One before the first and one behind the last of any axis, or of two branches: what is further
    # outside is as if it were there.
    last = max([2, *(n for v in values for n in v.type.shape)])
    places = range(-1, min(last, 4) + 1)
    start, choices = 1, []
    for tensor in (v.type for v in graph.parameters):
        dtype = tensor.dtype.numpy
        if tensor.dtype is BOOL:
            choices.append(
                [
                    np.array(bits).reshape(tensor.shape)
                    for bits in itertools.product((False, True), repeat=tensor.size)
                ]
            )
        elif tensor.dtype.is_integer and not tensor.shape:
            choices.append([np.asarray(n, dtype) for n in places])
        else:
            choices.append(
                [np.arange(start, start + tensor.size).astype(dtype).reshape(tensor.shape)]
            )
            start += tensor.size
    return map(list, itertools.product(*choices))


def far_apart(graph: Graph) -> Iterator[Arrays]:
    """Elements from all over the range of their type, whose sums wrap."""
    yield [
        np.resize(
            values_of(v.type.dtype)[::-1][:: max(1, values_of(v.type.dtype).size // v.type.size)],
            v.type.shape,
        )
        for v in graph.parameters
    ]


def unit_vectors(graph: Graph) -> Iterator[Arrays]:
    """For what is linear in each operand: one element of each is one, the others are zero."""
    units = [np.eye(v.type.size, dtype=v.type.dtype.numpy) for v in graph.parameters]
    for rows in itertools.product(*units):
        yield [row.reshape(v.type.shape) for row, v in zip(rows, graph.parameters, strict=True)]


def grid(graph: Graph) -> Iterator[Arrays]:
    """All values of all parameters together, along one axis."""
    yield grid_of([values_of(v.type.dtype) for v in graph.parameters])


def grid_of(choices: Sequence[np.ndarray]) -> Arrays:
    """All combinations of one value of each."""
    return [column.ravel() for column in np.meshgrid(*choices, indexing="ij")]


@cache
def values_of(dtype: DType) -> np.ndarray:
    """All values of a small type; of others those where something may end."""
    if dtype is BOOL:
        return np.array([False, True])
    if dtype.bits <= 16:
        return np.arange(1 << dtype.bits, dtype=f"u{dtype.bytes}").view(dtype.numpy)
    powers = [
        sign * (1 << n) + d for n in range(dtype.bits) for d in (-1, 0, 1) for sign in (1, -1)
    ]
    if dtype.is_integer:
        info = np.iinfo(dtype.numpy)
        return np.array([n for n in powers if info.min <= n <= info.max], dtype.numpy)
    rng = np.random.default_rng(0)
    special = [0.0, -0.0, math.inf, -math.inf, math.nan, 0.5, 1.5, 1e-40, -3e38, 1e300, 65520]
    with np.errstate(over="ignore"):
        return np.concatenate(
            [
                np.array([*special, *map(float, powers), *rng.normal(0, 3, 300)]).astype(
                    dtype.numpy
                ),
                rng.integers(0, 1 << 32, 300 * dtype.bytes // 4, np.uint32).view(dtype.numpy),
            ]
        )


def some(graph: Graph) -> Iterator[Arrays]:
    """Elements of each type that differ where they can."""
    yield [
        (
            np.arange(v.type.size) % 2 == 0
            if v.type.dtype is BOOL
            else np.arange(1, v.type.size + 1) / (8 if v.type.dtype.is_float else 1)
        )
        .astype(v.type.dtype.numpy)
        .reshape(v.type.shape)
        for v in graph.parameters
    ]


def all_bits(graph: Graph) -> Iterator[Arrays]:
    """All pairs of bytes in turn, as elements of the one parameter."""
    tensor = graph.parameters[0].type
    yield [np.arange(1 << 16, dtype=np.uint16).view(tensor.dtype.numpy).reshape(tensor.shape)]


def same_bits(one: np.ndarray, other: np.ndarray) -> bool:
    """Equal, zeros with their signs; of NaNs the bits may differ."""
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    if one.dtype.kind in "biu":
        return bool(np.array_equal(one, other))
    bits = f"u{one.dtype.itemsize}"
    equal = one.copy().view(bits) == other.copy().view(bits)
    with np.errstate(invalid="ignore"):  # NumPy says so of some floats of a byte
        return bool(np.all(equal | (np.isnan(one) & np.isnan(other))))
