"""pow: 2**(y log2|x|), the logarithm and the product being sums of two floats."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hlo_mlc.codegen.legalize.arithmetic import (
    absolute,
    add,
    bits,
    both,
    compare,
    convert,
    div,
    either,
    floor,
    fma,
    from_bits,
    invalid,
    mul,
    negation,
    outside_normal,
    polynomial,
    select,
    shift_left,
    sign_of,
    sub,
    two_product,
    two_sum,
    unlikely,
    xor,
)
from hlo_mlc.codegen.legalize.formats import format_of
from hlo_mlc.codegen.legalize.logarithm import split
from hlo_mlc.expr.build import const
from hlo_mlc.expr.core import Const, Expr
from hlo_mlc.expr.dtypes import F32, F64


@dataclass(frozen=True, slots=True)
class _Constants:
    # log2(m / c) = C s + s**3 p(s**2) with s = (m - c) / (m + c), |s| < 0.0656, C = 2 / ln 2
    first_high: float  # C in two parts
    first_low: float
    log2: tuple[float, ...]  # p
    # log2(c) in two parts for c = 0.78125 and 1.28125; the first of so few bits that its sum
    # with an exponent is exact
    lower_log: tuple[float, float]
    upper_log: tuple[float, float]
    exp2: tuple[float, ...]  # 2**r on [-0.5, 0.5], exactly 1 at 0


_CONSTANTS = {
    F32: _Constants(
        first_high=2.885390043258667, first_low=3.85192597818218e-08,
        lower_log=(-0.356201171875, 5.736164972469574e-05),
        upper_log=(0.357666015625, -0.00011401100691630683),
        # errors 6.0e-13, 3.1e-9
        log2=(0.961796701, 0.577069342, 0.415239424),
        exp2=(1.0, 0.693147182, 0.240226507, 0.0555035956, 0.00961806253, 0.0013390989,
              0.000154628826)),
    F64: _Constants(
        first_high=2.8853900817779268, first_low=4.0710547481862066e-17,
        lower_log=(-0.3561438102251486, -1.266771905137232e-13),
        upper_log=(0.3575520046179008, 1.82872716976671e-13),
        # errors 1.5e-21, 1.9e-17
        log2=(0.9617966939259756, 0.5770780163557689, 0.4121985828908757, 0.3205990178557783,
              0.2622759242285089, 0.2260717192812291),
        exp2=(1.0, 0.6931471805599457, 0.240226506959101, 0.05550410866478794,
              0.009618129107606191, 0.0013333558153950076, 0.00015403530442177434,
              1.5252726933244864e-05, 1.3215442578296204e-06, 1.0180827023609966e-07,
              7.072558795711261e-09, 4.051887883974643e-10)),
}


def pow(x: Expr, y: Expr, has_fma: bool) -> Expr:
    if isinstance(y, Const) and y.value in (2.0, 3.0):
        square = mul(x, x)
        return square if y.value == 2.0 else mul(square, x)
    magnitude = _magnitude(x, y, has_fma)
    return unlikely(compare("lt", bits(x), 0), _for_negative_base(magnitude, x, y), magnitude)


def _magnitude(x: Expr, y: Expr, has_fma: bool) -> Expr:
    """|x|**y, and those special cases of pow that do not depend on the sign of x."""
    form = format_of(x)
    base = absolute(x)
    log_high, log_low = _log2(base, has_fma)
    high, low = two_product(y, log_high, has_fma)
    low = fma(y, log_low, low)
    exponent = add(high, low)
    shifted = add(exponent, form.rounding)
    r = add(sub(high, sub(shifted, form.rounding)), low)
    n = shift_left(bits(shifted), form.fraction_bits)
    result = add(bits(polynomial(r, _CONSTANTS[x.dtype].exp2)), n)
    # False for NaN; within these bounds the sum above does not wrap back into the normal range.
    in_range = compare("lt", absolute(exponent), form.bias + 24.0)
    ordinary = both(in_range, negation(either(outside_normal(bits(base)), outside_normal(result))))
    return unlikely(negation(ordinary), _at_ends(x, y, log_high), from_bits(result))


def _log2(x: Expr, has_fma: bool) -> tuple[Expr, Expr]:
    """log2 of a positive normal number as a sum of two floats, eight bits more than one has.

    The nearest of three centres makes s so small that only the first term needs two parts.
    """
    c = _CONSTANTS[x.dtype]
    n, shifted_n = split(x)
    m = from_bits(sub(bits(x), shifted_n))
    is_lower, is_upper = compare("lt", m, 0.88), compare("gt", m, 1.14)
    centre, log_high, log_low = (
        select(is_lower, const(lower, x.dtype), select(is_upper, const(upper, x.dtype), middle))
        for lower, middle, upper in zip(
            (0.78125, *c.lower_log), (1.0, 0.0, 0.0), (1.28125, *c.upper_log), strict=True))
    numerator, denominator = sub(m, centre), add(m, centre)
    denominator_low = sub(m, sub(denominator, centre))
    reciprocal = div(1.0, denominator)
    s = mul(numerator, reciprocal)
    product, product_low = two_product(s, denominator, has_fma)
    remainder = sub(sub(numerator, product), fma(s, denominator_low, product_low))
    head, tail = two_product(s, c.first_high, has_fma)
    square = mul(s, s)
    slope = fma(square, 3 * c.log2[0], c.first_high)  # of the series, for the error of s
    tail = fma(mul(remainder, reciprocal), slope, fma(s, c.first_low, tail))
    tail = fma(mul(s, square), polynomial(square, c.log2), tail)
    high, low = two_sum(add(convert(n, x.dtype), log_high), head)
    return high, add(low, add(tail, log_low))


def _at_ends(x: Expr, y: Expr, log_of_normal: Expr) -> Expr:
    """|x|**y where it is 0, infinity, NaN or 1 by rule; a subnormal base counts as 0."""
    base = absolute(x)
    log = select(compare("eq", base, math.inf), math.inf, log_of_normal)
    log = select(compare("lt", base, format_of(x).smallest_normal), -math.inf, log)
    result = select(compare("gt", mul(y, log), 0.0), const(math.inf, x.dtype), 0.0)
    is_nan = either(compare("ne", x, x), compare("ne", y, y))
    minus_one_to_infinity = both(compare("eq", base, 1.0), compare("eq", absolute(y), math.inf))
    is_one = either(either(compare("eq", y, 0.0), compare("eq", x, 1.0)), minus_one_to_infinity)
    return select(is_one, 1.0, select(is_nan, math.nan, result))


def _for_negative_base(magnitude: Expr, x: Expr, y: Expr) -> Expr:
    """The sign for odd y, and NaN for finite x and y that is no integer."""
    half = mul(y, 0.5)
    is_integer = compare("eq", floor(y), y)
    is_odd = both(is_integer, compare("ne", floor(half), half))
    signed = from_bits(xor(bits(magnitude), select(is_odd, sign_of(x), 0)))
    real = either(is_integer, either(compare("eq", x, 0.0), compare("eq", x, -math.inf)))
    return select(real, signed, invalid(x))
