"""Constants of one value move into the regions that use them.

Other compilers hoist them out of the bodies of reductions, scatters and sorts; inside, a body says
all that it means.
"""

from __future__ import annotations

from collections.abc import Mapping

from hlo_mlc.graph.build import constant_node
from hlo_mlc.graph.core import Graph, Node, Value
from hlo_mlc.graph.rewrite import with_parts


def sink_constants(graph: Graph) -> Graph:
    """`c = 2; reduce(x) { f(c) }` -> `reduce(x) { c = 2; f(c) }`, also for loops and branches.

    Tables stay where they are.  Returns `graph` itself where no region uses a constant from
    outside.
    """
    return _sink(graph, {})


def _sink(graph: Graph, outside: Mapping[Value, Node]) -> Graph:
    """`outside`: the constants of the graphs around this one, by their value."""
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
        # An opaque node can only be written back with the regions that it came with.
        regions = node.regions if node.opaque else tuple([_sink(r, known) for r in node.regions])
        nodes.append(with_parts(node, tuple([here(v) for v in node.operands]), regions))
    results = tuple([here(v) for v in graph.results])
    if tuple(nodes) == graph.nodes and results == graph.results:
        return graph
    return Graph(graph.parameters, (*copies.values(), *nodes), results)


def _is_splat(node: Node) -> bool:
    literal = node.literal
    return literal is not None and (literal.size == 1 or not any(literal.strides))
