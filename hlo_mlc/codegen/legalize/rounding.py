"""Sign, rounding and remainder of floats, which are exact, and reciprocal and cube roots."""

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
    sqrt,
    trunc,
    two_product,
    unlikely,
    with_sign_of,
)
from hlo_mlc.codegen.legalize.formats import format_of
from hlo_mlc.expr.build import apply, compare, const, convert, select
from hlo_mlc.expr.core import Expr
from hlo_mlc.expr.dtypes import F32, F64

# The bits of about a**(-1/3) are this less a third of those of a; found by search for the least
# error over one period of a.
_CUBE_ROOT_BITS = {F32: 0x54A1F460, F64: 0x553EE936AAAAAC00}
_CUBE_ROOT_STEPS = {F32: 1, F64: 2}
# So many that 2**(exponent range >> squarings) is small against the square root of the largest
# significand as an integer.
_SQUARINGS = {F32: 4, F64: 6}


def sign(x: Expr) -> Expr:
    """1 or -1, or x itself where it is ±0 or NaN."""
    return select(compare("gt", x, 0.0), 1.0, select(compare("lt", x, 0.0), -1.0, x))


def round_away(x: Expr) -> Expr:
    """To the nearest integer, halves away from zero.

    The largest number below one half, not one half itself, is added before truncation: the sum
    rounds up to an integer exactly where the fraction is at least one half.
    """
    below_half = const(0.5 - 0.25 / format_of(x).hidden_bit, x.dtype)
    return trunc(x + with_sign_of(below_half, x))


def rsqrt(x: Expr) -> Expr:
    return 1.0 / sqrt(x)


def cbrt(x: Expr, has_fma: bool) -> Expr:
    """a y**2 with y near a**(-1/3), corrected by the residual h = 1 - a y**3.

    Dividing the bits by -3 divides the exponent, so it gives y to 3.4 % (|h| <= 0.103).  A step of
    y (1 - h)**(-1/3) takes h to less than h**4, and the last is (1 - h)**(-2/3) on the result.
    """
    a = absolute(x)
    guess = fma(convert(bits(a), x.dtype), -1 / 3, float(_CUBE_ROOT_BITS[x.dtype]))
    y = from_bits(apply("convert_in_range", guess, dtype=format_of(x).signed))
    for _ in range(_CUBE_ROOT_STEPS[x.dtype]):
        h = fma(-(a * y), y * y, 1.0)
        y = fma(y * h, polynomial(h, (1 / 3, 2 / 9, 14 / 81)), y)
    root = _cube_root_by_rests(a, y) if has_fma else _cube_root(a, y)
    # 0, infinity and NaN are their own roots; so are subnormals here, where they count as 0.
    return with_sign_of(select(outside_normal(bits(a)), a, root), x)


def _cube_root(a: Expr, y: Expr) -> Expr:
    scaled = a * y
    h = fma(-scaled, y * y, 1.0)
    root = scaled * y
    return fma(root * h, fma(h, 5 / 9, 2 / 3), root)


def _cube_root_by_rests(a: Expr, y: Expr) -> Expr:
    """The same with the errors of the products, so that cubes give their roots exactly."""
    scaled, scaled_rest = two_product(a, y, has_fma=True)
    square, square_rest = two_product(y, y, has_fma=True)
    h = fma(-scaled_rest, square, fma(-scaled, square, 1.0))
    h = fma(-scaled, square_rest, h)
    root, root_rest = two_product(scaled, y, has_fma=True)
    rest = fma(scaled_rest, y, root_rest)
    return root + fma(root * h, fma(h, 5 / 9, 2 / 3), rest)


def remainder(x: Expr, y: Expr, has_fma: bool) -> Expr:
    """x - trunc(x / y) * y, exactly, with the sign of x.

    The rounded quotient is right or one too large, and then subtracting its product gives a
    remainder that is representable and at most one divisor too small.
    """
    form = format_of(x)
    dividend, divisor = absolute(x), absolute(y)
    quotient = dividend / divisor
    whole = trunc(quotient)
    if has_fma:
        rest = fma(-whole, divisor, dividend)
    else:  # the error of a tiny product would be subnormal
        up, down = 2.0 ** (form.bias // 2), 2.0 ** -(form.bias // 2)
        scale = select(compare("lt", divisor, down), const(up, x.dtype), 1.0)
        rest = _less_multiple(dividend * scale, whole, divisor * scale, has_fma)
        rest = rest * select(compare("lt", divisor, down), const(down, x.dtype), 1.0)
    rest = select(compare("lt", rest, 0.0), rest + divisor, rest)
    small = compare("lt", quotient, 0.5 * form.hidden_bit) & compare("lt", divisor, math.inf)
    rare = _rare_remainder(dividend, divisor, has_fma)
    return with_sign_of(unlikely(~small, rare, rest), x)


def _less_multiple(x: Expr, count: Expr, y: Expr, has_fma: bool) -> Expr:
    """x - count * y where that is representable and count * y is 0 or near x."""
    if has_fma:
        return fma(-count, y, x)
    product, error = two_product(count, y, has_fma)
    return x - product - error


def _rare_remainder(dividend: Expr, divisor: Expr, has_fma: bool) -> Expr:
    """The remainder of a huge quotient, of an infinite divisor, or NaN."""
    result = select(
        compare("eq", divisor, math.inf), dividend, _modular_remainder(dividend, divisor, has_fma)
    )
    is_normal = compare("ge", divisor, format_of(divisor).smallest_normal)
    defined = compare("lt", dividend, math.inf) & is_normal
    return select(defined, result, invalid(dividend))


def _modular_remainder(dividend: Expr, divisor: Expr, has_fma: bool) -> Expr:
    """The remainder for normal numbers with dividend >= divisor.

    With x = a 2**i and y = b 2**j, a and b integers of one length: (a 2**(i-j) mod b) 2**j, the
    power of two by repeated squaring modulo b, all in floats.  Every sum below is an integer that
    the format holds, because factors are kept in [-b/2, b/2].
    """
    form = format_of(divisor)
    squarings = _SQUARINGS[divisor.dtype]
    a, i = _integer_and_exponent(dividend)
    b, j = _integer_and_exponent(divisor)

    def modulo(x: Expr) -> Expr:
        return _less_multiple(x, apply("round_even", x / b), b, has_fma)

    def product(x: Expr, y: Expr, factor: Expr | float) -> Expr:
        high, low = two_product(x, y, has_fma)
        return modulo((modulo(high) + low) * factor)

    shift = i - j  # 0 to 2 * bias
    power = from_bits(((shift >> squarings) + form.bias) << form.fraction_bits)
    for bit in reversed(range(squarings)):
        is_set = compare("ne", shift & (1 << bit), 0)
        power = product(power, power, select(is_set, const(2.0, divisor.dtype), 1.0))
    rest = product(power, modulo(a), 1.0)
    rest = select(compare("lt", rest, 0.0), rest + b, rest)
    scale = from_bits(j << form.fraction_bits)  # 2**(j - bias)
    return rest * (1 / form.hidden_bit) * scale


def _integer_and_exponent(x: Expr) -> tuple[Expr, Expr]:
    """(a, i) with x = a 2**(i - bias - fraction_bits), a an integer in a float, for normal
    x > 0."""
    form = format_of(x)
    exponent_of_unit = (form.bias + form.fraction_bits) << form.fraction_bits
    fraction = bits(x) & (form.hidden_bit - 1)
    return from_bits(fraction | exponent_of_unit), bits(x) >> form.fraction_bits
