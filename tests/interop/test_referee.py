"""Whether two runs gave the same: by what they differ in, and by the program with all in f64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from hlo_mlc.interop import compat
from hlo_mlc.interop.referee import as_near, disagreement
from hlo_mlc.interop.widening import widened, widened_array

RNG = np.random.default_rng(0)


@pytest.mark.parametrize(
    ("actual", "expected", "same"),
    [
        ([1.0, 2.0], [1.0, 2.0 + 1e-6], True),
        ([1.0, 2.0], [1.0, 2.1], False),
        ([np.nan, np.inf], [np.nan, np.inf], True),
        ([np.nan, 1.0], [1.0, 1.0], False),
        ([np.inf, 1.0], [-np.inf, 1.0], False),
        ([0.0, 1e8], [1e-3, 1e8], True),
        ([], [], True),
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "complex64"])
def test_disagreement_of_floats(
    actual: list[float], expected: list[float], same: bool, dtype: str
) -> None:
    pair = np.asarray(actual, dtype), np.asarray(expected, dtype)
    assert (not disagreement([pair[0]], [pair[1]])) is same


def test_disagreement_of_integers_allows_for_ties() -> None:
    expected = np.arange(1000)
    few, many = expected.copy(), expected.copy()
    few[3] += 1
    many[:20] += 1
    assert not disagreement([few], [expected])
    assert disagreement([expected, many], [expected, expected]).startswith(
        "2% of the elements of result 1"
    )


def test_bfloat16_is_compared_as_coarsely_as_it_is() -> None:
    expected = jnp.full(8, 100, jnp.bfloat16)
    assert not disagreement([expected + 1], [expected])
    assert disagreement([expected + 50], [expected])


EXACT = RNG.standard_normal(1000)


def off(by: float, share: float = 1.0) -> np.ndarray:
    """In f32, with a share of the elements off by a random number of this size."""
    where = RNG.random(EXACT.shape) < share
    return (EXACT + where * by * RNG.standard_normal(EXACT.shape)).astype(np.float32)


@pytest.mark.parametrize(
    ("actual", "expected", "near"),
    [
        (off(1.0), off(1.0), True),  # a chaotic map's
        (off(2.0), off(1.0), True),
        (off(3.0), off(1.0), False),
        (3 * off(1.0), off(0.1), False),
        (off(1.0, 0.5), off(1.0, 0.4), True),
        (off(1.0, 0.5), off(1.0, 0.1), False),
        (off(1.0, 0.005), off(0.0), False),  # few, but so far off that the mean shows it
        (off(1e-7), off(0.0), True),
        (np.where(EXACT > 0, np.float32(np.nan), off(0.0)), off(0.0), False),
        (np.where(EXACT > 2, np.float32(np.inf), off(0.0)), off(0.0), False),
        (np.zeros(0, np.float32), np.zeros(0, np.float32), True),
    ],
)
def test_as_near_as_the_other(actual: np.ndarray, expected: np.ndarray, near: bool) -> None:
    exact = EXACT[: len(actual)]
    assert as_near([actual], [expected], [exact]) is near
    assert not as_near([actual], [expected], None)
    assert as_near([expected], [expected], [exact])
    as_complex = [one.astype(np.complex64) * (1 - 1j) for one in (actual, expected)]
    assert as_near(as_complex[:1], as_complex[1:], [exact * (1 - 1j)]) is near


def test_few_elements_are_off_by_chance() -> None:
    exact = np.asarray(100.0)
    good, lucky, wrong = (np.asarray(one, np.float32) for one in (100.5, 100.06, 110))
    assert as_near([good], [lucky], [exact])
    assert not as_near([wrong], [good], [exact])
    exact = np.asarray([1.0, 2.0, 300.0])
    near, beyond, wrong = (np.asarray([1, 2, one], np.float32) for one in (300.09, 300.12, 302))
    assert as_near([beyond], [near], [exact])
    assert not as_near([wrong], [near], [exact])


def test_as_near_in_integers_and_bits() -> None:
    exact = np.arange(1000)
    half, other_half = exact.copy(), exact.copy()
    half[:500] = 0
    other_half[500:] = 0
    assert as_near([half], [other_half], [exact])
    assert not as_near([half], [exact], [exact])
    assert not as_near([exact > 3], [exact > 500], [exact > 500])


def test_large_numbers_do_not_overflow() -> None:
    exact = EXACT * 1e300
    near, far = exact * (1 + 1e-3), exact * 3
    assert as_near([near], [exact * (1 - 1e-3)], [exact])
    assert not as_near([far], [near], [exact])


def normal(key: jax.Array, x: jax.Array) -> jax.Array:
    return jax.random.normal(key, x.shape) * x


def all_kinds(x: jax.Array, z: jax.Array, h: jax.Array) -> Sequence[jax.Array]:
    """Loops, branches, calls, complex and bf16 constants, results of all types."""
    y = jax.lax.fori_loop(0, 5, lambda i, v: jnp.sin(v) * 1.1 + i / 7, x)
    branched = jax.lax.cond(x.sum() > 0, jnp.exp, jnp.log1p, abs(x))
    constant = jnp.asarray(np.arange(4) * (0.1 + 0.3j), jnp.complex64)
    rounded = jnp.asarray([1.5, 2.5, np.inf, -0.0], ml_dtypes.bfloat16)
    return (
        y @ y,
        branched,
        z * constant,
        (h * rounded)[:2].sum(),
        jnp.sort(x)[::-1],
        jnp.argmax(x),
        x > 0.5,
        jnp.var(x, keepdims=True),
        jax.nn.softmax(h),
        jnp.zeros((0, 3)),
    )


X = np.asarray([0.3, -0.7, 1.9, 0.1], np.float32)


def test_all_is_computed_in_f64() -> None:
    arguments = X, X * np.complex64(1 + 2j), X.astype(ml_dtypes.bfloat16)
    wide = widened(jax.jit(all_kinds).lower(*arguments).compiler_ir())
    assert not any(narrow in str(wide) for narrow in ("f32", "bf16", "f16"))
    results = compat.compile_for(wide)([widened_array(one) for one in arguments])
    expected = jax.jit(all_kinds)(*arguments)
    with jax.enable_x64(True):
        exact = jax.jit(all_kinds)(*(widened_array(one) for one in arguments))
    for one, narrow, wanted in zip(results, expected, exact, strict=True):
        assert one.dtype == widened_array(np.asarray(narrow)).dtype
        assert one.shape == narrow.shape
        np.testing.assert_allclose(one, np.asarray(narrow, one.dtype), rtol=2e-2, atol=1e-6)
        # Constants are as they were rounded; otherwise it is the same to the last bits.
        np.testing.assert_allclose(one, wanted, rtol=1e-6, atol=1e-12)
    assert np.asarray(results[0]) != np.float32(results[0])


@pytest.mark.parametrize(
    "function",
    [
        normal,
        lambda key, x: jax.lax.bitcast_convert_type(x, jnp.int32) & key[0],
        lambda key, x: jax.lax.reduce_precision(x, 5, 7) + key.sum(),
        lambda key, x: jnp.linalg.qr(x[:, None] * x + jnp.eye(4))[1] + key.sum(),
        lambda key, x: jnp.linalg.eigh(x[:, None] * x + jnp.eye(4))[0] + key.sum(),
    ],
)
def test_what_is_of_one_type_stays_so(function: Callable[..., Any]) -> None:
    key = jax.random.PRNGKey(1)
    module = jax.jit(function).lower(key, X).compiler_ir()
    before = str(module)
    wide = widened(module)
    assert str(module) == before
    (result,) = compat.compile_for(wide)([np.asarray(key), widened_array(X)])
    expected = np.asarray(jax.jit(function)(key, X))
    assert result.dtype == widened_array(expected).dtype
    np.testing.assert_allclose(result, expected, rtol=1e-5)


def test_products_in_other_types_are_exact() -> None:
    a = RNG.standard_normal((20, 30)).astype(np.float32)
    module = jax.jit(lambda x: jax.lax.dot(x, x.T, precision="BF16_BF16_F32")).lower(a)
    (result,) = compat.compile_for(widened(module.compiler_ir()))([widened_array(a)])
    np.testing.assert_allclose(result, widened_array(a) @ widened_array(a).T, rtol=1e-12)
