"""Loops whose points do not depend on each other: block by block, all trips of a block at once.

    for n in trips:                      parallel block of points:
      for i in points: x[i] = f(x[i])      for n in trips:
                                             for i in block: x[i] = f(x[i])

What a block carries stays in the first-level cache from trip to trip, and threads meet once.
"""

from __future__ import annotations

from dataclasses import replace

from hlo_mlc.expr import index
from hlo_mlc.expr.build import substitute
from hlo_mlc.expr.core import Buffer, Expr, Load, Var
from hlo_mlc.expr.dtypes import INDEX
from hlo_mlc.loops.core import For, LoopKind, Stmt
from hlo_mlc.loops.lower import lower_stage
from hlo_mlc.loops.rewrite import loop as make_loop
from hlo_mlc.target.cpu import CpuTarget
from hlo_mlc.templates.base import SERIAL_WORK, lanes, open_schedule, work
from hlo_mlc.templates.elementwise import ElementwiseTemplate, vectorize
from hlo_mlc.tensor.classify import offset
from hlo_mlc.tensor.coalesce import accesses, coalesce
from hlo_mlc.tensor.core import Loop, Nest, Stage
from hlo_mlc.tensor.rewrite import map_expressions

# Points of a block come in runs of this many: whole cache lines, and no short vectors but the last.
RUN = 256
_TEMPLATE = ElementwiseTemplate()


def in_blocks(loop: Loop, target: CpuTarget) -> tuple[Stmt, ...] | None:
    """The loops of a pointwise loop, block by block; None for other loops, and for those that one
    block holds."""
    stages = pointwise_stages(loop, target)
    if stages is None:
        return None
    points = stages[0].axes[0].extent
    size = _block(stages, points, target)
    if size >= points:
        return None
    (name,) = {stages[0].axes[0].name}
    whole, rest = divmod(points, size)
    total = loop.trip_count * sum(work(nest) for nest in loop.body)
    kind = LoopKind.PARALLEL if total > SERIAL_WORK and whole > 1 else LoopKind.SERIAL

    def block(start: Expr, count: int) -> tuple[Stmt, ...]:
        body = tuple(stmt for stage in stages
                     for stmt in _part(stage, start, count, target))
        return (For(loop.counter, index.constant(loop.trip_count), LoopKind.SERIAL, body),)

    body: tuple[Stmt, ...] = (make_loop(f"{name}_block", whole, kind, lambda b: block(
        index.multiply(b, index.constant(size)), size)),)
    if rest:
        body += block(index.constant(whole * size), rest)
    return body


def pointwise_stages(loop: Loop, target: CpuTarget) -> list[Stage] | None:
    """The stages of the body over one axis of points, if no point reads what another one wrote."""
    if loop.trip_count is None or loop.trip_count < 2:
        return None
    stages: list[Stage] = []
    for nest in loop.body:
        if not isinstance(nest, Nest) or nest.private or _TEMPLATE.refusal(nest, target):
            return None
        stage = coalesce(nest.stages[0])
        if len(stage.axes) != 1 or (stages and stage.axes[0].extent != stages[0].axes[0].extent):
            return None
        stages.append(stage)
    written = {b for stage in stages for b in stage.outputs}
    for stage in stages:
        for access in accesses(stage):
            buffer = access.source if isinstance(access, Load) else access.buffer
            if buffer in written and (access.guard is not None or index.affine(
                    offset(buffer, access.indices)) != ({stage.axes[0]: 1}, 0)):
                return None
    return stages or None


def _block(stages: list[Stage], points: int, target: CpuTarget) -> int:
    """Points of a block: so many that all that it touches fills half of the first-level cache, and
    that there are enough blocks for the cores."""
    touched: dict[Buffer, int] = {}
    for stage in stages:
        for access in accesses(stage):
            buffer = access.source if isinstance(access, Load) else access.buffer
            if buffer.size > 1:
                touched[buffer] = buffer.dtype.bytes
    fitting = target.l1_bytes // 2 // max(1, sum(touched.values()))
    fair = -(-points // (4 * target.cores))
    return max(RUN, min(fitting, fair) // RUN * RUN)


def _part(stage: Stage, start: Expr, count: int, target: CpuTarget) -> tuple[Stmt, ...]:
    """The loops of a stage over `count` points from `start` on."""
    (axis,) = stage.axes
    within = Var(axis.name, INDEX, count)
    at = {axis: index.add(start, within)}
    memo: dict[Expr, Expr] = {}
    part = replace(map_expressions(stage, lambda e: substitute(e, at, memo)), axes=(within,))
    nest = Nest((part,), 1)
    unroll = _TEMPLATE.default(nest, target)["unroll"]
    schedule = open_schedule(nest, lower_stage(part))
    return vectorize(schedule, within, lanes((part,), target), unroll).program.body
