"""Scatters into several arrays at once, which are several scatters where none needs another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hlo_mlc.graph.core import Graph, Node, Value
from hlo_mlc.graph.rewrite import Rewriter, Rule, copied_nodes, nodes_behind


def scatter_of_several(node: Node, context: Rewriter) -> tuple[Value, ...] | None:
    """`scatter((x, y), places, (u, v), f)` -> `scatter(x, places, u, g), scatter(y, places, v, h)`,
    where `f(x, y, u, v) = (g(x, u), h(y, v))`

    One array is updated in a kernel, and what nobody reads is not updated at all.
    """
    count = len(node.results)
    if count == 1:
        return None
    bodies = [_alone(node.regions[0], number) for number in range(count)]
    if None in bodies:
        return None  # before anything is added
    # What another dialect says ("mhlo.sharding") is of all results together.
    attributes = {name: value for name, value in node.attributes.items() if "." not in name}
    targets, (places, *updates) = node.operands[:count], node.operands[count:]
    return tuple(
        [
            context.add(node.op, (target, places, update), result.type, attributes, (body,))
            for target, update, result, body in zip(
                targets, updates, node.results, bodies, strict=True
            )
        ]
    )


def _alone(body: Graph, number: int) -> Graph | None:
    """The part of the body that gives this result; None if it takes what is of other arrays."""
    old, new = body.parameters[number], body.parameters[number + len(body.results)]
    result = body.results[number]
    behind = nodes_behind((result,), {v: n for n in body.nodes for v in n.results})
    nodes = [one for one in body.nodes if one in behind]
    others = set(body.parameters) - {old, new}
    if not others.isdisjoint((result, *(v for one in nodes for v in one.used))):
        return None
    copies = {v: Value(v.type) for v in (old, new)}
    parameters = tuple(copies.values())
    copied = tuple(copied_nodes(nodes, copies))
    return Graph(parameters, copied, (copies.get(result, result),))


SCATTER_RULES: Mapping[str, Sequence[Rule]] = {"stablehlo.scatter": (scatter_of_several,)}
