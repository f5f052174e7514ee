"""The walk that puts complex numbers in parts, by rules for each op (complex_parts.py)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from hlo_mlc.expr.dtypes import Kind
from hlo_mlc.graph.core import CONTROL_FLOW, Graph, Node, Value
from hlo_mlc.graph.rewrite import NodeList, with_other_values, with_parts

Parts = tuple[Value, Value]


def is_complex(value: Value) -> bool:
    """Whether it is an array of complex numbers."""
    return value.type is not None and value.type.dtype.kind is Kind.COMPLEX


def concerns_complex(node: Node) -> bool:
    """Whether it takes or gives a complex number."""
    return any(map(is_complex, (*node.operands, *node.results)))


class Splitter(NodeList):
    """One walk over a graph and its regions.  `parts`: of every complex number that is in parts;
    `there`: those that exist as a whole; `real`: those whose imaginary parts are known to be zero;
    `renamed`: what other values have become."""

    def __init__(
        self,
        rules: Mapping[str, Split],
        is_joint: Callable[[Node], bool],
        stays: Callable[[Node], bool],
    ) -> None:
        """Nodes that no rule takes and that are joint have the parts of their operands as operands,
        in their regions too; those that stay have whole numbers."""
        super().__init__()
        self.rules, self.is_joint, self.stays = rules, is_joint, stays
        self.parts: dict[Value, Parts] = {}
        self.there: set[Value] = set()
        self.real: set[Value] = set()
        self.renamed: dict[Value, Value] = {}

    def whole(self, graph: Graph) -> Graph:
        """A graph whose parameters and results stay as they are."""
        outer, self.nodes = self.nodes, []
        for value in graph.parameters:
            self._arrived(value)
        for node in graph.nodes:
            self._node(node)
        results = tuple([self._as_before(v) for v in graph.results])
        nodes, self.nodes = tuple(self.nodes), outer
        return Graph(graph.parameters, nodes, results)

    def in_parts(self, graph: Graph) -> Graph:
        """A region whose parameters and results are parts."""
        outer, self.nodes = self.nodes, []
        parameters: list[Value] = []
        for value in graph.parameters:
            if is_complex(value):
                self.parts[value] = Value(value.type.part), Value(value.type.part)
                parameters += self.parts[value]
            else:
                parameters.append(value)
        for node in graph.nodes:
            self._node(node)
        results = self._expanded(graph.results)
        nodes, self.nodes = tuple(self.nodes), outer
        return Graph(tuple(parameters), nodes, results)

    def value(self, value: Value) -> Value:
        """What a value that is not complex has become."""
        return self.renamed.get(value, value)

    def _arrived(self, value: Value) -> None:
        """A complex number comes from outside."""
        if is_complex(value):
            self.there.add(value)
            tensor = value.type.part
            self.parts[value] = (
                self.add("stablehlo.real", (value,), tensor),
                self.add("stablehlo.imag", (value,), tensor),
            )

    def _as_before(self, value: Value) -> Value:
        if not is_complex(value) or value in self.there:
            return self.value(value)
        return self.add("stablehlo.complex", self.parts[value], value.type)

    def _expanded(self, values: Sequence[Value]) -> tuple[Value, ...]:
        return tuple(
            [
                part
                for v in values
                for part in (self.parts[v] if is_complex(v) else (self.value(v),))
            ]
        )

    def _node(self, node: Node) -> None:
        self.location = node.location
        concerned = (*node.operands, *node.results)
        if (
            node.op in CONTROL_FLOW
            and not node.opaque
            and all(v.type is not None for v in concerned)
        ):
            self._control(node)
            return
        rule = self.rules.get(node.op)
        if (
            rule is not None
            and not node.opaque
            and any(map(is_complex, concerned))
            and all(v.type is not None and v.type.is_static for v in concerned)
            and not self.stays(node)
        ):
            found = rule(node, self)
            if found is None and self.is_joint(node):
                self._jointly(node)
                return
            if found is not None:
                (result,) = node.results
                if is_complex(result):
                    self.parts[result] = found
                else:
                    self.renamed[result] = found
                return
        self._as_it_is(node)

    def _as_it_is(self, node: Node) -> None:
        """Complex numbers go in and come out as a whole, also what regions take from around."""
        self.nodes.append(with_other_values(node, self._as_before))
        for value in node.results:
            self._arrived(value)

    def _jointly(self, node: Node) -> None:
        """What combines or compares complex numbers, or only restrains their order, has parts of
        all of them as operands."""
        if not node.regions:
            self._give(node, self._expanded(node.operands), ())
            return
        (region,) = node.regions
        changed = self.in_parts(region)
        if node.op == "stablehlo.sort":  # its parameters come in pairs, one for each operand
            ones, others = (self._expanded(region.parameters[k::2]) for k in (0, 1))
            paired = tuple([v for pair in zip(ones, others, strict=True) for v in pair])
            changed = Graph(paired, changed.nodes, changed.results)
        self._give(node, self._expanded(node.operands), (changed,))

    def _control(self, node: Node) -> None:
        regions = tuple([self.in_parts(region) for region in node.regions])
        operands = self._expanded(node.operands)
        if operands == node.operands and not any(map(is_complex, node.results)):
            self.nodes.append(with_parts(node, operands, regions))
            return
        self._give(node, operands, regions)

    def _give(self, node: Node, operands: tuple[Value, ...], regions: tuple[Graph, ...]) -> None:
        """The node with parts among its results."""
        results: list[Value] = []
        for value in node.results:
            if is_complex(value):
                self.parts[value] = Value(value.type.part), Value(value.type.part)
                results += self.parts[value]
            else:
                results.append(value)
        self.nodes.append(
            Node(
                node.op, operands, tuple(results), node.attributes, regions, location=node.location
            )
        )


Split = Callable[[Node, Splitter], Parts | Value | None]
"""A rule: the parts of a node's result, or the result where that is no complex number; None where
it does not apply."""
