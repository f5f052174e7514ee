"""Factorizations and solves of small matrices: as stable as LAPACK's."""

from __future__ import annotations

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
    batch_for,
    both,
    complex_matrices,
    matrices,
    norm,
    positive,
    special,
    transposed,
    widened,
)

SIZES = range(1, 17)
LARGEST, MOST_ELEMENTS = 16, 512


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", SIZES)
def test_cholesky(size: int, dtype: str) -> None:
    with jax.enable_x64(dtype == "float64"):
        a = positive(batch_for(size), size, dtype)
        for function in (
            jnp.linalg.cholesky,
            lambda a: transposed(jnp.linalg.cholesky(a, upper=True)),
        ):
            (mine,), (theirs,) = both(function, a)
            assert_stable(
                mine @ transposed(mine) - a, theirs @ transposed(theirs) - a, norm(a), size, dtype
            )
            assert np.all(np.triu(mine, 1) == 0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("columns", [1, 3, 20])
def test_solve_triangular(size: int, columns: int, dtype: str) -> None:
    batch = batch_for(size)
    with jax.enable_x64(dtype == "float64"):
        a, b = (matrices(batch, size, n, dtype, n) for n in (size, columns))
        a += 10 * np.abs(a).max(initial=0) * np.eye(size, dtype=dtype)
        for lower, transpose, unit in ((True, 0, False), (False, 1, False), (False, 0, True)):

            def function(a, b, lower=lower, transpose=transpose, unit=unit):
                return linalg.solve_triangular(
                    a, b, lower=lower, trans=transpose, unit_diagonal=unit
                )

            if unit:
                a = (a / np.abs(a).max(initial=1)).astype(dtype)
            (mine,), (theirs,) = both(function, a, b)
            factor = np.tril(a) if lower else np.triu(a)
            if unit:
                factor = factor - np.triu(np.tril(factor)) + np.eye(size)
            factor = (transposed(factor) if transpose else factor).astype(np.float64)
            assert_stable(
                factor @ mine - b, factor @ theirs - b, norm(factor) * norm(theirs), size, dtype
            )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", SIZES)
def test_solve(size: int, dtype: str) -> None:
    batch = batch_for(size)
    with jax.enable_x64(dtype == "float64"):
        a, b = matrices(batch, size, size, dtype), matrices(batch, size, 2, dtype, 1)
        covered = size <= LARGEST
        (mine,), (theirs,) = both(jnp.linalg.solve, a, b, coverage=covered)
        assert_stable(a @ mine - b, a @ theirs - b, norm(a) * norm(theirs), size, dtype)


def assert_factors(a: np.ndarray, dtype: str, coverage: float) -> None:
    """As stable as LAPACK's, by the same pivots."""
    rows, columns = a.shape[-2:]
    steps = min(rows, columns)
    mine, theirs = both(lambda a: tuple(lax.linalg.lu(a)), a, coverage=coverage)
    residuals = []
    for lu, pivots, permutation in (mine, theirs):
        lower = np.tril(lu[..., :steps], -1) + np.eye(rows, steps)
        order = permutation.astype(int)[..., None]
        residuals.append(lower @ np.triu(lu[..., :steps, :]) - np.take_along_axis(a, order, -2))
        assert pivots.shape[-1] == steps
    for k in (1, 2):
        np.testing.assert_array_equal(mine[k], theirs[k])
    assert_stable(*residuals, norm(a), max(rows, columns), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("rows", "columns"),
    [*((n, n) for n in range(1, 18)), (5, 3), (3, 5), (8, 1), (1, 8), (16, 9), (9, 16), (13, 2)],
)
def test_lu(rows: int, columns: int, dtype: str) -> None:
    with jax.enable_x64(dtype == "float64"):
        a = matrices(batch_for(rows), rows, columns, dtype)
        # Of none, a loop makes permutations.
        assert_factors(a, dtype, coverage=0.6 * (max(rows, columns) <= LARGEST))


def is_reflected(rows: int, columns: int, mode: str) -> bool:
    """Whether matrices of that many rows and columns are factorized by our kernels."""
    q_columns = rows if mode == "complete" else min(rows, columns)
    return (
        min(rows, max(columns, q_columns)) <= LARGEST
        and rows * max(columns, q_columns) <= MOST_ELEMENTS
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mode", ["reduced", "complete"])
@pytest.mark.parametrize(
    ("rows", "columns"),
    [*((n, n) for n in range(1, 18)), (5, 3), (3, 5), (8, 1), (1, 8), (22, 9), (9, 22), (32, 16)],
)
def test_qr(rows: int, columns: int, mode: str, dtype: str) -> None:
    with jax.enable_x64(dtype == "float64"):
        a = matrices(batch_for(rows), rows, columns, dtype)
        covered = is_reflected(rows, columns, mode)
        mine, theirs = both(lambda a: tuple(jnp.linalg.qr(a, mode=mode)), a, coverage=covered)
        wrong, skew = zip(
            *((q @ r - a, transposed(q) @ q - np.eye(q.shape[-1])) for q, r in (mine, theirs)),
            strict=True,
        )
        size = max(rows, columns)
        assert_stable(*wrong, norm(a), size, dtype)
        assert_stable(*skew, np.sqrt(size) * np.ones(a.shape[:-2]), size, dtype)
        np.testing.assert_array_equal(
            np.sign(np.einsum("...ii->...i", mine[1][..., :columns, :])) if rows >= columns else 0,
            np.sign(np.einsum("...ii->...i", theirs[1][..., :columns, :]))
            if rows >= columns
            else 0,
        )


def symmetric(size: int) -> np.ndarray:
    """37 matrices [size, size] of each kind."""
    rng = np.random.default_rng(size)
    a = rng.standard_normal((37, size, size))
    q = np.linalg.qr(a)[0]
    numbers = np.arange(size)
    kinds = {
        "random": a,
        "graded": q * 10.0 ** rng.uniform(-8, 3, (37, 1, size)) @ transposed(q),
        "clustered": q * (1 + 1e-5 * (numbers % 2)) @ transposed(q) * 1e25,
        "constant": np.ones(a.shape) + 1e-3 * a,
        "diagonal": np.zeros_like(a) + np.diag(numbers[::-1] - 1.0),
        "two eigenvalues": q * (numbers % 2) @ transposed(q),
        "product": a @ transposed(a),
        "hilbert": np.zeros_like(a) + 1 / (1.0 + np.add.outer(numbers, numbers)),
    }
    return np.concatenate([a + transposed(a) for a in kinds.values()])


def assert_eigenvectors(a: np.ndarray, dtype: str, coverage: float = 1) -> None:
    """In ascending order of their values, and as stable as LAPACK's."""
    size = a.shape[-1]
    mine, theirs = both(lambda a: tuple(jnp.linalg.eigh(a)), a, coverage=coverage)
    wrong, skew = zip(
        *((a @ v - v * w[..., None, :], adjoint(v) @ v - np.eye(size)) for w, v in (mine, theirs)),
        strict=True,
    )
    assert_stable(*wrong, norm(a), size, dtype)
    assert_stable(*skew, np.sqrt(size) * np.ones(a.shape[:-2]), size, dtype)
    assert_stable((mine[0] - theirs[0])[..., None], 0 * theirs[0][..., None], norm(a), size, dtype)
    assert np.all(np.diff(mine[0]) >= 0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 16, 17])
def test_eigh(size: int, dtype: str) -> None:
    with jax.enable_x64(dtype == "float64"):
        a = symmetric(size)[1:].astype(dtype)  # an odd number: the last vector is not full
        assert_eigenvectors(a, dtype, coverage=size <= LARGEST)


@pytest.mark.parametrize("batch", [(), (1,), (3,), (17,), (2, 5), (1000,), (0,)])
def test_eigh_of_any_number_of_matrices(batch: tuple[int, ...]) -> None:
    a = matrices(batch, 6, 6, "float32")
    a = a + transposed(a)
    for function in (jnp.linalg.eigh, lambda a: (jnp.linalg.eigvalsh(a),)):
        mine, theirs = both(function, a)
        np.testing.assert_allclose(mine[0], theirs[0], atol=1e-5 * np.abs(a).max(initial=1))
        if len(mine) > 1:
            wrong = a @ mine[1] - mine[1] * mine[0][..., None, :]
            assert_stable(wrong, 0 * wrong, norm(a), 6, "float32")


def test_eigh_hands_on_what_is_not_finite() -> None:
    a = np.zeros((4, 5, 5), np.float32) + np.eye(5, dtype=np.float32)
    a[0, 2, 1] = a[0, 1, 2] = a[1, 4, 4] = np.nan
    mine, _ = both(lambda a: tuple(jnp.linalg.eigh(a)), a)
    for result in mine:
        assert np.isnan(result[:2]).all()
        assert np.isfinite(result[2:]).all()


def test_eigh_of_a_mapped_function_and_its_gradient() -> None:
    a = positive((7,), 6, "float64")

    def total(a: jax.Array) -> jax.Array:
        values, vectors = jnp.linalg.eigh(a)
        return jnp.sum(jnp.cos(values)) + jnp.sum(vectors[0] ** 2 * jnp.arange(6))

    with jax.enable_x64(True):
        (mine,), (theirs,) = both(jax.vmap(jax.grad(total)), a, coverage=0.9)
        np.testing.assert_allclose(mine, theirs, rtol=1e-8, atol=1e-9 * np.abs(theirs).max())


@pytest.mark.parametrize("dtype", COMPLEX)
@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 8, 9, 16, 17])
def test_complex_cholesky(size: int, dtype: str) -> None:
    with jax.enable_x64(dtype == "complex128"):
        a = complex_matrices(batch_for(size), size, size, dtype)
        a = (a @ adjoint(a) + 1e-3 * norm(a)[..., None, None] ** 2 * np.eye(size)).astype(dtype)
        for upper in (False, True):
            (mine,), (theirs,) = both(
                lambda a, upper=upper: jnp.linalg.cholesky(a, upper=upper),
                a,
                coverage=size <= LARGEST,
            )
            wrong = [adjoint(f) @ f - a if upper else f @ adjoint(f) - a for f in (mine, theirs)]
            assert_stable(*wrong, norm(a), size, dtype)
            assert np.all((np.tril(mine, -1) if upper else np.triu(mine, 1)) == 0)
            assert np.all(np.einsum("...ii->...i", mine).imag == 0)


@pytest.mark.parametrize("dtype", COMPLEX)
@pytest.mark.parametrize(
    ("size", "columns"),
    [
        (1, 1),
        (2, 3),
        (3, 1),
        (4, 20),
        (8, 8),
        (9, 2),
        (16, 16),
        (17, 1),
        (7, 3),
        (14, 1),
        (14, 40),
        (16, 33),
        (12, 100),
        (15, 65),
    ],
)
def test_complex_solve_triangular(size: int, columns: int, dtype: str) -> None:
    with jax.enable_x64(dtype == "complex128"):
        a, b = (complex_matrices(batch_for(size), size, n, dtype, n) for n in (size, columns))
        a += 10 * np.abs(a).max(initial=0) * np.eye(size, dtype=dtype)
        for left, lower, transpose, conjugate in (
            (True, True, False, False),
            (True, False, True, False),
            (True, True, True, True),
            (False, True, False, False),
            (False, False, True, True),
            (True, True, False, True),
        ):
            right = b if left else transposed(b).copy()

            def function(a, b, left=left, lower=lower, transpose=transpose, conjugate=conjugate):
                return lax.linalg.triangular_solve(
                    a, b, left_side=left, lower=lower, transpose_a=transpose, conjugate_a=conjugate
                )

            (mine,), (theirs,) = both(function, a, right, coverage=size <= LARGEST)
            factor = widened(np.tril(a) if lower else np.triu(a))
            factor = transposed(factor) if transpose else factor
            factor = factor.conj() if conjugate else factor
            wrong = [(factor @ x if left else x @ factor) - right for x in (mine, theirs)]
            assert_stable(*wrong, norm(factor) * norm(theirs), size, dtype)


@pytest.mark.parametrize("dtype", COMPLEX)
@pytest.mark.parametrize("batch", [(), (1,), (3,), (17,), (2, 5), (1000,), (0,)])
@pytest.mark.parametrize("size", [1, 3, 4, 9])
def test_complex_solve(size: int, batch: tuple[int, ...], dtype: str) -> None:
    with jax.enable_x64(dtype == "complex128"):
        a, b = (complex_matrices(batch, size, n, dtype, n) for n in (size, 2))
        for function in (jnp.linalg.solve, lambda a, b: jnp.linalg.inv(a) @ b):
            (mine,), (theirs,) = both(function, a, b, coverage=1 if batch else 0.9)
            scale = (
                norm(a) * norm(theirs)
                if function is jnp.linalg.solve
                else norm(a) ** 2 * norm(np.linalg.inv(widened(a))) * norm(theirs)
            )
            assert_stable(a @ mine - b, a @ theirs - b, scale, size, dtype)


@pytest.mark.parametrize("dtype", COMPLEX)
@pytest.mark.parametrize(
    ("rows", "columns"),
    [
        (1, 1),
        (2, 2),
        (3, 3),
        (4, 4),
        (5, 5),
        (4, 2),
        (2, 3),
        (6, 6),
        (9, 9),
        (16, 16),
        (12, 7),
        (7, 12),
        (17, 17),
    ],
)
def test_complex_lu(rows: int, columns: int, dtype: str) -> None:
    with jax.enable_x64(dtype == "complex128"):
        a = complex_matrices(batch_for(rows), rows, columns, dtype)
        assert_factors(a, dtype, coverage=max(rows, columns) <= LARGEST)


@pytest.mark.parametrize("dtype", COMPLEX)
@pytest.mark.parametrize("mode", ["reduced", "complete"])
@pytest.mark.parametrize(
    ("rows", "columns"),
    [
        (1, 1),
        (2, 2),
        (3, 3),
        (4, 4),
        (5, 3),
        (3, 5),
        (8, 1),
        (1, 4),
        (6, 6),
        (16, 16),
        (22, 5),
        (17, 17),
    ],
)
def test_complex_qr(rows: int, columns: int, mode: str, dtype: str) -> None:
    with jax.enable_x64(dtype == "complex128"):
        a = complex_matrices(batch_for(rows), rows, columns, dtype)
        covered = is_reflected(rows, columns, mode)
        mine, theirs = both(lambda a: tuple(jnp.linalg.qr(a, mode=mode)), a, coverage=covered)
        wrong, skew = zip(
            *((q @ r - a, adjoint(q) @ q - np.eye(q.shape[-1])) for q, r in (mine, theirs)),
            strict=True,
        )
        assert_stable(*wrong, norm(a), max(rows, columns), dtype)
        assert_stable(
            *skew, np.sqrt(max(rows, columns)) * np.ones(a.shape[:-2]), max(rows, columns), dtype
        )
        assert np.all(np.tril(mine[1], -1) == 0)
        np.testing.assert_allclose(
            mine[1], theirs[1], rtol=1e-3, atol=1e-4 * np.abs(a).max(initial=0)
        )


def hermitian(size: int) -> np.ndarray:
    """19 matrices [size, size] of each kind."""
    rng = np.random.default_rng(size)
    a = rng.standard_normal((19, size, size)) + 1j * rng.standard_normal((19, size, size))
    q = np.linalg.qr(a)[0]
    numbers = np.arange(size)
    kinds = {
        "random": a,
        "graded": q * 10.0 ** rng.uniform(-8, 3, (19, 1, size)) @ adjoint(q),
        "two eigenvalues": q * (numbers % 2) @ adjoint(q),
        "diagonal": np.zeros_like(a) + np.diag(numbers[::-1] - 1.0),
        # Squares of elements off the diagonal underflow.
        "tiny": a * 1e-21 + np.diag(numbers % 3),
    }
    return np.concatenate([a + adjoint(a) for a in kinds.values()])


@pytest.mark.parametrize("dtype", COMPLEX)
@pytest.mark.parametrize("size", [1, 2, 3, 5, 8, 9, 16, 17])
def test_complex_eigh(size: int, dtype: str) -> None:
    with jax.enable_x64(dtype == "complex128"):
        assert_eigenvectors(hermitian(size).astype(dtype), dtype, coverage=size <= LARGEST)


@pytest.mark.parametrize("batch", [(1,), (3,), (17,), (2, 5), (1000,), (0,)])
def test_complex_eigenvalues_of_any_number_of_matrices(batch: tuple[int, ...]) -> None:
    a = complex_matrices(batch, 6, 6, "complex64")
    a = a + adjoint(a)
    (mine,), (theirs,) = both(jnp.linalg.eigvalsh, a)
    assert np.all(np.abs(mine - theirs) <= 1e-5 * norm(a)[..., None])


@pytest.mark.parametrize("dtype", [*DTYPES, *COMPLEX])
@pytest.mark.parametrize("size", [1, 4, 9, 10, 16])
def test_eigenvectors_of_one_matrix(size: int, dtype: str) -> None:
    with jax.enable_x64(dtype in ("float64", "complex128")):
        a = (matrices if dtype in DTYPES else complex_matrices)((), size, size, dtype)
        assert_eigenvectors(a + adjoint(a), dtype)


def test_eigenvectors_of_one_large_matrix_are_found_by_lapack_where_that_is_faster() -> None:
    function = mlc_jit(jnp.linalg.eigh, choose="auto", target="x86-64-v3")
    assert "lapack.syevd" in {left.op for left in function.report(special(16, 16)).left}
    assert function.report(special(64, 16, 16)).coverage == 1


def reflected(vectors: np.ndarray, factors: np.ndarray) -> np.ndarray:
    """Q of what a QR factorization leaves, in 64 bits."""
    rows = vectors.shape[-2]
    q = np.zeros((*vectors.shape[:-2], rows, rows), widened(vectors).dtype) + np.eye(rows)
    for k in reversed(range(factors.shape[-1])):
        v = widened(np.tril(vectors, -1)[..., k, None]) + np.eye(rows)[:, k, None]
        q = q - factors[..., k, None, None] * (v @ (adjoint(v) @ q))
    return q


@pytest.mark.parametrize("dtype", [*DTYPES, *COMPLEX])
@pytest.mark.parametrize(
    ("rows", "reflections", "columns"),
    [
        (1, 1, 3),
        (2, 2, 3),
        (4, 3, 5),
        (4, 4, 40),
        (7, 7, 1),
        (7, 5, 20),
        (12, 12, 3),
        (16, 16, 33),
        (15, 9, 100),
        (13, 13, 2),
        (30, 16, 20),
    ],
)
def test_products_with_q(rows: int, reflections: int, columns: int, dtype: str) -> None:
    with jax.enable_x64(dtype in ("float64", "complex128")):
        made = matrices if dtype in DTYPES else complex_matrices
        batch = batch_for(rows)
        vectors, factors = jnp.linalg.qr(made(batch, rows, reflections, dtype), mode="raw")
        vectors, factors = np.asarray(vectors.mT), np.asarray(factors)
        q = reflected(vectors, factors)
        for left in (True, False):
            c = made(batch, *((rows, columns) if left else (columns, rows)), dtype, 1)
            for transpose in (True, False):
                (mine,), (theirs,) = both(
                    lambda *of, left=left, transpose=transpose: lax.linalg.ormqr(
                        *of, left=left, transpose=transpose
                    ),
                    vectors,
                    factors,
                    c,
                )
                turn = adjoint(q) if transpose else q
                exact = turn @ c if left else c @ turn
                assert_stable(mine - exact, theirs - exact, norm(c), rows, dtype)
