"""Attention written out in plain JAX, in the layouts and with the masks that models use."""

from __future__ import annotations

import functools
import math

import jax
import jax.numpy as jnp

from hlo_mlc_bench.case import Case, Inputs, Workload


def _attention(q: jax.Array, k: jax.Array, v: jax.Array, *, is_causal: bool) -> jax.Array:
    scores = jnp.einsum("bhqd,bhkd->bhqk", q, k) / math.sqrt(q.shape[-1])
    if is_causal:
        scores = jnp.where(jnp.tri(*scores.shape[-2:], dtype=bool), scores, -jnp.inf)
    return jnp.einsum("bhqk,bhkd->bhqd", jax.nn.softmax(scores, axis=-1), v)


def attention(inputs: Inputs, *, batch: int, heads: int, length: int, width: int) -> Workload:
    def function(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        return _attention(q, k, v, is_causal=False)

    return function, tuple(inputs.normal(batch, heads, length, width) for _ in range(3))


def causal(inputs: Inputs, *, batch: int, heads: int, length: int, width: int) -> Workload:
    def function(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        return _attention(q, k, v, is_causal=True)

    return function, tuple(inputs.normal(batch, heads, length, width) for _ in range(3))


def grouped(
    inputs: Inputs, *, batch: int, heads: int, groups: int, length: int, width: int
) -> Workload:
    """Fewer heads of keys and values than of queries, as `jax.nn` has it."""

    def function(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        return jax.nn.dot_product_attention(q, k, v)

    q = inputs.normal(batch, length, heads, width)
    return function, (q, *(inputs.normal(batch, length, groups, width) for _ in range(2)))


def gradients(inputs: Inputs, *, batch: int, heads: int, length: int, width: int) -> Workload:
    """The gradients for queries, keys and values."""

    def function(
        q: jax.Array, k: jax.Array, v: jax.Array, given: jax.Array
    ) -> tuple[jax.Array, ...]:
        return jax.vjp(functools.partial(_attention, is_causal=False), q, k, v)[1](given)

    return function, tuple(inputs.normal(batch, heads, length, width) for _ in range(4))


_case = functools.partial(
    Case, group="attention", tiny={"batch": 1, "heads": 2, "length": 11, "width": 4}, tolerance=16
)
_SIZES = {"batch": 1, "heads": 12, "length": 512, "width": 64}

CASES = (
    _case("attention", attention, _SIZES, figure=1.3).with_neighbours(
        odd={"length": 509}, dtype="bfloat16", view="transposed", viewed=1
    ),
    _case("attention_short", attention, {**_SIZES, "length": 128}),
    _case("attention_long", attention, {**_SIZES, "length": 2048}),
    _case("attention_causal", causal, _SIZES),
    _case("attention_gradients", gradients, _SIZES, tolerance=32),
    _case(
        "attention_grouped",
        grouped,
        {**_SIZES, "groups": 4},
        tiny={"batch": 1, "heads": 4, "groups": 2, "length": 9, "width": 4},
    ),
)
