"""Programs of small matrices: gradients, loops, batches, and what has no right answer, which is
wrong in the same way as LAPACK's."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.scipy import linalg

from hlo_mlc import mlc_jit
from making.matrices import (
    COMPLEX,
    DTYPES,
    adjoint,
    assert_stable,
    both,
    complex_matrices,
    matrices,
    norm,
    positive,
    special,
)


def test_the_real_part_of_a_diagonal_is_read_alone() -> None:
    a = np.zeros((3, 4, 4), np.complex64) + np.eye(4, dtype=np.complex64) * (2 + 5j)
    (_, mine), (_, theirs) = both(lambda a: tuple(lax.linalg.eigh(a, symmetrize_input=False)), a)
    np.testing.assert_allclose(mine, 2, rtol=1e-6)
    np.testing.assert_allclose(theirs, 2, rtol=1e-6)


def test_complex_matrices_without_an_answer() -> None:
    a = np.eye(3, dtype=np.complex64) * (1 + 2j) + np.zeros((5, 3, 3), np.complex64)
    a[1, 2, 2], a[2], a[3, 0, 1], a[4, 1, 1] = 0, 0, np.nan, 1j * np.inf
    b = np.ones((5, 3, 1), np.complex64)
    (mine,), (theirs,) = both(jnp.linalg.solve, a, b)
    np.testing.assert_allclose(mine[0], theirs[0], rtol=1e-6)
    assert not np.isfinite(mine[1:4]).all((-2, -1)).any()
    assert not np.isfinite(theirs[1:4]).all((-2, -1)).any()
    (mine, size), (_, theirs) = both(lambda a: tuple(jnp.linalg.slogdet(a)), a[:3])
    np.testing.assert_allclose(size, theirs, rtol=1e-6)
    assert np.isneginf(size[1:]).all()
    assert abs(mine[0] - (1 + 2j) ** 3 / abs((1 + 2j) ** 3)) < 1e-5


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_complex_divisions_do_not_overflow(scale: float) -> None:
    a = (
        complex_matrices((7,), 3, 3, "complex128") * 0
        + np.array([[3 + 4j, 1, 2j], [1j, 5 - 1j, 1], [2, 1j, -4 + 2j]]) * scale
    ).astype(np.complex64)
    (mine,), (theirs,) = both(jnp.linalg.inv, a)
    np.testing.assert_allclose(mine * scale, theirs * scale, rtol=1e-5, atol=1e-6)


def lower_solve(a: jax.Array, b: jax.Array) -> jax.Array:
    return linalg.solve_triangular(a, b, lower=True)


def turned_solve(a: jax.Array, b: jax.Array) -> jax.Array:
    return linalg.solve_triangular(a, b, trans=2, unit_diagonal=True)


def cho_solve(a: jax.Array, b: jax.Array) -> jax.Array:
    return linalg.cho_solve((jnp.linalg.cholesky(a), True), b)


def lu_solve(a: jax.Array, b: jax.Array) -> jax.Array:
    return linalg.lu_solve(linalg.lu_factor(a), b, trans=1)


@pytest.mark.parametrize("dtype", [*DTYPES, *COMPLEX])
@pytest.mark.parametrize("function", [lower_solve, turned_solve, cho_solve, lu_solve])
@pytest.mark.parametrize(("size", "columns"), [(3, 1), (9, 40), (13, 2)])
@pytest.mark.parametrize("way", ["as it is", "mapped", "one matrix", "gradient"])
def test_no_solve_is_left_to_lapack(
    way: str, size: int, columns: int, function: Callable, dtype: str
) -> None:
    """Of matrices near to one: results differ by roundings only."""
    with jax.enable_x64(dtype in ("float64", "complex128")):
        made = matrices if dtype in DTYPES else complex_matrices
        a, b = (made((5,), size, n, dtype, n) for n in (size, columns))
        a, b = (x / norm(x)[:, None, None] for x in (a, b))
        a = (a + adjoint(a) + 3 * np.eye(size)).astype(dtype)
        b = b.astype(dtype)
        if way == "mapped":
            function, b = jax.vmap(function, in_axes=(0, 1)), b.swapaxes(0, 1).copy()
        elif way == "one matrix":
            function, a = jax.vmap(function, in_axes=(None, 0)), a[0]
        elif way == "gradient":
            solve = function

            def function(a: jax.Array, b: jax.Array) -> tuple[jax.Array, ...]:
                return jax.grad(lambda *of: jnp.sum(jnp.abs(solve(*of)) ** 2), (0, 1))(a, b)

        mine, theirs = both(function, a, b)
        for ours, lapacks in zip(mine, theirs, strict=True):
            unit = size * np.finfo(dtype).eps
            assert np.all(np.abs(ours - lapacks) <= 20 * unit * np.abs(lapacks).max(initial=1))


@pytest.mark.parametrize("name", ["cholesky", "solve", "inv", "slogdet"])
def test_gradients_of_complex_functions(name: str) -> None:
    def function(a: jax.Array) -> jax.Array:
        if name == "slogdet":
            return jnp.linalg.slogdet(a)[1].sum()
        found = (
            jnp.linalg.solve(a, jnp.ones((5, 3, 2), a.dtype))
            if name == "solve"
            else getattr(jnp.linalg, name)(a)
        )
        return jnp.sum(jnp.abs(found) ** 2 * jnp.arange(found.size).reshape(found.shape))

    with jax.enable_x64(True):
        a = complex_matrices((5,), 3, 3, "complex128")
        a = a @ adjoint(a) / norm(a)[..., None, None] ** 2 + np.eye(3)
        (mine,), (theirs,) = both(jax.grad(function), a, coverage=0.9)
        np.testing.assert_allclose(mine, theirs, rtol=1e-8, atol=1e-9 * np.abs(theirs).max())


def test_a_mapped_complex_solve() -> None:
    a, b = (complex_matrices((17,), 3, n, "complex64", n) for n in (3, 1))
    (mine,), (theirs,) = both(jax.vmap(jnp.linalg.solve), a, b[..., 0])
    assert_stable(
        a @ mine[..., None] - b,
        a @ theirs[..., None] - b,
        norm(a) * norm(theirs[..., None]),
        3,
        "complex64",
    )


def test_norms_do_not_overflow() -> None:
    for scale in (1e30, 1e-30):
        a = (np.random.default_rng(0).standard_normal((5, 4, 4)) * scale).astype(np.float32)
        mine, theirs = both(jnp.linalg.qr, a)
        for ours, lapacks in zip(mine, theirs, strict=True):
            np.testing.assert_allclose(ours, lapacks, rtol=1e-3, atol=1e-5 * np.abs(lapacks).max())


def assert_same_kinds(mine: list[np.ndarray], theirs: list[np.ndarray]) -> None:
    """NaNs, infinities and zeros at the same places."""
    for ours, lapacks in zip(mine, theirs, strict=True):
        np.testing.assert_array_equal(np.isnan(ours), np.isnan(lapacks))
        infinite = np.isinf(lapacks)
        np.testing.assert_array_equal(np.isinf(ours), infinite)
        np.testing.assert_array_equal(ours[infinite], lapacks[infinite])


def test_what_is_not_positive_definite_has_no_factor() -> None:
    a = positive((6,), 4, "float32")
    a[1, 0, 0], a[2, 3, 3], a[3] = -1, -1, 0
    a[4, 2, 2] = np.nan
    (mine,), (theirs,) = both(jnp.linalg.cholesky, a)
    assert_same_kinds([mine], [theirs])
    assert np.isnan(np.tril(mine[1:4])).any((-2, -1)).all()


@pytest.mark.parametrize("count", [16, 37])
@pytest.mark.parametrize("axis", [1, 2])
def test_batches_along_any_axis(axis: int, count: int) -> None:
    a = np.moveaxis(positive((count,), 9, "float32"), 0, axis).copy()
    for function in (jnp.linalg.inv, jnp.linalg.cholesky):
        (mine,), (theirs,) = both(jax.vmap(function, in_axes=axis), a)
        np.testing.assert_allclose(mine, theirs, rtol=1e-2, atol=1e-3 * np.abs(theirs).max())


def test_steps_of_what_is_computed_first() -> None:
    a = special(19, 12, 12)

    def function(a: jax.Array) -> jax.Array:
        return jnp.linalg.slogdet(a * 2 + 9 * jnp.eye(12) + jnp.arange(19)[:, None, None])[1]

    (mine,), (theirs,) = both(function, a)
    np.testing.assert_allclose(mine, theirs, rtol=1e-5)


@pytest.mark.parametrize("size", [9, 16])
def test_large_matrices_without_an_answer(size: int) -> None:
    """Whether an element is infinite or NaN depends on the processor's LAPACK."""
    a = np.zeros((6, size, size), np.float32) + 2 * np.eye(size, dtype=np.float32)
    a[1, 3, 3], a[2], a[3, size - 1, 2], a[4, 5, 5] = 0, 1, np.nan, -1
    for function in (
        jnp.linalg.inv,
        lambda a: jnp.linalg.solve(a, jnp.ones((size, 1), a.dtype)),
        jnp.linalg.cholesky,
        lambda a: tuple(jnp.linalg.slogdet(a)),
    ):
        for ours, lapacks in zip(*both(function, a), strict=True):
            np.testing.assert_array_equal(np.isfinite(ours), np.isfinite(lapacks))
    (_, pivots, _), (_, theirs, _) = both(lambda a: tuple(lax.linalg.lu(a)), a)
    np.testing.assert_array_equal(pivots[:3], theirs[:3])


@pytest.mark.parametrize(
    "function",
    [
        jnp.linalg.inv,
        jnp.linalg.slogdet,
        jnp.linalg.det,
        lambda a: jnp.linalg.solve(a, jnp.ones((3, 1), a.dtype)),
        lambda a: lax.linalg.lu(a)[0],
    ],
)
def test_singular_matrices(function: Callable) -> None:
    a = np.stack(
        [
            np.array([[1, 2, 3], [2, 4, 6], [1, 1, 1]]),
            np.zeros((3, 3)),
            np.diag([1, 0, 2]),
            np.ones((3, 3)),
            np.eye(3),
        ]
    ).astype(np.float32)
    assert_same_kinds(*both(function, a))
    for one in a:  # there is a branch in the determinant of a single matrix
        assert_same_kinds(*both(function, one, coverage=0.9))


@pytest.mark.parametrize("place", [(0, 0), (1, 0), (2, 2), (0, 1)])
def test_solve_hands_on_nan_as_lapack_does(place: tuple[int, int]) -> None:
    a = np.eye(3, dtype=np.float32) * 2
    a[place] = np.nan
    assert_same_kinds(*both(lambda a: jnp.linalg.solve(a, jnp.ones((3, 1), a.dtype)), a))


def weighted(function: Callable) -> Callable:
    """A number that depends on every element of the results."""

    def total(*args: jax.Array) -> jax.Array:
        return sum(
            jnp.sum(r * jnp.cos(jnp.arange(r.size, dtype=r.dtype).reshape(r.shape)))
            for r in jax.tree.leaves(function(*args))
        )

    return total


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8, 12])
@pytest.mark.parametrize("name", ["cholesky", "solve", "inv", "qr", "slogdet", "eigvalsh"])
def test_gradients(name: str, size: int) -> None:
    a = positive((5,), size, "float32") + 2 * np.eye(size, dtype=np.float32)
    function = getattr(jnp.linalg, name)
    if name == "solve":

        def function(a: jax.Array) -> jax.Array:
            return jnp.linalg.solve(a, jnp.ones((5, size, 2), a.dtype))

    # That of a solve sorts a permutation to invert it.
    (mine,), (theirs,) = both(jax.grad(weighted(function)), a, coverage=0.9)
    np.testing.assert_allclose(mine, theirs, rtol=2e-3, atol=2e-4 * np.abs(theirs).max())


def test_in_the_body_of_a_loop() -> None:
    a = positive((), 3, "float32")

    def function(x: jax.Array) -> jax.Array:
        def step(x: jax.Array, _: None) -> tuple[jax.Array, None]:
            return jnp.linalg.solve(a + jnp.outer(x, x), x) + 1, None

        return lax.scan(step, x, None, length=20)[0]

    (mine,), (theirs,) = both(function, np.ones(3, np.float32))
    np.testing.assert_allclose(mine, theirs, rtol=1e-4)


@pytest.mark.parametrize("trips", [3, 4])
def test_a_factor_that_the_next_trip_begins_with(trips: int) -> None:
    a = np.random.default_rng(0).standard_normal((40, 12)).astype("float32")

    def function(x: jax.Array) -> jax.Array:
        def step(x: jax.Array, _: None) -> tuple[jax.Array, None]:
            return jnp.linalg.qr(a.T @ (a @ x))[0], None

        return lax.scan(step, x, None, length=trips)[0]

    (mine,), (theirs,) = both(function, np.eye(12, 4, dtype="float32"))
    np.testing.assert_allclose(np.abs(mine), np.abs(theirs), rtol=1e-3, atol=1e-4)


def test_larger_ones_stay_with_lapack() -> None:
    report = mlc_jit(jnp.linalg.solve, choose="ours").report(special(4, 17, 17), special(4, 17, 1))
    assert any("17" in reason or "larger than" in reason for reason in map(str, report.left))


def test_complex_ones_that_are_larger_stay_with_lapack() -> None:
    report = mlc_jit(jnp.linalg.inv, choose="ours").report(special(4, 17, 17).astype(np.complex64))
    assert any("larger than" in reason for reason in map(str, report.left))


@pytest.mark.parametrize("batch", [3, 8, 9])
def test_matrices_that_are_joined(check, batch: int) -> None:
    """Which of two arrays a matrix is read from differs from lane to lane."""
    x = np.random.default_rng(batch).normal(size=(batch, 5, 5)).astype(np.float32)

    def function(x):
        joined = jnp.tanh(jnp.concatenate([x, 2 - x])) + 10 * jnp.eye(5, dtype=x.dtype)
        q, r = jnp.linalg.qr(joined)
        return q @ r, jnp.linalg.inv(jnp.concatenate([x, x[::-1]]) + 9 * jnp.eye(5, dtype=x.dtype))

    check(function, x, kernels=None)
