"""Static memory plans: what is needed at the same time never overlaps, and nothing is lost."""

from __future__ import annotations

import numpy as np
import pytest

from hlo_mlc.expr.dtypes import F32, TensorType
from hlo_mlc.graph.core import Graph, Value
from hlo_mlc.loops.signature import ALIGNMENT
from hlo_mlc.partition.memory import Copy, MemoryPlan, Place, plan_memory
from hlo_mlc.support.errors import UnsupportedOpError
from making.graphs import GraphBuilder

SCRATCH = {"k": 100, "none": 0}


def tensor(size: int) -> TensorType:
    return TensorType((size,), F32)


def kernel(
    builder: GraphBuilder, operands: list[Value], *sizes: int, name: str = "none"
) -> tuple[Value, ...]:
    return builder.add_node(
        "hlo_mlc.kernel",
        operands,
        [tensor(s) for s in sizes],
        {"id": name, "aliases": (), "dims": ()},
    )


def random_graph(seed: int) -> Graph:
    rng = np.random.default_rng(seed)
    builder = GraphBuilder()
    values = [builder.parameter(tensor(int(n))) for n in rng.integers(0, 90, 2)]
    for _ in range(rng.integers(1, 25)):
        operands = [values[int(n)] for n in rng.integers(0, len(values), rng.integers(1, 4))]
        if rng.random() < 0.2:
            size = operands[0].type.size
            values.append(
                builder.add("stablehlo.reshape", operands[:1], TensorType((size, 1), F32))
            )
            continue
        sizes = [int(n) for n in rng.integers(0, 90, rng.integers(1, 4))]
        values += kernel(builder, operands, *sizes, name=str(rng.choice(["k", "none"])))
    results = [values[int(n)] for n in rng.integers(0, len(values), rng.integers(1, 4))]
    return builder.graph(*results)


def run(graph: Graph, plan: MemoryPlan) -> None:
    """Goes through the calls with memory that knows which value it holds."""
    calls = [node for node in graph.nodes if node.op == "hlo_mlc.kernel"]
    root = {v: v for v in (*graph.parameters, *(r for c in calls for r in c.results))}
    for node in graph.nodes:
        if node.op == "stablehlo.reshape":
            root[node.results[0]] = root[node.operands[0]]
    held: dict[tuple[str, int], Value | None] = {
        ("operand", n): v for n, v in enumerate(graph.parameters)
    }

    def cells(place: Place, size: int) -> list[tuple[str, int]]:
        if place.kind != "workspace":
            return [(place.kind, place.index)] if size else []
        assert place.index % ALIGNMENT == 0
        assert place.index + size <= plan.workspace_bytes
        return [("workspace", place.index + n) for n in range(size)]

    for call, invocation in zip(calls, plan.invocations, strict=True):
        values = [*call.operands, *call.results]
        for value, place in zip(call.operands, invocation.buffers, strict=False):
            assert all(held[c] is root[value] for c in cells(place, value.type.bytes))
        scratch = cells(Place("workspace", invocation.scratch), SCRATCH[call.attributes["id"]])
        used = [
            c
            for v, p in zip(values, invocation.buffers, strict=True)
            for c in cells(p, v.type.bytes)
        ]
        written = [
            c
            for v, p in zip(call.results, invocation.buffers[len(call.operands) :], strict=True)
            for c in cells(p, v.type.bytes)
        ]
        assert len(set(written)) == len(written)
        assert not set(scratch) & set(used)
        held.update(dict.fromkeys(scratch))
        for value, place in zip(
            call.results, invocation.buffers[len(call.operands) :], strict=True
        ):
            assert place.kind != "operand"
            held.update(dict.fromkeys(cells(place, value.type.bytes), value))
    copied = {copy.target: copy.source for copy in plan.copies}
    for number, value in enumerate(graph.results):
        place = copied.get(Place("result", number), Place("result", number))
        assert all(held[c] is root[value] for c in cells(place, value.type.bytes))


@pytest.mark.parametrize("seed", range(40))
def test_every_value_is_there_when_it_is_read(seed: int) -> None:
    graph = random_graph(seed)
    plan = plan_memory(graph, SCRATCH)
    run(graph, plan)
    assert plan.workspace_bytes <= plan.total_bytes


def test_a_chain_takes_two_buffers() -> None:
    builder = GraphBuilder()
    value = builder.parameter(tensor(64))
    for _ in range(10):
        (value,) = kernel(builder, [value], 64)
    plan = plan_memory(builder.graph(value), SCRATCH)
    assert (plan.workspace_bytes, plan.total_bytes) == (2 * 256, 9 * 256)
    assert plan.copies == ()


def test_results_twice_operands_and_constants() -> None:
    builder = GraphBuilder()
    x = builder.parameter(tensor(4))
    table = builder.constant(np.arange(3.0, dtype=np.float32))
    (y,) = kernel(builder, [x, table], 4)
    plan = plan_memory(builder.graph(y, x, table, y), SCRATCH)
    assert plan.invocations[0].buffers == (
        Place("operand", 0),
        Place("constant", 0),
        Place("result", 0),
    )
    assert plan.copies == (
        Copy(Place("operand", 0), Place("result", 1), 16),
        Copy(Place("constant", 0), Place("result", 2), 12),
        Copy(Place("result", 0), Place("result", 3), 16),
    )
    np.testing.assert_array_equal(plan.constants[0], [0, 1, 2])


def test_what_is_no_kernel() -> None:
    builder = GraphBuilder()
    x = builder.parameter(tensor(4))
    with pytest.raises(UnsupportedOpError, match=r"stablehlo\.sort is not"):
        plan_memory(builder.graph(builder.add("stablehlo.sort", [x], tensor(4))), SCRATCH)
