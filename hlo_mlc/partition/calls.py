"""The graph in which kernels are called: in its order, and in the regions of control flow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from hlo_mlc.expr.dtypes import TensorType
from hlo_mlc.graph.core import CONTROL_FLOW, Graph, Node, Value, constant_node
from hlo_mlc.graph.rewrite import operands_first
from hlo_mlc.partition.cluster import Cluster
from hlo_mlc.partition.row_blocks import RowCall

WHOLE = frozenset(("sdy.manual_computation",))  # its region is all that a device runs
HOLDING = CONTROL_FLOW | WHOLE
"""Whose regions may have kernels in them."""


def with_calls(graph: Graph, produced: Mapping[Value, Cluster]) -> Graph:
    """The graph in which the values of `produced` come from kernels, in dependency order.

    Raises: VerifyError where kernels wait for each other.
    """
    nodes = [_with_kernels(node, produced) for node in graph.nodes]
    maker = {v: n for n in nodes for v in n.results}
    for cluster in dict.fromkeys(produced[value] for value in tuple(maker) if value in produced):
        nodes_of = (*cluster.constants, *_calls(cluster))
        maker.update((value, node) for node in nodes_of for value in node.results)

    def producer(value: Value) -> Node | None:
        return maker.get(value)

    # Operations with effects stay, in their order.
    wanted = [*(node for node in nodes if node.opaque), *map(producer, graph.results)]
    ordered = operands_first(filter(None, wanted), producer)
    return Graph(graph.parameters, ordered, graph.results)


def _calls(cluster: Cluster) -> Iterator[Node]:
    """The calls of a cluster's kernels, and the constants that only they read, in order."""
    if cluster.blocks is None:
        yield cluster.call(
            cluster.operands,
            cluster.results,
            {"id": cluster.kernel.fingerprint, "aliases": cluster.aliases, "dims": ()},
        )
        return
    program = cluster.blocks.program
    values = dict(
        zip(
            (*program.operands, *program.results),
            (*cluster.operands, *cluster.results),
            strict=True,
        )
    )
    for call in cluster.blocks.calls:
        constants = {b: constant_node(table) for b, table in call.constants.items()}
        constants |= {
            f.before: constant_node(np.full(f.before.shape, f.initial.value, f.before.dtype.numpy))
            for f in call.folds
        }
        yield from constants.values()
        values.update((b, node.results[0]) for b, node in constants.items())
        for buffer in call.results:
            values.setdefault(buffer, Value(TensorType(buffer.shape, buffer.dtype)))
        results = [values[b] for b in call.results]
        spare = [Value(one.type) for one in results[len(results) - len(call.folds) :]]
        yield cluster.call(
            tuple(values[b] for b in call.operands),
            (*results, *spare),
            _attributes(call, cluster.blocks.rows),
        )


def _attributes(call: RowCall, rows: int) -> dict[str, object]:
    """Those of a call (frontend/emit.py)."""
    aliases = tuple((call.results.index(r), call.operands.index(o)) for r, o in call.aliases)
    if not call.has_rows:
        ((_, kernel),) = call.kernels.values()
        return {"id": kernel.fingerprint, "aliases": aliases, "dims": ()}
    return {
        "blocks": {size: kernel.fingerprint for size, (_, kernel) in call.kernels.items()},
        "aliases": aliases,
        "dims": (
            rows,
            call.groups,
            len(call.folds),
            *call.row_bytes,
            *(fold.before.bytes for fold in call.folds),
        ),
    }


def _with_kernels(node: Node, produced: Mapping[Value, Cluster]) -> Node:
    """Control flow with the kernels in its regions; any other node as it is."""
    if node.op not in HOLDING or not any(
        v in produced for region in node.regions for n in region.walk() for v in n.results
    ):
        return node
    return Node(
        node.op,
        node.operands,
        node.results,
        node.attributes,
        tuple(with_calls(region, produced) for region in node.regions),
        node.literal,
        node.location,
        node.origin,
        node.opaque,
    )
