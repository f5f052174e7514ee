"""StableHLO snippets as graphs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import numpy as np
import pytest
from jaxlib.mlir import passmanager

from hlo_mlc.frontend.importer import import_function
from hlo_mlc.frontend.parse import parse_module
from hlo_mlc.graph.core import Graph, Node
from hlo_mlc.graph.rewrite import eliminate_dead_nodes
from hlo_mlc.graph.verify import verify_graph
from hlo_mlc.ops.registry import evaluate_graph
from hlo_mlc.passes.carried import close_loops
from hlo_mlc.passes.common import merge_common_nodes
from hlo_mlc.passes.sinking import sink_constants


@pytest.fixture
def read() -> Callable[[str, str], Graph]:
    """read(arguments, body): the graph of a function of these lines, the last one `return`."""

    def read_function(arguments: str, body: str) -> Graph:
        *lines, last = body.strip().splitlines()
        returned, _, types = last.strip().removeprefix("return ").partition(" : ")
        text = "\n".join([*lines, f"func.return {returned} : {types}"])
        function = f"func.func @main({arguments}) -> ({types}) {{\n{text}\n}}"
        return import_function(parse_module(function))

    return read_function


@pytest.fixture
def traced() -> Callable[..., Graph]:
    """traced(function, *arrays): its graph, tidied, with loops that carry only what changes."""

    def trace(function: Callable, *arrays: np.ndarray) -> Graph:
        module = jax.jit(function).lower(*arrays).compiler_ir("stablehlo")
        with module.context:
            passmanager.PassManager.parse("builtin.module(inline,symbol-dce,canonicalize,cse)").run(
                module.operation
            )
        graph = merge_common_nodes(sink_constants(import_function(module)))
        return close_loops(eliminate_dead_nodes(graph))

    return trace


@pytest.fixture
def same() -> Callable[..., None]:
    """same(after, before, arrays, tolerance): both graphs are well formed and mean the same."""

    def compare(
        after: Graph, before: Graph, arrays: Sequence[np.ndarray], tolerance: float = 0
    ) -> None:
        verify_graph(after)
        for result, expected in zip(
            evaluate_graph(after, arrays), evaluate_graph(before, arrays), strict=True
        ):
            np.testing.assert_allclose(result, expected, rtol=tolerance, atol=tolerance)

    return compare


@pytest.fixture
def loops_of() -> Callable[[Graph], list[Node]]:
    """The while loops of a graph, outer before inner."""
    return lambda graph: [node for node in graph.walk() if node.op == "stablehlo.while"]


@pytest.fixture
def ops_of() -> Callable[..., list[str]]:
    """ops_of(graph, inner): the names of its ops, those of regions too where `inner`."""

    def ops(graph: Graph, inner: bool = False) -> list[str]:
        nodes = graph.walk() if inner else graph.nodes
        return [node.op.partition(".")[2] for node in nodes]

    return ops
