"""Graphs as text, one line a node, for dumps and messages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePath

import numpy as np

from hlo_mlc.graph.core import Attribute, Graph, Node, Value

_MAX_LITERAL_ELEMENTS = 8


def format_graph(graph: Graph) -> str:
    """The graph with its regions indented below their nodes.

    For example `%3 = stablehlo.add %1, %2 : 4x8xf32  # user.py:12 jit(f)/add`.
    """
    return "\n".join(_Printer().graph("graph", graph, ""))


class _Printer:
    def __init__(self) -> None:
        self._names: dict[Value, str] = {}

    def graph(self, head: str, graph: Graph, indent: str) -> Iterator[str]:
        parameters = [f"{self._name(v)}: {_type(v)}" for v in graph.parameters]
        yield f"{indent}{head}({', '.join(parameters)}) {{"
        for node in graph.nodes:
            yield from self._node(node, indent + "  ")
        results = ", ".join(self._name(v) for v in graph.results)
        yield f"{indent}  return {results}".rstrip()
        yield indent + "}"

    def _node(self, node: Node, indent: str) -> Iterator[str]:
        words = [node.op]
        if node.operands:
            words.append(", ".join(self._name(v) for v in node.operands))
        if node.literal is not None:
            words.append(_literal(node.literal))
        if node.attributes:
            pairs = [f"{k}={_attribute(v)}" for k, v in sorted(node.attributes.items())]
            words.append("{" + ", ".join(pairs) + "}")
        line = " ".join(words)
        if node.results:
            results = ", ".join(self._name(v) for v in node.results)
            types = ", ".join(_type(v) for v in node.results)
            line = f"{results} = {line} : {types}"
        comments = [_short(node.location), f"opaque: {node.opaque}" if node.opaque else ""]
        if comment := "; ".join(filter(None, comments)):
            line += f"  # {comment}"
        yield indent + line
        for i, region in enumerate(node.regions):
            yield from self.graph(f"region {i}", region, indent + "  ")

    def _name(self, value: Value) -> str:
        return self._names.setdefault(value, f"%{value.name or len(self._names)}")


def _type(value: Value) -> str:
    return "?" if value.type is None else str(value.type)


def _attribute(value: Attribute) -> str:
    if isinstance(value, tuple):
        return "[" + ", ".join(map(_attribute, value)) + "]"
    return str(value)


def _literal(literal: np.ndarray) -> str:
    if literal.size and not any(literal.strides):
        return str(literal[(0,) * literal.ndim])
    if literal.size <= _MAX_LITERAL_ELEMENTS:
        return _attribute(tuple(literal.ravel().tolist()))
    return "[…]"


def _short(location: str) -> str:
    """The location without the folders of its file."""
    file, colon, rest = location.partition(":")
    return PurePath(file).name + colon + rest if colon else location
