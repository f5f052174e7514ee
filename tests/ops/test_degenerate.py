"""Axes of one element and of none: windows, folds, scans, products and rows that are picked.

They are where "for each axis" loops have nothing to go over; values and gradients of each family
have to be right there as anywhere else.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

SHAPES = [(1, 1), (1, 7), (6, 1), (6, 7), (0, 3), (3, 0)]
WINDOWS = [(1, 1), (1, 3), (2, 1), (3, 2)]
WHERE = ["VALID", "SAME"]


def values(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)


def and_gradient(function: Callable) -> Callable:
    """The function's results, and the gradient of a weighted sum of them."""

    def both(x, *rest):
        def total(x):
            result = function(x, *rest)
            return jnp.sum(result * jnp.cos(jnp.arange(result.size).reshape(result.shape))), result

        gradient, result = jax.grad(total, has_aux=True)(x)
        return result, gradient

    return both


REDUCERS = {"max": (lax.max, -jnp.inf), "min": (lax.min, jnp.inf), "sum": (lax.add, 0.0)}


@pytest.mark.parametrize("padding", WHERE)
@pytest.mark.parametrize("shape", SHAPES[:4])
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("reducer", REDUCERS)
def test_windows(check, reducer, window, shape, padding):
    if padding == "VALID":
        shape = tuple(map(max, shape, window))
    op, initial = REDUCERS[reducer]
    for strides in ((1, 1), (2, 3)):
        check(
            and_gradient(
                lambda x, strides=strides: lax.reduce_window(
                    x, initial, op, window, strides, padding
                )
            ),
            values(*shape),
            kernels=None,
        )


def second_largest(a, b):
    """Of pairs of the largest and the second largest."""
    return lax.max(a[0], b[0]), lax.max(lax.min(a[0], b[0]), lax.max(a[1], b[1]))


NOT_NEUTRAL = {"add 1": (lax.add, 1.0), "mul 3": (lax.mul, 3.0), "max 0": (lax.max, 0.0)}


@pytest.mark.parametrize("dilations", [(1, 1), (2, 1), (1, 3)], ids=str)
@pytest.mark.parametrize("fold", NOT_NEUTRAL)
def test_initial_values_are_folded_once(check, fold, dilations):
    """They are what a window's fold begins with, not what it finds beside the array."""
    op, initial = NOT_NEUTRAL[fold]
    x = np.round(values(7, 6) * 2)  # with zeros, which the derivative of a maximum tells apart

    def window(x):
        return lax.reduce_window(
            x,
            np.array(initial, x.dtype),
            op,
            (3, 2),
            (1, 2),
            [(2, 1), (0, 3)],
            base_dilation=dilations[:1] * 2,
            window_dilation=dilations[1:] * 2,
        )

    check(lambda x: jax.jvp(window, (x,), (jnp.cos(x),)), x, kernels=None)
    check(window, x.astype(np.float16), kernels=None)


def test_initial_values_of_several_results_are_folded_once(check):
    x = values(9, 5)
    check(
        lambda x: lax.reduce_window(
            (x, jnp.full_like(x, -9)),
            (np.float32(1), np.float32(1)),
            second_largest,
            (2, 3),
            (1, 1),
            "SAME",
        ),
        x,
        kernels=None,
    )


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("axis", [0, 1, (0, 1), ()])
@pytest.mark.parametrize("fold", ["sum", "prod", "max", "min", "mean", "logsumexp"])
def test_folds(check, fold, axis, shape):
    folded = [shape[d] for d in ((axis,) if isinstance(axis, int) else axis)]
    if 0 in folded and fold in ("max", "min", "mean", "logsumexp"):
        pytest.skip("JAX refuses folds of nothing that have no first value")
    function = jax.nn.logsumexp if fold == "logsumexp" else getattr(jnp, fold)
    check(and_gradient(lambda x: function(x, axis=axis)), values(*shape), kernels=None)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("name", ["argmax", "argmin", "softmax", "log_softmax", "any", "sort"])
def test_rows(check, name, axis, shape):
    if shape[axis] == 0 and name in ("argmax", "argmin", "softmax", "log_softmax"):
        pytest.skip("JAX refuses to look for the largest of nothing")
    function = getattr(jnp, name, None) or getattr(jax.nn, name)
    check(lambda x: function(x + 1, axis=axis), values(*shape), coverage=0, kernels=None)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("scan", ["cumsum", "cumprod", "cummax", "cumlogsumexp"])
def test_running_folds(check, scan, axis, shape, reverse):
    function = getattr(lax, scan)
    check(
        and_gradient(lambda x: function(x, axis=axis, reverse=reverse)),
        values(*shape),
        kernels=None,
    )


@pytest.mark.parametrize("length", [0, 1, 2])
@pytest.mark.parametrize("width", [1, 5])
def test_loops_of_few_rounds(check, length, width):
    def function(x, rows):
        def step(carry, row):
            carry = jnp.tanh(carry + row)
            return carry, carry * 2

        last, each = lax.scan(step, x, rows)
        return jnp.concatenate([last[None], each])

    check(and_gradient(function), values(width), values(length, width), kernels=None)


@pytest.mark.parametrize("places", [[], [0], [2], [9], [-1], [0, 0, 2]])
@pytest.mark.parametrize("shape", [(1,), (3,), (3, 1), (3, 4)])
def test_rows_picked_and_put_back(check, shape, places):
    x, places = values(*shape), np.array(places, np.int32)
    check(and_gradient(lambda x: x[places]), x, kernels=None)
    check(and_gradient(lambda x: jnp.take(x, places, axis=0, mode="clip")), x, kernels=None)
    check(and_gradient(lambda x: x.at[places].add(jnp.sin(x[:1]))), x, kernels=None)
    check(lambda x: x.at[places].set(2.0), x, kernels=None)
    check(and_gradient(lambda x: x.at[places].max(0.25)), x, kernels=None)


@pytest.mark.parametrize("size", [0, 1, 3])
@pytest.mark.parametrize("start", [0, 1, 5])
def test_slices_at_any_place(check, size, start):
    x, begin = values(3, 2), np.int32(start)
    check(
        and_gradient(lambda x, b: lax.dynamic_slice(x, (b, 0), (size, 2))), x, begin, kernels=None
    )
    check(
        and_gradient(lambda x, b: lax.dynamic_update_slice(x, x[:size] * 2, (b, 0))),
        x,
        begin,
        kernels=None,
    )


@pytest.mark.parametrize("depth", [0, 1, 2])
@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (1, 5), (5, 1), (0, 3), (5, 6)])
def test_products(check, rows, columns, depth):
    lhs, rhs = values(2, rows, depth), values(2, depth, columns)
    check(and_gradient(lambda x, y: x @ y), lhs, rhs, kernels=None)
    check(and_gradient(lambda x, y: jnp.einsum("bik,bkj->j", x, y)), lhs, rhs, kernels=None)


@pytest.mark.parametrize("filter_size", [1, 2])
@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize("size", [1, 4])
def test_convolutions(check, size, channels, filter_size):
    x, k = values(1, channels, size, size), values(2, channels, filter_size, filter_size)
    check(
        and_gradient(lambda x, k: lax.conv_general_dilated(x, k, (1, 1), "SAME")),
        x,
        k,
        kernels=None,
    )


@pytest.mark.parametrize("initial", [0.0, 2.0])
@pytest.mark.parametrize(
    ("shape", "axes"), [((3,), ()), ((), ()), ((1, 3), (0,)), ((3, 1, 1), (1,)), ((1, 1), (0, 1))]
)
def test_a_single_element_is_its_own_fold(check, shape, axes, initial):
    """Whatever the fold begins with, as in XLA; also a zero with a sign."""
    x = np.where(values(*shape) > 0.5, np.float32(-0.0), values(*shape))
    for op in (lax.add, lax.max, lambda a, b: 2 * a + b):
        check(lambda x, op=op: lax.reduce(x, np.float32(initial), op, axes), x, kernels=None)
    check(
        lambda x: lax.reduce(
            (x, x + 1),
            (np.float32(initial), np.float32(3)),
            lambda a, b: (a[0] + b[0], lax.max(a[1], b[1])),
            axes,
        ),
        x,
        kernels=None,
    )
