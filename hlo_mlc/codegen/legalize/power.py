"""pow: 2**(y log2|x|), the logarithm and the product being sums of two floats, or f64 for f32."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hlo_mlc.codegen.legalize.arithmetic import (
    absolute,
    balanced,
    bits,
    floor,
    fma,
    from_bits,
    invalid,
    outside_normal,
    polynomial,
    power_of_two,
    rounding_bias,
    sign_of,
    two_product,
    two_sum,
    unlikely,
)
from hlo_mlc.codegen.legalize.formats import format_of
from hlo_mlc.codegen.legalize.logarithm import split
from hlo_mlc.expr.build import compare, const, convert, select
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
        first_high=2.885390043258667,
        first_low=3.85192597818218e-08,
        lower_log=(-0.356201171875, 5.736164972469574e-05),
        upper_log=(0.357666015625, -0.00011401100691630683),
        # errors 6.0e-13, 3.1e-9
        log2=(0.961796701, 0.577069342, 0.415239424),
        exp2=(
            1.0, 0.693147182, 0.240226507, 0.0555035956, 0.00961806253, 0.0013390989,
            0.000154628826,
        ),
    ),
    F64: _Constants(
        first_high=2.8853900817779268,
        first_low=4.0710547481862066e-17,
        lower_log=(-0.3561438102251486, -1.266771905137232e-13),
        upper_log=(0.3575520046179008, 1.82872716976671e-13),
        # errors 1.5e-21, 1.9e-17
        log2=(
            0.9617966939259756, 0.5770780163557689, 0.4121985828908757, 0.3205990178557783,
            0.2622759242285089, 0.2260717192812291,
        ),
        exp2=(
            1.0, 0.6931471805599457, 0.240226506959101, 0.05550410866478794, 0.009618129107606191,
            0.0013333558153950076, 0.00015403530442177434, 1.5252726933244864e-05,
            1.3215442578296204e-06, 1.0180827023609966e-07, 7.072558795711261e-09,
            4.051887883974643e-10,
        ),
    ),
}  # fmt: skip


# Of f32 in f64: log2(1 + f) / f for 1 + f in [sqrt 1/2, sqrt 2), error 1.0e-10, and 2**r on
# [-0.5, 0.5], exactly 1 at 0, error 2.0e-9.
_LOG2 = (
    1.4426950409393455, -0.7213475252132003, 0.48089832072960303, -0.3606728005489737,
    0.28854064354149833, -0.24050417401547985, 0.20609625681918878, -0.17904695445217414,
    0.15900149083814638, -0.1569822428822267, 0.15485755369047366, -0.08634605557536447,
)  # fmt: skip
_EXP2 = (
    1.0, 0.6931472028550439, 0.24022647913631592, 0.05550332471161177, 0.009618437357506926,
    0.0013398874403017559, 0.00015353361927443462,
)  # fmt: skip


def pow(x: Expr, y: Expr, has_fma: bool) -> Expr:
    return _product(x, y) or _with_sign(_magnitude(x, y, has_fma), x, y)


def pow_in_f64(x: Expr, y: Expr) -> Expr:
    """x**y of f32, in two thirds of the steps that wait for each other: a single number takes 0.65
    of the time, but vectors, of which f64 takes twice as many, 1.05 to 1.2 times as long (Zen 5).
    """
    return _product(x, y) or _with_sign(_magnitude_in_f64(x, y), x, y)


def _product(x: Expr, y: Expr) -> Expr | None:
    if not isinstance(y, Const) or y.value not in (2.0, 3.0):
        return None
    square = x * x
    return square if y.value == 2.0 else square * x


def _with_sign(magnitude: Expr, x: Expr, y: Expr) -> Expr:
    return unlikely(compare("lt", bits(x), 0), _for_negative_base(magnitude, x, y), magnitude)


def _magnitude_in_f64(x: Expr, y: Expr) -> Expr:
    """|x|**y, and those special cases of pow that do not depend on the sign of x."""
    base = absolute(x)
    n, shifted_n = split(base)
    n, wide = convert(n, F64), convert(y, F64)
    f = convert(from_bits(bits(base) - shifted_n) - 1.0, F64)
    log = balanced(f, _LOG2)
    exponent = fma(wide * f, log, wide * n)
    shifted = exponent + rounding_bias(exponent)
    r = exponent - (shifted - rounding_bias(exponent))
    result = convert(balanced(r, _EXP2) * power_of_two(shifted), x.dtype)
    # False for NaN; within these bounds the power of two is a normal number.
    in_range = compare("lt", absolute(exponent), 1000.0)
    ordinary = in_range & ~(outside_normal(bits(base)) | outside_normal(bits(result)))
    at_end = _at_ends(x, y, convert(fma(f, log, n), x.dtype))
    return unlikely(~ordinary, at_end, result)


def _magnitude(x: Expr, y: Expr, has_fma: bool) -> Expr:
    """|x|**y, and those special cases of pow that do not depend on the sign of x."""
    form = format_of(x)
    base = absolute(x)
    exponent, result, log = _power_of_normal(base, y, has_fma)
    # False for NaN; within these bounds the result does not wrap back into the normal range.
    in_range = compare("lt", absolute(exponent), form.bias + 24.0)
    ordinary = in_range & ~(outside_normal(bits(base)) | outside_normal(result))
    return unlikely(~ordinary, _at_ends(x, y, log), from_bits(result))


def power_of_positive(x: Expr, y: Expr, has_fma: bool) -> Expr:
    """x**y for normal x > 0 and finite y without a branch: 0 and infinity out of range."""
    bias = format_of(x).bias
    exponent, result, _ = _power_of_normal(x, y, has_fma)
    finite = select(compare("gt", exponent, 1.0 - bias), from_bits(result), 0.0)
    return select(compare("lt", exponent, bias + 1.0), finite, math.inf)


def _power_of_normal(x: Expr, y: Expr, has_fma: bool) -> tuple[Expr, Expr, Expr]:
    """(y log2(x), the bits of x**y where these are in range, log2(x)) for normal x > 0."""
    form = format_of(x)
    log_high, log_low = _log2(x, has_fma)
    high, low = two_product(y, log_high, has_fma)
    low = fma(y, log_low, low)
    exponent = high + low
    shifted = exponent + form.rounding
    r = high - (shifted - form.rounding) + low
    n = bits(shifted) << form.fraction_bits
    return exponent, bits(polynomial(r, _CONSTANTS[x.dtype].exp2)) + n, log_high


def _log2(x: Expr, has_fma: bool) -> tuple[Expr, Expr]:
    """log2 of a positive normal number as a sum of two floats, eight bits more than one has.

    The nearest of three centres makes s so small that only the first term needs two parts.
    """
    c = _CONSTANTS[x.dtype]
    n, shifted_n = split(x)
    m = from_bits(bits(x) - shifted_n)
    is_lower, is_upper = compare("lt", m, 0.88), compare("gt", m, 1.14)
    centre, log_high, log_low = (
        select(is_lower, const(lower, x.dtype), select(is_upper, const(upper, x.dtype), middle))
        for lower, middle, upper in zip(
            (0.78125, *c.lower_log), (1.0, 0.0, 0.0), (1.28125, *c.upper_log), strict=True
        )
    )
    numerator, denominator = m - centre, m + centre
    denominator_low = m - (denominator - centre)
    reciprocal = 1.0 / denominator
    s = numerator * reciprocal
    product, product_low = two_product(s, denominator, has_fma)
    remainder = numerator - product - fma(s, denominator_low, product_low)
    head, tail = two_product(s, c.first_high, has_fma)
    square = s * s
    slope = fma(square, 3 * c.log2[0], c.first_high)  # of the series, for the error of s
    tail = fma(remainder * reciprocal, slope, fma(s, c.first_low, tail))
    tail = fma(s * square, polynomial(square, c.log2), tail)
    high, low = two_sum(convert(n, x.dtype) + log_high, head)
    return high, low + (tail + log_low)


def _at_ends(x: Expr, y: Expr, log_of_normal: Expr) -> Expr:
    """|x|**y where it is 0, infinity, NaN or 1 by rule; a subnormal base counts as 0."""
    base = absolute(x)
    log = select(compare("eq", base, math.inf), math.inf, log_of_normal)
    log = select(compare("lt", base, format_of(x).smallest_normal), -math.inf, log)
    result = select(compare("gt", y * log, 0.0), const(math.inf, x.dtype), 0.0)
    is_nan = compare("ne", x, x) | compare("ne", y, y)
    minus_one_to_infinity = compare("eq", base, 1.0) & compare("eq", absolute(y), math.inf)
    is_one = compare("eq", y, 0.0) | compare("eq", x, 1.0) | minus_one_to_infinity
    return select(is_one, 1.0, select(is_nan, math.nan, result))


def _for_negative_base(magnitude: Expr, x: Expr, y: Expr) -> Expr:
    """The sign for odd y, and NaN for finite x and y that is no integer."""
    half = y * 0.5
    is_integer = compare("eq", floor(y), y)
    is_odd = is_integer & compare("ne", floor(half), half)
    signed = from_bits(bits(magnitude) ^ select(is_odd, sign_of(x), 0))
    real = is_integer | (compare("eq", x, 0.0) | compare("eq", x, -math.inf))
    return select(real, signed, invalid(x))
