"""Modules of other frameworks whose sizes and places are known at run time only."""

from __future__ import annotations

import numpy as np
import pytest

from making.foreign import check, random


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
