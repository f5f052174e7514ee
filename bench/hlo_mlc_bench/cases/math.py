"""Special functions, random numbers, and formulas made of them."""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.scipy.stats import norm

from hlo_mlc_bench.case import Case, Inputs, Workload, of_normals, of_uniforms


def power(inputs: Inputs, *, size: int) -> Workload:
    def function(x: jax.Array, y: jax.Array) -> jax.Array:
        return x**y

    return function, (inputs.uniform(size, low=0.1, high=10.0), inputs.normal(size))


def angle(inputs: Inputs, *, size: int) -> Workload:
    def function(y: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.arctan2(y, x)

    return function, (inputs.normal(size), inputs.normal(size))


def zeta(inputs: Inputs, *, size: int) -> Workload:
    def function(s: jax.Array, q: jax.Array) -> jax.Array:
        return jax.lax.zeta(s, q)

    return function, (
        inputs.uniform(size, low=1.1, high=8.0),
        inputs.uniform(size, low=0.1, high=20.0),
    )


def trigamma(x: jax.Array) -> jax.Array:
    return jax.scipy.special.polygamma(1, x)


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


def sampled(inputs: Inputs, *, rows: int, tokens: int) -> Workload:
    """Tokens drawn from the same scores at two temperatures, each with a key of its own."""
    dtype = inputs.dtype

    def function(scores: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        def drawn(key: jax.Array, scores: jax.Array) -> jax.Array:
            return jnp.argmax(scores + jax.random.gumbel(key, scores.shape, dtype), -1)

        cool, hot = jax.random.split(jax.random.wrap_key_data(key))
        return drawn(cool, scores * 2), drawn(hot, scores)

    return function, (inputs.normal(rows, tokens), inputs.key())


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


_case = functools.partial(Case, sizes={"size": 1 << 20}, tiny={"size": 37})
_ODD = {"size": 1_000_003}

_FUNCTIONS: dict[str, tuple[Callable[..., Workload], float]] = {
    "erf": (of_normals(jax.lax.erf), 1.2),
    "erfc": (of_normals(jax.lax.erfc), 1.5),
    "erf_inv": (of_uniforms(jax.lax.erf_inv, -1.0, 1.0), 2.0),
    "expm1": (of_normals(jnp.expm1), 2.0),
    "log1p": (of_uniforms(jnp.log1p, -0.9, 10.0), 2.0),
    "logistic": (of_normals(jax.nn.sigmoid, 3.0), 1.5),
    "cbrt": (of_normals(jnp.cbrt), 20.0),
    "pow": (power, 4.0),
    "atan2": (angle, 20.0),
    "lgamma": (of_uniforms(jax.lax.lgamma, 0.01, 20.0), 2.0),
    "digamma": (of_uniforms(jax.lax.digamma, 0.01, 20.0), 2.0),
    "zeta": (zeta, 4.0),
    "bessel_i1e": (of_normals(jax.lax.bessel_i1e, 8.0), 2.0),
}
"""What builds each function, and its figure."""

# XLA's own f64 is off by more than 100 ULP there, so it is no reference (ours: docs/accuracy.md).
_INEXACT_IN_F64 = ("log1p", "erf_inv")

CASES = (
    *(
        _case(name, build, group="math", tolerance=8, figure=figure).with_neighbours(
            odd=_ODD, dtype="bfloat16" if name in _INEXACT_IN_F64 else "float64", view="strided"
        )
        for name, (build, figure) in _FUNCTIONS.items()
    ),
    # XLA's polygamma is off by 20 ULP.
    _case(
        "trigamma", of_uniforms(trigamma, 0.01, 20.0), group="math", tolerance=32, figure=20.0
    ).with_neighbours(odd=_ODD, dtype="float64", view="strided"),
    _case("black_scholes", black_scholes, group="math", tolerance=16, figure=2.0).with_neighbours(
        odd=_ODD, dtype="float64", view="strided"
    ),
    # What JAX computes in f32 is taken for exact here, but its formula loses digits far out.
    _case("normal", normal, group="random", tolerance=64, figure=1.5).with_neighbours(
        odd=_ODD, dtype="bfloat16", view="strided"
    ),
    _case("uniform", uniform, group="random", tolerance=2, figure=2.0).with_neighbours(
        odd=_ODD, dtype="bfloat16", view="strided"
    ),
    _case("dropout", dropout, group="random", tolerance=4, figure=2.0).with_neighbours(
        odd=_ODD, dtype="bfloat16", view="strided"
    ),
    Case(
        "sampled",
        sampled,
        {"rows": 64, "tokens": 2000},
        group="random",
        tiny={"rows": 3, "tokens": 50},
        tolerance=0,
        figure=2.0,
    ).with_neighbours(odd={"tokens": 8001}, dtype="float64", view="strided"),
    Case(
        "random_walk",
        random_walk,
        {"walkers": 1 << 14, "steps": 10},
        group="random",
        tiny={"walkers": 37, "steps": 3},
        tolerance=64,
        figure=2.0,
    ).with_neighbours(odd={"walkers": 16_381}, dtype="bfloat16", view="strided"),
)
