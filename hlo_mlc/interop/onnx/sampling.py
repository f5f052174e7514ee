"""Operators that interpolate: resizing, sampling along a grid, regions."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from hlo_mlc.interop.onnx.node import Node, Operator, along, integers, is_floating, known
from hlo_mlc.interop.onnx.windows import Windows

_NEAREST: Mapping[str, Callable[[Any], Any]] = {
    "round_prefer_floor": lambda at: np.ceil(at - 0.5),
    "round_prefer_ceil": lambda at: np.floor(at + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}
Taps = list[list[tuple[Any, Any]]]
"""Of each axis, the elements that are read: index and weight."""
_REACH = {"linear": 1, "cubic": 2}  # how many neighbours on each side count


def _weight(mode: str, distance: Any, sharpness: float) -> Any:
    """Of a neighbour.  Source: R. Keys, Cubic convolution interpolation (1981)."""
    d, a = abs(distance), sharpness
    if mode == "linear":
        return (1 - d).clip(0)
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return (jnp if isinstance(d, jax.Array) else np).where(d <= 1, near, far * (d < 2))


def _places(node: Node, old: int, new: int, scale: float, region: Sequence[float]) -> np.ndarray:
    """Where the new elements of an axis lie among the old ones."""
    at, width, mode = (
        np.arange(new, dtype=np.float64),
        scale * old,
        node["coordinate_transformation_mode"],
    )
    if mode == "align_corners":
        return at * (old - 1) / (width - 1) if width > 1 else at * 0
    if mode == "asymmetric":
        return at / scale
    if mode == "tf_crop_and_resize":
        start, end = (bound * (old - 1) for bound in region)
        return start + at * (end - start) / (width - 1) if width > 1 else at * 0 + (start + end) / 2
    if mode == "pytorch_half_pixel" and width <= 1:
        return at * 0
    if mode == "half_pixel_symmetric":
        at = at + old / 2 * (1 - new / width) * scale
    elif mode not in ("half_pixel", "pytorch_half_pixel"):
        raise NotImplementedError(f"coordinate_transformation_mode {mode}")
    return (at + 0.5) / scale - 0.5


def _resize(node: Node, x: Any, region: Any = None, scales: Any = None, sizes: Any = None) -> Any:
    """Axis by axis: a sum of old elements, with weights."""
    if node.version < 11:
        region, scales = None, region
    axes = [axis % x.ndim for axis in node["axes"] or range(x.ndim)]
    old = [x.shape[axis] for axis in axes]
    if sizes is not None and np.size(sizes):
        new = list(integers(sizes, "an input of sizes"))
        by = [n / o for n, o in zip(new, old, strict=True)]
        if (policy := node["keep_aspect_ratio_policy"]) not in (None, "stretch"):
            by = [(min if policy == "not_larger" else max)(by)] * len(by)
            new = [int(scale * size + 0.5) for scale, size in zip(by, old, strict=True)]
    else:
        given = known(scales, "its input scales").astype(np.float32)
        new = (given * np.array(old, np.float32)).astype(int).tolist()  # 2.6 of 5 are 13
        by = given.astype(np.float64).tolist()
    cropped = node["coordinate_transformation_mode"] == "tf_crop_and_resize"
    regions = known(region, "its input roi").reshape(2, -1).T if cropped else [(0, 1)] * len(axes)
    out = x
    for axis, size, wanted, scale, bounds in zip(axes, old, new, by, regions, strict=True):
        out = _resized(node, out, axis, size, wanted, scale, bounds)
    if not is_floating(x) and is_floating(out):
        info = jnp.iinfo(x.dtype)
        out = jnp.clip(jnp.round(out), info.min, info.max)
    return out.astype(x.dtype)


def _resized(
    node: Node, x: Any, axis: int, old: int, new: int, scale: float, bounds: Sequence[float]
) -> Any:
    cropped = node["coordinate_transformation_mode"] == "tf_crop_and_resize"
    if scale == 1 and tuple(bounds) == (0, 1):
        return x
    at = _places(node, old, new, scale, bounds)
    if node["mode"] == "nearest":
        index = np.clip(_NEAREST[node["nearest_mode"]](at), 0, old - 1).astype(np.int32)
        x = jnp.take(x, index, axis, mode="clip")
    else:
        sharpen = min(scale, 1.0) if node["antialias"] else 1.0
        reach = int(np.ceil(_REACH[node["mode"]] / sharpen))
        index = np.floor(at)[:, None] + np.arange(1 - reach, 1 + reach)
        weights = _weight(node["mode"], (index - at[:, None]) * sharpen, node["cubic_coeff_a"])
        if node["exclude_outside"]:
            weights = weights * ((index >= 0) & (index < old))
        if node["exclude_outside"] or node["antialias"]:
            weights = weights / weights.sum(1, keepdims=True)
        kind = x.dtype if is_floating(x) else np.dtype(np.float32)
        x = sum(
            jnp.take(x, np.clip(i, 0, old - 1).astype(np.int32), axis, mode="clip")
            * along(w.astype(kind), axis, x.ndim)
            for i, w in zip(index.T, weights.T, strict=True)
            if w.any()
        )
    if cropped and ((at < 0) | (at > old - 1)).any():
        outside = along((at < 0) | (at > old - 1), axis, x.ndim)
        x = jnp.where(outside, jnp.asarray(node["extrapolation_value"], x.dtype), x)
    return x


def _upsample(node: Node, x: Any, scales: Any = None) -> Any:
    how = {
        "mode": node["mode"],
        "coordinate_transformation_mode": "asymmetric",
        "nearest_mode": "floor",
    }
    by = np.array(node["scales"]) if scales is None else scales
    return _resize(Node(11, how, 1, node.numpy, node.run), x, None, by)


def _reflected(at: Any, low: float, high: float) -> Any:
    """Back and forth between the bounds."""
    span = high - low
    if span <= 0:
        return jnp.zeros_like(at)
    far = jnp.mod(at - low, 2 * span)
    return low + jnp.where(far > span, 2 * span - far, far)


def _grid_sample(node: Node, x: Any, grid: Any) -> Any:
    """x [n, c, …], grid [n, …, axes], from the last axis to the first."""
    mode = {"bilinear": "linear", "bicubic": "cubic"}.get(node["mode"], node["mode"])
    padding, sizes = node["padding_mode"], x.shape[2:]
    taps: Taps = []
    for axis, size in enumerate(sizes):
        at = (grid[..., len(sizes) - 1 - axis] + 1) / 2
        at, (low, high) = (
            (at * (size - 1), (0.0, size - 1.0))
            if node["align_corners"]
            else (at * size - 0.5, (-0.5, size - 0.5))
        )
        at = jnp.round(at) if mode == "nearest" else at

        def inside(at: Any, size: int = size, low: float = low, high: float = high) -> Any:
            if padding == "border":
                return jnp.clip(at, 0, size - 1)
            return _reflected(at, low, high) if padding == "reflection" else at

        if mode != "cubic":
            at = inside(at)
        first, reach = jnp.floor(at), _REACH.get(mode, 1)
        each = []
        for step in (0,) if mode == "nearest" else range(1 - reach, 1 + reach):
            index = inside(first + step)
            weight = (
                jnp.ones_like(at) if mode == "nearest" else _weight(mode, first + step - at, -0.75)
            )
            if padding == "zeros":
                weight = weight * ((index >= 0) & (index < size))
            each.append((jnp.clip(index, 0, size - 1).astype(np.int32), weight))
        taps.append(each)

    return jax.vmap(_sampled)(jnp.asarray(x), taps).astype(x.dtype)


def _sampled(picture: jax.Array, taps: Taps) -> jax.Array:
    """[c, …] of one of a batch, at all pairs of the places of its axes: [c, *places]."""
    return sum(
        picture[(slice(None), *(index for index, _ in corner))]
        * math.prod(weight for _, weight in corner)
        for corner in itertools.product(*taps)
    )


def _deformed(
    node: Node, x: Any, w: Any, offset: Any, bias: Any = None, mask: Any = None
) -> jax.Array:
    """A convolution of x [n, c, …] by w [o, c / groups, …] whose windows read what lies `offset`
    [n, kinds of offsets * elements of a window * axes, …] away, `mask` times."""
    (n, channels, *sizes), kernel, out = x.shape, w.shape[2:], offset.shape[2:]
    kinds, groups, rank = node["offset_group"], node["group"], len(kernel)
    windows = Windows.of(node, sizes, kernel)
    offset = offset.reshape(n, kinds, *kernel, rank, *out)
    taps: Taps = []
    for axis, size in enumerate(sizes):
        start = np.arange(out[axis]) * windows.strides[axis] - windows.pads[axis][0]
        inside = np.arange(kernel[axis]) * windows.dilations[axis]
        at = lax.index_in_dim(jnp.asarray(offset), axis, 2 + rank, keepdims=False)
        at = at + along(start.astype(x.dtype), axis, rank)
        at = at + along(inside.astype(x.dtype), axis, 2 * rank)
        first = jnp.floor(at)
        taps.append(
            [
                (
                    jnp.clip(index, 0, size - 1).astype(np.int32),
                    _weight("linear", index - at, 0) * ((index >= 0) & (index < size)),
                )
                for index in (first, first + 1)
            ]
        )
    pictures = jnp.asarray(x).reshape(n, kinds, channels // kinds, *sizes)
    read = jax.vmap(jax.vmap(_sampled))(pictures, taps)
    if mask is not None:
        read = read * mask.reshape(n, kinds, 1, *kernel, *out)
    found = jnp.einsum(
        "gok,ngkp->ngop",
        w.reshape(groups, w.shape[0] // groups, -1),
        read.reshape(n, groups, channels // groups * math.prod(kernel), -1),
    ).reshape(n, w.shape[0], *out)
    return found.astype(x.dtype) if bias is None else (found + along(bias, 1, x.ndim))


def _region_align(node: Node, x: Any, regions: Any, of_batch: Any) -> Any:
    """Regions [r, 4] of pictures [n, c, h, w] -> [r, c, height, width]."""
    shape, ratio = (node["output_height"], node["output_width"]), node["sampling_ratio"]
    half = 0.5 if node["coordinate_transformation_mode"] == "half_pixel" else 0.0
    if not ratio:
        raise NotImplementedError("sampling_ratio 0, as many samples as the regions are large")
    box = regions * node["spatial_scale"] - half
    taps = []
    for axis, (cells, size) in enumerate(zip(shape, x.shape[2:], strict=True)):
        start, extent = box[:, 1 - axis], box[:, 3 - axis] - box[:, 1 - axis]
        extent = extent if half else jnp.maximum(extent, 1.0)
        steps = (np.arange(cells * ratio) + 0.5) / (cells * ratio)
        at = start[:, None] + extent[:, None] * steps.astype(x.dtype)
        outside = (at < -1) | (at > size)
        at = jnp.clip(at, 0, size - 1)
        low = jnp.floor(at)
        taps.append(
            [
                (
                    jnp.clip(low + n, 0, size - 1).astype(np.int32),
                    jnp.where(outside, 0, _weight("linear", low + n - at, 0)).astype(x.dtype),
                )
                for n in (0, 1)
            ]
        )
    pictures = jnp.asarray(x)[of_batch]  # [r, c, h, w]

    def sampled(picture: Any, rows: Any, columns: Any) -> Any:
        parts = [
            picture[:, y[:, None], z] * (v[:, None] * w)
            for (y, v), (z, w) in itertools.product(rows, columns)
        ]
        # The maximum is of the weighted corners, not of the samples.
        sample = sum(parts) if node["mode"] == "avg" else jnp.stack(parts).max(0)
        cells = sample.reshape(-1, shape[0], ratio, shape[1], ratio)
        return cells.mean((2, 4)) if node["mode"] == "avg" else cells.max((2, 4))

    return jax.vmap(sampled)(pictures, *taps)


SAMPLING: Mapping[str, Operator] = {
    "DeformConv": _deformed,
    "GridSample": _grid_sample,
    "Resize": _resize,
    "RoiAlign": _region_align,
    "Upsample": _upsample,
}
