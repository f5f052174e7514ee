"""What the special functions are, as NumPy functions that compute in f64 or more."""

from __future__ import annotations

import math

import numpy as np

Array = np.ndarray

_erf_f64 = np.vectorize(math.erf, otypes=[np.float64])
_erfc_f64 = np.vectorize(math.erfc, otypes=[np.float64])
_lgamma_f64 = np.vectorize(math.lgamma, otypes=[np.float64])


def erf(x: Array) -> Array:
    """The error function."""
    return _erf_f64(x.astype(np.float64)).astype(x.dtype).reshape(x.shape)


def erfc(x: Array) -> Array:
    """1 - erf(x), with the digits that the difference would lose."""
    return _erfc_f64(x.astype(np.float64)).astype(x.dtype).reshape(x.shape)


def erf_inv(x: Array) -> Array:
    """The inverse of erf; Newton's method on erfc, whose values near ±1 keep their digits.

    Source of the first guess: S. Winitzki, A handy approximation for the error function (2008).
    """
    a = np.minimum(np.abs(x.astype(np.float64)), 1.0)
    rest = 1.0 - a  # exact from 1/2 on
    log = np.log(rest * (1.0 + a))
    half = 2 / (np.pi * 0.147) + log / 2
    z = np.sqrt(np.sqrt(half * half - log / 0.147) - half)
    for _ in range(4):
        error = np.where(a < 0.5, a - _erf_f64(z), _erfc_f64(z) - rest)
        z = z + error * np.exp(z * z) * (math.sqrt(math.pi) / 2)
    z = np.where(a < 1.0, z, np.inf)
    return np.where(np.abs(x) <= 1, np.copysign(z, x), np.nan).astype(x.dtype).reshape(x.shape)


def lgamma(x: Array) -> Array:
    """log|gamma(x)|, infinite at 0 and the negative integers."""
    wide = x.astype(np.float64)
    infinite = ((wide <= 0) & (wide == np.floor(wide))) | (wide > 2.5e305)
    value = _lgamma_f64(np.where(infinite | np.isnan(wide), 1.0, wide))
    return np.where(infinite, np.inf, np.where(np.isnan(wide), wide, value)).astype(x.dtype)


def digamma(x: Array) -> Array:
    """The derivative of lgamma: NaN at 0 and the negative integers.

    By the asymptotic series after a recurrence to 16 and beyond, and by reflection.
    """
    wide = x.astype(np.float64)
    a = np.abs(wide)
    shifted, below = a, np.zeros_like(a)
    for _ in range(16):
        near = shifted < 16
        below = np.where(near, below + 1 / shifted, below)
        shifted = np.where(near, shifted + 1, shifted)
    v = 1 / shifted**2
    series = v * (1 / 12 - v * (1 / 120 - v * (1 / 252 - v * (1 / 240 - v / 132))))
    positive = np.log(shifted) - 0.5 / shifted - series - below
    turn = np.pi * (a - np.rint(a))
    value = np.where(wide > 0, positive, positive + 1 / a + np.pi / np.tan(turn))
    pole = (wide <= 0) & (wide == np.floor(wide))
    return np.where(pole, np.nan, value).astype(x.dtype)


def bessel_i1e(x: Array) -> Array:
    """I1(x) e**-|x|: by its power series, and by Hankel's expansion from 40 on."""
    a = np.abs(x.astype(np.longdouble))
    near, far = np.minimum(a, 40.0), np.maximum(a, 40.0)
    total = term = near / 2 * np.exp(-near)
    series = part = np.ones_like(a)
    for k in range(1, 100):
        term = term * (near / 2) ** 2 / (k * (k + 1))
        total = total + term
        if k < 24:
            part = part * ((2 * k - 1) ** 2 - 4) / (8 * k * far)
            series = series + part
    value = np.where(a < 40, total, series / np.sqrt(2 * np.pi * far))
    return np.copysign(value, x.astype(np.longdouble)).astype(x.dtype)


def zeta(s: Array, q: Array) -> Array:
    """Hurwitz's zeta function: NaN for s < 1, and for q < 0 where s is no integer.

    By Euler and Maclaurin's formula after 20 terms; for q < 0 by the sum over all integers.
    """
    power, wide = np.broadcast_arrays(s.astype(np.float64), q.astype(np.float64))
    sign = np.where(power % 2 == 0, 1.0, -1.0)
    below, above = np.floor(wide), np.ceil(wide)
    value = np.where(
        wide > 0,
        _zeta_of_positive(power, np.where(wide > 0, wide, 1.0)),
        _zeta_of_positive(power, wide - below)
        + sign * (_zeta_of_positive(power, above - wide) - _zeta_of_positive(power, 1 - wide)),
    )
    value = np.where((wide <= 0) & (below == wide), np.where(sign > 0, np.inf, np.nan), value)
    undefined = (power < 1) | ((wide < 0) & (power != np.floor(power)))
    value = np.where(undefined, np.nan, np.where(power == 1, np.inf, value))
    return np.where(np.isnan(wide) | np.isnan(power), np.nan, value).astype(q.dtype)


def _zeta_of_positive(s: Array, q: Array) -> Array:
    terms = 20
    a = q + terms
    correction, factor = 0.5, np.minimum(s, 1e4) / a
    for j, c in enumerate((12, -720, 30240, -1209600, 47900160, -1307674368000 / 691), 1):
        correction = correction + factor / c
        factor = factor * (np.minimum(s, 1e4) + 2 * j - 1) * (np.minimum(s, 1e4) + 2 * j) / a**2
    rest = a ** (1 - s) * (1 / (s - 1) + correction / a)
    return rest + sum((q + k) ** -s for k in reversed(range(terms)))


def polygamma(n: Array, x: Array) -> Array:
    """The n-th derivative of digamma; NaN unless n is natural."""
    order, wide = np.broadcast_arrays(n.astype(np.float64), x.astype(np.float64))
    natural = (order >= 0) & (order == np.floor(order)) & (order < 171)
    factorial = [math.factorial(int(k)) for k in np.where(natural, order, 0).ravel()]
    size = np.array(factorial, np.float64).reshape(order.shape) * zeta(order + 1, wide)
    value = np.where(order == 0, digamma(wide), np.where(order % 2 == 1, size, -size))
    undefined = (order < 0) | (order != np.floor(order))
    return np.where(undefined, np.nan, np.where(natural, value, np.inf * value)).astype(x.dtype)
