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
        return lax.conv_general_dilated(
            x, k, dimension_numbers=numbers, feature_group_count=groups, **options
        )

    return function


NHWC, NCHW = ("NHWC", "HWIO", "NHWC"), ("NCHW", "OIHW", "NCHW")
MIXED = ("HNCW", "OHWI", "CHWN")
RNG = np.random.default_rng(0)


def arrays(*shapes: tuple[int, ...]) -> list[np.ndarray]:
    return [RNG.standard_normal(shape).astype(np.float32) for shape in shapes]


@pytest.mark.parametrize(
    ("numbers", "strides", "shapes"),
    [
        (NHWC, (1, 1), ((2, 5, 3, 12), (1, 1, 4, 6))),
        (NCHW, (1, 1), ((2, 12, 5, 3), (6, 4, 1, 1))),
        (NHWC, (2, 3), ((2, 5, 7, 12), (1, 1, 4, 6))),
        (MIXED, (1, 2), ((5, 2, 12, 3), (6, 1, 1, 4))),
    ],
)
def test_windows_of_one_element_in_groups(
    numbers: Sequence[str],
    strides: tuple,
    shapes: tuple,
    traced: Callable,
    same: Callable,
    ops_of: Callable,
    check: Callable,
) -> None:
    function, args = convolution(numbers, 3, window_strides=strides), arrays(*shapes)
    graph = traced(function, *args)
    product = apply_rules(graph, CONVOLUTION_RULES)
    assert "dot_general" in ops_of(product)
    same(product, graph, args, 1e-5)
    report = check(lambda x, k: jax.nn.relu(function(x, k)) + 1, *args)
    (kernel,) = report.kernels
    assert [nest.template for nest in kernel.nests] == ["contraction"]


@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (convolution(NHWC, 1), ((2, 5, 3, 12), (1, 1, 12, 6))),
        (convolution(NHWC, 12), ((2, 5, 3, 12), (1, 1, 1, 24))),
        (convolution(NHWC, 6), ((2, 5, 3, 12), (1, 1, 2, 6))),
        (convolution(NHWC, 3, padding=((0, 1), (0, 0))), ((2, 5, 3, 12), (1, 1, 4, 6))),
        (convolution(NHWC, 3, lhs_dilation=(2, 1)), ((2, 5, 3, 12), (1, 1, 4, 6))),
        (convolution(NHWC, 3), ((2, 5, 3, 12), (2, 1, 4, 6))),
    ],
)
def test_others_stay(function: Callable, shapes: tuple, traced: Callable) -> None:
    graph = traced(function, *arrays(*shapes))
    assert apply_rules(graph, CONVOLUTION_RULES) is graph


NWC, NCW = ("NWC", "WIO", "NWC"), ("NCW", "OIW", "NCW")


@pytest.mark.parametrize(
    ("numbers", "apart", "padding", "shapes"),
    [
        (NWC, (16,), ((31, 31),), ((2, 5, 3), (32, 3, 2))),
        (NWC, (9,), ((4, 17),), ((1, 6, 4), (21, 4, 1))),
        (NCW, (12,), ((-3, 5),), ((2, 3, 7), (2, 3, 5))),
        (NCW, (10,), ((25, -20),), ((2, 3, 7), (2, 3, 23))),
        (NWC, (11,), ((0, 0),), ((2, 1, 3), (1, 3, 2))),
        (NHWC, (3, 4), ((2, 3), (5, 1)), ((2, 3, 4, 3), (5, 6, 3, 2))),
        (NCHW, (1, 9), ((1, 1), (8, 8)), ((2, 3, 4, 5), (2, 3, 3, 17))),
        (MIXED, (9, 2), ((6, 0), (0, 3)), ((4, 2, 3, 3), (2, 11, 3, 3))),
    ],
)
def test_inputs_far_apart_lie_side_by_side(
    numbers: Sequence[str],
    apart: tuple,
    padding: tuple,
    shapes: tuple,
    traced: Callable,
    same: Callable,
    check: Callable,
) -> None:
    function = convolution(
        numbers, 1, window_strides=(1,) * len(apart), lhs_dilation=apart, padding=padding
    )
    args = arrays(*shapes)
    graph = traced(function, *args)
    dense = apply_rules(graph, CONVOLUTION_RULES)
    (node,) = (node for node in dense.nodes if node.op == "stablehlo.convolution")
    assert set(node.attributes["lhs_dilation"]) == {1}
    same(dense, graph, args, 1e-5)
    check(lambda x, k: jax.nn.relu(function(x, k)) + 1, *args)


@pytest.mark.parametrize(
    "options",
    [
        {"lhs_dilation": (2, 4)},
        {"lhs_dilation": (4, 4), "window_strides": (1, 2)},
        {"lhs_dilation": (4, 4), "rhs_dilation": (2, 1)},
    ],
)
def test_few_phases_and_strides_stay(options: dict, traced: Callable) -> None:
    graph = traced(convolution(NHWC, 1, **options), *arrays((2, 5, 5, 3), (2, 2, 3, 2)))
    assert apply_rules(graph, CONVOLUTION_RULES) is graph
