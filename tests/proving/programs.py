"""All small programs that end in an op."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache

import numpy as np

from hlo_mlc.graph.rewrite import EVERY_OP
from hlo_mlc.ops.registry import ELEMENTWISE
from proving.dynamic import dynamic
from proving.inputs import every, values_of
from proving.meanings import DYNAMIC
from proving.moving import MOVING, SHAPES, joined, moves, moving
from proving.pointwise import pointwise, signatures, spread
from proving.program import Builder, Program
from proving.written import (
    branching,
    chosen_updates,
    compared_twice,
    convolved,
    counted,
    in_order,
    of_sorted,
    products,
    repeated,
    rounded_down,
    scans,
    scattered,
    split_and_joined,
    sums_of_fewer_bits,
)


def of_every_op(op: str) -> Iterator[Program]:
    """Any op on constants, and of no elements."""
    for op in sorted(ELEMENTWISE):
        for signature in signatures(op):
            for empty in (False, True):
                shape = (2, 0) if empty else (2, 3)
                b, whole = Builder(), Builder()
                literals = [np.resize(values_of(t), shape) for t in signature.operands]
                yield Program(
                    whole.graph(
                        signature.apply(whole, [whole.constant(a) for a in literals], shape)
                    ),
                    every,
                )
                splats = [
                    b.constant(np.broadcast_to(values_of(t)[-1], shape)) for t in signature.operands
                ]
                yield Program(b.graph(signature.apply(b, splats, shape)), every)
    for op, shape in itertools.product(MOVING, SHAPES):
        for move in itertools.islice(moves(op, shape), 40):
            for value in (
                np.arange(math.prod(shape), dtype=np.float32).reshape(shape),
                np.broadcast_to(np.float32(-0.0), shape),
            ):
                b = Builder()
                yield Program(b.graph(move.apply(b, b.constant(value))), every)
            b = Builder()
            yield Program(b.graph(move.apply(b, b.named("a", shape))), every)


PROGRAMS: Mapping[str, Callable[[str], Iterator[Program]]] = {
    EVERY_OP: of_every_op,
    "chlo.scan": scans,
    "stablehlo.while": counted,
    "stablehlo.if": branching,
    "stablehlo.case": branching,
    "stablehlo.scatter": scattered,
    "stablehlo.sort": in_order,
    "stablehlo.reduce": lambda op: itertools.chain(of_sorted(op), repeated(op)),
    "stablehlo.dot_general": products,
    "stablehlo.convolution": convolved,
    "stablehlo.bitcast_convert": split_and_joined,
    "stablehlo.convert": sums_of_fewer_bits,
    "stablehlo.concatenate": joined,
    "stablehlo.and": compared_twice,
    "stablehlo.select": lambda op: itertools.chain(rounded_down(op), chosen_updates(op)),
    **dict.fromkeys(DYNAMIC, dynamic),
}


@lru_cache(maxsize=2)  # rules are proved op by op
def programs(op: str) -> tuple[Program, ...]:
    """All small programs that end in this op."""
    return tuple(_programs(op))


def _programs(op: str) -> Iterator[Program]:
    if op in PROGRAMS:
        yield from PROGRAMS[op](op)
    if op in MOVING:
        yield from moving(op)
    if op in ELEMENTWISE and op != "stablehlo.bitcast_convert":
        yield from pointwise(op)
    if op in ELEMENTWISE:
        yield from spread(op)
