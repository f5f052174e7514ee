"""Convolutions that become products."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import numpy as np
import pytest
from jax import lax

from hlo_mlc.graph.rewrite import apply_rules
from hlo_mlc.passes.convolutions import CONVOLUTION_RULES


def convolution(numbers: Sequence[str], groups: int, **options: object) -> Callable:
    options = {"window_strides": (1, 1), "padding": ((0, 0), (0, 0)), **options}

    def function(x: jax.Array, k: jax.Array) -> jax.Array:
        return lax.conv_general_dilated(x, k, dimension_numbers=numbers,
                                        feature_group_count=groups, **options)

    return function


NHWC, NCHW = ("NHWC", "HWIO", "NHWC"), ("NCHW", "OIHW", "NCHW")
MIXED = ("HNCW", "OHWI", "CHWN")
RNG = np.random.default_rng(0)


def arrays(*shapes: tuple[int, ...]) -> list[np.ndarray]:
    return [RNG.standard_normal(shape).astype(np.float32) for shape in shapes]


@pytest.mark.parametrize(("numbers", "strides", "shapes"), [
    (NHWC, (1, 1), ((2, 5, 3, 12), (1, 1, 4, 6))),
    (NCHW, (1, 1), ((2, 12, 5, 3), (6, 4, 1, 1))),
    (NHWC, (2, 3), ((2, 5, 7, 12), (1, 1, 4, 6))),
    (MIXED, (1, 2), ((5, 2, 12, 3), (6, 1, 1, 4))),
])
def test_windows_of_one_element_in_groups(numbers: Sequence[str], strides: tuple, shapes: tuple,
                                          traced: Callable, same: Callable, ops_of: Callable,
                                          check: Callable) -> None:
    function, args = convolution(numbers, 3, window_strides=strides), arrays(*shapes)
    graph = traced(function, *args)
    product = apply_rules(graph, CONVOLUTION_RULES)
    assert "dot_general" in ops_of(product)
    same(product, graph, args, 1e-5)
    report = check(lambda x, k: jax.nn.relu(function(x, k)) + 1, *args)
    (kernel,) = report.kernels
    assert [nest.template for nest in kernel.nests] == ["contraction"]


@pytest.mark.parametrize(("function", "shapes"), [
    (convolution(NHWC, 1), ((2, 5, 3, 12), (1, 1, 12, 6))),
    (convolution(NHWC, 12), ((2, 5, 3, 12), (1, 1, 1, 24))),
    (convolution(NHWC, 6), ((2, 5, 3, 12), (1, 1, 2, 6))),
    (convolution(NHWC, 3, padding=((0, 1), (0, 0))), ((2, 5, 3, 12), (1, 1, 4, 6))),
    (convolution(NHWC, 3, lhs_dilation=(2, 1)), ((2, 5, 3, 12), (1, 1, 4, 6))),
    (convolution(NHWC, 3), ((2, 5, 3, 12), (2, 1, 4, 6))),
])
def test_others_stay(function: Callable, shapes: tuple, traced: Callable) -> None:
    graph = traced(function, *arrays(*shapes))
    assert apply_rules(graph, CONVOLUTION_RULES) is graph
