"""Programs of many small steps: stencils, rotations, updates of a large carry."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np

from hlo_mlc_bench.case import Case, Inputs, Workload


def jacobi2d(inputs: Inputs, *, rows: int, columns: int, steps: int) -> Workload:
    def step(_: int, x: jax.Array) -> jax.Array:
        neighbours = x[:-2, 1:-1] + x[2:, 1:-1] + x[1:-1, :-2] + x[1:-1, 2:]
        return x.at[1:-1, 1:-1].set(0.2 * (x[1:-1, 1:-1] + neighbours))

    def function(x: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, steps, step, x)

    return function, (inputs.normal(rows, columns),)


def _rotate(x: jax.Array) -> jax.Array:
    return jnp.concatenate([x[1:], x[:1]]) * 0.9 + jnp.sum(x) * 0.01


def rotations_unrolled(inputs: Inputs, *, size: int, steps: int) -> Workload:
    def function(x: jax.Array) -> jax.Array:
        for _ in range(steps):
            x = _rotate(x)
        return x

    return function, (inputs.normal(size),)


def rotations_loop(inputs: Inputs, *, size: int, steps: int) -> Workload:
    def function(x: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, steps, lambda _, x: _rotate(x), x)

    return function, (inputs.normal(size),)


def cache_update(inputs: Inputs, *, length: int, width: int, steps: int) -> Workload:
    """Each step writes one row into a cache that is far larger: its cost is that of the row."""

    def function(cache: jax.Array, rows: jax.Array) -> jax.Array:
        def step(cache: jax.Array, numbered: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
            number, row = numbered
            mixed = 0.5 * (row + cache[number])[None]
            return jax.lax.dynamic_update_slice(cache, mixed, (number + 1, 0)), None

        return jax.lax.scan(step, cache, (jnp.arange(rows.shape[0]), rows))[0]

    return function, (inputs.normal(length, width), inputs.normal(steps, width))


def nbody(inputs: Inputs, *, bodies: int, steps: int) -> Workload:
    """Bodies that attract each other: forces between all pairs, softened at short distances."""

    def function(
        position: jax.Array, velocity: jax.Array, mass: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        def step(_: int, state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            position, velocity = state
            between = position[None] - position[:, None]
            distance = jnp.sum(between**2, axis=-1) + 1e-2
            pull = mass[None] * distance**-1.5
            velocity = velocity + 1e-3 * jnp.sum(between * pull[:, :, None], axis=1)
            return position + 1e-3 * velocity, velocity

        return jax.lax.fori_loop(0, steps, step, (position, velocity))

    return function, (
        inputs.normal(bodies, 3),
        inputs.normal(bodies, 3, scale=0.1),
        inputs.uniform(bodies, low=0.5 / bodies, high=1.5 / bodies),
    )


def mandelbrot(inputs: Inputs, *, size: int, steps: int) -> Workload:
    """z = z² + c until all points have escaped or `steps` are done; here none escapes, so that all
    are done and no rounding error grows."""

    def function(real: jax.Array, imaginary: jax.Array) -> tuple[jax.Array, ...]:
        def goes_on(state: tuple[jax.Array, ...]) -> jax.Array:
            return state[0] < steps

        def step(state: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
            number, x, y, count = state
            inside = x * x + y * y <= 4
            squared = x * x - y * y + real, 2 * x * y + imaginary
            x, y = (jnp.where(inside, new, old) for new, old in zip(squared, (x, y), strict=True))
            return number + 1, x, y, count + inside

        zeros = jnp.zeros_like(real)
        start = (0, zeros, zeros, jnp.zeros(real.shape, jnp.int32))
        return jax.lax.while_loop(goes_on, step, start)[1:]

    points = (inputs.uniform(size, size, low=-0.15, high=0.15) for _ in range(2))
    return function, tuple(points)


def rays(inputs: Inputs, *, width: int, height: int) -> Workload:
    """Rays that march up to a sphere over a plane, each as far as it has to: a loop in a batch."""

    def distance(point: jax.Array) -> jax.Array:
        centre = jnp.array([0, 0, 3], point.dtype)
        return jnp.minimum(jnp.linalg.norm(point - centre) - 1, point[1] + 1)

    def march(direction: jax.Array) -> jax.Array:
        def goes_on(state: tuple[jax.Array, ...]) -> jax.Array:
            along, near, steps = state
            return (near > 1e-3) & (along < 20) & (steps < 60)

        def step(state: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
            along, _, steps = state
            near = distance(direction * along)
            return along + near, near, steps + 1

        start = jnp.zeros((), direction.dtype), jnp.ones((), direction.dtype), 0
        return jnp.minimum(jax.lax.while_loop(goes_on, step, start)[0], 20)

    # Through the middle of pixels that see no edge of the sphere from nearby: no step is too close
    # to call.
    x, y = (inputs.uniform(height, width, low=-0.2, high=0.2) for _ in range(2))
    pixels = jnp.stack([x, y, jnp.ones_like(x)], axis=-1)
    directions = pixels / jnp.linalg.norm(pixels, axis=-1, keepdims=True)
    return jax.vmap(jax.vmap(march)), (directions,)


def moving_points(inputs: Inputs, *, points: int, steps: int) -> Workload:
    """Points in space that are pulled along each axis with a strength of its own."""

    def function(x: jax.Array, strength: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, steps, lambda _, x: x - 0.01 * x * strength, x)

    return function, (inputs.normal(points, 3), inputs.uniform(3))


def turning_bodies(inputs: Inputs, *, bodies: int, steps: int) -> Workload:
    """Rigid bodies that turn freely: a quaternion and an angular velocity for each."""

    def turned(q: jax.Array, w: jax.Array) -> jax.Array:
        a, x, y, z = jnp.moveaxis(q, -1, 0)
        p, r, s = jnp.moveaxis(w, -1, 0)
        return jnp.stack(
            [
                -x * p - y * r - z * s,
                a * p + y * s - z * r,
                a * r - x * s + z * p,
                a * s + x * r - y * p,
            ],
            -1,
        )

    def function(q: jax.Array, w: jax.Array, inertia: jax.Array) -> tuple[jax.Array, jax.Array]:
        def step(_: int, state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            q, w = state
            w = w + 0.01 * jnp.cross(inertia * w, w) / inertia
            q = q + 0.005 * turned(q, w)
            return q / jnp.linalg.norm(q, axis=-1, keepdims=True), w

        return jax.lax.fori_loop(0, steps, step, (q, w))

    return function, (
        inputs.normal(bodies, 4),
        inputs.normal(bodies, 3),
        inputs.uniform(3, low=1.0, high=3.0),
    )


def deposits(inputs: Inputs, *, cells: int, particles: int, steps: int) -> Workload:
    """Charges put on a grid, which then decays: one thread's work in turns with work for all."""

    def function(grid: jax.Array, places: jax.Array, charges: jax.Array) -> jax.Array:
        def step(_: int, grid: jax.Array) -> jax.Array:
            return 0.9 * grid.at[places].add(charges)[::-1]

        return jax.lax.fori_loop(0, steps, step, grid)

    return function, (
        inputs.normal(cells),
        inputs.places(cells, particles),
        inputs.normal(particles),
    )


def advantages(inputs: Inputs, *, steps: int) -> Workload:
    """Generalized advantage estimates of a policy, back from the end of each episode."""

    def function(rewards: jax.Array, values: jax.Array, done: jax.Array) -> jax.Array:
        def step(state: tuple[jax.Array, ...], at: tuple[jax.Array, ...]) -> tuple:
            advantage, following = state
            reward, value, done = at
            goes_on = 1 - done
            error = reward + 0.99 * following * goes_on - value
            advantage = error + 0.99 * 0.95 * goes_on * advantage
            return (advantage, value), advantage

        start = jnp.zeros_like(values[0]), values[-1]
        return jax.lax.scan(step, start, (rewards, values, done), reverse=True)[1]

    return function, (
        inputs.normal(steps),
        inputs.normal(steps),
        inputs.uniform(steps, low=0.0, high=1.0) < 0.01,
    )


def smoothed(inputs: Inputs, *, steps: int) -> Workload:
    """A signal by its moving average and variance, both of which forget."""

    def function(signal: jax.Array) -> jax.Array:
        def step(state: tuple[jax.Array, jax.Array], x: jax.Array) -> tuple:
            mean, square = 0.98 * state[0] + 0.02 * x, 0.98 * state[1] + 0.02 * (x * x)
            return (mean, square), (x - mean) / jnp.sqrt(square - mean * mean + 1e-3)

        return jax.lax.scan(step, (signal[0], signal[0] * signal[0]), signal)[1]

    return function, (inputs.normal(steps),)


def gated(inputs: Inputs, *, steps: int) -> Workload:
    """A memory that keeps as much of what it has as a gate says, and the most that it had."""

    def function(given: jax.Array, gates: jax.Array) -> tuple[jax.Array, jax.Array]:
        def step(state: tuple[jax.Array, jax.Array], at: tuple[jax.Array, ...]) -> tuple:
            x, gate = at
            kept = gate * state[0] + (1 - gate) * x
            return (kept, jnp.maximum(state[1], kept)), kept

        zero = jnp.zeros_like(given[0])
        (_, most), kept = jax.lax.scan(step, (zero, zero), (given, jax.nn.sigmoid(gates)))
        return most, kept

    return function, (inputs.normal(steps), inputs.normal(steps))


def spikes(inputs: Inputs, *, steps: int) -> Workload:
    """A neuron that leaks, adds up what comes, and is discharged when that is enough."""

    def function(current: jax.Array) -> tuple[jax.Array, jax.Array]:
        def step(charge: jax.Array, now: jax.Array) -> tuple[jax.Array, jax.Array]:
            charge = 0.9 * charge + now
            fires = charge > 1
            return jnp.where(fires, 0, charge), fires

        return jax.lax.scan(step, jnp.zeros_like(current[0]), current)

    return function, (inputs.normal(steps),)


def potts(inputs: Inputs, *, rows: int, columns: int, steps: int) -> Workload:
    """Sweeps over a grid of states, each drawn by how many of its neighbours are in which."""
    colours = 5

    def function(states: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        def sweep(state: tuple[jax.Array, jax.Array], _: None) -> tuple:
            states, key = state
            key, drawing = jax.random.split(key)
            ones = jax.nn.one_hot(states, colours, dtype=inputs.dtype)
            near = sum(jnp.roll(ones, by, axis) for by in (1, -1) for axis in (0, 1))
            noise = jax.random.gumbel(drawing, ones.shape, inputs.dtype)
            return (jnp.argmax(1.2 * near + noise, -1).astype(states.dtype), key), None

        (states, _), _ = jax.lax.scan(sweep, (states, key), None, length=steps)
        return states, jnp.mean(jax.nn.one_hot(states, colours, dtype=inputs.dtype), (0, 1))

    return function, (inputs.places(colours, rows, columns), inputs.key())


def bits_decoded(inputs: Inputs, *, words: int, levels: int) -> Workload:
    """Polar codes decoded bit by bit, by a recursion that is unrolled: half of the bits are 0."""
    order = sorted(range(1 << levels), key=lambda n: (n.bit_count(), n))
    frozen = set(order[: len(order) // 2])

    def decoded(ratios: jax.Array, first: int) -> tuple[jax.Array, jax.Array]:
        if ratios.shape[1] == 1:
            bits = jnp.where(first in frozen, 0, (ratios < 0).astype(jnp.int32))
            return bits, bits
        a, b = jnp.split(ratios, 2, 1)
        left = jnp.sign(a) * jnp.sign(b) * jnp.minimum(jnp.abs(a), jnp.abs(b))
        bits, sent = decoded(left, first)
        others, resent = decoded(b + (1 - 2 * sent) * a, first + a.shape[1])
        return jnp.concatenate([bits, others], 1), jnp.concatenate([sent ^ resent, resent], 1)

    def function(ratios: jax.Array) -> jax.Array:
        return decoded(ratios, 0)[0]

    return function, (inputs.normal(words, 1 << levels),)


def tree_searches(inputs: Inputs, *, levels: int, queries: int) -> Workload:
    """The distance to the nearest of the points of a k-d tree, whose branches wait on a stack: a
    batch of walks, each as long as it has to be."""
    count = (1 << levels) - 1

    def nearest(query: jax.Array, points: jax.Array) -> jax.Array:
        def visit(state: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
            stack, waiting, best = state
            node = stack[waiting - 1]
            point = points[node]
            best = jnp.minimum(best, jnp.sum((query - point) ** 2))
            axis = (31 - jax.lax.clz(node + 1)) % 3
            aside = query[axis] - point[axis]
            near = 2 * node + 1 + (aside > 0)
            far = 4 * node + 3 - near
            inside = near < count
            crosses = inside & (aside**2 < best)
            stack = stack.at[waiting - 1].set(jnp.where(crosses, far, near))
            stack = stack.at[waiting].set(near)
            return stack, waiting - 1 + inside + crosses, best

        start = jnp.zeros(levels + 2, jnp.int32), 1, jnp.asarray(jnp.inf, query.dtype)
        return jax.lax.while_loop(lambda state: state[1] > 0, visit, start)[2]

    def tree(points: np.ndarray, axis: int) -> list[np.ndarray]:
        """The points level by level: the middle one along an axis, and those on its two sides."""
        points = points[np.argsort(points[:, axis])]
        middle = len(points) // 2
        if not middle:
            return [points]
        sides = (tree(side, (axis + 1) % 3) for side in (points[:middle], points[middle + 1 :]))
        below = zip(*sides, strict=True)
        return [points[middle : middle + 1], *(np.concatenate(level) for level in below)]

    points = np.concatenate(tree(np.asarray(inputs.uniform(count, 3)), 0))
    search = jax.vmap(nearest, (0, None))
    return search, (inputs.uniform(queries, 3), jnp.asarray(points))


def shortest_paths(inputs: Inputs, *, nodes: int, edges: int) -> Workload:
    """Distances from one node, by as many rounds as it takes, with the node before on each path."""

    def function(senders: jax.Array, receivers: jax.Array, lengths: jax.Array):
        def shorten(state: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
            far, before, _ = state
            offers = far[senders] + lengths
            near = far.at[receivers].min(offers)
            best = jnp.where(offers == near[receivers], senders, -1)
            through = jax.ops.segment_max(best, receivers, nodes)
            return near, jnp.where(near < far, through, before), jnp.any(near < far)

        far = jnp.full(nodes, nodes, lengths.dtype).at[0].set(0)  # no path is as long
        begin = far, jnp.full(nodes, -1), jnp.array(True)
        return jax.lax.while_loop(lambda state: state[2], shorten, begin)[:2]

    ends = inputs.places(nodes, edges), inputs.places(nodes, edges)
    return function, (*ends, inputs.uniform(edges))


_case = functools.partial(Case, group="loops")
_ROTATIONS = {"size": 100, "steps": 100}
CASES = (
    _case(
        "jacobi2d",
        jacobi2d,
        {"rows": 512, "columns": 512, "steps": 100},
        tiny={"rows": 7, "columns": 9, "steps": 3},
        tolerance=16,
        figure=4.0,
    ).with_neighbours(odd={"rows": 511, "columns": 509}, dtype="float64", view="transposed"),
    _case(
        "rotations_unrolled",
        rotations_unrolled,
        _ROTATIONS,
        tiny={"size": 7, "steps": 3},
        tolerance=128,
        figure=3.0,
    ).with_neighbours(odd={"size": 101}, dtype="float64", view="strided"),
    # The figure: a third of what jax.jit takes for it is the call itself.
    _case(
        "rotations_loop",
        rotations_loop,
        _ROTATIONS,
        tiny={"size": 7, "steps": 3},
        tolerance=128,
        figure=1.0,
    ).with_neighbours(odd={"size": 101}, dtype="float64", view="strided"),
    _case(
        "cache_update",
        cache_update,
        {"length": 8192, "width": 128, "steps": 256},
        tiny={"length": 9, "width": 5, "steps": 3},
        tolerance=4,
    ),
    _case(
        "nbody",
        nbody,
        {"bodies": 256, "steps": 100},
        tiny={"bodies": 7, "steps": 3},
        tolerance=64,
        figure=8.0,
    ).with_neighbours(odd={"bodies": 251}, dtype="float64", view="transposed"),
    _case(
        "moving_points",
        moving_points,
        {"points": 5000, "steps": 40},
        tiny={"points": 7, "steps": 3},
        tolerance=64,
        figure=1.0,
    ).with_neighbours(odd={"points": 4999}, dtype="float64", view="strided"),
    _case(
        "turning_bodies",
        turning_bodies,
        {"bodies": 500, "steps": 40},
        tiny={"bodies": 7, "steps": 3},
        tolerance=128,
        figure=1.5,
    ).with_neighbours(odd={"bodies": 503}, dtype="float64", view="strided"),
    _case(
        "deposits",
        deposits,
        {"cells": 60_000, "particles": 60_000, "steps": 100},
        tiny={"cells": 9, "particles": 7, "steps": 3},
        tolerance=64,
    ),
    _case("rays", rays, {"width": 64, "height": 48}, tiny={"width": 5, "height": 3}, tolerance=64),
    _case(
        "mandelbrot",
        mandelbrot,
        {"size": 256, "steps": 50},
        tiny={"size": 7, "steps": 3},
        tolerance=64,
    ),
    _case(
        "advantages", advantages, {"steps": 20_000}, tiny={"steps": 17}, tolerance=256, figure=2.0
    ).with_neighbours(odd={"steps": 19_999}, dtype="float64", view="strided"),
    _case(
        "smoothed", smoothed, {"steps": 20_000}, tiny={"steps": 17}, tolerance=256, figure=2.5
    ).with_neighbours(odd={"steps": 19_999}, dtype="float64", view="strided"),
    _case(
        "gated", gated, {"steps": 20_000}, tiny={"steps": 17}, tolerance=64, figure=2.0
    ).with_neighbours(odd={"steps": 19_999}, dtype="float64", view="strided"),
    _case("spikes", spikes, {"steps": 20_000}, tiny={"steps": 17}, tolerance=64),
    _case(
        "bits_decoded",
        bits_decoded,
        {"words": 64, "levels": 8},
        tiny={"words": 5, "levels": 3},
        tolerance=0,
    ),
    _case(
        "potts",
        potts,
        {"rows": 64, "columns": 64, "steps": 10},
        tiny={"rows": 5, "columns": 6, "steps": 2},
        tolerance=64,
        figure=2.0,
    ).with_neighbours(odd={"rows": 61, "columns": 59}, dtype="float64", view="transposed"),
    _case(
        "tree_searches",
        tree_searches,
        {"levels": 10, "queries": 2000},
        tiny={"levels": 3, "queries": 5},
        tolerance=16,
        figure=3.0,
    ).with_neighbours(odd={"levels": 9, "queries": 1999}, dtype="float64", view="transposed"),
    _case(
        "shortest_paths",
        shortest_paths,
        {"nodes": 2000, "edges": 16_000},
        tiny={"nodes": 9, "edges": 25},
        tolerance=8,
    ).with_neighbours(odd={"nodes": 1999, "edges": 15_991}, dtype="float64", view="strided"),
)
