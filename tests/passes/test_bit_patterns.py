"""Bitcasts between types of different widths: as XLA has them, in kernels, whatever is around."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from hlo_mlc import mlc_jit

X = np.random.default_rng(0).standard_normal((5, 4)).astype(np.float32)
TYPES = (
    "uint8",
    "int8",
    "float8_e5m2",
    "uint16",
    "bfloat16",
    "int32",
    "float32",
    "uint64",
    "float64",
)


def cast(x: jax.Array, dtype: str) -> jax.Array:
    return lax.bitcast_convert_type(x, jnp.dtype(dtype))


def check(function: Callable, *args: np.ndarray) -> None:
    """To the bit."""
    kernels = mlc_jit(function, choose="ours")
    found, right = np.asarray(kernels(*args)), np.asarray(jax.jit(function)(*args))
    assert (found.dtype, found.shape) == (right.dtype, right.shape)
    assert found.tobytes() == right.tobytes()
    assert kernels.report(*args).coverage == 1


@pytest.mark.parametrize(
    ("narrow", "wide"),
    [
        (one, other)
        for one in TYPES
        for other in TYPES
        if jnp.dtype(one).itemsize < jnp.dtype(other).itemsize
    ],
)
def test_split_and_joined(narrow: str, wide: str) -> None:
    one, other = jnp.dtype(narrow).itemsize, jnp.dtype(wide).itemsize
    raw = np.random.default_rng(1).integers(0, 256, 6 * other, dtype=np.uint8)
    raw[other - 1 :: other] = 0x40  # no NaN, whose bits need not be kept, and no subnormal number
    raw[one - 1 :: one] = 0x40
    with jax.enable_x64(True):
        whole = raw.view(jnp.dtype(wide)).reshape(2, 3)
        check(lambda x: cast(x, narrow), whole)
        check(lambda x: cast(x, wide), raw.view(jnp.dtype(narrow)).reshape(2, 3, other // one))


def loop(x: jax.Array) -> jax.Array:
    def trip(i, total):
        row = lax.dynamic_slice(x, (i, 0), (1, 4))
        return total + cast(row, "uint8").astype(jnp.int32).sum((0, 2))

    return lax.fori_loop(0, 5, trip, jnp.zeros(4, jnp.int32))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: cast(x, "uint8")[1:3, :2, 1:3] + 1,
        lambda x: cast(x * 2, "uint8")[..., 0],
        lambda x: cast(jnp.broadcast_to(x[0], (3, 4)), "uint8"),
        lambda x: cast(jnp.float32(1.5) + jnp.zeros(3), "uint16") + x[:3, :2].astype(jnp.uint16),
        lambda x: cast(cast(x, "uint16")[1:3], "float32") * 2,
        loop,
        lambda x: cast(jnp.concatenate([x, x * 2]), "uint8").astype(jnp.int32).sum(0),
        lambda x: cast(jnp.broadcast_to(cast(x[0], "uint16")[0], (4, 2)), "float32") * 1,
    ],
    ids=[
        "slice",
        "lowest bits",
        "broadcast",
        "constant",
        "there and back",
        "loop",
        "joined parts",
        "of one number",
    ],
)
def test_with_what_is_around(function: Callable) -> None:
    check(function, np.abs(X))


@pytest.mark.parametrize("implementation", ["rbg", "unsafe_rbg", "threefry2x32"])
def test_keys_of_generators(implementation: str) -> None:
    """Their states are words that become longer ones."""

    def draw(data: jax.Array) -> jax.Array:
        key = jax.random.wrap_key_data(data, impl=implementation)
        one, other = jax.random.split(key)
        return jax.random.uniform(one, (3, 5)) + jax.random.normal(other, (3, 5))

    data = np.asarray(jax.random.key_data(jax.random.key(7, impl=implementation)))
    kernels = mlc_jit(draw, choose="ours")
    np.testing.assert_allclose(kernels(data), jax.jit(draw)(data), rtol=1e-5, atol=1e-6)
    assert kernels.report(data).coverage == 1
