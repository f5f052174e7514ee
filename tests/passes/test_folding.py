"""What is known is computed at once."""

from __future__ import annotations

import pytest

from hlo_mlc.graph.rewrite import apply_rules
from hlo_mlc.ops.registry import references
from hlo_mlc.passes.folding import constant_folding
from making.rules import Case, Read

RULES = {"*": (constant_folding(references),)}

CASES = [
    Case(
        "fold",
        "",
        """%0 = stablehlo.constant dense<[1.0, 2.0]> : tensor<2xf32>
           %1 = stablehlo.constant dense<[3.0, -1.0]> : tensor<2xf32>
           %2 = stablehlo.add %0, %1 : tensor<2xf32>
           return %2 : tensor<2xf32>""",
        """%0 = stablehlo.constant dense<[4.0, 1.0]> : tensor<2xf32>
           return %0 : tensor<2xf32>""",
    ),
    Case(  # far over the limit, but a splat
        "fold",
        "",
        """%0 = stablehlo.constant dense<2.0> : tensor<f32>
           %1 = stablehlo.broadcast_in_dim %0, dims = [] : (tensor<f32>) -> tensor<1000x1000xf32>
           %2 = stablehlo.multiply %1, %1 : tensor<1000x1000xf32>
           return %2 : tensor<1000x1000xf32>""",
        """%0 = stablehlo.constant dense<4.0> : tensor<1000x1000xf32>
           return %0 : tensor<1000x1000xf32>""",
    ),
    Case(
        "fold",
        "",
        """%0 = stablehlo.constant dense<[[1, 2], [3, 4]]> : tensor<2x2xi8>
           %1 = stablehlo.transpose %0, dims = [1, 0] : (tensor<2x2xi8>) -> tensor<2x2xi8>
           %2 = stablehlo.slice %1 [1:2, 0:2] : (tensor<2x2xi8>) -> tensor<1x2xi8>
           return %2 : tensor<1x2xi8>""",
        """%0 = stablehlo.constant dense<[[2, 4]]> : tensor<1x2xi8>
           return %0 : tensor<1x2xi8>""",
    ),
    Case(  # what is moved keeps its rank, also where that is zero
        "fold",
        "",
        """%0 = stablehlo.constant dense<[1, 2]> : tensor<2xi8>
           %1 = stablehlo.slice %0 [1:2] : (tensor<2xi8>) -> tensor<1xi8>
           %2 = stablehlo.reshape %1 : (tensor<1xi8>) -> tensor<i8>
           return %2 : tensor<i8>""",
        """%0 = stablehlo.constant dense<2> : tensor<i8>
           return %0 : tensor<i8>""",
    ),
    Case(  # a broadcast of more than one element would grow
        "fold",
        "",
        """%0 = stablehlo.constant dense<[1, 2]> : tensor<2xi8>
           %1 = stablehlo.broadcast_in_dim %0, dims = [0] : (tensor<2xi8>) -> tensor<2x9xi8>
           return %1 : tensor<2x9xi8>""",
        """%0 = stablehlo.constant dense<[1, 2]> : tensor<2xi8>
           %1 = stablehlo.broadcast_in_dim %0, dims = [0] : (tensor<2xi8>) -> tensor<2x9xi8>
           return %1 : tensor<2x9xi8>""",
    ),
    Case(  # not an exact op
        "fold",
        "",
        """%0 = stablehlo.constant dense<1.0> : tensor<f32>
           %1 = stablehlo.exponential %0 : tensor<f32>
           return %1 : tensor<f32>""",
        """%0 = stablehlo.constant dense<1.0> : tensor<f32>
           %1 = stablehlo.exponential %0 : tensor<f32>
           return %1 : tensor<f32>""",
    ),
]


@pytest.mark.parametrize("case", CASES)
def test_constant_folding(case: Case, read: Read) -> None:
    case.check(RULES, read)


def test_folding_has_a_size_limit(read: Read) -> None:
    values = ", ".join(map(str, range(100)))
    body = f"""%0 = stablehlo.constant dense<[{values}]> : tensor<100xi32>
      %i = stablehlo.iota dim = 0 : tensor<200000x1xi32>
      %1 = "stablehlo.gather"(%0, %i) <{{dimension_numbers = #stablehlo.gather<
        collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>,
        slice_sizes = array<i64: 1>}}>
        : (tensor<100xi32>, tensor<200000x1xi32>) -> tensor<200000xi32>
      return %1 : tensor<200000xi32>"""
    graph = read("", body)
    assert apply_rules(graph, RULES) is graph
