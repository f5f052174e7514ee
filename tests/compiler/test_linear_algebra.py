"""Factorizations and solves of small matrices: as stable as LAPACK's, and wrong in the same way
where there is no right answer."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.scipy import linalg

from hlo_mlc import mlc_jit

SIZES = range(1, 17)
BATCHES = [(), (1,), (2, 3), (7,), (16,), (37,), (0,)]
WORSE = 4.0  # than LAPACK's residual, which may be next to nothing by chance
DTYPES = ["float32", "float64"]
LARGEST, MOST_ELEMENTS = 16, 512
COMPLEX = ["complex64", "complex128"]


def batch_for(size: int) -> tuple[int, ...]:
    return BATCHES[size % len(BATCHES)]


def matrices(
    batch: tuple[int, ...], rows: int, columns: int, dtype: str, seed: int = 0
) -> np.ndarray:
    rng = np.random.default_rng([seed, rows, columns, *batch])
    scaled = 10.0 ** rng.uniform(-6, 6, (*batch, 1, 1))
    return (rng.standard_normal((*batch, rows, columns)) * scaled).astype(dtype)


def positive(batch: tuple[int, ...], size: int, dtype: str) -> np.ndarray:
    a = np.random.default_rng(size).standard_normal((*batch, size, size))
    return (a @ a.swapaxes(-1, -2) + 1e-3 * np.eye(size)).astype(dtype)


def both(
    function: Callable, *args: np.ndarray, coverage: float = 1
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Our results and LAPACK's, in 64 bits; at least so much of the function is to be ours."""
    ours = mlc_jit(function, choose="ours")
    found = [jax.tree.leaves(f(*args)) for f in (ours, jax.jit(function))]
    report = ours.report(*args)
    assert report.coverage >= coverage, str(ours.explain(*args, verbose=True))
    for mine, theirs in zip(*found, strict=True):
        assert (mine.dtype, mine.shape) == (theirs.dtype, theirs.shape)
    return tuple([widened(np.asarray(r)) for r in one] for one in found)


def widened(a: np.ndarray) -> np.ndarray:
    return a.astype(np.complex128 if a.dtype.kind == "c" else np.float64)


def norm(a: np.ndarray) -> np.ndarray:
    return np.linalg.norm(widened(a), axis=(-2, -1))


def assert_stable(
    ours: np.ndarray, theirs: np.ndarray, scale: np.ndarray, size: int, dtype: str
) -> None:
    """`ours` and `theirs` are residuals, which a stable algorithm keeps near to eps * scale."""
    unit = np.finfo(dtype).eps * scale
    assert np.all(norm(ours) <= WORSE * np.maximum(norm(theirs), size * unit))


def transposed(a: np.ndarray) -> np.ndarray:
    return a.swapaxes(-1, -2)


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


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("rows", "columns"),
    [*((n, n) for n in range(1, 18)), (5, 3), (3, 5), (8, 1), (1, 8), (16, 9), (9, 16), (13, 2)],
)
def test_lu(rows: int, columns: int, dtype: str) -> None:
    with jax.enable_x64(dtype == "float64"):
        a = matrices(batch_for(rows), rows, columns, dtype)
        covered = 0.6 * (max(rows, columns) <= LARGEST)  # of none, a loop makes permutations
        mine, theirs = both(lambda a: tuple(lax.linalg.lu(a)), a, coverage=covered)
        residuals = []
        for lu, pivots, permutation in (mine, theirs):
            steps = min(rows, columns)
            lower = np.tril(lu[..., :steps], -1) + np.eye(rows, steps)
            order = permutation.astype(int)[..., None]
            residuals.append(lower @ np.triu(lu[..., :steps, :]) - np.take_along_axis(a, order, -2))
            assert pivots.shape[-1] == steps
        for k in (1, 2):
            np.testing.assert_array_equal(mine[k], theirs[k])
        assert_stable(*residuals, norm(a), max(rows, columns), dtype)


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


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 16, 17])
def test_eigh(size: int, dtype: str) -> None:
    with jax.enable_x64(dtype == "float64"):
        a = symmetric(size)[1:].astype(dtype)  # an odd number: the last vector is not full
        mine, theirs = both(lambda a: tuple(jnp.linalg.eigh(a)), a, coverage=size <= LARGEST)
        wrong, skew = zip(
            *(
                (a @ v - v * w[..., None, :], transposed(v) @ v - np.eye(size))
                for w, v in (mine, theirs)
            ),
            strict=True,
        )
        assert_stable(*wrong, norm(a), size, dtype)
        assert_stable(*skew, np.sqrt(size) * np.ones(len(a)), size, dtype)
        assert_stable(
            (mine[0] - theirs[0])[..., None], 0 * theirs[0][..., None], norm(a), size, dtype
        )
        assert np.all(np.diff(mine[0]) >= 0)


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


def complex_matrices(
    batch: tuple[int, ...], rows: int, columns: int, dtype: str, seed: int = 0
) -> np.ndarray:
    one, other = (matrices(batch, rows, columns, "float64", seed + k) for k in (0, 1))
    scale = norm(one)[..., None, None] / norm(other)[..., None, None] if rows and one.size else 1
    return (one + 1j * other * scale).astype(dtype)


def adjoint(a: np.ndarray) -> np.ndarray:
    return transposed(a).conj()


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
        covered = max(rows, columns) <= LARGEST
        mine, theirs = both(lambda a: tuple(lax.linalg.lu(a)), a, coverage=covered)
        residuals = []
        for lu, _, permutation in (mine, theirs):
            steps = min(rows, columns)
            lower = np.tril(lu[..., :steps], -1) + np.eye(rows, steps)
            order = permutation.astype(int)[..., None]
            residuals.append(lower @ np.triu(lu[..., :steps, :]) - np.take_along_axis(a, order, -2))
        for k in (1, 2):
            np.testing.assert_array_equal(mine[k], theirs[k])
        assert_stable(*residuals, norm(a), max(rows, columns), dtype)


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
        a = hermitian(size).astype(dtype)
        mine, theirs = both(lambda a: tuple(jnp.linalg.eigh(a)), a, coverage=size <= LARGEST)
        wrong, skew = zip(
            *(
                (a @ v - v * w[..., None, :], adjoint(v) @ v - np.eye(size))
                for w, v in (mine, theirs)
            ),
            strict=True,
        )
        assert_stable(*wrong, norm(a), size, dtype)
        assert_stable(*skew, np.sqrt(size) * np.ones(len(a)), size, dtype)
        assert_stable(
            (mine[0] - theirs[0])[..., None], 0 * theirs[0][..., None], norm(a), size, dtype
        )
        assert np.all(np.diff(mine[0]) >= 0)


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
        a = a + adjoint(a)
        mine, theirs = both(lambda a: tuple(jnp.linalg.eigh(a)), a)
        wrong, skew = zip(
            *((a @ v - v * w, adjoint(v) @ v - np.eye(size)) for w, v in (mine, theirs)),
            strict=True,
        )
        assert_stable(*wrong, norm(a), size, dtype)
        assert_stable(*skew, np.sqrt(size) * np.ones(()), size, dtype)
        assert np.all(np.diff(mine[0]) >= 0)


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


def special(*shape: int, dtype: str = "float32") -> np.ndarray:
    return np.random.default_rng(3).standard_normal(shape).astype(dtype)


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
