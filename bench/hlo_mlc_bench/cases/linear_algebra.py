"""Factorizations and solves of many small matrices, and Fourier transforms of rows."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from hlo_mlc_bench.case import Case, Inputs, Workload


def _well_conditioned(inputs: Inputs, matrices: int, size: int) -> jax.Array:
    """Positive definite matrices, so that no more digits are lost than are added up."""
    a = inputs.normal(matrices, size, size)
    return a @ a.swapaxes(-1, -2) / size + jnp.eye(size, dtype=a.dtype)


def of_matrices(function: Callable) -> Callable[..., Workload]:
    """What builds `function` of a batch of positive definite matrices."""

    def build(inputs: Inputs, *, matrices: int, size: int) -> Workload:
        return lambda a: function(a), (_well_conditioned(inputs, matrices, size),)

    return build


def eigenvalues_and_rebuilt(values: jax.Array, vectors: jax.Array) -> tuple[jax.Array, jax.Array]:
    """What there is one right answer to: eigenvectors may point either way."""
    return values, (vectors * values[..., None, :]) @ vectors.swapaxes(-1, -2)


def solve(inputs: Inputs, *, matrices: int, size: int) -> Workload:
    def function(a: jax.Array, b: jax.Array) -> jax.Array:
        return jnp.linalg.solve(a, b[..., None])[..., 0]

    return function, (_well_conditioned(inputs, matrices, size), inputs.normal(matrices, size))


def triangular(inputs: Inputs, *, matrices: int, size: int) -> Workload:
    def function(a: jax.Array, b: jax.Array) -> jax.Array:
        return jax.scipy.linalg.solve_triangular(a, b[..., None], lower=True)[..., 0]

    return function, (_well_conditioned(inputs, matrices, size), inputs.normal(matrices, size))


def transforms(inputs: Inputs, *, rows: int, length: int) -> Workload:
    """Fourier transforms of rows of complex numbers."""
    part = inputs.normal(2, rows, length)
    return lambda z: jnp.fft.fft(z), (jax.lax.complex(part[0], part[1]),)


def filtered(inputs: Inputs, *, rows: int, length: int) -> Workload:
    """Rows of real numbers, filtered between two transforms."""

    def function(x: jax.Array, response: jax.Array) -> jax.Array:
        return jnp.fft.irfft(jnp.fft.rfft(x) * response, n=length)

    return function, (inputs.normal(rows, length), inputs.uniform(length // 2 + 1))


def solve_complex(inputs: Inputs, *, matrices: int, size: int) -> Workload:
    def function(a: jax.Array, turn: jax.Array, b: jax.Array) -> jax.Array:
        x = jnp.linalg.solve(a + 1j * turn, (b - 1j)[..., None])[..., 0]
        return jnp.stack((x.real, x.imag), -1)

    return function, (
        _well_conditioned(inputs, matrices, size),
        inputs.normal(matrices, size, size, scale=0.1),
        inputs.normal(matrices, size),
    )


def _case(
    name: str, build: Callable[..., Workload], size: int, figure: float, matrices: int = 10_000
) -> Case:
    case = Case(
        f"{name}_{size}x{size}",
        build,
        {"matrices": matrices, "size": size},
        group="linear algebra",
        tiny={"matrices": 7, "size": min(size, 4)},
        tolerance=64,
        figure=figure,
    )
    return case.with_neighbours(
        odd={"matrices": matrices + 1 - matrices % 2}, dtype="float64", view="strided"
    )


CASES = (
    _case("solve", solve, 3, 8.0, 86_000),
    _case("solve", solve, 8, 5.0),
    _case("solve", solve, 16, 5.0),
    _case("solve_complex", solve_complex, 3, 8.0, 86_000),
    _case("cholesky", of_matrices(jnp.linalg.cholesky), 4, 5.0),
    _case("cholesky", of_matrices(jnp.linalg.cholesky), 8, 5.0),
    _case("qr", of_matrices(lambda a: tuple(jnp.linalg.qr(a))), 4, 5.0),
    _case("qr", of_matrices(lambda a: tuple(jnp.linalg.qr(a))), 8, 5.0),
    _case("eigvalsh", of_matrices(jnp.linalg.eigvalsh), 4, 5.0),
    _case("eigh", of_matrices(lambda a: eigenvalues_and_rebuilt(*jnp.linalg.eigh(a))), 8, 5.0),
    _case("eigh", of_matrices(lambda a: eigenvalues_and_rebuilt(*jnp.linalg.eigh(a))), 16, 5.0),
    _case("inverse", of_matrices(jnp.linalg.inv), 4, 5.0),
    _case("slogdet", of_matrices(lambda a: tuple(jnp.linalg.slogdet(a))), 4, 5.0),
    _case("solve_triangular", triangular, 8, 3.0),
    *(
        Case(
            name,
            build,
            {"rows": 8192, "length": 16},
            group="linear algebra",
            figure=figure,
            tiny={"rows": 7, "length": 6},
            tolerance=16,
        ).with_neighbours(odd={"rows": 8191, "length": 15}, dtype="float64", view="strided")
        for name, build, figure in (
            ("short_transforms", transforms, 1.5),
            ("short_filter", filtered, 3.0),
        )
    ),
    *(
        Case(
            name,
            build,
            {"rows": 1024, "length": 512},
            group="linear algebra",
            figure=1.5,
            tiny={"rows": 7, "length": 72},
            tolerance=16,
        ).with_neighbours(odd={"rows": 1023, "length": 360}, dtype="float64", view="strided")
        for name, build in (("long_transforms", transforms), ("long_filter", filtered))
    ),
)
