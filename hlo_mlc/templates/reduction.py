"""Reductions along rows, and row-wise chains: softmax, norms, argmax, sums of everything.

One loop over the rows that the stages share; inside it each stage is a vectorized loop over its
row, and what passes between stages stays in a buffer of one row.  Few long rows are cut into
chunks that are combined at the end; the cut depends on the shape only, never on the threads.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from hlo_mlc.expr import index
from hlo_mlc.loops.core import For, LoopKind
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
    work,
)
from hlo_mlc.templates.columns import in_chunks
from hlo_mlc.templates.elementwise import share_out, vectorize
from hlo_mlc.tensor.classify import cost, is_map
from hlo_mlc.tensor.coalesce import coalesce
from hlo_mlc.tensor.combine import merging
from hlo_mlc.tensor.core import Nest, Stage

# Most chunks that one long reduction is cut into: enough to keep 16 cores busy four times over.
CHUNKS = 64


@dataclass(frozen=True, slots=True)
class ReductionTemplate:
    """Row by row, each pass vectorized; or column by column."""

    name: str = "reduction"

    def refusal(self, nest: Nest, target: CpuTarget) -> str:
        """Why the nest is not a row-wise chain; empty where it is."""
        if all(is_map(s) for s in nest.stages):
            return "no reduction in it"
        if any(s.scan is not None for s in nest.stages):
            return "a scan stores all results on the way"
        if any(v.extent == 0 for s in nest.stages for v in (*s.axes, *s.reduce_axes)):
            return "an axis without elements"
        return ""

    def space(self, nest: Nest, target: CpuTarget) -> dict[str, tuple[int, ...]]:
        """Partial results in flight for cheap terms, vectors per iteration of maps, work of one
        task, chunks."""
        return {"count": (1, 2, 4, 8), "unroll": (1, 2, 4), "grain": (1, 2, 4),
                "chunks": (1, 16, 32, 64) if _can_be_cut(nest) else (1,)}

    def default(self, nest: Nest, target: CpuTarget) -> Parameters:
        """Enough partial results to hide the latency of one combination (4 cycles, 2 per cycle)."""
        return {"count": 8, "unroll": 2, "grain": 1, "chunks": self._chunks(nest, target)}

    def _chunks(self, nest: Nest, target: CpuTarget) -> int:
        stage = nest.stages[0]
        rows = math.prod(v.extent for v in stage.axes)
        if not _can_be_cut(nest) or rows >= CHUNKS // 2 or work(nest) < SERIAL_WORK:
            return 1
        long = coalesce(stage).reduce_axes[0].extent
        return max(1, min(CHUNKS // max(1, rows), work(nest) // TASK_WORK, long // 64))

    def apply(self, nest: Nest, target: CpuTarget, parameters: Parameters) -> Scheduled:
        """The loops for the given parameters."""
        if parameters["chunks"] > 1 and _can_be_cut(nest):
            return _chunked(nest, target, parameters)
        shared = nest.stages[0].axes[:nest.shared]
        inner = [coalesce(replace(s, axes=s.axes[nest.shared:])) for s in nest.stages]
        body = tuple(stmt for s in inner for stmt in lower_stage(s))
        for axis in reversed(shared):
            body = (For(axis, index.constant(axis.extent), LoopKind.SERIAL, body),)
        schedule = open_schedule(nest, body)
        for stage in inner:
            schedule = _row(schedule, stage, target, parameters)
        for buffer in nest.private:
            schedule = schedule.contract(buffer.name)
        for axis in shared[1:]:
            schedule = schedule.fuse(schedule.loop_names[0], axis.name)
        if shared and work(nest) > SERIAL_WORK:
            schedule = share_out(schedule, work(nest), parameters["grain"])
        return Scheduled(schedule.program.body, (), schedule)


def _can_be_cut(nest: Nest) -> bool:
    """True for one reduction and nothing else, whose terms may be folded in runs."""
    stage = nest.stages[0]
    return len(nest.stages) == 1 and not stage.along and stage.combiner.identity is not None


def _row(schedule: Schedule, stage: Stage, target: CpuTarget, parameters: Parameters) -> Schedule:
    """One pass over a row."""
    width = lanes((stage,), target)
    if is_map(stage):
        return vectorize(schedule, stage.axes[-1], width, parameters["unroll"]) \
            if stage.axes else schedule
    axis = stage.reduce_axes[-1]
    if (stage.combiner.identity is None and axis.extent < width) \
            or merging(stage.combiner, stage.terms, stage.reduce_axes) is None:
        return schedule
    return schedule.rfactor(axis.name, width, _partial_results(stage, parameters["count"]))


def _partial_results(stage: Stage, count: int) -> int:
    """`count` for terms that are hardly more than loads; fewer where computing them takes longer
    than adding them up, and their temporaries need the registers, or several values are folded."""
    heavy = cost(*stage.terms)
    shared = count // 2 if len(stage.accumulators) > 2 else count
    return max(1, shared if heavy <= 4 else shared // 2 if heavy <= 12 else shared // 4)


def _chunked(nest: Nest, target: CpuTarget, parameters: Parameters) -> Scheduled:
    """for each chunk: partial[chunk] = fold of the chunk;   result = fold of partial"""
    first, second, partial = in_chunks(coalesce(nest.stages[0]), parameters["chunks"])
    begin = Nest((first,), len(first.axes))
    schedule = _row(open_schedule(begin, lower_stage(first)), first, target, parameters)
    schedule = schedule.parallel(first.axes[0].name)
    return Scheduled((*schedule.program.body, *lower_stage(second)), partial)
