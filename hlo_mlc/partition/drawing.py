"""A plan as JSON for drawing: which part of a program runs where."""

from __future__ import annotations

import json
from collections.abc import Mapping

from hlo_mlc.graph.core import Graph, Node, Value
from hlo_mlc.partition.plan import Plan


def plan_json(graph: Graph, plan: Plan) -> str:
    """The units of a planned program, kernels and operations of XLA's, and the operations of the
    simplified `graph` that it was drawn from:

    - `parameter_bytes`: what the arguments take;
    - `units`: the id of the kernel or "", the operation or "", what it reads (numbers of units;
      parameters are negative), the types of its results, and what is in memory while it runs;
    - `operations`: op, type, number of the location, of the unit (-1: it is in none), of the reason
      why it does not join what comes before it, or stays with XLA (-1: it does).
    """
    units = {
        value: number for number, node in enumerate(plan.graph.nodes) for value in node.results
    }
    parameters = {value: -1 - number for number, value in enumerate(plan.graph.parameters)}
    sources = units | parameters
    unit_of = {
        node: units[cluster.results[0]]
        for cluster, _ in plan.taken
        if cluster.results[0] in units  # those in loops of XLA's are parts of these
        for node in cluster.nodes
    }
    reasons = {node: verdict.reason for cluster, verdict in plan.rejected for node in cluster.nodes}
    reasons |= plan.left | plan.apart
    locations, why = _Numbers(), _Numbers()
    memory = _live_bytes(plan.graph)
    return json.dumps(
        {
            "parameter_bytes": sum(map(_bytes, plan.graph.parameters)),
            "units": [
                [
                    node.attributes.get("id", ""),
                    "" if "id" in node.attributes else node.op,
                    sorted({sources[value] for value in node.operands if value in sources}),
                    [str(value.type) for value in node.results],
                    live,
                ]
                for node, live in zip(plan.graph.nodes, memory, strict=True)
            ],
            "operations": [
                [
                    node.op,
                    str(node.results[0].type) if node.results else "",
                    locations[node.location],
                    unit_of.get(node, _unit_of_results(node, units)),
                    why[reasons[node]] if node in reasons else -1,
                ]
                for node in graph.nodes
            ],
            "locations": list(locations),
            "reasons": list(why),
        },
        separators=(",", ":"),
    )


class _Numbers(dict[str, int]):
    """Each new text gets the next number."""

    def __missing__(self, text: str) -> int:
        return self.setdefault(text, len(self))


def _unit_of_results(node: Node, units: Mapping[Value, int]) -> int:
    return next((units[value] for value in node.results if value in units), -1)


def _live_bytes(graph: Graph) -> list[int]:
    """What is in memory while each node runs: parameters, which belong to the caller, and every
    value from the node that makes it to the last that reads it. Nothing takes over the memory of
    anything: it is what a program needs at most, without what its parts need inside."""
    last = {value: len(graph.nodes) for value in graph.results}
    for number, node in reversed(list(enumerate(graph.nodes))):
        for value in node.used:
            last.setdefault(value, number)
    parameters = sum(map(_bytes, graph.parameters))
    change = [0] * (len(graph.nodes) + 2)
    for number, node in enumerate(graph.nodes):
        for value in node.results:
            change[number] += _bytes(value)
            change[last.get(value, number) + 1] -= _bytes(value)
    live, total = [], parameters
    for number in range(len(graph.nodes)):
        total += change[number]
        live.append(total)
    return live


def _bytes(value: Value) -> int:
    return value.type.bytes if value.type is not None and value.type.is_static else 0
