"""Hurwitz's zeta function and the polygamma functions, of f32 computed in f64.

Source: Euler and Maclaurin's formula, NIST Digital Library of Mathematical Functions, 25.11.5.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from hlo_mlc.codegen.legalize.arithmetic import at_most, floor, fma, two_sum, unlikely
from hlo_mlc.codegen.legalize.exponential import exp
from hlo_mlc.codegen.legalize.gamma import digamma, lgamma
from hlo_mlc.codegen.legalize.power import power_of_positive
from hlo_mlc.expr.build import apply, compare, const, convert, select
from hlo_mlc.expr.core import Const, Expr
from hlo_mlc.expr.dtypes import F32, F64

# B(2 j) / (2 j)! from j = 1 on, B being Bernoulli's numbers.
_CORRECTIONS = (
    1 / 12, -1 / 720, 1 / 30240, -1 / 1209600, 1 / 47900160, -691 / 1307674368000, 1 / 74724249600,
    -3617 / 10670622842880000, 43867 / 5109094217170944000, -174611 / 802857662698291200000,
)  # fmt: skip
# Where s is larger, all but the first terms are 0 beside them.
_LARGE = 1100.0
# Like infinity, with products that are finite.
_LARGEST = 2.0**1000
# a**-s by products up to here: off by 2.5 units in the last place.
_BY_PRODUCTS = 6


class _Effort(NamedTuple):
    terms: int  # that are added one by one
    corrections: int  # of the integral over the others


# errors 3.7e-9, 2.9e-17
_EFFORT = {F32: _Effort(3, 6), F64: _Effort(7, 10)}


def zeta(s: Expr, q: Expr, has_fma: bool) -> Expr:
    """The sum of (q + k)**-s over k >= 0: NaN for s < 1, and for q < 0 where s is no integer."""
    return convert(_zeta(convert(s, F64), convert(q, F64), _EFFORT[q.dtype], has_fma), q.dtype)


def polygamma(n: Expr, x: Expr, has_fma: bool) -> Expr:
    """The n-th derivative of digamma: (-1)**(n + 1) n! zeta(n + 1, x); NaN unless n is natural."""
    order, at = convert(n, F64), convert(x, F64)
    size = _factorial(order, has_fma) * _zeta(order + 1.0, at, _EFFORT[x.dtype], has_fma)
    natural = compare("ge", order, 0.0) & _is_integer(order)
    value = select(natural, select(_is_even(order), -size, size), math.nan)
    value = unlikely(compare("eq", order, 0.0), digamma(at, has_fma=has_fma), value)
    return convert(value, x.dtype)


def _zeta(s: Expr, q: Expr, effort: _Effort, has_fma: bool) -> Expr:
    s = at_most(s, _LARGEST)

    def of_positive(q: Expr) -> Expr:
        return _of_positive(s, q, effort, has_fma)

    direct = of_positive(select(compare("gt", q, 0.0), q, 1.0 - q))
    # Terms below 0 are what those of 1 - q, with the sign of (-1)**s, lack to those of all integers
    # beside q: both sides of these are sums of positive terms.
    below, even = floor(q), _is_even(s)
    before = of_positive(apply("ceil", q) - q) - direct
    reflected = of_positive(q - below) + select(even, before, -before)
    pole = select(even, const(math.inf, F64), math.nan)
    reflected = select(compare("eq", below, q), pole, reflected)
    reflected = select(_is_integer(s), reflected, math.nan)
    value = unlikely(~compare("gt", q, 0.0), reflected, direct)
    value = select(compare("eq", q, math.inf), 0.0, value)
    ends = select(compare("eq", s, 1.0) & compare("eq", q, q), const(math.inf, F64), math.nan)
    return select(compare("gt", s, 1.0), value, ends)


def _of_positive(s: Expr, q: Expr, effort: _Effort, has_fma: bool) -> Expr:
    """The smallest first; the integral by a**(1 - s), which is a number where a**-s is 0, and
    which the rounding of a would count in s times."""
    a, a_low = two_sum(q, const(effort.terms, F64))
    inverse = 1.0 / a
    square = inverse * inverse
    bounded = at_most(s, _LARGE)
    series: Expr = const(_CORRECTIONS[effort.corrections - 1], F64)
    for j in range(effort.corrections - 1, 0, -1):
        rising = (bounded + (2.0 * j - 1.0)) * (bounded + 2.0 * j)
        series = fma(series, rising * square, _CORRECTIONS[j - 1])
    correction = fma(bounded * inverse, series, 0.5)
    rest = fma(correction, inverse, 1.0 / (s - 1.0))
    exponent = 1.0 - s
    power = _power(a, exponent, has_fma)
    power = fma(power * (exponent * a_low), inverse, power)
    total = power * rest
    for k in reversed(range(effort.terms)):
        total = total + _power(q + float(k), -s, has_fma)
    return total


def _power(a: Expr, exponent: Expr, has_fma: bool) -> Expr:
    """a**exponent for a > 0 and exponent < 0."""
    if isinstance(exponent, Const) and exponent.value in range(-_BY_PRODUCTS, 0):
        return 1.0 / _product(a, -int(exponent.value))
    return power_of_positive(a, exponent, has_fma)


def _product(a: Expr, count: int) -> Expr:
    if count == 1:
        return a
    half = _product(a, count // 2)
    square = half * half
    return square * a if count % 2 else square


def _factorial(n: Expr, has_fma: bool) -> Expr:
    """Exact up to 16!, where what the logarithm lacks is rounded away."""
    if isinstance(n, Const) and n.value in range(171):
        return const(float(math.factorial(int(n.value))), F64)
    return apply("round_even", exp(lgamma(n + 1.0, has_fma=has_fma)))


def _is_integer(x: Expr) -> Expr:
    return compare("eq", floor(x), x)


def _is_even(x: Expr) -> Expr:
    return _is_integer(x * 0.5)
