"""Arrays that a function closes over, of every type: results are those of `jax.jit`."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from hlo_mlc import mlc_jit
from hlo_mlc.frontend.emit import KERNEL_TARGET

DTYPES = (
    "bool",
    "int2",
    "uint2",
    "int4",
    "uint4",
    "int8",
    "uint8",
    "int16",
    "uint16",
    "int32",
    "uint32",
    "int64",
    "uint64",
    "float8_e3m4",
    "float8_e4m3",
    "float8_e4m3b11fnuz",
    "float8_e4m3fn",
    "float8_e4m3fnuz",
    "float8_e5m2",
    "float8_e5m2fnuz",
    "bfloat16",
    "float16",
    "float32",
    "float64",
    "complex64",
    "complex128",
)
PAYLOADS = {
    "different": np.array([[0, 1, 1], [1, 0, 1]]),
    "equal": np.ones((2, 3)),
    "one": np.ones(()),
    "none": np.ones((0, 3)),
}


def _same(function: Callable, *args: object, choose: str) -> None:
    """All elements are those of `jax.jit`, bit by bit, and nobody is warned of anything."""
    expected = jax.tree.leaves(jax.jit(function)(*args))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        actual = jax.tree.leaves(mlc_jit(function, choose=choose)(*args))
    for one, other in zip(actual, expected, strict=True):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        if jnp.issubdtype(one.dtype, jax.dtypes.prng_key):
            one, other = jax.random.key_data(one), jax.random.key_data(other)
        assert np.asarray(one).tobytes() == np.asarray(other).tobytes()


@pytest.mark.parametrize("choose", ["auto", "ours"])
@pytest.mark.parametrize("payload", PAYLOADS)
@pytest.mark.parametrize("name", DTYPES)
def test_constants(name: str, payload: str, choose: str) -> None:
    dtype = np.dtype(getattr(ml_dtypes, name, name))
    with jax.enable_x64(True):
        constant = jnp.asarray(PAYLOADS[payload].astype(dtype))
        _same(
            lambda x: (constant, jnp.flip(constant), jnp.stack([constant, constant]), x + 1),
            np.float32(1),
            choose=choose,
        )


@pytest.mark.parametrize("choose", ["auto", "ours"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "complex64"])
def test_huge_constants(dtype: str, choose: str) -> None:
    constant = jnp.arange(1 << 18).astype(dtype)
    _same(lambda x: (constant[::-1], constant[5:9] + x), jnp.ones(4, dtype), choose=choose)


@pytest.mark.parametrize("choose", ["auto", "ours"])
def test_keys(choose: str) -> None:
    key, old = jax.random.key(3), jax.random.PRNGKey(3)
    _same(
        lambda x: (key, jax.random.bits(key, (5,)), jax.random.split(old), x + 1),
        np.float32(1),
        choose=choose,
    )


def test_complex_arithmetic() -> None:
    constant = jnp.asarray(np.array([1 + 2j, 3 - 1j], np.complex64))
    _same(
        lambda x: (constant * 2, jnp.abs(constant) + x, (constant * (1 + 1j)).imag),
        np.float32(1),
        choose="auto",
    )


def test_each_constant_has_its_own_code() -> None:
    """Calls that differ in nothing but a constant do not share what was compiled for it."""

    @mlc_jit(choose="ours")
    def f(c: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.real(c * 2) + jnp.cumsum(x)

    x = np.arange(300, dtype=np.float32)
    one, other = (np.full(300, value, np.complex64) for value in (1 + 1j, 5 + 1j))
    lowered = jax.jit(lambda x: (f(one, x), f(other, x), f(one, x))).lower(x)
    assert f"@{KERNEL_TARGET}(" in lowered.as_text()
    for result, c in zip(lowered.compile()(x), (one, other, one), strict=True):
        np.testing.assert_allclose(result, c.real * 2 + np.cumsum(x), rtol=1e-6)
