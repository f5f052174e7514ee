"""The rules that every graph keeps; passes are checked against them."""

from __future__ import annotations

from hlo_mlc.expr.dtypes import BOOL, TensorType
from hlo_mlc.graph.core import BRANCHES, WHILE, Graph, Node, Value
from hlo_mlc.graph.text import format_graph
from hlo_mlc.support.errors import VerifyError


def verify_graph(graph: Graph) -> None:
    """Checks single assignment, definition before use, types, literals and control flow.

    Raises: VerifyError naming the node at fault, with the graph as text.
    """
    _Verifier(graph).region(graph, set())


class _Verifier:
    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._defined: set[Value] = set()

    def region(self, graph: Graph, visible: set[Value]) -> None:
        """`visible` are the values that the graphs around `graph` have defined before it."""
        visible = set(visible)
        for parameter in graph.parameters:
            self._define(parameter, None, visible)
        for node in graph.nodes:
            for operand in node.operands:
                if operand not in visible:
                    self._fail("expected its operands to be defined before it", node)
            for region in node.regions:
                self.region(region, visible)
            for result in node.results:
                self._define(result, node, visible)
            if not node.opaque:
                self._modelled(node)
        for result in graph.results:
            if result not in visible:
                self._fail(f"expected result {result!r} of a graph to be defined in it", None)

    def _define(self, value: Value, node: Node | None, visible: set[Value]) -> None:
        if value in self._defined:
            self._fail(f"expected {value!r} to be defined once", node)
        self._defined.add(value)
        visible.add(value)

    def _modelled(self, node: Node) -> None:
        if any(value.type is None for value in (*node.operands, *node.results)):
            self._fail("expected a node with types that are not modelled to be opaque", node)
        if (node.op == "stablehlo.constant") != (node.literal is not None):
            self._fail("expected a literal on a stablehlo.constant and nowhere else", node)
        if node.literal is not None:
            result = node.results[0].type
            if (node.literal.shape, node.literal.dtype) != (result.shape, result.dtype.numpy):
                self._fail(f"expected a literal of type {result}, got {node.literal.dtype}"
                           f"{list(node.literal.shape)}", node)  # fmt: skip
        if node.op == WHILE:
            self._loop(node)
        elif node.op in BRANCHES:
            for region in node.regions:
                if region.parameters:
                    self._fail("expected branches without parameters", node)
                self._same_types("results of a branch", region.results, node.results, node)

    def _loop(self, node: Node) -> None:
        if len(node.regions) != 2:
            self._fail(f"expected a condition and a body, got {len(node.regions)} regions", node)
        condition, body = node.regions
        for what, values in (
            ("results", node.results),
            ("parameters of the condition", condition.parameters),
            ("parameters of the body", body.parameters),
            ("results of the body", body.results),
        ):
            self._same_types(what, values, node.operands, node)
        if [value.type for value in condition.results] != [TensorType((), BOOL)]:
            self._fail("expected a condition with one result of type i1", node)

    def _same_types(
        self, what: str, values: tuple[Value, ...], expected: tuple[Value, ...], node: Node
    ) -> None:
        if len(values) != len(expected) or any(
            v.type != e.type and v.type is not None and v.type.is_static and e.type.is_static
            for v, e in zip(values, expected, strict=True)
        ):
            self._fail(f"expected {what} of types {_types(expected)}, got {_types(values)}", node)

    def _fail(self, message: str, node: Node | None) -> None:
        where = f"{node.op}: " if node is not None else ""
        raise VerifyError(
            where + message,
            location=node.location if node is not None and node.location else None,
            context=format_graph(self._graph),
        )


def _types(values: tuple[Value, ...]) -> str:
    return "(" + ", ".join(str(value.type) for value in values) + ")"
