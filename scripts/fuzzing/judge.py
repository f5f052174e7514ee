"""Compares what a compiled program gave with its reference, element by element."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

from fuzzing.reference import Reference

QUICK_SAMPLES, MANY_SAMPLES, MOST_SAMPLES = 3, 24, 120
"""Runs with noise before the first judgement, before XLA is asked, and before a fault is called
one: where numbers of all magnitudes are sorted, one more or less among those before makes a place
another number."""
SPREADS = 3.0
"""How many times the widest departure of a sample a result may be off: the spread of so few
samples is known to about a factor of two."""
UNITS = 4.0
"""Units in the last place that are allowed wherever something was rounded (docs/accuracy.md)."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The worst element of a result."""

    result: int
    place: tuple[int, ...]
    ours: str
    exact: str
    xla: str
    count: int
    ratio: float  # of the error to what is allowed

    def __str__(self) -> str:
        return (
            f"result {self.result}: {self.count} elements differ, the worst at {self.place}: "
            f"{self.ours} where {self.exact} is right and XLA gives {self.xla}"
        )


@dataclass(frozen=True, slots=True)
class Judgement:
    """`differences` of the results that are wrong; how many elements nothing is known of."""

    differences: tuple[Difference, ...]
    undetermined: int
    elements: int


def judge(
    results: Sequence[np.ndarray],
    types: Sequence[np.dtype],
    reference: Reference,
    xla: Sequence[np.ndarray] | None = None,
) -> Judgement:
    """What is wrong; with XLA's own results at hand, twice its error is allowed."""
    differences, undetermined = [], 0
    for number, (ours, narrow) in enumerate(zip(results, types, strict=True)):
        exact = reference.exact[number]
        if ours.shape != exact.shape or ours.dtype != narrow:
            differences.append(
                Difference(
                    number,
                    (),
                    f"{ours.dtype}{ours.shape}",
                    f"{narrow}{exact.shape}",
                    "",
                    ours.size,
                    np.inf,
                )
            )
            continue
        samples = [s[number] for s in reference.samples]
        theirs = None if xla is None else xla[number]
        wrong, ratio, unknown = _compared(
            ours, narrow, exact, samples, theirs, reference.moves[number]
        )
        undetermined += int(np.count_nonzero(unknown))
        if wrong.any():
            differences.append(_worst(number, ours, exact, theirs, wrong, ratio))
    return Judgement(tuple(differences), undetermined, sum(r.size for r in results))


def _worst(
    number: int,
    ours: np.ndarray,
    exact: np.ndarray,
    theirs: np.ndarray | None,
    wrong: np.ndarray,
    ratio: np.ndarray,
) -> Difference:
    flat = int(np.argmax(np.where(wrong, ratio, -1)))
    place = tuple(map(int, np.unravel_index(flat, ours.shape)))
    return Difference(
        number,
        place,
        str(ours[place]),
        str(exact[place]),
        "?" if theirs is None else str(theirs[place]),
        int(np.count_nonzero(wrong)),
        float(ratio.flat[flat]),
    )


Compared = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Where a result is wrong, the ratio of its error to what is allowed, where nothing is known."""


def _compared(
    ours: np.ndarray,
    narrow: np.dtype,
    exact: np.ndarray,
    samples: list[np.ndarray],
    theirs: np.ndarray | None,
    moves: bool,
) -> Compared:
    if jnp.issubdtype(narrow, jnp.complexfloating):
        whole = (ours, exact, *samples, *(() if theirs is None else (theirs,)))
        sides = []
        for real, exact_side, *others in zip(*((v.real, v.imag) for v in whole), strict=True):
            seen = None if theirs is None else others.pop()
            sides.append(_compared(real, real.dtype, exact_side, others, seen, moves))
        (wrong, ratio, unknown), (also_wrong, other_ratio, also_unknown) = sides
        return wrong | also_wrong, np.maximum(ratio, other_ratio), unknown | also_unknown
    is_float = jnp.issubdtype(narrow, jnp.floating)
    wrong, ratio, unknown = (_floats if is_float else _discrete)(
        ours, narrow, exact, samples, theirs
    )
    if is_float and not moves:
        # Subnormal numbers and zeros are equal to processors that flush them.
        tiny = float(jnp.finfo(narrow).tiny)
        wrong &= ~((np.abs(ours.astype(np.float64)) < tiny) & (np.abs(exact) < tiny))
    if theirs is not None:
        wrong &= ~_agrees(ours, theirs, exact)
    return wrong, ratio, unknown


def _discrete(
    ours: np.ndarray,
    narrow: np.dtype,
    exact: np.ndarray,
    samples: list[np.ndarray],
    theirs: np.ndarray | None,
) -> Compared:
    """Integers and bools are equal, unless noise decides what they are."""
    unknown = (
        np.any([s != exact for s in samples], axis=0) if samples else np.zeros(exact.shape, bool)
    )
    wrong = (ours != exact) & ~unknown
    return wrong, np.where(wrong, np.inf, 0.0), unknown


@np.errstate(all="ignore")
def _floats(
    ours: np.ndarray,
    narrow: np.dtype,
    exact: np.ndarray,
    samples: list[np.ndarray],
    theirs: np.ndarray | None,
) -> Compared:
    """Within the spread of the samples; special values are where some sample has them."""
    all_of_them = np.stack([exact, *samples])
    special = ~np.isfinite(all_of_them)
    unknown = special.any(0) & ~_same(all_of_them, exact).all(0)
    spread = np.abs(all_of_them - exact).max(0, initial=0.0, where=~special)
    info, wide = jnp.finfo(narrow), ours.astype(np.float64)
    # Where rounding may as well have left nothing, others may have divided by that.
    unknown |= ~np.isfinite(wide) & (SPREADS * spread >= np.abs(exact)) & (spread > 0)
    rounded = (spread > 0) | (exact.astype(narrow).astype(np.float64) != exact)
    unit = np.maximum(np.abs(exact) * float(info.eps), float(info.smallest_subnormal))
    allowed = np.where(rounded, SPREADS * spread + UNITS * unit, 0.0)
    # What is subnormal may have been flushed to zero.
    allowed += np.where(rounded & (np.abs(exact) < 2 * float(info.tiny)), float(info.tiny), 0.0)
    error = np.where(
        special.all(0), np.where(_same(wide, exact), 0.0, np.inf), np.abs(wide - exact)
    )
    error = np.where(np.isnan(error) | np.isinf(wide) & ~special.any(0), np.inf, error)
    ratio = np.where(error == 0, 0.0, error / np.where(allowed > 0, allowed, 1e-300))
    if theirs is not None:
        _, limit, _ = _floats(theirs, narrow, exact, samples, None)
        finite = limit[np.isfinite(limit) & ~unknown]
        ratio = np.where(np.isfinite(ratio), ratio / max(1.0, 2 * finite.max(initial=0.0)), ratio)
    return (ratio > 1) & ~unknown, ratio, unknown


@np.errstate(all="ignore")
def _agrees(ours: np.ndarray, theirs: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """Where the reference is in dispute: XLA gives the same, or a number close to ours where the
    reference has NaN, whose sign decides what `top_k` takes."""
    same = _same(ours, theirs)
    if jnp.issubdtype(ours.dtype, jnp.floating):
        limit = UNITS**2 * float(jnp.finfo(ours.dtype).eps)
        one, other = ours.astype(np.float64), theirs.astype(np.float64)
        same |= np.isnan(exact) & (np.abs(one - other) <= limit * np.abs(other))
    return same


def _same(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    return (one == other) | (np.isnan(one) & np.isnan(other))
