"""Rewriting graphs: a driver for local rules, removal of dead nodes, who uses what, and nodes in
order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter

import numpy as np

from hlo_mlc.expr.dtypes import TensorType
from hlo_mlc.graph.builder import Builder
from hlo_mlc.graph.core import Attribute, Graph, Node, Value, constant_node
from hlo_mlc.graph.effects import is_removable
from hlo_mlc.support.errors import PassError, VerifyError

# A rule looks at a modelled node of static shapes and gives what to use in place of its results
# (one value, or all), or None where it does not apply.
Rule = Callable[[Node, "Rewriter"], Value | tuple[Value, ...] | None]
# The rules to try, in order, on the nodes of an op; those of EVERY_OP are tried first.
Rules = Mapping[str, Sequence[Rule]]
EVERY_OP = "*"


def apply_rules(graph: Graph, rules: Rules) -> Graph:
    """One pass of `rules` over the graph and its regions, operands before their users.

    Nodes that rules add are rewritten too.  What only a replaced node used is dead afterwards and
    stays, for `eliminate_dead_nodes`.  Returns `graph` itself where no rule applied.
    Raises: PassError if a rule gives values of other types than those it replaces.
    """
    return Rewriter(rules).graph(graph)


class Rewriter(Builder):
    """The state of one pass, and what rules may ask for and add."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._of_op: dict[str, tuple[Rule, ...]] = {}
        self._definitions: dict[Value, Node] = {}
        self._replaced: dict[Value, Value] = {}
        self._nodes: list[Node] = []
        self._location = ""

    def definition(self, value: Value) -> Node | None:
        """The node that defines `value`; None for parameters and what is not modelled."""
        node = self._definitions.get(value)
        return None if node is None or node.opaque else node

    def literal(self, value: Value) -> np.ndarray | None:
        """The payload of `value` if it is a constant."""
        node = self._definitions.get(value)
        return None if node is None else node.literal

    def array(self, literal: np.ndarray) -> Value:
        """A new constant in front of the node that is being rewritten."""
        return self._append(constant_node(literal, self._location)).results[0]

    def add(
        self,
        op: str,
        operands: Sequence[Value],
        tensor: TensorType,
        attributes: Mapping[str, Attribute] | None = None,
        regions: Sequence[Graph] = (),
    ) -> Value:
        """A new node of one result in front of the node that is being rewritten."""
        result = Value(tensor)
        self._visit(
            Node(
                op,
                tuple(operands),
                (result,),
                attributes or {},
                tuple(regions),
                location=self._location,
            )
        )
        return self._replaced.get(result, result)

    def splice(self, region: Graph) -> tuple[Value, ...]:
        """The nodes of a region without parameters, in front of the node that is being rewritten,
        which has to go: what it had inside is there once.  Returns the region's results."""
        for node in region.nodes:
            self._append(node)
        return region.results

    def graph(self, graph: Graph) -> Graph:
        """`graph` rewritten; the same object where nothing changed."""
        outer, self._nodes = self._nodes, []
        for node in graph.nodes:
            self._visit(node)
        nodes, self._nodes = self._nodes, outer
        return with_body(graph, nodes, self._resolve(graph.results))

    def _visit(self, node: Node) -> None:
        operands = self._resolve(node.operands)
        regions = node.regions and tuple([self.graph(region) for region in node.regions])
        node = with_parts(node, operands, regions)
        self._location = node.location
        if not node.opaque and all(map(_static, (*node.results, *node.operands))):
            rules = self._of_op.get(node.op)
            if rules is None:
                known = self._rules
                rules = (*known.get(EVERY_OP, ()), *known.get(node.op, ()))
                self._of_op[node.op] = rules
            for rule in rules:
                found = rule(node, self)
                if found is not None:
                    self._replace(node, (found,) if isinstance(found, Value) else found, rule)
                    return
        self._append(node)

    def _replace(self, node: Node, values: tuple[Value, ...], rule: Rule) -> None:
        if [v.type for v in values] != [v.type for v in node.results]:
            raise PassError(
                f"rule {rule.__name__} replaces the results of {node.op}, "
                f"{[str(v.type) for v in node.results]}, by {[str(v.type) for v in values]}",
                location=node.location or None,
            )
        self._replaced.update(zip(node.results, values, strict=True))

    def _append(self, node: Node) -> Node:
        self._nodes.append(node)
        for result in node.results:
            self._definitions[result] = node
        return node

    def _resolve(self, values: tuple[Value, ...]) -> tuple[Value, ...]:
        replaced = self._replaced
        return tuple([replaced.get(value, value) for value in values])


@dataclass(slots=True)
class NodeList(Builder):
    """Nodes that a pass makes, in order; `location`: of the user's code that they stand for."""

    location: str = ""
    nodes: list[Node] = field(default_factory=list)

    def add(
        self,
        op: str,
        operands: Sequence[Value],
        tensor: TensorType | Value,
        attributes: Mapping[str, Attribute] | None = None,
        regions: Sequence[Graph] = (),
        literal: np.ndarray | None = None,
    ) -> Value:
        """One more node, whose result is of this type, or is this value."""
        result = tensor if isinstance(tensor, Value) else Value(tensor)
        self.nodes.append(
            Node(
                op,
                tuple(operands),
                (result,),
                attributes or {},
                tuple(regions),
                literal,
                self.location,
            )
        )
        return result

    def array(self, literal: np.ndarray) -> Value:
        """A constant of the array's own type."""
        self.nodes.append(constant_node(literal, self.location))
        return self.nodes[-1].results[0]


def with_body(graph: Graph, nodes: Iterable[Node], results: tuple[Value, ...]) -> Graph:
    """The graph with other nodes and results; the same object where they are the same."""
    nodes = tuple(nodes)
    if nodes == graph.nodes and results == graph.results:
        return graph
    return Graph(graph.parameters, nodes, results)


def with_parts(node: Node, operands: tuple[Value, ...], regions: tuple[Graph, ...]) -> Node:
    """The node with other operands and regions; the same object where they are the same."""
    if operands == node.operands and regions == node.regions:
        return node
    # dataclasses.replace does the same in five times the time.
    return Node(
        node.op,
        operands,
        node.results,
        node.attributes,
        regions,
        node.literal,
        node.location,
        node.origin,
        node.opaque,
    )


def with_other_values(node: Node, new: Callable[[Value], Value]) -> Node:
    """The node with other values in place of what it uses, in its regions too; the same object
    where they are the same."""
    captured = dict.fromkeys(v for region in node.regions for v in region.captures)
    renamed = {v: new(v) for v in captured}
    regions = (
        tuple([with_captures(region, renamed) for region in node.regions])
        if any(old is not other for old, other in renamed.items())
        else node.regions
    )
    return with_parts(node, tuple([new(v) for v in node.operands]), regions)


def with_captures(region: Graph, renamed: Mapping[Value, Value]) -> Graph:
    """The region with other values in place of those from around it."""

    def new(values: tuple[Value, ...]) -> tuple[Value, ...]:
        return tuple([renamed.get(v, v) for v in values])

    nodes = [
        with_parts(
            node, new(node.operands), tuple([with_captures(r, renamed) for r in node.regions])
        )
        for node in region.nodes
    ]
    return with_body(region, nodes, new(region.results))


def copied_nodes(nodes: Iterable[Node], copies: dict[Value, Value]) -> list[Node]:
    """The nodes anew, reading the `copies` of values that have some; adds those of all results."""

    def new(values: tuple[Value, ...]) -> tuple[Value, ...]:
        return tuple([copies.get(v, v) for v in values])

    def fresh(values: tuple[Value, ...]) -> tuple[Value, ...]:
        copies.update((v, Value(v.type)) for v in values)
        return new(values)

    def region(graph: Graph) -> Graph:
        return Graph(fresh(graph.parameters), tuple(map(node, graph.nodes)), new(graph.results))

    def node(old: Node) -> Node:
        regions = tuple(map(region, old.regions))
        return replace(with_parts(old, new(old.operands), regions), results=fresh(old.results))

    return list(map(node, nodes))


def nodes_behind(values: Iterable[Value], makers: Mapping[Value, Node]) -> set[Node]:
    """The nodes that these values depend on."""
    found: set[Node] = set()
    pending = list(values)
    while pending:
        node = makers.get(pending.pop())
        if node is not None and node not in found:
            found.add(node)
            pending += node.used
    return found


def eliminate_dead_nodes(graph: Graph) -> Graph:
    """Drops nodes, also in regions, that have no effect and whose results nobody uses."""
    return _live_part(graph, set())


def _live_part(graph: Graph, live: set[Value]) -> Graph:
    """The live nodes of `graph`; adds all that they use to `live`."""
    live.update(graph.results)
    kept = []
    for node in reversed(graph.nodes):
        if live.isdisjoint(node.results) and is_removable(node):
            continue
        regions = tuple([_live_part(region, live) for region in node.regions])
        live.update(node.operands)
        kept.append(with_parts(node, node.operands, regions))
    return with_body(graph, reversed(kept), graph.results)


def uses_among(nodes: Iterable[Node]) -> dict[Value, tuple[Node, ...]]:
    """The nodes that use each value, themselves or in their regions."""
    uses: dict[Value, list[Node]] = {}
    for node in nodes:
        for value in dict.fromkeys(node.used):
            uses.setdefault(value, []).append(node)
    return {value: tuple(users) for value, users in uses.items()}


def operands_first(
    wanted: Iterable[Node], producer: Callable[[Value], Node | None]
) -> tuple[Node, ...]:
    """The nodes `wanted`, in their order, each after all that compute what it uses.

    Raises: VerifyError where nodes wait for each other.
    """
    begun: set[Node] = set()
    placed: dict[Node, None] = {}
    for root in wanted:
        stack = [(root, False)]
        while stack:
            node, ready = stack.pop()
            if node in placed:
                continue
            if ready:
                placed[node] = None
                continue
            if node in begun:
                raise VerifyError(f"{node.op} waits for what waits for its results")
            begun.add(node)
            stack.append((node, True))
            for value in node.used:
                before = producer(value)
                if before is not None and before not in placed:
                    stack.append((before, False))
    return tuple(placed)


_static = attrgetter("type.is_static")
