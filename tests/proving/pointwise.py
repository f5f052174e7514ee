"""Elementwise ops, on types and forms of operands that rules look for."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from hlo_mlc.expr.dtypes import (
    ALL,
    BF16,
    BOOL,
    F8E8M0FNU,
    F16,
    FLOATS_OF_A_BYTE,
    I8,
    U8,
    DType,
    Kind,
    TensorType,
)
from hlo_mlc.frontend.importer import import_function
from hlo_mlc.frontend.parse import parse_module
from hlo_mlc.graph.core import Attribute, Value
from hlo_mlc.ops.registry import DEFINITIONS
from proving.inputs import grid, some, values_of
from proving.program import Builder, Program, Shape

_BROADCAST = "stablehlo.broadcast_in_dim"

_SMALL = {
    Kind.FLOAT: (F16, BF16, *(d for d in FLOATS_OF_A_BYTE if d is not F8E8M0FNU)),
    Kind.SIGNED: (I8,),
    Kind.UNSIGNED: (U8,),
    Kind.BOOL: (BOOL,),
}
_SPECIAL = (0, 1, -1, 0.5, -0.0, math.inf, -math.inf, math.nan)


@dataclass(frozen=True, slots=True)
class Signature:
    """An elementwise op on types."""

    op: str
    operands: tuple[DType, ...]
    result: DType
    attributes: tuple[tuple[str, Attribute], ...] = ()

    def apply(self, b: Builder, operands: Sequence[Value], shape: Shape) -> Value:
        return b.add(self.op, operands, TensorType(shape, self.result), dict(self.attributes))


@cache
def signatures(op: str) -> tuple[Signature, ...]:
    """What the examples of an elementwise op apply it to."""
    found = []
    for text in DEFINITIONS[op].examples:
        node = import_function(parse_module(text)).nodes[-1]
        if not node.regions and all(v.type.dtype.kind in _SMALL for v in node.operands):
            found.append(
                Signature(
                    op,
                    tuple(v.type.dtype for v in node.operands),
                    node.results[0].type.dtype,
                    tuple(node.attributes.items()),
                )
            )
    return tuple(dict.fromkeys(found))


def small_signatures(op: str) -> Iterator[Signature]:
    """The same on small types."""
    if op == "stablehlo.convert":
        real = [t for t in ALL if t.kind in _SMALL]
        yield from (Signature(op, (t,), u) for t in real for u in real)
        return
    seen = set()
    for signature in signatures(op):
        kinds = dict.fromkeys((*signature.operands, signature.result))
        for types in itertools.product(*(_SMALL[t.kind] for t in kinds)):
            small = dict(zip(kinds, types, strict=True))
            found = replace(
                signature,
                operands=tuple(small[t] for t in signature.operands),
                result=small[signature.result],
            )
            if found not in seen:
                seen.add(found)
                yield found


Form = Callable[[Builder, Shape], Value]


def parameter(name: str, dtype: DType) -> Form:
    return lambda b, shape: b.named(name, shape, dtype)


def applied(op: str, source: DType, result: DType) -> Form:
    return lambda b, shape: b.add(op, (b.named("a", shape, source),), TensorType(shape, result))


def number(value: np.generic) -> Form:
    return lambda b, shape: b.constant(np.broadcast_to(value, shape))


def broadcast_number(value: np.generic, dtype: DType) -> Form:
    return lambda b, shape: b.add(
        _BROADCAST,
        (b.constant(np.asarray(value)),),
        TensorType(shape, dtype),
        {"broadcast_dimensions": ()},
    )


def special_numbers(dtype: DType) -> list[np.generic]:
    with np.errstate(all="ignore"):
        numbers = [n for n in _SPECIAL if not dtype.is_integer or float(n).is_integer()]
        return [np.asarray(n).astype(dtype.numpy)[()] for n in numbers]


def forms(signature: Signature, dtype: DType) -> tuple[list[Form], list[Form]]:
    """What an operand may be: what varies, and what is constant."""
    op, several = signature.op, signature.operands.count(dtype) > 1 and dtype.bits <= 8
    varying = [parameter(name, dtype) for name in ("ab" if several else "a")]
    if dtype is not BOOL and dtype is not F8E8M0FNU:  # which has no sign
        varying.append(applied("stablehlo.negate", dtype, dtype))
    if not dtype.is_float:
        varying.append(applied("stablehlo.not", dtype, dtype))
    if op == "stablehlo.convert":
        varying += [applied(op, source, dtype) for source in ALL if source.kind in _SMALL]
    special = special_numbers(dtype)
    all_values = len(signature.operands) == 2 and dtype.is_integer
    return varying, [
        *map(number, values_of(dtype) if all_values else special),
        *(broadcast_number(n, dtype) for n in special),
    ]


def pointwise(op: str) -> Iterator[Program]:
    """An elementwise op on parameters, on constants, and on what another op makes of them."""
    for signature in small_signatures(op):
        pools = [forms(signature, dtype) for dtype in signature.operands]
        for constants in itertools.product((0, 1), repeat=len(pools)):
            if all(constants) or sum(constants) > 1:
                continue
            for chosen in itertools.product(*(p[c] for p, c in zip(pools, constants, strict=True))):
                yield from in_full(signature, chosen)


def in_full(signature: Signature, operands: Sequence[Form]) -> Iterator[Program]:
    """The op on an array that holds all values."""
    probe = Builder()
    for form in operands:
        form(probe, ())
    size = math.prod(len(values_of(v.type.dtype)) for v in probe.graph().parameters)
    b = Builder()
    result = signature.apply(b, [form(b, (size,)) for form in operands], (size,))
    yield Program(b.graph(result), grid)


def spread(op: str) -> Iterator[Program]:
    """An elementwise op on arrays that are repeated along axes, and on constants."""
    shape = (2, 2)  # so that arrays of one shape are repeated along one axis or the other
    repeated = [((2,), (1,)), ((2,), (0,)), ((2, 1), (0, 1)), ((), ()), ((2, 2), (1, 0))]
    for signature in signatures(op)[:1]:
        pools = []
        for k, dtype in enumerate(signature.operands):
            one = special_numbers(dtype)[1]
            pools.append(
                [
                    parameter(f"{k}", dtype),
                    number(one),
                    *(broadcast(f"{k}", source, axes, dtype) for source, axes in repeated),
                ]
            )
            if op in ("stablehlo.select", "stablehlo.clamp") and k != 1:
                pools[-1].append(lambda b, _, k=k, dtype=dtype: b.named(f"{k}", (), dtype))
        for operands in itertools.product(*pools):
            b = Builder()
            result = signature.apply(b, [form(b, shape) for form in operands], shape)
            yield Program(b.graph(result), some)


def broadcast(name: str, source: Shape, axes: Shape, dtype: DType) -> Form:
    return lambda b, shape: b.add(
        _BROADCAST,
        (b.named(name, source, dtype),),
        TensorType(shape, dtype),
        {"broadcast_dimensions": axes},
    )
