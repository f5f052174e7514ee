"""Sorts: rows put in order by the ranks of their elements, by digits, or in runs that are merged.

    many rows      side by side in the lanes of vectors, by a network of comparisons, where an
                   integer can stand for each record
    long rows      runs in the lanes of vectors, sorted by such a network; then runs are merged, in
                   vectors, where an integer can stand for each element
    short rows     the rank of each element is how many come before it, counted in vectors
    longer rows    radix sort from the lowest digit: count the digits, then move every element to
                   where the ones with its digit begin, digit by digit
    long rows, few of them
                   cut into runs, each sorted by digits in a task of its own; then runs are merged,
                   in tasks that find out by bisection where their share of the result begins
    the first few  a buffer of candidates, into which goes what comes before the last of those that
                   are kept; when it is full, it is sorted and cut; where very few are wanted, first
                   a look for a limit that they are up to
    other few      the key at each place, found bit by bit

The last few are the first of rows that begin at their ends.

All of these are stable, so that results do not depend on which one is taken.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from hlo_mlc.target.cpu import CpuTarget
from hlo_mlc.templates.base import Parameters, Scheduled, lanes
from hlo_mlc.templates.sorting.abreast import by_networks, rows_abreast
from hlo_mlc.templates.sorting.bits import by_bits
from hlo_mlc.templates.sorting.candidates import CANDIDATES, GROUPS, by_candidates, group_count
from hlo_mlc.templates.sorting.codes import Coded, by_element, by_position
from hlo_mlc.templates.sorting.digits import by_digits
from hlo_mlc.templates.sorting.merges import by_merges, level_count, part_count
from hlo_mlc.templates.sorting.networks import padded, steps
from hlo_mlc.templates.sorting.ranks import by_ranks
from hlo_mlc.templates.sorting.records import (
    Sorting,
    first_wanted,
    from_nearer_end,
    kept_of,
    row_count,
)
from hlo_mlc.templates.sorting.runs import by_runs
from hlo_mlc.tensor.core import Nest, Stage, derived

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
# compared with (rows of 32 to 128: 3.4 to 8); for each digit, besides counters (8 to 14 in all); to
# be merged once; to be no candidate (four million of which 100 are kept: 0.06 to 0.09), and to be
# one (60 to 250, with what lies beside it).  Measured on Zen 4, ranks on Zen 5.
RANKED_NS, COUNTED_NS = 3.0, 0.5
MOVED_NS, MERGED_NS, LOOKED_AT_NS, CANDIDATE_NS = 1.8, 2.0, 0.08, 120.0
# Where a limit is looked for: those of a row, and of each of the groups that are meant to have one
# of the first (2 of 200: 130, 7 of them: 310, 8 of 100: 290, 50 of 10,000: 3,400), on Zen 5.
LIMIT_NS, UP_TO_IT_NS = 80.0, 16.0
# And that a bit of a key takes: for each 64 bytes that are compared, and besides (a place among 256
# and among a million f32: 0.4 and 1,100 us, on Zen 5; 500 medians of 257 f64 with AVX2: 0.34 ms,
# and 0.57 by networks, on Zen 3).
COMPARED_NS, BIT_NS = 1.0, 8.0
# And what a network takes to compare vectors, not with what it is padded with (rows of 2,049 f32
# took 1.4 times as long an element as rows of 4,096, and 0.7 of what merging took, on Zen 3), and
# to transpose them on their way there and back in as many steps; and how many times that where
# they do not fit into the L2 cache (rows of 16 to 65,536 i32: 0.26 to 3.1 an element, on Zen 4).
NETWORK_STEP_NS, STEPS_BESIDE, AWAY = 0.3, 8, 1.3
# And that each byte of a code takes to be merged in vectors, and an element besides (a million f16,
# f32 and f64: 3.0, 5.0 and 10.5 an element, on Zen 4).
MERGED_BYTE_NS, HANDED_OUT_NS = 0.09, 0.3
# How many times as long runs take where vectors have no minimum of codes, which are compared and
# blended twice (32 rows of 4,096 f64: 4.7 ns an element, and 3.4 by networks alone, on Zen 3).
BLENDED = 1.5
# How many times as fast it has to be: digits of integers take 0.5 to 0.6 of what is predicted, and
# less where some are the same in all.  Not so those of f64 (a million of which took 17.2 ms by
# digits and 12.8 by merging, 8,192 0.16 and 0.07, on Zen 3).
SURE = 1.7
# How many times the time of the other ways that may be, to be tried where kernels are tuned.
UNSURE = 4


@dataclass(frozen=True, slots=True)
class SortTemplate:
    """One sort, of any keys and values."""

    name: str = "sort"

    def refusal(self, nest: Nest, target: CpuTarget) -> str:
        """Why the nest is not one sort; empty where it is."""
        return (
            "" if len(nest.stages) == 1 and nest.stages[0].sort is not None else "not a single sort"
        )

    def space(self, nest: Nest, target: CpuTarget) -> dict[str, tuple[int, ...]]:
        """Elements of a row whose ranks are counted, bits of a digit, runs of a row, whether
        candidates are collected, keys are found bit by bit, rows are sorted by a network, and
        runs of codes are merged."""
        (stage,) = nest.stages
        may_pay = UNSURE * _in_order_ns(stage, target)
        ours = {
            way: 1e3 * us(stage, target) / row_count(stage)
            for way, us in (("network", _network_us), ("merges", _merges_us))
        }
        return {
            "ranked": (16, 32, 64, 128),
            "digit": (8, 11),
            "runs": (1, 2, 4, 8, 16),
            "candidates": (0, 1),
            "bits": (0, 1) if _bits_ns(stage, target) < may_pay else (0,),
            **{way: (0, 1) if ns < may_pay else (0,) for way, ns in ours.items()},
        }

    def default(self, nest: Nest, target: CpuTarget) -> Parameters:
        """Runs for all cores where there are not rows enough."""
        (stage,) = nest.stages
        by_bits = _bits_ns(stage, target) < _in_order_ns(stage, target)
        way = _way(stage, target)
        return {
            "ranked": RANKED * lanes((stage,), target),
            "digit": DIGIT,
            "runs": _runs(stage, target),
            "candidates": int(_collects(stage, target)),
            "bits": int(by_bits),
            "network": int(way == "network"),
            "merges": int(way == "merges"),
        }

    def apply(self, nest: Nest, target: CpuTarget, parameters: Parameters) -> Scheduled:
        (stage,) = nest.stages
        (element,) = stage.reduce_axes
        sorting = Sorting.of(stage, target, parameters["digit"])
        runs = parameters["runs"]
        if parameters["network"] and (coded := _coded(stage)) is not None:
            return by_networks(coded, target)
        if parameters["merges"] and (coded := _coded(stage)) is not None:
            return by_merges(coded, target)
        if parameters["bits"] and len(stage.sort.keys) == 1:
            body = by_bits(sorting)
        elif parameters["candidates"] and _is_scarce(stage, target):
            body = by_candidates(sorting)
        elif element.extent <= parameters["ranked"]:
            body = by_ranks(sorting)
        elif runs > 1 and _is_whole(stage) and element.extent >= runs * RUN // 2:
            body = by_runs(sorting, runs)
        else:
            body = by_digits(sorting)
        return Scheduled(body, tuple(sorting.scratch))


def _is_scarce(stage: Stage, target: CpuTarget) -> bool:
    """Whether so few of the first elements are wanted that they are collected."""
    n, kept = stage.reduce_axes[0].extent, _kept(stage)
    return _groups(stage, target) > 0 or (
        len(stage.sort.keys) == 1 and n >= SCARCE * max(kept, CANDIDATES)
    )


def _groups(stage: Stage, target: CpuTarget) -> int:
    """The groups of a row in which a limit is looked for."""
    n, width = stage.reduce_axes[0].extent, lanes((stage,), target)
    return group_count(_kept(stage), n, width) if len(stage.sort.keys) == 1 else 0


def _kept(stage: Stage) -> int:
    return first_wanted(from_nearer_end(stage))


def _is_whole(stage: Stage) -> bool:
    """Whether all elements are wanted, in order."""
    place = stage.sort.place
    return stage.sort.at is place and place.extent == stage.reduce_axes[0].extent


@derived
def _coded(stage: Stage) -> Coded | None:
    """The sort by integers that stand for records, if there are such."""
    if stage.reduce_axes[0].extent < 2:
        return None
    return by_element(stage, kept_of(stage)) or by_position(stage)


def _runs(stage: Stage, target: CpuTarget) -> int:
    n, runs = stage.reduce_axes[0].extent, 1
    if _is_whole(stage):
        while runs * row_count(stage) < target.cores and n >= 2 * runs * RUN:
            runs *= 2
    return runs


def sorting_tasks(stage: Stage, target: CpuTarget) -> int:
    """The tasks that a sort is shared out over."""
    rows = row_count(stage)
    if rows * stage.reduce_axes[0].extent < RUN:
        return 1
    way = _way(stage, target)
    if way == "network":
        return _groups_of_rows(stage, target)
    return rows * (_parts(stage, target) if way == "merges" else _runs(stage, target))


def sorting_us(stage: Stage, target: CpuTarget) -> float:
    """What putting in order takes on one thread, terms and results not counted."""
    way = _way(stage, target)
    if way != "other":
        return _network_us(stage, target) if way == "network" else _merges_us(stage, target)
    return row_count(stage) * _one_by_one_ns(stage, target) / 1e3


@derived
def _way(stage: Stage, target: CpuTarget) -> str:
    """The way that takes the least time on all cores where nothing was tuned: "network", "merges",
    or any of the others."""
    rows, n = row_count(stage), stage.reduce_axes[0].extent
    cores = target.cores if rows * n >= RUN else 1
    tasks = {
        "network": _groups_of_rows(stage, target),
        "merges": rows * _parts(stage, target),
        "other": rows * _runs(stage, target),
    }
    us = {
        "network": _network_us(stage, target),
        "merges": _merges_us(stage, target),
        "other": rows * _one_by_one_ns(stage, target) / 1e3 / _sure(stage, target),
    }
    return min(us, key=lambda way: us[way] / tasks[way] * -(-tasks[way] // cores))


def _one_by_one_ns(stage: Stage, target: CpuTarget) -> float:
    """A row in the other ways."""
    return min(_bits_ns(stage, target), _in_order_ns(stage, target))


def _in_order_ns(stage: Stage, target: CpuTarget) -> float:
    """A row, or the first of it that are wanted, in order."""
    n = stage.reduce_axes[0].extent
    if not _collects(stage, target):
        return (
            _ranked_ns(stage, target)
            if n <= RANKED * lanes((stage,), target)
            else _digits_ns(stage, n) + n * MERGED_NS * math.log2(_runs(stage, target))
        )
    if _groups(stage, target):
        return _limited_ns(stage, target)
    kept = _kept(stage)
    at_once = 2 * kept + CANDIDATES
    found = kept * math.log(max(1, n / at_once))  # the k first of m are among them by k / m
    cuts = 2 + found / (kept + CANDIDATES)
    return n * LOOKED_AT_NS + found * CANDIDATE_NS + cuts * _digits_ns(stage, at_once)


def _groups_of_rows(stage: Stage, target: CpuTarget) -> int:
    """The groups that have a row in each lane of a vector."""
    coded, rows = _coded(stage), row_count(stage)
    return rows if coded is None else -(-rows // rows_abreast(coded, target))


def _network_us(stage: Stage, target: CpuTarget) -> float:
    """All rows, side by side, on one thread."""
    if _coded(stage) is None:
        return math.inf
    n = stage.reduce_axes[0].extent
    away = padded(n) * target.vector_bytes > target.l2_bytes
    one = n * (steps(n) + STEPS_BESIDE) * NETWORK_STEP_NS * (AWAY if away else 1)
    return _groups_of_rows(stage, target) * one / 1e3


def _parts(stage: Stage, target: CpuTarget) -> int:
    """The parts of a row of codes."""
    coded = _coded(stage)
    return 1 if coded is None else part_count(coded, target)


def _merges_us(stage: Stage, target: CpuTarget) -> float:
    """All rows, by runs that are merged, on one thread."""
    coded = _coded(stage)
    if coded is None or coded.is_by_position:
        return math.inf
    size = coded.dtype.bytes
    if 2 * size >= target.vector_bytes:  # two codes in a vector
        return math.inf
    lanes, parts = rows_abreast(coded, target), _parts(stage, target)
    n = max(stage.reduce_axes[0].extent, parts * lanes * lanes)
    run = n // (parts * lanes)
    step_ns = NETWORK_STEP_NS * (1 if _has_minimum(stage, target) else BLENDED)
    each = (
        (steps(run) + STEPS_BESIDE) * step_ns / lanes
        + level_count(coded, target) * MERGED_BYTE_NS * size
        + HANDED_OUT_NS
    )
    return row_count(stage) * n * each / 1e3


def _has_minimum(stage: Stage, target: CpuTarget) -> bool:
    """Whether there is an instruction for the smaller ones of two vectors of codes."""
    coded = _coded(stage)
    return coded is None or coded.dtype.bytes < 8 or target.vector_bytes >= 64


def _sure(stage: Stage, target: CpuTarget) -> float:
    """How many times as fast as the other ways anything else has to be: where these sort wide
    floats, no more, as such have all of their digits; where they look for some of them, as for
    medians, as for anything else."""
    is_float = stage.accumulators[0].dtype.is_float
    if not is_float or _has_minimum(stage, target) or _is_scarce(stage, target):
        return SURE
    return SURE if _bits_ns(stage, target) < _in_order_ns(stage, target) else 1


def _bits_ns(stage: Stage, target: CpuTarget) -> float:
    """The places of a row that are wanted, one after the other."""
    if len(stage.sort.keys) > 1:
        return math.inf
    bits = stage.sort.keys[0].dtype.bits // 2  # that many leave one key, or few
    compared = stage.reduce_axes[0].extent / lanes((stage,), target) * target.vector_bytes / 64
    return stage.sort.place.extent * bits * (COMPARED_NS * compared + BIT_NS)


def _collects(stage: Stage, target: CpuTarget) -> bool:
    """Whether candidates are collected where nothing was tuned."""
    is_long = stage.reduce_axes[0].extent > RANKED * lanes((stage,), target)
    return _is_scarce(stage, target) and (
        is_long or _limited_ns(stage, target) < _ranked_ns(stage, target)
    )


def _ranked_ns(stage: Stage, target: CpuTarget) -> float:
    """Counting the ranks of a row."""
    n = stage.reduce_axes[0].extent
    return n * (RANKED_NS + COUNTED_NS * n / lanes((stage,), target))


def _limited_ns(stage: Stage, target: CpuTarget) -> float:
    """Looking at a row for a limit, and for what is up to it."""
    groups = _groups(stage, target)
    return (
        LIMIT_NS
        + 2 * LOOKED_AT_NS * stage.reduce_axes[0].extent
        + COUNTED_NS * groups**2 / lanes((stage,), target)
        + UP_TO_IT_NS * GROUPS * _kept(stage)
    )


def _digits_ns(stage: Stage, n: int) -> float:
    """Sorting so many records by digits."""
    digits = sum(-(-key.dtype.bits // DIGIT) for key in stage.sort.keys)
    return n * MOVED_NS * (digits + 1) + digits * (1 << DIGIT)
