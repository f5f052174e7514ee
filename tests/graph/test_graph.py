"""Graphs: building, printing, checking, rewriting."""

from __future__ import annotations

import numpy as np
import pytest

from hlo_mlc.expr.dtypes import BOOL, F32, I32, TensorType
from hlo_mlc.graph.core import Graph, Node, Value
from hlo_mlc.graph.effects import is_mergeable, is_removable
from hlo_mlc.graph.rewrite import apply_rules, eliminate_dead_nodes, operands_first, uses_among
from hlo_mlc.graph.text import format_graph
from hlo_mlc.graph.verify import verify_graph
from hlo_mlc.support.errors import PassError, VerifyError
from making.graphs import GraphBuilder

VECTOR = TensorType((4,), F32)
SCALAR = TensorType((), F32)
FLAG = TensorType((), BOOL)


def _loop() -> tuple[Graph, Value]:
    """A while loop whose body captures a value; also gives that value."""
    outer = GraphBuilder()
    count, start = outer.parameter(TensorType((), I32)), outer.parameter(VECTOR)
    captured = outer.add("stablehlo.sine", [start], VECTOR)
    condition = GraphBuilder()
    i, _ = condition.parameter(count.type), condition.parameter(VECTOR)
    more = condition.add("stablehlo.compare", [i, count], FLAG, {"comparison_direction": "LT"})
    body = GraphBuilder()
    j, x = body.parameter(count.type), body.parameter(VECTOR)
    y = body.add("stablehlo.add", [x, captured], VECTOR)
    results = outer.add_node(
        "stablehlo.while",
        [count, start],
        [count.type, VECTOR],
        regions=[condition.graph(more), body.graph(j, y)],
    )
    return outer.graph(results[1]), captured


def test_text() -> None:
    graph, _ = _loop()
    builder = GraphBuilder()
    builder.constant(np.broadcast_to(np.float32(2), (4,)))
    builder.constant(np.array([1, 2], np.int32))
    builder.constant(np.arange(100))
    graph = Graph(graph.parameters, (*builder.graph().nodes, *graph.nodes), graph.results)
    last = graph.nodes[-1]
    located = Node(
        last.op, last.operands, last.results, last.attributes, last.regions,
        location="/home/x/model.py:12 jit(f)/while", opaque="a token",
    )  # fmt: skip
    graph = Graph(graph.parameters, (*graph.nodes[:-1], located), graph.results)
    assert (
        format_graph(graph)
        == """\
graph(%0: i32, %1: 4xf32) {
  %2 = stablehlo.constant 2.0 : 4xf32
  %3 = stablehlo.constant [1, 2] : 2xi32
  %4 = stablehlo.constant […] : 100xi64
  %5 = stablehlo.sine %1 : 4xf32
  %6, %7 = stablehlo.while %0, %1 : i32, 4xf32  # model.py:12 jit(f)/while; opaque: a token
    region 0(%8: i32, %9: 4xf32) {
      %10 = stablehlo.compare %8, %0 {comparison_direction=LT} : i1
      return %10
    }
    region 1(%11: i32, %12: 4xf32) {
      %13 = stablehlo.add %12, %5 : 4xf32
      return %11, %13
    }
  return %7
}"""
    )


def test_well_formed_graphs_pass() -> None:
    verify_graph(_loop()[0])


def _broken_order() -> Graph:
    builder = GraphBuilder()
    x = builder.parameter(VECTOR)
    y = builder.add("stablehlo.sine", [x], VECTOR)
    z = builder.add("stablehlo.sine", [y], VECTOR)
    graph = builder.graph(z)
    return Graph(graph.parameters, graph.nodes[::-1], graph.results)


def _defined_twice() -> Graph:
    builder = GraphBuilder()
    graph = builder.graph(builder.add("stablehlo.sine", [builder.parameter(VECTOR)], VECTOR))
    return Graph(graph.parameters, graph.nodes * 2, graph.results)


def _leaked_from_a_region() -> Graph:
    graph, _ = _loop()
    inner = graph.nodes[1].regions[1].nodes[0].results[0]
    return Graph(graph.parameters, graph.nodes, (inner,))


def _literal_of_another_type() -> Graph:
    value = Value(VECTOR)
    literal = np.zeros(4, np.float64)
    return Graph((), (Node("stablehlo.constant", (), (value,), literal=literal),), (value,))


def _constant_without_literal() -> Graph:
    value = Value(VECTOR)
    return Graph((), (Node("stablehlo.constant", (), (value,)),), (value,))


def _body_of_another_type() -> Graph:
    graph, _ = _loop()
    loop = graph.nodes[1]
    body = loop.regions[1]
    swapped = Graph(body.parameters, body.nodes, body.results[::-1])
    changed = Node(loop.op, loop.operands, loop.results, {}, (loop.regions[0], swapped))
    return Graph(graph.parameters, (graph.nodes[0], changed), graph.results)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (_broken_order, "operands to be defined before"),
        (_defined_twice, "defined once"),
        (_leaked_from_a_region, "to be defined in it"),
        (_literal_of_another_type, "literal of type 4xf32, got float64"),
        (_constant_without_literal, "expected a literal"),
        (_body_of_another_type, "expected results of the body of types"),
    ],
)
def test_malformed_graphs_are_refused(make, message: str) -> None:
    with pytest.raises(VerifyError, match=message):
        verify_graph(make())


def test_captures_and_uses() -> None:
    graph, captured = _loop()
    sine, loop = graph.nodes
    assert loop.regions[1].captures == (captured,)
    assert graph.captures == ()
    count, start = graph.parameters
    assert set(loop.used) == {count, start, captured}
    assert uses_among(graph.nodes) == {start: (sine, loop), count: (loop,), captured: (loop,)}


def test_nodes_come_after_what_they_use() -> None:
    graph, _ = _loop()
    sine, loop = graph.nodes
    makers = {value: node for node in graph.nodes for value in node.results}
    assert operands_first([loop], makers.get) == (sine, loop)
    with pytest.raises(VerifyError, match="waits for what waits for its results"):
        operands_first([sine], lambda value: loop)


def test_dead_nodes_go_and_live_ones_stay() -> None:
    builder = GraphBuilder()
    x = builder.parameter(VECTOR)
    used = builder.add("stablehlo.sine", [x], VECTOR)
    dead = builder.add("stablehlo.cosine", [used], VECTOR)
    builder.add("stablehlo.negate", [dead], VECTOR)
    builder.add("stablehlo.all_reduce", [x], VECTOR)
    live = eliminate_dead_nodes(builder.graph(used))
    assert [node.op for node in live.nodes] == ["stablehlo.sine", "stablehlo.all_reduce"]
    assert eliminate_dead_nodes(live) is live


def test_what_a_region_uses_is_live() -> None:
    graph, _ = _loop()
    assert eliminate_dead_nodes(graph) is graph


@pytest.mark.parametrize(
    ("node", "removable", "mergeable"),
    [
        (Node("stablehlo.add", (), ()), True, True),
        (Node("stablehlo.rng", (), ()), True, False),
        (Node("stablehlo.optimization_barrier", (), ()), True, False),
        (Node("stablehlo.all_reduce", (), ()), False, False),
        (Node("sdy.sharding_constraint", (), (), opaque="dialect sdy"), False, False),
        (Node("stablehlo.add", (), (), opaque="type f8"), False, False),
        (Node("stablehlo.custom_call", (), (), opaque="no attributes"), False, False),
        (
            Node("stablehlo.custom_call", (), (), {"call_target_name": "f"}, opaque="a call"),
            True,
            False,
        ),
        (
            Node(
                "stablehlo.custom_call",
                (),
                (),
                {"call_target_name": "f", "has_side_effect": True},
                opaque="a call",
            ),
            False,
            False,
        ),
        (
            Node(
                "stablehlo.while",
                (),
                (),
                regions=(Graph((), (Node("stablehlo.all_reduce", (), ()),), ()),),
            ),
            False,
            False,
        ),
    ],
)
def test_effects(node: Node, removable: bool, mergeable: bool) -> None:
    assert is_removable(node) == removable
    assert is_mergeable(node) == mergeable


def test_rules_see_rewritten_operands_and_rewrite_what_they_add() -> None:
    builder = GraphBuilder()
    x = builder.parameter(VECTOR)
    graph = builder.graph(builder.add("stablehlo.abs", [x], VECTOR))

    def abs_to_negate(node, context):
        return context.add("stablehlo.negate", node.operands, node.results[0].type)

    def negate_to_sine(node, context):
        return context.add("stablehlo.sine", node.operands, node.results[0].type)

    rules = {"stablehlo.abs": (abs_to_negate,), "stablehlo.negate": (negate_to_sine,)}
    rewritten = apply_rules(graph, rules)
    assert [node.op for node in rewritten.nodes] == ["stablehlo.sine"]
    assert rewritten.results == rewritten.nodes[0].results


def test_rewriting_nothing_gives_the_same_graph() -> None:
    graph, _ = _loop()
    assert apply_rules(graph, {}) is graph


def test_uses_inside_regions_follow_a_rewrite() -> None:
    graph, _ = _loop()
    start = graph.parameters[1]
    rewritten = apply_rules(graph, {"stablehlo.sine": (lambda node, context: node.operands[0],)})
    verify_graph(rewritten)
    (loop,) = rewritten.nodes
    assert loop.regions[1].captures == (start,)
    assert loop.regions[0] is graph.nodes[1].regions[0]


def test_a_rule_may_not_change_types() -> None:
    builder = GraphBuilder()
    x = builder.parameter(SCALAR)
    graph = builder.graph(builder.add("stablehlo.broadcast_in_dim", [x], VECTOR))

    def wrong(node, context):
        return node.operands[0]

    with pytest.raises(PassError, match=r"rule wrong .*4xf32.* by .*f32"):
        apply_rules(graph, {"stablehlo.broadcast_in_dim": (wrong,)})
