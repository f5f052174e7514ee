"""Special functions, random numbers, and formulas made of them."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.scipy.stats import norm

from hlo_mlc_bench.case import Case, Inputs, Workload

_MILLION = 1 << 20


def _of_normals(
    function: Callable[[jax.Array], jax.Array], scale: float = 1.0
) -> Callable[..., Workload]:
    def build(inputs: Inputs, *, size: int) -> Workload:
        return lambda x: function(x), (inputs.normal(size, scale=scale),)

    return build


def _of_uniforms(
    function: Callable[[jax.Array], jax.Array], low: float, high: float
) -> Callable[..., Workload]:
    def build(inputs: Inputs, *, size: int) -> Workload:
        return lambda x: function(x), (inputs.uniform(size, low=low, high=high),)

    return build


def power(inputs: Inputs, *, size: int) -> Workload:
    def function(x: jax.Array, y: jax.Array) -> jax.Array:
        return x**y

    return function, (inputs.uniform(size, low=0.1, high=10.0), inputs.normal(size))


def angle(inputs: Inputs, *, size: int) -> Workload:
    def function(y: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.arctan2(y, x)

    return function, (inputs.normal(size), inputs.normal(size))


def black_scholes(inputs: Inputs, *, size: int) -> Workload:
    """Prices of European calls and puts."""

    def function(
        spot: jax.Array, strike: jax.Array, years: jax.Array, rate: jax.Array, spread: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        deviation = spread * jnp.sqrt(years)
        first = (jnp.log(spot / strike) + (rate + 0.5 * spread * spread) * years) / deviation
        second = first - deviation
        discounted = strike * jnp.exp(-rate * years)
        call = spot * norm.cdf(first) - discounted * norm.cdf(second)
        put = discounted * norm.cdf(-second) - spot * norm.cdf(-first)
        return call, put

    ranges = ((50.0, 150.0), (50.0, 150.0), (0.1, 2.0), (0.01, 0.05), (0.1, 0.5))
    return function, tuple(inputs.uniform(size, low=low, high=high) for low, high in ranges)


def normal(inputs: Inputs, *, size: int) -> Workload:
    dtype = inputs.dtype

    def function(key: jax.Array) -> jax.Array:
        return jax.random.normal(jax.random.wrap_key_data(key), (size,), dtype)

    return function, (inputs.key(),)


def uniform(inputs: Inputs, *, size: int) -> Workload:
    dtype = inputs.dtype

    def function(key: jax.Array) -> jax.Array:
        return jax.random.uniform(jax.random.wrap_key_data(key), (size,), dtype)

    return function, (inputs.key(),)


def dropout(inputs: Inputs, *, size: int) -> Workload:
    def function(x: jax.Array, key: jax.Array) -> jax.Array:
        kept = jax.random.bernoulli(jax.random.wrap_key_data(key), jnp.float32(0.9), x.shape)
        return jnp.where(kept, x / 0.9, 0.0)

    return function, (inputs.normal(size), inputs.key())


def random_walk(inputs: Inputs, *, walkers: int, steps: int) -> Workload:
    """Random numbers inside a loop."""
    dtype = inputs.dtype

    def function(x: jax.Array, key: jax.Array) -> jax.Array:
        def step(
            carry: tuple[jax.Array, jax.Array], _: None
        ) -> tuple[tuple[jax.Array, jax.Array], None]:
            x, key = carry
            key, own = jax.random.split(key)
            return (x + jax.random.normal(own, x.shape, dtype), key), None

        return jax.lax.scan(step, (x, jax.random.wrap_key_data(key)), None, length=steps)[0][0]

    return function, (inputs.zeros(walkers), inputs.key())


_FUNCTIONS: dict[str, tuple[Callable[..., Workload], float]] = {
    "erf": (_of_normals(jax.lax.erf), 1.2),
    "erfc": (_of_normals(jax.lax.erfc), 1.5),
    "erf_inv": (_of_uniforms(jax.lax.erf_inv, -1.0, 1.0), 2.0),
    "expm1": (_of_normals(jnp.expm1), 2.0),
    "log1p": (_of_uniforms(jnp.log1p, -0.9, 10.0), 2.0),
    "logistic": (_of_normals(jax.nn.sigmoid, 3.0), 1.5),
    "cbrt": (_of_normals(jnp.cbrt), 20.0),
    "pow": (power, 4.0),
    "atan2": (angle, 20.0),
    "lgamma": (_of_uniforms(jax.lax.lgamma, 0.01, 20.0), 2.0),
    "digamma": (_of_uniforms(jax.lax.digamma, 0.01, 20.0), 2.0),
}

# XLA's own f64 is off by more than 100 ULP there, so it is no reference (ours: docs/accuracy.md).
_INEXACT_IN_F64 = ("log1p", "erf_inv")

CASES = (
    *(
        Case(
            name=name,
            group="math",
            build=build,
            sizes={"size": _MILLION},
            tiny={"size": 37},
            tolerance=8,
            figure=figure,
        ).with_neighbours(
            odd={"size": 1_000_003},
            dtype="bfloat16" if name in _INEXACT_IN_F64 else "float64",
            view="strided",
        )
        for name, (build, figure) in _FUNCTIONS.items()
    ),
    Case(
        name="black_scholes",
        group="math",
        build=black_scholes,
        sizes={"size": _MILLION},
        tiny={"size": 37},
        tolerance=16,
        figure=2.0,
    ).with_neighbours(odd={"size": 1_000_003}, dtype="float64", view="strided"),
    # What JAX computes in f32 is taken for exact here, but its formula loses digits far out.
    Case(
        name="normal",
        group="random",
        build=normal,
        sizes={"size": _MILLION},
        tiny={"size": 37},
        tolerance=64,
        figure=1.5,
    ).with_neighbours(odd={"size": 1_000_003}, dtype="bfloat16", view="strided"),
    Case(
        name="uniform",
        group="random",
        build=uniform,
        sizes={"size": _MILLION},
        tiny={"size": 37},
        tolerance=2,
        figure=2.0,
    ).with_neighbours(odd={"size": 1_000_003}, dtype="bfloat16", view="strided"),
    Case(
        name="dropout",
        group="random",
        build=dropout,
        sizes={"size": _MILLION},
        tiny={"size": 37},
        tolerance=4,
        figure=2.0,
    ).with_neighbours(odd={"size": 1_000_003}, dtype="bfloat16", view="strided"),
    Case(
        name="random_walk",
        group="random",
        build=random_walk,
        sizes={"walkers": 1 << 14, "steps": 10},
        tiny={"walkers": 37, "steps": 3},
        tolerance=64,
        figure=2.0,
    ).with_neighbours(odd={"walkers": 16_381}, dtype="bfloat16", view="strided"),
)
