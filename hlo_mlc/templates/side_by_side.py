"""Short rows side by side: each row has a lane, and what is done along it is written out.

    for each row:                          for each 16 rows:
      for k in 0..8: sum += x[row, k]        for k in 0..8 unroll:
      for k in 0..8: y[row, k] = …    ->       for row in 0..16 vectorize: sum[row] += x[row, k]
                                             for k in 0..8 unroll:
                                               for row in 0..16 vectorize: y[row, k] = …

Points of a few coordinates, states of a few numbers, scores of a few classes.  Along such a row a
vector is mostly empty, its sum waits for one shuffle after the other, and what is computed once for
a row is computed alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from hlo_mlc.expr import index
from hlo_mlc.expr.build import substitute
from hlo_mlc.expr.core import Buffer, Var
from hlo_mlc.expr.dtypes import INDEX
from hlo_mlc.loops.core import Allocate
from hlo_mlc.loops.lower import lower_nest
from hlo_mlc.schedule.core import Schedule
from hlo_mlc.target.cpu import WIDEST_STEP, CpuTarget
from hlo_mlc.templates.base import (
    SERIAL_WORK,
    Parameters,
    Scheduled,
    decoded,
    in_powers,
    lanes,
    may_repeat,
    open_schedule,
    short_width,
    work,
)
from hlo_mlc.templates.borders import has_borders
from hlo_mlc.templates.elementwise import share_out
from hlo_mlc.tensor.classify import (
    cost,
    cost_of_row,
    folds_conditions,
    is_map,
    offset,
    picks_along,
    reads,
    stride,
    writes_once,
)
from hlo_mlc.tensor.coalesce import coalesce
from hlo_mlc.tensor.core import Nest, Stage

FEWEST_ROWS = 2  # that a vector is worth having for
LONGEST = 16  # row
LONGEST_JOINED = 64  # row that is joined of several
APART = 0.6  # instructions to load or store an element of a row that is beside others
ASKED = 2  # instructions to know of all lanes whether a condition holds there
FEWEST = 4  # elements of a row that are stored together
MOST_POINTS = 64  # of all stages for one row, each written out
# Operations of a row of a map, all written out, above which that has to save more than it costs to
# compile: half of the instructions. Steps of a Potts model, whose neighbours come by `roll`, were
# 64 copies of 350 operations, and too long to be compiled at all (potts).
MOST_WRITTEN, WORTH_WRITING = 1 << 11, 0.5


@dataclass(frozen=True, slots=True)
class SideBySideTemplate:
    """Vectors of rows, each row written out."""

    name: str = "side_by_side"

    def refusal(self, nest: Nest, target: CpuTarget) -> str:
        """Why the rows are not short; empty where they are."""
        nest = _coalesced(nest)
        if any(s.sort is not None or s.scan is not None for s in nest.stages):
            return "a sort or a scan"
        if not nest.shared or nest.stages[0].axes[nest.shared - 1].extent < FEWEST_ROWS:
            return "too few rows"
        inner = [_along(nest, s) for s in nest.stages]
        if not any(inner):
            return "no rows, only elements"
        if _is_one_map(nest) and not _is_joined(nest):
            return "not a reduction, nor several stages, nor rows of different elements"
        if _is_one_map(nest) and has_borders(nest.stages[0], lanes(nest.stages, target)):
            return "most of a row is the same once it is cut at its borders"
        longest = LONGEST_JOINED if _is_one_map(nest) else LONGEST
        if (
            any(not 0 < v.extent <= longest for axes in inner for v in axes)
            or sum(math.prod(v.extent for v in axes) for axes in inner) > MOST_POINTS
        ):
            return f"rows of more than {longest} elements, or {MOST_POINTS} points"
        if not all(map(writes_once, nest.stages)):
            return "several rows may write one element"
        beside, along = _beside_cost(nest, target), _along_cost(nest, target)
        if beside >= along:
            return "little to do in a row but to load and store it"
        if (
            _is_one_map(nest)
            and beside > WORTH_WRITING * along
            and (written := _cost_of_joined(nest)) > MOST_WRITTEN
        ):
            return f"{written:,} operations to write out, which are much the same along a row"
        return ""

    def space(self, nest: Nest, target: CpuTarget) -> dict[str, tuple[int, ...]]:
        """Work of one task."""
        return {"grain": (1, 2, 4)}

    def default(self, nest: Nest, target: CpuTarget) -> Parameters:
        """One vector of rows at a time: their elements are independent chains enough."""
        return {"grain": 1}

    def apply(self, nest: Nest, target: CpuTarget, parameters: Parameters) -> Scheduled:
        total, nest = work(nest), _coalesced(nest)
        shared = nest.stages[0].axes[: nest.shared]
        stages = [replace(s, axes=s.axes[nest.shared :]) for s in nest.stages]
        schedule = open_schedule(nest, lower_nest(shared, stages), checked=False)
        for buffer in nest.private:
            schedule = schedule.contract(buffer.name)
        row, width = shared[-1].name, _width(nest, target)
        schedule = schedule.split(row, width)
        along = [v.name for s in nest.stages for v in _along(nest, s)]
        for part in (f"{row}.i", f"{row}.t"):
            if part in schedule.loop_names:
                schedule = _beside(schedule, part, along, width)
        for axis in along:
            schedule = schedule.unroll(axis)
        for buffer, axes in _stored_along(nest).items():
            schedule = _transposed_out(schedule, buffer.name, axes, f"{row}.o", target)
        if total > SERIAL_WORK:
            schedule = share_out(schedule, total, parameters["grain"])
        return Scheduled.of(schedule)


def _coalesced(nest: Nest) -> Nest:
    """A nest of one stage with as many rows along one axis as can be."""
    if len(nest.stages) > 1:
        return nest
    stage = coalesce(nest.stages[0])
    if not writes_once(stage):
        stage = nest.stages[0]  # whose axes are those of the results
    if not is_map(stage) or len(stage.axes) < 2:
        return replace(nest, stages=(stage,), shared=len(stage.axes))
    return replace(nest, stages=(stage,), shared=len(stage.axes) - _joined_axes(stage))


def _joined_axes(stage: Stage) -> int:
    """How many of the last axes of a map make up a row: all of those, if there are a few, along
    which each element is something else."""
    count, size = 1, stage.axes[-1].extent
    for axis in reversed(stage.axes[1:-1]):
        size *= axis.extent
        if size > LONGEST_JOINED or not picks_along(stage, axis):
            break
        count += 1
    return count if picks_along(stage, stage.axes[-1]) else 1


def _width(nest: Nest, target: CpuTarget) -> int:
    """Rows in a vector: as many as there are, if they are few."""
    return min(lanes(nest.stages, target), nest.stages[0].axes[nest.shared - 1].extent)


def _is_one_map(nest: Nest) -> bool:
    return len(nest.stages) == 1 and is_map(nest.stages[0])


def _is_joined(nest: Nest) -> bool:
    """Whether a map computes something else for each element of a row."""
    (stage,) = nest.stages
    return (
        math.prod(v.extent for v in _along(nest, stage)) > WIDEST_STEP
        and picks_along(stage, stage.axes[-1])
        and may_repeat(stage)
    )


def _along_cost(nest: Nest, target: CpuTarget) -> float:
    """Rough number of instructions for a row with vectors along it."""
    width = lanes(nest.stages, target)
    total = 0
    for stage in nest.stages:
        along = _along(nest, stage)
        vectors = (
            math.prod(v.extent for v in along[:-1]) * -(-along[-1].extent // width) if along else 1
        )
        finished = cost(*(a.value for a in stage.assigns))
        total += vectors * (cost(*stage.terms) + _moved(nest, stage))
        if folds_conditions(stage):  # lanes that are none have to be cleared first
            row = along[-1].extent
            total += finished + ASKED + (row % short_width(row, width) > 0)
        elif stage.terms:  # one lane after the other, in halves
            total += finished + 2 * width.bit_length() * len(stage.terms)
        else:
            total += vectors * finished
    return total


def _beside_cost(nest: Nest, target: CpuTarget) -> float:
    """The same with a lane for each row, where what is read and stored has to be transposed."""
    width = _width(nest, target)
    total = 0.0
    for stage in nest.stages:
        elements = math.prod(v.extent for v in _along(nest, stage))
        results = [a.value for a in stage.assigns]
        finished = (
            _cost_of_joined(nest)
            if _is_one_map(nest)
            else cost(*results) * math.prod(v.extent for v in stage.axes[nest.shared :])
        )
        total += elements * (cost(*stage.terms) / width + APART * _moved(nest, stage))
        total += finished / width
    return total


def _cost_of_joined(nest: Nest) -> int:
    """`cost` of all elements of a row of a map, each of which is written out."""
    (stage,) = nest.stages
    axes = _along(nest, stage)
    element = Var("element", INDEX, math.prod(v.extent for v in axes))
    at = decoded(axes, element)
    return cost_of_row(element, *(substitute(a.value, at) for a in stage.assigns))


def _along(nest: Nest, stage: Stage) -> tuple[Var, ...]:
    return (*stage.axes[nest.shared :], *stage.reduce_axes)


def _moved(nest: Nest, stage: Stage) -> int:
    """How many elements of rows in memory are read and stored at each step along a row."""
    axes = {*_along(nest, stage)}
    read = sum(
        any(not axes.isdisjoint(i.free) for read in reads(stage, b) for i in read.indices)
        for b in stage.inputs
        if b not in nest.private
    )
    return read + sum(
        a.buffer not in nest.private and not axes.isdisjoint(v for i in a.indices for v in i.free)
        for a in (*stage.assigns, *stage.along)
    )


def _stored_along(nest: Nest) -> dict[Buffer, int]:
    """Results of which each row is stored as a whole, element by element, in enough of them, and
    how many axes a row has."""
    row, found = nest.stages[0].axes[nest.shared - 1], {}
    for stage in nest.stages:
        axes, size = stage.axes[nest.shared :], 1
        for a in stage.assigns:
            if (
                a.buffer in nest.private
                or a.indices[-len(axes) :] != axes
                or not _is_in_one_piece(nest, a.buffer)
            ):
                continue
            for axis in reversed(axes):
                if stride(a, axis) != size:
                    break
                size *= axis.extent
            else:
                if size >= FEWEST and stride(a, row) == size:
                    found[a.buffer] = sum(v.extent > 1 for v in axes)
    return found


def _is_in_one_piece(nest: Nest, result: Buffer) -> bool:
    """Whether all that is stored of a result for a row lies side by side, whatever else is in
    between the rows: parts of a joined array may be far apart."""
    rows, parts = set(), []
    for stage in nest.stages:
        axes = stage.axes[nest.shared :]
        for a in stage.assigns:
            if a.buffer == result:
                terms, begin = index.affine(offset(result, a.indices))
                rows.add(frozenset((e, c) for e, c in terms.items() if e not in axes))
                parts.append((begin, math.prod(v.extent for v in axes), a.guard))
    parts.sort(key=lambda part: part[:2])
    return (
        len(rows) == 1
        and all(guard is None for *_, guard in parts)
        and all(begin + size == after for (begin, size, _), (after, *_) in pairwise(parts))
    )


def _transposed_out(
    schedule: Schedule, buffer: str, axes: int, rows: str, target: CpuTarget
) -> Schedule:
    """The results of some rows collected with their lanes side by side, and stored row by row."""
    tile = f"{buffer}.{rows}"
    schedule = schedule.cache_write(buffer, rows, "transposed")
    along = [f"{tile}.{number}" for number in range(axes)]
    schedule = schedule.reorder(f"{tile}.{axes}", *along).unroll(f"{tile}.{axes}")
    if axes > 1:
        schedule = schedule.fuse(*along)
    name = ".".join(along)
    return (
        schedule.vectorize(name)
        if target.has_masked_bytes
        else in_powers(schedule, name, LONGEST_JOINED)
    )


def _beside(schedule: Schedule, rows: str, along: Sequence[str], width: int) -> Schedule:
    """The loop over some rows inside of all others, as vectors."""
    width = 1 << (width - 1).bit_length()  # there is room for the lanes that are off
    schedule = _kept(schedule, rows, width)
    for axis in along:
        schedule = _kept(schedule.distribute(rows, axis).reorder(axis, rows), rows, width)
    return schedule.vectorize(rows)


def _kept(schedule: Schedule, rows: str, width: int) -> Schedule:
    """What is private to a row, for all rows at once."""
    if any(isinstance(s, Allocate) for loop in schedule.loops(rows) for s in loop.body):
        return schedule.expand(rows, "register", width, "last")
    return schedule
