"""One cluster of a function as a program of its own, for XLA and for us."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
from jaxlib.mlir import ir

from hlo_mlc.backends.base import Backend, BuiltKernel
from hlo_mlc.expr.dtypes import TensorType
from hlo_mlc.expr.layout import stored
from hlo_mlc.frontend.emit import emit_module
from hlo_mlc.frontend.types import write_type
from hlo_mlc.graph.core import Graph, Node, Value
from hlo_mlc.graph.rewrite import operands_first
from hlo_mlc.interop import compat
from hlo_mlc.interop.devices import CPU
from hlo_mlc.interop.extraction import MAIN
from hlo_mlc.interop.operands import Part
from hlo_mlc.interop.synthetic_arguments import synthetic_values
from hlo_mlc.partition.cluster import Cluster
from hlo_mlc.reporting import is_data_dependent


class KernelAlone:
    """A kernel of a function with what it takes to run it alone, by XLA and by us: on what a call
    of the function gives it, if that is known, else on made-up values."""

    def __init__(self, graph: Graph, cluster: Cluster, part: Part) -> None:
        self.cluster, self.module = cluster, part.module
        self._graph, self._arguments = graph, part.given

    @functools.cached_property
    def _program(self) -> ir.Module | None:
        return (
            None
            if self._arguments is None
            else operands_program(self._graph, self.module, self.cluster)
        )

    @property
    def given(self) -> bool:
        """Whether nothing is made up."""
        return self._program is not None

    @property
    def refusal(self) -> str:
        """Why it cannot be run; "" if it can."""
        if self.given or not any(map(is_data_dependent, self.cluster.kernel.program.steps)):
            return ""
        return "how long it runs depends on its operands: give arrays for arguments"

    @functools.cached_property
    def operands(self) -> list[np.ndarray]:
        return cluster_operands(self._graph, self.cluster, self._program, self._arguments or ())

    @functools.cached_property
    def expected(self) -> list[np.ndarray]:
        """What XLA computes of them."""
        return [np.asarray(r) for r in compat.compile_for(self.original)(self.operands)]

    @functools.cached_property
    def original(self) -> ir.Module:
        """The operations as XLA compiles them."""
        return original_program(self._graph, self.module, self.cluster)


def original_program(graph: Graph, source: ir.Module, cluster: Cluster) -> ir.Module:
    """What the cluster computes, in the ops that `source`, which `graph` was read from, has."""
    return _emitted(_computing(graph, cluster.operands, cluster.results), source)


def operands_program(graph: Graph, source: ir.Module, cluster: Cluster) -> ir.Module | None:
    """What the cluster is given, computed from the arguments of the whole function; None for one
    in the body of a loop or a branch, which is given something else each time."""
    graph = Graph(graph.parameters, (*cluster.constants, *graph.nodes), graph.results)
    outermost = {*graph.parameters, *(v for node in graph.nodes for v in node.results)}
    if not cluster.operands or not outermost.issuperset(cluster.operands):
        return None
    return _emitted(_computing(graph, graph.parameters, cluster.operands), source)


def cluster_operands(
    graph: Graph,
    cluster: Cluster,
    program: ir.Module | None,
    given: Sequence[np.ndarray],
    platform: str = CPU,
) -> list[np.ndarray]:
    """What to run a cluster on: what its `operands_program` computes of the arguments that are
    given, on a platform; made-up values where there is none."""
    if program is None:
        return synthetic_values(
            graph, cluster.operands, [(v.type.shape, v.type.dtype.numpy) for v in cluster.operands]
        )
    run = compat.compile_for(program, platform)
    return [np.asarray(r) for r in run([compat.place_on(a, platform) for a in given])]


def in_memory(
    cluster: Cluster, values: Sequence[Value], arrays: Sequence[np.ndarray]
) -> tuple[np.ndarray, ...]:
    """Arrays for some of the operands or results of a cluster as its kernel has them in memory."""
    return tuple(
        stored(array, cluster.orders.get(value, ()))
        for value, array in zip(values, arrays, strict=False)
    )


def kernel_program(
    source: ir.Module, cluster: Cluster, backend: Backend, built: BuiltKernel
) -> ir.Module:
    """The same as a call of our kernel, which was built for a backend."""
    call = cluster.call(
        cluster.operands,
        cluster.results,
        {"id": cluster.kernel.fingerprint, "aliases": (), "dims": ()},
    )
    graph = Graph(cluster.operands, (call,), cluster.results)
    return _emitted(
        backend.completed(graph, {cluster.kernel.fingerprint: built}), source, backend.variant
    )


def _computing(graph: Graph, parameters: tuple[Value, ...], results: tuple[Value, ...]) -> Graph:
    """The nodes between parameters and results, operands first.

    What else they use is zeros: a kernel is not given what its loops overwrite in their first trip.
    """
    given = set(parameters)
    makers = {value: node for node in graph.walk() for value in node.results}

    def maker(value: Value) -> Node | None:
        if value in given:
            return None
        if value not in makers:
            tensor = _type(value)
            makers[value] = Node(
                "stablehlo.constant",
                (),
                (value,),
                literal=np.zeros(tensor.shape, tensor.dtype.numpy),
            )
        return makers[value]

    wanted = filter(None, map(maker, results))
    return Graph(parameters, operands_first(wanted, maker), results)


def _emitted(graph: Graph, source: ir.Module, variant: str = "") -> ir.Module:
    """The graph as the function @main of a module in the context of `source`."""
    with source.context, ir.Location.unknown():
        results = ", ".join(str(write_type(_type(value))) for value in graph.results)
        parameters = ", ".join(
            f"%a{n}: {write_type(_type(value))}" for n, value in enumerate(graph.parameters)
        )
        names = ", ".join(f"%r#{n}" for n in range(len(graph.results)))
        stub = ir.Module.parse(
            f"func.func @{MAIN}({parameters}) -> ({results}) {{\n"
            f"  %r:{len(graph.results)} = stablehlo.custom_call @replaced() : () -> ({results})\n"
            f"  return {names} : {results}\n}}"
        )
    return emit_module(graph, stub, MAIN, variant=variant)


def _type(value: Value) -> TensorType:
    assert value.type is not None, "clusters consist of modelled values"
    return value.type
