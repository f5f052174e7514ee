"""Rewriting while loops, inner ones first: a walk for the passes that look at nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hlo_mlc.graph.core import WHILE, Graph, Node, Value
from hlo_mlc.graph.counting import Known
from hlo_mlc.graph.rewrite import with_body, with_parts


@dataclass(frozen=True, slots=True)
class Rewritten:
    """What takes the place of a loop: nodes in order, and values for its results."""

    nodes: tuple[Node, ...]
    results: tuple[Value, ...]


# What to put in place of a while loop, or None to leave it.
LoopRule = Callable[[Node, Known], Rewritten | None]


def is_open_loop(node: Node) -> bool:
    """Whether what this while loop carries may be changed: all of it is modelled."""
    return (
        node.op == WHILE
        and not node.opaque
        and len(node.regions) == 2
        and all(v.type is not None and v.type.is_static for v in node.results)
    )


def rewrite_loops(graph: Graph, rule: LoopRule) -> Graph:
    """`graph` with every modelled while loop rewritten by `rule`, inner loops first."""
    return _LoopRewriter(rule).graph(graph) if WHILE in graph.ops else graph


class _LoopRewriter:
    """One walk over a graph; remembers integers that are literal."""

    def __init__(self, rule: LoopRule) -> None:
        self._rule = rule
        self._literals: dict[Value, int] = {}
        self._replaced: dict[Value, Value] = {}

    def graph(self, graph: Graph) -> Graph:
        nodes: list[Node] = []
        for node in graph.nodes:
            nodes += self._node(node)
        return with_body(graph, nodes, self._resolve(graph.results))

    def _region(self, region: Graph) -> Graph:
        return self.graph(region) if self._replaced or WHILE in region.ops else region

    def _resolve(self, values: tuple[Value, ...]) -> tuple[Value, ...]:
        return tuple([self._replaced.get(value, value) for value in values])

    def _node(self, node: Node) -> tuple[Node, ...]:
        literal = node.literal
        if literal is not None:
            if literal.ndim == 0 and literal.dtype.kind in "iu":
                self._literals[node.results[0]] = int(literal)
            return (node,)
        if self._replaced or node.regions:
            regions = tuple([self._region(region) for region in node.regions])
            node = with_parts(node, self._resolve(node.operands), regions)
        rewritten = self._rule(node, self._literals.get) if is_open_loop(node) else None
        if rewritten is None:
            return (node,)
        self._replaced.update(
            (old, new)
            for old, new in zip(node.results, rewritten.results, strict=True)
            if old is not new
        )
        return rewritten.nodes
