"""Updates of zeros that are added to something: they update it where it lies.

The gradient of what a loop reads at a place that changes is an array of zeros with one update,
which is added to what was summed up before: three times the whole array in every trip.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from hlo_mlc.graph.builder import combining
from hlo_mlc.graph.core import Attribute, Graph, Node, Value
from hlo_mlc.graph.rewrite import Rewriter, apply_rules
from hlo_mlc.ops.registry import SOURCES
from hlo_mlc.passes.loop_rewriting import is_open_loop
from hlo_mlc.passes.splat import element_of, is_splat_of

_ADD_OP = "stablehlo.add"
_UPDATE_OP, _SCATTER_OP = "stablehlo.dynamic_update_slice", "stablehlo.scatter"
_TRANSPOSE_OP = "stablehlo.transpose"
_BARRIER_OP = "stablehlo.optimization_barrier"


def update_in_place(graph: Graph) -> Graph:
    """`x + update(zeros, u, i)` -> `update(x, x[i] + u, i)`, `x + scatter(zeros, i, u)` ->
    `x.at[i].add(u)`, where no element of x is -0.0, which plus 0.0 is 0.0, and no place is met
    twice, which would be rounded otherwise.  What is transposed before it is added updates x along
    the axes that it comes to lie along.  Returns `graph` itself where there are no such sums.
    """
    if not _adds_updates(graph):
        return graph
    signed = _signed(graph)

    def rule(node: Node, context: Rewriter) -> Value | None:
        for x, other in (node.operands, node.operands[::-1]):
            update, order = _update(context.definition(other), context)
            if update is not None and (x.type.dtype.is_integer or x not in signed):
                new = _added(x, update, order, context)
                if new is not None:
                    return new
        return None

    return apply_rules(graph, {_ADD_OP: (rule,)})


def _adds_updates(graph: Graph) -> bool:
    """Whether there is anything to look at: most graphs are done with here."""
    if graph.ops.isdisjoint((_UPDATE_OP, _SCATTER_OP)):
        return False
    updates = {node.results[0] for node in graph.walk() if node.op in (_UPDATE_OP, _SCATTER_OP)}
    updates |= {
        node.results[0]
        for node in graph.walk()
        if node.op == _TRANSPOSE_OP and not updates.isdisjoint(node.operands)
    }
    return any(
        node.op == _ADD_OP and not updates.isdisjoint(node.operands) for node in graph.walk()
    )


def _update(node: Node | None, context: Rewriter) -> tuple[Node | None, Sequence[int]]:
    """The update of zeros that a node is, or None, and which of its axes each one of the node's
    is."""
    order: Sequence[int] | None = None
    if node is not None and node.op == _TRANSPOSE_OP:
        order, node = node.attributes["permutation"], context.definition(node.operands[0])
    if (
        node is None
        or node.op not in (_UPDATE_OP, _SCATTER_OP)
        or not is_splat_of(node.operands[0], 0, context)
    ):
        return None, ()
    return node, range(len(node.results[0].type.shape)) if order is None else order


def _added(x: Value, update: Node, order: Sequence[int], context: Rewriter) -> Value | None:
    """What updates `x` where `update` updates zeros whose axes are those of `x` in this order."""
    if update.op == _UPDATE_OP:
        _, part, *starts = update.operands
        part, starts = context.transpose(part, order), [starts[axis] for axis in order]
        before = context.dynamic_slice(x, starts, part.type.shape)
        return context.update(x, context.like(_ADD_OP, before, part), starts)
    kind = _kind(update)
    if not kind or not (_is_unique(update) or (kind == "add" and x.type.dtype.is_integer)):
        return None
    places, parts = update.operands[1:]
    attributes, axes = _along(update.attributes, order, len(parts.type.shape))
    parts = context.transpose(parts, axes)
    return context.add(
        _SCATTER_OP, (x, places, parts), x.type, attributes, (combining(_ADD_OP, x.type.dtype),)
    )


def _along(
    attributes: Mapping[str, Attribute], order: Sequence[int], rank: int
) -> tuple[Mapping[str, Attribute], Sequence[int]]:
    """The attributes of a scatter whose axes are put in an order, and the order in which its
    updates, of so many axes, then have theirs."""
    place = {axis: n for n, axis in enumerate(order)}
    batching = sorted(
        (place[axis], of_places)
        for axis, of_places in zip(
            attributes["input_batching_dims"],
            attributes["scatter_indices_batching_dims"],
            strict=True,
        )
    )
    alone = {*attributes["inserted_window_dims"], *attributes["input_batching_dims"]}
    windows = attributes["update_window_dims"]
    window_of = dict(
        zip((axis for axis in sorted(order) if axis not in alone), windows, strict=True)
    )
    axes = list(range(rank))
    for at, axis in zip(windows, (axis for axis in order if axis in window_of), strict=True):
        axes[at] = window_of[axis]
    moved = {
        "inserted_window_dims": tuple(sorted(place[a] for a in attributes["inserted_window_dims"])),
        "input_batching_dims": tuple(axis for axis, _ in batching),
        "scatter_indices_batching_dims": tuple(axis for _, axis in batching),
        "scatter_dims_to_operand_dims": tuple(
            place[a] for a in attributes["scatter_dims_to_operand_dims"]
        ),
    }
    return {**attributes, **moved}, axes


def _kind(scatter: Node) -> str:
    """ "set" or "add" for scatters of one tensor that do that, else ""."""
    (body,) = scatter.regions
    if len(scatter.operands) != 3:
        return ""
    if body.results == body.parameters[1:]:
        return "set"
    is_sum = (
        len(body.nodes) == 1
        and body.nodes[0].op == _ADD_OP
        and body.results == body.nodes[0].results
        and {*body.nodes[0].operands} == {*body.parameters}
    )
    return "add" if is_sum else ""


def _is_unique(scatter: Node) -> bool:
    """Whether no place is met twice: indices of no axes are many of the same place, of size 0."""
    vector = len(scatter.attributes["scatter_dims_to_operand_dims"])
    return scatter.attributes["unique_indices"] or scatter.operands[1].type.size == vector > 0


def _signed(graph: Graph) -> set[Value]:
    """The values of which some element may be -0.0, as far as is seen: only those that follow from
    others are found, so that what a loop hands on may be judged by what it begins with."""
    signed = {*graph.parameters, *graph.captures}
    nodes, known = tuple(graph.walk()), -1
    while known != len(signed):
        known = len(signed)
        for node in nodes:
            signed.update(_signed_at(node, signed))
    return signed


def _signed_at(node: Node, signed: set[Value]) -> Iterator[Value]:
    """Those of a node's results and of its regions' parameters that may be so, as far as known."""
    if is_open_loop(node):
        test, body = node.regions
        for values in zip(
            node.operands, body.results, node.results, test.parameters, body.parameters, strict=True
        ):
            if not signed.isdisjoint(values[:2]):
                yield from values[2:]
    elif node.op == _BARRIER_OP and not node.opaque:
        yield from (new for v, new in zip(node.operands, node.results, strict=True) if v in signed)
    else:
        for region in node.regions:
            yield from region.parameters
        if len(node.results) != 1 or node.opaque or _may_be_signed(node, signed):
            yield from node.results


def _may_be_signed(node: Node, signed: set[Value]) -> bool:
    operands = node.operands
    if not node.results[0].type.dtype.is_float:
        return True
    if node.literal is not None:
        element = element_of(node.literal)
        return element is None or (element == 0 and bool(np.signbit(element)))
    if node.op == _ADD_OP:
        return signed.issuperset(operands)
    if node.op == _SCATTER_OP:
        kind = _kind(node)
        return operands[0] in signed or not kind or (kind == "set" and operands[-1] in signed)
    return node.op not in SOURCES or not signed.isdisjoint(operands[SOURCES[node.op]])
