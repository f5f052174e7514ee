"""Functions of every class of kernel, over random odd shapes, taken apart into their kernels."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

EXTENTS = (1, 2, 3, 5, 15, 16, 17, 31, 33, 47, 65)
DTYPES = ("float32", "float32", "bfloat16", "float16", "int32", "int8", "uint8")


def _places(y: jax.Array) -> jax.Array:
    return jnp.abs(y[:, 0].astype(jnp.int32))


def _warped(count: int) -> jax.Array:
    """Places that depend on nothing but their own number."""
    return (jnp.exp(jnp.arange(count) / -7) * count).astype(jnp.int32)


def _stencil(x: jax.Array, y: jax.Array) -> jax.Array:
    def body(i: jax.Array, c: jax.Array) -> jax.Array:
        return c.at[1:-1, 1:-1].set(c[:-2, 1:-1] + c[2:, 1:-1] - c[1:-1, 2:])

    return lax.fori_loop(0, 3, body, jnp.pad(x, 1))


def _layer_norm(x: jax.Array, y: jax.Array) -> jax.Array:
    centred = x - x.mean(-1, keepdims=True)
    return centred * lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1) * y[0]


# By name: a function of x: [n, m], y: [n, m], w: [m, k], z: [k, n, m].
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "map": lambda x, y, w, z: (x * 2 + y[::-1], jnp.abs(z) - 1),
    "transpose": lambda x, y, w, z: (x.T + 1, z.transpose(2, 0, 1) * 2),
    "slices": lambda x, y, w, z: (x.T[::2] * 2, x[:, 1:] + 1, jnp.concatenate([x, y, x[:1]])),
    "pad": lambda x, y, w, z: jnp.pad(x, ((1, 2), (0, 3))) * 2,
    "rows": lambda x, y, w, z: (x.sum(1), x.max(1), z.min(2)),
    "columns": lambda x, y, w, z: (x.sum(0), y.max(0), z.sum(1)),
    "total": lambda x, y, w, z: (x.sum(), z.max((0, 2)), z.min((0, 1))),
    "argmax": lambda x, y, w, z: (jnp.argmax(x, 1), jnp.argmin(x, 0), jnp.argmax(y)),
    "flags": lambda x, y, w, z: ((x > 0).any(0), (x > y).all(1)),
    "softmax": lambda x, y, w, z: jax.nn.softmax(x.astype(jnp.float32)),
    "layer norm": lambda x, y, w, z: _layer_norm(x.astype(jnp.float32), y.astype(jnp.float32)),
    "gelu": lambda x, y, w, z: jax.nn.gelu(x.astype(jnp.float32)),
    "product": lambda x, y, w, z: x @ w,
    "product, transposed": lambda x, y, w, z: ((x @ w).T * 2 + 1, x.T @ y),
    "product, both by rows": lambda x, y, w, z: jnp.maximum(x @ y.T, 0),
    "batch": lambda x, y, w, z: jnp.einsum("bij,bkj->bik", z, z),
    "vectors": lambda x, y, w, z: (x @ w[:, 0], y[:, 0] @ x),
    "cumulative": lambda x, y, w, z: (jnp.cumsum(x, 1), lax.cummax(x, 0)),
    "gather": lambda x, y, w, z: x[_places(y)],
    "warp": lambda x, y, w, z: jnp.take(x, _warped(x.shape[1]), 1, mode="clip"),
    "scatter": lambda x, y, w, z: x.at[_places(y)].add(y),
    "window": lambda x, y, w, z: lax.dynamic_update_slice(x, y[:1, :1] + 1, (_places(y)[0], 0)),
    "stencil": lambda x, y, w, z: _stencil(x, y),
    "loop": lambda x, y, w, z: lax.fori_loop(0, 3, lambda i, s: (s[1], s[0] - s[1] + 1), (x, y)),
}


@dataclass(frozen=True, slots=True)
class Sample:
    """A function taken apart, arguments for it, and what it should give."""

    parts: Any
    args: Sequence[np.ndarray]
    expected: Sequence[np.ndarray]

    def check(self, execute: Callable) -> None:
        """Run the kernels this way, and compare."""
        results = self.parts.run(self.args, execute)
        for actual, expected in zip(results, self.expected, strict=True):
            assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
            if expected.dtype.kind in "biu":
                np.testing.assert_array_equal(actual, expected)
                continue
            eps = float(jnp.finfo(expected.dtype).eps)
            exact = expected.astype(np.float64)
            scale = float(np.max(np.abs(exact), initial=1.0))
            np.testing.assert_allclose(actual.astype(np.float64), exact, 64 * eps, 8 * eps * scale)


@pytest.fixture(scope="session")
def sample(take_apart, arrays) -> Callable[[str, int], Sample]:
    """`sample(name, seed)`: a function of `FUNCTIONS` over random shapes and types."""

    @functools.cache
    def make(name: str, seed: int, largest: int = max(EXTENTS)) -> Sample:
        rng = np.random.default_rng([seed, *name.encode()])
        fitting = [e for e in EXTENTS if e <= largest]
        n, m, k = (int(e) for e in rng.choice(fitting, 3))
        args = arrays(str(rng.choice(DTYPES)), (n, m), (n, m), (m, k), (k, n, m), seed=seed)
        function = FUNCTIONS[name]
        parts = take_apart(function, *args)
        expected = [np.asarray(r) for r in jax.tree.leaves(jax.jit(function)(*args))]
        return Sample(parts, args, expected)

    return make


@pytest.fixture(scope="session")
def samples(sample) -> Callable[[int], dict[str, Sample]]:
    """`samples(seed)`: one of each function, by name."""
    return lambda seed: {name: sample(name, seed) for name in FUNCTIONS}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "name" in metafunc.fixturenames and "sample" in metafunc.fixturenames:
        metafunc.parametrize("name", FUNCTIONS)


@pytest.fixture(autouse=True, scope="module")
def _forget() -> Iterator[None]:
    """What XLA compiled for one module is of no use to others."""
    yield
    jax.clear_caches()
