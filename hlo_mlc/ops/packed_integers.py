"""Integers of 4 and 2 bits as memory has them: several in a byte, the first in its lowest bits.

Nothing is computed with them as they are: passes/packed_integers.py makes bytes of them.
"""

from __future__ import annotations

import math

from hlo_mlc.expr import index
from hlo_mlc.expr.build import TRUE, apply, const
from hlo_mlc.expr.core import Expr
from hlo_mlc.expr.dtypes import I8, I32, U8, U32, DType, TensorType
from hlo_mlc.ops.definition import Indices, Read


def unpacked(read: Read, tensor: TensorType, dtype: DType) -> Read:
    """The elements of a packed tensor in another type, where `read` gives its bytes."""
    bits, signed = tensor.dtype.bits, tensor.dtype.is_signed
    # A shift of every lane by an amount of its own is one instruction for 32 bits only.
    is_wide = dtype.is_float or dtype.bits >= 32
    wide = (I32 if signed else U32) if is_wide else (I8 if signed else U8)

    def element(indices: Indices) -> Expr:
        place, lane = _place(tensor, indices)
        byte = apply("convert", read(place), dtype=wide)
        start = apply("convert", lane * bits, dtype=wide)
        if not signed:
            found = (byte >> start) & ((1 << bits) - 1)
        else:
            left = const(wide.bits - bits, wide)
            found = (byte << (left - start)) >> left
        return apply("convert", found, dtype=dtype)

    return element


def packed(read: Read, tensor: TensorType) -> Read:
    """The bytes of a packed tensor, whose elements `read` gives in whole bytes or more; what is
    over in the last one is zero."""
    bits, many = tensor.dtype.bits, 8 // tensor.dtype.bits

    def byte(indices: Indices) -> Expr:
        found: Expr = const(0, U8)
        for lane in range(many):
            place, is_there = _element(tensor, indices, lane)
            one = apply("select", is_there, apply("convert", read(place), dtype=U8), const(0, U8))
            part = one & ((1 << bits) - 1)
            found = found | (part << (bits * lane))
        return found

    return byte


def _place(tensor: TensorType, indices: Indices) -> tuple[Indices, Expr]:
    """Where the byte of an element is, and which of those in it it is."""
    many = 8 // tensor.dtype.bits
    if _has_whole_rows(tensor):
        *outer, last = indices
        return (*outer, last // many), last % many
    flat: Expr = index.constant(0)
    for i, extent in zip(indices, tensor.shape, strict=True):
        flat = flat * extent + i
    return (flat // many,), flat % many


def _element(tensor: TensorType, indices: Indices, lane: int) -> tuple[Indices, Expr]:
    """The indices of an element in a byte, past the end those of the last one; and whether it is
    there."""
    *outer, byte = indices
    flat = byte * (8 // tensor.dtype.bits) + lane
    if _has_whole_rows(tensor):
        return (*outer, flat), TRUE
    last, found = index.constant(tensor.size - 1), []
    is_there, flat = index.compare("le", flat, last), index.minimum(flat, last)
    for position, extent in enumerate(tensor.shape):
        inner = math.prod(tensor.shape[position + 1 :])
        found.append(flat // inner % extent)
    return tuple(found), is_there


def _has_whole_rows(tensor: TensorType) -> bool:
    return bool(tensor.shape) and tensor.shape[-1] * tensor.dtype.bits % 8 == 0
