"""Rules about two steps that are one."""

from __future__ import annotations

import pytest

from hlo_mlc.graph.rewrite import apply_rules
from hlo_mlc.passes.arithmetic import ARITHMETIC_RULES
from hlo_mlc.passes.composition import COMPOSITION_RULES
from hlo_mlc.passes.movement import MOVEMENT_RULES, merged
from making.rules import Case, F, Read, names

RULES = merged(MOVEMENT_RULES, ARITHMETIC_RULES, COMPOSITION_RULES)

CASES = [
    Case(
        "concatenate_of_concatenate",
        f"%a: {F}, %b: {F}",
        f"""%0 = stablehlo.concatenate %a, %b, dim = 0 : ({F}, {F}) -> tensor<4x3xf32>
            %1 = stablehlo.concatenate %b, %0, %a, dim = 0
              : ({F}, tensor<4x3xf32>, {F}) -> tensor<8x3xf32>
            return %1 : tensor<8x3xf32>""",
        f"""%0 = stablehlo.concatenate %b, %a, %b, %a, dim = 0
              : ({F}, {F}, {F}, {F}) -> tensor<8x3xf32>
            return %0 : tensor<8x3xf32>""",
    ),
    Case(
        "concatenate_of_concatenate",
        f"%a: {F}",
        f"""%0 = stablehlo.concatenate %a, %a, dim = 0 : ({F}, {F}) -> tensor<4x3xf32>
            %1 = stablehlo.concatenate %0, %0, dim = 1
              : (tensor<4x3xf32>, tensor<4x3xf32>) -> tensor<4x6xf32>
            return %1 : tensor<4x6xf32>""",
        f"""%0 = stablehlo.concatenate %a, %a, dim = 0 : ({F}, {F}) -> tensor<4x3xf32>
            %1 = stablehlo.concatenate %0, %0, dim = 1
              : (tensor<4x3xf32>, tensor<4x3xf32>) -> tensor<4x6xf32>
            return %1 : tensor<4x6xf32>""",
    ),
    Case(
        "broadcast_that_reshapes",
        "%a: tensor<4x3xf32>",
        """%0 = stablehlo.broadcast_in_dim %a, dims = [0, 2]
             : (tensor<4x3xf32>) -> tensor<4x1x3xf32>
           return %0 : tensor<4x1x3xf32>""",
        """%0 = stablehlo.reshape %a : (tensor<4x3xf32>) -> tensor<4x1x3xf32>
           return %0 : tensor<4x1x3xf32>""",
    ),
    Case(
        "broadcast_of_reshape",
        "%a: tensor<4xf32>",
        """%0 = stablehlo.reshape %a : (tensor<4xf32>) -> tensor<4x1xf32>
           %1 = stablehlo.broadcast_in_dim %0, dims = [0, 1] : (tensor<4x1xf32>) -> tensor<4x3xf32>
           return %1 : tensor<4x3xf32>""",
        """%0 = stablehlo.broadcast_in_dim %a, dims = [0] : (tensor<4xf32>) -> tensor<4x3xf32>
           return %0 : tensor<4x3xf32>""",
    ),
    Case(
        "transpose_of_broadcast",
        "%a: tensor<4xf32>",
        """%0 = stablehlo.broadcast_in_dim %a, dims = [1] : (tensor<4xf32>) -> tensor<3x4xf32>
           %1 = stablehlo.transpose %0, dims = [1, 0] : (tensor<3x4xf32>) -> tensor<4x3xf32>
           return %1 : tensor<4x3xf32>""",
        """%0 = stablehlo.broadcast_in_dim %a, dims = [0] : (tensor<4xf32>) -> tensor<4x3xf32>
           return %0 : tensor<4x3xf32>""",
    ),
    Case(
        "slice_of_broadcast",
        "%a: tensor<4xf32>",
        """%0 = stablehlo.broadcast_in_dim %a, dims = [1] : (tensor<4xf32>) -> tensor<7x4xf32>
           %1 = stablehlo.slice %0 [1:6:2, 0:4] : (tensor<7x4xf32>) -> tensor<3x4xf32>
           return %1 : tensor<3x4xf32>""",
        """%0 = stablehlo.broadcast_in_dim %a, dims = [1] : (tensor<4xf32>) -> tensor<3x4xf32>
           return %0 : tensor<3x4xf32>""",
    ),
    Case(
        "slice_of_concatenate",
        "%a: tensor<3x2xf32>, %b: tensor<4x2xf32>",
        """%0 = stablehlo.concatenate %a, %b, dim = 0
             : (tensor<3x2xf32>, tensor<4x2xf32>) -> tensor<7x2xf32>
           %1 = stablehlo.slice %0 [4:7:2, 1:2] : (tensor<7x2xf32>) -> tensor<2x1xf32>
           return %1 : tensor<2x1xf32>""",
        """%0 = stablehlo.slice %b [1:4:2, 1:2] : (tensor<4x2xf32>) -> tensor<2x1xf32>
           return %0 : tensor<2x1xf32>""",
    ),
    Case(
        "slice_of_pad",
        "%a: tensor<4xf32>, %b: tensor<f32>",
        """%0 = stablehlo.pad %a, %b, low = [2], high = [1], interior = [0]
             : (tensor<4xf32>, tensor<f32>) -> tensor<7xf32>
           %1 = stablehlo.slice %0 [3:5] : (tensor<7xf32>) -> tensor<2xf32>
           return %1 : tensor<2xf32>""",
        """%0 = stablehlo.slice %a [1:3] : (tensor<4xf32>) -> tensor<2xf32>
           return %0 : tensor<2xf32>""",
    ),
    Case(
        "pad_of_pad",
        "%a: tensor<4xf32>, %b: tensor<f32>",
        """%0 = stablehlo.pad %a, %b, low = [2], high = [1], interior = [0]
             : (tensor<4xf32>, tensor<f32>) -> tensor<7xf32>
           %1 = stablehlo.pad %0, %b, low = [0], high = [3], interior = [0]
             : (tensor<7xf32>, tensor<f32>) -> tensor<10xf32>
           return %1 : tensor<10xf32>""",
        """%0 = stablehlo.pad %a, %b, low = [2], high = [4], interior = [0]
             : (tensor<4xf32>, tensor<f32>) -> tensor<10xf32>
           return %0 : tensor<10xf32>""",
    ),
    Case(
        "concatenate_of_slices",
        "%a: tensor<2x7xf32>, %b: tensor<2x1xf32>",
        """%0 = stablehlo.slice %a [0:2, 0:3] : (tensor<2x7xf32>) -> tensor<2x3xf32>
           %1 = stablehlo.slice %a [0:2, 3:6] : (tensor<2x7xf32>) -> tensor<2x3xf32>
           %2 = stablehlo.concatenate %0, %1, %b, dim = 1
             : (tensor<2x3xf32>, tensor<2x3xf32>, tensor<2x1xf32>) -> tensor<2x7xf32>
           return %2 : tensor<2x7xf32>""",
        """%0 = stablehlo.slice %a [0:2, 0:6] : (tensor<2x7xf32>) -> tensor<2x6xf32>
           %1 = stablehlo.concatenate %0, %b, dim = 1
             : (tensor<2x6xf32>, tensor<2x1xf32>) -> tensor<2x7xf32>
           return %1 : tensor<2x7xf32>""",
    ),
    Case(
        "elementwise_of_broadcasts",
        "%a: tensor<4xf32>, %b: tensor<4xf32>",
        """%0 = stablehlo.broadcast_in_dim %a, dims = [1] : (tensor<4xf32>) -> tensor<3x4xf32>
           %1 = stablehlo.broadcast_in_dim %b, dims = [1] : (tensor<4xf32>) -> tensor<3x4xf32>
           %c = stablehlo.constant dense<2.0> : tensor<3x4xf32>
           %2 = stablehlo.add %0, %1 : tensor<3x4xf32>
           %3 = stablehlo.multiply %2, %c : tensor<3x4xf32>
           return %3 : tensor<3x4xf32>""",
        """%0 = stablehlo.add %a, %b : tensor<4xf32>
           %c = stablehlo.constant dense<2.0> : tensor<4xf32>
           %1 = stablehlo.multiply %0, %c : tensor<4xf32>
           %2 = stablehlo.broadcast_in_dim %1, dims = [1] : (tensor<4xf32>) -> tensor<3x4xf32>
           return %2 : tensor<3x4xf32>""",
    ),
]
# What looks like one of them and is not.
STAYING = [
    (
        "%a: tensor<4xf32>",
        """
        %0 = stablehlo.broadcast_in_dim %a, dims = [1] : (tensor<4xf32>) -> tensor<3x4xf32>
        %1 = stablehlo.slice %0 [0:3, 1:3] : (tensor<3x4xf32>) -> tensor<3x2xf32>
        return %1 : tensor<3x2xf32>""",
    ),
    (
        "%a: tensor<4x2xf32>",
        """
        %0 = stablehlo.broadcast_in_dim %a, dims = [1, 2]
          : (tensor<4x2xf32>) -> tensor<3x4x2xf32>
        %1 = stablehlo.transpose %0, dims = [0, 2, 1] : (tensor<3x4x2xf32>) -> tensor<3x2x4xf32>
        return %1 : tensor<3x2x4xf32>""",
    ),
    (
        "%a: tensor<3xf32>, %b: tensor<4xf32>",
        """
        %0 = stablehlo.concatenate %a, %b, dim = 0 : (tensor<3xf32>, tensor<4xf32>) -> tensor<7xf32>
        %1 = stablehlo.slice %0 [2:4] : (tensor<7xf32>) -> tensor<2xf32>
        return %1 : tensor<2xf32>""",
    ),
    (
        "%a: tensor<4xf32>, %b: tensor<f32>",
        """
        %0 = stablehlo.pad %a, %b, low = [2], high = [1], interior = [0]
          : (tensor<4xf32>, tensor<f32>) -> tensor<7xf32>
        %1 = stablehlo.slice %0 [1:3] : (tensor<7xf32>) -> tensor<2xf32>
        return %1 : tensor<2xf32>""",
    ),
    (
        "%a: tensor<4xf32>, %b: tensor<f32>",
        """
        %0 = stablehlo.pad %a, %b, low = [-2], high = [0], interior = [0]
          : (tensor<4xf32>, tensor<f32>) -> tensor<2xf32>
        %1 = stablehlo.pad %0, %b, low = [2], high = [0], interior = [0]
          : (tensor<2xf32>, tensor<f32>) -> tensor<4xf32>
        return %1 : tensor<4xf32>""",
    ),
    (
        "%a: tensor<7xf32>",
        """
        %0 = stablehlo.slice %a [0:3] : (tensor<7xf32>) -> tensor<3xf32>
        %1 = stablehlo.slice %a [4:7] : (tensor<7xf32>) -> tensor<3xf32>
        %2 = stablehlo.concatenate %0, %1, dim = 0
          : (tensor<3xf32>, tensor<3xf32>) -> tensor<6xf32>
        return %2 : tensor<6xf32>""",
    ),
    (
        "%a: tensor<4xf32>, %b: tensor<4xf32>",
        """
        %0 = stablehlo.broadcast_in_dim %a, dims = [1] : (tensor<4xf32>) -> tensor<4x4xf32>
        %1 = stablehlo.broadcast_in_dim %b, dims = [0] : (tensor<4xf32>) -> tensor<4x4xf32>
        %2 = stablehlo.add %0, %1 : tensor<4x4xf32>
        return %2 : tensor<4x4xf32>""",
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.rule)
def test_rule(case: Case, read: Read) -> None:
    case.check(RULES, read)


def test_every_rule_has_a_case() -> None:
    assert {case.rule for case in CASES} == names(COMPOSITION_RULES)


@pytest.mark.parametrize(("arguments", "body"), STAYING)
def test_what_only_looks_alike_stays(arguments: str, body: str, read: Read) -> None:
    graph = read(arguments, body)
    assert apply_rules(graph, RULES) is graph
