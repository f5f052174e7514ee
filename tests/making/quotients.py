"""What complex numbers divided by others are."""

from __future__ import annotations

import numpy as np


def quotient(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """As C has it, and XLA: by a number without end each finite one is zero, each one without end
    divided by a finite number has none.  By zero both parts take the sign of its real part.

    Source: C11, annex G, 5.1.
    """
    unbounded, vanishes = np.isinf(x) & np.isfinite(y), np.isfinite(x) & np.isinf(y)
    with np.errstate(all="ignore"):
        found = x / np.where(vanishes, _direction(y), y)
        a = _direction(x)
        parts = (
            (found.real, x.real, a.real * y.real + a.imag * y.imag),
            (found.imag, x.imag, a.imag * y.real - a.real * y.imag),
        )
        pole = np.copysign(np.inf, y.real)
        result = np.empty(found.shape, x.dtype)
        result.real, result.imag = (
            np.select(
                [y == 0, unbounded, vanishes],
                [part * pole, towards * np.inf, np.copysign(0.0, quotient)],
                quotient,
            )
            for quotient, part, towards in parts
        )
    return result


def _direction(x: np.ndarray) -> np.ndarray:
    """One in the place of each infinite part, zero in that of others, with its sign."""
    direction = np.empty_like(x)
    direction.real, direction.imag = (
        np.copysign(np.where(np.isinf(part), 1.0, 0.0), part) for part in (x.real, x.imag)
    )
    return direction
