"""What other exporters write: each form computes what it says, in kernels."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxlib.mlir.dialects import stablehlo

from hlo_mlc import compile_stablehlo
from hlo_mlc.frontend.parse import parse_module
from hlo_mlc.support.errors import UnsupportedOpError
from making.foreign import SIZES, check, random

# As TensorFlow writes a dense layer for any batch: notes of its own, sizes in the dialect shape.
TENSORFLOW = """\
module attributes {tf.versions = {producer = 1994 : i32}, tf_saved_model.semantics} {
  func.func @main(%arg0: tensor<?x4xf32> {tf._user_specified_name = "x",
      tf_saved_model.index_path = ["x"]}) -> (tensor<?x3xf32> {tf_saved_model.index_path = ["y"]})
      attributes {tf.entry_function = {inputs = "x:0", outputs = "y:0"},
                  tf_saved_model.exported_names = ["serving_default"]} {
    %w = stablehlo.constant dense<[[1.0, 2.0, 3.0], [0.5, 0.5, 0.5], [-1.0, 0.0, 1.0],
                                   [2.0, -2.0, 0.0]]> : tensor<4x3xf32>
    %b = stablehlo.constant dense<[0.5, -0.5, 0.25]> : tensor<3xf32>
    %0 = stablehlo.dot %arg0, %w, precision = [DEFAULT, DEFAULT]
         : (tensor<?x4xf32>, tensor<4x3xf32>) -> tensor<?x3xf32>
    %1 = func.call @biased(%0, %b) : (tensor<?x3xf32>, tensor<3xf32>) -> tensor<?x3xf32>
    %2 = "chlo.constant_like"(%1) <{value = 0.0 : f32}> : (tensor<?x3xf32>) -> tensor<?x3xf32>
    %3 = chlo.broadcast_maximum %1, %2 : (tensor<?x3xf32>, tensor<?x3xf32>) -> tensor<?x3xf32>
    return %3 : tensor<?x3xf32>
  }
  func.func private @biased(%x: tensor<?x3xf32>, %b: tensor<3xf32>) -> tensor<?x3xf32>
      attributes {tf.signature.is_stateful} {
    %0 = shape.shape_of %x : tensor<?x3xf32> -> tensor<2xindex>
    %1 = shape.const_shape [3] : tensor<1xindex>
    %2 = shape.cstr_broadcastable %0, %1 : tensor<2xindex>, tensor<1xindex>
    %3 = shape.assuming %2 -> (tensor<?x3xf32>) {
      %4 = shape.broadcast %0, %1 : tensor<2xindex>, tensor<1xindex> -> tensor<2xindex>
      %5 = stablehlo.dynamic_broadcast_in_dim %x, %4, dims = [0, 1]
           : (tensor<?x3xf32>, tensor<2xindex>) -> tensor<?x3xf32>
      %6 = stablehlo.dynamic_broadcast_in_dim %b, %4, dims = [1]
           : (tensor<3xf32>, tensor<2xindex>) -> tensor<?x3xf32>
      %7 = stablehlo.add %5, %6 : tensor<?x3xf32>
      shape.assuming_yield %7 : tensor<?x3xf32>
    }
    return %3 : tensor<?x3xf32>
  }
}
"""

W = np.array([[1, 2, 3], [0.5, 0.5, 0.5], [-1, 0, 1], [2, -2, 0]], np.float32)
B = np.array([0.5, -0.5, 0.25], np.float32)


def test_a_layer_of_tensorflow() -> None:
    def layer(x: np.ndarray) -> np.ndarray:
        return np.maximum(x @ W + B, 0)

    function = check(TENSORFLOW, layer, random(5, 4))
    for rows in (1, 0, 17):
        x = random(rows, 4)
        np.testing.assert_allclose(function(x)[0], layer(x), rtol=1e-5)
    assert "tf.entry_function" not in str(parse_module(TENSORFLOW))


# As torch-mlir writes `x.flatten(1)[:, 1:] * mean` for any batch: indices, in tensor and arith.
PYTORCH = """\
func.func @main(%x: tensor<?x2x3xf32>) -> tensor<?x5xf32> {
  %c0 = arith.constant 0 : index
  %c1_i64 = arith.constant 1 : i64
  %c6 = arith.constant 6 : i64
  %sizes = arith.constant dense<[2, 3]> : tensor<2xindex>
  %dim = tensor.dim %x, %c0 : tensor<?x2x3xf32>
  %n = arith.index_cast %dim : index to i64
  %c1 = arith.constant 1 : index
  %last = tensor.extract %sizes[%c1] : tensor<2xindex>
  %k = arith.index_cast %last : index to i64
  %c2 = arith.constant 2 : i64
  %six = arith.muli %k, %c2 : i64
  %shape = tensor.from_elements %n, %six : tensor<2xi64>
  %flat = stablehlo.dynamic_reshape %x, %shape
    : (tensor<?x2x3xf32>, tensor<2xi64>) -> tensor<?x6xf32>
  %zero = arith.constant 0 : i64
  %negative = arith.cmpi slt, %zero, %c1_i64 : i64
  %from = arith.select %negative, %c1_i64, %zero : i64
  %starts = tensor.from_elements %zero, %from : tensor<2xi64>
  %limits = tensor.from_elements %n, %c6 : tensor<2xi64>
  %strides = tensor.from_elements %c1_i64, %c1_i64 : tensor<2xi64>
  %part = stablehlo.real_dynamic_slice %flat, %starts, %limits, %strides
    : (tensor<?x6xf32>, tensor<2xi64>, tensor<2xi64>, tensor<2xi64>) -> tensor<?x5xf32>
  %f = arith.sitofp %n : i64 to f32
  %count = tensor.from_elements %f : tensor<f32>
  %r = chlo.broadcast_multiply %part, %count : (tensor<?x5xf32>, tensor<f32>) -> tensor<?x5xf32>
  return %r : tensor<?x5xf32>
}
"""


def test_sizes_of_pytorch() -> None:
    function = check(
        PYTORCH, lambda x: x.reshape(len(x), 6)[:, 1:] * np.float32(len(x)), random(4, 2, 3)
    )
    for rows in (7, 1):
        x = random(rows, 2, 3)
        np.testing.assert_allclose(function(x)[0], x.reshape(rows, 6)[:, 1:] * rows, rtol=1e-6)


@pytest.mark.parametrize(
    ("op", "numpy"),
    [
        ("add", np.add),
        ("subtract", np.subtract),
        ("divide", np.divide),
        ("power", np.power),
        ("maximum", np.maximum),
        ("atan2", np.arctan2),
    ],
)
@pytest.mark.parametrize(
    "shapes",
    [
        ("2x3", "3", "2x3"),
        ("1x3", "2x1", "2x3"),
        ("", "4", "4"),
        ("2x?", "?", "2x?"),
        ("?x1", "1x?", "?x?"),
    ],
)
def test_operands_are_broadcast(op: str, numpy: Any, shapes: tuple[str, ...]) -> None:
    one, other, result = (f"tensor<{s}{'x' if s else ''}f32>" for s in shapes)
    a, b = (
        np.abs(random(*(int(n) if n not in "?" else 5 for n in s.split("x") if s))) + 0.5
        for s in shapes[:2]
    )
    check(
        f"func.func @main(%x: {one}, %y: {other}) -> {result} {{\n"
        f"  %0 = chlo.broadcast_{op} %x, %y : ({one}, {other}) -> {result}\n"
        f"  return %0 : {result}\n}}",
        numpy,
        a,
        b,
    )


def test_operations_that_stablehlo_has_given_up() -> None:
    check(
        """func.func @main(%x: tensor<2x3xf32>, %y: tensor<3x4xf32>)
        -> (tensor<2x4xf32>, tensor<2x2x3xf32>) {
      %0 = stablehlo.dot %x, %y : (tensor<2x3xf32>, tensor<3x4xf32>) -> tensor<2x4xf32>
      %1 = stablehlo.broadcast %x, sizes = [2] : (tensor<2x3xf32>) -> tensor<2x2x3xf32>
      return %0, %1 : tensor<2x4xf32>, tensor<2x2x3xf32>
    }""",
        lambda x, y: (x @ y, np.broadcast_to(x, (2, 2, 3))),
        random(2, 3),
        random(3, 4),
    )


def normalized(
    x: np.ndarray, scale: np.ndarray, offset: np.ndarray, mean: np.ndarray, variance: np.ndarray
) -> np.ndarray:
    x, scale, offset, mean, variance = (
        a.astype(np.float64) for a in (x, scale, offset, mean, variance)
    )
    return (x - mean) / np.sqrt(variance + 0.01) * scale + offset


def trained(x: np.ndarray, scale: np.ndarray, offset: np.ndarray) -> tuple[np.ndarray, ...]:
    rows = x.reshape(-1, x.shape[-1]).astype(np.float64)
    mean, variance = rows.mean(0), rows.var(0)
    return normalized(x, scale, offset, mean, variance), mean, variance


@pytest.mark.parametrize("batch", ["6", "?"])
@pytest.mark.parametrize("element", ["f32", "f64", "f16"])
def test_batch_normalizations(batch: str, element: str) -> None:
    operand, vector = f"tensor<{batch}x5x3x{element}>", f"tensor<3x{element}>"
    note = "{epsilon = 0.01 : f32, feature_index = 2 : i64}"
    dtype = {"f32": np.float32, "f64": np.float64, "f16": np.float16}[element]
    x, scale, offset, mean = (random(*s).astype(dtype) for s in ((6, 5, 3), (3,), (3,), (3,)))
    variance, rtol = np.abs(random(3)).astype(dtype), 1e-2 if element == "f16" else 1e-5
    check(
        f"""func.func @main(%x: {operand}, %s: {vector}, %o: {vector}, %m: {vector},
        %v: {vector}) -> {operand} {{
      %0 = "stablehlo.batch_norm_inference"(%x, %s, %o, %m, %v) {note}
        : ({operand}, {vector}, {vector}, {vector}, {vector}) -> {operand}
      return %0 : {operand}
    }}""",
        normalized,
        x,
        scale,
        offset,
        mean,
        variance,
        rtol=rtol,
    )
    check(
        f"""func.func @main(%x: {operand}, %s: {vector}, %o: {vector})
        -> ({operand}, {vector}, {vector}) {{
      %0:3 = "stablehlo.batch_norm_training"(%x, %s, %o) {note}
        : ({operand}, {vector}, {vector}) -> ({operand}, {vector}, {vector})
      return %0#0, %0#1, %0#2 : {operand}, {vector}, {vector}
    }}""",
        trained,
        x,
        scale,
        offset,
        rtol=rtol,
    )


def test_the_gradient_of_a_batch_normalization() -> None:
    x, scale, offset, gradient = random(6, 5, 3), random(3), random(3), random(6, 5, 3)
    _, mean, variance = trained(x, scale, offset)

    def loss(x: np.ndarray, scale: np.ndarray, offset: np.ndarray) -> float:
        return (trained(x, scale, offset)[0] * gradient).sum()

    def slopes(number: int) -> np.ndarray:
        """By differences."""
        arrays = [a.astype(np.float64) for a in (x, scale, offset)]
        found = np.zeros(arrays[number].shape)
        for place in np.ndindex(found.shape):
            values = []
            for step in (1e-6, -1e-6):
                moved = [a.copy() for a in arrays]
                moved[number][place] += step
                values.append(loss(*moved))
            found[place] = (values[0] - values[1]) / 2e-6
        return found

    operand, vector = "tensor<6x5x3xf32>", "tensor<3xf32>"
    check(
        f"""func.func @main(%x: {operand}, %s: {vector}, %m: {vector}, %v: {vector},
        %g: {operand}) -> ({operand}, {vector}, {vector}) {{
      %0:3 = "stablehlo.batch_norm_grad"(%x, %s, %m, %v, %g)
        {{epsilon = 0.01 : f32, feature_index = 2 : i64}}
        : ({operand}, {vector}, {vector}, {vector}, {operand}) -> ({operand}, {vector}, {vector})
      return %0#0, %0#1, %0#2 : {operand}, {vector}, {vector}
    }}""",
        lambda *_: (slopes(0), slopes(1), slopes(2)),
        x,
        scale,
        mean.astype(np.float32),
        variance.astype(np.float32),
        gradient,
        rtol=1e-4,
    )


def test_what_is_not_known_is_named() -> None:
    with pytest.raises(UnsupportedOpError, match=r"ceildivsi"):
        compile_stablehlo("""func.func @main(%x: tensor<?xf32>) -> tensor<?xf32> {
          %c0 = arith.constant 0 : index
          %c2 = arith.constant 2 : index
          %0 = tensor.dim %x, %c0 : tensor<?xf32>
          %1 = arith.ceildivsi %0, %c2 : index
          %2 = tensor.from_elements %1 : tensor<1xindex>
          %3 = stablehlo.dynamic_iota %2, dim = 0 : (tensor<1xindex>) -> tensor<?xf32>
          return %3 : tensor<?xf32>
        }""")(random(4))


@pytest.mark.parametrize("rows", ["6", "?"])
def test_selections_of_rows(rows: str) -> None:
    def selected(x: np.ndarray, i: np.ndarray, j: np.ndarray) -> tuple[np.ndarray, ...]:
        inside = np.clip(j, 0, 2)
        return np.take(x, i, axis=1, mode="clip"), np.stack(
            [a[..., k] for a, k in zip(x, inside, strict=True)]
        )

    check(
        f"""func.func @main(%x: tensor<{rows}x5x3xf32>, %i: tensor<2x4xi32>,
        %j: tensor<{rows}x2xi64>) -> (tensor<{rows}x2x4x3xf32>, tensor<{rows}x5x2xf32>) {{
      %0 = "stablehlo.torch_index_select"(%x, %i) {{dim = 1 : i64, batch_dims = 0 : i64}}
        : (tensor<{rows}x5x3xf32>, tensor<2x4xi32>) -> tensor<{rows}x2x4x3xf32>
      %1 = "stablehlo.torch_index_select"(%x, %j) {{dim = 2 : i64, batch_dims = 1 : i64}}
        : (tensor<{rows}x5x3xf32>, tensor<{rows}x2xi64>) -> tensor<{rows}x5x2xf32>
      return %0, %1 : tensor<{rows}x2x4x3xf32>, tensor<{rows}x5x2xf32>
    }}""",
        selected,
        random(6, 5, 3),
        np.array([[0, 4, 2, 2], [9, -1, 1, 0]], np.int32),
        np.array([[0, 2], [1, 1], [2, 0], [-5, 7], [0, 0], [1, 2]]),
    )


def test_artifacts_are_read_as_texts_are() -> None:
    text = """func.func @main(%x: tensor<2x3xf32>, %y: tensor<3x4xf32>) -> tensor<2x4xf32> {
      %0 = stablehlo.einsum %x, %y, config = "ab,bc->ac"
        : (tensor<2x3xf32>, tensor<3x4xf32>) -> tensor<2x4xf32>
      return %0 : tensor<2x4xf32>
    }"""
    artifact = stablehlo.serialize_portable_artifact_str(text, stablehlo.get_minimum_version())
    check(artifact, np.matmul, random(2, 3), random(3, 4))


def test_what_jax_writes_for_other_machines() -> None:
    """With gradients, of which that for weights sums over groups."""

    def gradients(x: jax.Array, w: jax.Array, sizes: jax.Array) -> tuple[jax.Array, ...]:
        def loss(x: jax.Array, w: jax.Array) -> jax.Array:
            return jnp.sum(jnp.sin(jax.vmap(jax.lax.ragged_dot)(x, w, sizes)))

        return jax.grad(loss, (0, 1))(x, w)

    arguments = (
        random(2, 11, 5),
        random(2, 4, 5, 7),
        np.stack([SIZES, SIZES[::-1]]).astype(np.int32),
    )
    text = jax.jit(gradients).trace(*arguments).lower(lowering_platforms=("tpu",)).as_text()
    assert text.count('= "chlo.ragged_dot"') == 3
    check(text, jax.jit(gradients), *arguments)
