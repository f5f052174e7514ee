"""One operation per element: activation and transcendental functions."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from hlo_mlc_bench.case import Case, Inputs, Workload

_MILLION = 1 << 20


def gelu(inputs: Inputs, *, size: int) -> Workload:
    def function(x: jax.Array) -> jax.Array:
        return jax.nn.gelu(x)

    return function, (inputs.normal(size, scale=2.0),)


def exp(inputs: Inputs, *, size: int) -> Workload:
    def function(x: jax.Array) -> jax.Array:
        return jnp.exp(x)

    return function, (inputs.normal(size),)


def sin(inputs: Inputs, *, size: int) -> Workload:
    def function(x: jax.Array) -> jax.Array:
        return jnp.sin(x)

    return function, (inputs.normal(size, scale=10.0),)


def tanh(inputs: Inputs, *, size: int) -> Workload:
    def function(x: jax.Array) -> jax.Array:
        return jnp.tanh(x)

    return function, (inputs.normal(size),)


def log(inputs: Inputs, *, size: int) -> Workload:
    def function(x: jax.Array) -> jax.Array:
        return jnp.log(x)

    return function, (inputs.uniform(size, low=0.1, high=10.0),)


CASES = (
    Case(
        name="gelu",
        group="elementwise",
        build=gelu,
        sizes={"size": _MILLION},
        tiny={"size": 37},
        tolerance=4,
        figure=2.2,
    ).with_neighbours(odd={"size": 1_000_003}, dtype="bfloat16", view="strided"),
    *(
        Case(
            name=build.__name__,
            group="elementwise",
            build=build,
            sizes={"size": _MILLION},
            tiny={"size": 37},
            tolerance=4,
            figure=figure,
        ).with_neighbours(odd={"size": 1_000_003}, dtype="float64", view="strided")
        for build, figure in ((exp, 1.5), (sin, 25.0), (tanh, 1.8), (log, 2.0))
    ),
)
