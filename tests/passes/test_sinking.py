"""Constants in the regions that use them."""

from __future__ import annotations

from collections.abc import Callable

from hlo_mlc.graph.core import Graph
from hlo_mlc.graph.verify import verify_graph
from hlo_mlc.ops.registry import supports
from hlo_mlc.passes.sinking import sink_constants


def test_the_body_of_a_reduction_gets_its_own_constants(read: Callable[[str, str], Graph]) -> None:
    graph = read(
        "%a: tensor<4xf32>",
        """%z = stablehlo.constant dense<0.0> : tensor<f32>
           %c = stablehlo.constant dense<2.0> : tensor<f32>
           %0 = stablehlo.reduce(%a init: %z) across dimensions = [0]
               : (tensor<4xf32>, tensor<f32>) -> tensor<f32>
             reducer(%x: tensor<f32>, %y: tensor<f32>) {
               %1 = stablehlo.multiply %y, %c : tensor<f32>
               %2 = stablehlo.add %x, %1 : tensor<f32>
               %3 = stablehlo.add %2, %z : tensor<f32>
               stablehlo.return %3 : tensor<f32>
             }
           return %0 : tensor<f32>""",
    )
    assert "from outside" in supports(graph.nodes[-1])
    sunk = sink_constants(graph)
    verify_graph(sunk)
    (body,) = sunk.nodes[-1].regions
    assert not body.captures
    assert sorted(float(n.literal) for n in body.nodes if n.literal is not None) == [0.0, 2.0]
    assert not supports(sunk.nodes[-1])
    assert sunk.nodes[-1].operands == graph.nodes[-1].operands
    assert sink_constants(sunk) is sunk


def test_inner_regions_and_results_count_tables_do_not(read: Callable[[str, str], Graph]) -> None:
    graph = read(
        "%p: tensor<i1>, %a: tensor<2xf32>",
        """%c = stablehlo.constant dense<2.0> : tensor<2xf32>
           %t = stablehlo.constant dense<[1.0, 2.0]> : tensor<2xf32>
           %0 = "stablehlo.if"(%p) ({
             %1 = "stablehlo.if"(%p) ({
               %2 = stablehlo.add %t, %c : tensor<2xf32>
               stablehlo.return %2 : tensor<2xf32>
             }, {
               stablehlo.return %c : tensor<2xf32>
             }) : (tensor<i1>) -> tensor<2xf32>
             stablehlo.return %1 : tensor<2xf32>
           }, {
             stablehlo.return %a : tensor<2xf32>
           }) : (tensor<i1>) -> tensor<2xf32>
           return %0 : tensor<2xf32>""",
    )
    sunk = sink_constants(graph)
    verify_graph(sunk)
    outer = sunk.nodes[-1].regions[0]
    table = graph.nodes[1].results[0]
    assert set(outer.captures) == {graph.parameters[0], table}
    first, second = outer.nodes[-1].regions
    assert first.nodes[-1].operands == (table, first.nodes[0].results[0])
    assert second.results == second.nodes[0].results


def test_nothing_to_sink_changes_nothing(read: Callable[[str, str], Graph]) -> None:
    graph = read(
        "%a: tensor<4xf32>",
        """%z = stablehlo.constant dense<0.0> : tensor<f32>
           %0 = stablehlo.reduce(%a init: %z) applies stablehlo.add across dimensions = [0]
             : (tensor<4xf32>, tensor<f32>) -> tensor<f32>
           return %0 : tensor<f32>""",
    )
    assert sink_constants(graph) is graph


def test_tables_leave_the_loops_that_use_them(read: Callable[[str, str], Graph]) -> None:
    graph = read(
        "%x: tensor<3xi32>, %n: tensor<i32>",
        """
      %1:2 = stablehlo.while(%i = %n, %y = %x) : tensor<i32>, tensor<3xi32> cond {
        %zero = stablehlo.constant dense<0> : tensor<i32>
        %more = stablehlo.compare GT, %i, %zero : (tensor<i32>, tensor<i32>) -> tensor<i1>
        stablehlo.return %more : tensor<i1>
      } do {
        %table = stablehlo.constant dense<[1, 2, 4]> : tensor<3xi32>
        %one = stablehlo.constant dense<1> : tensor<i32>
        %next = stablehlo.subtract %i, %one : tensor<i32>
        %sum = stablehlo.add %y, %table : tensor<3xi32>
        stablehlo.return %next, %sum : tensor<i32>, tensor<3xi32>
      }
      return %1#1 : tensor<3xi32>""",
    )
    lifted = sink_constants(graph)
    table, loop = lifted.nodes
    assert table.literal.tolist() == [1, 2, 4]
    assert [n.literal.tolist() for r in loop.regions for n in r.nodes if n.literal is not None] == [
        0,
        1,
    ]
    assert sink_constants(lifted) is lifted
