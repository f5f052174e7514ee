"""Data on the move: running sums, transposes, rows looked up and added up."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

from hlo_mlc_bench.case import NEIGHBOUR_FIGURE, Case, Inputs, Workload, of_normals


def _sum_of_squares_of_sums(x: jax.Array) -> jax.Array:
    return jnp.sum(jnp.cumsum(x, axis=-1) ** 2)


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


def substituted_bytes(inputs: Inputs, *, height: int, width: int) -> Workload:
    """Each byte of an image looked up in a table, as tone curves and ciphers do."""
    table, image = inputs.places(256, 256), inputs.places(256, height, width)
    return lambda table, image: table[image], (table.astype("uint8"), image.astype("uint8"))


def interleaved_results(inputs: Inputs, *, size: int) -> Workload:
    """Three results for each element, one behind the other."""

    def function(x: jax.Array, y: jax.Array) -> jax.Array:
        return jnp.stack([x + y, x * y, x - y], axis=1).ravel()

    return function, (inputs.normal(size), inputs.normal(size))


def mirrored_edges(inputs: Inputs, *, height: int, width: int, channels: int) -> Workload:
    """An image with edges, as filters want it."""

    def function(x: jax.Array) -> jax.Array:
        return jnp.pad(x, ((4, 4), (4, 4), (0, 0)), mode="reflect")

    return function, (inputs.normal(height, width, channels),)


def random_crops(inputs: Inputs, *, images: int, size: int, channels: int) -> Workload:
    """Parts of images with edges, each at a place of its own, as training wants them."""

    def function(x: jax.Array, places: jax.Array) -> jax.Array:
        x = jnp.pad(x, ((0, 0), (4, 4), (4, 4), (0, 0)), mode="reflect")
        return jax.vmap(
            lambda image, place: jax.lax.dynamic_slice(
                image, (*place, jnp.zeros_like(place[0])), (size, size, channels)
            )
        )(x, places)

    return function, (inputs.normal(images, size, size, channels), inputs.places(9, images, 2))


def stacked_windows(inputs: Inputs, *, height: int, width: int, planes: int) -> Workload:
    """Sums around each place of some images, which become the channels of one."""

    def function(*images: jax.Array) -> jax.Array:
        return jax.lax.reduce_window(
            jnp.stack(images, -1), 0.0, jax.lax.add, (5, 5, 1), (1, 1, 1), "SAME"
        )

    return function, tuple(inputs.normal(height, width) for _ in range(planes))


_case = functools.partial(Case, group="movement")
_MATRIX = {"rows": 1024, "columns": 1024}
_TINY = {"rows": 5, "columns": 19}
_ODD = {"rows": 1021, "columns": 1019}
_TABLE = {"entries": 50_000, "width": 256, "tokens": 4096}
_TINY_TABLE = {"entries": 7, "width": 5, "tokens": 9}

CASES = (
    _case(
        "cumsum",
        of_normals(functools.partial(jnp.cumsum, axis=-1)),
        _MATRIX,
        tiny=_TINY,
        tolerance=8,
        figure=6.0,
    ).with_neighbours(odd=_ODD, dtype="bfloat16", view="transposed"),
    _case(
        "cumsum_leading",
        of_normals(functools.partial(jnp.cumsum, axis=0)),
        _MATRIX,
        tiny={"rows": 19, "columns": 5},
        tolerance=8,
        figure=6.0,
    ).with_neighbours(odd=_ODD, dtype="float64", view="transposed"),
    _case(
        "cumsum_flat",
        of_normals(jnp.cumsum),
        {"size": 1_000_000},
        tiny={"size": 37},
        tolerance=16,
        figure=6.0,
    ).with_neighbours(odd={"size": 999_983}, dtype="float64", view="strided"),
    _case(
        "cumsum_gradient",
        of_normals(jax.grad(_sum_of_squares_of_sums), scale=0.1),
        _MATRIX,
        tiny=_TINY,
        tolerance=16,
        figure=6.0,
    ).with_neighbours(odd=_ODD, dtype="float64", view="transposed"),
    _case(
        "cummax",
        of_normals(functools.partial(jax.lax.cummax, axis=1)),
        _MATRIX,
        tiny=_TINY,
        tolerance=0,
        figure=6.0,
    ).with_neighbours(odd=_ODD, dtype="bfloat16", view="transposed"),
    _case(
        "transpose",
        of_normals(jnp.transpose),
        {"rows": 2048, "columns": 2048},
        tiny=_TINY,
        tolerance=0,
        figure=3.0,
    ).with_neighbours(odd={"rows": 2047, "columns": 2045}, dtype="bfloat16", view="strided"),
    _case(
        "channels_first",
        of_normals(functools.partial(jnp.transpose, axes=(0, 3, 1, 2))),
        {"images": 16, "height": 56, "width": 56, "channels": 64},
        tiny={"images": 2, "height": 3, "width": 5, "channels": 7},
        tolerance=0,
        figure=1.5,
    ).with_neighbours(
        odd={"height": 55, "width": 53, "channels": 63}, dtype="bfloat16", view="strided"
    ),
    _case(
        "take", take, _TABLE, tiny=_TINY_TABLE, tolerance=0, figure=NEIGHBOUR_FIGURE
    ).with_neighbours(
        odd={"entries": 49_999, "width": 251, "tokens": 4093}, dtype="bfloat16", view="strided"
    ),
    _case(
        "one_hot",
        one_hot,
        {"entries": 1024, "tokens": 1024},
        tiny={"entries": 7, "tokens": 9},
        tolerance=1,
    ),
    _case(
        "segment_sum",
        segment_sum,
        {"segments": 1000, "rows": 100_000, "width": 64},
        tiny={"segments": 4, "rows": 9, "width": 5},
        tolerance=32,
    ),
    _case(
        "histogram",
        histogram,
        {"size": 1 << 18, "bins": 64},
        tiny={"size": 37, "bins": 8},
        tolerance=0,
    ),
    _case(
        "interleaved_results",
        interleaved_results,
        {"size": 300_000},
        tiny={"size": 37},
        tolerance=1,
        figure=2.0,
    ).with_neighbours(odd={"size": 299_993}, dtype="bfloat16", view="strided"),
    _case(
        "mirrored_edges",
        mirrored_edges,
        {"height": 600, "width": 800, "channels": 3},
        tiny={"height": 7, "width": 9, "channels": 3},
        tolerance=0,
        figure=1.0,
    ).with_neighbours(odd={"height": 599, "width": 797}, dtype="bfloat16", view="strided"),
    _case(
        "packed_flags",
        of_normals(lambda x: jnp.packbits(x > 1)),
        {"size": 1 << 20},
        tiny={"size": 37},
        tolerance=0,
    ),
    _case(
        "substituted_bytes",
        substituted_bytes,
        {"height": 480, "width": 641},
        tiny={"height": 3, "width": 37},
        tolerance=0,
    ),
    _case(
        "random_crops",
        random_crops,
        {"images": 128, "size": 32, "channels": 3},
        tiny={"images": 2, "size": 7, "channels": 3},
        tolerance=0,
        figure=1.0,
    ).with_neighbours(odd={"images": 127, "size": 31}, dtype="bfloat16", view="strided"),
    _case(
        "stacked_windows",
        stacked_windows,
        {"height": 60, "width": 80, "planes": 16},
        tiny={"height": 7, "width": 9, "planes": 3},
        tolerance=16,
        figure=2.0,
    ).with_neighbours(
        odd={"height": 59, "width": 79, "planes": 15}, dtype="float64", view="transposed"
    ),
    _case("embedding_gradient", embedding_gradient, _TABLE, tiny=_TINY_TABLE, tolerance=16),
)
