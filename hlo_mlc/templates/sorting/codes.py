"""Codes: one unsigned integer for each record, by which alone records can be put in order.

    one key, of the element itself       an integer for each pattern of bits, from which the element
    (`sort`)                             is made again.  Floats that the key takes for equal, zeros
                                         of both signs and NaNs, have codes side by side: what has
                                         different ones of these is put right afterwards (ties.py)
    one key, and whatever goes along     the key, with the position behind it: all differ, and the
    (`argsort`, `sort_key_val`)          record is read anew from where it was

A sort of codes is a stage like any other, whose only key is the only part of its records.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from hlo_mlc.expr import index
from hlo_mlc.expr.build import apply, as_index, compare, const, convert, select, substitute
from hlo_mlc.expr.core import Expr, Var
from hlo_mlc.expr.dtypes import BOOL, U8, U16, U32, U64, DType
from hlo_mlc.ops.bits import total_order_key
from hlo_mlc.ops.sorting import unsigned_key
from hlo_mlc.tensor.core import Stage

UNSIGNED = {8: U8, 16: U16, 32: U32, 64: U64}
Range = tuple[int, int]  # the first and the last of neighbouring codes


@dataclass(frozen=True, slots=True)
class Coded:
    """A sort of codes; `ties`: those whose elements are equal by the keys, but not in all bits;
    `is_by_position`: records are read anew from where they were."""

    stage: Stage
    ties: tuple[Range, ...] = ()
    is_by_position: bool = False

    @property
    def dtype(self) -> DType:
        return self.stage.accumulators[0].dtype


def by_element(stage: Stage, kept: tuple[Var, ...]) -> Coded | None:
    """The sort by codes from which elements are made again; None where there is more to move."""
    (key, *more), (element, *others) = stage.sort.keys, kept or (None,)
    if more or others or element is None or (element.dtype.is_float and element.dtype.bits == 8):
        return None
    for upwards in (True, False):
        for encode in _encodings(element.dtype):
            if key is _turned(encode.key(element), upwards):
                code = Var(f"{stage.name}_code", key.dtype)
                term = stage.terms[stage.accumulators.index(element)]
                return Coded(
                    _sorted_by(
                        stage,
                        code,
                        _turned(encode.code(term), upwards),
                        {element: encode.element(_turned(code, upwards))},
                    ),
                    tuple(_turned_range(r, key.dtype, upwards) for r in encode.ties),
                )
    return None


def by_position(stage: Stage) -> Coded | None:
    """The sort by keys and positions; None where they are too long for one integer."""
    (key, *more), (element,) = stage.sort.keys, stage.reduce_axes
    low = max(1, (element.extent - 1).bit_length())
    bits = key.dtype.bits + low
    dtype = next((UNSIGNED[n] for n in sorted(UNSIGNED) if n >= bits), None)
    if more or dtype is None:
        return None
    code = Var(f"{stage.name}_code", dtype)
    terms = dict(zip(stage.accumulators, stage.terms, strict=True))
    high = convert(substitute(key, terms), dtype) << low
    whole = high | convert(element, dtype)
    position = as_index(code & ((1 << low) - 1))
    there = {element: index.minimum(position, element.extent - 1)}
    return Coded(
        _sorted_by(stage, code, whole, {v: substitute(term, there) for v, term in terms.items()}),
        is_by_position=True,
    )


def _sorted_by(stage: Stage, code: Var, term: Expr, values: dict[Var, Expr]) -> Stage:
    """The stage as a sort of codes, which tell the values of its accumulators."""
    return replace(
        stage,
        terms=(term,),
        accumulators=(code,),
        sort=replace(stage.sort, keys=(code,)),
        assigns=tuple(replace(a, value=substitute(a.value, values)) for a in stage.assigns),
    )


def _turned(code: Expr, upwards: bool) -> Expr:
    return code if upwards else ~code


def _turned_range(codes: Range, dtype: DType, upwards: bool) -> Range:
    last = (1 << dtype.bits) - 1
    return codes if upwards else (last - codes[1], last - codes[0])


# Codes of elements


@dataclass(frozen=True, slots=True)
class _Encoding:
    """What puts elements in the order of keys: their codes, and the elements that have these."""

    key: Callable[[Expr], Expr]
    code: Callable[[Expr], Expr]
    element: Callable[[Expr], Expr]
    ties: tuple[Range, ...] = ()


def _encodings(dtype: DType) -> tuple[_Encoding, ...]:
    """One for each order that a type has: two of floats, which have equal zeros and NaNs or not."""
    if not dtype.is_float:
        return (_Encoding(unsigned_key, unsigned_key, lambda code: _integer(code, dtype)),)
    total = _total_order(dtype, 1 << (dtype.bits - 1))
    first, last = _pattern(-np.inf, dtype) ^ _magnitude(dtype), (1 << dtype.bits) - 1
    zero = -first & last
    beyond = (_pattern(np.inf, dtype) - first & last) + 1
    rotated = _total_order(dtype, first)
    return (replace(rotated, key=unsigned_key, ties=((zero - 1, zero), (beyond, last))), total)


def _total_order(dtype: DType, first: int) -> _Encoding:
    """All bits, by total order, from the key `first` on; what comes before it comes last."""
    unsigned = UNSIGNED[dtype.bits]

    def code(x: Expr) -> Expr:
        key = apply("bitcast", total_order_key(x), dtype=unsigned)
        return key - first

    def element(code: Expr) -> Expr:
        key = code + first
        negative = compare("gt", key, _magnitude(dtype))
        turned = key ^ _magnitude(dtype)
        return apply("bitcast", select(negative, turned, key), dtype=dtype)

    return _Encoding(lambda x: unsigned_key(total_order_key(x)), code, element)


def _pattern(x: float, dtype: DType) -> int:
    """The bits of a float."""
    return int(np.array(x, dtype.numpy).view(UNSIGNED[dtype.bits].numpy))


def _magnitude(dtype: DType) -> int:
    """All bits but the sign."""
    return (1 << (dtype.bits - 1)) - 1


def _integer(code: Expr, dtype: DType) -> Expr:
    if dtype is BOOL:
        return compare("ne", code, 0)
    if not dtype.is_signed:
        return code
    middle = const(1 << (dtype.bits - 1), code.dtype)
    return apply("bitcast", code ^ middle, dtype=dtype)
