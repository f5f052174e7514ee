"""Ops that move elements, one after another, as one; and arithmetic in front of a broadcast."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hlo_mlc.expr.dtypes import TensorType
from hlo_mlc.graph.core import Node, Value
from hlo_mlc.graph.rewrite import Rewriter, Rule
from hlo_mlc.ops import elementwise
from hlo_mlc.passes.splat import splat

_BROADCAST = "stablehlo.broadcast_in_dim"
# Arrays that become one array at once; chains of joined arrays would take quadratic time.
_MOST_PARTS = 256


def _inner(node: Node, op: str, context: Rewriter) -> Node | None:
    """The node of this op that defines the first operand."""
    found = context.definition(node.operands[0])
    return found if found is not None and found.op == op else None


def broadcast_that_reshapes(node: Node, context: Rewriter) -> Value | None:
    """`broadcast(x : 4x3, [0, 2]) : 4x1x3` -> `reshape(x)`"""
    (operand,) = node.operands
    result = node.results[0].type
    dimensions = node.attributes["broadcast_dimensions"]
    if (
        operand.type.size != result.size
        or not result.size
        or not operand.type.shape
        or list(dimensions) != sorted(dimensions)
    ):
        return None
    return context.reshape(operand, result.shape)


def broadcast_of_reshape(node: Node, context: Rewriter) -> Value | None:
    """`broadcast(reshape(x : 4) : 4x1, [0, 1]) : 4x3` -> `broadcast(x, [0])`"""
    inner = _inner(node, "stablehlo.reshape", context)
    if inner is None:
        return None
    (source,) = inner.operands
    kept = [d for d, extent in enumerate(inner.results[0].type.shape) if extent != 1]
    if [inner.results[0].type.shape[d] for d in kept] != list(source.type.shape):
        return None
    outer = node.attributes["broadcast_dimensions"]
    return context.broadcast(source, node.results[0].type.shape, [outer[d] for d in kept])


def transpose_of_broadcast(node: Node, context: Rewriter) -> Value | None:
    """`transpose(broadcast(x, [1]), [1, 0])` -> `broadcast(x, [0])`, where axes stay in order"""
    inner = _inner(node, _BROADCAST, context)
    if inner is None:
        return None
    permutation = node.attributes["permutation"]
    dimensions = [permutation.index(d) for d in inner.attributes["broadcast_dimensions"]]
    if dimensions != sorted(dimensions):
        return None
    return context.broadcast(inner.operands[0], node.results[0].type.shape, dimensions)


def slice_of_broadcast(node: Node, context: Rewriter) -> Value | None:
    """`broadcast(x, [1])[a:b]` -> `broadcast(x, [1])`, for a slice of repeated elements"""
    inner = _inner(node, _BROADCAST, context)
    if inner is None:
        return None
    (source,) = inner.operands
    before, after = inner.results[0].type.shape, node.results[0].type.shape
    for d, extent in zip(inner.attributes["broadcast_dimensions"], source.type.shape, strict=True):
        if extent != 1 and before[d] != after[d]:
            return None
    return context.add(_BROADCAST, inner.operands, node.results[0].type, inner.attributes)


def slice_of_concatenate(node: Node, context: Rewriter) -> Value | None:
    """`concatenate(x : 3, y : 4)[4:6]` -> `y[1:3]`, for a slice of one part"""
    inner = _inner(node, "stablehlo.concatenate", context)
    if inner is None:
        return None
    axis = inner.attributes["dimension"]
    starts, limits = (list(node.attributes[n]) for n in ("start_indices", "limit_indices"))
    for part in inner.operands:
        extent = part.type.shape[axis]
        if starts[axis] >= 0 and limits[axis] <= extent:
            return context.slice(part, starts, limits, node.attributes["strides"])
        starts[axis] -= extent
        limits[axis] -= extent
    return None


def slice_of_pad(node: Node, context: Rewriter) -> Value | None:
    """`pad(x : 4, v, low=2)[3:5]` -> `x[1:3]`, for a slice of what is not padding"""
    inner = _inner(node, "stablehlo.pad", context)
    if inner is None or any(inner.attributes["interior_padding"]):
        return None
    source = inner.operands[0]
    low = inner.attributes["edge_padding_low"]
    starts = tuple(s - p for s, p in zip(node.attributes["start_indices"], low, strict=True))
    limits = tuple(s - p for s, p in zip(node.attributes["limit_indices"], low, strict=True))
    if any(s < 0 or e > n for s, e, n in zip(starts, limits, source.type.shape, strict=True)):
        return None
    return context.slice(source, starts, limits, node.attributes["strides"])


def pad_of_pad(node: Node, context: Rewriter) -> Value | None:
    """`pad(pad(x, v, a, b), v, c, d)` -> `pad(x, v, a + c, b + d)`, where none cuts off"""
    inner = _inner(node, "stablehlo.pad", context)
    if inner is None or inner.operands[1] is not node.operands[1]:
        return None
    names = ("edge_padding_low", "edge_padding_high")
    for pad in (inner, node):
        if any(pad.attributes["interior_padding"]) or any(
            amount < 0 for name in names for amount in pad.attributes[name]
        ):
            return None
    sums = {
        name: tuple(
            a + b for a, b in zip(inner.attributes[name], node.attributes[name], strict=True)
        )
        for name in names
    }
    return context.add(node.op, inner.operands, node.results[0].type, {**node.attributes, **sums})


def concatenate_of_slices(node: Node, context: Rewriter) -> Value | None:
    """`concatenate(x[0:3], x[3:7], y)` -> `concatenate(x[0:7], y)`"""
    axis = node.attributes["dimension"]
    parts: list[Value] = []
    for part in node.operands:
        joined = _joined(parts[-1], part, axis, context) if parts else None
        parts[-1:] = [part] if not parts else [parts[-1], part] if joined is None else [joined]
    if len(parts) == len(node.operands):
        return None
    return context.add(node.op, parts, node.results[0].type, node.attributes)


def concatenate_of_concatenate(node: Node, context: Rewriter) -> Value | None:
    """`concatenate(concatenate(x, y), z)` -> `concatenate(x, y, z)`, along one axis

    JAX joins sixteen arrays at a time.
    """
    parts: list[Value] = []
    for part in node.operands:
        inner = context.definition(part)
        nested = inner is not None and inner.op == node.op and inner.attributes == node.attributes
        parts += inner.operands if nested else (part,)
    if len(parts) == len(node.operands) or len(parts) > _MOST_PARTS:
        return None
    return context.add(node.op, parts, node.results[0].type, node.attributes)


def _joined(left: Value, right: Value, axis: int, context: Rewriter) -> Value | None:
    """One slice in place of two neighbouring ones of the same array."""
    first, second = context.definition(left), context.definition(right)
    if (
        first is None
        or second is None
        or first.op != "stablehlo.slice"
        or second.op != first.op
        or first.operands != second.operands
    ):
        return None
    one, two = first.attributes, second.attributes
    if (
        one["strides"][axis] != 1
        or one["strides"] != two["strides"]
        or one["limit_indices"][axis] != two["start_indices"][axis]
    ):
        return None
    for d in range(len(left.type.shape)):
        if d != axis and any(one[n][d] != two[n][d] for n in ("start_indices", "limit_indices")):
            return None
    shape = list(left.type.shape)
    shape[axis] += right.type.shape[axis]
    return context.add(
        first.op,
        first.operands,
        TensorType(tuple(shape), left.type.dtype),
        {**one, "limit_indices": two["limit_indices"]},
    )


def elementwise_of_broadcasts(node: Node, context: Rewriter) -> Value | None:
    """`f(broadcast(x), broadcast(y), 2)` -> `broadcast(f(x, y, 2))`, repeated alike and smaller"""
    tensor = node.results[0].type
    found: Node | None = None
    for value in node.operands:
        inner = context.definition(value)
        if splat(value, context) is not None:
            continue
        if value.type.shape != tensor.shape or inner is None or inner.op != _BROADCAST:
            return None
        if found is not None and (
            inner.attributes != found.attributes
            or inner.operands[0].type.shape != found.operands[0].type.shape
        ):
            return None
        found = inner
    if found is None or found.operands[0].type.size >= tensor.size:
        return None
    shape = found.operands[0].type.shape
    operands = []
    for value in node.operands:
        number = splat(value, context)
        if number is None:
            operands.append(context.definition(value).operands[0])
        elif not value.type.shape and tensor.shape:
            operands.append(value)  # the predicate of a select, a bound of a clamp
        else:
            operands.append(context.constant(number, TensorType(shape, value.type.dtype)))
    small = context.add(node.op, operands, TensorType(shape, tensor.dtype), node.attributes)
    return context.add(_BROADCAST, (small,), tensor, found.attributes)


COMPOSITION_RULES: Mapping[str, Sequence[Rule]] = {
    _BROADCAST: (broadcast_that_reshapes, broadcast_of_reshape),
    "stablehlo.transpose": (transpose_of_broadcast,),
    "stablehlo.slice": (slice_of_broadcast, slice_of_concatenate, slice_of_pad),
    "stablehlo.pad": (pad_of_pad,),
    "stablehlo.concatenate": (concatenate_of_slices, concatenate_of_concatenate),
    **{definition.name: (elementwise_of_broadcasts,) for definition in elementwise.DEFINITIONS},
}
