"""Operators whose results each read a window: convolutions and pools."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from hlo_mlc.interop.onnx.node import Node, Operator, along, integers

Pads = list[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Windows:
    """Where the windows of a node lie, axis by axis."""

    kernel: Sequence[int]
    strides: Sequence[int]
    dilations: Sequence[int]
    pads: Pads
    beyond: Pads  # and what `ceil_mode` adds

    @classmethod
    def of(cls, node: Node, sizes: Sequence[int], kernel: Sequence[int]) -> Windows:
        ones = (1,) * len(sizes)
        strides, dilations = node["strides"] or ones, node["dilations"] or ones
        reaches = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
        given = node["pads"] or (0,) * 2 * len(sizes)
        pads, beyond = [], []
        for n, (size, reach, stride) in enumerate(zip(sizes, reaches, strides, strict=True)):
            low, high = given[n], given[len(sizes) + n]
            if node["auto_pad"] in ("SAME_UPPER", "SAME_LOWER"):
                total = max((-(-size // stride) - 1) * stride + reach - size, 0)
                low, high = _halves(total, node)
            elif node["auto_pad"] == "VALID":
                low = high = 0
            more = 0
            if node["ceil_mode"]:
                last = -(-(size + low + high - reach) // stride) * stride
                last -= stride if last >= size + low else 0  # it would lie in the padding
                more = max(last + reach - (size + low + high), 0)
            pads.append((low, high))
            beyond.append((low, high + more))
        return cls(kernel, strides, dilations, pads, beyond)

    def fold(self, x: Any, initial: Any, function: Callable[..., Any]) -> Any:
        return lax.reduce_window(
            x,
            initial,
            function,
            (1, 1, *self.kernel),
            (1, 1, *self.strides),
            ((0, 0), (0, 0), *self.beyond),
            window_dilation=(1, 1, *self.dilations),
        )

    def counts(self, sizes: Sequence[int], with_padding: bool) -> np.ndarray:
        """How many elements each window has."""
        each = []
        for size, kernel, stride, dilation, (low, high), (_, end) in zip(
            sizes, self.kernel, self.strides, self.dilations, self.pads, self.beyond, strict=True
        ):
            first = np.arange(-low, size + end - (kernel - 1) * dilation, stride)[:, None]
            at = first + np.arange(kernel) * dilation
            low, high = (low, high) if with_padding else (0, 0)
            each.append(((at >= -low) & (at < size + high)).sum(1))
        return functools.reduce(np.multiply.outer, each)


def _halves(total: int, node: Node) -> tuple[int, int]:
    low = total // 2 if node["auto_pad"] == "SAME_UPPER" else total - total // 2
    return low, total - low


def _windows(node: Node, x: Any) -> Windows:
    return Windows.of(node, x.shape[2:], node["kernel_shape"])


def convolution(node: Node, x: Any, w: Any, bias: Any = None) -> Any:
    at = Windows.of(node, x.shape[2:], w.shape[2:])
    out = lax.conv_general_dilated(
        x, w, at.strides, at.pads, rhs_dilation=at.dilations, feature_group_count=node["group"]
    )
    return out if bias is None else out + along(bias, 1, x.ndim)


def _transposed_convolution(node: Node, x: Any, w: Any, bias: Any = None) -> Any:
    sizes, kernel, groups = x.shape[2:], w.shape[2:], node["group"]
    at = Windows.of(node, sizes, kernel)
    extra = node["output_padding"] or (0,) * len(sizes)
    wanted = node["output_shape"]
    if node["auto_pad"] in ("SAME_UPPER", "SAME_LOWER") and wanted is None:
        wanted = [size * stride for size, stride in zip(sizes, at.strides, strict=True)]
    padding = []
    for n, (size, stride, dilation, (low, high)) in enumerate(
        zip(sizes, at.strides, at.dilations, at.pads, strict=True)
    ):
        reach = (kernel[n] - 1) * dilation
        if wanted is not None:
            whole = stride * (size - 1) + extra[n] + reach + 1
            low, high = _halves(whole - wanted[n - len(sizes)], node)
        padding.append((reach - low, reach - high + extra[n]))
    # (in, out / groups, …) -> (out, in / groups, …), and the taps from the other end.
    taps = (
        jnp.flip(w, tuple(range(2, w.ndim))).reshape(groups, -1, w.shape[1], *kernel).swapaxes(1, 2)
    )
    out = lax.conv_general_dilated(
        x,
        taps.reshape(-1, *taps.shape[2:]),
        (1,) * len(sizes),
        padding,
        lhs_dilation=at.strides,
        rhs_dilation=at.dilations,
        feature_group_count=groups,
    )
    return out if bias is None else out + along(bias, 1, x.ndim)


def _max_pool(node: Node, x: Any) -> Any:
    at = _windows(node, x)
    least = -np.inf if jnp.issubdtype(x.dtype, np.floating) else np.iinfo(x.dtype).min
    if node.results == 1:
        return at.fold(x, np.array(least, x.dtype), lax.max)
    order = (
        (0, 1, *range(2, x.ndim))
        if not node["storage_order"]
        else (0, 1, *reversed(range(2, x.ndim)))
    )
    places = np.arange(x.size).reshape([x.shape[axis] for axis in order]).transpose(order)
    pads = [(0, 0, 0), (0, 0, 0), *((*sides, 0) for sides in at.beyond)]
    padded = [
        lax.pad(jnp.asarray(part), jnp.asarray(fill, part.dtype), pads)
        for part, fill in ((x, least), (places, -1))
    ]
    counts = at.counts(x.shape[2:], False).shape
    taps = []
    for offset in np.ndindex(*at.kernel):
        first = [o * d for o, d in zip(offset, at.dilations, strict=True)]
        window = tuple(
            slice(f, f + (n - 1) * s + 1, s)
            for f, n, s in zip(first, counts, at.strides, strict=True)
        )
        taps.append([part[(..., *window)] for part in padded])
    values, where = (jnp.stack(parts) for parts in zip(*taps, strict=True))
    best = jnp.argmax(values, 0, keepdims=True)
    return tuple(jnp.take_along_axis(part, best, 0)[0] for part in (values, where))


def _max_unpool(node: Node, x: Any, places: Any, shape: Any = None) -> Any:
    pads, rank = node["pads"] or (0,) * 2 * (x.ndim - 2), x.ndim - 2
    strides = node["strides"] or (1,) * rank
    sizes = [
        (x.shape[2 + n] - 1) * strides[n] - pads[n] - pads[rank + n] + node["kernel_shape"][n]
        for n in range(rank)
    ]
    flat = jnp.zeros(math.prod((*x.shape[:2], *sizes)), x.dtype)
    out = flat.at[places.ravel()].set(x.ravel()).reshape(*x.shape[:2], *sizes)
    wanted = out.shape if shape is None else integers(shape, "its input shape")
    return lax.pad(
        out, jnp.zeros((), x.dtype), [(0, w - n, 0) for w, n in zip(wanted, out.shape, strict=True)]
    )


def _average_pool(node: Node, x: Any) -> Any:
    at = _windows(node, x)
    counts = at.counts(x.shape[2:], bool(node["count_include_pad"]))
    return at.fold(x, np.array(0, x.dtype), lax.add) / counts.astype(x.dtype)


def _norm_pool(node: Node, x: Any) -> Any:
    powers = _windows(node, x).fold(jnp.abs(x) ** node["p"], np.array(0, x.dtype), lax.add)
    return powers ** (1 / node["p"])


def _local_response_normalization(node: Node, x: Any) -> Any:
    size = node["size"]
    sides = [(0, 0)] * x.ndim
    sides[1] = ((size - 1) // 2, size // 2)
    squares = lax.reduce_window(
        jnp.square(x),
        np.array(0, x.dtype),
        lax.add,
        (1, size, *(1,) * (x.ndim - 2)),
        (1,) * x.ndim,
        sides,
    )
    return x / (node["bias"] + node["alpha"] / size * squares) ** node["beta"]


def _columns_to_image(node: Node, x: Any, image: Any, block: Any) -> Any:
    """The transpose of what cuts an image into blocks."""
    sizes, kernel = integers(image, "its input shape"), integers(block, "its input block_shape")
    at = Windows.of(node, sizes, kernel)
    channels = x.shape[1] // math.prod(kernel)

    def cut(picture: Any) -> Any:
        return lax.conv_general_dilated_patches(
            picture, kernel, at.strides, at.pads, rhs_dilation=at.dilations
        )

    like = jax.ShapeDtypeStruct((x.shape[0], channels, *sizes), x.dtype)
    shape = jax.eval_shape(cut, like).shape
    return jax.linear_transpose(cut, like)(x.reshape(shape))[0]


WINDOWS: Mapping[str, Operator] = {
    "AveragePool": _average_pool,
    "Col2Im": _columns_to_image,
    "Conv": convolution,
    "ConvTranspose": _transposed_convolution,
    "LRN": _local_response_normalization,
    "LpPool": _norm_pool,
    "MaxPool": _max_pool,
    "MaxUnpool": _max_unpool,
}
