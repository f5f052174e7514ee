"""Shapes that operands say and that are known all the same: everything is compiled."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from hlo_mlc import compile_stablehlo
from hlo_mlc.frontend.importer import import_function
from hlo_mlc.frontend.parse import parse_module
from hlo_mlc.ops.registry import references, supports
from hlo_mlc.passes.simplify import simplify

X = np.arange(12, dtype=np.float32).reshape(3, 4)
COLUMN = X[:, :1].copy()


def shape(*numbers: int) -> str:
    dense = f"[{', '.join(map(str, numbers))}]" if numbers else ""
    return f"stablehlo.constant dense<{dense}> : tensor<{len(numbers)}xi64>"


CASES = {
    "broadcast": (
        COLUMN,
        np.broadcast_to(COLUMN[None], (2, 3, 4)),
        f"""
        %n = {shape(2, 3, 4)}
        %r = stablehlo.dynamic_broadcast_in_dim %a, %n, dims = [1, 2]
          : (tensor<3x1xf32>, tensor<3xi64>) -> tensor<2x3x4xf32>""",
    ),
    "reshape": (
        X,
        X.reshape(2, 6),
        f"""
        %n = {shape(2, 6)}
        %r = stablehlo.dynamic_reshape %a, %n : (tensor<3x4xf32>, tensor<2xi64>)
          -> tensor<2x6xf32>""",
    ),
    "iota": (
        X,
        X + np.arange(4, dtype=np.float32),
        f"""
        %n = {shape(3, 4)}
        %i = stablehlo.dynamic_iota %n, dim = 1 : (tensor<2xi64>) -> tensor<3x4xf32>
        %r = stablehlo.add %a, %i : tensor<3x4xf32>""",
    ),
    "slice": (
        X,
        X[1:3, 0:4:2],
        f"""
        %s = {shape(1, 0)}
        %l = {shape(3, 4)}
        %t = {shape(1, 2)}
        %r = stablehlo.real_dynamic_slice %a, %s, %l, %t
          : (tensor<3x4xf32>, tensor<2xi64>, tensor<2xi64>, tensor<2xi64>) -> tensor<2x2xf32>""",
    ),
    "pad": (
        X,
        np.pad(X, ((1, 0), (0, 2))),
        f"""
        %v = stablehlo.constant dense<0.0> : tensor<f32>
        %l = {shape(1, 0)}
        %h = {shape(0, 2)}
        %i = {shape(0, 0)}
        %r = stablehlo.dynamic_pad %a, %v, %l, %h, %i : (tensor<3x4xf32>, tensor<f32>,
          tensor<2xi64>, tensor<2xi64>, tensor<2xi64>) -> tensor<4x6xf32>""",
    ),
    "gather": (
        X,
        X[[2, 0], :3],
        f"""
        %i = stablehlo.constant dense<[2, 0]> : tensor<2xi64>
        %n = {shape(1, 3)}
        %r = "stablehlo.dynamic_gather"(%a, %i, %n) {{dimension_numbers = #stablehlo.gather<
          offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0],
          index_vector_dim = 1>}} : (tensor<3x4xf32>, tensor<2xi64>, tensor<2xi64>)
          -> tensor<2x3xf32>""",
    ),
    "convolution": (
        X,
        (np.pad(X, ((0, 0), (1, 0)))[:, :-1] + 2 * X),
        """
        %b = stablehlo.reshape %a : (tensor<3x4xf32>) -> tensor<3x4x1xf32>
        %k = stablehlo.constant dense<[[[1.0]], [[2.0]]]> : tensor<2x1x1xf32>
        %p = stablehlo.constant dense<[[1, 0]]> : tensor<1x2xi64>
        %c = "stablehlo.dynamic_conv"(%b, %k, %p) {
          dimension_numbers = #stablehlo.conv<[b, 0, f]x[0, i, o]->[b, 0, f]>,
          feature_group_count = 1 : i64, batch_group_count = 1 : i64}
          : (tensor<3x4x1xf32>, tensor<2x1x1xf32>, tensor<1x2xi64>) -> tensor<3x4x1xf32>
        %r = stablehlo.reshape %c : (tensor<3x4x1xf32>) -> tensor<3x4xf32>""",
    ),
}


def function(operand: np.ndarray, result: np.ndarray, body: str, more: str = "") -> str:
    taken, given = ("x".join([*map(str, a.shape), "f32"]) for a in (operand, result))
    return (
        f"func.func @main(%a: tensor<{taken}>{more}) -> tensor<{given}> {{{body}\n"
        f"  return %r : tensor<{given}>\n}}\n"
    )


@pytest.mark.parametrize("name", CASES)
def test_known_shapes(name: str) -> None:
    operand, expected, body = CASES[name]
    with jax.enable_x64(True):
        compiled = compile_stablehlo(function(operand, expected, body), choose="ours")
        (found,) = compiled(operand)
    np.testing.assert_array_equal(np.asarray(found), expected)
    assert compiled.report().coverage == 1


def test_sizes_from_outside_have_a_reason() -> None:
    text = """func.func @main(%a: tensor<3x4xf32>, %n: tensor<2xi64>) -> tensor<2x?xf32> {
        %i = stablehlo.constant dense<[2, 0]> : tensor<2xi64>
        %r = "stablehlo.dynamic_gather"(%a, %i, %n) {dimension_numbers = #stablehlo.gather<
          offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0],
          index_vector_dim = 1>} : (tensor<3x4xf32>, tensor<2xi64>, tensor<2xi64>)
          -> tensor<2x?xf32>
        return %r : tensor<2x?xf32>
      }"""
    graph, _ = simplify(import_function(parse_module(text)), references)
    (gather,) = (node for node in graph.nodes if node.op == "stablehlo.dynamic_gather")
    assert "known only at run time" in supports(gather)
