"""Fourier transforms of a row of a few complex numbers, written out.

A transform of n = p m numbers is p of m, of every p-th number, whose results are turned and
combined; p is 4, or a prime:

    X[k + m q] = sum over r < p of  w_p^(r q)  (w_n^(r k)  Y_r[k]),   w_n = exp(-2 pi i / n)

Source: J. W. Cooley, J. W. Tukey, An algorithm for the machine calculation of complex Fourier
series, Mathematics of Computation 19 (1965); for primes, the sums and differences of conjugate
pairs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from hlo_mlc.expr.build import const
from hlo_mlc.expr.core import Expr


class Number(NamedTuple):
    """A complex number; `im` is None where that is zero."""

    re: Expr
    im: Expr | None


def dft(x: Sequence[Number], is_inverse: bool) -> Sequence[Number]:
    """The transform of a row of numbers, unscaled."""
    n = len(x)
    if n == 1:
        return x
    p = 4 if n % 4 == 0 else next(p for p in range(2, n + 1) if n % p == 0)
    m = n // p
    parts = [dft(x[r::p], is_inverse) for r in range(p)]
    found: list[Number | None] = [None] * n
    for k in range(m):
        turned = [_turned(parts[r][k], r * k, n, is_inverse) for r in range(p)]
        found[k::m] = _BUTTERFLIES.get(p, _prime)(turned, is_inverse)
    return found


def _two(x: list[Number], is_inverse: bool) -> list[Number]:
    one, other = x
    return [_add(one, other), _subtract(one, other)]


def _four(x: list[Number], is_inverse: bool) -> list[Number]:
    even, odd = _two(x[0::2], is_inverse), _two(x[1::2], is_inverse)
    turned = _turned(odd[1], 1, 4, is_inverse)
    return [
        _add(even[0], odd[0]),
        _add(even[1], turned),
        _subtract(even[0], odd[0]),
        _subtract(even[1], turned),
    ]


_BUTTERFLIES = {2: _two, 4: _four}


def _prime(x: list[Number], is_inverse: bool) -> list[Number]:
    """Of an odd number of elements: those of conjugate factors are added and subtracted first."""
    p, first = len(x), x[0]
    half = range(1, p // 2 + 1)
    sums, differences = ([f(x[r], x[p - r]) for r in half] for f in (_add, _subtract))
    total = first
    for one in sums:
        total = _add(total, one)
    found: list[Number] = [total] * p
    for q in half:
        even, odd = first, None
        for r, one, other in zip(half, sums, differences, strict=True):
            angle = 2 * math.pi * (r * q % p) / p
            even = _add(even, scaled(one, math.cos(angle)))
            part = scaled(other, math.sin(angle))
            odd = part if odd is None else _add(odd, part)
        turned = _turned(odd, 1, 4, is_inverse)
        found[q], found[p - q] = _add(even, turned), _subtract(even, turned)
    return found


# Numbers whose imaginary parts may be known to be zero


def _turned(x: Number, k: int, n: int, is_inverse: bool) -> Number:
    """x w_n^k, or its conjugate factor's."""
    k = -k % n if is_inverse else k % n
    quarters, rest = divmod(4 * k, n)
    for _ in range(quarters):  # by -i: a quarter of a turn clockwise
        x = Number(const(0.0, x.re.dtype) if x.im is None else x.im, -x.re)
    if not rest:
        return x
    angle = math.pi / 2 * rest / n
    cosine, sine = math.cos(angle), math.sin(angle)
    if 2 * rest == n:
        if x.im is None:
            part = x.re * cosine
            return Number(part, -part)
        return Number((x.re + x.im) * cosine, (x.im - x.re) * cosine)
    if x.im is None:
        return Number(x.re * cosine, x.re * -sine)
    return Number(x.re * cosine + x.im * sine, x.im * cosine - x.re * sine)


def _add(one: Number, other: Number) -> Number:
    if one.im is None or other.im is None:
        im = one.im if other.im is None else other.im
    else:
        im = one.im + other.im
    return Number(one.re + other.re, im)


def _subtract(one: Number, other: Number) -> Number:
    if one.im is None:
        im = None if other.im is None else -other.im
    else:
        im = one.im if other.im is None else one.im - other.im
    return Number(one.re - other.re, im)


def scaled(x: Number, factor: float) -> Number:
    """A number by a real one."""
    return Number(x.re * factor, None if x.im is None else x.im * factor)


def conjugate(x: Number) -> Number:
    """That of the same real part and the other imaginary one."""
    return Number(x.re, None if x.im is None else -x.im)
