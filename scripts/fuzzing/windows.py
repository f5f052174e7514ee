"""Folds of windows with a combiner of their own, in NumPy.

As XLA does and the specification does not, the initial value is folded once for each window and
nothing stands for what a window finds beside the array.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

Combine = Callable[[object, list[np.ndarray]], list[np.ndarray]]


def folded(params: Mapping, operands: list[np.ndarray], combine: Combine) -> list[np.ndarray]:
    """The results of `reduce_window`; `combine(jaxpr, values)` joins two of each array."""
    half = len(operands) // 2
    arrays, starts = operands[:half], operands[half:]
    there = _spread(params, np.ones(arrays[0].shape, bool))
    spread = [_spread(params, a) for a in arrays]
    extents = [
        (whole - (size - 1) * dilation - 1) // stride + 1
        for whole, size, dilation, stride in zip(
            there.shape,
            params["window_dimensions"],
            params["window_dilation"],
            params["window_strides"],
            strict=True,
        )
    ]
    extents = [max(0, e) for e in extents]
    found = [np.broadcast_to(s, extents) for s in starts]
    for corner in np.ndindex(*params["window_dimensions"]):
        seen = tuple(
            slice(c * dilation, c * dilation + (e - 1) * stride + 1, stride) if e else slice(0)
            for c, dilation, e, stride in zip(
                corner, params["window_dilation"], extents, params["window_strides"], strict=True
            )
        )
        joined = combine(params["jaxpr"], [*found, *(a[seen] for a in spread)])
        found = [np.where(there[seen], j, f) for j, f in zip(joined, found, strict=True)]
    return found


def _spread(params: Mapping, array: np.ndarray) -> np.ndarray:
    """With zeros between and around the elements, less what borders cut off."""
    wide = np.zeros(
        [
            max(0, (e - 1) * d + 1) + max(low, 0) + max(high, 0)
            for e, d, (low, high) in zip(
                array.shape, params["base_dilation"], params["padding"], strict=True
            )
        ],
        array.dtype,
    )
    inside = tuple(
        slice(max(low, 0), max(low, 0) + max(0, (e - 1) * d + 1), d)
        for e, d, (low, _) in zip(
            array.shape, params["base_dilation"], params["padding"], strict=True
        )
    )
    wide[inside] = array
    return wide[
        tuple(
            slice(max(-low, 0), max(0, whole - max(-high, 0)))
            for whole, (low, high) in zip(wide.shape, params["padding"], strict=True)
        )
    ]
