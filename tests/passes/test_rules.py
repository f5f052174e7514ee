"""Each rewrite rule: what it makes of a small function, and that the function means the same."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

from hlo_mlc.expr.dtypes import Kind, TensorType
from hlo_mlc.graph.core import Graph
from hlo_mlc.graph.rewrite import Rule, apply_rules, eliminate_dead_nodes
from hlo_mlc.graph.text import format_graph
from hlo_mlc.graph.verify import verify_graph
from hlo_mlc.ops.registry import evaluate_graph, references
from hlo_mlc.passes.arithmetic import ARITHMETIC_RULES
from hlo_mlc.passes.composition import COMPOSITION_RULES
from hlo_mlc.passes.folding import constant_folding
from hlo_mlc.passes.movement import MOVEMENT_RULES, merged

RULES = merged(MOVEMENT_RULES, ARITHMETIC_RULES, COMPOSITION_RULES)


@dataclass(frozen=True, slots=True)
class Case:
    """`rule` turns a function of `arguments` from `before` into `after`."""

    rule: str
    arguments: str
    before: str
    after: str


def _splat(number: str, op: str, t: str = "tensor<2x3xf32>", swap: bool = False) -> str:
    operands = "%c, %a" if swap else "%a, %c"
    return f"""
      %c = stablehlo.constant dense<{number}> : {t}
      %0 = stablehlo.{op} {operands} : {t}
      return %0 : {t}"""


def _constant(number: str, t: str) -> str:
    return f"%0 = stablehlo.constant dense<{number}> : {t}\nreturn %0 : {t}"


def _self(op: str, t: str) -> str:
    return f"%0 = stablehlo.{op} %a, %a : {t}\nreturn %0 : {t}"


F = "tensor<2x3xf32>"
I = "tensor<2x3xi32>"  # noqa: E741
U = "tensor<2x3xui8>"
SAME_F = f"return %a : {F}"
SAME_I = f"return %a : {I}"
SAME_U = f"return %a : {U}"

CASES = [
    Case("add_zero", f"%a: {F}", _splat("-0.0", "add"), SAME_F),
    Case("add_zero", f"%a: {F}", _splat("-0.0", "add", swap=True), SAME_F),
    Case("add_zero", f"%a: {F}", _splat("0.0", "add"), _splat("0.0", "add")),
    Case("add_zero", f"%a: {I}", _splat("0", "add", I), SAME_I),
    Case("subtract_zero", f"%a: {F}", _splat("0.0", "subtract"), SAME_F),
    Case("subtract_zero", f"%a: {F}", _splat("-0.0", "subtract"), _splat("-0.0", "subtract")),
    Case(
        "subtract_zero",
        f"%a: {I}",
        _splat("0", "subtract", I, True),
        _splat("0", "subtract", I, True),
    ),
    Case("subtract_self", f"%a: {I}", _self("subtract", I), _constant("0", I)),
    Case("subtract_self", f"%a: {U}", _self("xor", U), _constant("0", U)),
    Case("subtract_self", f"%a: {F}", _self("subtract", F), _self("subtract", F)),
    Case("multiply_one", f"%a: {F}", _splat("1.0", "multiply"), SAME_F),
    Case("multiply_zero", f"%a: {I}", _splat("0", "multiply", I), _constant("0", I)),
    Case("multiply_zero", f"%a: {F}", _splat("0.0", "multiply"), _splat("0.0", "multiply")),
    Case("divide_one", f"%a: {F}", _splat("1.0", "divide"), SAME_F),
    Case(
        "divide_one",
        f"%a: {F}",
        _splat("1.0", "divide", swap=True),
        _splat("1.0", "divide", swap=True),
    ),
    Case("divide_one", f"%a: {F}", _splat("1.0", "power"), SAME_F),
    Case("shift_zero", f"%a: {I}", _splat("0", "shift_right_arithmetic", I), SAME_I),
    Case("idempotent", f"%a: {F}", _self("maximum", F), SAME_F),
    Case("idempotent", f"%a: {I}", _self("and", I), SAME_I),
    Case("and_mask", f"%a: {I}", _splat("-1", "and", I), SAME_I),
    Case("and_mask", f"%a: {U}", _splat("255", "and", U), SAME_U),
    Case("and_mask", f"%a: {U}", _splat("0", "and", U), _constant("0", U)),
    Case("or_mask", f"%a: {U}", _splat("0", "or", U, swap=True), SAME_U),
    Case(
        "or_mask",
        "%a: tensor<2xi1>",
        _splat("true", "or", "tensor<2xi1>"),
        _constant("true", "tensor<2xi1>"),
    ),
    Case("xor_zero", f"%a: {I}", _splat("0", "xor", I), SAME_I),
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
        "involution",
        f"%a: {F}",
        f"""%0 = stablehlo.negate %a : {F}
            %1 = stablehlo.negate %0 : {F}
            return %1 : {F}""",
        SAME_F,
    ),
    Case(
        "compare_self",
        f"%a: {I}",
        f"""%0 = stablehlo.compare GE, %a, %a : ({I}, {I}) -> tensor<2x3xi1>
            return %0 : tensor<2x3xi1>""",
        _constant("true", "tensor<2x3xi1>"),
    ),
    Case(
        "select_same",
        f"%c: tensor<2x3xi1>, %a: {F}",
        f"""%0 = stablehlo.select %c, %a, %a : tensor<2x3xi1>, {F}
            return %0 : {F}""",
        SAME_F,
    ),
    Case(
        "select_known",
        f"%a: {F}, %b: {F}",
        f"""%c = stablehlo.constant dense<false> : tensor<i1>
            %0 = stablehlo.select %c, %a, %b : tensor<i1>, {F}
            return %0 : {F}""",
        f"return %b : {F}",
    ),
    Case(
        "select_not",
        f"%c: tensor<2x3xi1>, %a: {F}, %b: {F}",
        f"""%n = stablehlo.not %c : tensor<2x3xi1>
            %0 = stablehlo.select %n, %a, %b : tensor<2x3xi1>, {F}
            return %0 : {F}""",
        f"""%0 = stablehlo.select %c, %b, %a : tensor<2x3xi1>, {F}
            return %0 : {F}""",
    ),
    Case(
        "convert_same",
        f"%a: {F}",
        f"""%0 = stablehlo.convert %a : {F}
            return %0 : {F}""",
        SAME_F,
    ),
    Case(
        "convert_through_wider",
        "%a: tensor<2xbf16>",
        """%0 = stablehlo.convert %a : (tensor<2xbf16>) -> tensor<2xf32>
           %1 = stablehlo.convert %0 : (tensor<2xf32>) -> tensor<2xbf16>
           return %1 : tensor<2xbf16>""",
        "return %a : tensor<2xbf16>",
    ),
    Case(
        "convert_through_wider",
        "%a: tensor<2xui8>",
        """%0 = stablehlo.convert %a : (tensor<2xui8>) -> tensor<2xi32>
           %1 = stablehlo.convert %0 : (tensor<2xi32>) -> tensor<2xf32>
           return %1 : tensor<2xf32>""",
        """%0 = stablehlo.convert %a : (tensor<2xui8>) -> tensor<2xf32>
           return %0 : tensor<2xf32>""",
    ),
    Case(
        "convert_through_wider",
        "%a: tensor<2xf32>",
        """%0 = stablehlo.convert %a : (tensor<2xf32>) -> tensor<2xbf16>
           %1 = stablehlo.convert %0 : (tensor<2xbf16>) -> tensor<2xf32>
           return %1 : tensor<2xf32>""",
        """%0 = stablehlo.convert %a : (tensor<2xf32>) -> tensor<2xbf16>
           %1 = stablehlo.convert %0 : (tensor<2xbf16>) -> tensor<2xf32>
           return %1 : tensor<2xf32>""",
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
    Case(
        "involution",
        "%i: tensor<i32>, %a: tensor<f32>",
        """%0:2 = stablehlo.while(%j = %i, %b = %a) : tensor<i32>, tensor<f32>
           cond {
             %1 = stablehlo.compare LT, %j, %i : (tensor<i32>, tensor<i32>) -> tensor<i1>
             stablehlo.return %1 : tensor<i1>
           } do {
             %1 = stablehlo.negate %b : tensor<f32>
             %2 = stablehlo.negate %1 : tensor<f32>
             %3 = stablehlo.sine %2 : tensor<f32>
             stablehlo.return %j, %3 : tensor<i32>, tensor<f32>
           }
           return %0#1 : tensor<f32>""",
        """%0:2 = stablehlo.while(%j = %i, %b = %a) : tensor<i32>, tensor<f32>
           cond {
             %1 = stablehlo.compare LT, %j, %i : (tensor<i32>, tensor<i32>) -> tensor<i1>
             stablehlo.return %1 : tensor<i1>
           } do {
             %3 = stablehlo.sine %b : tensor<f32>
             stablehlo.return %j, %3 : tensor<i32>, tensor<f32>
           }
           return %0#1 : tensor<f32>""",
    ),
]

FOLDED = [
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


def _lines(graph: Graph) -> str:
    return re.sub(r"  # .*", "", format_graph(graph))


def _sample(tensor: TensorType, generator: np.random.Generator) -> np.ndarray:
    numpy_type = tensor.dtype.numpy
    if tensor.dtype.kind is Kind.BOOL:
        return generator.random(tensor.shape) < 0.5
    if tensor.dtype.is_integer:
        return generator.integers(0, 100, tensor.shape).astype(numpy_type)
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1.5, -2.25, 1e30])
    return generator.choice(special, tensor.shape).astype(numpy_type)


CASES += [
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
        "%a: tensor<4xui8>",
        """
        %0 = stablehlo.convert %a : (tensor<4xui8>) -> tensor<4xf32>
        %1 = stablehlo.convert %0 : (tensor<4xf32>) -> tensor<4xi8>
        return %1 : tensor<4xi8>""",
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


def _check(case: Case, rules: dict[str, tuple[Rule, ...]], read: Callable) -> None:
    before = read(case.arguments, case.before)
    after = eliminate_dead_nodes(apply_rules(before, rules))
    verify_graph(after)
    assert _lines(after) == _lines(read(case.arguments, case.after))
    generator = np.random.default_rng(0)
    if any(node.op == "stablehlo.sort" for node in before.nodes):
        return  # sorts have no reference
    arrays = [_sample(value.type, generator) for value in before.parameters]
    arrays = [a if a.dtype != np.int32 or a.ndim else np.int32(0) * a for a in arrays]
    for result, expected in zip(
        evaluate_graph(after, arrays), evaluate_graph(before, arrays), strict=True
    ):
        np.testing.assert_array_equal(result, expected)
        assert np.array_equal(np.signbit(result.astype(float)), np.signbit(expected.astype(float)))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.rule)
def test_rule(case: Case, read: Callable[[str, str], Graph]) -> None:
    _check(case, RULES, read)


@pytest.mark.parametrize(("arguments", "body"), STAYING)
def test_what_only_looks_alike_stays(
    arguments: str, body: str, read: Callable[[str, str], Graph]
) -> None:
    graph = read(arguments, body)
    assert apply_rules(graph, RULES) is graph


@pytest.mark.parametrize("case", FOLDED)
def test_constant_folding(case: Case, read: Callable[[str, str], Graph]) -> None:
    _check(case, {"*": (constant_folding(references),)}, read)


def test_folding_has_a_size_limit(read: Callable[[str, str], Graph]) -> None:
    values = ", ".join(map(str, range(100)))
    body = f"""%0 = stablehlo.constant dense<[{values}]> : tensor<100xi32>
      %i = stablehlo.iota dim = 0 : tensor<200000x1xi32>
      %1 = "stablehlo.gather"(%0, %i) <{{dimension_numbers = #stablehlo.gather<
        collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>,
        slice_sizes = array<i64: 1>}}>
        : (tensor<100xi32>, tensor<200000x1xi32>) -> tensor<200000xi32>
      return %1 : tensor<200000xi32>"""
    graph = read("", body)
    assert apply_rules(graph, {"*": (constant_folding(references),)}) is graph


def test_every_rule_has_a_case() -> None:
    rules = {rule.__name__ for rules in RULES.values() for rule in rules}
    assert {case.rule for case in CASES} == rules
