"""A small vocabulary for writing kernels of scalar arithmetic as expressions.

Python numbers among the operands become literals of the first expression's type.  Each function
is one operation unless its docstring says otherwise, so op counts can be read off the source.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from hlo_mlc.codegen.legalize.formats import format_of
from hlo_mlc.expr.build import apply, compare, const, literals, select
from hlo_mlc.expr.core import Expr

Operand = Expr | int | float


def fma(x: Operand, y: Operand, z: Operand) -> Expr:
    """x * y + z, rounded once where the target has the instruction."""
    return apply("fma", *literals(x, y, z))


def ldexp(x: Expr, exponent: Expr) -> Expr:
    """x * 2**floor(exponent), whose exponent is a float; for AVX-512 only."""
    return apply("ldexp", x, exponent)


def pick(x: Expr, table: Sequence[float]) -> Expr:
    """The one of 16 numbers that the last four bits of an f32 say; for AVX-512 only."""
    return apply("pick", x, *literals(x, *table)[1:])


absolute, floor, trunc, sqrt = (
    functools.partial(apply, op) for op in ("abs", "floor", "trunc", "sqrt")
)


def unlikely(condition: Expr, slow: Operand, fast: Expr) -> Expr:
    """`slow` where a condition holds that almost never does."""
    return apply("select_unlikely", condition, *literals(slow, fast))


def bits(x: Expr) -> Expr:
    """The bits of a float as a signed integer of the same width (no instruction)."""
    return apply("bitcast", x, dtype=format_of(x).signed)


def unsigned(x: Expr) -> Expr:
    """The bits of a float or integer as an unsigned integer (no instruction)."""
    return apply("bitcast", x, dtype=format_of(x).unsigned)


def from_bits(x: Expr) -> Expr:
    """The float that an integer's bits say (no instruction)."""
    return apply("bitcast", x, dtype=format_of(x).float)


def invalid(x: Expr) -> Expr:
    """What x86 gives for an invalid operation: a NaN whose sign is set, which only its bits and
    the order of `top_k` show.  Source: Intel SDM, volume 1, 4.8.3.7, the indefinite."""
    form = format_of(x)
    quiet = form.hidden_bit >> 1
    return from_bits(const(form.sign_bit | form.infinity_bits | quiet, form.signed))


def at_most(x: Expr, limit: float) -> Expr:
    """The smaller of x and `limit`; NaN stays.  One `min` on x86, unlike the op `min`."""
    return select(compare("lt", const(limit, x.dtype), x), limit, x)


def at_least(x: Expr, limit: float) -> Expr:
    """The larger of x and `limit`; NaN stays.  One `max` on x86, unlike the op `max`."""
    return select(compare("gt", const(limit, x.dtype), x), limit, x)


def sign_of(x: Expr) -> Expr:
    """The bits of a float with all but the sign cleared."""
    return bits(x) & format_of(x).sign_bit


def with_sign_of(magnitude: Expr, x: Expr) -> Expr:
    """`magnitude` negated where x is negative or -0 (three logic ops, one or two on AVX-512)."""
    return from_bits(bits(magnitude) ^ sign_of(x))


def rounding_bias(x: Expr) -> float:
    """What to add to an integral float so that `power_of_two` takes it for an exponent."""
    form = format_of(x)
    return form.rounding + form.bias


def power_of_two(biased: Expr) -> Expr:
    """2**n from n + rounding_bias: 0 for n = -127, infinity for n = 128 (in f32)."""
    return from_bits(bits(biased) << format_of(biased).fraction_bits)


def outside_normal(raw: Expr) -> Expr:
    """True where a float with these bits is not positive, normal and finite: two operations."""
    form = format_of(raw)
    return compare("ge", unsigned(raw - form.hidden_bit), form.infinity_bits - form.hidden_bit)


def polynomial(x: Expr, coefficients: Sequence[Operand]) -> Expr:
    """Sum of coefficients[i] * x**i by Horner's rule: the fewest operations."""
    result: Operand = coefficients[-1]
    for c in reversed(coefficients[:-1]):
        result = fma(result, x, c)
    return result


def balanced(x: Expr, coefficients: Sequence[Operand]) -> Expr:
    """The same by Estrin's scheme: few more operations, of which few wait for each other."""
    if len(coefficients) <= 3:
        return polynomial(x, coefficients)
    pairs: list[Operand] = [
        fma(high, x, low) for low, high in zip(coefficients[::2], coefficients[1::2], strict=False)
    ]
    return balanced(x * x, (*pairs, *coefficients[2 * len(pairs) :]))


def two_sum(large: Expr, small: Expr) -> tuple[Expr, Expr]:
    """The sum and its rounding error, for |large| >= |small| or large = 0 (three operations)."""
    total = large + small
    return total, small - (total - large)


def two_product(x: Expr, y: Operand, has_fma: bool) -> tuple[Expr, Expr]:
    """The product and its rounding error: two operations, or 16 without fma (Dekker)."""
    x, y = literals(x, y)
    product = x * y
    if has_fma:
        return product, fma(x, y, -product)
    (x_high, x_low), (y_high, y_low) = _halves(x), _halves(y)
    error = x_high * y_high - product
    error = error + x_high * y_low + x_low * y_high
    return product, error + x_low * y_low


def _halves(x: Expr) -> tuple[Expr, Expr]:
    """x as a sum of two floats of half the digits each, so that products of halves are exact."""
    high = from_bits(bits(x) & (-1 << (format_of(x).fraction_bits // 2 + 1)))
    return high, x - high
