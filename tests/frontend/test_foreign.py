"""What other exporters write: each form computes what it says, in kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxlib.mlir.dialects import stablehlo

from hlo_mlc import compile_stablehlo
from hlo_mlc.frontend.parse import parse_module
from hlo_mlc.support.errors import UnsupportedOpError

RNG = np.random.default_rng(0)


def random(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


def check(text: str, expected: Callable[..., Any], *arrays: np.ndarray, rtol: float = 1e-5) -> Any:
    """The function @main of a text, in kernels as a whole, gives what NumPy does."""
    function = compile_stablehlo(text, choose="ours")
    wanted = expected(*arrays)
    wanted = wanted if isinstance(wanted, tuple) else (wanted,)
    for ours, theirs in zip(function(*arrays), wanted, strict=True):
        assert ours.shape == theirs.shape
        np.testing.assert_allclose(ours, theirs, rtol=rtol, atol=rtol)
    assert function.report().coverage == 1
    return function


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


def test_dimensions_that_are_said() -> None:
    check(
        """func.func @main(%x: tensor<2xf32>, %y: tensor<2x3xf32>) -> tensor<2x3xi1> {
      %0 = chlo.broadcast_compare %x, %y {broadcast_dimensions = array<i64: 0>,
        comparison_direction = #chlo<comparison_direction LT>}
        : (tensor<2xf32>, tensor<2x3xf32>) -> tensor<2x3xi1>
      return %0 : tensor<2x3xi1>
    }""",
        lambda x, y: x[:, None] < y,
        random(2),
        random(2, 3),
    )
    check(
        """func.func @main(%p: tensor<3xi1>, %x: tensor<2x3xf32>, %y: tensor<f32>)
        -> (tensor<2x3xf32>, tensor<2x3xcomplex<f32>>) {
      %0 = chlo.broadcast_select %p, %x, %y
        : (tensor<3xi1>, tensor<2x3xf32>, tensor<f32>) -> tensor<2x3xf32>
      %1 = chlo.broadcast_complex %x, %y : (tensor<2x3xf32>, tensor<f32>)
        -> tensor<2x3xcomplex<f32>>
      return %0, %1 : tensor<2x3xf32>, tensor<2x3xcomplex<f32>>
    }""",
        lambda p, x, y: (np.where(p, x, y), x + 1j * y),
        np.array([True, False, True]),
        random(2, 3),
        random(),
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


@pytest.mark.parametrize("starts", [(0, 0), (2, 3), (1, 5)])
def test_slices_that_begin_anywhere(starts: tuple[int, int]) -> None:
    def sliced(x: np.ndarray, starts: np.ndarray) -> np.ndarray:
        i, j = starts
        return x[i : i + 3, j : j + 4 : 2]

    check(
        """func.func @main(%x: tensor<5x9xf32>, %s: tensor<2xi32>) -> tensor<3x2xf32> {
      %n = stablehlo.constant dense<[3, 3]> : tensor<2xi32>
      %k = stablehlo.constant dense<[1, 2]> : tensor<2xi32>
      %l = stablehlo.add %s, %n : tensor<2xi32>
      %0 = stablehlo.real_dynamic_slice %x, %s, %l, %k
        : (tensor<5x9xf32>, tensor<2xi32>, tensor<2xi32>, tensor<2xi32>) -> tensor<3x2xf32>
      return %0 : tensor<3x2xf32>
    }""",
        sliced,
        random(5, 9),
        np.array(starts, np.int32),
    )


@pytest.mark.parametrize("low", [-9, -5, -2, 0, 1, 4, 8, 20])
def test_arrays_that_are_padded_by_any_number(low: int) -> None:
    def padded(x: np.ndarray, v: np.ndarray, low: np.ndarray) -> np.ndarray:
        apart = np.full(5, v)
        apart[::2] = x
        return np.array([apart[i - low[0]] if 0 <= i - low[0] < 5 else v for i in range(8)])

    check(
        """func.func @main(%x: tensor<3xf32>, %v: tensor<f32>, %l: tensor<1xi64>)
        -> tensor<8xf32> {
      %i = stablehlo.constant dense<1> : tensor<1xi64>
      %n = stablehlo.constant dense<3> : tensor<1xi64>
      %h = stablehlo.subtract %n, %l : tensor<1xi64>
      %0 = stablehlo.dynamic_pad %x, %v, %l, %h, %i
        : (tensor<3xf32>, tensor<f32>, tensor<1xi64>, tensor<1xi64>, tensor<1xi64>)
        -> tensor<8xf32>
      return %0 : tensor<8xf32>
    }""",
        padded,
        random(3),
        random(),
        np.array([low]),
    )


@pytest.mark.parametrize("before", [0, 1, 2, -1])
def test_convolutions_that_are_padded_by_any_number(before: int) -> None:
    def convolved(x: np.ndarray, w: np.ndarray, padding: np.ndarray) -> np.ndarray:
        apart = np.zeros(9, np.float32)
        apart[::2] = x[0, :, 0]
        row = np.r_[np.zeros(20), apart, np.zeros(20)][20 - padding[0, 0] :]
        return np.array(
            [row[i] * w[0, 0, 0] + row[i + 1] * w[1, 0, 0] for i in range(0, 12, 3)]
        ).reshape(1, 4, 1)

    check(
        """func.func @main(%x: tensor<1x5x1xf32>, %w: tensor<2x1x1xf32>, %p: tensor<1x2xi64>)
        -> tensor<1x4x1xf32> {
      %0 = "stablehlo.dynamic_conv"(%x, %w, %p) {
        dimension_numbers = #stablehlo.conv<[b, 0, f]x[0, i, o]->[b, 0, f]>,
        window_strides = array<i64: 3>, lhs_dilation = array<i64: 2>,
        feature_group_count = 1 : i64, batch_group_count = 1 : i64}
        : (tensor<1x5x1xf32>, tensor<2x1x1xf32>, tensor<1x2xi64>) -> tensor<1x4x1xf32>
      return %0 : tensor<1x4x1xf32>
    }""",
        convolved,
        random(1, 5, 1),
        random(2, 1, 1),
        np.array([[before, 3 - before]]),
    )


def test_gathers_whose_sizes_are_said_at_run_time() -> None:
    check(
        """func.func @main(%x: tensor<2x4xf32>, %i: tensor<3xi64>, %n: tensor<2xi64>)
        -> tensor<3x2xf32> {
      %0 = "stablehlo.dynamic_gather"(%x, %i, %n) {dimension_numbers = #stablehlo.gather<
        offset_dims = [1], collapsed_slice_dims = [1], start_index_map = [1],
        index_vector_dim = 1>} : (tensor<2x4xf32>, tensor<3xi64>, tensor<2xi64>) -> tensor<3x2xf32>
      return %0 : tensor<3x2xf32>
    }""",
        lambda x, i, n: x[:, i].T,
        random(2, 4),
        np.array([3, 0, 2]),
        np.array([2, 1]),
    )


def test_sizes_that_are_rounded() -> None:
    """As torch.arange has them."""
    function = check(
        """func.func @main(%x: tensor<?xf32>) -> tensor<?xf32> {
      %two = stablehlo.constant dense<2.0> : tensor<f64>
      %n = stablehlo.get_dimension_size %x, dim = 0 : (tensor<?xf32>) -> tensor<i32>
      %f = stablehlo.convert %n : (tensor<i32>) -> tensor<f64>
      %h = stablehlo.divide %f, %two : tensor<f64>
      %c = stablehlo.ceil %h : tensor<f64>
      %i = stablehlo.convert %c : (tensor<f64>) -> tensor<i64>
      %s = stablehlo.reshape %i : (tensor<i64>) -> tensor<1xi64>
      %r = stablehlo.dynamic_iota %s, dim = 0 : (tensor<1xi64>) -> tensor<?xf32>
      return %r : tensor<?xf32>
    }""",
        lambda x: np.arange(-(-len(x) // 2), dtype=np.float32),
        random(7),
    )
    assert function(random(4))[0].shape == (2,)


@pytest.mark.parametrize(
    "config",
    [
        "ab,bc->ac",
        "ab,bc->ca",
        "ab,bc",
        "ab,cb->abc",
        "ab,cd->dbca",
        "abc,abd->adc",
        "abc,bd->d",
        "aab,bc->ac",
        "aba,ab->b",
        "abab,b->a",
        "ab,ab->",
        ",ab->ba",
        "...ab,...bc->...ac",
        "...a,a->...",
        "...a,...b",
        "a...,...b->b...a",
    ],
)
@pytest.mark.parametrize("element", ["f32", "f64", "i32", "complex<f32>"])
def test_sums_of_products_by_letters(config: str, element: str) -> None:
    dtype = {"f32": np.float32, "f64": np.float64, "i32": np.int32}.get(element, np.complex64)
    size = {"a": 3, "b": 4, "c": 2, "d": 5}
    rest = iter(((2, 1), (1, 6))) if config.count("...") > 1 else iter(((2, 6),) * 2)
    shapes = []
    for term in config.partition("->")[0].split(","):
        before, dots, behind = term.partition("...")
        shapes.append(
            (*(size[c] for c in before), *(next(rest) if dots else ()), *(size[c] for c in behind))
        )
    x, y = (
        (4 * random(*shape) + (1j if dtype is np.complex64 else 0)).astype(dtype)
        for shape in shapes
    )
    wanted = np.einsum(config, x, y)
    one, other, result = ("x".join((*map(str, a.shape), element)) for a in (x, y, wanted))
    check(
        f"""func.func @main(%x: tensor<{one}>, %y: tensor<{other}>) -> tensor<{result}> {{
      %0 = stablehlo.einsum %x, %y, config = "{config}"
        : (tensor<{one}>, tensor<{other}>) -> tensor<{result}>
      return %0 : tensor<{result}>
    }}""",
        lambda x, y: np.einsum(config, x, y),
        x,
        y,
        rtol=1e-4,
    )


@pytest.mark.parametrize("config", ["abc->ca", "abc->b", "abb->ba", "aaa->a", "a...->...a", "bb"])
def test_sums_by_letters(config: str) -> None:
    shape = {
        "abc->ca": (3, 4, 2),
        "abc->b": (3, 4, 2),
        "a...->...a": (3, 4, 2),
        "abb->ba": (3, 4, 4),
        "aaa->a": (3, 3, 3),
        "bb": (4, 4),
    }[config]
    x = random(*shape)
    x[..., 0] = np.nan  # which stays where it is
    one, result = ("x".join((*map(str, a.shape), "f32")) for a in (x, np.einsum(config, x)))
    check(
        f"""func.func @main(%x: tensor<{one}>) -> tensor<{result}> {{
      %0 = stablehlo.unary_einsum %x, config = "{config}" : (tensor<{one}>) -> tensor<{result}>
      return %0 : tensor<{result}>
    }}""",
        lambda x: np.einsum(config, x),
        x,
    )


def test_a_batch_of_any_size_by_letters() -> None:
    function = check(
        """func.func @main(%x: tensor<?x5x4xf32>, %y: tensor<3x4xf32>)
        -> tensor<3x?x5xf32> {
      %0 = stablehlo.einsum %x, %y, config = "abc,dc->dab"
        : (tensor<?x5x4xf32>, tensor<3x4xf32>) -> tensor<3x?x5xf32>
      return %0 : tensor<3x?x5xf32>
    }""",
        lambda x, y: np.einsum("abc,dc->dab", x, y),
        random(2, 5, 4),
        random(3, 4),
    )
    x, y = random(7, 5, 4), random(3, 4)
    np.testing.assert_allclose(
        function(x, y)[0], np.einsum("abc,dc->dab", x, y), rtol=1e-5, atol=1e-5
    )


def test_a_diagonal_of_any_size_by_letters() -> None:
    text = """func.func @main(%x: tensor<3x?x?xf32>) -> tensor<?x3xf32> {
      %0 = stablehlo.unary_einsum %x, config = "abb->ba" : (tensor<3x?x?xf32>) -> tensor<?x3xf32>
      return %0 : tensor<?x3xf32>
    }"""
    check(text, lambda x: np.einsum("abb->ba", x), random(3, 4, 4))


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ("ab,bc->ad", "result only"),
        ("ab->ab", "of 1 operands"),
        ("abc,bc->a", "2 dimensions"),
        ("a1,bc->a", "2 dimensions"),
    ],
)
def test_letters_that_say_nothing(config: str, said: str) -> None:
    with pytest.raises(UnsupportedOpError, match=said):
        compile_stablehlo(f"""func.func @main(%x: tensor<2x3xf32>, %y: tensor<3x4xf32>)
            -> tensor<2x4xf32> {{
          %0 = stablehlo.einsum %x, %y, config = "{config}"
            : (tensor<2x3xf32>, tensor<3x4xf32>) -> tensor<2x4xf32>
          return %0 : tensor<2x4xf32>
        }}""")


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


def in_groups(sizes: np.ndarray) -> list[slice]:
    ends = np.cumsum(sizes)
    return [slice(end - size, end) for end, size in zip(ends, sizes, strict=True)]


def rows_in_groups(x: np.ndarray, w: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """[m, k], [g, k, n], [g] -> [m, n]"""
    result = np.zeros((len(x), w.shape[2]), x.dtype)
    for rows, weights in zip(in_groups(sizes), w, strict=True):
        result[rows] = x[rows] @ weights
    return result


def sums_in_groups(x: np.ndarray, y: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """[k, m], [k, n], [g] -> [g, m, n]"""
    return np.stack([x[rows].T @ y[rows] for rows in in_groups(sizes)])


SIZES = np.array([3, 0, 5, 2])  # of 11 rows, of which the last is in no group


def of_groups(operands: str, result: str, *dimensions: object) -> str:
    """A product of which these are the dimensions: of batches, that are summed up, in groups, of
    groups."""
    names = ("batching", "contracting")
    fields = [
        f"{side}_{name}_dimensions = {value}"
        for name, values in zip(names, (dimensions[:2], dimensions[2:4]), strict=True)
        for side, value in zip(("lhs", "rhs"), values, strict=True)
    ]
    fields += [
        f"lhs_ragged_dimensions = {dimensions[4]}",
        f"rhs_group_dimensions = {dimensions[5]}",
    ]
    lhs, rhs, counts = (f"tensor<{one}>" for one in operands.split())
    return f"""func.func @main(%x: {lhs}, %y: {rhs}, %n: {counts}) -> tensor<{result}> {{
      %0 = "chlo.ragged_dot"(%x, %y, %n) {{
        ragged_dot_dimension_numbers = #chlo.ragged_dot<{", ".join(fields)}>,
        precision_config = [#chlo<precision HIGHEST>, #chlo<precision DEFAULT>]
      }} : ({lhs}, {rhs}, {counts}) -> tensor<{result}>
      return %0 : tensor<{result}>
    }}"""


def test_rows_that_lie_in_groups() -> None:
    x, w = random(11, 5), random(4, 5, 7)
    x[10], w[1, 2, 3] = np.inf, np.nan  # of no group, of a group without rows
    text = of_groups("11x5xf32 4x5x7xf32 4xi64", "11x7xf32", [], [], [1], [1], [0], [0])
    check(text, rows_in_groups, x, w, SIZES)


@pytest.mark.parametrize("shared", [False, True], ids=["groups of each", "the same groups"])
def test_rows_of_batches_that_lie_in_groups(shared: bool) -> None:
    def rows(x: np.ndarray, w: np.ndarray, sizes: np.ndarray) -> np.ndarray:
        sizes = np.broadcast_to(sizes, (2, 4))
        return np.stack([rows_in_groups(x[:, b].T, w[:, b], sizes[b]) for b in range(2)])

    check(
        of_groups(
            f"5x2x11xf32 4x2x5x7xf32 {'' if shared else '2x'}4xui32",
            "2x11x7xf32",
            *([1], [1], [0], [2], [2], [0]),
        ),
        rows,
        random(5, 2, 11),
        random(4, 2, 5, 7),
        (SIZES if shared else np.stack([SIZES, SIZES[::-1]])).astype(np.uint32),
    )


def test_sums_over_what_lies_in_groups() -> None:
    x, y = random(11, 3), random(11, 7)
    x[10] = np.nan
    text = of_groups("11x3xf32 11x7xf32 4xi32", "4x3x7xf32", [], [], [0], [0], [0], [])
    check(text, sums_in_groups, x, y, SIZES.astype(np.int32))


def test_sums_over_groups_of_each_row_before() -> None:
    def sums(x: np.ndarray, y: np.ndarray, sizes: np.ndarray) -> np.ndarray:
        return sum(map(sums_in_groups, x, y, sizes))

    check(
        of_groups("2x11x3xf32 2x11x7xf32 2x4xi32", "4x3x7xf32", [], [], [0, 1], [0, 1], [1], []),
        sums,
        random(2, 11, 3),
        random(2, 11, 7),
        np.stack([SIZES, SIZES[::-1]]).astype(np.int32),
    )


def test_batches_that_lie_in_groups_are_batches() -> None:
    check(
        of_groups("6x2x3xf32 6x3x4xf32 2xi32", "6x2x4xf32", [0], [0], [2], [1], [0], []),
        lambda x, y, sizes: x @ y,
        random(6, 2, 3),
        random(6, 3, 4),
        np.array([2, 4], np.int32),
    )


def test_any_number_of_rows_that_lie_in_groups() -> None:
    text = of_groups("?x5xf32 4x5x7xf32 4xi32", "?x7xf32", [], [], [1], [1], [0], [0])
    function = check(text, rows_in_groups, random(11, 5), random(4, 5, 7), SIZES.astype(np.int32))
    x, w, sizes = random(20, 5), random(4, 5, 7), np.array([1, 2, 3, 4], np.int32)
    np.testing.assert_allclose(
        function(x, w, sizes)[0], rows_in_groups(x, w, sizes), rtol=1e-5, atol=1e-5
    )


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
