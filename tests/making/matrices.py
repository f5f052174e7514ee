"""Matrices, and whether what is computed of them is as stable as by LAPACK."""

from __future__ import annotations

from collections.abc import Callable

import jax
import numpy as np

from hlo_mlc import mlc_jit

BATCHES = [(), (1,), (2, 3), (7,), (16,), (37,), (0,)]
WORSE = 4.0  # than LAPACK's residual, which may be next to nothing by chance
DTYPES = ["float32", "float64"]
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


def complex_matrices(
    batch: tuple[int, ...], rows: int, columns: int, dtype: str, seed: int = 0
) -> np.ndarray:
    one, other = (matrices(batch, rows, columns, "float64", seed + k) for k in (0, 1))
    scale = norm(one)[..., None, None] / norm(other)[..., None, None] if rows and one.size else 1
    return (one + 1j * other * scale).astype(dtype)


def adjoint(a: np.ndarray) -> np.ndarray:
    return transposed(a).conj()


def special(*shape: int, dtype: str = "float32") -> np.ndarray:
    return np.random.default_rng(3).standard_normal(shape).astype(dtype)
