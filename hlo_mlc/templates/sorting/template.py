"""Sorts: rows put in order by the ranks of their elements, by digits, or in runs that are merged.

    short rows     the rank of each element is how many come before it, counted in vectors
    longer rows    radix sort from the lowest digit: count the digits, then move every element to
                   where the ones with its digit begin, digit by digit
    long rows, few of them
                   cut into runs, each sorted by digits in a task of its own; then runs are merged,
                   in tasks that find out by bisection where their share of the result begins
    the first few  a buffer of candidates, into which goes what comes before the last of those that
                   are kept; when it is full, it is sorted and cut; where very few are wanted, first
                   a look for a limit that they are up to

All of these are stable, so that results do not depend on which one is taken.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from hlo_mlc.target.cpu import CpuTarget
from hlo_mlc.templates.base import Parameters, Scheduled, lanes
from hlo_mlc.templates.sorting.candidates import CANDIDATES, by_candidates, group_count
from hlo_mlc.templates.sorting.digits import by_digits
from hlo_mlc.templates.sorting.ranks import by_ranks
from hlo_mlc.templates.sorting.records import Sorting
from hlo_mlc.templates.sorting.runs import by_runs
from hlo_mlc.tensor.core import Nest, Stage

# Vectors of a row up to which ranks are counted, which takes as many comparisons as its square:
# with 16 lanes, rows of 64 f32 took a quarter of the time that digits take, rows of 256 1.5 times.
RANKED = 8
# Elements of a run at least: merging takes a task of its own.
RUN = 1 << 14
# Bits that are sorted by at once: with 11, half a million f32 took as long, and positions twice.
DIGIT = 8
# Elements that are sorted for each that is wanted, from which on candidates are collected.
SCARCE = 4
# Nanoseconds on one thread that an element takes: with ranks, and for each vector that it is
# compared with (rows of 8 to 64: 3 to 7); for each digit, besides counters (8 to 14 in all); to be
# merged once; to be no candidate (four million of which 100 are kept: 0.06 to 0.09), and to be one
# (60 to 250, with what lies beside it).  Measured on Zen 4.
RANKED_NS, COUNTED_NS = 3.0, 1.0
MOVED_NS, MERGED_NS, LOOKED_AT_NS, CANDIDATE_NS = 1.8, 2.0, 0.08, 120.0


@dataclass(frozen=True, slots=True)
class SortTemplate:
    """One sort, of any keys and values."""

    name: str = "sort"

    def refusal(self, nest: Nest, target: CpuTarget) -> str:
        """Why the nest is not one sort; empty where it is."""
        return "" if len(nest.stages) == 1 and nest.stages[0].sort is not None \
            else "not a single sort"

    def space(self, nest: Nest, target: CpuTarget) -> dict[str, tuple[int, ...]]:
        """Elements of a row whose ranks are counted, bits of a digit, runs of a row, and whether
        candidates are collected."""
        return {"ranked": (16, 32, 64, 128), "digit": (8, 11), "runs": (1, 2, 4, 8, 16),
                "candidates": (0, 1)}

    def default(self, nest: Nest, target: CpuTarget) -> Parameters:
        """Runs for all cores where there are not rows enough."""
        (stage,) = nest.stages
        return {"ranked": RANKED * lanes((stage,), target), "digit": DIGIT,
                "runs": _runs(stage, target), "candidates": int(_is_scarce(stage, target))}

    def apply(self, nest: Nest, target: CpuTarget, parameters: Parameters) -> Scheduled:
        """The loops for the given parameters."""
        (stage,) = nest.stages
        (element,), place = stage.reduce_axes, stage.sort.place
        sorting = Sorting.of(stage, target, parameters["digit"])
        runs = parameters["runs"]
        if parameters["candidates"] and _is_scarce(stage, target):
            body = by_candidates(sorting)
        elif element.extent <= parameters["ranked"]:
            body = by_ranks(sorting)
        elif runs > 1 and place.extent == element.extent >= runs * RUN // 2:
            body = by_runs(sorting, runs)
        else:
            body = by_digits(sorting)
        return Scheduled(body, tuple(sorting.scratch))


def _is_scarce(stage: Stage, target: CpuTarget) -> bool:
    """Whether so few of the first elements are wanted that they are collected."""
    n, kept = stage.reduce_axes[0].extent, stage.sort.place.extent
    return len(stage.sort.keys) == 1 and (
        n >= SCARCE * max(kept, CANDIDATES)
        or group_count(kept, n, lanes((stage,), target)) > 0)


def _rows(stage: Stage) -> int:
    return math.prod(v.extent for v in stage.axes if v is not stage.sort.place)


def _runs(stage: Stage, target: CpuTarget) -> int:
    n, runs = stage.reduce_axes[0].extent, 1
    if stage.sort.place.extent == n:
        while runs * _rows(stage) < target.cores and n >= 2 * runs * RUN:
            runs *= 2
    return runs


def sorting_tasks(stage: Stage, target: CpuTarget) -> int:
    """The tasks that a sort is shared out over."""
    rows = _rows(stage)
    return rows * _runs(stage, target) if rows * stage.reduce_axes[0].extent >= RUN else 1


def sorting_us(stage: Stage, target: CpuTarget) -> float:
    """What putting in order takes on one thread, terms and results not counted."""
    n, kept, rows = stage.reduce_axes[0].extent, stage.sort.place.extent, _rows(stage)
    width = lanes((stage,), target)
    groups = group_count(kept, n, width) if len(stage.sort.keys) == 1 else 0
    if groups:  # of which half have one of the first
        row = 2 * n * LOOKED_AT_NS + groups * (COUNTED_NS * groups / width + CANDIDATE_NS)
    elif n <= RANKED * width:
        row = n * (RANKED_NS + COUNTED_NS * n / width)
    elif kept * SCARCE <= n and len(stage.sort.keys) == 1 and n >= SCARCE * CANDIDATES:
        at_once = 2 * kept + CANDIDATES
        found = kept * math.log(max(1, n / at_once))  # the k first of m are among them by k / m
        cuts = 2 + found / (kept + CANDIDATES)
        row = n * LOOKED_AT_NS + found * CANDIDATE_NS + cuts * _digits_ns(stage, at_once)
    else:
        row = _digits_ns(stage, n) + n * MERGED_NS * math.log2(_runs(stage, target))
    return rows * row / 1e3


def _digits_ns(stage: Stage, n: int) -> float:
    """Sorting so many records by digits."""
    digits = sum(-(-key.dtype.bits // DIGIT) for key in stage.sort.keys)
    return n * MOVED_NS * (digits + 1) + digits * (1 << DIGIT)
