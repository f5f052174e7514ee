"""Small programs, and the inputs that stand for all there are."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from hlo_mlc.expr.dtypes import F32, DType, TensorType
from hlo_mlc.graph.core import Graph, Value
from making.graphs import GraphBuilder

Shape = tuple[int, ...]
Arrays = list[np.ndarray]


@dataclass(frozen=True, slots=True)
class Program:
    """A graph, and inputs that stand for all there are."""

    graph: Graph
    inputs: Callable[[Graph], Iterable[Arrays]]


class Builder(GraphBuilder):
    """Parameters and nodes; what is asked for by name is there once."""

    def __init__(self) -> None:
        super().__init__()
        self._named: dict[str, Value] = {}

    def named(self, name: str, shape: Shape, dtype: DType = F32) -> Value:
        """The parameter of this name, shape and type."""
        key = f"{name} {TensorType(shape, dtype)}"
        if key not in self._named:
            self._named[key] = self.parameter(TensorType(shape, dtype))
        return self._named[key]
