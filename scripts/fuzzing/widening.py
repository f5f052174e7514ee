"""The types in which a reference computes: floats are all f64."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np


def wide_type(dtype: np.dtype) -> np.dtype:
    """f64 or c128 for floats and complex numbers; the numbers of a key; the rest as it is."""
    if jnp.issubdtype(dtype, jax.dtypes.prng_key):
        return np.dtype(np.uint32)
    if jnp.issubdtype(dtype, jnp.floating):
        return np.dtype(np.float64)
    return np.dtype(np.complex128 if jnp.issubdtype(dtype, jnp.complexfloating) else dtype)


def widened(array: np.ndarray) -> np.ndarray:
    return array.astype(wide_type(array.dtype))


def is_packed(dtype: np.dtype) -> bool:
    """Whether these are integers of less than a byte."""
    return jnp.issubdtype(dtype, jnp.integer) and dtype.kind not in "iu"


def converted(value: np.ndarray, target: np.dtype) -> np.ndarray:
    """Floats become integers by truncation; what is out of range saturates, NaN is 0."""
    if value.dtype.kind == "f" and jnp.issubdtype(target, jnp.integer):
        info = jnp.iinfo(target)
        whole = np.trunc(np.where(np.isnan(value), 0.0, value))
        inside = (whole > float(info.min)) & (whole < float(info.max))
        edges = np.where(
            whole > 0, np.array(info.max).astype(target), np.array(info.min).astype(target)
        )
        return np.where(inside, np.where(inside, whole, 0.0).astype(target), edges)
    return value.astype(wide_type(target))
