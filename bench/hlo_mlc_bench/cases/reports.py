"""More programs that users reported slow or wrong on CPUs, rebuilt in our words from the threads:
simulations, gradients, convolutions, and arithmetic that compilers get wrong."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax import lax

from hlo_mlc_bench.case import Case, Inputs, Workload

_HEATS = 5 / 3  # of a gas: its heat capacities divided by each other


def gas_dynamics(inputs: Inputs, *, size: int) -> Workload:
    """A step of a gas on a periodic grid by finite volumes: density, velocity and pressure are
    extrapolated to the borders of cells, and what flows through these is what neighbours lose."""
    width = 1.0 / size

    def flux(left: list[jax.Array], right: list[jax.Array]) -> tuple[jax.Array, ...]:
        """Of mass, momentum along and across, and energy, through borders."""

        def energy(mass: jax.Array, along: jax.Array, across: jax.Array, pressure: jax.Array):
            return pressure / (_HEATS - 1) + 0.5 * mass * (along**2 + across**2)

        states = [
            (mass, mass * along, mass * across, energy(mass, along, across, pressure))
            for mass, along, across, pressure in (left, right)
        ]
        mass, along, across, total = (0.5 * (a + b) for a, b in zip(*states, strict=True))
        pressure = (_HEATS - 1) * (total - 0.5 * (along**2 + across**2) / mass)
        flows = (
            along,
            along**2 / mass + pressure,
            along * across / mass,
            (total + pressure) * along / mass,
        )
        speeds = (jnp.sqrt(_HEATS * p / m) + jnp.abs(v) for m, v, _, p in (left, right))
        fastest = jnp.maximum(*speeds)
        return tuple(
            flow - 0.5 * fastest * (a - b) for flow, a, b in zip(flows, *states, strict=True)
        )

    def through(axis: int, mass: jax.Array, *rest: jax.Array) -> list[jax.Array]:
        """What each cell loses along an axis; the velocity along it comes second."""
        sides = []
        for x in (mass, *rest):
            slope = (jnp.roll(x, -1, axis) - jnp.roll(x, 1, axis)) / (2 * width)
            sides.append((jnp.roll(x - 0.5 * width * slope, -1, axis), x + 0.5 * width * slope))
        flows = flux([right for _, right in sides], [left for left, _ in sides])
        return [(flow - jnp.roll(flow, 1, axis)) / width for flow in flows]

    def function(
        mass: jax.Array, down: jax.Array, along: jax.Array, pressure: jax.Array
    ) -> tuple[jax.Array, ...]:
        lost = through(0, mass, down, along, pressure)
        lost_along = through(1, mass, along, down, pressure)
        of_mass, of_down, of_along, of_energy = (
            a + b for a, b in zip(lost, [lost_along[i] for i in (0, 2, 1, 3)], strict=True)
        )
        energy = pressure / (_HEATS - 1) + 0.5 * mass * (down**2 + along**2)
        step = 1e-2 * width
        return (
            mass - step * of_mass,
            mass * down - step * of_down,
            mass * along - step * of_along,
            energy - step * of_energy,
        )

    return function, (
        inputs.uniform(size, size, low=1.0, high=2.0),
        inputs.normal(size, size, scale=0.1),
        inputs.normal(size, size, scale=0.1),
        inputs.uniform(size, size, low=1.0, high=2.0),
    )


def attraction(inputs: Inputs, *, places: int, masses: int) -> Workload:
    """The pull of masses at places in space: the gradient of a sum over all pairs."""

    def potential(at: jax.Array, of: jax.Array, mass: jax.Array) -> jax.Array:
        apart = at[:, None] - of[None]
        return jnp.sum(mass / jnp.sqrt(jnp.sum(apart**2, -1) + 1e-2))

    return lambda at, of, mass: jax.grad(potential)(at, of, mass), (
        inputs.normal(places, 3),
        inputs.normal(masses, 3),
        inputs.uniform(masses),
    )


def mixed_in_loop(inputs: Inputs, *, channels: int, length: int, steps: int) -> Workload:
    """Channels that are mixed by the same convolution again and again, channels first."""

    def function(x: jax.Array, kernel: jax.Array) -> jax.Array:
        return lax.fori_loop(0, steps, lambda _, x: lax.conv(x, kernel, (1,), "VALID"), x)

    return function, (
        inputs.normal(1, channels, length),
        inputs.normal(channels, channels, 1, scale=channels**-0.5),
    )


def patches(inputs: Inputs, *, images: int, size: int, patch: int, features: int) -> Workload:
    """The gradients of the first layer of a vision transformer, for its kernel and the images."""

    def loss(kernel: jax.Array, x: jax.Array) -> jax.Array:
        y = lax.conv_general_dilated(
            x, kernel, (patch, patch), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        return jnp.mean(y**2)

    return lambda kernel, x: jax.grad(loss, argnums=(0, 1))(kernel, x), (
        inputs.normal(patch, patch, 3, features, scale=1 / patch),
        inputs.normal(images, size, size, 3),
    )


def sample_gradients(inputs: Inputs, *, samples: int, size: int, features: int) -> Workload:
    """The gradients of a small network with a periodic convolution, of each sample by itself."""

    def output(kernel: jax.Array, weights: jax.Array, x: jax.Array) -> jax.Array:
        around = jnp.pad(x, ((0, 1), (0, 1)), mode="wrap")[None, None]
        hidden = jax.nn.relu(lax.conv(around, kernel, (1, 1), "VALID"))
        return jnp.tanh(hidden.ravel() @ weights)

    def function(kernel: jax.Array, weights: jax.Array, x: jax.Array) -> tuple:
        return jax.vmap(jax.grad(output, argnums=(0, 1)), (None, None, 0))(kernel, weights, x)

    return function, (
        inputs.normal(features, 1, 2, 2, scale=0.5),
        inputs.normal(features * size * size, scale=1 / size),
        inputs.normal(samples, size, size),
    )


def unrolled_products(inputs: Inputs, *, points: int, terms: int) -> Workload:
    """The gradients of a sum of products with two constants each, written out."""

    def value(x: jax.Array) -> jax.Array:
        return sum(x @ jnp.array([i, i + 1], x.dtype) * x[0] for i in range(terms))

    return lambda x: jax.vmap(jax.grad(value))(x), (inputs.normal(points, 2),)


def zero_form(inputs: Inputs, *, points: int) -> Workload:
    """The gradient of a mean over points, with a quadratic form of zeros that adds nothing."""

    def function(x: jax.Array, points: jax.Array, weights: jax.Array) -> jax.Array:
        def value(x: jax.Array, point: jax.Array) -> jax.Array:
            apart = point - x
            return apart @ weights + apart @ jnp.zeros((3, 3), x.dtype) @ apart

        return jax.grad(lambda x: jnp.mean(jax.vmap(value, (None, 0))(x, points)))(x)

    return function, (inputs.normal(3), inputs.normal(points, 3), inputs.normal(3))


def masked_sums(inputs: Inputs, *, batch: int, size: int) -> Workload:
    """Sums over some rows and columns of a matrix: loops in each other that end where a list of
    places does, for many lists at once."""

    def function(matrix: jax.Array, rows: jax.Array, columns: jax.Array) -> jax.Array:
        def summed(rows: jax.Array) -> jax.Array:
            def row(state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
                def column(state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
                    j, total = state
                    return j + 1, total + matrix[rows[i], columns[j]]

                i, total = state
                return i + 1, lax.while_loop(lambda s: columns[s[0]] > 0, column, (0, total))[1]

            return lax.while_loop(lambda s: rows[s[0]] > 0, row, (0, matrix[0, 0]))[1]

        return jax.vmap(summed)(rows)

    ended = jnp.zeros(size, jnp.int32)
    rows = inputs.places(size - 1, batch, size) + 1
    return function, (
        inputs.normal(size, size),
        rows.at[:, -1].set(0).at[::2, size // 2].set(0),
        ended.at[: size - 2].set(inputs.places(size - 1, size - 2) + 1),
    )


def discounted(inputs: Inputs, *, steps: int) -> Workload:
    """What is still to come of a series of rewards, those far away counting less."""

    def function(rewards: jax.Array) -> jax.Array:
        def step(later: jax.Array, now: jax.Array) -> tuple[jax.Array, jax.Array]:
            total = now + 0.99 * later
            return total, total

        return lax.scan(step, jnp.zeros_like(rewards[0]), rewards, reverse=True)[1]

    return function, (inputs.normal(steps),)


def simple_recurrence(inputs: Inputs, *, steps: int, batch: int, width: int) -> Workload:
    """A simple recurrent unit: gates of each element by itself, so that a step does next to
    nothing."""

    def function(given: jax.Array, forget: jax.Array, reset: jax.Array) -> jax.Array:
        def step(state: jax.Array, at: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
            u, f, r = at
            gate = jax.nn.sigmoid(f + 0.5 * state)
            state = gate * state + (1 - gate) * u
            return state, jax.nn.sigmoid(r + 0.5 * state) * jnp.tanh(state)

        return lax.scan(step, jnp.zeros_like(given[0]), (given, forget, reset))[1]

    return function, tuple(inputs.normal(steps, batch, width) for _ in range(3))


def repeated_waves(inputs: Inputs, *, size: int, times: int) -> Workload:
    """A chain whose every link uses the one before it four times, written out."""

    def function(x: jax.Array) -> jax.Array:
        for _ in range(times):
            x = jnp.sin(x) * x + jnp.cos(x * x) + 0.1 * x
        return x

    return function, (inputs.uniform(size),)


def annealed(inputs: Inputs, *, spins: int, steps: int) -> Workload:
    """A chain of spins that turn by chance, one a step, and the weights of what they go through."""

    def function(couplings: jax.Array, turned: jax.Array, chances: jax.Array) -> tuple:
        def step(state: tuple[jax.Array, jax.Array], at: tuple[jax.Array, ...]) -> tuple:
            (spins, weight), (place, chance, cold) = state, at
            other = spins.at[place].multiply(-1)
            before, after = spins @ couplings @ spins, other @ couplings @ other
            accepted = jnp.log(chance) < cold * (before - after)
            return (jnp.where(accepted, other, spins), weight - before / steps), accepted

        start = jnp.ones_like(couplings[0]), jnp.zeros_like(couplings[0, 0])
        cold = jnp.linspace(0, 1, steps, dtype=couplings.dtype)
        (spins, weight), accepted = lax.scan(step, start, (turned, chances, cold))
        return spins, weight, jnp.sum(accepted)

    return function, (
        inputs.normal(spins, spins, scale=1 / spins),
        inputs.places(spins, steps),
        inputs.uniform(steps, low=1e-3),
    )


def overlaps(inputs: Inputs, *, states: int, size: int) -> Workload:
    """The inner products of many pairs of complex vectors."""

    def function(a: jax.Array, b: jax.Array, c: jax.Array, d: jax.Array) -> tuple:
        found = jnp.einsum("ni,ni->n", lax.complex(a, b).conj(), lax.complex(c, d))
        return found.real, found.imag

    return function, tuple(inputs.normal(states, size) for _ in range(4))


def counted_alleles(inputs: Inputs, *, variants: int, samples: int) -> Workload:
    """How often there is each allele of a variant; some calls are missing."""

    def function(calls: jax.Array) -> jax.Array:
        known = jnp.where(calls == 0, 4, calls - 1)
        return jax.vmap(lambda row: jnp.bincount(row, length=5)[:4])(known)

    return function, (inputs.places(5, variants, samples),)


def overflowed(inputs: Inputs, *, size: int) -> Workload:
    """Squares of integers that overflow, and so may be negative: these are made positive."""

    def function(x: jax.Array) -> jax.Array:
        squares = x * x
        return jnp.where(squares < 0, jnp.abs(squares), squares)

    return function, (inputs.places(1 << 20, size),)


def repeated_rows(inputs: Inputs, *, copies: int, rows: int, length: int) -> Workload:
    """The sum of a column that is repeated along rows and for copies of these."""
    return lambda x: jnp.sum(jnp.broadcast_to(x, (copies, rows, length))), (
        inputs.places(64, rows, 1).astype(inputs.dtype),
    )


def resampled(inputs: Inputs, *, size: int, times: int) -> Workload:
    """How an image should change for its finer copy, interpolated linearly, to have less power."""

    def power(x: jax.Array, rows: jax.Array, columns: jax.Array) -> jax.Array:
        return jnp.sum(jax.scipy.ndimage.map_coordinates(x, [rows, columns], order=1) ** 2)

    places = (inputs.uniform(times * size, times * size, high=size - 1.0) for _ in range(2))
    return jax.value_and_grad(power), (inputs.normal(size, size), *places)


def drawn_from_before(inputs: Inputs, *, batch: int, steps: int) -> Workload:
    """The derivative of a series whose every value comes from one before it, drawn at random."""

    def function(x: jax.Array, along: jax.Array) -> jax.Array:
        def last(x: jax.Array) -> jax.Array:
            def body(x: jax.Array, step: jax.Array) -> tuple[jax.Array, None]:
                place = jax.random.randint(jax.random.key(step), (), 0, step + 1, jnp.int32)
                return x.at[step].set(2 * jnp.tanh(x[place])), None

            return lax.scan(body, x, jnp.arange(steps, dtype=jnp.int32))[0]

        return jax.vmap(lambda x, along: jax.jvp(last, (x,), (along,))[1])(x, along)

    return function, (inputs.normal(batch, steps), inputs.normal(batch, steps))


_case = functools.partial(Case, group="issues")
_named = functools.partial(_case, figure=5.0)
_other = functools.partial(_case, figure=1.0)

CASES = (
    _other(
        "gas_dynamics",
        gas_dynamics,
        {"size": 512},
        threads=("jax #24373", "xla #18478"),
        tiny={"size": 8},
        tolerance=256,
    ).with_neighbours(odd={"size": 509}, dtype="float64", view="strided"),
    _other(
        "attraction",
        attraction,
        {"places": 512, "masses": 700},
        threads=("xla #49131",),
        tiny={"places": 5, "masses": 7},
        tolerance=256,
    ).with_neighbours(odd={"places": 511, "masses": 701}, dtype="float64", view="transposed"),
    _named(
        "mixed_in_loop",
        mixed_in_loop,
        {"channels": 300, "length": 128, "steps": 2},
        threads=("jax #12868",),
        tiny={"channels": 5, "length": 7},
        tolerance=64,
    ).with_neighbours(odd={"channels": 301, "length": 127}, dtype="float64", view="transposed"),
    _named(
        "patches",
        patches,
        {"images": 2, "size": 224, "patch": 16, "features": 48},
        threads=("jax #23085",),
        tiny={"size": 8, "patch": 2, "features": 5},
        tolerance=64,
    ).with_neighbours(odd={"size": 225, "features": 47}, dtype="float64", view="strided", viewed=1),
    _other(
        "sample_gradients",
        sample_gradients,
        {"samples": 300, "size": 4, "features": 4},
        threads=("jax #1606",),
        tiny={"samples": 5},
        tolerance=64,
    ).with_neighbours(odd={"samples": 299, "size": 5}, dtype="float64", view="strided", viewed=2),
    _other(
        "unrolled_products",
        unrolled_products,
        {"points": 1000, "terms": 50},
        threads=("xla #5875",),
        tiny={"points": 7, "terms": 5},
        tolerance=64,
    ).with_neighbours(odd={"points": 999}, dtype="float64", view="transposed"),
    _named(
        "zero_form",
        zero_form,
        {"points": 1_000_000},
        threads=("xla #13054",),
        tiny={"points": 37},
        tolerance=64,
    ).with_neighbours(odd={"points": 999_983}, dtype="float64", view="transposed", viewed=1),
    _other(
        "masked_sums",
        masked_sums,
        {"batch": 50, "size": 40},
        threads=("jax #9366",),
        tiny={"batch": 3, "size": 7},
        tolerance=256,
    ).with_neighbours(odd={"batch": 49}, dtype="float64", view="strided"),
    _other(
        "discounted",
        discounted,
        {"steps": 20_000},
        threads=("jax #810",),
        tiny={"steps": 17},
        tolerance=256,
    ).with_neighbours(odd={"steps": 19_999}, dtype="float64", view="strided"),
    _other(
        "simple_recurrence",
        simple_recurrence,
        {"steps": 300, "batch": 4, "width": 128},
        threads=("tensorflow #56173",),
        tiny={"steps": 5, "width": 6},
        tolerance=256,
    ).with_neighbours(odd={"steps": 299, "width": 127}, dtype="float64", view="transposed"),
    _other(
        "repeated_waves",
        repeated_waves,
        {"size": 1000, "times": 10},
        threads=("jax #2777",),
        tiny={"size": 17, "times": 3},
        tolerance=4096,
    ).with_neighbours(odd={"size": 999}, dtype="float64", view="strided"),
    _other(
        "annealed",
        annealed,
        {"spins": 20, "steps": 1000},
        threads=("jax #1421",),
        tiny={"spins": 5, "steps": 7},
        tolerance=256,
    ).with_neighbours(odd={"spins": 19, "steps": 999}, dtype="float64", view="strided"),
    _other(
        "overlaps",
        overlaps,
        {"states": 1500, "size": 360},
        dtype="float64",
        threads=("Reactant.jl #3019",),
        tiny={"states": 5, "size": 7},
        tolerance=64,
    ).with_neighbours(odd={"states": 1499, "size": 359}, dtype="float32", view="strided"),
    _case(
        "counted_alleles",
        counted_alleles,
        {"variants": 301, "samples": 2000},
        threads=("sgkit #1266",),
        tiny={"variants": 3, "samples": 17},
        tolerance=0,
    ),
    _case(
        "overflowed",
        overflowed,
        {"size": 1 << 20},
        threads=("tensorflow #118178",),
        xla_errs=True,
        tiny={"size": 37},
        tolerance=0,
    ),
    _named(
        "repeated_rows",
        repeated_rows,
        {"copies": 2, "rows": 1024, "length": 2048},
        threads=("tensorflow #126812",),
        xla_errs=True,
        tiny={"rows": 7, "length": 5},
        tolerance=64,
    ).with_neighbours(odd={"rows": 1023, "length": 2047}, dtype="float64", view="strided"),
    _other(
        "resampled",
        resampled,
        {"size": 128, "times": 2},
        threads=("jax #26152",),
        tiny={"size": 5},
        tolerance=256,
    ).with_neighbours(odd={"size": 127}, dtype="float64", view="strided"),
    _named(
        "drawn_from_before",
        drawn_from_before,
        {"batch": 2, "steps": 2000},
        threads=("jax #31282",),
        tiny={"steps": 7},
        tolerance=256,
    ).with_neighbours(odd={"steps": 1999}, dtype="float64", view="strided"),
)
