"""Loops whose points end one by one: block by block, each until its last point is done.

    while any over i of p(x[i]):         parallel block of points:
      for i: x[i] = f(x[i])                while any over i in block of p(x[i]):
                                             for i in block: x[i] = f(x[i])

A block goes as many trips as its slowest point needs, and not as many as the slowest of all; what
it has stays in the first-level cache, and threads meet once.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from hlo_mlc.expr import index
from hlo_mlc.expr.build import FALSE, substitute
from hlo_mlc.expr.core import Buffer, Expr, Var
from hlo_mlc.expr.dtypes import BOOL, INDEX
from hlo_mlc.loops.core import Stmt
from hlo_mlc.loops.lower import lower_blocks, lower_loop, lower_stage
from hlo_mlc.loops.rewrite import on_one_thread
from hlo_mlc.target.cpu import CpuTarget
from hlo_mlc.templates.base import SERIAL_WORK, lanes, open_schedule, points, work
from hlo_mlc.tensor.classify import contraction
from hlo_mlc.tensor.core import Assign, Nest, Stage, Step
from hlo_mlc.tensor.points_apart import PointsApart
from hlo_mlc.tensor.rewrite import map_expressions, with_parts

# Vectors that a block has: what one waits for, such as elements that are looked up, others fill,
# and what a trip costs besides is shared.  With 1, 2, 4, 8 and 16 a thousand adaptive steps took
# 189, 126, 82, 92 and 107 us, bisections 80, 58, 37, 28 and 25, and walks through a tree, which
# need very different numbers of trips, 908, 1074, 1083, 1398 and 1439.
VECTORS = 4
# Points that a block has at least, where they have long rows: a trip of one waits for its sums.
# Eight rows of 256 took 16.4 us one by one, 15.1 two by two, and 15.2 four by four.
ROWS = 4
# Elements of a matrix from which on all points are multiplied by it at once, on all threads: walks
# with products by 64 x 64 took 770 us so and 1085 in blocks of eight, with 13 x 13 87 and 72.
MATRIX = 1024


@dataclass(frozen=True, slots=True)
class _Block:
    """Where a block is: by axis, the number of its first point, and how many it has; those of one
    point, which come first, are walked over by loops around it."""

    first: tuple[Expr, ...]
    sizes: tuple[int | None, ...]

    def of(self, stage: Stage, own: tuple[Var, ...]) -> Stage:
        """What a stage does there, along axes with the names of its own."""
        places: dict[Var, Expr] = {}
        walked: dict[Var, Var] = {}
        for axis, first, size in zip(own, self.first, self.sizes, strict=True):
            places[axis] = first
            if size is not None:
                walked[axis] = Var(axis.name, INDEX, size)
                places[axis] = first + walked[axis]
        rewrite = functools.partial(substitute, mapping=places, memo={})

        def axes(group: tuple[Var, ...]) -> tuple[Var, ...]:
            return tuple(walked.get(v, v) for v in group if v in walked or v not in places)

        stage = map_expressions(stage, rewrite)
        return replace(stage, axes=axes(stage.axes), reduce_axes=axes(stage.reduce_axes))


def points_outside(
    apart: PointsApart, target: CpuTarget, statements: Callable[[Step], tuple[Stmt, ...]]
) -> tuple[Stmt, ...] | None:
    """The loops of blocks of points, each until its last point is done; `statements` has those of a
    step.  None where all points go together."""
    found = _cut(apart, target)
    if found is None:
        return None
    (cut, size), extents = found, tuple(v.extent for v in apart.axes)
    singles = tuple(Var(f"{v.name}_point", INDEX, v.extent) for v in apart.axes[:cut])
    behind = len(extents) - cut - 1
    whole, rest = divmod(extents[cut], size)
    number = Var(f"{apart.axes[cut].name}_block", INDEX, whole)

    def block(blocks: tuple[Var, ...], first: Expr, size: int) -> tuple[Stmt, ...]:
        sizes = (*[None] * cut, size, *extents[cut + 1 :])
        place = _Block((*singles, first, *[index.constant(0)] * behind), sizes)
        return _until_done(apart, blocks, place, statements)

    parts = (
        block((*singles, number), number * size, size)
        if whole > 1
        else block(singles, index.constant(0), size)
    )
    if rest:
        parts += block(singles, index.constant(whole * size), rest)
    verdict = apart.loop.condition.source
    done = Stage(f"{verdict.name}.done", (), (Assign(verdict, (), FALSE),))
    before = tuple(s for nest in apart.before for s in statements(nest))
    body = (*before, *parts, *lower_stage(done))
    schedule = open_schedule(Nest((done,), 0), body, checked=False)
    outermost = (*singles, number)[0].name
    if _work(apart.loop) > SERIAL_WORK and outermost in schedule.loop_names:
        schedule = schedule.parallel(outermost)
    return schedule.program.body


def threads_of_blocks(apart: PointsApart, target: CpuTarget) -> int | None:
    """How many threads share blocks of points; None where all points go together."""
    found = _cut(apart, target)
    if found is None:
        return None
    (cut, size), extents = found, [v.extent for v in apart.axes]
    tasks = extents[0] if cut else extents[0] // size
    return min(tasks, target.cores) if _work(apart.loop) > SERIAL_WORK else 1


def _cut(apart: PointsApart, target: CpuTarget) -> tuple[int, int] | None:
    """Along which axis there are blocks, and how many points of it each has: those behind it are in
    one block, those before it in none.  None where one block holds all points, or they are rows of
    large products."""
    extents = [v.extent for v in apart.axes]
    if any(
        contraction(s) is not None and points(s) >= MATRIX * math.prod(extents) for s in apart.own
    ):
        return None
    stages = [s for s in apart.own if s.axes]
    width = max(lanes((s,), target) for s in stages)
    row = sum(math.prod(v.extent for v in s.axes) for s in stages) // (
        len(stages) * math.prod(extents)
    )
    wanted = max(ROWS, VECTORS * width // row)
    if row < width:
        wanted = -(-wanted // width) * width
    cut = len(extents) - 1
    while cut and extents[cut] < wanted:
        wanted = -(-wanted // extents[cut])
        cut -= 1
    size = min(wanted, extents[cut])
    return None if size == extents[cut] and math.prod(extents[:cut]) == 1 else (cut, size)


def _until_done(
    apart: PointsApart,
    blocks: tuple[Var, ...],
    place: _Block,
    statements: Callable[[Step], tuple[Stmt, ...]],
) -> tuple[Stmt, ...]:
    """The loops of some blocks, which have answers of their own."""
    loop = apart.loop
    body, test = (
        tuple(s for step in steps for s in statements(_of_block(step, place, apart.own)))
        for steps in (loop.body, loop.test)
    )
    answers = {b: Buffer(f"{b.name}.block", BOOL, (), "register") for b in apart.verdicts}
    return lower_blocks(blocks, lower_loop(loop, on_one_thread(body), on_one_thread(test)), answers)


def _of_block(step: Step, place: _Block, own: Mapping[Stage, tuple[Var, ...]]) -> Step:
    if not isinstance(step, Nest):
        return with_parts(step, lambda steps: (_of_block(s, place, own) for s in steps))
    stages = tuple(place.of(s, own[s]) for s in step.stages)
    first = step.stages[0]
    gone = {v for v, size in zip(own[first], place.sizes, strict=True) if size is None}
    return Nest(stages, step.shared - len(gone & {*first.axes[: step.shared]}), step.private)


def _work(step: Step) -> int:
    """Rough number of simple operations of a step."""
    if isinstance(step, Nest):
        return work(step)
    return step.likely_trips * sum(map(_work, step.inner))
