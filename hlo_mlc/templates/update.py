"""Updates that may meet: a scatter, one update after the other at every place.

    for points along an axis on which none meet, shared out:
      for each update, in order:
        target[place(update), point] = combine(target[place(update), point], update)

Updates may fall on the same place, but two of them that differ in an index that is an axis by
itself never do, so every element of the target sees its updates in their order.  The other indices
may depend on that axis, as those of each row's own histogram do.  If the last axis is one of these
and has no part in other indices, its points are vectors; for that, others may say where its points
begin.

Where there is no such axis to share out, and there are many more updates than elements, tasks have
copies of the target, which are put together at the end, if updates may come in any order:

    for c in chunks, shared out:
      for each update of chunk c:
        copy[c, place(update)] = combine(copy[c, place(update)], update)
    for each element: target[element] = combine(target[element], copy[0, element], copy[1, …], …)

The cut depends on the shape only, never on the threads.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

from hlo_mlc.expr import index
from hlo_mlc.expr.core import Buffer, Expr, Load, Var, loads
from hlo_mlc.loops.lower import lower_stage
from hlo_mlc.schedule.core import Schedule
from hlo_mlc.target.cpu import CpuTarget
from hlo_mlc.templates.base import (
    SERIAL_WORK,
    TASK_WORK,
    Parameters,
    Scheduled,
    lanes,
    open_schedule,
    points,
    unroll_any,
    work,
)
from hlo_mlc.templates.elementwise import SHORT, ElementwiseTemplate, share_out, vectorize
from hlo_mlc.tensor.chunks import updates_in_chunks
from hlo_mlc.tensor.classify import cost, is_map, reads_others, stride, writes_once
from hlo_mlc.tensor.coalesce import coalesce
from hlo_mlc.tensor.combine import update_of
from hlo_mlc.tensor.core import Assign, Nest, Stage, derived

# Most chunks that updates are cut into: enough for 16 cores.
CHUNKS = 16
# Updates of single elements that make a chunk, 20 to 30 us, and the work of one in vectors: enough
# of both to wake threads for, also in every trip of a loop.
CHUNK_ELEMENTS, CHUNK_WORK = 1 << 15, 2 * TASK_WORK
# Updates for each element of a copy, which is filled and read in vectors: of single elements, which
# take ten times as long, and in vectors.
PER_ELEMENT, PER_ELEMENT_IN_ROWS = 1, 16
# Bytes of the target that an update goes to at a time, where points of the shared axis lie so close
# together, in tasks enough for each core: two tasks would write to one line, and what is further
# apart shares few places in L1.  2,000 rows of 64 x 8 f32 took 0.2 of the time so, of 64 x 16 0.2,
# 20,000 of 128 x 8 0.25; of 63 x 8, which are spread over all of L1, as long.
BLOCK_BYTES, TASKS_OF_A_CORE = 512, 4
# Ops on sums of which any order is as good; products of floats may overflow in another one.
_IN_ANY_ORDER = ("add", "max", "min")


@dataclass(frozen=True, slots=True)
class UpdateTemplate:
    """Serial but for axes along which nothing can meet."""

    name: str = "update"

    def refusal(self, nest: Nest, target: CpuTarget) -> str:
        """Why the nest is not such an update; empty where it is."""
        if len(nest.stages) != 1 or not is_map(nest.stages[0]):
            return "not a single elementwise stage"
        stage = coalesce(nest.stages[0])
        if not stage.axes:
            return "a single update"
        places = {(a.buffer, a.indices) for a in stage.assigns}
        if len(places) > len(set(stage.outputs)):
            return "it writes to several places of one buffer"
        return "it reads elements that other points overwrite" if reads_others(stage) else ""

    def space(self, nest: Nest, target: CpuTarget) -> dict[str, tuple[int, ...]]:
        """Vectors, or elements, per iteration, and chunks that have copies of their own."""
        stage = coalesce(nest.stages[0])
        can_be_cut = _cut_axis(stage) is not None and may_come_in_any_order(stage)
        return {"unroll": (1, 2, 4), "chunks": (1, 2, 4, 8, CHUNKS) if can_be_cut else (1,)}

    def default(self, nest: Nest, target: CpuTarget) -> Parameters:
        """Several vectors in flight, or elements where code is short."""
        stage = coalesce(nest.stages[0])
        is_short = is_in_rows(stage) or cost(*(a.value for a in stage.assigns)) <= SHORT
        return {"unroll": 4 if is_short else 1, "chunks": chunks(nest)}

    def apply(self, nest: Nest, target: CpuTarget, parameters: Parameters) -> Scheduled:
        """The loops for the given parameters.

        Short rows are added to in vectors without masks: sums of sorted rows of 3 to 12 took 0.25
        to 0.5 of the time so, of rows in any order 0.85 to 1.2 (of bf16 up to 1.6).
        """
        stage = coalesce(nest.stages[0])
        if parameters["chunks"] > 1:
            return _on_copies(stage, target, parameters)
        schedule = open_schedule(nest, lower_stage(stage))
        tasks = shared_axis(stage)
        if tasks is not None and work(nest) > SERIAL_WORK:
            if tasks is not stage.axes[0]:
                schedule = _in_blocks(schedule, stage, tasks, target)
            schedule = share_out(schedule, work(nest), 1)
        last = stage.axes[-1].name
        return Scheduled.of(_several_at_a_time(schedule, stage, last, target, parameters))


def _in_blocks(schedule: Schedule, stage: Stage, tasks: Var, target: CpuTarget) -> Schedule:
    """The shared axis outermost, with the points of a block next to the innermost axis."""
    *others, last = (axis.name for axis in stage.axes if axis is not tasks)
    apart = max(a.buffer.dtype.bytes * abs(stride(a, tasks) or 0) for a in stage.assigns)
    size = min(BLOCK_BYTES // max(1, apart), tasks.extent // (TASKS_OF_A_CORE * target.cores))
    if not apart or size < 2:
        return schedule.reorder(tasks.name, *others, last)
    return schedule.split(tasks.name, size, "shorten").reorder(
        f"{tasks.name}.o", *others, f"{tasks.name}.i", last
    )


def _several_at_a_time(
    schedule: Schedule, stage: Stage, last: str, target: CpuTarget, parameters: Parameters
) -> Schedule:
    """The innermost loop in vectors, or some of its iterations written out."""
    unroll = parameters["unroll"]
    if is_in_rows(stage):
        width = lanes((stage,), target)
        return vectorize(schedule, last, width, unroll, in_pieces=True)
    if unroll > 1:
        schedule = schedule.split(last, unroll)
    return unroll_any(schedule, f"{last}.i")  # of which short loops have none


def _on_copies(stage: Stage, target: CpuTarget, parameters: Parameters) -> Scheduled:
    """for each chunk: updates of a copy;   target = updated by each copy"""
    axis = _cut_axis(stage)
    size = -(-axis.extent // parameters["chunks"])
    begin, inside, end, copies = updates_in_chunks(stage, axis, size)
    schedule = open_schedule(Nest((inside,), len(inside.axes)), lower_stage(inside))
    schedule = schedule.split(axis.name, size, "shorten").parallel(f"{axis.name}.o")
    last = f"{axis.name}.i" if axis is stage.axes[-1] else stage.axes[-1].name
    schedule = _several_at_a_time(schedule, stage, last, target, parameters)
    return Scheduled.of(
        *(_of_all(s, target) for s in begin),
        schedule,
        *(_of_all(s, target) for s in end),
        scratch=copies,
    )


def _of_all(stage: Stage, target: CpuTarget) -> Schedule:
    """A stage of every element."""
    nest, elementwise = Nest((stage,), len(stage.axes)), ElementwiseTemplate()
    (schedule,) = elementwise.apply(nest, target, elementwise.default(nest, target)).schedules
    return schedule


@derived
def chunks(nest: Nest) -> int:
    """How many chunks with copies of their own there are by default: 1 is none."""
    stage = coalesce(nest.stages[0])
    cut = _cut_axis(stage)
    if shared_axis(stage) is not None or cut is None or not may_come_in_any_order(stage):
        return 1
    updates, elements = points(stage), sum(a.buffer.size for a in stage.assigns)
    if is_in_rows(stage):
        tasks, each = work(nest) // CHUNK_WORK, PER_ELEMENT_IN_ROWS
    else:
        tasks, each = updates // CHUNK_ELEMENTS, PER_ELEMENT
    most = min(CHUNKS, cut.extent, tasks, updates // (each * elements))
    return 1 << most.bit_length() - 1 if most > 1 else 1


def is_by_elements(stage: Stage) -> bool:
    """Whether a stage updates elements that may meet, one by one."""
    return is_map(stage) and not writes_once(stage) and not is_in_rows(coalesce(stage))


def may_come_in_any_order(stage: Stage) -> bool:
    """Whether all that is done to elements is to add to them, or the like."""
    return all(_adds(assign, {*stage.outputs}) for assign in stage.assigns)


def _adds(assign: Assign, written: Set[Buffer]) -> bool:
    update = update_of(assign.value, Load(assign.buffer, assign.indices))
    return (
        update is not None
        and bool(assign.buffer.shape)
        and (update[0].name in _IN_ANY_ORDER or not assign.buffer.dtype.is_float)
        and written.isdisjoint(read.source for read in loads(update[1]))
    )


def _cut_axis(stage: Stage) -> Var | None:
    """The axis that chunks are of: the outermost one, if it is none of vectors.  Others change
    places with it only where sums are exact."""
    axes = stage.axes[: len(stage.axes) - is_in_rows(stage)]
    return next((axis for axis in axes if axis.extent > 1), None)


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
