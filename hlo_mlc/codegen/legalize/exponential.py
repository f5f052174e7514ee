"""exp and its family: one range reduction, x = n ln 2 + r, and short polynomials in r.

Coefficients, here and in the files beside: minimax fits of the relative error by Remez exchange
in multiple precision; each coefficient in turn, lowest power first, is rounded to the format and
the others are fitted again.  The errors stated are those of the rounded polynomials.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from hlo_mlc.codegen.legalize.arithmetic import (
    absolute,
    at_least,
    at_most,
    floor,
    fma,
    ldexp,
    pick,
    polynomial,
    power_of_two,
    rounding_bias,
    with_sign_of,
)
from hlo_mlc.codegen.legalize.division import quotient, reciprocal
from hlo_mlc.codegen.legalize.formats import format_of
from hlo_mlc.expr.build import compare, select
from hlo_mlc.expr.core import Expr
from hlo_mlc.expr.dtypes import F32, F64

LOG2_E = 1.4426950408889634


@dataclass(frozen=True, slots=True)
class _Constants:
    # Below log2(e) by an unit in its last place: the rounded product with x never reaches an
    # integer that the exact one does not, so x just below overflow stays below.
    log2_e_below: float
    # ln 2 in two parts; products of the first with exponents are exact, so the first step of the
    # reduction is exact without fma as well.
    ln2_high: float
    ln2_low: float
    exp_is_zero: float  # below this
    exp_is_infinite: float  # above this
    exp_vanishes: float  # below this even a subnormal result is 0
    expm1_is_minus_one: float  # below this
    logistic_is_zero: float  # or subnormal, below this
    logistic_is_one: float  # above this
    tanh_is_one: float  # above this
    quotient_exponent: int  # times 2 to this, the smallest numbers have normal remainders
    exp: tuple[float, ...]  # e**r on [0, ln 2] and a little beyond, exactly 1 at 0
    expm1: tuple[float, ...]  # (e**r - 1 - r) / r**2 on [-ln 2 / 2, ln 2 / 2]
    sinh: tuple[float, ...]  # (sinh(x) - x) / x**3 in x**2 on [0, 1]


_CONSTANTS = {
    F32: _Constants(
        log2_e_below=1.442694902420044,
        ln2_high=0.693145751953125,
        ln2_low=1.4286068203094172e-06,
        exp_is_zero=-87.5,
        exp_is_infinite=89.0,
        exp_vanishes=-104.0,
        expm1_is_minus_one=-17.5,
        logistic_is_zero=-88.4,
        logistic_is_one=18.0,
        tanh_is_one=9.5,
        quotient_exponent=32,
        # errors 2.1e-9, 1.4e-8, 2.4e-8
        exp=(
            1.0, 0.999999821, 0.500005543, 0.166611701, 0.0419110395, 0.00779686775, 0.00194676581,
        ),
        expm1=(0.49999997, 0.166665465, 0.041667439, 0.00836625695, 0.00138703163),
        sinh=(0.166667163, 0.00833027065, 0.000203733405),
    ),
    F64: _Constants(
        log2_e_below=1.4426950408889632,
        ln2_high=0.693147180559663,
        ln2_low=2.8235290563031577e-13,
        exp_is_zero=-709.0,
        exp_is_infinite=710.0,
        exp_vanishes=-746.0,
        expm1_is_minus_one=-38.0,
        logistic_is_zero=-709.4,
        logistic_is_one=38.0,
        tanh_is_one=19.5,
        quotient_exponent=64,
        # errors 3.2e-18, 2.1e-17, 2.5e-19
        exp=(
            1.0, 1.0000000000000009, 0.4999999999999224, 0.16666666666900556, 0.04166666663172944,
            0.008333333634938192, 0.0013888872597216271, 0.00019841843480595048,
            2.478823197060165e-05, 2.7760664416425847e-06, 2.5622653019669643e-07,
            3.5295843263221226e-08,
        ),
        expm1=(
            0.5000000000000007, 0.16666666666666696, 0.041666666666560645, 0.008333333333297931,
            0.0013888888936270927, 0.00019841269952137526, 2.4801500311376125e-05,
            2.755718404834765e-06, 2.7627771434833653e-07, 2.5125760172428822e-08,
        ),
        sinh=(
            0.16666666666666669, 0.008333333333332912, 0.0001984126984159341,
            2.7557319106756304e-06, 2.5052130998905673e-08, 1.6056659134674806e-10,
            7.776602161175906e-13,
        ),
    ),
}  # fmt: skip


# 2**(n / 16), and (e**r - 1) / r in f32 for r on [-ln 2 / 32, ln 2 / 32]: error 1.6e-9.
_ROOTS = tuple(2.0 ** (n / 16) for n in range(16))
_SHORT_EXPM1 = (1.0, 0.500016212, 0.166670278)


def _scaled(coefficients: Sequence[float], factor: float) -> list[float]:
    """The coefficients of p(factor * r)."""
    return [c * factor**i for i, c in enumerate(coefficients)]


def exp(x: Expr) -> Expr:
    """e**x in 15 operations (f32).

    The exponent is rounded down, so that e**r lies in [1, 2) and the exponent overflows exactly
    where the result does: multiplying by 2**128 = infinity and by 2**-127 = 0 ends the range.
    """
    c = _CONSTANTS[x.dtype]
    return _exp_in_range(at_most(at_least(x, c.exp_is_zero), c.exp_is_infinite))


def exp_by_ldexp(x: Expr) -> Expr:
    """e**x in 13 operations (f32), where 2**n * y is one instruction that ends the range."""
    c = _CONSTANTS[x.dtype]
    clamped = at_most(at_least(x, c.exp_vanishes), c.exp_is_infinite)
    shifted, r = _reduce(clamped)
    return ldexp(polynomial(r, (1.0, 1.0, *c.expm1)), shifted - rounding_bias(x))


def exp_by_pick(x: Expr) -> Expr:
    """e**x in f32 in 12 operations, where a table of 16 numbers is one instruction, too."""
    c = _CONSTANTS[x.dtype]
    clamped = at_most(at_least(x, c.exp_vanishes), c.exp_is_infinite)
    bias = format_of(x).rounding / len(_ROOTS)  # what is added rounds to multiples of 1 / 16
    shifted = fma(clamped, LOG2_E, bias)
    n = shifted - bias
    r = fma(n, -c.ln2_low, fma(n, -c.ln2_high, clamped))
    root = pick(shifted, _ROOTS)
    return ldexp(fma(r * polynomial(r, _SHORT_EXPM1), root, root), n)


def _exp_in_range(x: Expr, exponent: int = 0) -> Expr:
    """2**exponent * e**x where the result's exponent is at most one out of range."""
    c = _CONSTANTS[x.dtype]
    n = floor(x * c.log2_e_below)
    r = fma(n, -c.ln2_low, fma(n, -c.ln2_high, x))
    scale = power_of_two(n + (rounding_bias(x) + exponent))
    return polynomial(r, c.exp) * scale


def _reduce(
    x: Expr, factor: float = 1.0, exponent: int = 0, in_one_step: bool = False
) -> tuple[Expr, Expr]:
    """(n + exponent + rounding_bias, r) with factor * x = n ln 2 + factor * r, n the nearest.

    `in_one_step`: r is off by n times the rounding error of ln 2, an ULP of 1 at n = 32 (f32).
    """
    c = _CONSTANTS[x.dtype]
    bias = rounding_bias(x) + exponent
    shifted = fma(x, LOG2_E * factor, bias)
    n = shifted - bias
    if in_one_step:
        return shifted, fma(n, -math.log(2) / factor, x)
    return shifted, fma(n, -c.ln2_low / factor, fma(n, -c.ln2_high / factor, x))


def expm1_parts(
    x: Expr, factor: float, exponent: int = 0, low: Expr | None = None
) -> tuple[Expr, Expr]:
    """(s, p) with s * (1 + factor * p) = 2**exponent * e**(factor * x), p accurate near 0.

    `low` is added to x where x has no digits left for it.
    """
    c = _CONSTANTS[x.dtype]
    shifted, r = _reduce(x, factor, exponent)
    if low is not None:
        r = r + low
    quotient = polynomial(r, [a * factor for a in _scaled(c.expm1, factor)])
    return power_of_two(shifted), fma(r * r, quotient, r)


def expm1(x: Expr) -> Expr:
    """e**x - 1."""
    c = _CONSTANTS[x.dtype]
    clamped = at_most(at_least(x, c.expm1_is_minus_one), c.exp_is_infinite)
    # Half of the result, so that 2**n stays finite up to the largest result.
    scale, p = expm1_parts(clamped, 1.0, exponent=-1)
    half = fma(scale, p, scale - 0.5)
    # Half of the smallest numbers is subnormal, which counts as 0; so does -0 as +0.
    return select(compare("eq", half, 0.0), x, half + half)


def tanh(x: Expr, divides: bool) -> Expr:
    """e / (e + 1) with e = (e**2x - 1) / 2, which tells less and less the further x is from 0; in
    16 operations (f32) where the target divides."""
    c = _CONSTANTS[x.dtype]
    clamped = at_most(at_least(x, -c.tanh_is_one), c.tanh_is_one)
    raised = 0 if divides else c.quotient_exponent
    shifted, r = _reduce(clamped, 2.0, raised, in_one_step=True)
    scale = power_of_two(shifted)
    # (1 - e**2r) / 2, then e: as differences, in which -0 stays what it is.
    p = fma(r * r, polynomial(r, [-2 * a for a in _scaled(c.expm1, 2.0)]), -r)
    e = fma(-scale, p, -fma(scale, -0.5, 2.0 ** (raised - 1)))
    if divides:
        return quotient(e, e + 1.0, divides=True)
    return quotient(e, fma(e, 2.0**-raised, 1.0), divides=False) * 2.0**-raised


def logistic(x: Expr, divides: bool) -> Expr:
    """1 / (1 + e**-x), by way of a quarter of the divisor, whose reciprocal is a normal number."""
    c = _CONSTANTS[x.dtype]
    clamped = at_most(at_least(x, c.logistic_is_zero), c.logistic_is_one)
    shifted, r = _reduce(clamped, -1.0, exponent=-2)
    e = polynomial(r, _scaled((1.0, 1.0, *c.expm1), -1.0))
    return reciprocal(fma(e, power_of_two(shifted), 0.25), 0.25, divides=divides)


def sinh(x: Expr) -> Expr:
    magnitude = absolute(x)
    square = x * x
    small = fma(magnitude * square, polynomial(square, _CONSTANTS[x.dtype].sinh), magnitude)
    half = _half_exp(magnitude)
    large = half - 0.25 / half
    return with_sign_of(select(compare("lt", magnitude, 1.0), small, large), x)


def cosh(x: Expr) -> Expr:
    half = _half_exp(absolute(x))
    return half + 0.25 / half


def _half_exp(magnitude: Expr) -> Expr:
    """e**x / 2 for x >= 0: finite as long as sinh and cosh are."""
    limit = _CONSTANTS[magnitude.dtype].exp_is_infinite + 1
    return _exp_in_range(at_most(magnitude, limit), exponent=-1)
