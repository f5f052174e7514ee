"""JAX's commonest primitives in NumPy, on floats that are all f64.

Each takes the parameters of its equation and the operands.  What is not here is interpreted as
StableHLO (reference.py).  Semantics of integers and special values are StableHLO's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
from scipy import special

Rule = Callable[..., np.ndarray]


def joined_parts(real: np.ndarray, imag: np.ndarray) -> np.ndarray:
    """Complex numbers of two parts; `real + 1j * imag` would be NaN where one is infinite."""
    whole = np.empty(np.broadcast_shapes(np.shape(real), np.shape(imag)), np.complex128)
    whole.real, whole.imag = real, imag
    return whole


def total_order(value: np.ndarray) -> np.ndarray:
    """Integers in the order that XLA's top_k and searches have: -0 is less than 0, NaN is beyond
    infinity, on the side that its sign says."""
    if value.dtype != np.float64:
        return value
    value = np.where(np.isnan(value), np.copysign(np.nan, value), value)  # with the same payload
    bits = np.ascontiguousarray(value).view(np.int64).reshape(value.shape)
    return np.where(bits < 0, bits ^ np.iinfo(np.int64).max, bits)


def _divide(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    if x.dtype.kind not in "iu":
        return x / y
    safe = np.where(y == 0, 1, y).astype(y.dtype)
    overflows = (y == -1) if x.dtype.kind == "i" else np.zeros_like(y, bool)
    safe = np.where(overflows, 1, safe).astype(y.dtype)
    quotient = (x - np.fmod(x, safe)) // safe
    quotient = np.where(overflows, np.negative(x), quotient)
    return np.where(y == 0, ~np.zeros_like(x), quotient).astype(x.dtype)


def _remainder(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    if x.dtype.kind not in "iu":
        return np.fmod(x, y)
    safe = np.where((y == 0) | ((y == -1) if x.dtype.kind == "i" else False), 1, y)
    found = np.fmod(x, safe.astype(y.dtype))
    return np.where(y == 0, x, found).astype(x.dtype)


def _sign(x: np.ndarray) -> np.ndarray:
    return np.where(x == 0, x, np.sign(x)).astype(x.dtype) if x.dtype.kind == "f" else np.sign(x)


def _round(p: Mapping, x: np.ndarray) -> np.ndarray:
    if int(p["rounding_method"]):
        return np.round(x)
    away = np.trunc(x) + np.copysign(np.abs(x - np.trunc(x)) >= 0.5, x)
    return np.where(np.isfinite(x), np.copysign(away, x), x)


def _integer_pow(p: Mapping, x: np.ndarray) -> np.ndarray:
    power = p["y"]
    return x**power if power >= 0 or x.dtype.kind in "fc" else np.power(x.astype(float), power)


def _shift(shifted: Callable[[np.ndarray, np.ndarray], np.ndarray], fill: bool) -> Rule:
    """A shift that gives 0, or the sign where `fill`, for amounts beyond the width."""

    def shift(p: Mapping, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        bits = 8 * x.dtype.itemsize
        amount = y.astype(f"u{y.dtype.itemsize}")
        beyond = amount >= bits
        inside = np.where(beyond, 0, amount).astype(x.dtype)
        rest = (x >> (bits - 1) if fill else np.zeros_like(x)).astype(x.dtype)
        return np.where(beyond, rest, shifted(x, inside)).astype(x.dtype)

    return shift


def _logical(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    unsigned = f"u{x.dtype.itemsize}"
    return (x.astype(unsigned) >> y.astype(unsigned)).astype(x.dtype)


def _logistic(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x)) if x.dtype.kind == "c" else special.expit(x)


def _high_half(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    bits = 8 * x.dtype.itemsize
    return (x.astype(object) * y.astype(object) >> bits).astype(x.dtype)


def _select(p: Mapping, which: np.ndarray, *cases: np.ndarray) -> np.ndarray:
    found = cases[0]
    for number, case in enumerate(cases[1:], 1):
        found = np.where(which == number, case, found)
    return found


def _clamp(p: Mapping, low: np.ndarray, x: np.ndarray, high: np.ndarray) -> np.ndarray:
    return np.minimum(np.maximum(x, low), high)


def _broadcast(p: Mapping, x: np.ndarray) -> np.ndarray:
    shape = [1] * len(p["shape"])
    for axis, extent in zip(p["broadcast_dimensions"], x.shape, strict=True):
        shape[axis] = extent
    return np.broadcast_to(x.reshape(shape), p["shape"])


def _reshape(p: Mapping, x: np.ndarray) -> np.ndarray:
    order = p["dimensions"]  # that of a transposition before, as derivatives of products have
    return (x if order is None else x.transpose(order)).reshape(p["new_sizes"])


def _pad(p: Mapping, x: np.ndarray, fill: np.ndarray) -> np.ndarray:
    spread = [
        e + max(e - 1, 0) * i for e, (_, _, i) in zip(x.shape, p["padding_config"], strict=True)
    ]
    wide = np.full(spread, fill, x.dtype)
    wide[tuple(slice(None, None, i + 1) for _, _, i in p["padding_config"])] = x
    for axis, (low, high, _) in enumerate(p["padding_config"]):
        shape = list(wide.shape)
        parts = []
        for border in (low, high):
            shape[axis] = max(border, 0)
            parts.append(np.full(shape, fill, x.dtype))
        wide = np.concatenate([parts[0], wide, parts[1]], axis)
        cut = [slice(None)] * wide.ndim
        cut[axis] = slice(max(-low, 0), max(wide.shape[axis] - max(-high, 0), 0))
        wide = wide[tuple(cut)]
    return wide


def _slice(p: Mapping, x: np.ndarray) -> np.ndarray:
    strides = p["strides"] or (1,) * x.ndim
    return x[tuple(map(slice, p["start_indices"], p["limit_indices"], strides))]


def _starts(x: np.ndarray, sizes: tuple[int, ...], starts: tuple[np.ndarray, ...]) -> tuple:
    return tuple(
        slice(b := min(max(int(s), 0), e - n), b + n)
        for s, e, n in zip(starts, x.shape, sizes, strict=True)
    )


def _dynamic_update(p: Mapping, x: np.ndarray, part: np.ndarray, *starts: np.ndarray) -> np.ndarray:
    found = x.copy()
    found[_starts(x, part.shape, starts)] = part
    return found


def _iota(p: Mapping) -> np.ndarray:
    shape = [1] * len(p["shape"])
    shape[p["dimension"]] = -1
    count = np.arange(p["shape"][p["dimension"]]).reshape(shape)
    return np.broadcast_to(count, p["shape"])


def _fold(function: np.ufunc) -> Rule:
    def fold(p: Mapping, x: np.ndarray) -> np.ndarray:
        if function in (np.maximum, np.minimum):
            info = np.finfo(x.dtype) if x.dtype.kind == "f" else None
            low = -np.inf if info else False if x.dtype == bool else np.iinfo(x.dtype).min
            high = np.inf if info else True if x.dtype == bool else np.iinfo(x.dtype).max
            start = low if function is np.maximum else high
            return function.reduce(x, tuple(p["axes"]), initial=start)
        return function.reduce(x, tuple(p["axes"]), dtype=x.dtype)

    return fold


def _extremum(function: Callable) -> Rule:
    return lambda p, x: function(x, p["axes"][0]).astype(p["index_dtype"])


def _running(function: np.ufunc) -> Rule:
    def running(p: Mapping, x: np.ndarray) -> np.ndarray:
        ahead = np.flip(x, p["axis"]) if p["reverse"] else x
        found = function.accumulate(ahead, p["axis"], dtype=x.dtype)
        return np.flip(found, p["axis"]) if p["reverse"] else found

    return running


def dot_general(p: Mapping, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    (of_x, of_y), (batch_x, batch_y) = p["dimension_numbers"]
    rows = [a for a in range(x.ndim) if a not in (*of_x, *batch_x)]
    columns = [a for a in range(y.ndim) if a not in (*of_y, *batch_y)]
    batch = [x.shape[a] for a in batch_x]
    depth = math.prod(x.shape[a] for a in of_x)
    left = x.transpose(*batch_x, *rows, *of_x).reshape(
        math.prod(batch), math.prod(x.shape[a] for a in rows), depth
    )
    right = y.transpose(*batch_y, *of_y, *columns).reshape(
        math.prod(batch), depth, math.prod(y.shape[a] for a in columns)
    )
    shape = (*batch, *(x.shape[a] for a in rows), *(y.shape[a] for a in columns))
    wanted = p["preferred_element_type"]
    if wanted is not None and x.dtype.kind in "iu":
        left, right = left.astype(wanted), right.astype(wanted)
    return np.matmul(left, right).reshape(shape)


def convolution(p: Mapping, x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Tap by tap, each group alone.

    XLA's own convolutions of many groups join a group's infinities with zeros that belong to
    others.
    """
    lhs, rhs, out = p["dimension_numbers"]
    x, w = x.transpose(lhs), w.transpose(rhs)  # (N, C, space), (O, C, space)
    wanted = p["preferred_element_type"]
    if wanted is not None and x.dtype.kind in "iu":
        x, w = x.astype(wanted), w.astype(wanted)
    groups, batches = p["feature_group_count"], p["batch_group_count"]
    if batches > 1:  # as many groups of features, of which each has examples of its own
        x = np.concatenate(np.split(x, batches), 1)
        groups = batches
    wide = _pad(
        {
            "padding_config": [(0, 0, 0)] * 2
            + [
                (*border, dilation - 1)
                for border, dilation in zip(p["padding"], p["lhs_dilation"], strict=True)
            ]
        },
        x,
        x.dtype.type(0),
    )
    spread = [(e - 1) * d + 1 for e, d in zip(w.shape[2:], p["rhs_dilation"], strict=True)]
    extents = [
        max(0, (e - s) // t + 1)
        for e, s, t in zip(wide.shape[2:], spread, p["window_strides"], strict=True)
    ]
    found = np.zeros((x.shape[0], groups, w.shape[0] // groups, *extents), np.result_type(x, w))
    for tap in np.ndindex(*w.shape[2:]):
        seen = wide[
            (
                ...,
                *(
                    slice(k * d, k * d + (e - 1) * t + 1, t) if e else slice(0)
                    for k, d, e, t in zip(
                        tap, p["rhs_dilation"], extents, p["window_strides"], strict=True
                    )
                ),
            )
        ]
        found += np.einsum(
            "ngc...,goc->ngo...",
            seen.reshape(x.shape[0], groups, w.shape[1], *extents),
            w[(..., *tap)].reshape(groups, -1, w.shape[1]),
        )
    return found.reshape(x.shape[0], w.shape[0], *extents).transpose(np.argsort(out))


def _unary(function: Callable) -> Rule:
    return lambda p, x: function(x)


def _binary(function: Callable) -> Rule:
    return lambda p, x, y: function(x, y)


def _bits(function: Callable[[int, int], int]) -> Rule:
    def count(p: Mapping, x: np.ndarray) -> np.ndarray:
        width = 8 * x.dtype.itemsize
        flat = x.astype(f"u{x.dtype.itemsize}").ravel().tolist()
        return np.array([function(v, width) for v in flat], x.dtype).reshape(x.shape)

    return count


RULES: Mapping[str, Rule] = {
    **{
        name: _unary(function)
        for name, function in {
            "neg": np.negative,
            "abs": np.abs,
            "sign": _sign,
            "floor": np.floor,
            "ceil": np.ceil,
            "exp": np.exp,
            "exp2": np.exp2,
            "log": np.log,
            "log1p": np.log1p,
            "expm1": np.expm1,
            "tanh": np.tanh,
            "sin": np.sin,
            "cos": np.cos,
            "tan": np.tan,
            "asin": np.arcsin,
            "acos": np.arccos,
            "atan": np.arctan,
            "sinh": np.sinh,
            "cosh": np.cosh,
            "asinh": np.arcsinh,
            "acosh": np.arccosh,
            "atanh": np.arctanh,
            "sqrt": np.sqrt,
            "rsqrt": lambda x: 1 / np.sqrt(x),
            "cbrt": np.cbrt,
            "logistic": _logistic,
            "erf": special.erf,
            "erfc": special.erfc,
            "erf_inv": special.erfinv,
            "lgamma": special.gammaln,  # XLA's is not 0 where the logarithm is
            "not": np.invert,
            "square": np.square,
            "is_finite": np.isfinite,
            "copy": np.array,
            "copy_p": np.array,
            "stop_gradient": np.array,
            "real": np.real,
            "imag": np.imag,
            "conj": np.conj,
        }.items()
    },
    **{
        name: _binary(function)
        for name, function in {
            "add": np.add,
            "add_any": np.add,
            "sub": np.subtract,
            "mul": np.multiply,
            "div": _divide,
            "rem": _remainder,
            "max": np.maximum,
            "min": np.minimum,
            "and": np.bitwise_and,
            "or": np.bitwise_or,
            "xor": np.bitwise_xor,
            "eq": np.equal,
            "ne": np.not_equal,
            "lt": np.less,
            "le": np.less_equal,
            "gt": np.greater,
            "ge": np.greater_equal,
            "le_to": lambda x, y: total_order(x) <= total_order(y),
            "lt_to": lambda x, y: total_order(x) < total_order(y),
            "atan2": np.arctan2,
            "mulhi": _high_half,
            "complex": joined_parts,
        }.items()
    },
    "conv_general_dilated": convolution,
    "round": _round,
    "integer_pow": _integer_pow,
    "shift_left": _shift(np.left_shift, fill=False),
    "shift_right_logical": _shift(_logical, fill=False),
    "shift_right_arithmetic": _shift(np.right_shift, fill=True),
    "population_count": _bits(lambda v, width: v.bit_count()),
    "clz": _bits(lambda v, width: width - v.bit_length()),
    "select_n": _select,
    "clamp": _clamp,
    "broadcast_in_dim": _broadcast,
    "reshape": _reshape,
    "squeeze": lambda p, x: np.squeeze(x, tuple(p["dimensions"])),
    "expand_dims": lambda p, x: np.expand_dims(x, tuple(p["dimensions"])),
    "transpose": lambda p, x: np.transpose(x, p["permutation"]),
    "concatenate": lambda p, *xs: np.concatenate(xs, p["dimension"]),
    "pad": _pad,
    "slice": _slice,
    "rev": lambda p, x: np.flip(x, tuple(p["dimensions"])),
    "dynamic_slice": lambda p, x, *starts: x[_starts(x, p["slice_sizes"], starts)],
    "dynamic_update_slice": _dynamic_update,
    "iota": _iota,
    "reduce_sum": _fold(np.add),
    "reduce_prod": _fold(np.multiply),
    "reduce_max": _fold(np.maximum),
    "reduce_min": _fold(np.minimum),
    "reduce_and": _fold(np.bitwise_and),
    "reduce_or": _fold(np.bitwise_or),
    "reduce_xor": _fold(np.bitwise_xor),
    "argmax": _extremum(np.argmax),
    "argmin": _extremum(np.argmin),
    "cumsum": _running(np.add),
    "cumprod": _running(np.multiply),
    "cummax": _running(np.maximum),
    "cummin": _running(np.minimum),
    "dot_general": dot_general,
}
