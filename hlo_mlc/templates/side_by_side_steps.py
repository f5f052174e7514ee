"""Procedures whose loops have trips that do not wait for each other: vectors of them.

    parallel points
      for step: for 16 neighbouring trips: array[16 trips] = …

Where such vectors would be half empty, tensors side by side have their lanes (`stepwise.py`).  What
is read against the grain is transposed in squares.  The last vector of a loop begins early,
and puts some of what the one before has put once more.  An array that becomes a result as it is, is
that result.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from hlo_mlc.expr.build import substitute
from hlo_mlc.expr.core import Load, Var, loads
from hlo_mlc.expr.procedure import Count, Move, Procedure, Put
from hlo_mlc.schedule.core import Schedule
from hlo_mlc.target.cpu import CpuTarget
from hlo_mlc.templates.base import (
    Fixed,
    Parameters,
    Scheduled,
    in_tasks,
    lanes,
    may_repeat,
    open_stage,
    work,
    worth_a_task,
)
from hlo_mlc.templates.stepwise import fills_lanes
from hlo_mlc.tensor.classify import stride
from hlo_mlc.tensor.coalesce import coalesce
from hlo_mlc.tensor.core import Assign, Nest, Stage

# Smaller squares gain nothing over element by element.
_SMALLEST = 4
# How much longer vectors of trips may take than full ones, where tensors side by side have room in
# the first cache: transforms of 63 and 75 complex numbers, with 1.7 in f64 and 2.4 in f32, took 0.8
# of the time so in both; of 64 and 100 in f64, with 1.0 and 1.6, 1.3 and 1.2 of it.
_HALF_EMPTY = 1.65


@dataclass(frozen=True, slots=True)
class SideBySideStepsTemplate(Fixed):
    """A point after the other, vectors of what its steps do."""

    name: str = "side_by_side_steps"

    def refusal(self, nest: Nest, target: CpuTarget) -> str:
        """Why the nest is no procedure of such loops; empty where it is."""
        if len(nest.stages) != 1 or nest.stages[0].procedure is None:
            return "no procedure"
        (stage,) = nest.stages
        if not stage.procedure.is_side_by_side:
            return "trips of its loops wait for each other"
        if not may_repeat(stage):
            return "it reads what it overwrites"
        if _slack(stage, target) > _HALF_EMPTY and fills_lanes(nest, target):
            return "vectors of its trips are half empty, those of tensors are full"
        return ""

    def apply(self, nest: Nest, target: CpuTarget, parameters: Parameters) -> Scheduled:
        stage = _with_names(coalesce(nest.stages[0]))
        schedule = open_stage(stage, replace(nest, stages=(stage,)))
        for array in _handed_on(stage):
            schedule = schedule.coalesce(array)
        width = lanes((stage,), target)
        for outer, inner in _innermost(stage.procedure.body):
            schedule = (
                _squares(schedule, outer, inner, width)
                if _cross(outer, inner)
                else _vectors(schedule, inner, width)
            )
        if stage.axes:
            total = work(nest)
            schedule = in_tasks(schedule, len(stage.axes), lambda n: worth_a_task(n, total))
        return Scheduled.of(schedule)


def _with_names(stage: Stage) -> Stage:
    """The stage with a name of its own for each loop of its procedure."""
    taken = {v.name for v in (*stage.axes, *stage.reduce_axes)}

    def named(move: Move) -> Move:
        if isinstance(move, Put):
            return move
        var = next(v for v in _names(move.var) if v.name not in taken)
        taken.add(var.name)
        inside = Procedure((), move.body).mapped(lambda e: substitute(e, {move.var: var})).body
        return Count(var, move.extent, tuple(map(named, inside)))

    procedure = stage.procedure
    return replace(stage, procedure=replace(procedure, body=tuple(map(named, procedure.body))))


def _names(var: Var) -> Iterator[Var]:
    yield var
    yield from (Var(f"{var.name}_{n}", var.dtype, var.extent) for n in itertools.count(2))


def _handed_on(stage: Stage) -> list[str]:
    """The arrays that become a result as they are, and are not read before."""
    read = {one.source for e in stage.procedure.expressions for one in loads(e)}
    found = {}
    for a in stage.along:
        if not isinstance(a.value, Load) or a.value.source in read or a.guard is not None:
            continue
        own = len(a.indices) - len(a.value.indices)
        inner = {v for v in stage.reduce_axes if v in a.value.indices}
        if (
            a.value.indices == a.indices[own:]
            and not any(i.free & inner for i in a.indices[:own])
            and a.value.source.shape == a.buffer.shape[own:]
        ):
            found[a.value.source.name] = a
    return [*found]


def _innermost(
    body: Sequence[Move], around: Count | None = None
) -> Iterator[tuple[Count | None, Count]]:
    """The loops that hold no others, each with the one directly around it."""
    for move in body:
        if isinstance(move, Count):
            if all(isinstance(inner, Put) for inner in move.body):
                yield around, move
            else:
                yield from _innermost(move.body, move)


def _vectors(schedule: Schedule, count: Count, width: int) -> Schedule:
    schedule, _, inside = _blocks(schedule, count, _side(count, width))
    return schedule.vectorize(inside)


def _squares(schedule: Schedule, outer: Count, inner: Count, width: int) -> Schedule:
    """Rows of squares, written out, whose columns are lanes: one array's after the other, as a
    square fills the registers."""
    if len(inner.body) > 1:
        schedule = schedule.distribute(outer.var.name)
    side = min(_side(outer, width), _side(inner, width))
    schedule, _, row = _blocks(schedule, outer, side)
    schedule, columns, column = _blocks(schedule, inner, side)
    if columns:
        schedule = schedule.reorder(columns, row)
    return schedule.unroll(row).vectorize(column)


def _blocks(schedule: Schedule, count: Count, side: int) -> tuple[Schedule, str, str]:
    """Blocks of so many trips of a loop, the last of which ends with the last trip, and the loop in
    a block; no blocks where there would be one."""
    name = count.var.name
    if count.var.extent == side:
        return schedule, "", name
    return schedule.split(name, side, "repeat"), f"{name}.o", f"{name}.i"


def _cross(outer: Count | None, inner: Count) -> bool:
    """Whether the inner loop is all of the outer one, and what is read lies side by side along the
    outer one, what is put along the inner one."""
    return (
        outer is not None
        and len(outer.body) == 1
        and any(
            stride(Assign(put.array, put.indices, put.value), inner.var) == 1
            and isinstance(put.value, Load)
            and stride(put.value, outer.var) == 1
            and stride(put.value, inner.var) != 1
            and min(outer.var.extent, inner.var.extent) >= _SMALLEST
            for put in inner.body
        )
    )


def _slack(stage: Stage, target: CpuTarget) -> float:
    """How much longer vectors of its trips take than full ones, mean of its loops: the last one may
    begin early, and one that is half as long takes two thirds of the time."""
    width, found = lanes((stage,), target), []
    for outer, inner in _innermost(stage.procedure.body):
        if not _cross(outer, inner):
            n, side = inner.var.extent, _side(inner, width)
            found.append(-(-n // side) * side / n * (width / side) ** 0.5)
    return sum(found) / max(1, len(found))


def _side(count: Count, most: int) -> int:
    return min(most, 1 << count.var.extent.bit_length() - 1)
