"""Arithmetic on elements of matrices: an expression for a real one, two for a complex one.

Nothing here looks at the values: products overflow where their parts do, as LAPACK's.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from hlo_mlc.expr.build import apply, const
from hlo_mlc.expr.core import Const, Expr


class Complex(NamedTuple):
    """A complex number by its parts."""

    real: Expr
    imaginary: Expr


Element = Expr | Complex


def real_part(x: Element) -> Expr:
    return x.real if isinstance(x, Complex) else x


def like(x: Element, number: float) -> Element:
    """A real number as an element of the same type."""
    value = const(number, real_part(x).dtype)
    return Complex(value, const(0, value.dtype)) if isinstance(x, Complex) else value


def parts(x: Element) -> tuple[Expr, ...]:
    """The real numbers that it is made of."""
    return tuple(x) if isinstance(x, Complex) else (x,)


def conjugate(x: Element) -> Element:
    return Complex(x.real, -x.imaginary) if isinstance(x, Complex) else x


def size(x: Element) -> Expr:
    """The absolute value; of a complex number the sum of those of its parts, by which LAPACK
    chooses pivots."""
    if isinstance(x, Complex):
        return apply("abs", x.real) + apply("abs", x.imaginary)
    return apply("abs", x)


def is_zero(x: Element) -> Expr:
    zero = const(0, real_part(x).dtype)
    if isinstance(x, Complex):
        return apply("eq", x.real, zero) & apply("eq", x.imaginary, zero)
    return apply("eq", x, zero)


def chosen(condition: Expr, x: Element, y: Element) -> Element:
    """`x` where the condition holds, else `y`."""
    if isinstance(x, Complex):
        return Complex(*(apply("select", condition, a, b) for a, b in zip(x, y, strict=True)))
    return apply("select", condition, x, y)


def is_nothing(x: Element) -> bool:
    """Whether it is the constant 0."""
    return all(isinstance(part, Const) and part.value == 0 for part in parts(x))


def negated(x: Element) -> Element:
    return Complex(*(-part for part in x)) if isinstance(x, Complex) else -x


def minus(x: Element, y: Element) -> Element:
    if isinstance(x, Complex):
        return Complex(*(a - b for a, b in zip(x, y, strict=True)))
    return x - y


def times(x: Element, y: Element) -> Element:
    if not isinstance(x, Complex):
        return x * y
    (a, b), (c, d) = x, y
    return Complex(a * c - b * d, a * d + b * c)


def less_product(start: Element, x: Element, y: Element) -> Element:
    """start - x y, of complex numbers product by product, each of which may be rounded with its
    sum; of what is the constant 0 there is none."""
    if is_nothing(x) or is_nothing(y):
        return start
    if not isinstance(start, Complex):
        return start - x * y
    (a, b), (c, d) = x, y
    return Complex(start.real - a * c + b * d, start.imaginary - a * d - b * c)


def scaled(x: Element, divisor: Expr) -> Element:
    """`x` divided by a real number."""
    if isinstance(x, Complex):
        return Complex(x.real / divisor, x.imaginary / divisor)
    return x / divisor


def over(x: Element, y: Element) -> Element:
    """x / y, for complex numbers the product with 1 / y, which others share; by zero each part, as
    NumPy has it."""
    if not isinstance(x, Complex):
        return x / y
    infinite = const(math.inf, x.real.dtype)
    by_zero = Complex(*(part * infinite for part in x))
    return chosen(is_zero(y), by_zero, times(x, _inverse(y)))


def _inverse(x: Complex) -> Complex:
    """1 / x by the ratio of its parts, so that no square overflows.

    Source: R. L. Smith, Algorithm 116: Complex division, Commun. ACM 5 (1962).
    """
    one = const(1, x.real.dtype)
    is_wide = apply("ge", apply("abs", x.real), apply("abs", x.imaginary))
    large, small = chosen(is_wide, x, Complex(x.imaginary, x.real))
    ratio = small / large
    below = one / (large + small * ratio)
    part = ratio * below
    return Complex(apply("select", is_wide, below, part), -apply("select", is_wide, part, below))
