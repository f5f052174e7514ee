"""Operators that move elements: shapes, slices, gathers and scatters."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from hlo_mlc.interop.onnx.node import Node, Operator, integers, known


def _reshape(node: Node, x: Any, shape: Any = None) -> Any:
    sizes = node["shape"] if shape is None else integers(shape, "its input shape")
    if not node["allowzero"]:
        sizes = [x.shape[n] if size == 0 else size for n, size in enumerate(sizes)]
    return x.reshape(tuple(sizes))


def _flatten(node: Node, x: Any) -> Any:
    axis = node["axis"] + (x.ndim if node["axis"] < 0 else 0)
    return x.reshape(math.prod(x.shape[:axis]), math.prod(x.shape[axis:]))


def _axes(node: Node, axes: Any) -> tuple[int, ...] | None:
    return node["axes"] if axes is None else integers(axes, "its input axes")


def _squeeze(node: Node, x: Any, axes: Any = None) -> Any:
    return node.numpy.squeeze(x, _axes(node, axes))


def _unsqueeze(node: Node, x: Any, axes: Any = None) -> Any:
    return node.numpy.expand_dims(x, _axes(node, axes))


def _expand(node: Node, x: Any, shape: Any) -> Any:
    sizes = np.broadcast_shapes(x.shape, integers(shape, "its input shape"))
    return node.numpy.broadcast_to(x, sizes)


def _concatenate(node: Node, *xs: Any) -> Any:
    return node.numpy.concatenate(xs, 1 if node["axis"] is None else node["axis"])


def split(node: Node, x: Any, sizes: Any = None) -> tuple[Any, ...]:
    axis, parts = node["axis"], node["num_outputs"] or node.results
    if sizes is None and node["split"] is None:
        each = -(-x.shape[axis] // parts)
        ends = [min(each * n, x.shape[axis]) for n in range(1, parts)]
    else:
        given = node["split"] if sizes is None else integers(sizes, "an input of sizes")
        ends = np.cumsum(given)[:-1].tolist()
    return tuple(node.numpy.split(x, ends, axis))


def _slice(
    node: Node, x: Any, starts: Any = None, ends: Any = None, axes: Any = None, steps: Any = None
) -> Any:
    first = node["starts"] if starts is None else integers(starts, "its input starts")
    last = node["ends"] if ends is None else integers(ends, "its input ends")
    along = range(len(first)) if (given := _axes(node, axes)) is None else given
    by = (1,) * len(first) if steps is None else integers(steps, "its input steps")
    slices = [slice(None)] * x.ndim
    for axis, start, end, step in zip(along, first, last, by, strict=True):
        if step < 0:  # where Python's slices start is not moved inside
            size = x.shape[axis]
            start = max(start + (size if start < 0 else 0), 0)
            end = None if end + size < 0 else end
        slices[axis] = slice(start, end, step)
    return x[tuple(slices)]


def _gather(node: Node, x: Any, indices: Any) -> Any:
    return node.numpy.asarray(x)[(slice(None),) * (node["axis"] % x.ndim) + (indices,)]


def _gather_nd(node: Node, x: Any, indices: Any) -> Any:
    def gathered(x: Any, indices: Any) -> Any:
        return jnp.asarray(x)[tuple(jnp.moveaxis(indices, -1, 0))]

    for _ in range(node["batch_dims"] or 0):
        gathered = jax.vmap(gathered)
    return gathered(jnp.asarray(x), jnp.asarray(indices))


def _scattered(node: Node, x: Any, index: Any, updates: Any) -> Any:
    kind = node["reduction"] or "none"
    name = {"none": "set", "mul": "multiply"}.get(kind, kind)
    return getattr(jnp.asarray(x).at[index], name)(updates)


def _places(node: Node, indices: Any) -> tuple[Any, ...]:
    """Of elements, each at its own place but along one axis."""
    places = list(np.ogrid[tuple(map(slice, indices.shape))])
    places[node["axis"]] = indices
    return tuple(places)


def _gather_elements(node: Node, x: Any, indices: Any) -> Any:
    return node.numpy.asarray(x)[_places(node, indices)]


def _scatter_elements(node: Node, x: Any, indices: Any, updates: Any) -> Any:
    return _scattered(node, x, _places(node, indices), updates)


def _scatter_nd(node: Node, x: Any, indices: Any, updates: Any) -> Any:
    return _scattered(node, x, tuple(jnp.moveaxis(indices, -1, 0)), updates)


def _tensor_scatter(node: Node, x: Any, updates: Any, starts: Any = None) -> Any:
    axis, rows = node["axis"] % x.ndim, updates.shape[node["axis"]]
    starts = np.zeros(x.shape[0], np.int64) if starts is None else starts
    at = jnp.asarray(starts)[:, None] + np.arange(rows)
    at = at % x.shape[axis] if node["mode"] == "circular" else at
    index = list(np.ogrid[tuple(map(slice, updates.shape))])
    index[axis] = at.reshape(-1, *(1,) * (axis - 1), rows, *(1,) * (x.ndim - axis - 1))
    return jnp.asarray(x).at[tuple(index)].set(updates)


def _shape(node: Node, x: Any) -> Any:
    sizes = x.shape[node["start"] : node["end"]]
    if symbols := [str(size) for size in sizes if not isinstance(size, int)]:
        raise NotImplementedError(
            f"the model computes with the sizes {', '.join(symbols)}, which "
            "have to be numbers: trace or export it for some"
        )
    return np.array(sizes, np.int64)


def _constant(node: Node) -> Any:
    ((name, value),) = ((name, node[name]) for name in node.attributes if node[name] is not None)
    kind = {"i": np.int64, "f": np.float32}.get(name.removeprefix("value_")[0])
    return np.asarray(value, kind if name.startswith("value_") else None)


def _constant_of_shape(node: Node, shape: Any) -> Any:
    value = np.zeros(1, np.float32) if node["value"] is None else node["value"]
    return np.full(integers(shape, "its input shape"), value.reshape(()), value.dtype)


def _range(node: Node, start: Any, limit: Any, step: Any) -> Any:
    start, limit, step = (known(value, "its range").reshape(()) for value in (start, limit, step))
    count = max(math.ceil((float(limit) - float(start)) / float(step)), 0)
    return (
        start
        + np.arange(count)
        * step.astype(
            np.float32 if step.dtype.itemsize == 2 and step.dtype.kind in "fV" else step.dtype
        )
    ).astype(start.dtype)


def _tile(node: Node, x: Any, repeats: Any) -> Any:
    return node.numpy.tile(x, integers(repeats, "its input repeats"))


def _pad(node: Node, x: Any, pads: Any = None, value: Any = None, axes: Any = None) -> Any:
    given = node["pads"] if pads is None else integers(pads, "its input pads")
    which = range(x.ndim) if axes is None else integers(axes, "its input axes")
    sides = [(0, 0)] * x.ndim
    for axis, *side in zip(which, given[: len(which)], given[len(which) :], strict=True):
        sides[axis] = tuple(side)
    cut = tuple(
        slice(max(-low, 0), size - max(-high, 0))
        for (low, high), size in zip(sides, x.shape, strict=True)
    )
    more = [(max(low, 0), max(high, 0)) for low, high in sides]
    if (mode := node["mode"]) != "constant":
        return jnp.pad(x[cut], more, mode)
    value = (node["value"] or 0) if value is None or not value.size else value.reshape(())
    return jnp.pad(x[cut], more, constant_values=jnp.asarray(value, x.dtype))


def _triangle(node: Node, x: Any, k: Any = None) -> Any:
    (offset,) = (0,) if k is None else integers(k, "its input k")
    return (jnp.triu if node["upper"] else jnp.tril)(x, offset)


def _eye(node: Node, x: Any) -> Any:
    rows, columns = x.shape
    return np.eye(rows, columns, node["k"]).astype(node["dtype"] or x.dtype)


def _one_hot(node: Node, indices: Any, depth: Any, values: Any) -> Any:
    (count,) = integers(depth, "its input depth")
    at = jnp.where(indices < 0, indices + count, indices)
    axis = node["axis"] % (at.ndim + 1)
    places = np.arange(count).reshape(-1, *(1,) * (at.ndim - axis))
    return jnp.where(jnp.expand_dims(at, axis) == places, *values[::-1])


def _top(node: Node, x: Any, k: Any = None) -> Any:
    (count,) = (node["k"],) if k is None else integers(k, "its input K")
    axis = node["axis"] % x.ndim
    if node["largest"] == 0:
        at = lax.slice_in_dim(jnp.argsort(x, axis), 0, count, axis=axis)
        values = jnp.take_along_axis(jnp.asarray(x), at, axis)
    else:
        values, at = (
            jnp.moveaxis(part, -1, axis) for part in lax.top_k(jnp.moveaxis(x, axis, -1), count)
        )
    return values, at.astype(jax.dtypes.canonicalize_dtype(np.int64))


def _reverse_sequence(node: Node, x: Any, lengths: Any) -> Any:
    time, batch = node["time_axis"], node["batch_axis"]
    at = np.arange(x.shape[time]).reshape(-1, *(1,) * (x.ndim - time - 1))
    size = jnp.asarray(lengths).reshape(-1, *(1,) * (x.ndim - batch - 1))
    index = jnp.broadcast_to(jnp.where(at < size, size - 1 - at, at), x.shape)
    return jnp.take_along_axis(jnp.asarray(x), index, time)


def _depth_to_space(node: Node, x: Any) -> Any:
    (n, c, h, w), size = x.shape, node["blocksize"]
    if node["mode"] == "CRD":
        parts = x.reshape(n, -1, size, size, h, w).transpose(0, 1, 4, 2, 5, 3)
    else:
        parts = x.reshape(n, size, size, -1, h, w).transpose(0, 3, 4, 1, 5, 2)
    return parts.reshape(n, c // size**2, h * size, w * size)


def _space_to_depth(node: Node, x: Any) -> Any:
    (n, c, h, w), size = x.shape, node["blocksize"]
    order = (0, 1, 3, 5, 2, 4) if node["mode"] == "CRD" else (0, 3, 5, 1, 2, 4)
    parts = x.reshape(n, c, h // size, size, w // size, size).transpose(order)
    return parts.reshape(n, c * size**2, h // size, w // size)


def _non_zero(node: Node, x: Any) -> Any:
    return np.array(np.nonzero(known(x, "the number of its results")), np.int64)


def _compress(node: Node, x: Any, condition: Any) -> Any:
    index = np.flatnonzero(known(condition, "the number of its results"))
    return jnp.take(x, index, node["axis"])


def _unique(node: Node, x: Any) -> Any:
    x = known(x, "the number of its results")
    values, first, inverse, counts = np.unique(x, True, True, True, axis=node["axis"])
    if not node["sorted"]:
        order = np.argsort(first)
        values = np.take(values, order, node["axis"] or 0)
        inverse, first, counts = np.argsort(order)[inverse], first[order], counts[order]
    return values, first, inverse.ravel(), counts


SHAPES: Mapping[str, Operator] = {
    "Compress": _compress,
    "Concat": _concatenate,
    "Constant": _constant,
    "ConstantOfShape": _constant_of_shape,
    "DepthToSpace": _depth_to_space,
    "Expand": _expand,
    "EyeLike": _eye,
    "Flatten": _flatten,
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "GatherND": _gather_nd,
    "NonZero": _non_zero,
    "OneHot": _one_hot,
    "Pad": _pad,
    "Range": _range,
    "Reshape": _reshape,
    "ReverseSequence": _reverse_sequence,
    "Scatter": _scatter_elements,
    "ScatterElements": _scatter_elements,
    "ScatterND": _scatter_nd,
    "Shape": _shape,
    "Size": lambda node, x: np.array(math.prod(_shape(node, x)), np.int64),
    "Slice": _slice,
    "SpaceToDepth": _space_to_depth,
    "Split": split,
    "Squeeze": _squeeze,
    "TensorScatter": _tensor_scatter,
    "Tile": _tile,
    "TopK": _top,
    "Transpose": lambda node, x: node.numpy.transpose(x, node["perm"]),
    "Trilu": _triangle,
    "Unique": _unique,
    "Unsqueeze": _unsqueeze,
}
