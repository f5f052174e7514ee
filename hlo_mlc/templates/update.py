"""Updates that may meet: a scatter, one update after the other at every place.

    for points along an axis on which none meet, shared out:
      for each update, in order:
        target[place(update), point] = combine(target[place(update), point], update)

Updates may fall on the same place, but two of them that differ in an index that is an axis by
itself never do, so every element of the target sees its updates in their order.  The other indices
may depend on that axis, as those of each row's own histogram do.  If the last axis is one of these
and has no part in other indices, its points are vectors; for that, others may say where its points
begin.
"""

from __future__ import annotations

from dataclasses import dataclass

from hlo_mlc.expr import index
from hlo_mlc.expr.core import Expr, Var
from hlo_mlc.loops.lower import lower_stage
from hlo_mlc.target.cpu import CpuTarget
from hlo_mlc.templates.base import SERIAL_WORK, Parameters, Scheduled, lanes, open_schedule, work
from hlo_mlc.templates.elementwise import share_out, vectorize
from hlo_mlc.tensor.classify import is_map, reads_others, stride
from hlo_mlc.tensor.coalesce import coalesce
from hlo_mlc.tensor.core import Nest, Stage


@dataclass(frozen=True, slots=True)
class UpdateTemplate:
    """Serial but for axes along which nothing can meet."""

    name: str = "update"

    def refusal(self, nest: Nest, target: CpuTarget) -> str:
        """Why the nest is not such an update; empty where it is."""
        if len(nest.stages) != 1 or not is_map(nest.stages[0]):
            return "not a single elementwise stage"
        stage = coalesce(nest.stages[0])
        if shared_axis(stage) is None and not _apart(stage) and not is_in_rows(stage):
            return "updates may meet along every axis"
        places = {(a.buffer, a.indices) for a in stage.assigns}
        if len(places) > len(set(stage.outputs)):
            return "it writes to several places of one buffer"
        return "it reads elements that other points overwrite" if reads_others(stage) else ""

    def space(self, nest: Nest, target: CpuTarget) -> dict[str, tuple[int, ...]]:
        """Vectors per iteration."""
        return {"unroll": (1, 2, 4)}

    def default(self, nest: Nest, target: CpuTarget) -> Parameters:
        """Several vectors in flight."""
        return {"unroll": 4}

    def apply(self, nest: Nest, target: CpuTarget, parameters: Parameters) -> Scheduled:
        """The loops for the given parameters.

        Short rows are added to in vectors without masks: sums of sorted rows of 3 to 12 took 0.25
        to 0.5 of the time so, of rows in any order 0.85 to 1.2 (of bf16 up to 1.6).
        """
        stage = coalesce(nest.stages[0])
        schedule = open_schedule(nest, lower_stage(stage))
        tasks = shared_axis(stage)
        if tasks is not None and work(nest) > SERIAL_WORK:
            if tasks is not stage.axes[0]:
                schedule = schedule.reorder(
                    tasks.name, *(axis.name for axis in stage.axes if axis is not tasks)
                )
            schedule = share_out(schedule, work(nest), 1)
        if is_in_rows(stage):
            schedule = vectorize(
                schedule,
                stage.axes[-1].name,
                lanes((stage,), target),
                parameters["unroll"],
                in_pieces=True,
            )
        return Scheduled.of(schedule)


def shared_axis(stage: Stage) -> Var | None:
    """The axis that tasks go along, if there is one: no other axis says where its points begin.

    Not the last: each task would read parts of rows, which made sums of 30,000 rows of 512 take 1.2
    to 1.4 times as long.
    """
    return next(
        (
            axis
            for axis in stage.axes[:-1]
            if axis.extent > 1
            and all(_tells_apart(a.indices, axis, stage.axes) for a in stage.assigns)
        ),
        None,
    )


def is_in_rows(stage: Stage) -> bool:
    """Whether the updates along the last axis go to neighbours in memory, so that they are vectors:
    also where the axis goes through several dimensions of what is updated."""
    if not stage.axes:
        return False
    last = stage.axes[-1]
    return last in _apart(stage) or (
        last.extent > 1 and all(stride(a, last) == 1 for a in stage.assigns)
    )


def _apart(stage: Stage) -> frozenset[Var]:
    """The axes along which no updates meet that differ in nothing else: of every place that is
    written one index is the axis, from anywhere on, and the others have no part in it."""
    return frozenset(
        axis
        for axis in stage.axes
        if axis.extent > 1 and all(_walks_alone(a.indices, axis) for a in stage.assigns)
    )


def _walks_alone(indices: tuple[Expr, ...], axis: Var) -> bool:
    steps = [index.coefficient(i, axis) for i in indices]
    return None not in steps and sorted(map(abs, steps)) == [*[0] * (len(steps) - 1), 1]


def _tells_apart(indices: tuple[Expr, ...], axis: Var, axes: tuple[Var, ...]) -> bool:
    """Whether an index is the axis, from a place on that is the same for all points."""
    return any(
        index.coefficient(i, axis) == 1 and (i - axis).free.isdisjoint(axes) for i in indices
    )
