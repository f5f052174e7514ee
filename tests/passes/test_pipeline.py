"""Running passes, and the simplifier as a whole."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from hlo_mlc.expr.dtypes import F32, TensorType
from hlo_mlc.graph.core import Graph
from hlo_mlc.ops.registry import evaluate_graph, references
from hlo_mlc.passes.pipeline import Pass, Property, run_passes
from hlo_mlc.passes.simplify import simplify
from hlo_mlc.support.errors import PassError, VerifyError
from making.graphs import GraphBuilder

VECTOR = TensorType((4,), F32)
SINES = Property("sines", lambda graph: any(n.op == "stablehlo.sine" for n in graph.nodes))


def _sine() -> Graph:
    builder = GraphBuilder()
    return builder.graph(builder.add("stablehlo.sine", [builder.parameter(VECTOR)], VECTOR))


def _without_nodes(graph: Graph) -> Graph:
    return Graph(graph.parameters, (), graph.parameters)


def test_records_say_what_changed() -> None:
    passes = [Pass("nothing", lambda graph: graph), Pass("empty", _without_nodes)]
    graph, records = run_passes(_sine(), passes, verify=True)
    assert graph.nodes == ()
    assert [(r.name, r.changed, r.nodes) for r in records] == [
        ("nothing", False, 1),
        ("empty", True, 0),
    ]
    assert "nothing: unchanged" in str(records[0])


def test_no_pass_runs_again_on_what_all_have_left_as_it_is() -> None:
    once = iter([_without_nodes])
    passes = [
        Pass("first", lambda g: g),
        Pass("once", lambda g: next(once, lambda g: g)(g)),
        Pass("last", lambda g: g),
    ]
    _, records = run_passes(_sine(), passes, rounds=4)
    assert [r.name for r in records] == ["first", "once", "last", "first", "once"]
    assert len(run_passes(_sine(), passes[::2], rounds=4)[1]) == 2


def test_a_broken_promise_is_found() -> None:
    with pytest.raises(PassError, match="empty ensures a graph with sines"):
        run_passes(_sine(), [Pass("empty", _without_nodes, ensures=(SINES,))], verify=True)


def test_a_missing_requirement_is_found() -> None:
    passes = [Pass("empty", _without_nodes), Pass("late", lambda g: g, requires=(SINES,))]
    with pytest.raises(PassError, match="late requires a graph with sines"):
        run_passes(_sine(), passes, verify=True)


def test_a_malformed_result_is_found() -> None:
    wrong = Pass("wrong", lambda graph: Graph((), graph.nodes, graph.results))
    with pytest.raises(VerifyError):
        run_passes(_sine(), [wrong], verify=True)


def test_simplify_reaches_through_rules_merging_and_dead_code(
    read: Callable[[str, str], Graph],
) -> None:
    graph = read(
        "%a: tensor<2x3xf32>",
        """%one = stablehlo.constant dense<1.0> : tensor<f32>
           %ones = stablehlo.broadcast_in_dim %one, dims = [] : (tensor<f32>) -> tensor<2x3xf32>
           %0 = stablehlo.multiply %a, %ones : tensor<2x3xf32>
           %1 = stablehlo.transpose %0, dims = [1, 0] : (tensor<2x3xf32>) -> tensor<3x2xf32>
           %2 = stablehlo.transpose %1, dims = [1, 0] : (tensor<3x2xf32>) -> tensor<2x3xf32>
           %3 = stablehlo.sine %a : tensor<2x3xf32>
           %4 = stablehlo.sine %2 : tensor<2x3xf32>
           %5 = stablehlo.maximum %3, %4 : tensor<2x3xf32>
           return %5 : tensor<2x3xf32>""",
    )
    simple, records = simplify(graph, references, verify=True)
    assert [node.op for node in simple.nodes] == ["stablehlo.sine"]
    assert simple.nodes[0].operands == graph.parameters
    assert not any(record.changed for record in records[-3:])


def test_a_simple_graph_comes_back_itself() -> None:
    graph = _sine()
    assert simplify(graph, references, verify=True)[0] is graph


def test_random_chains_mean_the_same() -> None:
    generator = np.random.default_rng(7)
    operations = ("add", "multiply", "subtract", "maximum")
    for _ in range(20):
        builder = GraphBuilder()
        values = [builder.parameter(VECTOR), builder.parameter(VECTOR)]
        values += [builder.constant(np.full(4, c, np.float32)) for c in (0.0, -0.0, 1.0, 3.0)]
        for _ in range(30):
            operands = [values[i] for i in generator.integers(0, len(values), 2)]
            op = operations[generator.integers(len(operations))]
            values.append(builder.add(f"stablehlo.{op}", operands, VECTOR))
        graph = builder.graph(*values[-4:])
        simple, _ = simplify(graph, references, verify=True)
        arrays = [generator.standard_normal(4).astype(np.float32) for _ in range(2)]
        for result, expected in zip(
            evaluate_graph(simple, arrays), evaluate_graph(graph, arrays), strict=True
        ):
            np.testing.assert_array_equal(result, expected)


def test_rules_see_nothing_in_what_is_not_modelled(read: Callable[[str, str], Graph]) -> None:
    graph = read(
        "%x: tensor<8xf32>",
        """
        %a = stablehlo.convert %x : (tensor<8xf32>) -> tensor<8xi4>
        %b = stablehlo.convert %a : (tensor<8xi4>) -> tensor<8xf32>
        %c = stablehlo.convert %b : (tensor<8xf32>) -> tensor<8xi32>
        %zero = stablehlo.constant dense<0.0> : tensor<f32>
        %sum = stablehlo.reduce(%b init: %zero) applies stablehlo.add across dimensions = [0]
            : (tensor<8xf32>, tensor<f32>) -> tensor<f32>
        return %c, %sum : tensor<8xi32>, tensor<f32>""",
    )
    simplified, _ = simplify(graph, references, verify=True)
    assert [n.op for n in simplified.nodes].count("stablehlo.convert") == 3
