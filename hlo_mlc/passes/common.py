"""Common subexpression elimination."""

from __future__ import annotations

from collections.abc import Hashable

from hlo_mlc.graph.core import Graph, Node, Value
from hlo_mlc.graph.effects import is_mergeable
from hlo_mlc.graph.rewrite import with_body, with_parts

# Comparing larger constants costs more than a duplicate does.
_MAX_COMPARED_BYTES = 64 * 1024


def merge_common_nodes(graph: Graph) -> Graph:
    """`a = f(x); b = f(x)` -> `a = f(x)`, `a` in place of `b`; each region for itself.

    A value of an outer graph never replaces one of a region: bodies of reductions and sorts may
    not use values from outside.  Returns `graph` itself where there is nothing to merge.
    """
    return _merge(graph, {})


def _merge(graph: Graph, replaced: dict[Value, Value]) -> Graph:
    is_one = len(graph.nodes) == 1 and not graph.nodes[0].regions
    if is_one and replaced.keys().isdisjoint(graph.captures):  # as the bodies of most reductions
        return graph
    known: dict[Hashable, Node] = {}
    # Nodes with regions by what is quick to compare; few are worth comparing whole.
    alike: dict[Hashable, Node] = {}
    nodes = []
    for node in graph.nodes:
        operands = tuple([replaced.get(value, value) for value in node.operands])
        regions = tuple([_merge(region, replaced) for region in node.regions])
        node = with_parts(node, operands, regions)
        first = _first(node, known, alike)
        if first is not node:
            replaced.update(zip(node.results, first.results, strict=True))
            continue
        nodes.append(node)
    return with_body(graph, nodes, tuple([replaced.get(value, value) for value in graph.results]))


def _first(node: Node, known: dict[Hashable, Node], alike: dict[Hashable, Node]) -> Node:
    """The first node that computes the same, which may be `node` itself."""
    if node.regions:
        outline = (node.op, node.operands, tuple([len(r.nodes) for r in node.regions]))
        other = alike.setdefault(outline, node)
        if other is node or not is_mergeable(node):
            return node
        if (key := node_key(other, {})) is not None:
            known.setdefault(key, other)
    elif not is_mergeable(node):
        return node
    key = node_key(node, {})
    return node if key is None else known.setdefault(key, node)


def node_key(node: Node, inner: dict[Value, int]) -> Hashable | None:
    """Equal for nodes that compute the same; `inner` numbers the values of regions."""
    literal: Hashable = None
    if node.literal is not None:
        array = node.literal
        if array.size and not any(array.strides):
            literal = ("splat", array[(0,) * array.ndim].tobytes())
        elif array.nbytes <= _MAX_COMPARED_BYTES:
            literal = array.tobytes()
        else:
            return None
    regions = []
    for region in node.regions:
        key = _region_key(region, inner)
        if key is None:
            return None
        regions.append(key)
    return (
        node.op,
        tuple([inner.get(value, value) for value in node.operands]),
        tuple([value.type for value in node.results]),
        tuple(sorted(node.attributes.items())) if node.attributes else (),
        literal,
        tuple(regions),
    )


def _region_key(graph: Graph, inner: dict[Value, int]) -> Hashable | None:
    for parameter in graph.parameters:
        inner[parameter] = len(inner)
    keys = []
    for node in graph.nodes:
        key = node_key(node, inner)
        if key is None:
            return None
        keys.append(key)
        for result in node.results:
            inner[result] = len(inner)
    return (
        tuple([parameter.type for parameter in graph.parameters]),
        tuple(keys),
        tuple([inner.get(value, value) for value in graph.results]),
    )
