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
from hlo_mlc.expr.build import compare, const, select
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
    """x / y where many quotients share y, in three operations for each: x times a reciprocal of
    twice as many digits as x has, in two parts.

    What depends on y only is computed where y is.

    The rounded quotient in all but one case of a million, and the one beside it there; up to 2.5
    ULP off where x times the second part underflows (quotients below 2^-102, in f64 2^-969).
    """
    if not has_fma:
        return x / y
    form = format_of(x)
    large = math.ldexp(1.0, (form.bias + 1) // 2)
    size = absolute(y)
    # Of larger divisors the second part would underflow, of the smallest, where subnormal ones are
    # numbers, the first overflow.  What x then loses, or exceeds, its quotient does as well.
    scale = select(
        compare("gt", size, large),
        const(1 / large, x.dtype),
        select(compare("lt", size, 1 / large), const(large, x.dtype), 1.0),
    )
    divisor = y * scale
    nearest = const(1.0, x.dtype) / divisor
    # Both parts have the sign of y, and neither is zero: infinite x have infinite quotients.
    too_large = compare("lt", fma(-nearest, divisor, 1.0), 0.0)
    high = select(too_large, from_bits(bits(nearest) - 1), nearest)
    rest = fma(-high, divisor, 1.0)
    least = float(form.hidden_bit) ** -2  # of what is left where anything is
    low = high * select(compare("gt", rest, least), rest, least)
    dividend = x * scale
    return fma(dividend, high, dividend * low)
