"""Small matrix products, alone and in batches; large ones are XLA's strong side."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

from hlo_mlc_bench.case import Case, Inputs, Workload


def matmul(inputs: Inputs, *, m: int, k: int, n: int) -> Workload:
    def function(lhs: jax.Array, rhs: jax.Array) -> jax.Array:
        return lhs @ rhs

    return function, (inputs.normal(m, k), inputs.weight(k, n))


def batched_matmul(inputs: Inputs, *, batch: int, m: int, k: int, n: int) -> Workload:
    def function(lhs: jax.Array, rhs: jax.Array) -> jax.Array:
        return lhs @ rhs

    return function, (inputs.normal(batch, m, k), inputs.weight(batch, k, n))


def gelu_layer(inputs: Inputs, *, m: int, k: int, n: int) -> Workload:
    def function(x: jax.Array, weight: jax.Array, bias: jax.Array) -> jax.Array:
        return jax.nn.gelu(x @ weight + bias)

    return function, (inputs.normal(m, k), inputs.weight(k, n), inputs.normal(n, scale=0.1))


def three_products(inputs: Inputs, *, m: int, k: int, n: int) -> Workload:
    """Queries, keys and values of one input, by three matrices."""

    def function(x: jax.Array, *weights: jax.Array) -> tuple[jax.Array, ...]:
        return tuple(x @ weight for weight in weights)

    return function, (inputs.normal(m, k), *(inputs.weight(k, n) for _ in range(3)))


def projections(inputs: Inputs, *, m: int, k: int, n: int) -> Workload:
    """The same with biases, as layers of their own write it."""

    def function(x: jax.Array, weights: tuple, biases: tuple) -> tuple[jax.Array, ...]:
        return tuple(x @ weight + bias for weight, bias in zip(weights, biases, strict=True))

    weights = tuple(inputs.weight(k, n) for _ in range(3))
    biases = tuple(inputs.normal(n, scale=0.1) for _ in range(3))
    return function, (inputs.normal(m, k), weights, biases)


def quantised_product(inputs: Inputs, *, m: int, k: int, n: int) -> Workload:
    """A product of numbers of 8 bits, each row and column with a scale of its own."""

    def function(lhs: jax.Array, rhs: jax.Array) -> jax.Array:
        row = jnp.max(jnp.abs(lhs), axis=1, keepdims=True) / 127
        column = jnp.max(jnp.abs(rhs), axis=0, keepdims=True) / 127
        whole = (jnp.round(lhs / row).astype(jnp.int8), jnp.round(rhs / column).astype(jnp.int8))
        product = jax.lax.dot(*whole, preferred_element_type=jnp.int32)
        return product.astype(lhs.dtype) * row * column

    # Multiples of a 127th of one, which is among them: nothing lies between two of them.
    lhs, rhs = (jnp.round(inputs.uniform(*shape, low=-127, high=127)) for shape in ((m, k), (k, n)))
    return function, (lhs.at[:, 0].set(127), rhs.at[0].set(127))


def quantised_layers(inputs: Inputs, *, m: int, k: int, n: int) -> Workload:
    """Two layers of numbers of 8 bits, whose largest number in a row is found on the way."""

    def layer(x: jax.Array, weights: jax.Array) -> jax.Array:
        row = jnp.max(jnp.abs(x), axis=1, keepdims=True) / 127
        whole = jnp.round(x / row).astype(jnp.int8)
        return jax.lax.dot(whole, weights, preferred_element_type=jnp.int32).astype(x.dtype) * row

    def function(x: jax.Array, first: jax.Array, second: jax.Array) -> jax.Array:
        return layer(jnp.clip(layer(x, first), 0, 254), second)

    # Whole numbers, and the largest of a row 127 or twice that: nothing is rounded by chance.
    x = jnp.round(inputs.uniform(m, k, low=-127, high=127)).at[:, 0].set(127)
    first, second = (inputs.places(5, *shape).astype(jnp.int8) - 2 for shape in ((k, n), (n, k)))
    return function, (x, first, second)


def quantised_weights(inputs: Inputs, *, m: int, k: int, n: int, bits: int) -> Workload:
    """A product with weights of a few bits, each column with a scale of its own."""

    def function(x: jax.Array, weight: jax.Array, scale: jax.Array) -> jax.Array:
        return (x @ weight.astype(x.dtype)) * scale

    most = 2 ** (bits - 1)
    weight = jnp.floor(inputs.uniform(k, n, low=-most, high=most)).astype(f"int{bits}")
    return function, (inputs.normal(m, k), weight, inputs.uniform(n, high=1 / most))


_case = functools.partial(Case, group="contractions", tiny={"m": 3, "k": 7, "n": 5}, tolerance=16)

CASES = (
    _case("matmul", matmul, {"m": 16, "k": 256, "n": 1024}, figure=2.0).with_neighbours(
        odd={"m": 17, "k": 251, "n": 1021}, dtype="bfloat16", view="transposed", viewed=1
    ),
    _case("vector_matrix", matmul, {"m": 1, "k": 60, "n": 1024}),
    _case("few_rows", matmul, {"m": 8, "k": 4096, "n": 4096}).with_neighbours(
        odd={"m": 9, "n": 4003}, dtype="bfloat16", view="transposed", viewed=1
    ),
    _case("large_matmul", matmul, {"m": 1024, "k": 1024, "n": 1024}, figure=1.0).with_neighbours(
        odd={"m": 1021}, dtype="bfloat16", view="transposed", viewed=1
    ),
    _case("gelu_layer", gelu_layer, {"m": 128, "k": 768, "n": 3072}, figure=1.15).with_neighbours(
        odd={"m": 127, "n": 3071}, dtype="bfloat16", view="transposed", viewed=1
    ),
    _case("three_products", three_products, {"m": 128, "k": 768, "n": 768}),
    _case("qkv", projections, {"m": 16, "k": 256, "n": 256}).with_neighbours(
        odd={"m": 128, "k": 509, "n": 509}, dtype="bfloat16", view="transposed"
    ),
    _case(
        "attention_scores",
        batched_matmul,
        {"batch": 12, "m": 128, "k": 64, "n": 128},
        tiny={"batch": 2, "m": 3, "k": 7, "n": 5},
    ),
    _case("quantised_product", quantised_product, {"m": 64, "k": 256, "n": 512}),
    _case("quantised_layers", quantised_layers, {"m": 128, "k": 256, "n": 1024}),
    _case(
        "weights_of_8_bits",
        quantised_weights,
        {"m": 1, "k": 2048, "n": 2048, "bits": 8},
        tiny={"m": 1, "k": 7, "n": 5, "bits": 8},
    ).with_neighbours(
        odd={"m": 8, "k": 2047, "n": 2045}, dtype="bfloat16", view="transposed", viewed=1
    ),
    _case(
        "weights_of_4_bits",
        quantised_weights,
        {"m": 1, "k": 2048, "n": 2048, "bits": 4},
        tiny={"m": 1, "k": 7, "n": 5, "bits": 4},
    ).with_neighbours(
        odd={"m": 8, "k": 2047, "n": 2045}, dtype="bfloat16", view="transposed", viewed=1
    ),
    _case(
        "tiny_matmuls",
        batched_matmul,
        {"batch": 512, "m": 8, "k": 8, "n": 8},
        tiny={"batch": 3, "m": 3, "k": 7, "n": 5},
    ),
)
