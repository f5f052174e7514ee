"""Scalar functions that look into the bits of a float."""

from __future__ import annotations

import math

import ml_dtypes

from hlo_mlc.expr.build import apply, const
from hlo_mlc.expr.core import Expr
from hlo_mlc.expr.dtypes import F32, I16, I32, I64, U8, U16, U32, U64

_SIGNED = {16: I16, 32: I32, 64: I64}
_UNSIGNED = {8: U8, 16: U16, 32: U32, 64: U64}


def total_order_key(x: Expr) -> Expr:
    """A signed integer that orders floats as `-NaN < -inf < … < -0 < +0 < … < inf < NaN`.

    Source: totalOrder in IEEE 754-2019, 5.10.
    """
    if x.dtype.bits == 8:  # some of them have one zero and one NaN
        x = apply("convert", x, dtype=F32)
    signed = _SIGNED[x.dtype.bits]
    raw = apply("bitcast", x, dtype=signed)
    sign = raw >> (x.dtype.bits - 1)  # in all bits
    return raw ^ apply("shr_logical", sign, const(1, signed))


def is_infinite(x: Expr) -> Expr:
    return apply("eq", apply("abs", x), const(math.inf, x.dtype))


def reduce_precision(x: Expr, exponent_bits: int, mantissa_bits: int) -> Expr:
    """`x` rounded to a float of so many bits and back; what is too small for a normal number of
    that format becomes a zero, what is too large an infinity, each with the sign of `x`.
    """
    layout = ml_dtypes.finfo(x.dtype.numpy)
    if exponent_bits >= layout.nexp and mantissa_bits >= layout.nmant:
        return x
    raw = rounded = apply("bitcast", x, dtype=_UNSIGNED[x.dtype.bits])
    if mantissa_bits < layout.nmant:
        dropped = layout.nmant - mantissa_bits
        last_kept = (raw >> dropped) & 1
        half = last_kept + ((1 << (dropped - 1)) - 1)  # ties go to even
        rounded = (raw + half) & (-1 << dropped)
    if exponent_bits < layout.nexp:
        infinity = ((1 << layout.nexp) - 1) << layout.nmant
        bias, own_bias = (1 << (exponent_bits - 1)) - 1, (1 << (layout.nexp - 1)) - 1
        exponent = rounded & infinity
        sign = raw & (1 << (x.dtype.bits - 1))
        largest, smallest = (
            const(limit << layout.nmant, raw.dtype) for limit in (own_bias + bias, own_bias - bias)
        )
        overflows, underflows = apply("gt", exponent, largest), apply("le", exponent, smallest)
        rounded = apply("select", overflows, sign | infinity, rounded)
        rounded = apply("select", underflows, sign, rounded)
    is_nan = apply("ne", x, x)
    return apply("select", is_nan, x, apply("bitcast", rounded, dtype=x.dtype))


def next_after(x: Expr, y: Expr) -> Expr:
    """The neighbour of `x` towards `y`; `y` where they are equal."""
    unsigned = _UNSIGNED[x.dtype.bits]
    sign_bit, one = const(1 << (x.dtype.bits - 1), unsigned), const(1, unsigned)
    raw_x, raw_y = (apply("bitcast", v, dtype=unsigned) for v in (x, y))
    size_x, size_y = (r & ~sign_bit for r in (raw_x, raw_y))
    sign_x, sign_y = (r & sign_bit for r in (raw_x, raw_y))
    towards_zero = apply("gt", size_x, size_y) | apply("ne", sign_x, sign_y)
    step = apply("select", towards_zero, const(-1, unsigned), one)
    smallest = sign_y | one  # the neighbour of a zero
    from_zero = apply("eq", size_x, const(0, unsigned))
    moved = apply("select", from_zero, smallest, raw_x + step)
    neighbour = apply("bitcast", moved, dtype=x.dtype)
    result = apply("select", apply("eq", x, y), y, neighbour)
    any_nan = apply("ne", x, x) | apply("ne", y, y)
    return apply("select", any_nan, const(math.nan, x.dtype), result)


def multiply_high(x: Expr, y: Expr) -> Expr:
    """The high half of the product of two integers, twice as wide.

    Source: H. S. Warren, Hacker's Delight, 8-3: the signed one from the unsigned one.
    """
    if not x.dtype.is_signed:
        return apply("mul_high", x, y)
    unsigned = _UNSIGNED[x.dtype.bits]
    product = apply("mul_high", *(apply("bitcast", v, dtype=unsigned) for v in (x, y)))
    high = apply("bitcast", product, dtype=x.dtype)
    zero = const(0, x.dtype)
    for one, other in ((x, y), (y, x)):
        high = high - apply("select", apply("lt", one, zero), other, zero)
    return high
