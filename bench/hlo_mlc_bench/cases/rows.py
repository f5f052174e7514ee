"""Reductions along rows, alone and inside what normalizes a row."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from hlo_mlc_bench.case import Case, Inputs, Workload


def softmax(inputs: Inputs, *, rows: int, columns: int) -> Workload:
    def function(x: jax.Array) -> jax.Array:
        return jax.nn.softmax(x, axis=-1)

    return function, (inputs.normal(rows, columns, scale=3.0),)


def argmax(inputs: Inputs, *, rows: int, columns: int) -> Workload:
    def function(x: jax.Array) -> jax.Array:
        return jnp.argmax(x, axis=-1)

    return function, (inputs.normal(rows, columns),)


def layernorm(inputs: Inputs, *, rows: int, columns: int) -> Workload:
    def function(x: jax.Array, scale: jax.Array, bias: jax.Array) -> jax.Array:
        mean = jnp.mean(x, axis=-1, keepdims=True)
        variance = jnp.var(x, axis=-1, keepdims=True)
        return (x - mean) * jax.lax.rsqrt(variance + 1e-5) * scale + bias

    return function, (inputs.normal(rows, columns), inputs.normal(columns), inputs.normal(columns))


def rmsnorm(inputs: Inputs, *, rows: int, columns: int) -> Workload:
    def function(x: jax.Array, scale: jax.Array) -> jax.Array:
        return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6) * scale

    return function, (inputs.normal(rows, columns), inputs.normal(columns))


def moments(inputs: Inputs, *, rows: int, columns: int) -> Workload:
    """Two sums over all of one tensor."""

    def function(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        return x.sum(), (x * x).sum()

    return function, (inputs.uniform(rows, columns),)


CASES = (
    Case(
        name="softmax",
        group="rows",
        build=softmax,
        sizes={"rows": 1024, "columns": 1024},
        tiny={"rows": 5, "columns": 19},
        tolerance=8,
        figure=1.8,
    ).with_neighbours(odd={"rows": 1021, "columns": 1019}, dtype="bfloat16", view="transposed"),
    Case(
        name="argmax",
        group="rows",
        build=argmax,
        sizes={"rows": 4096, "columns": 1024},
        tiny={"rows": 5, "columns": 19},
        tolerance=0,
        figure=35.0,
    ).with_neighbours(odd={"rows": 4093, "columns": 1021}, dtype="bfloat16", view="transposed"),
    Case(
        name="layernorm",
        group="rows",
        build=layernorm,
        sizes={"rows": 1024, "columns": 1024},
        tiny={"rows": 5, "columns": 19},
        tolerance=8,
    ),
    Case(
        name="moments",
        group="rows",
        build=moments,
        sizes={"rows": 1024, "columns": 1024},
        tiny={"rows": 5, "columns": 19},
        tolerance=8,
    ),
    Case(
        name="rmsnorm",
        group="rows",
        build=rmsnorm,
        sizes={"rows": 1024, "columns": 1024},
        tiny={"rows": 5, "columns": 19},
        tolerance=8,
    ),
)
