"""What of a result is judged to be wrong: what no rounding, order or limit of its type explains."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fuzzing.judge import judge
from fuzzing.reference import Oracle
from jax import lax


def test_the_sign_of_a_nan_is_nobodys_to_know() -> None:
    """`top_k` orders by it; where values only move, it stays what it was."""

    def computed(x):
        return (lax.top_k(jnp.cos(x), 2)[1],)

    def moved(x):
        return (lax.top_k(x[::-1], 2)[1],)

    for function, x, wanted in ((computed, [np.inf, 1], True), (moved, [np.nan, 1], False)):
        oracle = Oracle(function, [np.array(x, np.float32)], False, False)
        for order in (np.array([0, 1], np.int32), np.array([1, 0], np.int32)):
            found = judge([order], oracle.types, oracle.run(24, 0))
            right = wanted or list(order) == [1, 0]
            assert bool(found.differences) != right


def test_any_number_of_nans_may_stand_first() -> None:
    """Of many whose sign is unknown, in each place of `top_k` there may be any of them or what
    comes after them, but nothing else."""
    x = np.array([2, *[np.inf] * 100, 1], np.float32)
    oracle = Oracle(
        lambda x: (lax.top_k(jnp.where(x < 3, x, jnp.cos(x)), 102)[1],), [x], False, False
    )
    reference = oracle.run(24, 0)
    for first in (0, 37, 100):
        order = np.array([*range(1, first + 1), 0, 101, *range(first + 1, 101)], np.int32)
        assert not judge([order], oracle.types, reference).differences
    seen = np.stack([s[0] for s in reference.samples])
    assert not (seen[:, 0] == 101).any() and not (seen[:, -1] == 0).any()


def test_conditioning_is_measured() -> None:
    """A difference of nearly equal numbers may be far off, the same sum without it may not."""

    def ill(x):
        return (x.sum(1) - x[:, ::-1].cumsum(1)[:, -1],)

    x = np.random.default_rng(0).standard_normal((3, 99)).astype(np.float32)
    oracle = Oracle(ill, [x], x64=False, has_whole_sums=False)
    off = np.full(3, 3e-6, np.float32)
    assert not judge([off], oracle.types, oracle.run(24, 0)).differences
    assert judge([off * 100], oracle.types, oracle.run(24, 0)).differences
    well = Oracle(lambda x: (x.sum(1),), [x], x64=False, has_whole_sums=False)
    exact = x.astype(np.float64).sum(1)
    assert judge([(exact + 1e-3).astype(np.float32)], well.types, well.run(24, 0)).differences
    assert not judge([exact.astype(np.float32)], well.types, well.run(24, 0)).differences


def test_where_nothing_may_be_left_others_may_divide_by_zero() -> None:
    x = np.array([[1185517.0, -1185517.25, 0.1], [3.0, -2.0, 0.1]], np.float32)
    oracle = Oracle(lambda x: (1 / (x[:, 0] * 1.1 + x[:, 1] * 1.1 + x[:, 2]),), [x], False, False)
    reference = oracle.run(24, 0)
    exact = reference.exact[0]
    for number in (np.inf, np.nan):
        for place, is_wrong in enumerate((False, True)):
            ours = exact.astype(np.float32)
            ours[place] = number
            assert bool(judge([ours], oracle.types, reference).differences) == is_wrong


@pytest.mark.parametrize(
    "function, x, off",
    [
        (lambda x: x * (1 + jnp.tanh(x)), -13.0, -1e-28),  # in f64, too, tanh is -1 there
        (lambda x: jnp.real(lax.complex(x, x) * lax.complex(x, x)), 1.1, 5e-8),
    ],
)
def test_what_f64_does_not_show_is_uncertain(function: Callable, x: float, off: float) -> None:
    """Functions at their limits, and parts of complex numbers that cancel."""
    oracle = Oracle(lambda x: (function(x),), [np.full(3, x, np.float32)], False, False)
    for error, is_wrong in ((off, False), (1e-4, True)):
        found = judge([np.full(3, error, np.float32)], oracle.types, oracle.run(24, 0))
        assert bool(found.differences) == is_wrong


def test_functions_at_their_limits_may_leave_nothing() -> None:
    """Whose type has no numbers so near the limit, which f64 has."""
    x = np.array([10.0, -12.0, 2.0], np.float32)
    oracle = Oracle(lambda x: ((1 - jnp.tanh(x) ** 2).astype(bool),), [x], False, False)
    reference = oracle.run(24, 0)
    for found, is_wrong in (([1, 1, 1], False), ([0, 0, 1], False), ([1, 1, 0], True)):
        judged = judge([np.array(found, bool)], oracle.types, reference)
        assert bool(judged.differences) == is_wrong


@pytest.mark.parametrize(
    "function",
    [jnp.prod, lambda x: lax.reduce_window(x, np.float32(1), lax.mul, (4,), (4,), "VALID")[0]],
)
def test_what_overflows_before_it_meets_zero_depends_on_the_order(function: Callable) -> None:
    x = np.array([3e38, 10, 0, 0.5], np.float32)
    oracle = Oracle(lambda x: (function(x),), [x], False, False)
    for found in (np.nan, 0.0):
        assert not judge([np.float32(found)], oracle.types, oracle.run(24, 0)).differences
    small = Oracle(lambda x: (function(x),), [np.minimum(x, 7)], False, False)
    assert judge([np.float32(np.nan)], small.types, small.run(24, 0)).differences


@pytest.mark.parametrize("weights", [(3.0, -2.0, 1.0), (1.0, 1.0, -2.0)])
def test_terms_beyond_f64_overflow_together_or_alone(weights: tuple[float, ...]) -> None:
    """3 max - 2 max is NaN, or infinite where one of the products is rounded with the sum."""

    def is_right(x: list[float], found: float) -> bool:
        oracle = Oracle(lambda x: (x @ np.array(weights),), [np.array(x)], True, False)
        return not judge([np.float64(found)], oracle.types, oracle.run(24, 0)).differences

    with jax.enable_x64(True):
        largest = [1.7e308] * 3
        assert all(is_right(largest, found) for found in (np.nan, np.inf, -np.inf))
        assert not is_right([np.inf, 1, 1], np.nan)
        assert not is_right([np.nan, 1.7e308, 1.7e308], np.inf)


def test_parts_of_complex_numbers_may_be_infinite() -> None:
    x = np.array([np.inf, 2.0], np.float32)
    oracle = Oracle(lambda x: (jnp.angle(lax.complex(x, x)),), [x], False, False)
    right = np.full(2, np.pi / 4, np.float32)
    assert not judge([right], oracle.types, oracle.run(3, 0)).differences
    assert judge([right * np.nan], oracle.types, oracle.run(3, 0)).differences


@pytest.mark.parametrize("function", [jnp.sum, jnp.cumsum, lambda z: z @ z])
def test_sums_of_complex_numbers_are_as_uncertain_as_their_terms_are_large(
    function: Callable,
) -> None:
    def program(x: jax.Array, y: jax.Array) -> tuple[jax.Array]:
        return (jnp.real(function(lax.complex(x, y))),)

    args = [np.array([3e7, -3e7, 1], np.float32), np.array([1, 2, -3], np.float32)]
    oracle = Oracle(program, args, False, False)
    reference = oracle.run(24, 0)
    found = np.asarray(program(*args)[0])
    assert not judge([found], oracle.types, reference).differences
    assert judge([found * 2 + 3e9], oracle.types, reference).differences


def test_a_number_that_xla_gives_too_is_in_dispute_where_nan_is_expected() -> None:
    x = np.array([np.nan, 1.0], np.float32)
    oracle = Oracle(lambda x: (x * 2,), [x], False, False)
    for ours, theirs, is_wrong in ((0.5, 0.5000001, False), (0.5, 0.6, True), (0.5, np.nan, True)):
        found = judge(
            [np.array([ours, 2], np.float32)],
            oracle.types,
            oracle.run(24, 0),
            [np.array([theirs, 2], np.float32)],
        )
        assert bool(found.differences) == is_wrong


def test_complex_numbers_are_judged_part_by_part() -> None:
    x = np.array([3.0, 1e30], np.float32)
    oracle = Oracle(lambda x: (lax.complex(x, -x) * 3j,), [x], False, False)
    right = np.asarray(x * 3 + 3j * x, np.complex64)
    for ours, is_wrong in ((right, False), (right.conj(), True), (right * np.nan, True)):
        assert bool(judge([ours], oracle.types, oracle.run(3, 0)).differences) == is_wrong


@pytest.mark.parametrize(
    "function",
    [
        jnp.linalg.inv,
        jnp.linalg.qr,
        jnp.linalg.eigvalsh,
        lax.linalg.lu,
        lambda x: jnp.fft.fft(x),
        lambda x: jnp.linalg.solve(x, x[:, :2]),
        lambda x: jnp.linalg.cholesky(x @ x.T),
    ],
)
def test_what_libraries_compute_is_known_to_its_conditioning(function: Callable) -> None:
    x = np.random.default_rng(0).standard_normal((6, 6)).astype(np.float32)

    def program(x: jax.Array) -> list[jax.Array]:
        return jax.tree.leaves(function(x))

    oracle = Oracle(program, [x], False, False)
    reference = oracle.run(24, 0)
    found = [np.asarray(r) for r in jax.jit(program)(x)]
    assert not judge(found, oracle.types, reference).differences
    judged = judge(
        [r + r // 7 if r.dtype == np.int32 else r * (1 + 1e-3) for r in found],
        oracle.types,
        reference,
    )
    assert judged.differences and not judged.undetermined


def test_functions_of_complex_numbers_are_not_exact() -> None:
    x = np.array([3 + 4j, -2j], np.complex64)
    oracle = Oracle(lambda x: (jnp.abs(x), jnp.sqrt(x), x * x), [x], False, True)
    found = [np.nextafter(np.abs(x), np.float32(9)), np.sqrt(x) * np.float32(1 + 1e-7), x * x]
    assert not judge(found, oracle.types, oracle.run(24, 0)).differences
    found[2] = found[2] * np.float32(1 + 1e-7)
    assert judge(found, oracle.types, oracle.run(24, 0)).differences


def test_what_a_library_leaves_of_zero_may_be_nothing() -> None:
    """A quotient of it is a number or not, where the sums of a transform cancel."""
    x = np.array([0, 1, 0, 2, -3, 0, 0, 0, 1, 2, 0, 0, 0, 0, 5], np.float32)

    def program(x: jax.Array) -> tuple[jax.Array]:
        there_and_back = jnp.fft.irfft(jnp.fft.rfft(x) * 2, n=x.size)
        return (there_and_back / there_and_back,)

    oracle = Oracle(program, [x], False, True)
    reference = oracle.run(24, 0)
    found = np.where(x == 0, np.nan, np.float32(1))
    assert not judge([found], oracle.types, reference).differences
    for wrong in (found * 2, np.where(x == 2, np.nan, np.float32(1))):
        assert judge([wrong], oracle.types, reference).differences
