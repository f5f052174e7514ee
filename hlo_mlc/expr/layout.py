"""How arrays lie in the memory of kernels: as NumPy has them, unless their dimensions have another
order, but for integers of less than a byte, which share bytes, the first in the lowest bits."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hlo_mlc.expr.dtypes import TensorType, from_numpy


def stored(array: np.ndarray, order: Sequence[int] = ()) -> np.ndarray:
    """An array as kernels have it in memory, its dimensions in an order, the outermost first."""
    if order:
        return np.ascontiguousarray(array.transpose(order))
    tensor = TensorType(array.shape, from_numpy(array.dtype))
    if not tensor.dtype.is_packed:
        return array
    bits, mask = tensor.dtype.bits, (1 << tensor.dtype.bits) - 1
    parts = np.zeros((tensor.bytes, 8 // bits), np.uint8)
    parts.reshape(-1)[: array.size] = array.reshape(-1).astype(np.int8).view(np.uint8) & mask
    return np.bitwise_or.reduce(parts << np.arange(0, 8, bits, np.uint8), axis=1).reshape(
        tensor.stored.shape
    )


def restored(memory: np.ndarray, tensor: TensorType, order: Sequence[int] = ()) -> np.ndarray:
    """The array of this type that kernels have in memory so."""
    if order:
        shape = [tensor.shape[d] for d in order]
        return memory.view(tensor.dtype.numpy).reshape(shape).transpose(np.argsort(order))
    if not tensor.dtype.is_packed:
        return memory.view(tensor.dtype.numpy).reshape(tensor.shape)
    bits = tensor.dtype.bits
    parts = memory.reshape(-1, 1) >> np.arange(0, 8, bits, np.uint8)
    return parts.reshape(-1)[: tensor.size].astype(tensor.dtype.numpy).reshape(tensor.shape)
