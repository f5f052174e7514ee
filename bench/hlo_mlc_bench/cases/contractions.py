"""Small matrix products, alone and in batches; large ones are XLA's strong side."""

from __future__ import annotations

import jax

from hlo_mlc_bench.case import Case, Inputs, Workload


def matmul(inputs: Inputs, *, m: int, k: int, n: int) -> Workload:
    def function(lhs: jax.Array, rhs: jax.Array) -> jax.Array:
        return lhs @ rhs

    return function, (inputs.normal(m, k), inputs.weight(k, n))


def batched_matmul(inputs: Inputs, *, batch: int, m: int, k: int, n: int) -> Workload:
    def function(lhs: jax.Array, rhs: jax.Array) -> jax.Array:
        return lhs @ rhs

    return function, (inputs.normal(batch, m, k), inputs.weight(batch, k, n))


CASES = (
    Case(
        name="matmul",
        group="contractions",
        build=matmul,
        sizes={"m": 16, "k": 256, "n": 1024},
        tiny={"m": 3, "k": 7, "n": 5},
        tolerance=16,
        figure=2.0,
    ).with_neighbours(
        odd={"m": 17, "k": 251, "n": 1021}, dtype="bfloat16", view="transposed", viewed=1
    ),
    Case(
        name="attention_scores",
        group="contractions",
        build=batched_matmul,
        sizes={"batch": 12, "m": 128, "k": 64, "n": 128},
        tiny={"batch": 2, "m": 3, "k": 7, "n": 5},
        tolerance=16,
    ),
    Case(
        name="tiny_matmuls",
        group="contractions",
        build=batched_matmul,
        sizes={"batch": 512, "m": 8, "k": 8, "n": 8},
        tiny={"batch": 3, "m": 3, "k": 7, "n": 5},
        tolerance=16,
    ),
)
