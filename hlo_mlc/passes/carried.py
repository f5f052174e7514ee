"""What loops carry: only what changes from trip to trip, and what somebody reads."""

from __future__ import annotations

from collections.abc import Iterator

from hlo_mlc.graph.core import WHILE, Graph, Node, Value
from hlo_mlc.graph.effects import is_removable
from hlo_mlc.graph.rewrite import with_captures
from hlo_mlc.passes.loop_rewriting import Rewritten, rewrite_loops


def close_loops(graph: Graph) -> Graph:
    """`while(x, w = w0, z) { return f(x, w), w, g(z) }` -> `while(x) { return f(x, w0) }`

    What a loop hands on unchanged, its body takes from outside; what only becomes itself and is
    not read after the loop is dropped.  Returns `graph` itself where loops carry nothing else.
    """
    if WHILE not in graph.ops:
        return graph
    used, removable = set(_used(graph)), {}
    return rewrite_loops(graph, lambda loop, _: _closed(loop, used, removable))


def _used(graph: Graph) -> Iterator[Value]:
    """Every value that a node, or the result of a graph, stands on."""
    yield from graph.results
    for node in graph.nodes:
        yield from node.operands
        for region in node.regions:
            yield from _used(region)


def _closed(loop: Node, used: set[Value], removable: dict[Graph, bool]) -> Rewritten | None:
    condition, body = loop.regions
    changing = [k for k, v in enumerate(body.results) if v is not body.parameters[k]]
    live, needed = _live(loop, [k for k, v in enumerate(loop.results) if v in used], removable)
    kept = [
        k
        for k in changing
        if body.parameters[k] in needed
        or condition.parameters[k] in needed
        or loop.results[k] in used
    ]
    if len(kept) == len(body.results) or not kept:
        return None

    def those(values: tuple[Value, ...]) -> tuple[Value, ...]:
        return tuple([values[k] for k in kept])

    outside, results = {}, list(loop.results)
    for k in set(range(len(body.results))) - set(changing):
        outside[condition.parameters[k]] = outside[body.parameters[k]] = loop.operands[k]
        results[k] = loop.operands[k]
    alive = set(live)
    nodes = tuple([node for node in body.nodes if node in alive])
    regions = (
        Graph(those(condition.parameters), condition.nodes, condition.results),
        Graph(those(body.parameters), nodes, those(body.results)),
    )
    closed = Node(
        loop.op,
        those(loop.operands),
        those(loop.results),
        loop.attributes,
        tuple([with_captures(region, outside) for region in regions]),
        location=loop.location,
    )
    return Rewritten((closed,), tuple(results))


def _live(
    loop: Node, wanted: list[int], removable: dict[Graph, bool]
) -> tuple[list[Node], set[Value]]:
    """The nodes of condition and body that effects, the condition and the `wanted` results need,
    and all values that do: a body may hand one parameter on as another one."""
    condition, body = loop.regions
    made = {v: node for node in body.nodes for v in node.results}
    positions = {p: k for graph in (condition, body) for k, p in enumerate(graph.parameters)}
    live: dict[Node, None] = dict.fromkeys(condition.nodes)
    pending = [v for node in condition.nodes for v in node.used]
    pending += condition.results
    pending += [body.results[k] for k in wanted]
    for node in body.nodes:
        if not is_removable(node, removable):
            live.setdefault(node)
            pending += node.used
    needed: set[Value] = set()
    while pending:
        value = pending.pop()
        if value in needed:
            continue
        needed.add(value)
        if value in positions:
            pending.append(body.results[positions[value]])
        elif (node := made.get(value)) is not None and node not in live:
            live.setdefault(node)
            pending += node.used
    return list(live), needed
