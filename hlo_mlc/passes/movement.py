"""Identities of ops that move elements: reshapes, transposes, broadcasts, slices, …"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np

from hlo_mlc.expr.dtypes import BOOL, TensorType
from hlo_mlc.graph.core import Node, Value
from hlo_mlc.graph.effects import is_removable
from hlo_mlc.graph.rewrite import EVERY_OP, Rewriter, Rule
from hlo_mlc.ops.registry import ELEMENTWISE
from hlo_mlc.passes.splat import is_splat_of, splat

# Operations on sorted rows that are done anew on unsorted ones.
_MOST_STEPS = 8


def zero_size(node: Node, context: Rewriter) -> tuple[Value, ...] | None:
    """`op(…) : 0x…` -> an empty constant"""
    if (
        node.literal is not None
        or not node.results
        or any(result.type.size for result in node.results)
        or not is_removable(node)
    ):
        return None
    return tuple(
        context.array(np.zeros(result.type.shape, result.type.dtype.numpy))
        for result in node.results
    )


def same_type(node: Node, context: Rewriter) -> Value | None:
    """`reshape(x : t) : t`, a slice of the whole, a concatenation of one -> `x`

    For ops of which every instance with equal operand and result types is the identity.
    """
    operand = node.operands[0]
    return operand if operand.type == node.results[0].type else None


def reshape_of_reshape(node: Node, context: Rewriter) -> Value | None:
    """`reshape(reshape(x))` -> `reshape(x)`"""
    inner = context.definition(node.operands[0])
    if inner is None or inner.op != node.op:
        return None
    return context.reshape(inner.operands[0], node.results[0].type.shape)


def reshape_of_broadcast_scalar(node: Node, context: Rewriter) -> Value | None:
    """`reshape(broadcast(scalar))` -> `broadcast(scalar)`"""
    inner = context.definition(node.operands[0])
    if inner is None or inner.op != "stablehlo.broadcast_in_dim" or inner.operands[0].type.shape:
        return None
    return context.broadcast(inner.operands[0], node.results[0].type.shape)


def transpose_identity(node: Node, context: Rewriter) -> Value | None:
    """`transpose(x, [0, 1, …])` -> `x`"""
    permutation = node.attributes["permutation"]
    return node.operands[0] if permutation == tuple(range(len(permutation))) else None


def transpose_of_transpose(node: Node, context: Rewriter) -> Value | None:
    """`transpose(transpose(x, p), q)` -> `transpose(x, p[q])`"""
    inner = context.definition(node.operands[0])
    if inner is None or inner.op != node.op:
        return None
    first = inner.attributes["permutation"]
    permutation = tuple(first[axis] for axis in node.attributes["permutation"])
    return context.transpose(inner.operands[0], permutation)


def broadcast_identity(node: Node, context: Rewriter) -> Value | None:
    """`broadcast(x : t, [0, 1, …]) : t` -> `x`"""
    (operand,) = node.operands
    dimensions = node.attributes["broadcast_dimensions"]
    if operand.type == node.results[0].type and dimensions == tuple(range(len(dimensions))):
        return operand
    return None


def broadcast_of_broadcast(node: Node, context: Rewriter) -> Value | None:
    """`broadcast(broadcast(x, d), e)` -> `broadcast(x, e[d])`"""
    inner = context.definition(node.operands[0])
    if inner is None or inner.op != node.op:
        return None
    outer = node.attributes["broadcast_dimensions"]
    dimensions = tuple(outer[axis] for axis in inner.attributes["broadcast_dimensions"])
    return context.broadcast(inner.operands[0], node.results[0].type.shape, dimensions)


def slice_of_slice(node: Node, context: Rewriter) -> Value | None:
    """`x[a:b:s][c:d:t]` -> `x[a + s c : a + s (d - 1) + 1 : s t]`"""
    inner = context.definition(node.operands[0])
    if inner is None or inner.op != node.op:
        return None
    first, second = inner.attributes, node.attributes
    axes = range(len(node.results[0].type.shape))
    starts, limits, strides = [], [], []
    for i in axes:
        origin, step = first["start_indices"][i], first["strides"][i]
        begin, end = second["start_indices"][i], second["limit_indices"][i]
        starts.append(origin + step * begin)
        # `first` stops at its own limit; behind the last element taken nothing is read.
        limits.append(origin + step * (end - 1) + 1 if end > begin else origin + step * begin)
        strides.append(step * second["strides"][i])
    return context.slice(inner.operands[0], starts, limits, strides)


def pad_nothing(node: Node, context: Rewriter) -> Value | None:
    """`pad(x, v, 0, 0, 0)` -> `x`"""
    attributes = node.attributes
    amounts = (
        *attributes["edge_padding_low"],
        *attributes["edge_padding_high"],
        *attributes["interior_padding"],
    )
    return None if any(amounts) else node.operands[0]


def concatenate_nonempty(node: Node, context: Rewriter) -> Value | None:
    """`concatenate(x, y : 0x…)` -> `concatenate(x)`"""
    parts = tuple(operand for operand in node.operands if operand.type.size)
    if not parts or len(parts) == len(node.operands):
        return None
    return context.add(node.op, parts, node.results[0].type, node.attributes)


def concatenate_one(node: Node, context: Rewriter) -> Value | None:
    """`concatenate(x)` -> `x`"""
    return node.operands[0] if len(node.operands) == 1 else None


def reverse_single(node: Node, context: Rewriter) -> Value | None:
    """`reverse(x, d)` -> `reverse(x, d without axes of size 1)`, and `x` if none is left"""
    (operand,) = node.operands
    dimensions = node.attributes["dimensions"]
    kept = tuple(axis for axis in dimensions if operand.type.shape[axis] != 1)
    if not kept:
        return operand
    if kept == dimensions:
        return None
    return context.add(node.op, node.operands, node.results[0].type, {"dimensions": kept})


def reverse_of_reverse(node: Node, context: Rewriter) -> Value | None:
    """`reverse(reverse(x, d), d)` -> `x`"""
    inner = context.definition(node.operands[0])
    if inner is None or inner.op != node.op:
        return None
    same = set(inner.attributes["dimensions"]) == set(node.attributes["dimensions"])
    return inner.operands[0] if same else None


def dynamic_slice_at_constant(node: Node, context: Rewriter) -> Value | None:
    """`dynamic_slice(x, constants, sizes)` -> `slice(x)`, the starts clamped"""
    operand, *starts = node.operands
    known = [splat(start, context) for start in starts]
    if any(start is None for start in known):
        return None
    sizes = node.attributes["slice_sizes"]
    first = tuple(
        min(max(int(start), 0), extent - size)
        for start, extent, size in zip(known, operand.type.shape, sizes, strict=True)
    )
    limits = [start + size for start, size in zip(first, sizes, strict=True)]
    return context.slice(operand, first, limits)


def update_of_all(node: Node, context: Rewriter) -> Value | None:
    """`dynamic_update_slice(x : t, y : t, …)` -> `y`"""
    operand, update, *_ = node.operands
    return update if operand.type == update.type else None


def scatter_of_all(node: Node, context: Rewriter) -> Value | None:
    """`scatter(x : t, no index, y : t, f)` -> `f(x, y)`, where f is `y` or one operation

    `x.at[:].set(y)` and `x.at[:].add(y)` are written so.
    """
    if (
        len(node.operands) != 3
        or node.operands[0].type != node.operands[2].type
        or node.attributes["scatter_dims_to_operand_dims"]
        or len(node.attributes["update_window_dims"]) != len(node.operands[0].type.shape)
    ):
        return None
    operand, _, update = node.operands
    return combined(node, context, operand, update)


def scatter_of_transpose(node: Node, context: Rewriter) -> Value | None:
    """`scatter(splat, i, transpose(u), f)` -> `transpose(scatter(splat, i, u, f))`, where windows
    of one axis then lie along the last one of all, so that they are rows

    Sums in a batch that comes last, `vmap(segment_sum, in_axes=(1, None))`, are written so; where
    it is to come last again, nothing is transposed any more.
    """
    made = context.definition(node.operands[-1])
    if len(node.operands) != 3 or made is None or made.op != "stablehlo.transpose":
        return None
    x, indices, updates = node.operands
    attributes, (source,) = node.attributes, made.operands
    order, rank = made.attributes["permutation"], len(x.type.shape)
    others = [*attributes["inserted_window_dims"], *attributes["input_batching_dims"]]
    windows = [axis for axis in range(rank) if axis not in others]
    last = len(order) - 1
    if (
        len(windows) != 1
        or updates.type.size < x.type.size
        or order[attributes["update_window_dims"][0]] != last
        or [axis for axis in order if axis != last] != list(range(last))
    ):
        return None
    forth = (*sorted(others), *windows)  # the axes of x as they are then
    back = tuple(forth.index(axis) for axis in range(rank))
    kind = TensorType(tuple(x.type.shape[axis] for axis in forth), x.type.dtype)
    number = splat(x, context)
    if forth != tuple(range(rank)):
        if number is None:
            return None
        x = context.constant(number, kind)
    moved = {
        name: tuple(back[axis] for axis in attributes[name])
        for name in ("inserted_window_dims", "input_batching_dims", "scatter_dims_to_operand_dims")
    }
    scattered = context.add(
        node.op,
        (x, indices, source),
        kind,
        {**attributes, **moved, "update_window_dims": (last,)},
        node.regions,
    )
    return context.transpose(scattered, back)


def combined(scatter: Node, context: Rewriter, old: Value, new: Value) -> Value | None:
    """What a scatter makes of elements and their updates, where that is one of them or one
    operation."""
    (body,) = scatter.regions
    known = dict(zip(body.parameters, (old, new), strict=True))
    (result,) = body.results
    if result in known:
        return known[result]
    if (
        len(body.nodes) != 1
        or body.nodes[0].op not in ELEMENTWISE
        or not known.keys() >= set(body.nodes[0].operands)
    ):
        return None
    return context.add(
        body.nodes[0].op,
        tuple(known[v] for v in body.nodes[0].operands),
        old.type,
        body.nodes[0].attributes,
    )


def sort_single(node: Node, context: Rewriter) -> tuple[Value, ...] | None:
    """`sort(x, …)` along an axis of size 1 -> `x, …`"""
    shape = node.operands[0].type.shape
    axis = node.attributes.get("dimension", -1)
    return node.operands if shape and shape[axis] == 1 else None


def fold_of_sorted(node: Node, context: Rewriter) -> Value | None:
    """`sum of rows of int(sort(x) < 0)` -> `sum of rows of int(x < 0)`, for what is exact"""
    operands, dtype = node.operands, node.results[0].type.dtype
    if len(operands) != 2 or not (dtype.is_integer or dtype is BOOL or _counts(node, context)):
        return None
    given: dict[Value, Value] = {}  # what stands for what is computed of sorted rows
    waiting, pointwise = [operands[0]], []
    for value in waiting:
        maker = context.definition(value)
        if splat(value, context) is not None:
            given[value] = value
        elif (
            maker is not None
            and maker.op == "stablehlo.sort"
            and not maker.opaque
            and maker.attributes.get("dimension", -1) % len(value.type.shape)
            in node.attributes["dimensions"]
        ):
            given[value] = maker.operands[maker.results.index(value)]
        elif (
            maker is None
            or maker.op not in ELEMENTWISE
            or maker.opaque
            or len(pointwise) == _MOST_STEPS
        ):
            return None
        else:
            pointwise.append(maker)
            waiting += maker.operands
    sorts = {context.definition(v) for v, unsorted in given.items() if v is not unsorted}
    if len(sorts) != 1:  # of several, elements in the same place need not come from one place
        return None
    for maker in reversed(pointwise):
        (result,) = maker.results
        given[result] = context.add(
            maker.op,
            [given[v] for v in maker.operands],
            result.type,
            maker.attributes,
            maker.regions,
        )
    return context.add(
        node.op,
        (given[operands[0]], operands[1]),
        node.results[0].type,
        node.attributes,
        node.regions,
    )


def _counts(fold: Node, context: Rewriter) -> bool:
    """Whether it adds up truths, to no more than floats can count to."""
    maker = context.definition(fold.operands[0])
    (body,) = fold.regions
    terms = fold.operands[0].type.size // max(1, fold.results[0].type.size)
    kind = np.dtype(fold.results[0].type.dtype.numpy)
    return (
        [n.op for n in body.nodes] == ["stablehlo.add"]
        and maker is not None
        and maker.op == "stablehlo.convert"
        and maker.operands[0].type.dtype is BOOL
        and is_splat_of(fold.operands[1], 0, context)
        and kind.itemsize >= 4
        and terms <= 1 << np.finfo(kind).nmant
    )


MOVEMENT_RULES: Mapping[str, Sequence[Rule]] = {
    EVERY_OP: (zero_size,),
    "stablehlo.reshape": (same_type, reshape_of_reshape, reshape_of_broadcast_scalar),
    "stablehlo.transpose": (transpose_identity, transpose_of_transpose),
    "stablehlo.broadcast_in_dim": (broadcast_identity, broadcast_of_broadcast),
    "stablehlo.slice": (same_type, slice_of_slice),
    "stablehlo.pad": (pad_nothing,),
    "stablehlo.concatenate": (concatenate_one, concatenate_nonempty),
    "stablehlo.reverse": (reverse_single, reverse_of_reverse),
    "stablehlo.dynamic_slice": (same_type, dynamic_slice_at_constant),
    "stablehlo.dynamic_update_slice": (update_of_all,),
    "stablehlo.scatter": (scatter_of_all, scatter_of_transpose),
    "stablehlo.sort": (sort_single,),
    "stablehlo.reduce": (fold_of_sorted,),
}


def merged(*tables: Mapping[str, Sequence[Rule]]) -> dict[str, tuple[Rule, ...]]:
    """One table of the rules of all, those of earlier tables first."""
    ops = dict.fromkeys(itertools.chain.from_iterable(tables))
    return {op: tuple(rule for table in tables for rule in table.get(op, ())) for op in ops}
