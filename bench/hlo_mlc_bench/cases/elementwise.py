"""One operation per element: activation and transcendental functions."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

from hlo_mlc_bench.case import Case, of_normals, of_uniforms

_case = functools.partial(
    Case, sizes={"size": 1 << 20}, group="elementwise", tiny={"size": 37}, tolerance=4
)
_ODD = {"size": 1_000_003}

CASES = (
    _case("gelu", of_normals(jax.nn.gelu, scale=2.0), figure=2.2).with_neighbours(
        odd=_ODD, dtype="bfloat16", view="strided"
    ),
    _case("exp", of_normals(jnp.exp), figure=1.5).with_neighbours(
        odd=_ODD, dtype="float64", view="strided"
    ),
    _case("sin", of_normals(jnp.sin, scale=10.0), figure=25.0).with_neighbours(
        odd=_ODD, dtype="float64", view="strided"
    ),
    _case("tanh", of_normals(jnp.tanh), figure=1.8).with_neighbours(
        odd=_ODD, dtype="float64", view="strided"
    ),
    _case("log", of_uniforms(jnp.log, low=0.1, high=10.0), figure=2.0).with_neighbours(
        odd=_ODD, dtype="float64", view="strided"
    ),
)
