"""`chlo.scan`: loops in kernels, along any axis, from either end, with any body."""

from __future__ import annotations

import numpy as np
import pytest

from hlo_mlc import compile_stablehlo

ROWS = np.arange(12, dtype=np.float32).reshape(3, 4)


def scan(axis: int, reverse: bool) -> str:
    """Along an axis of 3x4: what was carried, and from one element to the next x + s / 2."""
    carried = "tensor<4xf32>" if axis == 0 else "tensor<3xf32>"
    attributes = " attributes {is_reverse = true}" if reverse else ""
    return f"""
func.func @main(%x: tensor<3x4xf32>, %s: {carried}) -> (tensor<3x4xf32>, {carried}) {{
  %r:2 = chlo.scan(%x) inits(%s) dimension={axis}{attributes} {{
  ^bb0(%a: {carried}, %c: {carried}):
    %h = stablehlo.constant dense<0.5> : {carried}
    %m = stablehlo.multiply %c, %h : {carried}
    %n = stablehlo.add %a, %m : {carried}
    stablehlo.return %c, %n : {carried}, {carried}
  }} : (tensor<3x4xf32>, {carried}) -> (tensor<3x4xf32>, {carried})
  return %r#0, %r#1 : tensor<3x4xf32>, {carried}
}}
"""


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("axis", [0, 1])
def test_a_scan_is_a_loop(axis: int, reverse: bool) -> None:
    function = compile_stablehlo(scan(axis, reverse), choose="ours")
    start = np.ones(ROWS.shape[1 - axis], np.float32)
    found, last = function(ROWS, start)
    rows, state, expected = np.moveaxis(ROWS, axis, 0), start, np.empty_like(ROWS)
    for k in reversed(range(len(rows))) if reverse else range(len(rows)):
        np.moveaxis(expected, axis, 0)[k] = state
        state = rows[k] + state / 2
    np.testing.assert_array_equal(np.asarray(found), expected)
    np.testing.assert_array_equal(np.asarray(last), state)
    assert function.report().coverage == 1


def test_several_operands_and_states() -> None:
    """The largest number so far and where it was, of two operands, with an operand not needed."""
    function = compile_stablehlo("""
func.func @main(%x: tensor<6xf32>, %p: tensor<6xi32>) -> (tensor<6xf32>, tensor<i32>) {
  %low = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %r:3 = chlo.scan(%x, %p) inits(%low, %zero) dimension=0 {
  ^bb0(%a: tensor<f32>, %i: tensor<i32>, %b: tensor<f32>, %j: tensor<i32>):
    %g = stablehlo.compare GT, %a, %b : (tensor<f32>, tensor<f32>) -> tensor<i1>
    %v = stablehlo.select %g, %a, %b : tensor<i1>, tensor<f32>
    %k = stablehlo.select %g, %i, %j : tensor<i1>, tensor<i32>
    stablehlo.return %v, %v, %k : tensor<f32>, tensor<f32>, tensor<i32>
  } : (tensor<6xf32>, tensor<6xi32>, tensor<f32>, tensor<i32>)
      -> (tensor<6xf32>, tensor<f32>, tensor<i32>)
  return %r#0, %r#2 : tensor<6xf32>, tensor<i32>
}
""", choose="ours")
    x = np.array([1, 5, -2, 7, 7, 3], np.float32)
    largest, place = function(x, np.arange(6, dtype=np.int32))
    np.testing.assert_array_equal(np.asarray(largest), np.maximum.accumulate(x))
    assert place == 3
    assert function.report().coverage == 1
