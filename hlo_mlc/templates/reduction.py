"""Reductions and row-wise chains: softmax, norms, argmax, sums over rows, columns or everything.

One loop over the rows that the stages share; inside it each stage is a vectorized loop over its
row, and what passes between stages stays in a buffer of one row.  Reductions over a leading axis
vectorize across their results instead.  Few long rows are cut into chunks that are combined at
the end; the cut depends on the shape only, never on the number of threads.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from hlo_mlc.expr import index
from hlo_mlc.expr.build import load, substitute
from hlo_mlc.expr.core import Buffer, Expr, Var
from hlo_mlc.loops.core import Accumulate, Allocate, For, LoopKind, Stmt, Store
from hlo_mlc.loops.lower import lower_stage
from hlo_mlc.loops.rewrite import loop
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
from hlo_mlc.templates.elementwise import share_out, vectorize
from hlo_mlc.tensor.classify import cost, is_map, walks_columns
from hlo_mlc.tensor.coalesce import coalesce
from hlo_mlc.tensor.core import Assign, Nest, Stage

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
        if any(v.extent == 0 for s in nest.stages for v in (*s.axes, *s.reduce_axes)):
            return "an axis without elements"
        return ""

    def space(self, nest: Nest, target: CpuTarget) -> dict[str, tuple[int, ...]]:
        """Partial results in flight, vectors per iteration of maps, work of one task, chunks."""
        return {"count": (1, 2, 4, 8), "unroll": (1, 2, 4), "grain": (1, 2, 4),
                "chunks": (1, 16, 32, 64)}

    def default(self, nest: Nest, target: CpuTarget) -> Parameters:
        """Enough partial results to hide the latency of one combination (4 cycles, 2 per cycle)."""
        heavy = max(cost(*s.terms) for s in nest.stages if not is_map(s))
        return {"count": 8 if heavy <= 4 else 4 if heavy <= 12 else 2, "unroll": 2, "grain": 1,
                "chunks": self._chunks(nest, target)}

    def _chunks(self, nest: Nest, target: CpuTarget) -> int:
        stage = nest.stages[0]
        rows = math.prod(v.extent for v in stage.axes)
        if len(nest.stages) > 1 or rows >= 2 * target.cores or stage.along \
                or work(nest) < SERIAL_WORK or stage.combiner.identity is None:
            return 1
        long = coalesce(stage).reduce_axes[0].extent
        return max(1, min(CHUNKS // max(1, rows), work(nest) // TASK_WORK, long // 64))

    def apply(self, nest: Nest, target: CpuTarget, parameters: Parameters) -> Scheduled:
        """The loops for the given parameters."""
        if parameters["chunks"] > 1:
            return _chunked(nest, target, parameters)
        shared = nest.stages[0].axes[:nest.shared]
        inner = [coalesce(replace(s, axes=s.axes[nest.shared:])) for s in nest.stages]
        body = tuple(stmt for s in inner for stmt in lower_stage(s))
        for axis in reversed(shared):
            body = (For(axis, index.constant(axis.extent), LoopKind.SERIAL, body),)
        schedule = open_schedule(nest, body)
        if len(nest.stages) == 1 and walks_columns(nest.stages[0]):
            schedule = _columns(schedule, nest.stages[0], target)
        else:
            for stage in inner:
                schedule = _row(schedule, stage, target, parameters)
        for buffer in nest.private:
            schedule = schedule.contract(buffer.name)
        if not walks_columns(nest.stages[0]):
            for axis in shared[1:]:
                schedule = schedule.fuse(schedule.loop_names[0], axis.name)
        if shared and work(nest) > SERIAL_WORK:
            schedule = share_out(schedule, work(nest), parameters["grain"])
        return Scheduled(schedule.program.body, ())


def _row(schedule: Schedule, stage: Stage, target: CpuTarget, parameters: Parameters) -> Schedule:
    """One pass over a row."""
    width = lanes((stage,), target)
    if is_map(stage):
        return vectorize(schedule, stage.axes[-1], width, parameters["unroll"]) \
            if stage.axes else schedule
    axis = stage.reduce_axes[-1]
    if stage.combiner.identity is None and axis.extent < width:
        return schedule
    return schedule.rfactor(axis.name, width, parameters["count"])


def _columns(schedule: Schedule, stage: Stage, target: CpuTarget) -> Schedule:
    """Neighbouring results side by side, each folding its own column."""
    return vectorize(schedule, stage.axes[-1], lanes((stage,), target), 1)


def _chunked(nest: Nest, target: CpuTarget, parameters: Parameters) -> Scheduled:
    """for each chunk: partial[chunk] = fold of the chunk;   result = fold of partial, then the rest"""
    stage = coalesce(nest.stages[0])
    chunks = parameters["chunks"]
    long = stage.reduce_axes[0]
    size = long.extent // chunks
    rows = tuple(v.extent for v in stage.axes)
    partial = tuple(Buffer(f"{stage.name}_{v.name}_part", v.dtype, (chunks, *rows), "scratch")
                    for v in stage.accumulators)
    first = _partial_stage(stage, partial, chunks, size)
    partial_nest = Nest((first,), len(first.axes))
    schedule = open_schedule(partial_nest, lower_stage(first))
    if walks_columns(first):
        schedule = _columns(schedule, first, target)
    else:
        schedule = _row(schedule, first, target, parameters)
    schedule = schedule.parallel(first.axes[0].name)
    return Scheduled((*schedule.program.body, *_combine(stage, partial, chunks, size)), partial)


def _partial_stage(stage: Stage, partial: tuple[Buffer, ...], chunks: int, size: int) -> Stage:
    long = stage.reduce_axes[0]
    chunk = Var(f"{long.name}_c", long.dtype, chunks)
    within = Var(f"{long.name}_w", long.dtype, size)
    place = {long: index.add(index.multiply(chunk, index.constant(size)), within)}
    assigns = tuple(Assign(b, (chunk, *stage.axes), v)
                    for b, v in zip(partial, stage.accumulators, strict=True))
    return replace(stage, axes=(chunk, *stage.axes), assigns=assigns,
                   reduce_axes=(within, *stage.reduce_axes[1:]),
                   terms=tuple(substitute(t, place) for t in stage.terms),
                   initial=stage.combiner.identity)


def _combine(stage: Stage, partial: tuple[Buffer, ...], chunks: int, size: int) -> tuple[Stmt, ...]:
    registers = tuple(Buffer(f"{stage.name}.{v.name}", v.dtype, (), "register")
                      for v in stage.accumulators)
    start = tuple(Store(b, (), e) for b, e in zip(registers, stage.initial, strict=True))
    gather = loop(f"{stage.name}_g", chunks, LoopKind.SERIAL, lambda c: (Accumulate(
        registers, (), stage.combiner, tuple(load(b, (c, *stage.axes)) for b in partial)),))
    long = stage.reduce_axes[0]
    done = chunks * size
    rest: tuple[Stmt, ...] = ()
    if done < long.extent:
        def last(t: Expr) -> tuple[Stmt, ...]:
            place = {long: index.add(t, index.constant(done))}
            body: tuple[Stmt, ...] = (Accumulate(registers, (), stage.combiner, tuple(
                substitute(e, place) for e in stage.terms)),)
            for axis in reversed(stage.reduce_axes[1:]):
                body = (For(axis, index.constant(axis.extent), LoopKind.SERIAL, body),)
            return body
        rest = (loop(f"{stage.name}_r", long.extent - done, LoopKind.SERIAL, last),)
    results: dict[Var, Expr] = {
        v: load(b, ()) for v, b in zip(stage.accumulators, registers, strict=True)}
    stores = tuple(Store(a.buffer, tuple(substitute(i, results) for i in a.indices),
                         substitute(a.value, results)) for a in stage.assigns)
    body: tuple[Stmt, ...] = (*start, gather, *rest, *stores)
    for buffer in reversed(registers):
        body = (Allocate(buffer, body),)
    for axis in reversed(stage.axes):
        body = (For(axis, index.constant(axis.extent), LoopKind.SERIAL, body),)
    return body
