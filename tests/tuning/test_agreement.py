"""What counts as right: rounding may differ, nothing else."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from hlo_mlc.tuning.agreement import baseline_fault, candidate_fault

EXPECTED = np.array([1.0, -2.0, 0.0, np.nan, np.inf, 100.0], np.float32)


def changed(position: int, value: float) -> np.ndarray:
    array = EXPECTED.copy()
    array[position] = value
    return array


@pytest.mark.parametrize(
    ("position", "value", "right"),
    [
        (0, 1.0, True),
        (0, 1.0 + 1e-4, True),
        (0, 1.0 + 1e-3, False),
        (2, -0.0, True),
        (2, np.nan, False),
        (3, 0.0, False),
        (4, -np.inf, False),
        (4, 1e30, False),
        (5, 0.0, False),
    ],
)
def test_floats(position: int, value: float, right: bool) -> None:
    fault = candidate_fault([changed(position, value)], [EXPECTED], [EXPECTED])
    assert fault == ("" if right else "1 of 6 elements of result 0 are wrong")


def test_as_far_as_the_default_is() -> None:
    default = changed(5, 100.01)
    assert not candidate_fault([changed(5, 99.97)], [EXPECTED], [default])
    assert candidate_fault([changed(5, 99.9)], [EXPECTED], [default])


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16, np.float64])
def test_other_floats(dtype) -> None:
    expected = np.linspace(1, 2, 50).astype(dtype)
    step = float(ml_dtypes.finfo(dtype).eps)
    near, far = expected.copy(), expected.copy()
    near[7] += dtype(8 * step)
    far[7] += dtype(64 * step)
    assert not candidate_fault([near], [expected], [expected])
    assert candidate_fault([far], [expected], [expected])


@pytest.mark.parametrize("dtype", [np.int32, np.bool_, np.uint8])
def test_all_else_is_equal(dtype) -> None:
    expected = np.array([0, 1, 1], dtype)
    other = np.array([0, 1, 0], dtype)
    assert not candidate_fault([expected], [expected], [expected])
    assert candidate_fault([other], [expected], [expected])
    assert not candidate_fault([other], [expected], [other]), "ties may go the default's way"


def test_baselines() -> None:
    many = np.ones(1000, np.float32)
    some, few = many.copy(), many.copy()
    some[:200], few[:5] = 2, 2
    assert not baseline_fault([few], [many])
    assert baseline_fault([some], [many]) == "20% of the elements of result 0 differ from XLA's"
    assert not baseline_fault([many[:0]], [many[:0]])
