"""Programs that users reported slow or wrong on CPUs, rebuilt in our words from the threads."""

from __future__ import annotations

import functools
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from hlo_mlc_bench.case import Case, Inputs, Workload, of_normals, of_uniforms
from hlo_mlc_bench.cases.linear_algebra import of_matrices


def scalar_leaves(inputs: Inputs, *, leaves: int, steps: int) -> Workload:
    """Gradients through a filter of nodes above each other, whose means and precisions are carried
    as so many scalars."""
    nodes = leaves // 2

    def filtered(state: Mapping[str, jax.Array], observed: jax.Array) -> jax.Array:
        def step(state: Mapping[str, jax.Array], value: jax.Array) -> tuple:
            following, surprise, weight = {}, 0.0, 1.0
            for node in range(nodes):
                mean, precision = state[f"mean {node}"], state[f"precision {node}"]
                precision = 1 / (1 / precision + jnp.exp(0.1 * mean - 3))
                error = value - mean
                surprise += 0.5 * (precision * error**2 - jnp.log(precision))
                mean += weight / (precision + weight) * error
                following |= {f"mean {node}": mean, f"precision {node}": precision + weight}
                value, weight = mean, precision / (precision + weight)
            return following, surprise

        return jnp.sum(lax.scan(step, state, observed)[1])

    state = {
        f"{name} {node}": inputs.uniform(low=0.5, high=1.5)
        for node in range(nodes)
        for name in ("mean", "precision")
    }
    return lambda state, observed: jax.grad(filtered)(state, observed), (
        state,
        inputs.normal(steps),
    )


def small_carry(inputs: Inputs, *, steps: int, width: int) -> Workload:
    """The Cholesky factor of a quasiseparable matrix: a scan that carries one small matrix."""

    def function(d: jax.Array, p: jax.Array, q: jax.Array, a: jax.Array) -> tuple:
        def step(f: jax.Array, row: tuple[jax.Array, ...]) -> tuple:
            d, p, q, a = row
            behind = f @ p
            c = jnp.sqrt(d - p @ behind)
            w = (q - a @ behind) / c
            return a @ f @ a.T + jnp.outer(w, w), (c, w)

        return lax.scan(step, jnp.zeros((width, width), d.dtype), (d, p, q, a))[1]

    vectors = (inputs.normal(steps, width, scale=0.3) for _ in range(2))
    return function, (
        inputs.uniform(steps, low=4.0, high=5.0),
        *vectors,
        inputs.normal(steps, width, width, scale=0.25),
    )


def element_by_element(inputs: Inputs, *, steps: int) -> Workload:
    """A series that is written into an array, one element a trip."""

    def function(shocks: jax.Array) -> jax.Array:
        def step(t: int, series: jax.Array) -> jax.Array:
            return series.at[t + 1].set(0.9 * series[t] + shocks[t])

        return lax.fori_loop(0, steps, step, jnp.zeros(steps + 1, shocks.dtype))

    return function, (inputs.normal(steps),)


def popped(inputs: Inputs, *, size: int, moved: int, steps: int) -> Workload:
    """Each trip takes an element out of a long array; some of those behind it move up."""

    def function(array: jax.Array, places: jax.Array) -> tuple[jax.Array, jax.Array]:
        def step(array: jax.Array, place: jax.Array) -> tuple[jax.Array, jax.Array]:
            behind = lax.dynamic_slice(array, (place + 1,), (moved,))
            return lax.dynamic_update_slice(array, behind, (place,)), array[place]

        return lax.scan(step, array, places)

    return function, (inputs.normal(size), inputs.places(size - moved, steps))


def gradients_of_updates(inputs: Inputs, *, steps: int, width: int) -> Workload:
    """Gradients through a loop that writes matrices into an array and reads the one before."""

    def last(first: jax.Array) -> jax.Array:
        def step(kept: jax.Array, t: jax.Array) -> tuple[jax.Array, None]:
            return kept.at[t].set(jnp.sin(kept[t - 1])), None

        kept = jnp.concatenate([first[None], jnp.zeros((steps, width, width), first.dtype)])
        return jnp.sum(lax.scan(step, kept, jnp.arange(1, steps + 1))[0][-1])

    return lambda first: jax.grad(last)(first), (inputs.normal(width, width),)


def fits(inputs: Inputs, *, matrices: int, size: int) -> Workload:
    """Many small least squares fits by their normal equations. The gradients that the thread times
    as well are left out: with two cores, jax.jit of JAX 0.10.2 waits for ever in them."""

    def function(a: jax.Array, b: jax.Array) -> jax.Array:
        across = a.swapaxes(-1, -2)
        return jnp.linalg.solve(across @ a + jnp.eye(size, dtype=a.dtype), across @ b)

    return function, (inputs.normal(matrices, size, size), inputs.normal(matrices, size, 1))


def particles(inputs: Inputs, *, particles: int) -> Workload:
    """Positions, velocities and radii in the order of their cells, of which most are in order."""

    def function(cells: jax.Array, *of_each: jax.Array) -> tuple[jax.Array, ...]:
        order = jnp.argsort(cells)
        return cells[order], *(x[order] for x in of_each)

    cells = jnp.arange(particles, dtype=jnp.int32) + inputs.places(32, particles)
    return function, (
        cells,
        inputs.normal(particles, 3),
        inputs.normal(particles, 3),
        inputs.uniform(particles),
    )


def nearest(inputs: Inputs, *, points: int, count: int) -> Workload:
    """The places of the smallest distances, counted from one, the largest of them first."""

    def function(distances: jax.Array) -> jax.Array:
        return lax.top_k(-distances, count)[1][::-1] + 1

    return function, (inputs.uniform(points),)


def synthesis(inputs: Inputs, *, signals: int, frames: int, channels: int, hop: int) -> Workload:
    """Signals out of frames: a transposed convolution whose windows overlap by half."""

    def function(x: jax.Array, windows: jax.Array) -> jax.Array:
        return lax.conv_transpose(
            x, windows, (hop,), "VALID", dimension_numbers=("NWC", "WIO", "NWC")
        )

    return function, (
        inputs.normal(signals, frames, channels),
        inputs.normal(2 * hop, channels, 1, scale=channels**-0.5),
    )


def upsampled(inputs: Inputs, *, size: int, channels: int) -> Workload:
    """The gradient of a transposed convolution of volumes for its kernel."""

    def loss(kernel: jax.Array, x: jax.Array) -> jax.Array:
        y = lax.conv_general_dilated(x, kernel, (1, 1, 1), [(1, 2)] * 3, lhs_dilation=(2, 2, 2))
        return jnp.mean(y**2)

    return lambda kernel, x: jax.grad(loss)(kernel, x), (
        inputs.normal(1, channels, 3, 3, 3, scale=channels**-0.5),
        inputs.normal(1, channels, size, size, size),
    )


def roughness(inputs: Inputs, *, size: int) -> Workload:
    """The squared differences of neighbours in a volume, summed up, and their gradient."""

    def rough(x: jax.Array) -> jax.Array:
        return sum(jnp.sum(jnp.square(jnp.diff(x, axis=axis))) for axis in range(x.ndim))

    return lambda x: jax.value_and_grad(rough)(x), (inputs.normal(size, size, size),)


def _turned(angle: jax.Array, across: int) -> jax.Array:
    """A link: one length along, and a turn about an axis."""
    cos, sin, one, nil = jnp.cos(angle), jnp.sin(angle), jnp.ones_like(angle), angle * 0
    rows = (
        [[cos, -sin, nil, one], [sin, cos, nil, nil], [nil, nil, one, nil]]
        if across % 2
        else [[cos, nil, sin, one], [nil, one, nil, nil], [-sin, nil, cos, nil]]
    )
    return jnp.stack([jnp.stack(row) for row in (*rows, [nil, nil, nil, one])])


def _inertia(angles: jax.Array) -> jax.Array:
    """The mass matrix of an arm of links, whose places are found one after the other."""
    joints = angles.shape[0]
    places = jnp.zeros((joints, 4, 4), angles.dtype)
    for joint in range(joints):
        before = places[joint - 1] if joint else jnp.eye(4, dtype=angles.dtype)
        places = places.at[joint].set(before @ _turned(angles[joint], joint))
    axes = jnp.stack([places[joint, :3, 2 if joint % 2 else 1] for joint in range(joints)])
    apart = places[:, None, :3, 3] - places[None, :, :3, 3]
    moves = jnp.cross(axes[None], apart) * jnp.tri(joints, dtype=angles.dtype)[..., None]
    return jnp.einsum("bic,bjc->ij", moves, moves) + jnp.eye(joints, dtype=angles.dtype)


def mass_matrix(inputs: Inputs, *, joints: int) -> Workload:
    """The mass matrix of one arm: thousands of operations on a few numbers each."""
    return lambda angles: _inertia(angles), (inputs.uniform(joints, low=-1.0, high=1.0),)


def swinging_arm(inputs: Inputs, *, joints: int, steps: int) -> Workload:
    """A scan over the motion of an arm: its mass matrix and a solve in each step."""

    def function(angles: jax.Array, forces: jax.Array) -> jax.Array:
        def step(state: tuple, force: jax.Array) -> tuple:
            angles, speeds = state
            factor = jax.scipy.linalg.cho_factor(_inertia(angles))
            pull = force - 0.1 * speeds - jnp.sin(angles)
            speeds = speeds + 1e-2 * jax.scipy.linalg.cho_solve(factor, pull)
            return (angles + 1e-2 * speeds, speeds), angles

        return lax.scan(step, (angles, jnp.zeros_like(angles)), forces)[1]

    return function, (inputs.uniform(joints, low=-1.0, high=1.0), inputs.normal(steps, joints))


def neurons(inputs: Inputs, *, compartments: int, steps: int) -> Workload:
    """A cable with channels that open and close by the voltage, as simulators of neurons have."""

    def rates(v: jax.Array) -> tuple[tuple[jax.Array, jax.Array], ...]:
        return (
            (1 / (1 + jnp.exp(-(v + 40) / 9)), 0.3 + 0.2 * jnp.exp(-(((v + 50) / 20) ** 2))),
            (1 / (1 + jnp.exp((v + 62) / 7)), 1 + 8 * jnp.exp(-(((v + 60) / 25) ** 2))),
            (1 / (1 + jnp.exp(-(v + 53) / 16)), 1 + 5 * jnp.exp(-(((v + 70) / 30) ** 2))),
        )

    def function(v: jax.Array, currents: jax.Array) -> jax.Array:
        def step(state: tuple, current: jax.Array) -> tuple:
            v, gates = state
            gates = tuple(
                limit + (gate - limit) * jnp.exp(-0.025 / constant)
                for gate, (limit, constant) in zip(gates, rates(v), strict=True)
            )
            m, h, n = gates
            inward = 120 * m**3 * h * (50 - v) + 36 * n**4 * (-77 - v) + 0.3 * (-54 - v)
            padded = jnp.pad(v, 1, mode="edge")
            along = 20 * (padded[:-2] - 2 * v + padded[2:])
            v = v + 0.025 * (inward + along).at[0].add(current)
            return (v, gates), v[-1]

        gates = tuple(limit for limit, _ in rates(v))
        return lax.scan(step, (v, gates), currents)[1]

    return function, (
        inputs.uniform(compartments, low=-66.0, high=-64.0),
        inputs.uniform(steps, low=0.0, high=10.0),
    )


def now_and_then(inputs: Inputs, *, size: int, steps: int) -> Workload:
    """Each eighth step changes what is carried; the others pass it on as it is."""

    def function(weights: jax.Array, moments: jax.Array, given: jax.Array) -> tuple:
        def change(state: tuple, by: jax.Array) -> tuple:
            weights, moments = state
            moments = 0.9 * moments + by * weights
            return weights - 1e-2 * moments, moments

        def step(state: tuple, numbered: tuple) -> tuple:
            number, by = numbered
            state = lax.cond(number % 8 == 0, change, lambda state, by: state, state, by)
            return state, state[0][0, 0] * by

        return lax.scan(step, (weights, moments), (jnp.arange(steps), given))

    return function, (inputs.normal(size, size), inputs.normal(size, size), inputs.normal(steps))


def climbing(inputs: Inputs, *, steps: int) -> Workload:
    """A loop of two numbers that goes on until it has seen the largest of an array."""

    def function(heights: jax.Array) -> tuple[jax.Array, jax.Array]:
        top = jnp.max(heights)

        def step(state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            highest, place = state
            return jnp.maximum(highest, heights[place]), place + 1

        return lax.while_loop(lambda state: state[0] < top, step, (heights[0], 0))

    return function, (jnp.sort(inputs.uniform(steps)),)


def running_differences(inputs: Inputs, *, rows: int, columns: int) -> Workload:
    """What is odd of all bits up to a row."""
    return lambda x: jnp.bitwise_xor.accumulate(x, axis=0), (inputs.places(1 << 31, rows, columns),)


def sums_by_receiver(inputs: Inputs, *, batch: int, edges: int, nodes: int) -> Workload:
    """Messages summed up for each node, in a batch whose axis comes last in the result."""

    def function(messages: jax.Array, receivers: jax.Array) -> jax.Array:
        summed = functools.partial(jax.ops.segment_sum, num_segments=nodes)
        return jax.vmap(summed, in_axes=(0, None), out_axes=1)(messages, receivers)

    return function, (inputs.normal(batch, edges), inputs.places(nodes, edges))


def triangles(inputs: Inputs, *, matrices: int, size: int) -> Workload:
    """Vectors written into lower triangles, by places known when it is compiled."""

    def function(vectors: jax.Array) -> jax.Array:
        rows, columns = np.tril_indices(size)
        zeros = jnp.zeros((matrices, size, size), vectors.dtype)
        return zeros.at[:, rows, columns].add(vectors)

    return function, (inputs.normal(matrices, size * (size + 1) // 2),)


def interleaved(inputs: Inputs, *, size: int) -> Workload:
    """Every other element of every other row and column is another's: refinement of a grid."""

    def function(x: jax.Array, coarse: jax.Array) -> jax.Array:
        x = x.at[::2, ::2].set(coarse)
        x = x.at[1:-1:2, ::2].set(0.5 * (x[:-2:2, ::2] + x[2::2, ::2]))
        return x.at[:, 1:-1:2].add(0.5 * (x[:, :-2:2] + x[:, 2::2]))

    return function, (inputs.normal(2 * size + 1, 2 * size + 1), inputs.normal(size + 1, size + 1))


def rows_set(inputs: Inputs, *, rows: int, columns: int, changed: int) -> Workload:
    """A few rows of a large array are set to the same."""

    def function(x: jax.Array, places: jax.Array, row: jax.Array) -> jax.Array:
        return x.at[places].set(row)

    return function, (
        inputs.normal(rows, columns),
        inputs.places(rows, changed),
        inputs.normal(columns),
    )


def histogram(inputs: Inputs, *, values: int, bins: int) -> Workload:
    """How many values lie between two of the given edges each."""

    def function(x: jax.Array, edges: jax.Array) -> jax.Array:
        return jnp.histogram(x, edges)[0]

    return function, (inputs.uniform(values), jnp.linspace(0, 1, bins + 1, dtype=inputs.dtype))


def rotated_points(inputs: Inputs, *, points: int) -> Workload:
    """Points in space times one small matrix."""
    return lambda x, a: jnp.einsum("...i,...ij->...j", x, a), (
        inputs.normal(points, 3),
        inputs.weight(3, 3),
    )


def pixelwise(inputs: Inputs, *, images: int, others: int, size: int) -> Workload:
    """For each pixel, the products of all its colours in one set of images and another."""
    return lambda a, b: jnp.einsum("nxyc,mxyc->nmxy", a, b), (
        inputs.normal(images, size, size, 3),
        inputs.normal(others, size, size, 3),
    )


def mapped_layer(inputs: Inputs, *, batch: int, length: int, width: int, features: int) -> Workload:
    """A layer that is written for one vector, mapped over a batch of sequences."""
    return lambda w, x: jax.vmap(jax.vmap(lambda x: w @ x))(x), (
        inputs.normal(features, width, scale=width**-0.5),
        inputs.normal(batch, length, width),
    )


def depthwise_signals(
    inputs: Inputs, *, batch: int, channels: int, length: int, layers: int
) -> Workload:
    """The gradients of filters of one channel each for a stack of signals, channels first."""

    def loss(filters: list[jax.Array], x: jax.Array) -> jax.Array:
        for kernel in filters:
            x = lax.conv_general_dilated(
                x,
                kernel,
                (1,),
                "SAME",
                feature_group_count=channels,
                dimension_numbers=("NCW", "OIW", "NCW"),
            )
        return jnp.mean(x**2)

    filters = [inputs.normal(channels, 1, 5, scale=0.5) for _ in range(layers)]
    return lambda filters, x: jax.grad(loss)(filters, x), (
        filters,
        inputs.normal(batch, channels, length),
    )


def lengths(inputs: Inputs, *, rows: int) -> Workload:
    """The squared lengths of vectors behind a matrix, one after the other in a map."""

    def function(x: jax.Array, matrix: jax.Array) -> jax.Array:
        return jax.vmap(lambda row: jnp.sum((matrix @ row) ** 2))(x)

    return function, (inputs.normal(rows, 3), inputs.normal(3, 3))


def shifted(inputs: Inputs, *, rows: int, columns: int) -> Workload:
    """Rows that move down by one, in place, seen as another shape."""

    def function(x: jax.Array) -> jax.Array:
        x = x + 1
        return x.at[1:].set(x[:-1]).reshape(1, rows, columns)

    return function, (inputs.normal(rows, columns),)


_case = functools.partial(Case, group="issues")
_named = functools.partial(_case, figure=5.0)
_other = functools.partial(_case, figure=1.0)

CASES = (
    _named(
        "scalar_leaves",
        scalar_leaves,
        {"leaves": 60, "steps": 614},
        threads=("jax #40150",),
        tiny={"leaves": 6, "steps": 7},
        tolerance=256,
    ).with_neighbours(odd={"leaves": 38, "steps": 401}, dtype="float64", view="strided", viewed=1),
    _named(
        "small_carry",
        small_carry,
        {"steps": 2000, "width": 3},
        dtype="float64",
        threads=("jax #36799",),
        tiny={"steps": 7},
        tolerance=256,
    ).with_neighbours(
        odd={"steps": 1999, "width": 2}, dtype="float32", view="transposed", viewed=1
    ),
    _named(
        "element_by_element",
        element_by_element,
        {"steps": 20_000},
        threads=("jax #40101",),
        tiny={"steps": 7},
        tolerance=64,
    ).with_neighbours(odd={"steps": 19_999}, dtype="float64", view="strided"),
    _named(
        "popped",
        popped,
        {"size": 20_000, "moved": 500, "steps": 500},
        threads=("jax #17845", "jax #31284"),
        tiny={"size": 40, "moved": 5, "steps": 7},
        tolerance=0,
    ).with_neighbours(odd={"size": 19_999, "moved": 501}, dtype="float64", view="strided"),
    _other(
        "gradients_of_updates",
        gradients_of_updates,
        {"steps": 500, "width": 10},
        threads=("jax #10197",),
        tiny={"steps": 5, "width": 3},
        tolerance=256,
    ).with_neighbours(odd={"steps": 499, "width": 11}, dtype="float64", view="strided"),
    _named(
        "fits",
        fits,
        {"matrices": 182 * 474, "size": 3},
        threads=("jax #36927",),
        tiny={"matrices": 7},
        tolerance=64,
    ).with_neighbours(odd={"matrices": 10_001, "size": 5}, dtype="float64", view="strided"),
    _other(
        "inverses",
        of_matrices(jnp.linalg.inv),
        {"matrices": 10_000, "size": 3},
        threads=("jax #11321",),
        tiny={"matrices": 7},
        tolerance=64,
    ).with_neighbours(odd={"matrices": 9999, "size": 5}, dtype="float64", view="strided"),
    _named(
        "argsort_columns",
        of_normals(functools.partial(jnp.argsort, axis=0)),
        {"rows": 100, "columns": 10_000},
        threads=("jax #10434",),
        tiny={"rows": 9, "columns": 7},
        tolerance=0,
    ).with_neighbours(odd={"rows": 101, "columns": 9999}, dtype="float64", view="transposed"),
    _named(
        "particles",
        particles,
        {"particles": 100_000},
        threads=("jax #27004",),
        tiny={"particles": 37},
        tolerance=0,
    ).with_neighbours(odd={"particles": 99_999}, dtype="float64", view="transposed", viewed=1),
    _named(
        "median",
        of_normals(jnp.median),
        {"size": 1 << 20},
        threads=("jax #4379",),
        tiny={"size": 37},
        tolerance=4,
    ).with_neighbours(odd={"size": 999_983}, dtype="float64", view="strided"),
    _named(
        "quartiles",
        of_normals(lambda x: jnp.quantile(x, jnp.array([0.25, 0.5, 0.75], x.dtype), axis=-1)),
        {"rows": 512, "columns": 2000},
        threads=("jax #4379",),
        tiny={"rows": 3, "columns": 37},
        tolerance=4,
    ).with_neighbours(odd={"rows": 511, "columns": 1999}, dtype="float64", view="transposed"),
    _named(
        "nearest",
        nearest,
        {"points": 1 << 22, "count": 100},
        threads=("xla #25487",),
        tiny={"points": 70, "count": 9},
        tolerance=0,
    ).with_neighbours(odd={"points": 3_999_971}, dtype="float64", view="strided"),
    _named(
        "synthesis",
        synthesis,
        {"signals": 4, "frames": 64, "channels": 257, "hop": 128},
        threads=("jax #23783",),
        tiny={"signals": 2, "frames": 5, "channels": 3, "hop": 4},
        tolerance=16,
    ).with_neighbours(odd={"frames": 63, "channels": 101}, dtype="float64", view="transposed"),
    _named(
        "upsampled",
        upsampled,
        {"size": 24, "channels": 64},
        threads=("jax #31662",),
        tiny={"size": 4, "channels": 3},
        tolerance=64,
    ).with_neighbours(odd={"size": 23, "channels": 63}, dtype="bfloat16", view="strided", viewed=1),
    _named(
        "roughness",
        roughness,
        {"size": 128},
        threads=("jax #37465",),
        tiny={"size": 5},
        tolerance=32,
    ).with_neighbours(odd={"size": 127}, dtype="float64", view="strided"),
    _other(
        "sum_over_first",
        of_normals(functools.partial(jnp.sum, axis=0)),
        {"first": 128, "rows": 128, "columns": 128},
        threads=("jax #25187",),
        tiny={"first": 5, "rows": 3, "columns": 7},
        tolerance=16,
    ).with_neighbours(odd={"first": 127, "columns": 127}, dtype="bfloat16", view="transposed"),
    _other(
        "mass_matrix",
        mass_matrix,
        {"joints": 35},
        dtype="float64",
        threads=("jax #26021",),
        tiny={"joints": 3},
        tolerance=64,
    ).with_neighbours(odd={"joints": 11}, dtype="float32", view="strided"),
    _named(
        "swinging_arm",
        swinging_arm,
        {"joints": 7, "steps": 100},
        threads=("jax #26021", "jax #26145"),
        tiny={"joints": 3, "steps": 5},
        tolerance=256,
    ).with_neighbours(odd={"joints": 5, "steps": 99}, dtype="float64", view="strided", viewed=1),
    _other(
        "neurons",
        neurons,
        {"compartments": 64, "steps": 400},
        dtype="float64",
        threads=("jax #26145",),
        tiny={"compartments": 7, "steps": 5},
        tolerance=4096,
    ).with_neighbours(odd={"compartments": 61}, dtype="float32", view="strided", viewed=1),
    _other(
        "now_and_then",
        now_and_then,
        {"size": 64, "steps": 1000},
        threads=("jax #38145",),
        tiny={"size": 5, "steps": 17},
        tolerance=256,
    ).with_neighbours(odd={"size": 63, "steps": 999}, dtype="float64", view="strided"),
    _other(
        "climbing",
        climbing,
        {"steps": 1 << 16},
        threads=("jax #25190",),
        tiny={"steps": 17},
        tolerance=0,
    ).with_neighbours(odd={"steps": 65_535}, dtype="float64", view="strided"),
    _other(
        "cumsum_over_first",
        of_uniforms(functools.partial(jnp.cumsum, axis=0), 0, 1),
        {"first": 360, "rows": 40, "columns": 30, "last": 3},
        dtype="float64",
        threads=("jax #4135",),
        tiny={"first": 7, "rows": 3, "columns": 5},
        tolerance=64,
    ).with_neighbours(odd={"first": 359, "columns": 29}, dtype="float32", view="transposed"),
    _case(
        "running_xor",
        running_differences,
        {"rows": 4096, "columns": 256},
        threads=("jax #28097",),
        tiny={"rows": 9, "columns": 5},
        tolerance=0,
    ),
    _other(
        "sums_by_receiver",
        sums_by_receiver,
        {"batch": 128, "edges": 10_000, "nodes": 1200},
        threads=("jax #39959",),
        tiny={"batch": 3, "edges": 37, "nodes": 5},
        tolerance=32,
    ).with_neighbours(odd={"batch": 127, "edges": 9999}, dtype="float64", view="transposed"),
    _named(
        "triangles",
        triangles,
        {"matrices": 400, "size": 79},
        threads=("jax #695",),
        tiny={"matrices": 3, "size": 5},
        tolerance=0,
    ).with_neighbours(odd={"matrices": 399, "size": 31}, dtype="float64", view="transposed"),
    _named(
        "interleaved",
        interleaved,
        {"size": 256},
        threads=("jax #11457",),
        tiny={"size": 4},
        tolerance=4,
    ).with_neighbours(odd={"size": 255}, dtype="float64", view="strided"),
    _other(
        "rows_set",
        rows_set,
        {"rows": 6000, "columns": 300, "changed": 100},
        threads=("jax #15684",),
        tiny={"rows": 9, "columns": 7, "changed": 4},
        tolerance=0,
    ).with_neighbours(odd={"rows": 5999, "columns": 299}, dtype="float64", view="transposed"),
    _other(
        "bin_counts",
        histogram,
        {"values": 1 << 20, "bins": 70},
        threads=("jax #12774",),
        tiny={"values": 37, "bins": 5},
        tolerance=0,
    ).with_neighbours(odd={"values": 999_983}, dtype="float64", view="strided"),
    _other(
        "rotated_points",
        rotated_points,
        {"points": 1_000_000},
        threads=("jax #33004",),
        tiny={"points": 37},
        tolerance=8,
    ).with_neighbours(odd={"points": 999_983}, dtype="float64", view="transposed"),
    _other(
        "pixelwise",
        pixelwise,
        {"images": 100, "others": 200, "size": 20},
        threads=("jax #2160",),
        tiny={"images": 3, "others": 5, "size": 4},
        tolerance=8,
    ).with_neighbours(odd={"images": 99, "others": 197}, dtype="float64", view="transposed"),
    _other(
        "mapped_layer",
        mapped_layer,
        {"batch": 16, "length": 100, "width": 821, "features": 600},
        threads=("jax #19327",),
        tiny={"batch": 2, "length": 3, "width": 13, "features": 7},
        tolerance=16,
    ).with_neighbours(odd={"length": 99, "features": 599}, dtype="float64", view="transposed"),
    _other(
        "depthwise_signals",
        depthwise_signals,
        {"batch": 4, "channels": 128, "length": 512, "layers": 4},
        threads=("jax #13800",),
        tiny={"batch": 2, "channels": 3, "length": 17, "layers": 2},
        tolerance=64,
    ).with_neighbours(
        odd={"channels": 127, "length": 511}, dtype="float64", view="strided", viewed=1
    ),
    _other(
        "lengths",
        lengths,
        {"rows": 32_769},
        threads=("jax #39103",),
        xla_errs=True,
        tiny={"rows": 7},
        tolerance=16,
    ).with_neighbours(odd={"rows": 16_385}, dtype="float64", view="transposed"),
    _other(
        "shifted",
        shifted,
        {"rows": 512, "columns": 512},
        threads=("xla #49176",),
        xla_errs=True,
        tiny={"rows": 8, "columns": 16},
        tolerance=1,
    ).with_neighbours(odd={"rows": 511, "columns": 509}, dtype="float64", view="transposed"),
)
