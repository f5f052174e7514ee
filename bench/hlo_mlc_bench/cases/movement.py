"""Data on the move: running sums, transposes, rows looked up and added up."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from hlo_mlc_bench.case import NEIGHBOUR_FIGURE, Case, Inputs, Workload


def cumsum(inputs: Inputs, *, rows: int, columns: int) -> Workload:
    def function(x: jax.Array) -> jax.Array:
        return jnp.cumsum(x, axis=-1)

    return function, (inputs.normal(rows, columns),)


def cumsum_leading(inputs: Inputs, *, rows: int, columns: int) -> Workload:
    def function(x: jax.Array) -> jax.Array:
        return jnp.cumsum(x, axis=0)

    return function, (inputs.normal(rows, columns),)


def cumsum_flat(inputs: Inputs, *, size: int) -> Workload:
    def function(x: jax.Array) -> jax.Array:
        return jnp.cumsum(x)

    return function, (inputs.normal(size),)


def cumsum_gradient(inputs: Inputs, *, rows: int, columns: int) -> Workload:
    def loss(x: jax.Array) -> jax.Array:
        return jnp.sum(jnp.cumsum(x, axis=-1) ** 2)

    return jax.grad(loss), (inputs.normal(rows, columns, scale=0.1),)


def cummax(inputs: Inputs, *, rows: int, columns: int) -> Workload:
    def function(x: jax.Array) -> jax.Array:
        return jax.lax.cummax(x, axis=1)

    return function, (inputs.normal(rows, columns),)


def transpose(inputs: Inputs, *, rows: int, columns: int) -> Workload:
    def function(x: jax.Array) -> jax.Array:
        return x.T

    return function, (inputs.normal(rows, columns),)


def channels_first(
    inputs: Inputs, *, images: int, height: int, width: int, channels: int
) -> Workload:
    def function(x: jax.Array) -> jax.Array:
        return jnp.transpose(x, (0, 3, 1, 2))

    return function, (inputs.normal(images, height, width, channels),)


def take(inputs: Inputs, *, entries: int, width: int, tokens: int) -> Workload:
    """Rows of an embedding table."""

    def function(table: jax.Array, places: jax.Array) -> jax.Array:
        return table[places]

    return function, (inputs.normal(entries, width), inputs.places(entries, tokens))


def one_hot(inputs: Inputs, *, entries: int, tokens: int) -> Workload:
    """One-hot vectors, smoothed as labels are."""

    def function(scale: jax.Array, places: jax.Array) -> jax.Array:
        return jax.nn.one_hot(places, entries, dtype=scale.dtype) * scale[:, None] + 0.01

    return function, (inputs.normal(tokens), inputs.places(entries, tokens))


def segment_sum(inputs: Inputs, *, segments: int, rows: int, width: int) -> Workload:
    def function(x: jax.Array, places: jax.Array) -> jax.Array:
        return jax.ops.segment_sum(x, places, segments)

    return function, (inputs.normal(rows, width), inputs.places(segments, rows))


def embedding_gradient(inputs: Inputs, *, entries: int, width: int, tokens: int) -> Workload:
    def loss(table: jax.Array, places: jax.Array) -> jax.Array:
        return jnp.sum(table[places] ** 2)

    return jax.grad(loss), (inputs.normal(entries, width), inputs.places(entries, tokens))


def histogram(inputs: Inputs, *, size: int, bins: int) -> Workload:
    """How many values fall into each bin of the same width."""

    def function(x: jax.Array) -> jax.Array:
        places = jnp.clip(jnp.floor((x + 4) * (bins / 8)), 0, bins - 1).astype(jnp.int32)
        return jnp.zeros(bins, jnp.int32).at[places].add(1)

    # Whole numbers and a half, away from where bins meet.
    return function, ((jnp.round(inputs.normal(size) * bins) + 0.5) / bins,)


CASES = (
    Case(
        name="cumsum",
        group="movement",
        build=cumsum,
        sizes={"rows": 1024, "columns": 1024},
        tiny={"rows": 5, "columns": 19},
        tolerance=8,
        figure=6.0,
    ).with_neighbours(odd={"rows": 1021, "columns": 1019}, dtype="bfloat16", view="transposed"),
    Case(
        name="cumsum_leading",
        group="movement",
        build=cumsum_leading,
        sizes={"rows": 1024, "columns": 1024},
        tiny={"rows": 19, "columns": 5},
        tolerance=8,
        figure=6.0,
    ).with_neighbours(odd={"rows": 1021, "columns": 1019}, dtype="float64", view="transposed"),
    Case(
        name="cumsum_flat",
        group="movement",
        build=cumsum_flat,
        sizes={"size": 1_000_000},
        tiny={"size": 37},
        tolerance=16,
        figure=6.0,
    ).with_neighbours(odd={"size": 999_983}, dtype="float64", view="strided"),
    Case(
        name="cumsum_gradient",
        group="movement",
        build=cumsum_gradient,
        sizes={"rows": 1024, "columns": 1024},
        tiny={"rows": 5, "columns": 19},
        tolerance=16,
        figure=6.0,
    ).with_neighbours(odd={"rows": 1021, "columns": 1019}, dtype="float64", view="transposed"),
    Case(
        name="cummax",
        group="movement",
        build=cummax,
        sizes={"rows": 1024, "columns": 1024},
        tiny={"rows": 5, "columns": 19},
        tolerance=0,
        figure=6.0,
    ).with_neighbours(odd={"rows": 1021, "columns": 1019}, dtype="bfloat16", view="transposed"),
    Case(
        name="transpose",
        group="movement",
        build=transpose,
        sizes={"rows": 2048, "columns": 2048},
        tiny={"rows": 5, "columns": 19},
        tolerance=0,
        figure=3.0,
    ).with_neighbours(odd={"rows": 2047, "columns": 2045}, dtype="bfloat16", view="strided"),
    Case(
        name="channels_first",
        group="movement",
        build=channels_first,
        sizes={"images": 16, "height": 56, "width": 56, "channels": 64},
        tiny={"images": 2, "height": 3, "width": 5, "channels": 7},
        tolerance=0,
        figure=1.5,
    ).with_neighbours(
        odd={"height": 55, "width": 53, "channels": 63}, dtype="bfloat16", view="strided"
    ),
    Case(
        name="take",
        group="movement",
        build=take,
        sizes={"entries": 50_000, "width": 256, "tokens": 4096},
        tiny={"entries": 7, "width": 5, "tokens": 9},
        tolerance=0,
        figure=NEIGHBOUR_FIGURE,
    ).with_neighbours(
        odd={"entries": 49_999, "width": 251, "tokens": 4093}, dtype="bfloat16", view="strided"
    ),
    Case(
        name="one_hot",
        group="movement",
        build=one_hot,
        sizes={"entries": 1024, "tokens": 1024},
        tiny={"entries": 7, "tokens": 9},
        tolerance=1,
    ),
    Case(
        name="segment_sum",
        group="movement",
        build=segment_sum,
        sizes={"segments": 1000, "rows": 100_000, "width": 64},
        tiny={"segments": 4, "rows": 9, "width": 5},
        tolerance=32,
    ),
    Case(
        name="histogram",
        group="movement",
        build=histogram,
        sizes={"size": 1 << 18, "bins": 64},
        tiny={"size": 37, "bins": 8},
        tolerance=0,
    ),
    Case(
        name="embedding_gradient",
        group="movement",
        build=embedding_gradient,
        sizes={"entries": 50_000, "width": 256, "tokens": 4096},
        tiny={"entries": 7, "width": 5, "tokens": 9},
        tolerance=16,
    ),
)
