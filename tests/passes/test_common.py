"""Common subexpression elimination."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hlo_mlc.graph.core import Graph
from hlo_mlc.graph.verify import verify_graph
from hlo_mlc.passes.common import merge_common_nodes

REDUCE = """%{name} = stablehlo.reduce(%a init: %z) applies stablehlo.{op} across dimensions = [0]
  : (tensor<4xf32>, tensor<f32>) -> tensor<f32>"""


def _ops(graph: Graph) -> list[str]:
    return [node.op.removeprefix("stablehlo.") for node in graph.walk()]


def test_equal_nodes_and_constants_become_one(read: Callable[[str, str], Graph]) -> None:
    graph = read(
        "%a: tensor<4xf32>",
        """%0 = stablehlo.constant dense<2.0> : tensor<4xf32>
           %1 = stablehlo.constant dense<2.0> : tensor<4xf32>
           %2 = stablehlo.add %a, %0 : tensor<4xf32>
           %3 = stablehlo.add %a, %1 : tensor<4xf32>
           %4 = stablehlo.multiply %2, %3 : tensor<4xf32>
           return %4 : tensor<4xf32>""",
    )
    merged = merge_common_nodes(graph)
    verify_graph(merged)
    assert _ops(merged) == ["constant", "add", "multiply"]
    assert merged.nodes[-1].operands[0] is merged.nodes[-1].operands[1]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("constant dense<0.0> : tensor<f32>", "constant dense<-0.0> : tensor<f32>"),
        ("iota dim = 0 : tensor<2x2xf32>", "iota dim = 1 : tensor<2x2xf32>"),
        ("iota dim = 0 : tensor<2xf32>", "iota dim = 0 : tensor<2xi32>"),
        (
            "custom_call @f(%a) : (tensor<4xf32>) -> tensor<4xf32>",
            "custom_call @f(%a) : (tensor<4xf32>) -> tensor<4xf32>",
        ),
        ("optimization_barrier %a : tensor<4xf32>", "optimization_barrier %a : tensor<4xf32>"),
    ],
)
def test_what_differs_or_is_apart_on_purpose_stays(
    first: str, second: str, read: Callable[[str, str], Graph]
) -> None:
    graph = read(
        "%a: tensor<4xf32>",
        f"%0 = stablehlo.{first}\n%1 = stablehlo.{second}\nreturn %a : tensor<4xf32>",
    )
    assert merge_common_nodes(graph) is graph


def test_regions_are_compared(read: Callable[[str, str], Graph]) -> None:
    lines = [REDUCE.format(name=i, op=op) for i, op in enumerate(["add", "add", "maximum"])]
    graph = read(
        "%a: tensor<4xf32>, %z: tensor<f32>",
        "\n".join([*lines, "return %0, %1, %2 : tensor<f32>, tensor<f32>, tensor<f32>"]),
    )
    merged = merge_common_nodes(graph)
    assert _ops(merged) == ["reduce", "add", "reduce", "maximum"]
    assert merged.results[0] is merged.results[1]
    assert merged.results[0] is not merged.results[2]


def test_regions_do_not_share_with_what_is_around_them(read: Callable[[str, str], Graph]) -> None:
    graph = read(
        "%p: tensor<i1>, %a: tensor<f32>",
        """%0 = stablehlo.sine %a : tensor<f32>
           %1 = "stablehlo.if"(%p) ({
             %2 = stablehlo.sine %a : tensor<f32>
             %3 = stablehlo.sine %a : tensor<f32>
             %4 = stablehlo.add %2, %3 : tensor<f32>
             stablehlo.return %4 : tensor<f32>
           }, {
             stablehlo.return %0 : tensor<f32>
           }) : (tensor<i1>) -> tensor<f32>
           return %1 : tensor<f32>""",
    )
    merged = merge_common_nodes(graph)
    verify_graph(merged)
    assert _ops(merged) == ["sine", "if", "sine", "add"]
