"""What random programs are called with, and the weights they close over.

Printed at the head of a program that `--show` prints: it needs NumPy and ml_dtypes alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import ml_dtypes
import numpy as np

KINDS = ("normal", "whole", "special", "ties", "large")
"""Normal numbers; small whole ones, whose sums are exact in any order; NaN, infinities, zeros of
both signs and subnormals between normal ones; three values, one of them NaN now and then; all
magnitudes, and all bits of integers."""


def table(shape: Sequence[int], dtype: str, seed: int = 0) -> np.ndarray:
    """Constants that a program closes over: whole numbers from -3 to 3."""
    size = int(np.prod(shape))
    return ((np.arange(size) * 7 + seed) % 11 % 7 - 3).reshape(shape).astype(dtype)


def arrays(kind: str, seed: int, types: Sequence[tuple[tuple[int, ...], str]]) -> list[np.ndarray]:
    """Arrays of these shapes and dtypes, the same for the same seed."""
    rng = np.random.default_rng(seed)
    nan = np.nan if seed % 3 == 0 else 1.0
    return [_array(kind, nan, rng, shape, np.dtype(dtype)) for shape, dtype in types]


def _array(
    kind: str, nan: float, rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype
) -> np.ndarray:
    if dtype.kind == "c":
        whole = np.empty(shape, dtype)
        whole.real, whole.imag = (_array(kind, nan, rng, shape, whole.real.dtype) for _ in "ri")
        return whole
    if dtype.kind == "b":
        return rng.random(shape) < 0.5
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        if kind == "large":
            values = rng.integers(info.min, info.max, shape, dtype, endpoint=True)
            return np.where(
                rng.random(shape) < 0.2,
                rng.choice(np.array([info.min, info.max, 0, 1], dtype), shape),
                values,
            ).astype(dtype)
        return rng.integers(0 if dtype.kind == "u" else -4, 5, shape).astype(dtype)
    if kind == "whole":
        return rng.integers(-3, 4, shape).astype(dtype)
    if kind == "ties":
        return rng.choice(np.array([0.5, -1.25, 2.0, nan]), shape).astype(dtype)
    values = rng.standard_normal(shape)
    info = ml_dtypes.finfo(dtype)
    if kind == "large":
        values *= 2.0 ** rng.integers(info.minexp // 4, info.maxexp // 4, shape)
    if kind == "special":
        special = rng.choice(
            np.array(
                [
                    np.nan,
                    np.inf,
                    -np.inf,
                    0.0,
                    -0.0,
                    float(info.tiny) / 4,
                    float(info.max),
                    -float(info.tiny),
                ]
            ),
            shape,
        )
        values = np.where(rng.random(shape) < 0.15, special, values)
    return values.astype(dtype)
