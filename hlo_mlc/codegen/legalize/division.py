"""Division by a value that many quotients share: one reciprocal, then four operations a quotient.

A vector division takes ten to sixteen cycles and cannot overlap with another; this takes three.
What depends on the divisor only is computed where the divisor is.
"""

from __future__ import annotations

import math

from hlo_mlc.codegen.legalize.arithmetic import (
    absolute,
    bits,
    compare,
    div,
    fma,
    mul,
    neg,
    select,
)
from hlo_mlc.codegen.legalize.formats import format_of
from hlo_mlc.expr.build import apply, const
from hlo_mlc.expr.core import Expr


def div_common(x: Expr, y: Expr, *, has_fma: bool) -> Expr:
    """x / y: a first quotient, and one correction by its exact remainder.

    At most 1 ULP from the rounded quotient, which it equals in all but one case of a million and
    where the remainder underflows (|x| below 2^-100, in f64 2^-968).

    Source: P. Markstein, IA-64 and Elementary Functions, chapter 8.
    """
    if not has_fma:
        return div(x, y)
    size = absolute(y)
    # The reciprocal of a larger divisor would underflow.
    scale = select(compare("gt", size, math.ldexp(1.0, format_of(x).bias - 3)),
                   const(0.25, x.dtype), 1.0)
    # The quotient takes its sign from the factor, so that the correction cannot turn -0 into +0.
    factor = select(compare("lt", bits(y), 0), neg(scale), scale)
    divisor = mul(size, scale)
    reciprocal = div(const(1.0, x.dtype), divisor)
    dividend = mul(x, factor)
    quotient = mul(dividend, reciprocal)
    excess = fma(quotient, divisor, neg(dividend))
    # Where anything is infinite, zero divides, or nothing is a number, the quotient is right.
    corrected = fma(neg(excess), reciprocal, quotient)
    return select(apply("is_finite", excess), corrected, quotient)
