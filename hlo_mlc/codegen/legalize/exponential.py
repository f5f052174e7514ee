"""exp and its family: one range reduction, x = n ln 2 + r, and short polynomials in r.

Coefficients: minimax fits of the relative error by linear programming on Chebyshev nodes, each
coefficient rounded to f32 in turn and the following ones fitted again; the errors stated are
those of the rounded polynomials.
"""

from __future__ import annotations

from collections.abc import Sequence

from hlo_mlc.codegen.legalize.arithmetic import (
    ROUNDING, absolute, add, at_least, at_most, bits, compare, div, either, floor, fma, from_bits,
    mul, polynomial, power_of_two, select, sign_bit, sub, with_sign_of)
from hlo_mlc.expr.core import Expr

LOG2_E = 1.4426950408889634
# Smaller by 1e-7 of itself: its rounded product with x never reaches an integer that the exact
# one does not, so x just below overflow stays below.
_LOG2_E_BELOW = 1.442694902420044
# ln 2 in two parts; the product of the first (16 bits) with an integer of 8 bits is exact, so
# the first step of the reduction is exact without fma as well.
LN2_HIGH = 0.693145751953125
LN2_LOW = 1.4286068203094172e-06

# e**r on [-2e-5, ln 2 + 2e-5]: error 2.1e-9, exactly 1 at 0.
_EXP = (1.0, 0.999999821, 0.500005543, 0.166611701, 0.0419110395, 0.00779686775, 0.00194676581)
# (e**r - 1 - r) / r**2 on [-ln 2 / 2, ln 2 / 2]: the whole has error 1.4e-8.
_EXPM1 = (0.49999997, 0.166665465, 0.041667439, 0.00836625695, 0.00138703163)
# (sinh(x) - x) / x**3 in x**2 on [0, 1]: the whole has error 2.4e-8.
_SINH = (0.166667163, 0.00833027065, 0.000203733405)


def _scaled(coefficients: Sequence[float], factor: float) -> list[float]:
    """The coefficients of p(factor * r)."""
    return [c * factor**i for i, c in enumerate(coefficients)]


def exp(x: Expr, factor: float = 1.0) -> Expr:
    """e**(factor * x) for factor = ±2**k, in 15 operations whatever the factor.

    The exponent is rounded down, so that e**r lies in [1, 2) and the exponent overflows exactly
    where the result does: multiplying by 2**128 = infinity and by 2**-127 = 0 ends the range.
    """
    ends = sorted((-87.5 / factor, 89.0 / factor))  # beyond them the result is 0 or infinity
    return _exp_in_range(at_most(at_least(x, ends[0]), ends[1]), factor)


def _exp_in_range(x: Expr, factor: float = 1.0, exponent: int = 0) -> Expr:
    """2**exponent * e**(factor * x) where the result's exponent is in [-127, 128]."""
    n = floor(mul(x, _LOG2_E_BELOW * factor))
    r = fma(n, -LN2_LOW / factor, fma(n, -LN2_HIGH / factor, x))
    return mul(polynomial(r, _scaled(_EXP, factor)), power_of_two(add(n, ROUNDING + 127 + exponent)))


def expm1_parts(x: Expr, factor: float, exponent: int = 0) -> tuple[Expr, Expr]:
    """(s, p) with s * (1 + factor * p) = 2**exponent * e**(factor * x), p accurate near 0."""
    shifted = fma(x, LOG2_E * factor, ROUNDING + 127 + exponent)
    n = sub(shifted, ROUNDING + 127 + exponent)
    r = fma(n, -LN2_LOW / factor, fma(n, -LN2_HIGH / factor, x))
    quotient = polynomial(r, [c * factor for c in _scaled(_EXPM1, factor)])
    return power_of_two(shifted), fma(mul(r, r), quotient, r)


def _keep_sign(result: Expr, x: Expr) -> Expr:
    """`result`, whose sign is that of x but at x = -0, with the sign of x there too."""
    return from_bits(either(bits(result), sign_bit(x)))


def expm1(x: Expr) -> Expr:
    """e**x - 1."""
    clamped = at_most(at_least(x, -17.5), 89.0)  # -1 and infinity beyond
    # Half of the result, so that 2**n stays finite up to the largest result.
    scale, p = expm1_parts(clamped, 1.0, exponent=-1)
    half = fma(scale, p, sub(scale, 0.5))
    return _keep_sign(add(half, half), x)


def tanh(x: Expr) -> Expr:
    """e / (e + 1) with e = (e**2x - 1) / 2."""
    clamped = at_most(at_least(x, -9.5), 9.5)  # ±1 beyond
    scale, p = expm1_parts(clamped, 2.0)
    e = fma(scale, p, fma(scale, 0.5, -0.5))
    return _keep_sign(div(e, add(e, 1.0)), x)


def logistic(x: Expr) -> Expr:
    """1 / (1 + e**-x)."""
    return div(1.0, add(exp(x, -1.0), 1.0))


def sinh(x: Expr) -> Expr:
    magnitude = absolute(x)
    square = mul(x, x)
    small = fma(mul(magnitude, square), polynomial(square, _SINH), magnitude)
    half = _half_exp(magnitude)
    large = sub(half, div(0.25, half))
    return with_sign_of(select(compare("lt", magnitude, 1.0), small, large), x)


def cosh(x: Expr) -> Expr:
    half = _half_exp(absolute(x))
    return add(half, div(0.25, half))


def _half_exp(magnitude: Expr) -> Expr:
    """e**x / 2 for x >= 0: finite as long as sinh and cosh are."""
    return _exp_in_range(at_most(magnitude, 90.0), exponent=-1)
