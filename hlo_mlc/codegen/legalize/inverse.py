"""asin, acos, atan, atan2 and the inverse hyperbolic functions."""

from __future__ import annotations

from dataclasses import dataclass

from hlo_mlc.codegen.legalize.arithmetic import (
    absolute,
    bits,
    fma,
    invalid,
    polynomial,
    sqrt,
    with_sign_of,
)
from hlo_mlc.codegen.legalize.formats import format_of
from hlo_mlc.codegen.legalize.logarithm import LN2, log1p
from hlo_mlc.expr.build import compare, const, select
from hlo_mlc.expr.core import Expr
from hlo_mlc.expr.dtypes import F32, F64


@dataclass(frozen=True, slots=True)
class _Constants:
    half_pi: float  # rounded to the format
    half_pi_low: float  # what that leaves
    asin: tuple[float, ...]  # (asin(x) - x) / x**3 in x**2 on [0, 0.5]
    atan: tuple[float, ...]  # (atan(x) - x) / x**3 in x**2 on [0, 1]


_CONSTANTS = {
    F32: _Constants(
        half_pi=1.5707963705062866,
        half_pi_low=-4.371138828673793e-08,
        # errors 4.9e-9, 2.6e-9
        asin=(0.166667521, 0.0749530941, 0.0454691537, 0.0241847448, 0.0421583802),
        atan=(
            -0.333332986, 0.199985296, -0.142640159, 0.10950879, -0.0839928836, 0.0578806736,
            -0.0310956966, 0.0108676031, -0.00178247574,
        ),
    ),
    F64: _Constants(
        half_pi=1.5707963267948966,
        half_pi_low=6.123233995736766e-17,
        # errors 9.6e-19, 3.9e-18
        asin=(
            0.1666666666666676, 0.07499999999970863, 0.04464285717458053, 0.030381942708097506,
            0.02237221500655097, 0.017351611256854478, 0.013980833882590376, 0.011398772834371095,
            0.010781183872460076, 0.0037023854595390855, 0.021718351120310463, -0.02101593538618117,
            0.03264000635794279,
        ),
        atan=(
            -0.33333333333333287, 0.1999999999999063, -0.1428571428504459, 0.11111111086583854,
            -0.09090908547519319, 0.07692299684532411, -0.066665832084469, 0.058817110913914915,
            -0.052594011203327504, 0.04744776548288364, -0.04285885618141875, 0.03819718995899833,
            -0.032760408061129856, 0.026114434975570977, -0.01857192321669831, 0.011281427664400491,
            -0.005589460204416864, 0.0021412521664826854, -0.0005897778494866488,
            0.00010331549408424213, -8.610510037038473e-06,
        ),
    ),
}  # fmt: skip


def _odd(x: Expr, coefficients: tuple[float, ...]) -> Expr:
    """x + x**3 p(x**2)."""
    square = x * x
    return fma(x * square, polynomial(square, coefficients), x)


def _asin_parts(magnitude: Expr) -> tuple[Expr, Expr]:
    """(near, p): p = asin(|x|) where `near` (|x| <= 1/2), else (pi/2 - asin(|x|)) / 2."""
    near = compare("le", magnitude, 0.5)
    half_angle = sqrt(fma(magnitude, -0.5, 0.5))
    return near, _odd(select(near, magnitude, half_angle), _CONSTANTS[magnitude.dtype].asin)


def asin(x: Expr) -> Expr:
    near, p = _asin_parts(absolute(x))
    return with_sign_of(select(near, p, fma(p, -2.0, _CONSTANTS[x.dtype].half_pi)), x)


def acos(x: Expr) -> Expr:
    c = _CONSTANTS[x.dtype]
    near, p = _asin_parts(absolute(x))
    middle = c.half_pi - (with_sign_of(p, x) - c.half_pi_low)
    end = select(compare("lt", x, 0.0), fma(p, -2.0, 2 * c.half_pi), p + p)
    return select(near, middle, end)


def atan(x: Expr) -> Expr:
    magnitude = absolute(x)
    far = compare("gt", magnitude, 1.0)
    c = _CONSTANTS[x.dtype]
    p = _odd(select(far, 1.0 / magnitude, magnitude), c.atan)
    return with_sign_of(select(far, c.half_pi - p, p), x)


def atan2(y: Expr, x: Expr) -> Expr:
    """The angle of the point (x, y), in (-pi, pi]; signs of zeros count."""
    height, width = absolute(y), absolute(x)
    steep = compare("gt", height, width)
    small, large = select(steep, width, height), select(steep, height, width)
    # Equal ones may be infinite or both 0; zeros give 0 here, and the signs do the rest.
    diagonal = select(compare("eq", height, 0.0), const(0.0, x.dtype), 1.0)
    ratio = select(compare("eq", height, width), diagonal, small / large)
    c = _CONSTANTS[x.dtype]
    p = _odd(ratio, c.atan)
    p = select(steep, c.half_pi - p, p)
    left = compare("lt", bits(x), 0)  # -0 included
    return with_sign_of(select(left, 2 * c.half_pi - p, p), y)


def asinh(x: Expr) -> Expr:
    """log1p(a + a**2 / (1 + sqrt(1 + a**2))), or log(2 a) where a**2 may overflow."""
    a = absolute(x)
    square = a * a
    huge = compare("gt", a, _huge(x))
    inside = a + square / (sqrt(square + 1.0) + 1.0)
    return with_sign_of(_log1p_or_log_of_double(huge, inside, a), x)


def acosh(x: Expr) -> Expr:
    """log1p(t + sqrt(2 t + t**2)) with t = x - 1, or log(2 x) where t**2 may overflow."""
    t = x - 1.0
    inside = t + sqrt(fma(t, t, t + t))
    result = _log1p_or_log_of_double(compare("gt", x, _huge(x)), inside, x)
    return select(compare("lt", x, 1.0), invalid(x), result)


def _huge(x: Expr) -> float:
    """From here on x and 1 + x are the same, and so are their squares."""
    return 2.0 ** (format_of(x).fraction_bits + 2)


def _log1p_or_log_of_double(huge: Expr, inside: Expr, x: Expr) -> Expr:
    """log1p(inside), or log1p(x) + ln 2 where x is huge."""
    return log1p(select(huge, x, inside)) + select(huge, const(LN2, x.dtype), 0.0)


def atanh(x: Expr) -> Expr:
    """log1p(2 a / (1 - a)) / 2."""
    a = absolute(x)
    return with_sign_of(log1p((a + a) / (1.0 - a)) * 0.5, x)
