"""What the scalar operations mean: NumPy functions over arrays of the operands' element type.

Semantics follow the StableHLO specification (integer division by zero, over-long shifts,
NaN-propagating min/max, saturating float-to-int conversion).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np

from hlo_mlc.expr.dtypes import BOOL, DType

Array = np.ndarray


def quiet(function: Callable[..., Array]) -> Callable[..., Array]:
    """Silence NumPy's warnings: overflow and invalid operands have defined results here."""

    def quiet(*args: Array) -> Array:
        with np.errstate(all="ignore"):
            return function(*args)

    return quiet


def pick(x: Array, *entries: Array) -> Array:
    """The entry whose number the last four bits of an f32 are."""
    return np.choose(x.view(np.int32) & 15, entries)


def through_f32(function: Callable[..., Array]) -> Callable[..., Array]:
    """Compute narrow floats in f32, and round once after the op."""

    def widened(*args: Array) -> Array:
        if args[0].dtype.kind in "fV" and args[0].dtype.itemsize <= 2:
            narrow = args[0].dtype
            wide = function(*(a.astype(np.float32) if a.dtype == narrow else a for a in args))
            return wide.astype(args[0].dtype) if wide.dtype == np.float32 else wide
        return function(*args)

    return quiet(widened)


def _is_integer(x: Array) -> bool:
    return x.dtype.kind in "iu"


def divide(x: Array, y: Array) -> Array:
    if not _is_integer(x):
        return x / y
    minus_one = np.array(-1).astype(x.dtype)  # all ones when unsigned
    safe = np.where(y == 0, np.ones_like(y), y)
    quotient = _truncated_quotient(x, safe)
    return np.where(y == 0, minus_one, quotient).astype(x.dtype)


def _truncated_quotient(x: Array, y: Array) -> Array:
    if x.dtype.kind == "u":
        return x // y
    quotient = x // np.where(y == -1, np.ones_like(y), y)
    remainder = x - quotient * y
    toward_zero = quotient + ((remainder != 0) & ((x < 0) != (y < 0))).astype(x.dtype)
    return np.where(y == -1, -x, toward_zero)


def remainder(x: Array, y: Array) -> Array:
    if not _is_integer(x):
        return np.fmod(x, y)
    safe = np.where(y == 0, np.ones_like(y), y)
    safe = (
        np.where(safe == np.array(-1).astype(x.dtype), np.ones_like(y), safe)
        if x.dtype.kind == "i"
        else safe
    )
    return np.where(y == 0, x, np.fmod(x, safe)).astype(x.dtype)


def power(x: Array, y: Array) -> Array:
    if not _is_integer(x):
        return np.power(x, y)
    result, base = np.ones_like(x), x.copy()
    exponent = np.where(y < 0, np.zeros_like(y), y).astype(np.uint64)
    while np.any(exponent):
        result = np.where(exponent & np.uint64(1), result * base, result).astype(x.dtype)
        base = (base * base).astype(x.dtype)
        exponent = exponent >> np.uint64(1)
    if x.dtype.kind == "i":
        odd = (y & np.array(1, y.dtype)) != 0
        inverse = np.where(x == 1, 1, np.where(x == -1, np.where(odd, -1, 1), 0))
        result = np.where(y < 0, inverse, result)
    return result.astype(x.dtype)


def _bits(x: Array) -> int:
    return x.dtype.itemsize * 8


def shift_left(x: Array, y: Array) -> Array:
    width = _bits(x)
    amount = y.astype(f"u{x.dtype.itemsize}")
    safe = np.minimum(amount, width - 1).astype(x.dtype)
    return np.where(amount >= width, np.zeros_like(x), x << safe).astype(x.dtype)


def shift_right_logical(x: Array, y: Array) -> Array:
    unsigned = np.dtype(f"u{x.dtype.itemsize}")
    width, amount = _bits(x), y.astype(unsigned)
    shifted = x.astype(unsigned) >> np.minimum(amount, width - 1).astype(unsigned)
    return np.where(amount >= width, np.zeros_like(shifted), shifted).astype(x.dtype)


def shift_right_arithmetic(x: Array, y: Array) -> Array:
    signed = np.dtype(f"i{x.dtype.itemsize}")
    amount = np.minimum(y.astype(f"u{x.dtype.itemsize}"), _bits(x) - 1).astype(signed)
    return (x.astype(signed) >> amount).astype(x.dtype)


def maximum(x: Array, y: Array) -> Array:
    if x.dtype.kind in "iub":
        return np.maximum(x, y)
    larger = np.where((x > y) | ((x == y) & ~np.signbit(x)), x, y)
    return np.where(np.isnan(x), x, np.where(np.isnan(y), y, larger)).astype(x.dtype)


def minimum(x: Array, y: Array) -> Array:
    if x.dtype.kind in "iub":
        return np.minimum(x, y)
    smaller = np.where((x < y) | ((x == y) & np.signbit(x)), x, y)
    return np.where(np.isnan(x), x, np.where(np.isnan(y), y, smaller)).astype(x.dtype)


def ldexp(x: Array, exponent: Array) -> Array:
    # What is not a number, or further out than any exponent, ends up where these limits do.
    limited = np.nan_to_num(np.clip(exponent, -5000, 5000))
    whole = np.floor(limited).astype(np.int32)
    return np.where(np.isnan(exponent), exponent, np.ldexp(x, whole))


def sign(x: Array) -> Array:
    if _is_integer(x):
        return np.sign(x)
    return np.where(x == 0, x, np.where(np.isnan(x), x, np.sign(x))).astype(x.dtype)


def round_away(x: Array) -> Array:
    truncated = np.trunc(x)
    return np.copysign(
        np.where(np.abs(x - truncated) >= 0.5, np.abs(truncated) + 1, np.abs(truncated)), x
    ).astype(x.dtype)


def logistic(x: Array) -> Array:
    return (1 / (1 + np.exp(-x))).astype(x.dtype)


def popcount(x: Array) -> Array:
    return np.bitwise_count(x.view(f"u{x.dtype.itemsize}")).astype(x.dtype)


def leading_zeros(x: Array) -> Array:
    unsigned = x.astype(f"u{x.dtype.itemsize}")
    count = np.full(x.shape, _bits(x), np.int64)
    for bit in range(_bits(x)):
        count = np.where((unsigned >> unsigned.dtype.type(bit)) & 1, _bits(x) - 1 - bit, count)
    return count.astype(x.dtype)


def invert(x: Array) -> Array:
    return np.logical_not(x) if x.dtype == np.bool_ else np.bitwise_not(x)


def add(x: Array, y: Array) -> Array:
    return np.logical_or(x, y) if x.dtype == np.bool_ else x + y


def subtract(x: Array, y: Array) -> Array:
    return np.logical_xor(x, y) if x.dtype == np.bool_ else x - y


def fma(x: Array, y: Array, z: Array) -> Array:
    """x * y + z rounded once; for f32 an f64 product is exact, and rounding the sum to odd keeps
    the second rounding from doing harm."""
    if x.dtype == np.float64:
        return _fma_f64(*np.broadcast_arrays(x, y, z))
    return _add_to_odd(x.astype(np.float64) * y, z.astype(np.float64)).astype(x.dtype)


def _two_sum(x: Array, y: Array) -> tuple[Array, Array]:
    """The f64 sum and its rounding error."""
    total = x + y
    shadow = total - x
    return total, (x - (total - shadow)) + (y - shadow)


def _add_to_odd(x: Array, y: Array) -> Array:
    """x + y in f64; where that is inexact, the neighbour whose last bit is set."""
    total, error = (np.asarray(a) for a in _two_sum(x, y))
    raw = total.view(np.int64)
    inexact = np.isfinite(total) & (error != 0) & ((raw & 1) == 0)
    step = np.where((error > 0) == (total > 0), 1, -1)
    return np.where(inexact, raw + step, raw).view(np.float64)


def _fma_f64(x: Array, y: Array, z: Array) -> Array:
    """Source: Boldo and Melquiond, Emulation of FMA and correctly rounded sums (2008)."""
    product = x * y
    split = 134217729.0  # 2**27 + 1: halves of 26 bits, whose products are exact
    x_high = x * split - (x * split - x)
    y_high = y * split - (y * split - y)
    x_low, y_low = x - x_high, y - y_high
    low = ((x_high * y_high - product) + x_high * y_low + x_low * y_high) + x_low * y_low
    upper, lower = _two_sum(z, low)
    total, rest = _two_sum(product, upper)
    zero = (x == 0) | (y == 0)
    result = np.where(zero, product + z, total + _add_to_odd(rest, lower))
    # Beyond these bounds a step may overflow or lose bits to underflow; also covers inf and NaN.
    factors = np.maximum(np.abs(x), np.abs(y))
    safe = (factors < 2.0**400) & (np.abs(z) < 2.0**900) & (np.abs(product) > 2.0**-800)
    rare = ~safe & ~zero
    result[rare] = [_fma_exact(*each) for each in zip(x[rare], y[rare], z[rare], strict=True)]
    return result


def _fma_exact(x: float, y: float, z: float) -> float:
    if not (math.isfinite(x) and math.isfinite(y) and math.isfinite(z)):
        return float(np.float64(x) * np.float64(y) + np.float64(z))
    exact = Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))
    if exact == 0:
        return float(np.float64(x) * np.float64(y) + np.float64(z))
    try:
        return float(exact)
    except OverflowError:
        return math.inf if exact > 0 else -math.inf


def convert(x: Array, to: DType) -> Array:
    """StableHLO `convert`: integers wrap, float-to-integer saturates with NaN -> 0, any -> i1 is
    `!= 0`."""
    with np.errstate(all="ignore"):
        if to is BOOL:
            return x != 0
        if to.is_integer and x.dtype.kind not in "iub":
            info = np.iinfo(to.numpy)
            wide = x.astype(np.float64)
            clipped = np.where(np.isnan(wide), 0.0, wide)
            inside = np.clip(clipped, float(info.min), float(info.max))
            lowest, highest, zero = (to.numpy.type(v) for v in (info.min, info.max, 0))
            result = np.where(
                clipped >= float(info.max),
                highest,
                np.where(clipped <= float(info.min), lowest, zero),
            )
            small = (clipped < float(info.max)) & (clipped > float(info.min))
            return np.where(small, np.where(small, inside, 0.0).astype(to.numpy), result)
        if to.is_narrow_float and x.dtype.kind not in "iub":
            # f64 is rounded twice, as XLA does; f32 has all narrow floats, and each becomes them.
            return x.astype(np.float32).astype(to.numpy)
        return x.astype(to.numpy)


def multiply_high(x: Array, y: Array) -> Array:
    product = x.astype(object) * y.astype(object)
    return np.asarray(product // (1 << _bits(x))).astype(x.dtype)
