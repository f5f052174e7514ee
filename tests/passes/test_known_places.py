"""Scatters to places that are constants: where rows have one run each, they are read instead."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hlo_mlc.ops.registry import references
from hlo_mlc.passes.simplify import simplify

RNG = np.random.default_rng(0)
SIZE = 19


def filled(places: tuple[np.ndarray, ...], *shape: int, name: str = "set") -> Callable:
    """Zeros (but for what is multiplied: ones) that are updated at these places of the last
    dimensions."""

    def function(u: jax.Array) -> jax.Array:
        x = jnp.full(shape, name == "multiply", u.dtype)
        before = (slice(None),) * (len(shape) - len(places))
        return getattr(x.at[(*before, *places)], name)(u)

    return function


ALONG = np.arange(SIZE)
LOWER = np.tril_indices(SIZE)
RUNS = {
    "lower": (filled(LOWER, 7, SIZE, SIZE, name="add"), (7, len(LOWER[0]))),
    "lower alone": (filled(LOWER, SIZE, SIZE), LOWER[0].shape),
    "upper": (filled(np.triu_indices(SIZE, 1), 2, 3, SIZE, SIZE), (2, 3, SIZE * (SIZE - 1) // 2)),
    "multiplied": (filled(LOWER, 7, SIZE, SIZE, name="multiply"), (7, len(LOWER[0]))),
    "some rows": (filled((np.repeat([5, 2], SIZE), np.tile(ALONG, 2)), 3, 6, SIZE), (3, 2 * SIZE)),
    "three dimensions": (
        filled(
            (np.repeat(ALONG, 6) % 3, np.repeat(ALONG, 6), np.tile(np.arange(2, 8), SIZE)),
            3,
            SIZE,
            9,
        ),
        (6 * SIZE,),
    ),
    "beyond the end": (filled((LOWER[0], LOWER[1] + 4), 7, SIZE, SIZE), (7, len(LOWER[0]))),
}


def ops(graph) -> set[str]:
    return {node.op for node in graph.walk()}


@pytest.mark.parametrize("dtype", ["float32", "int8", "complex64"])
@pytest.mark.parametrize("name", RUNS)
def test_runs_are_read(traced: Callable, check: Callable, name: str, dtype: str) -> None:
    function, shape = RUNS[name]
    u = (RNG.standard_normal(shape) * 4).astype(dtype)
    graph, _ = simplify(traced(function, u), references, verify=True)
    assert "stablehlo.gather" in ops(graph) and "stablehlo.scatter" not in ops(graph)
    check(function, u, ulps=0)


OTHERS = {
    "columns": (filled(LOWER[::-1], SIZE, SIZE), LOWER[0].shape),
    "twice": (filled((ALONG // 2 * 0, ALONG // 2), 3, SIZE, name="add"), (SIZE,)),
    "apart": (filled((ALONG[::2] * 0, ALONG[::2]), 2, SIZE), ALONG[::2].shape),
    "few": (filled((ALONG, ALONG), SIZE, SIZE), ALONG.shape),
    "one dimension": (filled((ALONG[3:9],), 5, SIZE), (5, 6)),
}


@pytest.mark.parametrize("name", OTHERS)
def test_others_are_written(traced: Callable, check: Callable, name: str) -> None:
    function, shape = OTHERS[name]
    u = RNG.standard_normal(shape).astype(np.float32)
    graph, _ = simplify(traced(function, u), references)
    assert "stablehlo.scatter" in ops(graph)
    check(function, u, ulps=0 if name != "twice" else 2)


def test_what_is_not_the_same_everywhere_is_kept(traced: Callable, check: Callable) -> None:
    def function(x: jax.Array, u: jax.Array) -> jax.Array:
        return x.at[LOWER].set(u)

    x, u = RNG.standard_normal((SIZE, SIZE)), RNG.standard_normal(len(LOWER[0]))
    arrays = [a.astype(np.float32) for a in (x, u)]
    assert "stablehlo.scatter" in ops(simplify(traced(function, *arrays), references)[0])
    check(function, *arrays, ulps=0)
