"""asin, acos, atan, atan2 and the inverse hyperbolic functions, for f32.

Coefficients: minimax fits of the relative error as in exponential.py.
"""

from __future__ import annotations

import math

from hlo_mlc.codegen.legalize.arithmetic import (
    absolute, add, bits, compare, div, fma, mul, polynomial, select, sqrt, sub,
    with_sign_of)
from hlo_mlc.codegen.legalize.logarithm import log1p
from hlo_mlc.expr.build import const
from hlo_mlc.expr.core import Expr

_HALF_PI, _HALF_PI_LOW = 1.5707963705062866, -4.371138828673793e-08
_PI, _PI_LOW = 2 * _HALF_PI, 2 * _HALF_PI_LOW

# (asin(x) - x) / x**3 in x**2 on [0, 0.5]: the whole has error 4.9e-9.
_ASIN = (0.166667521, 0.0749530941, 0.0454691537, 0.0241847448, 0.0421583802)
# (atan(x) - x) / x**3 in x**2 on [0, 1]: the whole has error 2.6e-9.
_ATAN = (-0.333332986, 0.199985296, -0.142640159, 0.10950879, -0.0839928836, 0.0578806736,
         -0.0310956966, 0.0108676031, -0.00178247574)


def _odd(x: Expr, coefficients: tuple[float, ...]) -> Expr:
    """x + x**3 p(x**2)."""
    square = mul(x, x)
    return fma(mul(x, square), polynomial(square, coefficients), x)


def _asin_parts(magnitude: Expr) -> tuple[Expr, Expr]:
    """(near, p): p = asin(|x|) where `near` (|x| <= 1/2), else (pi/2 - asin(|x|)) / 2."""
    near = compare("le", magnitude, 0.5)
    half_angle = sqrt(fma(magnitude, -0.5, 0.5))
    return near, _odd(select(near, magnitude, half_angle), _ASIN)


def asin(x: Expr) -> Expr:
    near, p = _asin_parts(absolute(x))
    return with_sign_of(select(near, p, fma(p, -2.0, _HALF_PI)), x)


def acos(x: Expr) -> Expr:
    near, p = _asin_parts(absolute(x))
    signed = with_sign_of(p, x)
    middle = sub(_HALF_PI, add(signed, -_HALF_PI_LOW))
    negative = compare("lt", x, 0.0)
    end = select(negative, fma(p, -2.0, _PI), add(p, p))
    return select(near, middle, end)


def atan(x: Expr) -> Expr:
    magnitude = absolute(x)
    far = compare("gt", magnitude, 1.0)
    p = _odd(select(far, div(1.0, magnitude), magnitude), _ATAN)
    return with_sign_of(select(far, sub(_HALF_PI, p), p), x)


def atan2(y: Expr, x: Expr) -> Expr:
    """The angle of the point (x, y), in (-pi, pi]; signs of zeros count."""
    height, width = absolute(y), absolute(x)
    steep = compare("gt", height, width)
    small, large = select(steep, width, height), select(steep, height, width)
    # Equal ones may be infinite or both 0; zeros give 0 here, and the signs do the rest.
    diagonal = select(compare("eq", height, 0.0), const(0.0, x.dtype), 1.0)
    ratio = select(compare("eq", height, width), diagonal, div(small, large))
    p = _odd(ratio, _ATAN)
    p = select(steep, sub(_HALF_PI, p), p)
    left = compare("lt", bits(x), 0)  # -0 included
    return with_sign_of(select(left, sub(_PI, p), p), y)


def asinh(x: Expr) -> Expr:
    """log1p(a + a**2 / (1 + sqrt(1 + a**2))), or log(2 a) where a**2 may overflow."""
    a = absolute(x)
    square = mul(a, a)
    huge = compare("gt", a, 2.0**40)
    inside = add(a, div(square, add(sqrt(add(square, 1.0)), 1.0)))
    return with_sign_of(_log1p_or_log_of_double(huge, inside, a), x)


def acosh(x: Expr) -> Expr:
    """log1p(t + sqrt(2 t + t**2)) with t = x - 1, or log(2 x) where t**2 may overflow."""
    t = sub(x, 1.0)
    inside = add(t, sqrt(fma(t, t, add(t, t))))
    result = _log1p_or_log_of_double(compare("gt", x, 2.0**40), inside, x)
    return select(compare("lt", x, 1.0), math.nan, result)


def _log1p_or_log_of_double(huge: Expr, inside: Expr, x: Expr) -> Expr:
    """log1p(inside), or log1p(x) + ln 2 where x is huge."""
    return add(log1p(select(huge, x, inside)), select(huge, const(math.log(2), x.dtype), 0.0))


def atanh(x: Expr) -> Expr:
    """log1p(2 a / (1 - a)) / 2."""
    a = absolute(x)
    return with_sign_of(mul(log1p(div(add(a, a), sub(1.0, a))), 0.5), x)
