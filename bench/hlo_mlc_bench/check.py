"""How wrong a result is: its distance from the same function evaluated in 64-bit arithmetic."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hlo_mlc.interop.referee import largest_error
from hlo_mlc_bench.case import Case, Function

XLA_MARGIN = 2.0
"""An error up to this multiple of XLA's own is right, whatever the bound of the case says."""

_NARROW_BITS = 16
_NARROW_TOLERANCE = 2.0  # in 16-bit types, results are rounded, not what leads to them


def reference(
    function: Function, args: tuple[Any, ...], *, xla_errs: bool = False
) -> list[np.ndarray]:
    """The results of `function`, flattened, with floating-point arguments widened to 64 bits; one
    operation at a time where `xla_errs` over several."""
    evaluated = function if xla_errs else jax.jit(function)
    with jax.enable_x64(True):
        wide = jax.tree.map(_widened, args)
        return [np.asarray(leaf) for leaf in jax.tree.leaves(evaluated(*wide))]


def error(results: Any, expected: list[np.ndarray]) -> float:
    """The largest difference from `expected`, relative to the largest magnitude of each result.

    Infinite where shapes differ, where one side has a NaN or an infinity and the other has not, or
    where integers differ at all.
    """
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(results)]
    if len(leaves) != len(expected):
        return math.inf
    return max((largest_error(*pair) for pair in zip(leaves, expected, strict=True)), default=0.0)


def bound(case: Case, xla_error: float) -> float:
    """The largest error that counts as right."""
    if not jnp.issubdtype(case.dtype, jnp.floating):
        return 0.0
    info = jnp.finfo(case.dtype)
    narrow = info.bits <= _NARROW_BITS
    tolerance = min(case.tolerance, _NARROW_TOLERANCE) if narrow else case.tolerance
    excused = 0.0 if case.xla_errs else XLA_MARGIN * xla_error
    return max(tolerance * float(info.eps), excused)


def same_types(results: Any, others: Any) -> bool:
    """Whether both have the same tree of arrays, with the same shapes and dtypes."""
    if jax.tree.structure(results) != jax.tree.structure(others):
        return False
    pairs = zip(jax.tree.leaves(results), jax.tree.leaves(others), strict=True)
    return all(a.shape == b.shape and a.dtype == b.dtype for a, b in pairs)


def _widened(x: jax.Array) -> jax.Array:
    return x.astype(jnp.float64) if jnp.issubdtype(x.dtype, jnp.floating) else x
