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
    function = compile_stablehlo(
        """
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
""",
        choose="ours",
    )
    x = np.array([1, 5, -2, 7, 7, 3], np.float32)
    largest, place = function(x, np.arange(6, dtype=np.int32))
    np.testing.assert_array_equal(np.asarray(largest), np.maximum.accumulate(x))
    assert place == 3
    assert function.report().coverage == 1


def running(op: str, axis: int, start: float, reverse: bool) -> str:
    """Along an axis of 3x4 what has been joined so far, as JAX writes cumulative sums for GPUs."""
    carried = "tensor<4xf32>" if axis == 0 else "tensor<3xf32>"
    return f"""
func.func @main(%x: tensor<3x4xf32>) -> (tensor<3x4xf32>, {carried}) {{
  %s = stablehlo.constant dense<{start:.1f}> : {carried}
  %r:2 = chlo.scan(%x) inits(%s) dimension={axis} attributes
      {{is_associative = true, is_reverse = {str(reverse).lower()}}} {{
  ^bb0(%a: {carried}, %c: {carried}):
    %n = stablehlo.{op} %a, %c : {carried}
    stablehlo.return %n, %n : {carried}, {carried}
  }} : (tensor<3x4xf32>, {carried}) -> (tensor<3x4xf32>, {carried})
  return %r#0, %r#1 : tensor<3x4xf32>, {carried}
}}
"""


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize(
    ("op", "start", "is_one"),
    [("add", 0, True), ("multiply", 1, True), ("add", 3, False), ("multiply", 0.5, False)],
)
def test_running_sums_are_one_scan(
    op: str, start: float, is_one: bool, axis: int, reverse: bool
) -> None:
    function = compile_stablehlo(running(op, axis, start, reverse), choose="ours")
    found, last = map(np.asarray, function(ROWS))
    join = {"add": np.add, "multiply": np.multiply}[op]
    rows = np.flip(ROWS, axis) if reverse else ROWS
    expected = join(join.accumulate(rows, axis), np.float32(start))
    np.testing.assert_array_equal(found, np.flip(expected, axis) if reverse else expected)
    np.testing.assert_array_equal(last, np.take(expected, -1, axis))
    report = function.report()
    assert report.coverage == 1
    assert ("scan" in {n.template for k in report.kernels for n in k.nests}) is is_one
