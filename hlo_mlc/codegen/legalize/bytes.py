"""Floats of eight bits, put together and taken apart by integer operations on f32.

Source: the OCP specification of 8-bit floating point, 2023; for the forms with one zero and one
NaN, Noune and others, 8-bit numerical formats for deep neural networks, arXiv 2206.02915; for the
powers of two, the OCP specification of microscaling formats, 2023.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from hlo_mlc.codegen.legalize.arithmetic import absolute
from hlo_mlc.expr.build import apply, compare, const, select
from hlo_mlc.expr.core import Expr
from hlo_mlc.expr.dtypes import (
    F8E3M4,
    F8E4M3,
    F8E4M3B11FNUZ,
    F8E4M3FN,
    F8E4M3FNUZ,
    F8E5M2,
    F8E5M2FNUZ,
    F8E8M0FNU,
    F32,
    F64,
    I32,
    U8,
    U32,
    U64,
    DType,
)

_FRACTION_BITS, _BIAS, _INFINITY = 23, 127, 0x7F800000  # of f32
_SIGN = 0x80
_NO_POWER = 0xFF  # what stands for none among powers of two
_SMALLEST_F32 = -22  # the biased exponent of the smallest number that is not zero


@dataclass(frozen=True, slots=True)
class Layout:
    """fraction_bits: of the significand, the leading one not counted; `largest`: the bits of the
    largest number; `overflow`: of what is larger; `nan`: of what is none; signed_zero: whether
    there is a zero with a sign, and a sign of NaN.  Bits without the sign, but for `nan` where
    zeros have none."""

    fraction_bits: int
    bias: int
    largest: int
    overflow: int
    nan: int
    signed_zero: bool = True

    @property
    def smallest_normal_exponent(self) -> int:
        return 1 - self.bias


_LAYOUTS: Mapping[DType, Layout] = {
    F8E3M4: Layout(4, 3, 0x6F, 0x70, 0x78),
    F8E4M3: Layout(3, 7, 0x77, 0x78, 0x7C),
    F8E4M3FN: Layout(3, 7, 0x7E, 0x7F, 0x7F),
    F8E5M2: Layout(2, 15, 0x7B, 0x7C, 0x7E),
    F8E4M3B11FNUZ: Layout(3, 11, 0x7F, _SIGN, _SIGN, signed_zero=False),
    F8E4M3FNUZ: Layout(3, 8, 0x7F, _SIGN, _SIGN, signed_zero=False),
    F8E5M2FNUZ: Layout(2, 16, 0x7F, _SIGN, _SIGN, signed_zero=False),
}


def has_signed_zero(dtype: DType) -> bool:
    """Whether a change of the sign bit is one of the sign, whatever the number is."""
    return dtype is not F8E8M0FNU and _LAYOUTS[dtype].signed_zero


def widened(x: Expr) -> Expr:
    """The number as an f32, which has all of them."""
    raw = apply("convert", apply("bitcast", x, dtype=U8), dtype=U32)
    if x.dtype is F8E8M0FNU:
        return _float(_power_widened(raw))
    layout = _LAYOUTS[x.dtype]
    size = raw & (_SIGN - 1)
    shift = _FRACTION_BITS - layout.fraction_bits
    normal = _left(size, shift) + ((_BIAS - layout.bias) << _FRACTION_BITS)
    unit = 2.0 ** (layout.smallest_normal_exponent - layout.fraction_bits)
    small = apply("convert", size, dtype=F32) * unit
    found = select(compare("lt", size, 1 << layout.fraction_bits), _bits(small), normal)
    if layout.signed_zero:
        if layout.overflow < layout.nan:
            found = select(compare("eq", size, layout.overflow), const(_INFINITY, U32), found)
        beyond = compare(
            "gt", size, max(layout.largest, layout.overflow - (layout.overflow == layout.nan))
        )
    else:
        beyond = compare("eq", raw, layout.nan)
    found = select(beyond, const(_INFINITY | 1 << (_FRACTION_BITS - 1), U32), found)
    return _float(found | _left(raw & _SIGN, 24))


def narrowed(x: Expr, dtype: DType) -> Expr:
    """An f32 rounded to the nearest number, of two to the even one; of two powers of two to the
    larger one, as XLA does."""
    raw = _bits(x)
    if dtype is F8E8M0FNU:
        return apply("bitcast", apply("convert", _power_narrowed(raw), dtype=U8), dtype=dtype)
    layout = _LAYOUTS[dtype]
    size = _bits(absolute(x))
    shift = _FRACTION_BITS - layout.fraction_bits
    last = _right(size, shift) & 1
    rounded = _right(size + last + ((1 << (shift - 1)) - 1), shift)
    normal = rounded - const((_BIAS - layout.bias) << layout.fraction_bits, U32)
    # A sum with this leaves the digits down to the smallest number, and rounds them.
    exponent = layout.smallest_normal_exponent
    step = const(2.0 ** (exponent - layout.fraction_bits + _FRACTION_BITS), F32)
    small = _bits(absolute(x) + step) - _bits(step)
    is_small = compare("lt", size, (exponent + _BIAS) << _FRACTION_BITS)
    found = select(is_small, small, normal)
    too_large = ~is_small & compare("gt", normal, layout.largest)
    sign = _right(raw, 24) & _SIGN
    if layout.signed_zero:
        found = select(too_large, const(layout.overflow, U32), found)
        found = select(compare("gt", size, _INFINITY), const(layout.nan, U32), found)
        found = found | sign
    else:
        zero = compare("eq", found, 0)
        found = select(zero, found, found | sign)
        nan = too_large | compare("gt", size, _INFINITY)
        found = select(nan, const(layout.nan, U32), found)
    return apply("bitcast", apply("convert", found, dtype=U8), dtype=dtype)


def _power_widened(raw: Expr) -> Expr:
    """The bits of the power of two whose biased exponent this is; the smallest is subnormal."""
    found = select(compare("eq", raw, 0), const(1 << (_FRACTION_BITS - 1), U32), _left(raw, 23))
    nan = const(_INFINITY | 1 << (_FRACTION_BITS - 1), U32)
    return select(compare("eq", raw, _NO_POWER), nan, found)


def _power_narrowed(raw: Expr) -> Expr:
    """The biased exponent of the nearest power of two; what is not above zero, and not finite, has
    none."""
    half = 1 << (_FRACTION_BITS - 1)  # the bits of the least one, too, which is subnormal
    rounded = _right(raw + half, _FRACTION_BITS)
    is_least = compare("lt", raw, half + half // 2)
    found = select(is_least, const(0, U32), rounded)
    has_none = compare("eq", raw, 0) | compare("ge", raw, _INFINITY)  # a sign is the highest bit
    return select(has_none, const(_NO_POWER, U32), found)


def power_in_f64(x: Expr) -> Expr:
    """A power of two as an f64, of which the least is no subnormal number that may be flushed."""
    raw = apply("convert", apply("bitcast", x, dtype=U8), dtype=U64)
    found = (raw + (1023 - _BIAS)) << const(52, U64)
    nan = const(math.nan, F64)
    return select(compare("eq", raw, _NO_POWER), nan, apply("bitcast", found, dtype=F64))


def power_of_f64(x: Expr) -> Expr:
    """The power of two that is next to this number, which may be subnormal as an f32."""
    usual = narrowed(apply("convert", x, dtype=F32), F8E8M0FNU)
    least = select(compare("ge", x, 1.5 * 2.0**-_BIAS), const(1, U8), const(0, U8))
    is_small = compare("lt", x, 2.0 ** (1 - _BIAS)) & compare("ge", x, 2.0**-149)
    return select(is_small, apply("bitcast", least, dtype=F8E8M0FNU), usual)


def of_two_powers(op: str, x: Expr, y: Expr) -> Expr:
    """`mul`, `div`, `max` or `min` by the exponents; the least power stands for what f32 has below
    it."""
    a, b = (apply("convert", apply("bitcast", p, dtype=U8), dtype=I32) for p in (x, y))
    has_none = compare("eq", a, _NO_POWER) | compare("eq", b, _NO_POWER)
    match op:
        case "mul":
            exponent = a + b - _BIAS
        case "div":
            exponent = a - b + _BIAS
        case _:
            exponent = apply(op, a, b)
    has_none = has_none | compare("ge", exponent, _NO_POWER)
    has_none = has_none | compare("lt", exponent, _SMALLEST_F32)
    found = select(has_none, const(_NO_POWER, I32), apply("max", exponent, const(0, I32)))
    return apply("bitcast", apply("convert", found, dtype=U8), dtype=F8E8M0FNU)


def _bits(x: Expr) -> Expr:
    return apply("bitcast", x, dtype=U32)


def _float(x: Expr) -> Expr:
    return apply("bitcast", x, dtype=F32)


def _left(x: Expr, amount: int) -> Expr:
    return x << const(amount, U32)


def _right(x: Expr, amount: int) -> Expr:
    return apply("shr_logical", x, const(amount, U32))
