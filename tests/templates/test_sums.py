"""Long sums lose little in rounding, whichever template adds them up.

All terms are equal: then all additions in a row round the same way, and errors add up.  Those of
sums that are not cut into runs are five to a thousand times what is allowed here.  Products of
tensors, whose runs are of 256 terms, come to 21 eps, all others to less than 16.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from hlo_mlc import mlc_jit

TERM = float(np.float32(0.7))
ALLOWED = 32 * np.finfo(np.float32).eps


def _window(x: jax.Array) -> jax.Array:
    return lax.reduce_window(x, 0.0, lax.add, (40, 40), (1, 1), "VALID")


def _convolution(x: jax.Array) -> jax.Array:
    return lax.conv_general_dilated(
        x,
        jnp.full((3, 3, x.shape[-1], 8), TERM),
        (1, 1),
        "VALID",
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )


def _attention(x: jax.Array) -> jax.Array:
    """Of a thousand equal keys, weights that add up to 1."""
    return jax.nn.softmax(x @ x.T) @ x


SUMS: dict[str, tuple[Callable[[jax.Array], jax.Array], tuple[int, ...], float]] = {
    "columns": (lambda x: x.sum(0), (4096, 47), 4096 * TERM),
    "few columns": (lambda x: x.sum(0), (256, 2), 256 * TERM),
    "columns from memory": (lambda x: x.sum(0), (4001, 3000), 4001 * TERM),
    "columns beside another fold": (lambda x: x.sum(0) + x.max(0), (4096, 47), 4097 * TERM),
    "middle": (lambda x: x.sum(1), (4, 3000, 33), 3000 * TERM),
    "outer and inner": (lambda x: x.sum((0, 2)), (700, 5, 64), 700 * 64 * TERM),
    "rows": (lambda x: x.sum(1), (7, 100_003), 100_003 * TERM),
    "everything": (lambda x: x.sum(), (3000, 3001), 3000 * 3001 * TERM),
    "rows, then a map": (lambda x: x / x.sum(1, keepdims=True), (64, 16_411), 1 / 16_411),
    "vector by matrix": (lambda x: x[:, 0] @ x, (20_000, 64), 20_000 * TERM * TERM),
    "product": (lambda x: x @ x.T, (64, 20_000), 20_000 * TERM * TERM),
    "product, deep and wide": (lambda x: x.T @ x, (9000, 70), 9000 * TERM * TERM),
    "few rows": (lambda x: x[:3] @ x.T, (64, 20_001), 20_001 * TERM * TERM),
    "window": (_window, (70, 80), 1600 * TERM),
    "convolution": (_convolution, (1, 7, 40, 600), 5400 * TERM * TERM),
    "attention": (_attention, (1000, 32), TERM),
}


@pytest.mark.parametrize("name", SUMS)
def test_equal_terms(name: str) -> None:
    function, shape, exact = SUMS[name]
    compiled = mlc_jit(function, choose="ours")
    x = np.full(shape, TERM, np.float32)
    result = np.asarray(compiled(x), np.float64)
    assert compiled.report(x).coverage == 1
    assert np.abs(result / exact - 1).max() <= ALLOWED
