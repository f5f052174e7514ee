"""pow for f32: 2**(y log2|x|), the logarithm and the product being sums of two f32."""

from __future__ import annotations

import math

from hlo_mlc.codegen.legalize.arithmetic import (
    ROUNDING, SMALLEST_NORMAL, absolute, add, bits, both, compare, convert, div, either, floor,
    fma, from_bits, mul, negation, polynomial, select, shift_left, sign_bit, sub, two_product,
    two_sum, unlikely, xor)
from hlo_mlc.codegen.legalize.logarithm import outside_normal, split
from hlo_mlc.expr.build import const
from hlo_mlc.expr.core import Const, Expr
from hlo_mlc.expr.dtypes import F32

# log2(m / c) = C s + s**3 p(s**2) with s = (m - c) / (m + c), |s| < 0.0656, and C = 2 / ln 2 in
# two parts; minimax fit of the relative error as in exponential.py: 6.0e-13.
_C_HIGH, _C_LOW = 2.885390043258667, 3.85192597818218e-08
_LOG2 = (0.961796701, 0.577069342, 0.415239424)
# c and log2(c) in two parts, the first of 12 bits so that its sum with an exponent is exact.
_LOWER = (0.78125, -0.356201171875, 5.736164972469574e-05)  # for m < 0.88
_UPPER = (1.28125, 0.357666015625, -0.00011401100691630683)  # for m > 1.14
_MIDDLE = (1.0, 0.0, 0.0)
# 2**r on [-0.5, 0.5]: error 3.1e-9.
_EXP2 = (1.0, 0.693147182, 0.240226507, 0.0555035956, 0.00961806253, 0.0013390989, 0.000154628826)


def pow(x: Expr, y: Expr, has_fma: bool) -> Expr:  # noqa: A001 - the op's own name
    if isinstance(y, Const) and y.value in (2.0, 3.0):
        square = mul(x, x)
        return square if y.value == 2.0 else mul(square, x)
    magnitude = _magnitude(x, y, has_fma)
    return unlikely(compare("lt", bits(x), 0), _for_negative_base(magnitude, x, y), magnitude)


def _magnitude(x: Expr, y: Expr, has_fma: bool) -> Expr:
    """|x|**y, and those special cases of pow that do not depend on the sign of x."""
    base = absolute(x)
    log_high, log_low = _log2(base, has_fma)
    high, low = two_product(y, log_high, has_fma)
    low = fma(y, log_low, low)
    exponent = add(high, low)
    shifted = add(exponent, ROUNDING)
    r = add(sub(high, sub(shifted, ROUNDING)), low)
    result = add(bits(polynomial(r, _EXP2)), shift_left(bits(shifted), 23))
    in_range = compare("lt", absolute(exponent), 150.0)  # false for NaN
    ordinary = both(in_range, negation(either(outside_normal(bits(base)), outside_normal(result))))
    return unlikely(negation(ordinary), _at_ends(x, y, log_high), from_bits(result))


def _log2(x: Expr, has_fma: bool) -> tuple[Expr, Expr]:
    """log2 of a positive normal number as a sum of two f32, to about 2**-32 of itself.

    The nearest of three centres makes s so small that only the first term needs two parts.
    """
    n, shifted_n = split(x)
    m = from_bits(sub(bits(x), shifted_n))
    is_lower, is_upper = compare("lt", m, 0.88), compare("gt", m, 1.14)
    centre, log_high, log_low = (
        select(is_lower, const(low, F32), select(is_upper, const(high, F32), middle))
        for low, middle, high in zip(_LOWER, _MIDDLE, _UPPER))
    numerator, denominator = sub(m, centre), add(m, centre)
    denominator_low = sub(m, sub(denominator, centre))
    reciprocal = div(1.0, denominator)
    s = mul(numerator, reciprocal)
    product, product_low = two_product(s, denominator, has_fma)
    remainder = sub(sub(numerator, product), fma(s, denominator_low, product_low))
    head, tail = two_product(s, _C_HIGH, has_fma)
    tail = fma(mul(remainder, reciprocal), _C_HIGH, fma(s, _C_LOW, tail))
    square = mul(s, s)
    tail = fma(mul(s, square), polynomial(square, _LOG2), tail)
    high, low = two_sum(add(convert(n, F32), log_high), head)
    return high, add(low, add(tail, log_low))


def _at_ends(x: Expr, y: Expr, log_of_normal: Expr) -> Expr:
    """|x|**y where it is 0, infinity, NaN or 1 by rule; a subnormal base counts as 0."""
    base = absolute(x)
    log = select(compare("eq", base, math.inf), math.inf, log_of_normal)
    log = select(compare("lt", base, SMALLEST_NORMAL), -math.inf, log)
    result = select(compare("gt", mul(y, log), 0.0), const(math.inf, F32), 0.0)
    is_nan = either(compare("ne", x, x), compare("ne", y, y))
    minus_one_to_infinity = both(compare("eq", base, 1.0), compare("eq", absolute(y), math.inf))
    is_one = either(either(compare("eq", y, 0.0), compare("eq", x, 1.0)), minus_one_to_infinity)
    return select(is_one, 1.0, select(is_nan, math.nan, result))


def _for_negative_base(magnitude: Expr, x: Expr, y: Expr) -> Expr:
    """The sign for odd y, and NaN for finite x and y that is no integer."""
    half = mul(y, 0.5)
    is_integer = compare("eq", floor(y), y)
    is_odd = both(is_integer, compare("ne", floor(half), half))
    signed = from_bits(xor(bits(magnitude), select(is_odd, sign_bit(x), 0)))
    real = either(is_integer, either(compare("eq", x, 0.0), compare("eq", x, -math.inf)))
    return select(real, signed, math.nan)
