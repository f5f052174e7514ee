"""Constants of one value move into the regions that use them, tables out of loops and branches.

Other compilers hoist the former out of the bodies of reductions, scatters and sorts; inside, a body
says all that it means.  Folding leaves tables in the bodies of loops; a kernel reads those that
are outside.
"""

from __future__ import annotations

from collections.abc import Mapping

from hlo_mlc.graph.core import CONTROL_FLOW, Graph, Node, Value, constant_node
from hlo_mlc.graph.rewrite import with_body, with_parts


def sink_constants(graph: Graph) -> Graph:
    """`c = 2; reduce(x) { f(c) }` -> `reduce(x) { c = 2; f(c) }`, also for loops and branches;
    `while(x) { c = [1, 2, 4]; f(c) }` -> `c = [1, 2, 4]; while(x) { f(c) }`.

    Returns `graph` itself where nothing moved.
    """
    return _sink(_lift(graph), {})


def _lift(graph: Graph) -> Graph:
    """The graph without tables in its loops and branches, inner ones first."""
    nodes: list[Node] = []
    for node in graph.nodes:
        if node.regions and node.op in CONTROL_FLOW and not node.opaque:
            regions = [_lift(region) for region in node.regions]
            tables = [n for region in regions for n in region.nodes if _is_table(n)]
            if tables:
                nodes += tables
                regions = [
                    Graph(r.parameters, tuple(n for n in r.nodes if not _is_table(n)), r.results)
                    for r in regions
                ]
            node = with_parts(node, node.operands, tuple(regions))
        nodes.append(node)
    return (
        graph
        if tuple(nodes) == graph.nodes
        else Graph(graph.parameters, tuple(nodes), graph.results)
    )


def _sink(graph: Graph, outside: Mapping[Value, Node]) -> Graph:
    """`outside`: the constants of the graphs around this one that are used in it, by their
    value."""
    if not outside and not any([node.regions for node in graph.nodes]):
        return graph
    known = dict(outside)
    known.update((node.results[0], node) for node in graph.nodes if _is_splat(node))
    copies: dict[Value, Node] = {}

    def here(value: Value) -> Value:
        if value not in outside:
            return value
        if value not in copies:
            constant = outside[value]
            copies[value] = constant_node(constant.literal, constant.location)
        return copies[value].results[0]

    nodes = []
    for node in graph.nodes:
        regions = node.regions
        if regions and not node.opaque:  # which can only be written back with those it came with
            inside = [{v: known[v] for v in r.captures if v in known} for r in regions]
            regions = tuple(map(_sink, regions, inside))
        operands = tuple([here(v) for v in node.operands]) if outside else node.operands
        nodes.append(with_parts(node, operands, regions))
    results = tuple([here(v) for v in graph.results])
    return with_body(graph, (*copies.values(), *nodes), results)


def _is_splat(node: Node) -> bool:
    literal = node.literal
    return literal is not None and (literal.size == 1 or not any(literal.strides))


def _is_table(node: Node) -> bool:
    return node.literal is not None and not _is_splat(node)
