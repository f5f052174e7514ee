"""Sign, rounding and remainder of floats, which are exact, and reciprocal and cube roots."""

from __future__ import annotations

import math

from hlo_mlc.codegen.legalize.arithmetic import (
    absolute, add, bits, both, compare, convert, div, either, fma, from_bits, mul, neg, negation,
    polynomial, select, shift_left, shift_right, sqrt, sub, trunc, unlikely, with_sign_of)
from hlo_mlc.expr.build import apply, const
from hlo_mlc.expr.core import Expr
from hlo_mlc.expr.dtypes import F32, F64, I32, U32, U64

# Bits of an f32 whose distance to those of a, divided by 3, are those of about a**(-1/3); found
# by search for the least error over one period of a.
_CUBE_ROOT_BITS = 0x54A1F460


def sign(x: Expr) -> Expr:
    """1 or -1, or x itself where it is ±0 or NaN."""
    return select(compare("gt", x, 0.0), 1.0, select(compare("lt", x, 0.0), -1.0, x))


def round_away(x: Expr) -> Expr:
    """To the nearest integer, halves away from zero.

    The largest number below one half, not one half itself, is added before truncation: the sum
    rounds up to an integer exactly where the fraction is at least one half.
    """
    below_half = const(math.nextafter(0.5, 0.0) if x.dtype is F64 else 0.5 - 2.0**-25, x.dtype)
    return trunc(add(x, with_sign_of(below_half, x)))


def rsqrt(x: Expr) -> Expr:
    return div(1.0, sqrt(x))


def cbrt(x: Expr) -> Expr:
    """a y**2 with y near a**(-1/3), corrected by the residual h = 1 - a y**3.

    Dividing the bits by -3 divides the exponent, so it gives y to 3.4 % (|h| <= 0.103).  One
    step of y (1 - h)**(-1/3) makes |h| < 3e-4, and the last is (1 - h)**(-2/3) on the result.
    """
    a = absolute(x)
    guess = fma(convert(bits(a), F32), -1 / 3, float(_CUBE_ROOT_BITS))
    y = from_bits(apply("convert_in_range", guess, dtype=I32))
    h = _cube_residual(mul(a, y), y)
    y = fma(mul(y, h), polynomial(h, (1 / 3, 2 / 9, 14 / 81)), y)
    scaled = mul(a, y)
    h = _cube_residual(scaled, y)
    root = mul(scaled, y)
    root = fma(mul(root, h), fma(h, 5 / 9, 2 / 3), root)
    return with_sign_of(select(compare("lt", a, math.inf), root, a), x)


def _cube_residual(scaled: Expr, y: Expr) -> Expr:
    """1 - scaled * y**2."""
    return fma(neg(scaled), mul(y, y), 1.0)


def remainder(x: Expr, y: Expr, has_fma: bool) -> Expr:
    """x - trunc(x / y) * y, exactly, with the sign of x, for f32.

    The rounded quotient is right or one too large, and then subtracting its product gives a
    remainder that is representable and at most one divisor too small.
    """
    dividend, divisor = absolute(x), absolute(y)
    quotient = div(dividend, divisor)
    whole = trunc(quotient)
    if has_fma:
        rest = fma(neg(whole), divisor, dividend)
    else:  # in f64 the product of two f32 is exact
        product = mul(convert(whole, F64), convert(divisor, F64))
        rest = convert(sub(convert(dividend, F64), product), F32)
    rest = select(compare("lt", rest, 0.0), add(rest, divisor), rest)
    small = both(compare("lt", quotient, 2.0**22), compare("lt", divisor, math.inf))
    return with_sign_of(unlikely(negation(small), _rare_remainder(dividend, divisor), rest), x)


def _rare_remainder(dividend: Expr, divisor: Expr) -> Expr:
    """The remainder of a huge quotient, of an infinite divisor, or NaN."""
    finite = compare("lt", dividend, math.inf)
    result = select(compare("eq", divisor, math.inf), dividend, _modular_remainder(dividend, divisor))
    defined = both(finite, compare("gt", divisor, 0.0))
    return select(defined, result, math.nan)


def _modular_remainder(dividend: Expr, divisor: Expr) -> Expr:
    """The remainder for normal numbers with dividend >= divisor, in integers.

    With x = a 2**i and y = b 2**j, a and b of 24 bits: (a 2**(i-j) mod b) 2**j, the power of two
    by repeated squaring modulo b.
    """
    a, i = _mantissa_and_exponent(dividend)
    b, j = _mantissa_and_exponent(divisor)
    shift = sub(i, j)  # 0 to 253
    power = shift_left(const(1, U64), shift_right(shift, 4))  # below 2**16
    for bit in reversed(range(4)):
        doubling = both(shift_right(shift, bit), 1)
        power = apply("rem", shift_left(mul(power, power), doubling), b)
    remainder_bits = apply("rem", mul(power, a), b)
    scale = from_bits(shift_left(convert(j, U32), 23))  # 2**(j - 127)
    return mul(mul(convert(remainder_bits, F32), 2.0**-23), scale)


def _mantissa_and_exponent(x: Expr) -> tuple[Expr, Expr]:
    """(a, i), both u64, with x = a 2**(i - 150) for normal x > 0."""
    raw = apply("bitcast", x, dtype=U32)
    mantissa = either(both(raw, 0x7FFFFF), 0x800000)
    return convert(mantissa, U64), convert(shift_right(raw, 23), U64)
