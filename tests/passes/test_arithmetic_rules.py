"""Rules about elements: neutral ones, what undoes itself, choices, conversions."""

from __future__ import annotations

import pytest

from hlo_mlc.graph.rewrite import apply_rules
from hlo_mlc.passes.arithmetic import ARITHMETIC_RULES
from hlo_mlc.passes.composition import COMPOSITION_RULES
from hlo_mlc.passes.movement import MOVEMENT_RULES, merged
from making.rules import SAME_F, Case, F, Read, names

RULES = merged(MOVEMENT_RULES, ARITHMETIC_RULES, COMPOSITION_RULES)

I = "tensor<2x3xi32>"  # noqa: E741
U = "tensor<2x3xui8>"
SAME_I = f"return %a : {I}"
SAME_U = f"return %a : {U}"


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


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.rule)
def test_rule(case: Case, read: Read) -> None:
    case.check(RULES, read)


def test_every_rule_has_a_case() -> None:
    assert {case.rule for case in CASES} == names(ARITHMETIC_RULES)


def test_integers_that_are_cut_by_the_second_conversion_stay(read: Read) -> None:
    graph = read(
        "%a: tensor<4xui8>",
        """
        %0 = stablehlo.convert %a : (tensor<4xui8>) -> tensor<4xf32>
        %1 = stablehlo.convert %0 : (tensor<4xf32>) -> tensor<4xi8>
        return %1 : tensor<4xi8>""",
    )
    assert apply_rules(graph, RULES) is graph
