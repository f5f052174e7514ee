"""Ops that move elements: all that they do to small arrays, and to what others make of these."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from hlo_mlc.expr.dtypes import F32, I32, TensorType
from hlo_mlc.graph.core import Attribute, Value
from proving.inputs import every
from proving.program import Builder, Program, Shape

SHAPES: tuple[Shape, ...] = (
    (),
    (0,),
    (1,),
    (3,),
    (4,),
    (1, 1),
    (1, 3),
    (2, 1),
    (2, 2),
    (0, 2),
    (2, 0),
    (2, 3),
    (1, 2, 1),
    (2, 1, 2),
)
# Elements of what the second of two ops moves.
_LARGEST = 6
# Before, behind, between.
_PADS = ((0, 0, 0), (1, 0, 0), (0, 2, 0), (1, 1, 1), (-1, 1, 0), (2, -1, 0), (0, 0, 1))


@dataclass(frozen=True, slots=True)
class Move:
    """An op on an array: the shape of the result, and other operands, parameters by their names
    and shapes, or numbers."""

    op: str
    shape: Shape
    attributes: Mapping[str, Attribute]
    others: tuple[tuple[str, Shape] | int, ...] = ()

    def apply(self, b: Builder, operand: Value) -> Value:
        others = [
            b.constant(np.asarray(o, np.int32))
            if isinstance(o, int)
            else b.named(*o, I32 if o[0] == "place" else F32)
            for o in self.others
        ]
        return b.add(self.op, (operand, *others), TensorType(self.shape, F32), self.attributes)


def moves(op: str, shape: Shape) -> Iterator[Move]:
    """Everything that an op of this name can do to an array."""
    rank = len(shape)
    match op.partition(".")[2]:
        case "reshape":
            yield from (Move(op, s, {}) for s in SHAPES if math.prod(s) == math.prod(shape))
        case "transpose":
            for order in itertools.permutations(range(rank)):
                yield Move(op, tuple(shape[d] for d in order), {"permutation": order})
        case "broadcast_in_dim":
            for result in SHAPES:
                for axes in itertools.permutations(range(len(result)), rank):
                    if all(n in (1, result[d]) for d, n in zip(axes, shape, strict=True)):
                        yield Move(op, result, {"broadcast_dimensions": axes})
        case "reverse":
            for count in range(rank + 1):
                for axes in itertools.combinations(range(rank), count):
                    yield Move(op, shape, {"dimensions": axes})
        case "slice":
            ranges = [
                [
                    (i, j, s)
                    for i in range(n + 1)
                    for j in range(i, n + 1)
                    for s in (1, 2)
                    if s == 1 or j > i + 1
                ]
                for n in shape
            ]
            for chosen in itertools.product(*ranges):
                starts, limits, strides = zip(*chosen, strict=True) if chosen else ((), (), ())
                yield Move(
                    op,
                    tuple(-(-(j - i) // s) for i, j, s in chosen),
                    {"start_indices": starts, "limit_indices": limits, "strides": strides},
                )
        case "pad":
            for first, step in itertools.product(range(len(_PADS)), range(min(rank, 3))):
                chosen = [_PADS[(first + d * step) % len(_PADS)] for d in range(rank)]
                result = tuple(
                    max(0, n + (n - 1) * between) + low + high
                    for n, (low, high, between) in zip(shape, chosen, strict=True)
                )
                low, high, between = zip(*chosen, strict=True)
                if min(result) >= 0:
                    for value in ("v", "w") if step == 1 or rank == 1 else ("v",):
                        yield Move(
                            op,
                            result,
                            {
                                "edge_padding_low": low,
                                "edge_padding_high": high,
                                "interior_padding": between,
                            },
                            ((value, ()),),
                        )
        case "dynamic_slice":
            for sizes in itertools.product(*(range(n + 1) for n in shape)):
                yield Move(op, sizes, {"slice_sizes": sizes}, (("place", ()),) * rank)
                for start in (-1, 1, 5):
                    starts = tuple(start * (-1) ** d for d in range(rank))
                    yield Move(op, sizes, {"slice_sizes": sizes}, starts)
        case "dynamic_update_slice":
            for sizes in itertools.product(*(range(n + 1) for n in shape)):
                yield Move(op, shape, {}, (("u", sizes), *(("place", ()),) * rank))
        case "concatenate":
            for axis, length in itertools.product(range(rank), range(3)):
                other = (*shape[:axis], length, *shape[axis + 1 :])
                result = (*shape[:axis], shape[axis] + length, *shape[axis + 1 :])
                yield Move(op, result, {"dimension": axis}, (("c", other),))
                yield Move(op, shape, {"dimension": axis})


MOVING = tuple(
    f"stablehlo.{name}"
    for name in (
        "reshape",
        "transpose",
        "broadcast_in_dim",
        "reverse",
        "slice",
        "pad",
        "dynamic_slice",
        "dynamic_update_slice",
        "concatenate",
    )
)


def moving(op: str) -> Iterator[Program]:
    """An op on an array, and on what any other one makes of an array."""
    for shape in SHAPES:
        for outer in moves(op, shape):
            b = Builder()
            yield Program(b.graph(outer.apply(b, b.named("a", shape))), every)
        for inner in MOVING:
            for first in moves(inner, shape):
                for outer in moves(op, first.shape) if math.prod(first.shape) <= _LARGEST else ():
                    b = Builder()
                    made = first.apply(b, b.named("a", shape))
                    yield Program(b.graph(outer.apply(b, made)), every)


def joined(op: str) -> Iterator[Program]:
    """Up to three arrays joined: parts of one, others, empty ones, joined ones."""
    for shape, axis in (((4,), 0), ((2, 2), 0), ((2, 2), 1)):

        def along(length: int, shape: Shape = shape, axis: int = axis) -> Shape:
            return (*shape[:axis], length, *shape[axis + 1 :])

        parts = [
            None,
            Move(op, along(shape[axis] + 1), {"dimension": axis}, (("b", along(1)),)),
            *moves("stablehlo.slice", shape),
        ]
        for count in (1, 2, 3):
            for chosen in itertools.product(parts[:2] + parts[2::count], repeat=count):
                b = Builder()
                a = b.named("a", shape)
                arrays = [a if part is None else part.apply(b, a) for part in chosen]
                if all(v.type.shape == along(v.type.shape[axis]) for v in arrays):
                    length = sum(v.type.shape[axis] for v in arrays)
                    yield Program(
                        b.graph(
                            b.add(op, arrays, TensorType(along(length), F32), {"dimension": axis})
                        ),
                        every,
                    )
