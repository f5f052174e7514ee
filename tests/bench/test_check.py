"""What counts as wrong."""

from __future__ import annotations

import math
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

from hlo_mlc_bench import check
from hlo_mlc_bench.cases import BY_NAME


def test_reference_evaluates_in_64_bits() -> None:
    third, count = check.reference(
        lambda x, n: (x / 3, n + 1), (jnp.float32(1), jnp.arange(3, dtype=jnp.int32))
    )
    assert third.dtype == np.float64
    assert third == 1 / 3
    assert count.dtype == np.int32


def test_error_is_relative_to_the_largest_magnitude() -> None:
    expected = [np.array([0.0, 100.0])]
    assert check.error(np.array([1.0, 100.0], np.float32), expected) == pytest.approx(0.01)
    assert check.error(np.array([0.0, 100.0], np.float32), expected) == 0.0


def test_error_of_a_result_of_zeros_is_absolute() -> None:
    assert check.error(np.array([0.25], np.float32), [np.zeros(1)]) == 0.25


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (np.array([np.nan]), np.array([1.0])),
        (np.array([1.0]), np.array([np.nan])),
        (np.array([np.inf]), np.array([-np.inf])),
        (np.array([1.0]), np.array([np.inf])),
        (np.array([1.0, 2.0]), np.array([1.0])),
        (np.array([3]), np.array([4])),
    ],
)
def test_what_no_tolerance_excuses(result: np.ndarray, expected: np.ndarray) -> None:
    assert check.error(result, [expected]) == math.inf


def test_equal_special_values_and_integers_are_right() -> None:
    special = np.array([np.nan, np.inf, -np.inf, 1.0])
    assert check.error((special, np.array([7])), [special, np.array([7])]) == 0.0


def test_a_missing_result_is_wrong() -> None:
    assert check.error((np.ones(1),), [np.ones(1), np.ones(1)]) == math.inf


def test_bound_is_the_larger_of_the_case_and_twice_xla() -> None:
    case = replace(BY_NAME["exp"], tolerance=4)
    eps = float(np.finfo(np.float32).eps)
    assert check.bound(case, xla_error=0.0) == 4 * eps
    assert check.bound(case, xla_error=1.0) == 2.0
    assert check.bound(BY_NAME["argmax"], xla_error=0.0) == 0.0


def test_bound_of_narrow_types_does_not_grow_with_the_depth_of_the_case() -> None:
    case = replace(BY_NAME["exp"], tolerance=100, dtype="bfloat16")
    assert check.bound(case, xla_error=0.0) == 2 * float(jnp.finfo(jnp.bfloat16).eps)


def test_same_types() -> None:
    one = jnp.ones(2)
    assert check.same_types({"a": one}, {"a": one + 1})
    assert not check.same_types({"a": one}, {"b": one})
    assert not check.same_types(one, jnp.ones(3))
    assert not check.same_types(one, one.astype(jnp.bfloat16))


def test_a_wrong_jax_jit_excuses_nothing() -> None:
    case = replace(BY_NAME["exp"], tolerance=4, xla_errs=True)
    assert check.bound(case, xla_error=1.0) == 4 * float(np.finfo(np.float32).eps)


def test_reference_of_what_jax_jit_gets_wrong_goes_operation_by_operation() -> None:
    """Nothing is compiled as a whole: the function sees numbers."""
    seen = []

    def function(x: jnp.ndarray) -> jnp.ndarray:
        seen.append(float(x[0]))
        return x / 3

    (third,) = check.reference(function, (jnp.ones(2),), xla_errs=True)
    assert seen == [1.0] and third.dtype == np.float64 and third[0] == 1 / 3
