"""How near results have to be to XLA's, or to one another."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from making.apart import Arrays


def in_f64(function: Callable, args: Sequence) -> list[np.ndarray]:
    """The results of the function where all floats among its arguments are f64."""

    def widen(a: np.ndarray) -> np.ndarray:
        return np.asarray(a).astype(np.float64) if jnp.issubdtype(a.dtype, jnp.floating) else a

    with jax.enable_x64(True):
        results = jax.jit(function)(*jax.tree.map(widen, args))
        return [np.asarray(r).astype(np.float64) for r in jax.tree.leaves(results)]


def as_f64(array: np.ndarray) -> np.ndarray:
    return np.asarray(array).astype(np.float64)


def assert_close(
    actual: np.ndarray,
    expected: np.ndarray,
    exact: Callable[[], np.ndarray],
    ulps: float,
    magnitude: float | None,
) -> None:
    """Errors are below `ulps` of the larger of the value and `magnitude`, or twice XLA's own."""
    info = jnp.finfo(expected.dtype)
    ours, theirs = as_f64(actual), as_f64(expected)
    np.testing.assert_array_equal(np.isnan(ours), np.isnan(theirs), "where NaNs are")
    infinite = np.isinf(ours) | np.isinf(theirs)
    np.testing.assert_array_equal(ours[infinite], theirs[infinite], "where infinities are")
    finite = np.isfinite(theirs)
    ours, theirs = ours[finite], theirs[finite]
    if magnitude is None:
        magnitude = float(np.max(np.abs(theirs), initial=0.0))
    bound = ulps * float(info.eps) * np.maximum(np.abs(theirs), magnitude) + float(info.tiny)
    if np.all(np.abs(ours - theirs) <= bound):
        return
    true = exact()[finite]
    allowed = np.maximum(bound, 2 * np.abs(theirs - true))
    error = np.abs(ours - true)
    worst = int(np.argmax(error / allowed))
    assert np.all(error <= allowed), (
        f"{np.count_nonzero(error > allowed)} of {error.size} values are too far off, the worst: "
        f"{ours[worst]!r} where {true[worst]!r} is exact and XLA has {theirs[worst]!r}"
    )


def assert_agree(actual: Arrays, expected: Arrays) -> None:
    """The results of two kernels, whose sums are in different orders."""
    for one, other in zip(actual, expected, strict=True):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        if jnp.issubdtype(other.dtype, jnp.floating):
            assert_close(one, other, lambda other=other: as_f64(other), 64.0, None)
        else:
            np.testing.assert_array_equal(one, other)


def compare(
    actual: Arrays,
    function: Callable,
    args: Sequence,
    ulps: float,
    magnitude: float | None,
    exact: Callable | None,
) -> None:
    """With what `jax.jit` of the function gives, as `_check` says."""
    expected = jax.tree.leaves(jax.jit(function)(*args))
    assert len(actual) == len(expected)
    wide: list[np.ndarray] = []

    def exact_result(number: int) -> np.ndarray:
        wide.extend(() if wide else in_f64(exact or function, args))
        return wide[number]

    for number, (ours, theirs) in enumerate(zip(actual, expected, strict=True)):
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape), number
        if jnp.issubdtype(theirs.dtype, jnp.floating):
            assert_close(
                np.asarray(ours),
                np.asarray(theirs),
                lambda n=number: exact_result(n),
                ulps,
                magnitude,
            )
        else:
            np.testing.assert_array_equal(np.asarray(ours), np.asarray(theirs), f"result {number}")
