"""Loops whose points do not depend on each other: block by block, all trips of a block at once.

    for n in trips:                      parallel block of points:
      for i in points: x[i] = f(x[i])      for n in trips:
                                             for i in block: x[i] = f(x[i])

What a block carries stays in the first-level cache from trip to trip, and threads meet once.  A
point may have a row to itself, through which the trips go: recurrences such as
`y[i, n] = f(y[i, n - 1])` use each line of the cache up before they go on to the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hlo_mlc.expr import index
from hlo_mlc.expr.build import substitute
from hlo_mlc.expr.core import Buffer, Expr, Load, Var
from hlo_mlc.expr.dtypes import INDEX
from hlo_mlc.loops.core import Stmt
from hlo_mlc.loops.lower import lower_loop, lower_nest
from hlo_mlc.schedule.core import Schedule
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
        step = max(
            lanes(self.stages, target),
            CACHE_LINE_BYTES // min(b.dtype.bytes for s in self.stages for b in s.outputs),
        )
        most = min(fitting, -(-self.points // target.cores))
        return min(
            range(step, max(step, most) + 1, step),
            key=lambda size: (
                -(-(self.points // size) // target.cores) * size + self.points % size,
                -size,
            ),
        )


def in_blocks(loop: Loop, target: CpuTarget) -> tuple[Stmt, ...] | None:
    """The loops of a pointwise loop, block by block; None for other loops, and for those that one
    block holds."""
    found = pointwise(loop, target)
    if found is None:
        return None
    size = found.block(target)
    if size >= found.points:
        return None
    whole, rest = divmod(found.points, size)
    block = Var(f"{found.stages[0].axes[0].name}_block", INDEX, whole)
    first = block * size
    blocks = _scheduled(loop, found.stages, (block,), first, size, target)
    blocks = blocks.reorder(block.name, loop.counter.name)
    if whole > 1 and loop.trip_count * sum(work(nest) for nest in loop.body) > SERIAL_WORK:
        blocks = blocks.parallel(block.name)
    if not rest:
        return blocks.program.body
    first = index.constant(whole * size)
    return (
        blocks.program.body + _scheduled(loop, found.stages, (), first, rest, target).program.body
    )


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
        if own[buffer] != {True} and not (
            same_axes and len(own_rows[buffer]) == 1 and None not in own_rows[buffer]
        ):
            return None
    moving = {
        buffer_of(access)
        for stage in stages
        for access in accesses(stage)
        if any(loop.counter in i.free for i in access.indices)
    }
    return (
        Pointwise(
            tuple(stages),
            frozenset(b for s in stages for b in (*s.inputs, *s.outputs) if b not in moving),
        )
        if stages
        else None
    )


def _is_flat(access: Load | Assign, axis: Var) -> bool:
    """Whether a point has the element of its number in memory, and no other."""
    return index.affine(offset(buffer_of(access), access.indices)) == ({axis: 1}, 0)


def _rows(access: Load | Assign, axes: tuple[Var, ...]) -> tuple[int, ...] | None:
    """The dimensions of which the axes are the indices, so that a point has a row to itself; None
    where they are not, or decide about others."""
    places = {i: dimension for dimension, i in enumerate(access.indices) if i in axes}
    others = [i for i in access.indices if i not in axes]
    if (
        len(places) + len(others) < len(access.indices)
        or not places.keys() >= set(axes)
        or any(not i.free.isdisjoint(axes) for i in others)
    ):
        return None
    return tuple(places[v] for v in axes)


def _scheduled(
    loop: Loop,
    stages: Sequence[Stage],
    shared: tuple[Var, ...],
    first: Expr,
    count: int,
    target: CpuTarget,
) -> Schedule:
    """The trips of a loop, at each point of some axes, over `count` points of its stages from
    `first` on, in vectors."""
    parts = [_part(stage, number, first, count) for number, stage in enumerate(stages)]
    schedule = open_schedule(
        Nest(tuple(parts), 0), lower_loop(loop, lower_nest(shared, parts), ()), checked=False
    )
    for part in parts:
        unroll = _TEMPLATE.default(Nest((part,), 1), target)["unroll"]
        schedule = vectorize(schedule, part.axes[0].name, lanes((part,), target), unroll)
    return schedule


def _part(stage: Stage, number: int, first: Expr, count: int) -> Stage:
    """So many points of a stage, along an axis with a name of its own."""
    (axis,) = stage.axes
    within = Var(f"{axis.name}_{number}", INDEX, count)
    at, memo = {axis: first + within}, dict[Expr, Expr]()
    return replace(map_expressions(stage, lambda e: substitute(e, at, memo)), axes=(within,))
