"""log and its family: x = 2**n (1 + f) with 1 + f in [sqrt 1/2, sqrt 2)."""

from __future__ import annotations

import math

from hlo_mlc.codegen.legalize.arithmetic import (
    absolute,
    bits,
    fma,
    from_bits,
    invalid,
    outside_normal,
    polynomial,
    unlikely,
)
from hlo_mlc.codegen.legalize.formats import format_of
from hlo_mlc.expr.build import compare, convert, select
from hlo_mlc.expr.core import Expr
from hlo_mlc.expr.dtypes import F32, F64

LN2 = 0.6931471805599453
_SQRT_HALF_BITS = {F32: 0x3F3504F3, F64: 0x3FE6A09E667F3BCD}

# (log(1 + f) - f) / f**2: the whole has error 3.0e-8.
_LOG_F32 = (
    -0.499999911, 0.333339453, -0.250017762, 0.199622408, -0.165703192, 0.14916341, -0.143076479,
    0.0873873085,
)  # fmt: skip
# (log(1 + f) - 2 s) / s**3 in s**2, s = f / (2 + f): the whole has error 1.2e-18.  One division
# is as fast as the ten more terms that a polynomial in f would take.
_LOG_F64 = (
    0.6666666666666734, 0.39999999999417013, 0.2857142874190515, 0.22222198619904784,
    0.18183562014961469, 0.15314107147541045, 0.14795405569812867,
)  # fmt: skip


def split(x: Expr) -> tuple[Expr, Expr]:
    """(n, n in the place of an exponent), as integers, such that 2**-n x is in
    [sqrt 1/2, sqrt 2), for normal x > 0."""
    form = format_of(x)
    offset = bits(x) - _SQRT_HALF_BITS[x.dtype]
    return offset >> form.fraction_bits, offset & -form.hidden_bit


def _log_of(f: Expr, n: Expr) -> Expr:
    """n ln 2 + log(1 + f)."""
    if f.dtype is F32:
        log = fma(f * f, polynomial(f, _LOG_F32), f)
    else:
        s = f / (f + 2.0)
        square = s * s
        half = f * f * 0.5
        # log(1 + f) = f - f**2 / 2 + s (f**2 / 2 + s**2 p(s**2)), the leading terms exact
        log = f - (half - s * fma(square, polynomial(square, _LOG_F64), half))
    return fma(convert(n, f.dtype), LN2, log)


def _log_at_ends(x: Expr) -> Expr:
    """The logarithm where x is no positive normal number; subnormals count as 0."""
    at_zero = compare("lt", absolute(x), format_of(x).smallest_normal)
    return select(at_zero, -math.inf, select(compare("gt", x, 0.0), x, invalid(x)))


def log(x: Expr) -> Expr:
    n, exponent = split(x)
    f = from_bits(bits(x) - exponent) - 1.0
    return unlikely(outside_normal(bits(x)), _log_at_ends(x), _log_of(f, n))


def log1p(x: Expr) -> Expr:
    """log(1 + x): n comes from the rounded 1 + x, then f = 2**-n x + (2**-n - 1) is exact but
    for one rounding."""
    form = format_of(x)
    total = x + 1.0
    n, exponent = split(total)
    # 2**(2-n) and x/4, because 2**-n is subnormal for the largest x.
    scale = from_bits(((form.bias + 2) << form.fraction_bits) - exponent)
    f = fma(x * 0.25, scale, fma(scale, 0.25, -1.0))
    inside = unlikely(outside_normal(bits(total)), _log_at_ends(total), _log_of(f, n))
    is_itself = compare("lt", absolute(x), 0.5 / form.hidden_bit)
    return select(is_itself, x, inside)
