"""What the special functions are, as NumPy functions that compute in f64."""

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
    """The derivative of lgamma: -infinity at 0, NaN at the negative integers.

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
    at_pole = np.where(wide == 0, -np.inf, np.nan)
    return np.where(pole, at_pole, value).astype(x.dtype)
