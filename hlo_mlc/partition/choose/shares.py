"""What of a call's time goes where: how often operations run, how long XLA needs for those that
nobody compiles.

What is not modelled counts with the least that it can take, so that what kernels save is at most
the share of a call that it seems to be (`worth.py`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from hlo_mlc.expr.dtypes import C128, F64, TensorType
from hlo_mlc.graph.core import Graph, Node
from hlo_mlc.graph.counting import trips
from hlo_mlc.ops.library_calls import DIALECT
from hlo_mlc.ops.registry import moves
from hlo_mlc.partition.calls import HOLDING
from hlo_mlc.partition.choose.xla_dispatch import counted_operations
from hlo_mlc.partition.choose.xla_figures import thread_figure
from hlo_mlc.target.cpu import CpuTarget
from hlo_mlc.target.rates import Rates
from hlo_mlc.tensor.core import UNKNOWN_TRIPS


def runs(graph: Graph) -> Mapping[Node, int]:
    """How often each operation outside of kernels may run in one call of the program: those of
    loops as often as these, `UNKNOWN_TRIPS` times where nobody knows."""
    return dict(_runs(graph, 1, trips(graph.nodes, lambda value: None, UNKNOWN_TRIPS)))


def _runs(graph: Graph, times: int, trips_of: Mapping[Node, int]) -> Iterator[tuple[Node, int]]:
    for node in graph.nodes:
        yield node, times
        if node.op in HOLDING and not node.opaque:
            for inside in node.regions:
                yield from _runs(inside, times * trips_of.get(node, 1), trips_of)


def least_arithmetic_us(node: Node, target: CpuTarget) -> float:
    """What the arithmetic of an operation takes on one thread, in vectors, and that of a Fourier
    transform in XLA's library; 0 if that is unknown."""
    types = [value.type for value in (*node.operands, *node.results) if value.type is not None]
    if node.op in HOLDING or moves(node) or not types:
        return 0.0
    largest = max(types, key=lambda one: one.size)
    if node.op == "stablehlo.fft":
        return _transform_us(node, largest, target.rates)
    operations = max(counted_operations((node,)), largest.size)
    lanes = max(1, target.vector_bytes // largest.dtype.bytes)
    return operations / (lanes * target.rates.vector_operations)


def _transform_us(node: Node, largest: TensorType, rates: Rates) -> float:
    """A Fourier transform along all of its axes, shared out as rows of them are."""
    each = 5 / 2 if "RFFT" in node.attributes["fft_type"] else 5
    operations = each * largest.size * math.log2(max(2, math.prod(node.attributes["fft_length"])))
    is_wide = largest.dtype in (F64, C128)
    kind = "row_transform_wide_operation_ns" if is_wide else "row_transform_operation_ns"
    return operations * thread_figure(kind, rates) / 1e3


def least_us(node: Node, target: CpuTarget) -> float:
    """The least that an operation takes by itself: its arithmetic, or its bytes.  Factorizations
    do each element as often as there are rows."""
    types = [value.type for value in (*node.operands, *node.results) if value.type is not None]
    if node.op in HOLDING or not all(t.is_static for t in types):
        return 0.0
    arithmetic = least_arithmetic_us(node, target)
    if node.op.startswith(f"{DIALECT}."):
        arithmetic *= max((t.shape[-1] for t in types if t.shape), default=1)
    moved = sum(math.prod(t.shape) * t.dtype.bytes for t in types)
    return max(arithmetic, target.rates.pass_us(moved)) + target.rates.thunk_us
