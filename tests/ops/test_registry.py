"""Which ops are known, why others are not, and evaluation of whole graphs."""

from __future__ import annotations

import numpy as np
import pytest

from hlo_mlc.ops.registry import DEFINITIONS, evaluate_graph, lookup, references, supports
from hlo_mlc.support.errors import UnsupportedOpError


def unary(op: str, operand: str, result: str = "") -> str:
    result = result or operand
    return (
        f"func.func @main(%a: tensor<{operand}>) -> tensor<{result}> {{\n"
        f'  %r = "{op}"(%a) : (tensor<{operand}>) -> tensor<{result}>\n'
        f"  return %r : tensor<{result}>\n}}\n"
    )


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            unary("stablehlo.sine", "3xcomplex<f32>"),
            "complex arithmetic of this kind stays with XLA",
        ),
        (unary("stablehlo.sine", "?xf32"), "known only at run time"),
        (unary("stablehlo.bitcast_convert", "3xf32", "3x4xui8"), "splits or joins elements"),
        (unary("stablehlo.sine", "3xf8E8M0FNU"), "has neither zero nor sign"),
        (unary("stablehlo.sine", "3xf4E2M1FN"), "not modelled"),
        (unary("stablehlo.cholesky", "3x3xbf16"), "factorizations and solves of bf16"),
        (unary("stablehlo.cholesky", "17x17xf32"), "larger than 16 x 16"),
        (unary("stablehlo.cholesky", "9x9xcomplex<f32>"), "larger than 8 x 8"),
        (
            unary("stablehlo.custom_call", "3xf32").replace(
                "(%a) :", '(%a) {call_target_name = "f"} :'
            ),
            "custom call to f",
        ),
    ],
)
def test_reasons(text: str, reason: str, examples) -> None:
    (node,) = examples.graph(text).nodes
    assert reason in supports(node)


def test_every_definition_has_examples_and_a_reference() -> None:
    assert lookup("stablehlo.no_such_op") is None
    for name, definition in DEFINITIONS.items():
        assert name == definition.name
        assert definition.examples, name
        assert references[name] is definition.reference


LOOP = """
func.func @main(%n: tensor<i32>, %x: tensor<2xf32>) -> (tensor<i32>, tensor<2xf32>) {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %r:2 = "stablehlo.while"(%zero, %x) ({
  ^bb0(%i: tensor<i32>, %s: tensor<2xf32>):
    %c = stablehlo.compare LT, %i, %n, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %c : tensor<i1>
  }, {
  ^bb0(%i: tensor<i32>, %s: tensor<2xf32>):
    %j = stablehlo.add %i, %one : tensor<i32>
    %t = stablehlo.add %s, %s : tensor<2xf32>
    stablehlo.return %j, %t : tensor<i32>, tensor<2xf32>
  }) : (tensor<i32>, tensor<2xf32>) -> (tensor<i32>, tensor<2xf32>)
  return %r#0, %r#1 : tensor<i32>, tensor<2xf32>
}
"""


@pytest.mark.parametrize("trips", [0, 1, 5])
def test_while(trips: int, examples) -> None:
    x = np.array([1.5, -2], np.float32)
    count, result = evaluate_graph(examples.graph(LOOP), [np.asarray(trips, np.int32), x])
    assert count == trips
    np.testing.assert_array_equal(result, x * 2**trips)


CASE = """
func.func @main(%i: tensor<i32>, %x: tensor<f32>) -> tensor<f32> {
  %r = "stablehlo.case"(%i) ({
    stablehlo.return %x : tensor<f32>
  }, {
    %n = stablehlo.negate %x : tensor<f32>
    stablehlo.return %n : tensor<f32>
  }, {
    %d = stablehlo.add %x, %x : tensor<f32>
    stablehlo.return %d : tensor<f32>
  }) : (tensor<i32>) -> tensor<f32>
  return %r : tensor<f32>
}
"""
IF = """
func.func @main(%p: tensor<i1>, %x: tensor<f32>) -> tensor<f32> {
  %r = "stablehlo.if"(%p) ({
    stablehlo.return %x : tensor<f32>
  }, {
    %n = stablehlo.negate %x : tensor<f32>
    stablehlo.return %n : tensor<f32>
  }) : (tensor<i1>) -> tensor<f32>
  return %r : tensor<f32>
}
"""


@pytest.mark.parametrize(
    ("text", "choice", "expected"),
    [
        (CASE, np.int32(0), 3),
        (CASE, np.int32(1), -3),
        (CASE, np.int32(2), 6),
        (CASE, np.int32(7), 6),
        (CASE, np.int32(-1), 6),
        (IF, np.True_, 3),
        (IF, np.False_, -3),
    ],
)
def test_branches(text: str, choice: np.generic, expected: float, examples) -> None:
    arrays = [np.asarray(choice), np.asarray(3, np.float32)]
    assert evaluate_graph(examples.graph(text), arrays)[0] == expected


def test_evaluation_refuses_what_has_no_reference(examples) -> None:
    graph = examples.graph(unary("chlo.conj", "3xcomplex<f32>"))
    with pytest.raises(UnsupportedOpError, match=r"chlo\.conj is not supported: complex"):
        evaluate_graph(graph, [np.ones(3, np.float32)])
