"""Loops whose points do not depend on each other: block by block, all trips of a block at once.

    for n in trips:                      parallel block of points:
      for i in points: x[i] = f(x[i])      for n in trips:
                                             for i in block: x[i] = f(x[i])

What a block carries stays in the first-level cache from trip to trip, and threads meet once.  A
point may have a row to itself, through which the trips go: recurrences such as
`y[i, n] = f(y[i, n - 1])` use each line of the cache up before they go on to the next.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from hlo_mlc.expr import index
from hlo_mlc.expr.build import substitute
from hlo_mlc.expr.core import Buffer, Expr, Load, Var
from hlo_mlc.expr.dtypes import INDEX
from hlo_mlc.loops.core import For, LoopKind, Stmt
from hlo_mlc.loops.lower import lower_stage
from hlo_mlc.loops.rewrite import loop as make_loop
from hlo_mlc.target.cpu import CACHE_LINE_BYTES, CpuTarget
from hlo_mlc.templates.base import SERIAL_WORK, lanes, open_schedule, work
from hlo_mlc.templates.elementwise import ElementwiseTemplate, vectorize
from hlo_mlc.tensor.classify import offset, stride
from hlo_mlc.tensor.coalesce import accesses, coalesce
from hlo_mlc.tensor.core import Assign, Loop, Nest, Stage, buffer_of
from hlo_mlc.tensor.rewrite import map_expressions

# Points of a block come in runs of this many: whole cache lines, and no short vectors but the last.
RUN = 256
_TEMPLATE = ElementwiseTemplate()


@dataclass(frozen=True, slots=True)
class Pointwise:
    """The stages of a loop's body over the same points, an axis each.  `kept`: buffers of which
    every trip touches what the trip before has touched."""

    stages: tuple[Stage, ...]
    kept: frozenset[Buffer]

    @property
    def points(self) -> int:
        return self.stages[0].axes[0].extent

    def block(self, target: CpuTarget) -> int:
        """Points of a block: as many as the first-level cache holds with all that they touch, such
        that the cores end at the same time."""
        touched: dict[Buffer | Load | Assign, int] = {}
        for stage in self.stages:
            for access in accesses(stage):
                buffer, apart = buffer_of(access), stride(access, stage.axes[0])
                if buffer.size == 1 or apart == 0:
                    continue
                is_row = apart in (1, -1)
                line = buffer.dtype.bytes if is_row else CACHE_LINE_BYTES
                touched[buffer if buffer in self.kept or not is_row else access] = line
        fitting = target.l1_bytes // 2 // max(1, sum(touched.values()))
        fair = -(-self.points // (4 * target.cores))
        if touched.keys() <= self.kept:
            return max(RUN, min(fitting, fair) // RUN * RUN)
        # What streams through is read in runs as long as can be.
        step = max(lanes(self.stages, target),
                   CACHE_LINE_BYTES // min(b.dtype.bytes for s in self.stages for b in s.outputs))
        most = min(fitting, -(-self.points // target.cores))
        return min(range(step, max(step, most) + 1, step), key=lambda size: (
            -(-(self.points // size) // target.cores) * size + self.points % size, -size))


def in_blocks(loop: Loop, target: CpuTarget) -> tuple[Stmt, ...] | None:
    """The loops of a pointwise loop, block by block; None for other loops, and for those that one
    block holds."""
    found = pointwise(loop, target)
    if found is None:
        return None
    size = found.block(target)
    if size >= found.points:
        return None
    name = found.stages[0].axes[0].name
    whole, rest = divmod(found.points, size)
    total = loop.trip_count * sum(work(nest) for nest in loop.body)
    kind = LoopKind.PARALLEL if total > SERIAL_WORK and whole > 1 else LoopKind.SERIAL

    def block(start: Expr, count: int) -> tuple[Stmt, ...]:
        body = tuple(stmt for stage in found.stages
                     for stmt in _part(stage, start, count, target))
        return (For(loop.counter, index.constant(loop.trip_count), LoopKind.SERIAL, body),)

    body: tuple[Stmt, ...] = (make_loop(f"{name}_block", whole, kind, lambda b: block(
        index.multiply(b, index.constant(size)), size)),)
    if rest:
        body += block(index.constant(whole * size), rest)
    return body


def pointwise(loop: Loop, target: CpuTarget) -> Pointwise | None:
    """What of a loop is needed to go through it point by point; None where a point reads what
    another one wrote."""
    if loop.trip_count is None or loop.trip_count < 2:
        return None
    originals, stages = [], []
    for nest in loop.body:
        if not isinstance(nest, Nest) or nest.private or _TEMPLATE.refusal(nest, target):
            return None
        stage = coalesce(nest.stages[0])
        if len(stage.axes) != 1 or (stages and stage.axes[0].extent != stages[0].axes[0].extent):
            return None
        originals.append(nest.stages[0])
        stages.append(stage)
    written = {b for stage in stages for b in stage.outputs}
    own: dict[Buffer, set[object]] = {}
    own_rows: dict[Buffer, set[object]] = {}
    for stage, original in zip(stages, originals, strict=True):
        for access, before in zip(accesses(stage), accesses(original), strict=True):
            buffer = buffer_of(access)
            if buffer in written:
                if access.guard is not None:
                    return None
                own.setdefault(buffer, set()).add(_is_flat(access, stage.axes[0]))
                own_rows.setdefault(buffer, set()).add(_rows(before, original.axes))
    same_axes = len({tuple(v.extent for v in s.axes) for s in originals}) == 1
    for buffer in written:
        if own[buffer] != {True} and not (same_axes and len(own_rows[buffer]) == 1
                                          and None not in own_rows[buffer]):
            return None
    moving = {buffer_of(access) for stage in stages for access in accesses(stage)
              if any(loop.counter in i.free for i in access.indices)}
    return Pointwise(tuple(stages), frozenset(
        b for s in stages for b in (*s.inputs, *s.outputs) if b not in moving)) if stages else None


def _is_flat(access: Load | Assign, axis: Var) -> bool:
    """Whether a point has the element of its number in memory, and no other."""
    return index.affine(offset(buffer_of(access), access.indices)) == ({axis: 1}, 0)


def _rows(access: Load | Assign, axes: tuple[Var, ...]) -> tuple[int, ...] | None:
    """The dimensions of which the axes are the indices, so that a point has a row to itself; None
    where they are not, or decide about others."""
    places = {i: dimension for dimension, i in enumerate(access.indices) if i in axes}
    others = [i for i in access.indices if i not in axes]
    if len(places) + len(others) < len(access.indices) or not places.keys() >= set(axes) \
            or any(not i.free.isdisjoint(axes) for i in others):
        return None
    return tuple(places[v] for v in axes)


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
    return vectorize(schedule, within.name, lanes((part,), target), unroll).program.body
