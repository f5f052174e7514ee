"""log and its family: x = 2**n (1 + f) with 1 + f in [sqrt 1/2, sqrt 2), and a polynomial in f.

Coefficients: minimax fits of the relative error as in exponential.py.
"""

from __future__ import annotations

import math

from hlo_mlc.codegen.legalize.arithmetic import (
    SMALLEST_NORMAL, absolute, add, bits, both, compare, convert, fma, from_bits, mul, polynomial,
    select, shift_right, sub, unlikely)
from hlo_mlc.expr.build import apply
from hlo_mlc.expr.core import Expr
from hlo_mlc.expr.dtypes import F32, U32

LN2 = 0.6931471805599453
SQRT_HALF_BITS = 0x3F3504F3
EXPONENT_MASK = -0x800000

# (log(1 + f) - f) / f**2: the whole has error 3.0e-8.
_LOG = (-0.499999911, 0.333339453, -0.250017762, 0.199622408, -0.165703192, 0.14916341,
        -0.143076479, 0.0873873085)


def outside_normal(raw: Expr) -> Expr:
    """True where an f32 with these bits is not in [2**-126, infinity): two operations."""
    return compare("ge", apply("bitcast", sub(raw, 0x00800000), dtype=U32), 0x7F000000)


def split(x: Expr) -> tuple[Expr, Expr]:
    """(n, n * 2**23), both i32, such that 2**-n x is in [sqrt 1/2, sqrt 2), for normal x > 0."""
    offset = sub(bits(x), SQRT_HALF_BITS)
    return shift_right(offset, 23), both(offset, EXPONENT_MASK)


def _log_of(f: Expr, n: Expr) -> Expr:
    """n ln 2 + log(1 + f)."""
    return fma(convert(n, F32), LN2, fma(mul(f, f), polynomial(f, _LOG), f))


def _log_at_ends(x: Expr) -> Expr:
    """The logarithm where x is no positive normal number; subnormals count as 0."""
    at_zero = compare("lt", absolute(x), SMALLEST_NORMAL)
    return select(at_zero, -math.inf, select(compare("gt", x, 0.0), x, math.nan))


def log(x: Expr) -> Expr:
    n, shifted_n = split(x)
    f = sub(from_bits(sub(bits(x), shifted_n)), 1.0)
    return unlikely(outside_normal(bits(x)), _log_at_ends(x), _log_of(f, n))


def log1p(x: Expr) -> Expr:
    """log(1 + x): n comes from the rounded 1 + x, then f = 2**-n x + (2**-n - 1) is exact but
    for one rounding."""
    total = add(x, 1.0)
    n, shifted_n = split(total)
    # 2**(2-n) and x/4, because 2**-128 is no normal number.
    scale = from_bits(sub(0x40800000, shifted_n))
    f = fma(mul(x, 0.25), scale, fma(scale, 0.25, -1.0))
    inside = unlikely(outside_normal(bits(total)), _log_at_ends(total), _log_of(f, n))
    return select(compare("lt", absolute(x), 2.0**-24), x, inside)
