"""What loops carry: only what changes from trip to trip, and what somebody reads."""

from __future__ import annotations

from collections.abc import Iterator

from hlo_mlc.graph.core import WHILE, Graph, Node, Value
from hlo_mlc.graph.effects import is_removable
from hlo_mlc.graph.rewrite import with_body, with_parts


def close_loops(graph: Graph) -> Graph:
    """`while(x, w = w0, z) { return f(x, w), w, g(z) }` -> `while(x) { return f(x, w0) }`

    What a loop hands on unchanged, its body takes from outside; what only becomes itself and is
    not read after the loop is dropped.  Returns `graph` itself where loops carry nothing else.
    """
    return _Closer(set(_used(graph))).graph(graph) if WHILE in graph.ops else graph


def is_open_loop(node: Node) -> bool:
    """Whether what this while loop carries may be changed: all of it is modelled."""
    return (
        node.op == WHILE
        and not node.opaque
        and len(node.regions) == 2
        and all(v.type is not None and v.type.is_static for v in node.results)
    )


def _used(graph: Graph) -> Iterator[Value]:
    """Every value that a node, or the result of a graph, stands on."""
    yield from graph.results
    for node in graph.nodes:
        yield from node.operands
        for region in node.regions:
            yield from _used(region)


class _Closer:
    """One walk over a graph; `replaced` are parameters and results that are other values now."""

    def __init__(self, used: set[Value]) -> None:
        self._used = used
        self._removable: dict[Graph, bool] = {}
        self._replaced: dict[Value, Value] = {}

    def graph(self, graph: Graph) -> Graph:
        nodes = [self._node(node) for node in graph.nodes]
        return with_body(graph, nodes, self._resolve(graph.results))

    def _node(self, node: Node) -> Node:
        if self._replaced:
            node = with_parts(node, self._resolve(node.operands), node.regions)
        if is_open_loop(node):
            node = self._closed(node)
        if not node.regions:
            return node
        return with_parts(node, node.operands, tuple([self._region(r) for r in node.regions]))

    def _region(self, region: Graph) -> Graph:
        return self.graph(region) if self._replaced or WHILE in region.ops else region

    def _resolve(self, values: tuple[Value, ...]) -> tuple[Value, ...]:
        return tuple([self._replaced.get(value, value) for value in values])

    def _closed(self, loop: Node) -> Node:
        condition, body = loop.regions
        changing = [k for k, v in enumerate(body.results) if v is not body.parameters[k]]
        live, needed = _live(
            loop, [k for k, v in enumerate(loop.results) if v in self._used], self._removable
        )
        kept = [
            k
            for k in changing
            if body.parameters[k] in needed
            or condition.parameters[k] in needed
            or loop.results[k] in self._used
        ]
        if len(kept) == len(body.results) or not kept:
            return loop
        for k in set(range(len(body.results))) - set(changing):
            for value in (condition.parameters[k], body.parameters[k], loop.results[k]):
                self._replaced[value] = loop.operands[k]

        def those(values: tuple[Value, ...]) -> tuple[Value, ...]:
            return tuple([values[k] for k in kept])

        alive = set(live)
        nodes = tuple([node for node in body.nodes if node in alive])
        regions = (
            Graph(those(condition.parameters), condition.nodes, condition.results),
            Graph(those(body.parameters), nodes, those(body.results)),
        )
        return Node(
            loop.op,
            those(loop.operands),
            those(loop.results),
            loop.attributes,
            regions,
            location=loop.location,
        )


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
