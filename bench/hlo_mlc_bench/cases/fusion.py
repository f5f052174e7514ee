"""Small programs in which a number or a question decides what is computed together: what shows
those of `partition/` that no other group comes near to (`scripts/thresholds.py`)."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

from hlo_mlc_bench.case import Case, Inputs, Workload
from hlo_mlc_bench.cases.issues import roughness


def logistic_step(inputs: Inputs, *, samples: int, features: int) -> Workload:
    """The gradient of a logistic regression: a matrix folded along its rows, then its columns."""

    def function(x: jax.Array, weight: jax.Array, y: jax.Array) -> jax.Array:
        return (jax.nn.sigmoid(x @ weight) - y) @ x / samples

    return function, (
        inputs.normal(samples, features),
        inputs.normal(features, scale=features**-0.5),
        inputs.uniform(samples),
    )


def spreads(inputs: Inputs, *, rows: int, columns: int) -> Workload:
    """How far the elements of each row and of each column lie from their mean."""

    def function(x: jax.Array, rows: jax.Array, columns: jax.Array) -> tuple[jax.Array, jax.Array]:
        apart = jnp.sum(jnp.square(x - rows[:, None]) * 0.5 + 1.0, 1)
        return apart, jnp.sum(jnp.square(x - columns), 0)

    return function, (inputs.normal(rows, columns), inputs.normal(rows), inputs.normal(columns))


def frequencies(inputs: Inputs, *, rows: int, columns: int, count: int) -> Workload:
    """Phases at many frequencies side by side, as encodings of positions take them."""

    def function(x: jax.Array) -> jax.Array:
        return jnp.concatenate([x * (k + 0.5) for k in range(count)], 1)

    return function, (inputs.normal(rows, columns),)


def captured_head(inputs: Inputs, *, rows: int, depth: int, columns: int) -> Workload:
    """A product with weights that the function has closed over."""
    weight = inputs.weight(depth, columns)
    return lambda x: jnp.tanh(x @ weight), (inputs.normal(rows, depth),)


def middle_pairs(inputs: Inputs, *, rows: int, columns: int) -> Workload:
    """The median of rows of even length."""
    half = columns // 2
    return lambda x: jnp.sort(x, axis=-1)[:, half - 1 : half + 1].mean(-1), (
        inputs.uniform(rows, columns),
    )


def scaled_weights(inputs: Inputs, *, m: int, k: int, n: int) -> Workload:
    """A product of some rows with weights of 8 bits, each column with an origin and a scale."""

    def function(x: jax.Array, weight: jax.Array, origin: jax.Array, scale: jax.Array) -> jax.Array:
        return x @ ((weight.astype(x.dtype) - origin) * scale)

    weight = jnp.floor(inputs.uniform(k, n, low=-128, high=128)).astype("int8")
    return function, (inputs.normal(m, k), weight, inputs.uniform(n), inputs.uniform(n, high=0.01))


def looked_up_rows(inputs: Inputs, *, words: int, rows: int, each: int, width: int) -> Workload:
    """Rows of a table, added to a few rows each."""

    def function(x: jax.Array, table: jax.Array, words: jax.Array) -> jax.Array:
        return x + table[words][:, None]

    return function, (
        inputs.normal(rows, each, width),
        inputs.normal(words, width),
        inputs.places(words, rows),
    )


def edge_sums(inputs: Inputs, *, nodes: int, edges: int) -> Workload:
    """What attention over the edges of a graph is divided by, for each receiver."""

    def function(scores: jax.Array, highest: jax.Array, receivers: jax.Array) -> jax.Array:
        return jax.ops.segment_sum(jnp.exp(scores - highest[receivers]), receivers, nodes)

    return function, (inputs.normal(edges), inputs.normal(nodes), inputs.places(nodes, edges))


def elements(inputs: Inputs, *, nodes: int, elements: int, corners: int) -> Workload:
    """The forces of finite elements: small matrices times what their corners have."""

    def function(stiffness: jax.Array, u: jax.Array, mesh: jax.Array) -> jax.Array:
        return jnp.einsum("eij,ej->ei", stiffness, jnp.take(u, mesh, mode="clip"))

    return function, (
        inputs.normal(elements, corners, corners),
        inputs.normal(nodes),
        inputs.places(nodes, elements, corners),
    )


def joined_features(inputs: Inputs, *, rows: int, one: int, other: int, columns: int) -> Workload:
    """A layer of few outputs over features of two origins."""

    def function(x: jax.Array, y: jax.Array, weight: jax.Array) -> jax.Array:
        return jnp.concatenate((x, y), axis=1) @ weight

    return function, (
        inputs.normal(rows, one),
        inputs.normal(rows, other),
        inputs.weight(one + other, columns),
    )


def many_leaves(inputs: Inputs, *, leaves: int, size: int) -> Workload:
    """A step of descent for a model of many small parameters."""

    def function(parameters: list[jax.Array], gradients: list[jax.Array]) -> list[jax.Array]:
        return [p - 0.1 * g for p, g in zip(parameters, gradients, strict=True)]

    return function, tuple([inputs.normal(size + n) for n in range(leaves)] for _ in range(2))


def written_in_turn(inputs: Inputs, *, steps: int, width: int) -> Workload:
    """A loop that is written out: each trip sets a row, of those before it."""

    def function(x: jax.Array, places: jax.Array) -> jax.Array:
        for n in range(steps):
            x = x.at[places[n]].add(jnp.sin(x[n]))
        return x

    return function, (inputs.normal(steps, width), inputs.places(steps, steps))


def process(inputs: Inputs, *, points: int, size: int) -> Workload:
    """The likelihood of a Gaussian process."""

    def function(x: jax.Array, y: jax.Array) -> jax.Array:
        distances = jnp.sum((x[:, None] - x[None]) ** 2, -1)
        lower = jnp.linalg.cholesky(jnp.exp(-distances / 2) + jnp.eye(points))
        weights = jax.scipy.linalg.cho_solve((lower, True), y)
        return y @ weights / 2 + jnp.sum(jnp.log(jnp.diagonal(lower)))

    return function, (inputs.normal(points, size), inputs.normal(points))


def whitened(inputs: Inputs, *, rows: int, columns: int) -> Workload:
    """Samples without the correlations of their columns."""

    def function(x: jax.Array) -> jax.Array:
        x = x - x.mean(0)
        values, vectors = jnp.linalg.eigh(x.T @ x / rows)
        return x @ (vectors / jnp.sqrt(values + 1)) @ vectors.T

    return function, (inputs.normal(rows, columns),)


def turned_at_random(inputs: Inputs, *, size: int, points: int) -> Workload:
    """Points turned by the orthogonal factor of a matrix."""
    return lambda x, points: jnp.linalg.qr(x)[0] @ points, (
        inputs.normal(size, size),
        inputs.normal(size, points),
    )


def bilateral(inputs: Inputs, *, size: int, reach: int) -> Workload:
    """An image smoothed but for its edges: neighbours count as far as they are alike."""
    width = 2 * reach + 1

    def function(image: jax.Array) -> jax.Array:
        around = jnp.pad(image, reach, mode="edge")
        total, weights = jnp.zeros_like(image), jnp.zeros_like(image)
        for row in range(width):
            for column in range(width):
                near = around[row : row + size, column : column + size]
                weight = jnp.exp(-jnp.square(near - image))
                total, weights = total + weight * near, weights + weight
        return total / weights

    return function, (inputs.uniform(size, size),)


def scrambled(inputs: Inputs, *, rows: int, narrow: int, wide: int, turns: int) -> Workload:
    """A narrow and a wide image, rolled along both axes in turn."""

    def function(*images: jax.Array) -> tuple[jax.Array, ...]:
        for turn in range(turns):
            images = tuple(jnp.roll(x, turn % 5 + 1, turn % 2) for x in images)
        return images

    return function, (inputs.normal(rows, narrow), inputs.normal(rows, wide))


def mirrored_columns(inputs: Inputs, *, images: int, size: int, channels: int) -> Workload:
    """Images that go on as if in a mirror beyond their left and right edges."""

    def function(x: jax.Array) -> jax.Array:
        return jnp.pad(x, ((0, 0), (0, 0), (4, 4), (0, 0)), mode="reflect")

    return function, (inputs.normal(images, size, size, channels),)


def limited_flux(inputs: Inputs, *, size: int) -> Workload:
    """Diffusion against the fourth derivative, where that does not steepen what it smooths."""

    def function(x: jax.Array) -> jax.Array:
        laplacian = 4 * x[1:-1] - x[2:] - x[:-2]
        flux = laplacian[1:] - laplacian[:-1]
        flux = jnp.where(flux * (x[2:-1] - x[1:-2]) > 0, 0, flux)
        return x[2:-2] - flux[1:] + flux[:-1]

    return function, (inputs.normal(size),)


def found_pairs(inputs: Inputs, *, points: int, found: int) -> Workload:
    """The differences of all pairs of points that are looked up."""

    def function(x: jax.Array, places: jax.Array) -> jax.Array:
        some = x[places]
        return jnp.sin(some[:, None] - some)

    return function, (inputs.normal(points), inputs.places(points, found))


def scattered_columns(
    inputs: Inputs, *, planes: int, columns: int, width: int, segments: int
) -> Workload:
    """The columns of planes, added up by segments."""

    def function(x: jax.Array, segment: jax.Array) -> jax.Array:
        return jax.ops.segment_sum(x.swapaxes(0, 1), segment, segments)

    return function, (inputs.normal(planes, columns, width), inputs.places(segments, columns))


_case = functools.partial(Case, group="fusion", tolerance=32)

CASES = (
    _case(
        "logistic_step",
        logistic_step,
        {"samples": 1000, "features": 8000},
        tiny={"samples": 7, "features": 5},
    ),
    _case("spreads", spreads, {"rows": 60, "columns": 500}, tiny={"rows": 5, "columns": 7}),
    _case(
        "spreads_in_f64",
        spreads,
        {"rows": 60, "columns": 500},
        tiny={"rows": 5, "columns": 7},
        dtype="float64",
    ),
    _case("small_volume", roughness, {"size": 61}, tiny={"size": 5}),
    _case(
        "captured_head",
        captured_head,
        {"rows": 4, "depth": 512, "columns": 64},
        tiny={"rows": 3, "depth": 7, "columns": 5},
    ),
    _case(
        "middle_pairs", middle_pairs, {"rows": 2, "columns": 1000}, tiny={"rows": 2, "columns": 8}
    ),
    _case(
        "scaled_weights",
        scaled_weights,
        {"m": 16, "k": 256, "n": 512},
        tiny={"m": 3, "k": 7, "n": 5},
    ),
    _case(
        "looked_up_rows",
        looked_up_rows,
        {"words": 1000, "rows": 500, "each": 3, "width": 64},
        tiny={"words": 9, "rows": 5, "each": 3, "width": 7},
    ),
    _case("edge_sums", edge_sums, {"nodes": 2000, "edges": 9000}, tiny={"nodes": 9, "edges": 25}),
    _case(
        "elements",
        elements,
        {"nodes": 1000, "elements": 2000, "corners": 8},
        tiny={"nodes": 9, "elements": 5, "corners": 3},
    ),
    _case(
        "joined_features",
        joined_features,
        {"rows": 3000, "one": 4, "other": 5, "columns": 3},
        tiny={"rows": 7, "one": 2, "other": 3, "columns": 3},
    ),
    _case("many_leaves", many_leaves, {"leaves": 80, "size": 16}, tiny={"leaves": 5, "size": 3}),
    _case(
        "written_in_turn",
        written_in_turn,
        {"steps": 24, "width": 32},
        tiny={"steps": 5, "width": 3},
    ),
    _case("process", process, {"points": 200, "size": 3}, tiny={"points": 5, "size": 3}),
    _case("whitened", whitened, {"rows": 2000, "columns": 100}, tiny={"rows": 7, "columns": 3}),
    _case(
        "turned_at_random",
        turned_at_random,
        {"size": 800, "points": 20},
        tiny={"size": 5, "points": 3},
    ),
    _case(
        "frequencies",
        frequencies,
        {"rows": 64, "columns": 512, "count": 16},
        tiny={"rows": 3, "columns": 5, "count": 9},
    ),
    _case(
        "scrambled",
        scrambled,
        {"rows": 32, "narrow": 32, "wide": 512, "turns": 12},
        tiny={"rows": 5, "narrow": 3, "wide": 7, "turns": 5},
    ),
    _case("bilateral", bilateral, {"size": 256, "reach": 3}, tiny={"size": 9, "reach": 1}),
    _case(
        "mirrored_columns",
        mirrored_columns,
        {"images": 128, "size": 32, "channels": 3},
        tiny={"images": 2, "size": 7, "channels": 3},
    ),
    _case("limited_flux", limited_flux, {"size": 4_000_000}, tiny={"size": 37}),
    _case(
        "found_pairs", found_pairs, {"points": 5000, "found": 1000}, tiny={"points": 9, "found": 7}
    ),
    _case(
        "scattered_columns",
        scattered_columns,
        {"planes": 64, "columns": 2000, "width": 8, "segments": 500},
        tiny={"planes": 3, "columns": 9, "width": 2, "segments": 5},
    ),
    _case(  # of which little lies side by side
        "scattered_corners",
        scattered_columns,
        {"planes": 128, "columns": 2000, "width": 4, "segments": 500},
        tiny={"planes": 3, "columns": 9, "width": 2, "segments": 5},
    ),
    _case(  # of which nothing does
        "scattered_elements",
        scattered_columns,
        {"planes": 512, "columns": 2000, "width": 1, "segments": 500},
        tiny={"planes": 3, "columns": 9, "width": 1, "segments": 5},
    ),
)
