"""Rules about values that only move, and about what is nothing."""

from __future__ import annotations

import pytest

from hlo_mlc.passes.arithmetic import ARITHMETIC_RULES
from hlo_mlc.passes.composition import COMPOSITION_RULES
from hlo_mlc.passes.movement import MOVEMENT_RULES, merged
from making.rules import SAME_F, Case, F, Read, names

RULES = merged(MOVEMENT_RULES, ARITHMETIC_RULES, COMPOSITION_RULES)

CASES = [
    Case(
        "fold_of_sorted",
        f"%a: {F}",
        f"""%0 = "stablehlo.sort"(%a) <{{dimension = 1 : i64, is_stable = true}}> ({{
           ^bb0(%x: tensor<f32>, %y: tensor<f32>):
             %1 = stablehlo.compare LT, %x, %y : (tensor<f32>, tensor<f32>) -> tensor<i1>
             stablehlo.return %1 : tensor<i1>
           }}) : ({F}) -> {F}
           %2 = stablehlo.compare EQ, %0, %0 : ({F}, {F}) -> {F.replace("f32", "i1")}
           %3 = stablehlo.convert %2 : ({F.replace("f32", "i1")}) -> {F}
           %4 = stablehlo.constant dense<0.0> : tensor<f32>
           %5 = stablehlo.reduce(%3 init: %4) applies stablehlo.add across dimensions = [1]
             : ({F}, tensor<f32>) -> tensor<2xf32>
           return %5 : tensor<2xf32>""",
        f"""%4 = stablehlo.constant dense<0.0> : tensor<f32>
           %2 = stablehlo.compare EQ, %a, %a : ({F}, {F}) -> {F.replace("f32", "i1")}
           %3 = stablehlo.convert %2 : ({F.replace("f32", "i1")}) -> {F}
           %5 = stablehlo.reduce(%3 init: %4) applies stablehlo.add across dimensions = [1]
             : ({F}, tensor<f32>) -> tensor<2xf32>
           return %5 : tensor<2xf32>""",
    ),
    Case(
        "zero_size",
        "%a: tensor<0x3xf32>",
        """%0 = stablehlo.sine %a : tensor<0x3xf32>
           return %0 : tensor<0x3xf32>""",
        """%0 = stablehlo.constant dense<> : tensor<0x3xf32>
           return %0 : tensor<0x3xf32>""",
    ),
    Case(
        "same_type",
        f"%a: {F}",
        f"""%0 = stablehlo.reshape %a : ({F}) -> {F}
            %1 = stablehlo.slice %0 [0:2, 0:3] : ({F}) -> {F}
            return %1 : {F}""",
        SAME_F,
    ),
    Case(
        "reshape_of_reshape",
        f"%a: {F}",
        f"""%0 = stablehlo.reshape %a : ({F}) -> tensor<6xf32>
            %1 = stablehlo.reshape %0 : (tensor<6xf32>) -> tensor<3x2xf32>
            return %1 : tensor<3x2xf32>""",
        f"""%0 = stablehlo.reshape %a : ({F}) -> tensor<3x2xf32>
            return %0 : tensor<3x2xf32>""",
    ),
    Case(
        "reshape_of_broadcast_scalar",
        "%a: tensor<f32>",
        """%0 = stablehlo.broadcast_in_dim %a, dims = [] : (tensor<f32>) -> tensor<6xf32>
           %1 = stablehlo.reshape %0 : (tensor<6xf32>) -> tensor<3x2xf32>
           return %1 : tensor<3x2xf32>""",
        """%0 = stablehlo.broadcast_in_dim %a, dims = [] : (tensor<f32>) -> tensor<3x2xf32>
           return %0 : tensor<3x2xf32>""",
    ),
    Case(
        "transpose_identity",
        f"%a: {F}",
        f"""%0 = stablehlo.transpose %a, dims = [0, 1] : ({F}) -> {F}
            return %0 : {F}""",
        SAME_F,
    ),
    Case(
        "transpose_of_transpose",
        "%a: tensor<2x3x4xf32>",
        """%0 = stablehlo.transpose %a, dims = [1, 2, 0] : (tensor<2x3x4xf32>) -> tensor<3x4x2xf32>
           %1 = stablehlo.transpose %0, dims = [1, 0, 2] : (tensor<3x4x2xf32>) -> tensor<4x3x2xf32>
           return %1 : tensor<4x3x2xf32>""",
        """%0 = stablehlo.transpose %a, dims = [2, 1, 0] : (tensor<2x3x4xf32>) -> tensor<4x3x2xf32>
           return %0 : tensor<4x3x2xf32>""",
    ),
    Case(
        "broadcast_identity",
        f"%a: {F}",
        f"""%0 = stablehlo.broadcast_in_dim %a, dims = [0, 1] : ({F}) -> {F}
            return %0 : {F}""",
        SAME_F,
    ),
    Case(
        "broadcast_identity",
        "%a: tensor<2x2xf32>",
        """%0 = stablehlo.broadcast_in_dim %a, dims = [1, 0] : (tensor<2x2xf32>) -> tensor<2x2xf32>
           return %0 : tensor<2x2xf32>""",
        """%0 = stablehlo.broadcast_in_dim %a, dims = [1, 0] : (tensor<2x2xf32>) -> tensor<2x2xf32>
           return %0 : tensor<2x2xf32>""",
    ),
    Case(
        "broadcast_of_broadcast",
        "%a: tensor<3xf32>",
        """%0 = stablehlo.broadcast_in_dim %a, dims = [1] : (tensor<3xf32>) -> tensor<1x3xf32>
           %1 = stablehlo.broadcast_in_dim %0, dims = [2, 1]
             : (tensor<1x3xf32>) -> tensor<4x3x2xf32>
           return %1 : tensor<4x3x2xf32>""",
        """%0 = stablehlo.broadcast_in_dim %a, dims = [1] : (tensor<3xf32>) -> tensor<4x3x2xf32>
           return %0 : tensor<4x3x2xf32>""",
    ),
    Case(
        "slice_of_slice",
        "%a: tensor<20xf32>",
        """%0 = stablehlo.slice %a [1:18:3] : (tensor<20xf32>) -> tensor<6xf32>
           %1 = stablehlo.slice %0 [1:6:2] : (tensor<6xf32>) -> tensor<3xf32>
           return %1 : tensor<3xf32>""",
        """%0 = stablehlo.slice %a [4:17:6] : (tensor<20xf32>) -> tensor<3xf32>
           return %0 : tensor<3xf32>""",
    ),
    Case(
        "pad_nothing",
        f"%a: {F}, %b: tensor<f32>",
        f"""%0 = stablehlo.pad %a, %b, low = [0, 0], high = [0, 0], interior = [0, 0]
              : ({F}, tensor<f32>) -> {F}
            return %0 : {F}""",
        SAME_F,
    ),
    Case(
        "pad_nothing",
        f"%a: {F}, %b: tensor<f32>",
        f"""%0 = stablehlo.pad %a, %b, low = [1, 0], high = [-1, 0], interior = [0, 0]
              : ({F}, tensor<f32>) -> {F}
            return %0 : {F}""",
        f"""%0 = stablehlo.pad %a, %b, low = [1, 0], high = [-1, 0], interior = [0, 0]
              : ({F}, tensor<f32>) -> {F}
            return %0 : {F}""",
    ),
    Case(
        "concatenate_one",
        f"%a: {F}",
        f"""%0 = stablehlo.concatenate %a, dim = 0 : ({F}) -> {F}
            return %0 : {F}""",
        SAME_F,
    ),
    Case(
        "concatenate_nonempty",
        f"%a: {F}, %e: tensor<0x3xf32>",
        f"""%0 = stablehlo.concatenate %a, %e, %a, dim = 0
              : ({F}, tensor<0x3xf32>, {F}) -> tensor<4x3xf32>
            return %0 : tensor<4x3xf32>""",
        f"""%0 = stablehlo.concatenate %a, %a, dim = 0 : ({F}, {F}) -> tensor<4x3xf32>
            return %0 : tensor<4x3xf32>""",
    ),
    Case(
        "reverse_single",
        "%a: tensor<1x3xf32>",
        """%0 = stablehlo.reverse %a, dims = [0] : tensor<1x3xf32>
           %1 = stablehlo.reverse %0, dims = [0, 1] : tensor<1x3xf32>
           return %1 : tensor<1x3xf32>""",
        """%0 = stablehlo.reverse %a, dims = [1] : tensor<1x3xf32>
           return %0 : tensor<1x3xf32>""",
    ),
    Case(
        "reverse_of_reverse",
        f"%a: {F}",
        f"""%0 = stablehlo.reverse %a, dims = [0, 1] : {F}
            %1 = stablehlo.reverse %0, dims = [1, 0] : {F}
            return %1 : {F}""",
        SAME_F,
    ),
    Case(
        "dynamic_slice_at_constant",
        f"%a: {F}",
        f"""%i = stablehlo.constant dense<7> : tensor<i32>
            %j = stablehlo.constant dense<-2> : tensor<i32>
            %0 = stablehlo.dynamic_slice %a, %i, %j, sizes = [1, 2]
              : ({F}, tensor<i32>, tensor<i32>) -> tensor<1x2xf32>
            return %0 : tensor<1x2xf32>""",
        f"""%0 = stablehlo.slice %a [1:2, 0:2] : ({F}) -> tensor<1x2xf32>
            return %0 : tensor<1x2xf32>""",
    ),
    Case(
        "update_of_all",
        f"%a: {F}, %b: {F}, %i: tensor<i32>",
        f"""%0 = stablehlo.dynamic_update_slice %a, %b, %i, %i
              : ({F}, {F}, tensor<i32>, tensor<i32>) -> {F}
            return %0 : {F}""",
        f"return %b : {F}",
    ),
    Case(
        "scatter_of_all",
        f"%a: {F}, %b: {F}, %i: tensor<0xi32>",
        f"""%0 = "stablehlo.scatter"(%a, %i, %b) <{{
              scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [0, 1]>}}> ({{
            ^bb0(%x: tensor<f32>, %y: tensor<f32>):
              stablehlo.return %y : tensor<f32>
            }}) : ({F}, tensor<0xi32>, {F}) -> {F}
            return %0 : {F}""",
        f"return %b : {F}",
    ),
    Case(
        "scatter_of_all",
        f"%a: {F}, %b: {F}, %i: tensor<0xi32>",
        f"""%0 = "stablehlo.scatter"(%a, %i, %b) <{{
              scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [0, 1]>}}> ({{
            ^bb0(%x: tensor<f32>, %y: tensor<f32>):
              %1 = stablehlo.subtract %y, %x : tensor<f32>
              stablehlo.return %1 : tensor<f32>
            }}) : ({F}, tensor<0xi32>, {F}) -> {F}
            return %0 : {F}""",
        f"""%0 = stablehlo.subtract %b, %a : {F}
            return %0 : {F}""",
    ),
    Case(
        "scatter_of_transpose",
        "%u: tensor<4x3xf32>, %i: tensor<4xi32>",
        """%x = stablehlo.constant dense<1.0> : tensor<3x2xf32>
           %t = stablehlo.transpose %u, dims = [1, 0] : (tensor<4x3xf32>) -> tensor<3x4xf32>
           %0 = "stablehlo.scatter"(%x, %i, %t) <{
             scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [0],
               inserted_window_dims = [1], scatter_dims_to_operand_dims = [1],
               index_vector_dim = 1>}> ({
           ^bb0(%a: tensor<f32>, %b: tensor<f32>):
             %1 = stablehlo.add %a, %b : tensor<f32>
             stablehlo.return %1 : tensor<f32>
           }) : (tensor<3x2xf32>, tensor<4xi32>, tensor<3x4xf32>) -> tensor<3x2xf32>
           return %0 : tensor<3x2xf32>""",
        """%x = stablehlo.constant dense<1.0> : tensor<2x3xf32>
           %0 = "stablehlo.scatter"(%x, %i, %u) <{
             scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1],
               inserted_window_dims = [0], scatter_dims_to_operand_dims = [0],
               index_vector_dim = 1>}> ({
           ^bb0(%a: tensor<f32>, %b: tensor<f32>):
             %1 = stablehlo.add %a, %b : tensor<f32>
             stablehlo.return %1 : tensor<f32>
           }) : (tensor<2x3xf32>, tensor<4xi32>, tensor<4x3xf32>) -> tensor<2x3xf32>
           %2 = stablehlo.transpose %0, dims = [1, 0] : (tensor<2x3xf32>) -> tensor<3x2xf32>
           return %2 : tensor<3x2xf32>""",
    ),
    Case(
        "sort_single",
        "%a: tensor<3x1xf32>, %b: tensor<3x1xi32>",
        """%0:2 = "stablehlo.sort"(%a, %b) <{dimension = 1 : i64, is_stable = true}> ({
           ^bb0(%x: tensor<f32>, %y: tensor<f32>, %p: tensor<i32>, %q: tensor<i32>):
             %1 = stablehlo.compare LT, %x, %y : (tensor<f32>, tensor<f32>) -> tensor<i1>
             stablehlo.return %1 : tensor<i1>
           }) : (tensor<3x1xf32>, tensor<3x1xi32>) -> (tensor<3x1xf32>, tensor<3x1xi32>)
           return %0#1, %0#0 : tensor<3x1xi32>, tensor<3x1xf32>""",
        "return %b, %a : tensor<3x1xi32>, tensor<3x1xf32>",
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.rule)
def test_rule(case: Case, read: Read) -> None:
    case.check(RULES, read)


def test_every_rule_has_a_case() -> None:
    assert {case.rule for case in CASES} == names(MOVEMENT_RULES)
