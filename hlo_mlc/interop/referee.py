"""Whether two runs of a program gave the same, as far as that can be told."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import ml_dtypes
import numpy as np
from jaxlib.mlir import ir

from hlo_mlc.interop import compat
from hlo_mlc.interop.widening import widened, widened_array
from hlo_mlc.support.errors import UnsupportedOpError

_DISAGREEING_SHARE = 0.01  # of a result's elements: ties and cancellations may go either way
# So many times as far from what is exact may a run be as another one that is right as well, and
# more where there are few elements: errors that grow are as large as chance has it.
_FARTHER, _BY_CHANCE = 2.0, 4.0


def disagreement(results: Sequence[Any], expected: Sequence[Any], least_step: float = 0.0) -> str:
    """In what two runs differ, beyond what another order of rounding can explain; "" if nothing.

    Floats agree within the square root of their type's rounding step, relative to the largest, or
    of `least_step`, where what was computed on the way had fewer bits.
    """
    for number, pair in enumerate(zip(results, expected, strict=True)):
        close = _close(*map(np.asarray, pair), least_step)
        share = 1 - float(np.mean(close)) if close.size else 0.0
        if share > _DISAGREEING_SHARE:
            return f"{share:.0%} of the elements of result {number} differ"
    return ""


def as_near(results: Sequence[Any], expected: Sequence[Any], exact: Sequence[Any] | None) -> bool:
    """Whether results that differ from those expected are about as near as these to what is exact,
    which is given in f64; not so where nothing exact is known (None).

    So it is where a program magnifies how its first operations were rounded, in whatever order they
    were done: steps of a chaotic map, differences of large sums.
    """
    if exact is None:
        return False
    return all(
        _as_near(np.asarray(a), np.asarray(b), np.asarray(c))
        for a, b, c in zip(results, expected, exact, strict=True)
    )


def exact_results(
    original: ir.Module, arguments: Sequence[Any], platform: str
) -> Sequence[jax.Array] | None:
    """What the program gives with all floats in f64; None where it cannot be computed so, such as a
    program that f64 makes another one of."""
    try:
        wide = widened(original)
        if wide is None:
            return None
        run = compat.compile_for(wide, platform)
        return run([compat.place_on(widened_array(np.asarray(a)), platform) for a in arguments])
    except (UnsupportedOpError, ir.MLIRError, jax.errors.JaxRuntimeError):
        return None


def largest_error(result: np.ndarray, exact: np.ndarray, noise: float = 0.0) -> float:
    """The largest difference of an element from what is exact, relative to the largest of these;
    as it is where none of these is larger than `noise`, and so more than what rounding left of 0.

    Infinite where shapes differ, where one side has a NaN or an infinity and the other has not, or
    where integers differ at all.
    """
    if result.shape != exact.shape:
        return math.inf
    if not _step_of(result.dtype):
        return 0.0 if np.array_equal(result, exact) else math.inf
    wide, finite = widened_array(result), np.isfinite(exact)
    if not np.array_equal(wide[~finite], exact[~finite], equal_nan=True):
        return math.inf
    if not np.isfinite(wide[finite]).all():
        return math.inf
    difference = np.abs(wide[finite] - exact[finite]).max(initial=0.0)
    scale = np.abs(exact[finite]).max(initial=0.0)
    return float(difference / scale) if scale > noise else float(difference)


def _as_near(actual: np.ndarray, other: np.ndarray, exact: np.ndarray) -> bool:
    if not actual.size:
        return True
    step = _step_of(actual.dtype)
    actual, other = widened_array(actual), widened_array(other)
    farther = _FARTHER * (1 + _BY_CHANCE / actual.size**0.5)
    # Of few elements, one that is just beyond what is near is many.
    far = 1 - float(np.mean(_near(actual, exact, step * farther**2)))
    far_other = 1 - float(np.mean(_near(other, exact, step)))
    if far > farther * far_other + _DISAGREEING_SHARE:
        return False
    if not step:
        return True
    finite = np.isfinite(actual) & np.isfinite(other) & np.isfinite(exact)
    with np.errstate(invalid="ignore"):
        error, error_other = (
            _mean_square(np.where(finite, one - exact, 0.0)) for one in (actual, other)
        )
    return error <= farther * error_other + step**0.5 * _mean_square(np.where(finite, exact, 0.0))


def _mean_square(values: np.ndarray) -> float:
    """The square root of the mean square, in a range where no square overflows."""
    largest = float(np.max(np.abs(values), initial=0.0))
    return largest and largest * float(np.mean(np.abs(values / largest) ** 2)) ** 0.5


def _close(actual: np.ndarray, expected: np.ndarray, least_step: float) -> np.ndarray:
    step = _step_of(expected.dtype)
    return _near(widened_array(actual), widened_array(expected), step and max(step, least_step))


def _near(actual: np.ndarray, expected: np.ndarray, step: float) -> np.ndarray:
    """Which elements of wide arrays agree, if they were computed in steps of this size."""
    if not step:
        return actual == expected
    scale = np.max(np.abs(expected), initial=0.0, where=np.isfinite(expected))
    with np.errstate(invalid="ignore"):
        near = np.abs(actual - expected) <= step**0.5 * scale
    return near | (actual == expected) | (np.isnan(actual) & np.isnan(expected))


def _step_of(dtype: np.dtype) -> float:
    """The rounding step of a type, relative; 0 if it is exact."""
    try:
        return float(ml_dtypes.finfo(dtype).eps)
    except ValueError:  # not floating-point
        return 0.0
