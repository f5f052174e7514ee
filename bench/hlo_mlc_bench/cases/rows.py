"""Reductions along rows, alone and inside what normalizes a row."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

from hlo_mlc_bench.case import Case, Inputs, Workload, of_normals


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


def normed_and_turned(inputs: Inputs, *, length: int, heads: int, width: int) -> Workload:
    """Heads [length, heads, width] by their root mean square, then pairs turned by position."""

    def function(x: jax.Array, scale: jax.Array, frequency: jax.Array) -> jax.Array:
        x = x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6) * scale
        angle = jnp.arange(length, dtype=x.dtype)[:, None, None] * frequency
        first, second = jnp.split(x, 2, axis=-1)
        cos, sin = jnp.cos(angle), jnp.sin(angle)
        return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], -1)

    return function, (
        inputs.normal(length, heads, width),
        inputs.normal(width),
        inputs.uniform(width // 2),
    )


def moments(inputs: Inputs, *, rows: int, columns: int) -> Workload:
    """Two sums over all of one tensor."""

    def function(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        return x.sum(), (x * x).sum()

    return function, (inputs.uniform(rows, columns),)


_case = functools.partial(Case, group="rows", tiny={"rows": 5, "columns": 19})
_MATRIX = {"rows": 1024, "columns": 1024}

CASES = (
    _case(
        "softmax", of_normals(jax.nn.softmax, scale=3.0), _MATRIX, tolerance=8, figure=1.8
    ).with_neighbours(odd={"rows": 1021, "columns": 1019}, dtype="bfloat16", view="transposed"),
    _case(
        "argmax",
        of_normals(functools.partial(jnp.argmax, axis=-1)),
        {"rows": 4096, "columns": 1024},
        tolerance=0,
        figure=35.0,
    ).with_neighbours(odd={"rows": 4093, "columns": 1021}, dtype="bfloat16", view="transposed"),
    _case("layernorm", layernorm, _MATRIX, tolerance=8),
    _case("moments", moments, _MATRIX, tolerance=8),
    _case("rmsnorm", rmsnorm, _MATRIX, tolerance=8),
    _case(
        "sum_of_long_rows",
        of_normals(functools.partial(jnp.sum, axis=0)),
        {"rows": 64, "columns": 32_768},
        tolerance=16,
    ),
    _case(
        "squashed_lengths",
        of_normals(lambda x: jnp.tanh(jnp.sum(x * x, axis=-1) / x.shape[-1])),
        {"rows": 20_000, "columns": 65},
        tolerance=16,
    ),
    _case(
        "rmsnorm_rope",
        normed_and_turned,
        {"length": 512, "heads": 12, "width": 64},
        tiny={"length": 5, "heads": 2, "width": 6},
        tolerance=64,
    ),
)
