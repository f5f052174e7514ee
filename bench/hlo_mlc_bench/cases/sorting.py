"""Putting in order: whole arrays, rows, positions, several keys, the largest few, medians."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

from hlo_mlc_bench.case import Case, Inputs, Workload, of_normals


def several_keys(inputs: Inputs, *, kinds: int, size: int) -> Workload:
    """Records by kind, then by value, with what belongs to them."""

    def function(kind: jax.Array, value: jax.Array, rest: jax.Array) -> tuple[jax.Array, ...]:
        return tuple(jax.lax.sort((kind, value, rest), num_keys=2))

    return function, (inputs.places(kinds, size), inputs.normal(size), inputs.normal(size))


def integers(inputs: Inputs, *, size: int) -> Workload:
    """Numbers up to two thousand million, or as many bits of them as the case's integers have."""
    return lambda x: jnp.sort(x), (_numbers(inputs, size),)


def rows_of_integers(inputs: Inputs, *, rows: int, columns: int) -> Workload:
    """The same, in rows."""
    return lambda x: jnp.sort(x, axis=-1), (_numbers(inputs, rows, columns),)


def _numbers(inputs: Inputs, *shape: int) -> jax.Array:
    numbers = inputs.places(1 << 31, *shape)
    return numbers.astype(inputs.dtype) if jnp.issubdtype(inputs.dtype, jnp.integer) else numbers


def rounded(inputs: Inputs, *, size: int) -> Workload:
    """Whole numbers, among them zeros of both signs, which stay as they come."""
    return lambda x: jnp.sort(x), (jnp.round(inputs.normal(size)),)


def largest_of_few(inputs: Inputs, *, rows: int, columns: int, kept: int) -> Workload:
    """The largest of rows that are mostly zeros, behind a relu, of which those that are not are
    whole numbers: most tie with others."""

    def function(x: jax.Array) -> list[jax.Array]:
        return jax.lax.top_k(jax.nn.relu(x), kept)

    return function, (jnp.round(inputs.normal(rows, columns)) - 1,)


def beams(inputs: Inputs, *, batch: int, beams: int, tokens: int) -> Workload:
    """The next step of a beam search: of all ways to go on the best few, in one row for each."""

    def function(scores: jax.Array, steps: jax.Array) -> list[jax.Array]:
        joined = scores[:, :, None] + steps
        return jax.lax.top_k(joined.reshape(batch, beams * tokens), beams)

    return function, (inputs.normal(batch, beams), inputs.normal(batch, beams, tokens))


def drawn(inputs: Inputs, *, rows: int, tokens: int, draws: int) -> Workload:
    """Several different tokens for each row: the largest of what they weigh, with noise."""

    def function(weights: jax.Array, noise: jax.Array) -> list[jax.Array]:
        gumbel = -jnp.log(-jnp.log(jnp.abs(noise) / 8 + 1 / 64))
        return jax.lax.top_k(weights + gumbel, draws)

    return function, (inputs.normal(rows, tokens), inputs.normal(rows, tokens))


_case = functools.partial(Case, group="sorting", tolerance=0)
_MILLION, _ODD, _TINY = {"size": 1 << 20}, {"size": 999_983}, {"size": 37}

CASES = (
    _case("sort", of_normals(jnp.sort), _MILLION, tiny=_TINY, figure=60.0).with_neighbours(
        odd=_ODD, dtype="float64", view="strided"
    ),
    _case("argsort", of_normals(jnp.argsort), _MILLION, tiny=_TINY, figure=15.0).with_neighbours(
        odd=_ODD, dtype="bfloat16", view="strided"
    ),
    _case("sort_integers", integers, _MILLION, tiny=_TINY, figure=12.0).with_neighbours(
        odd=_ODD, dtype="int16", view="strided"
    ),
    _case("sort_rounded", rounded, _MILLION, tiny=_TINY),
    _case(
        "sort_rows",
        of_normals(functools.partial(jnp.sort, axis=-1)),
        {"rows": 4096, "columns": 256},
        tiny={"rows": 3, "columns": 19},
        figure=10.0,
    ).with_neighbours(odd={"rows": 4093, "columns": 251}, dtype="float16", view="transposed"),
    _case(
        "sort_rows_of_integers",
        rows_of_integers,
        {"rows": 4096, "columns": 256},
        tiny={"rows": 3, "columns": 19},
        figure=10.0,
    ).with_neighbours(odd={"rows": 4093, "columns": 251}, dtype="int16", view="transposed"),
    _case(
        "argsort_rows",
        of_normals(functools.partial(jnp.argsort, axis=-1)),
        {"rows": 4096, "columns": 256},
        tiny={"rows": 3, "columns": 19},
    ),
    _case(
        "sort_several_keys",
        several_keys,
        {"kinds": 100, "size": 1 << 18},
        tiny={"kinds": 3, "size": 37},
    ),
    _case(
        "top_k",
        of_normals(functools.partial(jax.lax.top_k, k=32)),
        {"rows": 256, "columns": 50_000},
        tiny={"rows": 2, "columns": 70},
        figure=2.0,
    ).with_neighbours(odd={"rows": 251, "columns": 49_999}, dtype="bfloat16", view="strided"),
    _case(
        "largest_of_few",
        largest_of_few,
        {"rows": 512, "columns": 2000, "kept": 8},
        tiny={"rows": 2, "columns": 70, "kept": 8},
    ).with_neighbours(odd={"rows": 509, "columns": 1999}, dtype="bfloat16", view="strided"),
    _case(
        "beams",
        beams,
        {"batch": 16, "beams": 8, "tokens": 5001},
        tiny={"batch": 2, "beams": 3, "tokens": 21},
        tolerance=2,
    ).with_neighbours(
        odd={"batch": 1, "beams": 5, "tokens": 1000}, dtype="float64", view="transposed"
    ),
    _case(
        "drawn",
        drawn,
        {"rows": 64, "tokens": 5000, "draws": 8},
        tiny={"rows": 2, "tokens": 70, "draws": 3},
        tolerance=16,
    ),
    _case(
        "median_rows",
        of_normals(functools.partial(jnp.median, axis=-1)),
        {"rows": 4096, "columns": 256},
        tiny={"rows": 3, "columns": 19},
    ).with_neighbours(odd={"rows": 4093, "columns": 251}, dtype="float64", view="transposed"),
    _case("last_few", of_normals(lambda x: jnp.argsort(x)[-10:]), _MILLION, tiny=_TINY),
)
