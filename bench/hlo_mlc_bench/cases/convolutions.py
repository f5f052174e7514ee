"""Convolutions of one channel and of many, their gradients, pooling, and stages of networks."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax import lax

from hlo_mlc_bench.case import Case, Inputs, Workload

_LAYOUT = ("NHWC", "HWIO", "NHWC")


def _convolution(x: jax.Array, kernel: jax.Array, stride: int = 1) -> jax.Array:
    return lax.conv_general_dilated(x, kernel, (stride, stride), "SAME", dimension_numbers=_LAYOUT)


def _depthwise(x: jax.Array, kernel: jax.Array, stride: int = 1) -> jax.Array:
    return lax.conv_general_dilated(
        x,
        kernel,
        (stride, stride),
        "SAME",
        dimension_numbers=_LAYOUT,
        feature_group_count=x.shape[-1],
    )


def _kernel(inputs: Inputs, size: int, channels: int, features: int) -> jax.Array:
    """A kernel [size, size, channels, features] that keeps the magnitude of what it meets."""
    scale = 1 / (size * channels**0.5)
    return inputs.normal(size, size, channels, features, scale=scale)


def depthwise(inputs: Inputs, *, batch: int, size: int, channels: int, window: int) -> Workload:
    """One filter for each channel of images [batch, size, size, channels]."""

    def function(x: jax.Array, kernel: jax.Array) -> jax.Array:
        return _depthwise(x, kernel)

    return function, (
        inputs.normal(batch, size, size, channels),
        _kernel(inputs, window, 1, channels),
    )


def depthwise_gradients(
    inputs: Inputs, *, batch: int, size: int, channels: int, window: int
) -> Workload:
    """The gradients of a depthwise convolution for its input and its filters."""

    def function(x: jax.Array, kernel: jax.Array, given: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jax.vjp(_depthwise, x, kernel)[1](given)

    return function, (
        inputs.normal(batch, size, size, channels),
        _kernel(inputs, window, 1, channels),
        inputs.normal(batch, size, size, channels),
    )


def single_channel(inputs: Inputs, *, batch: int, size: int, window: int) -> Workload:
    """A filter over grey images [batch, size, size]."""

    def function(x: jax.Array, kernel: jax.Array) -> jax.Array:
        return _convolution(x[..., None], kernel)[..., 0]

    return function, (inputs.normal(batch, size, size), _kernel(inputs, window, 1, 1))


def pooling(inputs: Inputs, *, batch: int, size: int, channels: int) -> Workload:
    """Maxima of overlapping windows with their gradient, as after the first layer of ResNet."""

    def function(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        def pooled(x: jax.Array) -> jax.Array:
            return lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")

        result, back = jax.vjp(pooled, x)
        return result, back(result)[0]

    return function, (inputs.normal(batch, size, size, channels),)


def mobilenet_stack(inputs: Inputs, *, size: int, channels: int, blocks: int) -> Workload:
    """Depthwise-separable blocks; each second one halves the image and doubles the channels."""

    def function(x: jax.Array, layers: list[dict[str, jax.Array]]) -> jax.Array:
        for number, layer in enumerate(layers):
            x = _depthwise(x, layer["depthwise"], 1 + number % 2)
            x = jnp.clip(x + layer["depthwise_bias"], 0, 6)
            x = _convolution(x, layer["pointwise"])
            x = jnp.clip(x + layer["pointwise_bias"], 0, 6)
        return x.mean((1, 2))

    layers = []
    for number in range(blocks):
        features = channels * (1 + number % 2)
        layers.append(
            {
                "depthwise": _kernel(inputs, 3, 1, channels),
                "depthwise_bias": inputs.normal(channels, scale=0.1),
                "pointwise": _kernel(inputs, 1, channels, features),
                "pointwise_bias": inputs.normal(features, scale=0.1),
            }
        )
        channels = features
    return function, (inputs.normal(1, size, size, layers[0]["depthwise"].shape[-1]), layers)


def resnet_stage(
    inputs: Inputs, *, size: int, channels: int, blocks: int, train: bool = False
) -> Workload:
    """Residual blocks of two 3x3 convolutions, then one that halves the image."""

    def forward(x: jax.Array, parameters: dict[str, list[jax.Array]]) -> jax.Array:
        *pairs, (down, up, across) = parameters["kernels"]
        biases = iter(parameters["biases"])
        for first, second in pairs:
            inner = jax.nn.relu(_convolution(x, first) + next(biases))
            x = jax.nn.relu(x + _convolution(inner, second) + next(biases))
        inner = jax.nn.relu(_convolution(x, down, 2) + next(biases))
        return jax.nn.relu(_convolution(inner, up) + _convolution(x, across, 2) + next(biases))

    def gradients(x: jax.Array, parameters: dict[str, list[jax.Array]]) -> jax.Array:
        return jax.grad(lambda p: (forward(x, p) ** 2).mean())(parameters)

    kernel = functools.partial(_kernel, inputs)
    parameters = {
        "kernels": [
            *([kernel(3, channels, channels) for _ in range(2)] for _ in range(blocks)),
            [
                kernel(3, channels, 2 * channels),
                kernel(3, 2 * channels, 2 * channels),
                kernel(1, channels, 2 * channels),
            ],
        ],
        "biases": [
            *(inputs.normal(channels, scale=0.1) for _ in range(2 * blocks)),
            *(inputs.normal(2 * channels, scale=0.1) for _ in range(2)),
        ],
    }
    x = inputs.normal(1, size, size, channels)
    return gradients if train else forward, (x, parameters)


def captured_filters(inputs: Inputs, *, size: int, channels: int) -> Workload:
    """A convolution of a small image by many filters, by a function that has closed over them."""
    kernel = _kernel(inputs, 3, channels, channels)

    def forward(x: jax.Array) -> jax.Array:
        return _convolution(x, kernel.astype(x.dtype))

    return forward, (inputs.normal(1, size, size, channels),)


_case = functools.partial(Case, group="convolutions")
_FILTERED = {"batch": 1, "size": 56, "channels": 128, "window": 3}

CASES = (
    _case(
        "depthwise", depthwise, _FILTERED, tiny={"size": 4, "channels": 3}, tolerance=8, figure=70
    ).with_neighbours(odd={"size": 57, "channels": 127}, dtype="bfloat16", view="transposed"),
    _case(
        "depthwise_gradients",
        depthwise_gradients,
        _FILTERED,
        tiny={"size": 4, "channels": 3},
        tolerance=16,
        figure=15,
    ).with_neighbours(odd={"size": 55, "channels": 125}, dtype="bfloat16", view="strided"),
    _case(
        "single_channel",
        single_channel,
        {"batch": 4, "size": 224, "window": 9},
        tiny={"batch": 2, "size": 5, "window": 3},
        tolerance=16,
        figure=4,
    ).with_neighbours(odd={"batch": 3, "size": 223, "window": 7}, dtype="bfloat16", view="strided"),
    _case(
        "pooling",
        pooling,
        {"batch": 1, "size": 112, "channels": 64},
        tiny={"size": 5, "channels": 3},
        tolerance=8,
    ).with_neighbours(odd={"size": 111, "channels": 63}, dtype="bfloat16", view="transposed"),
    _case(
        "mobilenet_stack",
        mobilenet_stack,
        {"size": 56, "channels": 64, "blocks": 6},
        tiny={"size": 4, "channels": 3, "blocks": 2},
        tolerance=32,
    ).with_neighbours(odd={"size": 57, "channels": 63}, dtype="bfloat16", view="transposed"),
    _case(
        "resnet_stage",
        resnet_stage,
        {"size": 56, "channels": 64, "blocks": 2},
        tiny={"size": 4, "channels": 3, "blocks": 1},
        tolerance=32,
    ).with_neighbours(odd={"size": 55, "channels": 61}, dtype="bfloat16", view="transposed"),
    _case(
        "captured_filters",
        captured_filters,
        {"size": 7, "channels": 512},
        tiny={"size": 4, "channels": 3},
        tolerance=32,
    ),
    _case(
        "resnet_gradients",
        functools.partial(resnet_stage, train=True),
        {"size": 28, "channels": 64, "blocks": 1},
        tiny={"size": 4, "channels": 3, "blocks": 1},
        tolerance=64,
    ),
)
