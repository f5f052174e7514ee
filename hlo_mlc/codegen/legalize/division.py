"""Division where more is known than that there are two numbers.

On Intel's cores a division of 512 bits takes ten to sixteen cycles and cannot overlap with another
one: there the operations of a refined reciprocal take less.  AMD's begin one every six cycles, of
which multiply-adds miss two: less than the seven of a refined reciprocal.  So it is with 256 bits
on nearly all cores (target/cpu.py).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from hlo_mlc.codegen.legalize.arithmetic import absolute, bits, fma, from_bits
from hlo_mlc.codegen.legalize.formats import format_of
from hlo_mlc.expr.build import apply, compare, const, select
from hlo_mlc.expr.core import Expr
from hlo_mlc.expr.dtypes import F32, F64


@dataclass(frozen=True, slots=True)
class _Estimate:
    """A first reciprocal: the bits of a number taken from `bits`, off by at most 5.06 %.

    With e = 1 - y r, 1 + `gain` (e + e**2) is the polynomial nearest to 1 / (1 - e) for such e.
    """

    bits: int
    gain: float
    refinements: int  # Newton's steps after that; each squares the relative error


# `bits` makes the largest errors of either sign equal; what is left after `gain` is 3.3e-5.
_ESTIMATE = {
    F32: _Estimate(0x7EF311C2, 1.0019171, 1),
    F64: _Estimate(0x7FDE62385024A12C, 1.0019171348, 2),
}


def reciprocal(y: Expr, scale: float, *, divides: bool) -> Expr:
    """scale / y for y from 1 to 2**126 (f32) or 2**1022 and a power of two: the division, or 8
    operations in f32, less than 1 ULP off."""
    if divides:
        return const(scale, y.dtype) / y
    return _refined(y, _ESTIMATE[y.dtype].refinements) * scale


def quotient(x: Expr, y: Expr, *, divides: bool) -> Expr:
    """x / y for such y where neither it nor |x y| overflows: the division, or 8 operations in f32,
    less than 1 ULP off where no remainder underflows (|x| above 2^-100, in f64 2^-968)."""
    if divides:
        return x / y
    inverse = _refined(y, _ESTIMATE[y.dtype].refinements - 1)
    first = x * inverse
    excess = fma(first, y, -x)  # not its negative: that would turn a quotient of -0 into +0
    return fma(-excess, inverse, first)


def _refined(y: Expr, refinements: int) -> Expr:
    estimate = _ESTIMATE[y.dtype]
    r = from_bits(estimate.bits - bits(y))
    e = fma(-y, r, 1.0)
    r = fma(fma(e, e, e), r * estimate.gain, r)
    for _ in range(refinements):
        r = fma(fma(-y, r, 1.0), r, r)
    return r


def div_common(x: Expr, y: Expr, *, has_fma: bool) -> Expr:
    """x / y where many quotients share y: a first quotient, corrected by its exact remainder.

    What depends on y only is computed where y is.

    At most 1 ULP from the rounded quotient, which it equals in all but one case of a million and
    where the remainder underflows (|x| below 2^-100, in f64 2^-968).

    Source: P. Markstein, IA-64 and Elementary Functions, chapter 8.
    """
    if not has_fma:
        return x / y
    size = absolute(y)
    # The reciprocal of a larger divisor would underflow.
    scale = select(
        compare("gt", size, math.ldexp(1.0, format_of(x).bias - 3)), const(0.25, x.dtype), 1.0
    )
    # The quotient takes its sign from the factor, so that the correction cannot turn -0 into +0.
    factor = select(compare("lt", bits(y), 0), -scale, scale)
    divisor = size * scale
    reciprocal = const(1.0, x.dtype) / divisor
    dividend = x * factor
    quotient = dividend * reciprocal
    excess = fma(quotient, divisor, -dividend)
    # Where anything is infinite, zero divides, or nothing is a number, the quotient is right.
    corrected = fma(-excess, reciprocal, quotient)
    return select(apply("is_finite", excess), corrected, quotient)
