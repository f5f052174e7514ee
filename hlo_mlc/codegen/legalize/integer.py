"""Integer ops: sign, and power by repeated squaring."""

from __future__ import annotations

from hlo_mlc.expr.build import compare, const, select
from hlo_mlc.expr.core import Const, Expr


def sign(x: Expr) -> Expr:
    """-1, 0 or 1."""
    positive = select(compare("gt", x, 0), const(1, x.dtype), 0)
    return select(compare("lt", x, 0), -1, positive) if x.dtype.is_signed else positive


def pow(x: Expr, y: Expr) -> Expr:
    """x**y modulo 2**bits; for negative y the integer part: ±1 for x = ±1, 0 for the others."""
    if isinstance(y, Const):
        if y.value >= 0:
            return _power(x, y.value)
        return _inverse_power(x, y)
    result, square = const(1, x.dtype), x
    exponent_bits = x.dtype.bits - x.dtype.is_signed
    for i in range(exponent_bits):
        bit = compare("ne", y & (1 << i), 0)
        result = select(bit, result * square, result)
        square = square * square
    if not x.dtype.is_signed:
        return result
    return select(compare("lt", y, 0), _inverse_power(x, y), result)


def _power(x: Expr, exponent: int) -> Expr:
    result: Expr = const(1, x.dtype)
    square = x
    while exponent:
        if exponent & 1:
            result = square * result
        square, exponent = square * square, exponent >> 1
    return result


def _inverse_power(x: Expr, y: Expr) -> Expr:
    """1, -1 or 0: x**y for y < 0 (and 0**y = 0)."""
    one = const(1, x.dtype)
    of_minus_one = select(compare("eq", y & 1, 0), one, -1)
    return select(compare("eq", x, 1), one, select(compare("eq", x, -1), of_minus_one, 0))
