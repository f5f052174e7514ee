"""Borders: positions along an axis where conditions of a map change. Loops are cut there, and each
part is computed without these conditions."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from hlo_mlc.expr import index
from hlo_mlc.expr.core import Apply, Expr, Var, walk
from hlo_mlc.expr.dtypes import BOOL
from hlo_mlc.expr.facts import exactly
from hlo_mlc.schedule.core import Schedule
from hlo_mlc.tensor.classify import cost
from hlo_mlc.tensor.core import Stage, derived

# Parts of a row that are computed by loops of their own, and simple operations that all copies of a
# body may have: code takes time to compile.
MOST_PARTS, MOST_OPERATIONS = 5, 1 << 10
# Vectors of the longest part of a row from which on it has a loop of its own: half of one without
# conditions is worth it. 50 steps that pad 27 x 27 of i16 by its other side took 0.08 of the time
# with AVX2 that they took where two were the least, 21 x 21 of f32 with AVX-512 0.3. Edges of four
# colours each beside images, which conditions on the row say, took 0.7 with AVX2 (random_crops).
LEAST_VECTORS = 0.5

Range = tuple[int, int]
"""The first of some places along an axis, and the one behind the last."""


@derived
def parts(stage: Stage, axis: Var) -> tuple[Range, ...]:
    """The ranges of an axis within which no condition on the place along it alone changes."""
    found = {0, axis.extent}
    for condition in _conditions(stage):
        if condition.free == {axis}:
            for facts in (exactly(condition), exactly(condition, holds=False)):
                found.update(border for fact in facts or () for border in _borders(fact, axis))
    inside = sorted(place for place in found if 0 <= place <= axis.extent)
    return tuple(itertools.pairwise(inside))


def _conditions(stage: Stage) -> list[Apply]:
    """The comparisons in the values, indices and guards of a stage."""
    guards = [a.guard for a in stage.assigns if a.guard is not None]
    reads = [
        x.guard for group in stage.loads_by_buffer.values() for x in group if x.guard is not None
    ]
    return [
        node
        for node in walk(*stage.expressions, *guards, *reads)
        if isinstance(node, Apply) and node.dtype is BOOL
    ]


def _borders(fact: Expr, axis: Var) -> list[int]:
    """Where along an axis `fact <= 0` begins to hold, or ceases to."""
    terms, offset = index.affine(fact)
    if terms.keys() != {axis}:
        return []
    factor = terms[axis]
    return [-offset // factor + 1 if factor > 0 else -(offset // factor)]


def longest(stage: Stage, axis: Var) -> Range:
    """The longest of the parts of an axis."""
    return max(parts(stage, axis), key=lambda part: part[1] - part[0])


def has_borders(stage: Stage, width: int) -> bool:
    """Whether most of what a map computes, in vectors of so many lanes, lies between borders that
    it has, and few enough copies of its body do with the conditions.

    A step of the game of life whose neighbours come by `roll` took 0.3 of the time with AVX2.
    """
    *outer, last = stage.axes
    along = parts(stage, last)
    inside = [longest(stage, axis) for axis in outer]
    apart = [high - low < axis.extent for axis, (low, high) in zip(outer, inside, strict=True)]
    if len(along) == 1 and not any(apart):
        return False
    operations = sum(cost(a.value) for a in stage.assigns) * (len(along) + sum(apart))
    low, high = longest(stage, last)
    row = high - low
    if len(along) == 1:  # then all that lies side by side within one place of an axis that is cut
        row = math.prod(v.extent for v in stage.axes[len(apart) - apart[::-1].index(True) :])
    return (
        len(along) <= MOST_PARTS
        and operations <= MOST_OPERATIONS
        and row >= LEAST_VECTORS * width
        and all(
            2 * (high - low) > axis.extent for axis, (low, high) in zip(outer, inside, strict=True)
        )
    )


def between_borders(
    schedule: Schedule, stage: Stage, all_rows: bool
) -> tuple[Schedule, list[str], list[str]]:
    """Rows between the borders of the axes before the last one apart, and each of them cut at its
    own borders, or `all_rows`: the loops along these parts, and along the other rows.  Where rows
    have no borders, loops around them are cut instead, but for the first, which tasks share: then
    nothing is left of the conditions (random_crops takes 0.87 of the time)."""
    *outer, last = stage.axes
    cut = _cut_around(stage) if len(parts(stage, last)) == 1 else []
    for axis in outer:
        low, high = longest(stage, axis)
        if high - low == axis.extent:
            continue
        if axis in cut:
            schedule, _ = _cut(schedule, axis.name, parts(stage, axis))
        else:
            schedule = schedule.set_apart(axis.name, low, high)
    schedule, inside = _cut(schedule, last.name, parts(stage, last))
    others = [name for name in (f"{last.name}.e",) if name in schedule.loop_names]
    if others and all_rows:
        schedule, others = _cut(schedule, others[0], parts(stage, last))
    return schedule, inside, others


def _cut_around(stage: Stage) -> list[Var]:
    """The axes around rows that are to be cut, innermost first, as far as the limit on copies
    allows."""
    found, operations = [], sum(cost(a.value) for a in stage.assigns)
    for axis in reversed(stage.axes[1:-1]):
        operations *= len(parts(stage, axis))
        if len(parts(stage, axis)) > MOST_PARTS or operations > MOST_OPERATIONS:
            break
        found.append(axis)
    return found


def _cut(schedule: Schedule, name: str, ranges: Sequence[Range]) -> tuple[Schedule, list[str]]:
    """A loop cut into pieces, and the names of those pieces that have iterations."""
    names = []
    for low, high in ranges[:-1]:
        if name not in schedule.loop_names:
            break
        schedule = schedule.cut(name, high - low)
        names.append(f"{name}.a")
        name = f"{name}.b"
    return schedule, [one for one in (*names, name) if one in schedule.loop_names]
