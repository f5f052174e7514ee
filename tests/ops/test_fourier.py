"""Fourier transforms of rows that are gone through in passes, and the shortest that may be."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from hlo_mlc import mlc_jit
from hlo_mlc.expr.dtypes import F32
from hlo_mlc.ops.fourier_passes import LONGEST, Row, radices

KINDS = ("fft", "ifft", "rfft", "irfft")
# Powers of two, small primes, both; odd ones; few vectors and several in a pass.
LENGTHS = (48, 63, 64, 65, 66, 96, 100, 120, 121, 128, 143, 243, 256, 360, 1024)


def numbers(*shape: int) -> np.ndarray:
    re, im = np.random.default_rng(math.prod(shape)).standard_normal((2, *shape))
    return re + 1j * im


def given(kind: str, batch: tuple[int, ...], length: int, precision: type) -> np.ndarray:
    """What a transform of that length takes, in this precision of its parts."""
    x = numbers(*batch, length // 2 + 1 if kind == "irfft" else length)
    return (
        x.real.astype(precision)
        if kind == "rfft"
        else x.astype(np.result_type(precision, np.complex64))
    )


def function_of(kind: str, length: int):
    return lambda x: getattr(jnp.fft, kind)(x, length)


def error(found: np.ndarray, expected: np.ndarray) -> float:
    """Relative to all of the result, of which every number is a sum of all that is given."""
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


@pytest.mark.parametrize("precision", [np.float32, np.float64])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("length", LENGTHS)
def test_as_precise_as_the_library(length: int, kind: str, precision: type) -> None:
    with jax.enable_x64(precision is np.float64):
        x = given(kind, (3,), length, precision)
        expected = getattr(np.fft, kind)(
            x.astype(np.longdouble if kind == "rfft" else np.clongdouble), length
        )
        ours = mlc_jit(function_of(kind, length), choose="ours")
        assert ours.report(x).coverage == 1
        there = np.asarray(jax.jit(function_of(kind, length))(x))
        found = np.asarray(ours(x))
        assert found.dtype == there.dtype
        limit = max(error(there, expected), float(np.finfo(precision).eps) / 2)
        assert error(found, expected) <= 4 * limit


@pytest.mark.parametrize("batch", [(), (1,), (2, 3), (41,), (0,)])
@pytest.mark.parametrize("kind", KINDS)
def test_any_batch(check, kind: str, batch: tuple[int, ...]) -> None:
    x = given(kind, batch, 96, np.float32)
    function = function_of(kind, 96)
    check(lambda x: (function(x).real, function(x).imag), x, ulps=64, kernels=0 not in batch)


def test_what_is_not_stored_of_a_real_spectrum_is_not_looked_at() -> None:
    """The imaginary parts of the first number, and of the middle one, count as zero."""
    for length in (96, 75):
        x = given("irfft", (2,), length, np.float32)
        y = x.copy()
        for place in (0, -1) if length % 2 == 0 else (0,):
            y.imag[:, place] = 7
        ours = mlc_jit(function_of("irfft", length), choose="ours")
        np.testing.assert_array_equal(ours(x), ours(y))


@pytest.mark.parametrize("length", [96, 75])
def test_gradients(check, length: int) -> None:
    """Of a filter, with respect to the rows and to the response."""
    x, response = (
        numbers(5, length).real.astype(np.float32),
        numbers(length // 2 + 1).astype(np.complex64),
    )

    def loss(x: jax.Array, response: jax.Array) -> jax.Array:
        return (jnp.fft.irfft(jnp.fft.rfft(x) * response, length) ** 3).sum()

    def gradients(x: jax.Array, re: jax.Array, im: jax.Array) -> tuple[jax.Array, ...]:
        of_rows, of_response = jax.grad(loss, argnums=(0, 1))(x, lax.complex(re, im))
        return of_rows, of_response.real, of_response.imag

    check(gradients, x, response.real, response.imag, ulps=64)


def test_filters_read_and_hand_on_what_is_computed(check) -> None:
    x = numbers(9, 128).real.astype(np.float32)

    def function(x: jax.Array) -> jax.Array:
        spectrum = jnp.fft.rfft(jnp.tanh(x)) * jnp.exp(-jnp.arange(65) / 9)
        return jnp.fft.irfft(spectrum)[:, ::2] + 1

    check(function, x, ulps=64)


@pytest.mark.parametrize("length", [74, 2 * 89, 67, 2 * LONGEST])
def test_the_longest_and_large_primes_stay(length: int) -> None:
    x = numbers(2, length).astype(np.complex64)
    report = mlc_jit(lambda x: jnp.fft.fft(x) * 2, choose="ours").report(x)
    assert any("Fourier transforms" in left.reason for left in report.left)


def test_real_rows_are_half_as_long() -> None:
    assert Row("RFFT", 2 * LONGEST, F32).refusal == Row("FFT", LONGEST, F32).refusal == ""
    assert Row("RFFT", 4 * LONGEST, F32).refusal and Row("FFT", 2 * LONGEST, F32).refusal
    assert Row("IRFFT", 96, F32).numbers == 48 and Row("IRFFT", 75, F32).numbers == 75


@pytest.mark.parametrize("length", [65, 96, 256, 2310, LONGEST])
def test_radices(length: int) -> None:
    assert math.prod(radices(length)) == length
    assert len(radices(length)) > 1 and max(radices(length)) <= 13
    assert radices(17 * length) == ()
