"""`rng_bit_generator`: the bits of XLA's two generators, from a state of a key and a counter.

Sources: Salmon, Moraes, Dror and Shaw, Parallel random numbers: as easy as 1, 2, 3, SC 2011
(Threefry-2x32 with 20 rounds, Philox-4x32 with 10); which counter gives which element is XLA's
(xla/hlo/builder/lib/prng.cc), found by trying.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from hlo_mlc.expr import index
from hlo_mlc.expr.build import apply, const
from hlo_mlc.expr.core import Expr, Var
from hlo_mlc.expr.dtypes import INDEX, U32, U64
from hlo_mlc.expr.evaluate import evaluate
from hlo_mlc.graph.core import Node
from hlo_mlc.ops.definition import Indices, OpDef, OpKind, Pointwise, Read

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA
_MULTIPLIERS, _STEPS = (0xD2511F53, 0xCD9E8D57), (0x9E3779B9, 0xBB67AE85)
_THREEFRY = "THREE_FRY"

Words = tuple[Expr, ...]


def _halves(x: Expr) -> Words:
    """The low and the high word."""
    return apply("convert", x, dtype=U32), apply("convert", x >> 32, dtype=U32)


def _joined(low: Expr, high: Expr) -> Expr:
    return apply("convert", low, dtype=U64) | (apply("convert", high, dtype=U64) << 32)


def _threefry(key: Words, counter: Words) -> Words:
    keys = (*key, key[0] ^ key[1] ^ _PARITY)
    x, y = counter[0] + keys[0], counter[1] + keys[1]
    for group in range(5):
        for rotation in _ROTATIONS[group % 2]:
            x = x + y
            y = ((y << rotation) | (y >> (32 - rotation))) ^ x
        x = x + keys[(group + 1) % 3]
        y = y + (keys[(group + 2) % 3] + (group + 1))
    return x, y


def _philox(key: Words, counter: Words) -> Words:
    for turn in range(10):
        keys = [k + (turn * step & 0xFFFFFFFF) for k, step in zip(key, _STEPS, strict=True)]
        first, second = (const(m, U32) for m in _MULTIPLIERS)
        counter = (
            apply("mul_high", counter[2], second) ^ counter[1] ^ keys[0],
            counter[2] * second,
            apply("mul_high", counter[0], first) ^ counter[3] ^ keys[1],
            counter[0] * first,
        )
    return counter


def _algorithm(node: Node) -> str:
    """DEFAULT is Philox on CPUs and on GPUs."""
    return _THREEFRY if node.attributes["rng_algorithm"] == _THREEFRY else "PHILOX"


def _split_axis(shape: tuple[int, ...]) -> int:
    """The axis along which the two words of a counter are neighbours: the first of an even size,
    or the longest."""
    even = [axis for axis, size in enumerate(shape) if size % 2 == 0]
    return even[0] if even else shape.index(max(shape))


def _steps(node: Node) -> int:
    """By how much the counter grows."""
    result = node.results[1].type
    if _algorithm(node) == _THREEFRY:
        if result.dtype.bits == 64 or not result.shape:
            return result.size
        axis = _split_axis(result.shape)
        return result.size // max(1, result.shape[axis]) * ((result.shape[axis] + 1) // 2)
    return -(-result.size * max(1, result.dtype.bits // 32) // 4)


def _flat(shape: Sequence[int], indices: Indices) -> Expr:
    place = index.constant(0)
    for extent, i in zip(shape, indices, strict=True):
        place = place * extent + i
    return place


def _count(start: Expr, place: Expr) -> Expr:
    return start + apply("convert", place, dtype=U64)


def _chosen(place: Expr, words: Words) -> Expr:
    """The word of this number."""
    found = words[-1]
    for number, word in enumerate(words[:-1]):
        found = apply("select", index.compare("eq", place, number), word, found)
    return found


def _parted(place: Expr, count: int) -> tuple[Expr, Expr]:
    """Which group of so many a place is in, and where."""
    size = index.constant(count)
    return place // count, place - place // count * size


def _element(node: Node, key: Expr, start: Expr, indices: Indices) -> Expr:
    tensor = node.results[1].type
    shape, wide = tensor.shape, tensor.dtype.bits == 64
    if _algorithm(node) == _THREEFRY:
        half = index.constant(0)
        if not wide and shape:
            axis = _split_axis(shape)
            group, half = _parted(indices[axis], 2)
            shape = (*shape[:axis], (shape[axis] + 1) // 2, *shape[axis + 1 :])
            indices = (*indices[:axis], group, *indices[axis + 1 :])
        words = _threefry(_halves(key), _halves(_count(start, _flat(shape, indices))))
        found = _joined(*words) if wide else _chosen(half, words)
    else:
        group, place = _parted(_flat(shape, indices), 2 if wide else 4)
        count = _count(start, group)
        # A counter that runs over carries into its upper half, which begins with the key.
        carry = apply("convert", apply("lt", count, start), dtype=U64)
        words = _philox(_halves(key), (*_halves(count), *_halves(key + carry)))
        found = _chosen(place, (_joined(*words[:2]), _joined(*words[2:])) if wide else words)
    return apply("convert", found, dtype=tensor.dtype)


def _results(node: Node, key: Expr, start: Expr) -> tuple[Callable[[Indices], Expr], ...]:
    def state(indices: Indices) -> Expr:
        is_key = index.compare("eq", indices[0], 0)
        return apply("select", is_key, key, start + _steps(node))

    return state, lambda indices: _element(node, key, start, indices)


def _lower(node: Node, reads: Sequence[Read]) -> Pointwise:
    key, start = (reads[0]((index.constant(k),)) for k in (0, 1))
    return Pointwise(_results(node, key, start))


def _reference(node: Node, operands: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
    key, start = Var("key", U64), Var("start", U64)
    values: dict[Var, np.ndarray] = dict(zip((key, start), operands[0], strict=True))
    results = []
    for element, value in zip(_results(node, key, start), node.results, strict=True):
        shape = value.type.shape
        axes = tuple(Var(f"i{k}", INDEX) for k in range(len(shape)))
        places = dict(zip(axes, np.indices(shape, sparse=True), strict=True))
        found = evaluate(element(axes), {**values, **places})
        results.append(np.broadcast_to(found, shape).astype(value.type.dtype.numpy))
    return tuple(results)


def _supports(node: Node) -> str:
    state, result = node.operands[0].type, node.results[1].type
    if state.dtype is not U64 or state.shape != (2,):
        return f"a generator with a state of {state} is not known here"
    if not result.dtype.is_integer:
        return f"random bits of {result.dtype} are not known here"
    return ""


def _example(algorithm: str, result: str) -> str:
    return f"""
func.func @main(%s: tensor<2xui64>) -> (tensor<2xui64>, tensor<{result}>) {{
  %r:2 = stablehlo.rng_bit_generator %s, algorithm = {algorithm}
      : (tensor<2xui64>) -> (tensor<2xui64>, tensor<{result}>)
  return %r#0, %r#1 : tensor<2xui64>, tensor<{result}>
}}
"""


DEFINITIONS: tuple[OpDef, ...] = (
    OpDef(
        "stablehlo.rng_bit_generator",
        OpKind.SOLVE,
        _reference,
        _lower,
        _supports,
        tuple(
            _example(algorithm, result)
            for algorithm in ("THREE_FRY", "PHILOX", "DEFAULT")
            for result in (
                "7xui32",
                "3x5xui32",
                "5x3xui64",
                "4x6xui32",
                "3x3xui8",
                "3x2x5xui16",
                "9xui64",
            )
        ),
        cost=100,
    ),
)
