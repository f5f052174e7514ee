"""Graphs, node by node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from hlo_mlc.expr.dtypes import TensorType
from hlo_mlc.graph.core import Attribute, Graph, Node, Value, constant_node


class GraphBuilder:
    """Collects parameters and nodes in order: `b.add(...)` returns what later nodes use."""

    def __init__(self) -> None:
        self._parameters: list[Value] = []
        self._nodes: list[Node] = []

    def parameter(self, tensor: TensorType) -> Value:
        """A new parameter, after those there are."""
        self._parameters.append(Value(tensor))
        return self._parameters[-1]

    def constant(self, literal: np.ndarray) -> Value:
        """A constant of the array's own type."""
        self._nodes.append(constant_node(literal))
        return self._nodes[-1].results[0]

    def add(
        self,
        op: str,
        operands: Sequence[Value],
        tensor: TensorType,
        attributes: Mapping[str, Attribute] | None = None,
    ) -> Value:
        """A node with one result of type `tensor`."""
        return self.add_node(op, operands, (tensor,), attributes)[0]

    def add_node(
        self,
        op: str,
        operands: Sequence[Value],
        tensors: Sequence[TensorType],
        attributes: Mapping[str, Attribute] | None = None,
        regions: Sequence[Graph] = (),
    ) -> tuple[Value, ...]:
        """A node with any number of results and regions."""
        results = tuple(Value(tensor) for tensor in tensors)
        self._nodes.append(Node(op, tuple(operands), results, attributes or {}, tuple(regions)))
        return results

    def graph(self, *results: Value) -> Graph:
        """The graph of everything added so far."""
        return Graph(tuple(self._parameters), tuple(self._nodes), results)
