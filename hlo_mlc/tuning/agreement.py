"""Whether a candidate computes what it should."""

from __future__ import annotations

from collections.abc import Sequence

import ml_dtypes
import numpy as np

# Rounding steps of the largest value by which results may be off: other orders of the same sums
# of well-scaled values, in the tests of our kernels against XLA's, stay below.
ROUNDING_STEPS = 16
# Multiple of the default schedule's own distance from the reference that a candidate may have.
AS_FAR_AS_DEFAULT = 4.0
# Share of the elements in which the default schedule may differ from the reference for reasons of
# rounding alone (an argmax of nearly equal values), as in choose="measure".
DISAGREEING_SHARE = 0.01


def baseline_fault(results: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> str:
    """Why the default schedule is no baseline: it differs from the reference by more than rounding
    explains, the square root of a rounding step; "" if it does not."""
    for number, (actual, reference) in enumerate(zip(results, expected, strict=True)):
        allowed = 0.0
        if _is_float(reference):
            allowed = float(ml_dtypes.finfo(reference.dtype).eps) ** 0.5 * _scale(reference)
        near = _near(actual, reference, allowed)
        if near.size and 1 - float(np.mean(near)) > DISAGREEING_SHARE:
            return f"{1 - np.mean(near):.0%} of the elements of result {number} differ from XLA's"
    return ""


def candidate_fault(
    results: Sequence[np.ndarray], expected: Sequence[np.ndarray], default: Sequence[np.ndarray]
) -> str:
    """Why a candidate is wrong: it is farther from the reference than rounding and the default
    schedule's own distance allow; "" if it is right."""
    triples = zip(results, expected, default, strict=True)
    for number, (actual, reference, usual) in enumerate(triples):
        allowed = 0.0
        if _is_float(reference):
            steps = ROUNDING_STEPS * float(ml_dtypes.finfo(reference.dtype).eps) * _scale(reference)
            allowed = max(steps, AS_FAR_AS_DEFAULT * _distance(usual, reference))
        right = _near(actual, reference, allowed) | _near(actual, usual, allowed)
        if not right.all():
            wrong = right.size - np.count_nonzero(right)
            return f"{wrong} of {right.size} elements of result {number} are wrong"
    return ""


def _is_float(array: np.ndarray) -> bool:
    return array.dtype.kind == "f" or array.dtype.name.startswith(("bfloat", "float"))


def _wide(array: np.ndarray) -> np.ndarray:
    """Narrow floats as f32, in which their differences are exact enough."""
    return array.astype(np.float32) if array.dtype.itemsize < 4 else array


def _scale(array: np.ndarray) -> float:
    wide = _wide(array)
    return float(np.max(np.abs(wide), initial=0.0, where=np.isfinite(wide)))


def _distance(actual: np.ndarray, reference: np.ndarray) -> float:
    with np.errstate(invalid="ignore", over="ignore"):
        apart = np.abs(_wide(actual) - _wide(reference))
    return float(np.max(apart, initial=0.0, where=np.isfinite(apart)))


def _near(actual: np.ndarray, reference: np.ndarray, allowed: float) -> np.ndarray:
    if not _is_float(reference):
        return actual == reference
    actual, reference = _wide(actual), _wide(reference)
    with np.errstate(invalid="ignore", over="ignore"):
        close = np.abs(actual - reference) <= allowed
    return close | (actual == reference) | (np.isnan(actual) & np.isnan(reference))
