"""What the references of several ops do with NumPy arrays."""

from __future__ import annotations

import numpy as np


def dilated(
    array: np.ndarray, axis: int, dilation: int, before: int, after: int, value: np.ndarray | float
) -> np.ndarray:
    """`array` with `dilation - 1` times `value` between neighbours along `axis`, and with edges
    grown by `value`, or cut where negative."""
    extent = array.shape[axis]
    size = max(0, (extent - 1) * dilation + 1 if extent else 0) + before + after
    moved = np.moveaxis(array, axis, 0)
    result = np.full((size, *moved.shape[1:]), value, array.dtype)
    places = np.arange(extent) * dilation + before
    kept = (places >= 0) & (places < size)
    result[places[kept]] = moved[kept]
    return np.moveaxis(result, 0, axis)


def strided(start: int, stride: int, count: int) -> slice:
    """The slice of `count` elements from `start`, `stride` apart."""
    return slice(start, start + (count - 1) * stride + 1, stride) if count else slice(0, 0)
