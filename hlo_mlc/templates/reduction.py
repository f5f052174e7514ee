"""Reductions along rows, and row-wise chains: softmax, norms, argmax, sums of everything; rows that
are copied from several places.

One loop over the rows that the stages share; inside it each stage is a vectorized loop over its
row, and what passes between stages stays in a buffer of one row.  Few long rows are cut into
chunks that are combined at the end; the cut depends on the shape only, never on the threads.
Results that take longer to compute than the folds of their short rows are vectors of rows.  A few
rows that meet the same vector, as those of a matrix do that is multiplied by one, go along it
together, so that it is loaded once for all of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from hlo_mlc.expr.core import Buffer, Expr, Var
from hlo_mlc.loops.core import STACK_BYTES, For, LoopKind, walk
from hlo_mlc.loops.lower import lower_nest, lower_stage
from hlo_mlc.schedule.core import Schedule
from hlo_mlc.target.cpu import CpuTarget
from hlo_mlc.templates.base import (
    SERIAL_WORK,
    TASK_WORK,
    Parameters,
    Scheduled,
    even_groups,
    in_blocks_of_tiles,
    in_tasks,
    lanes,
    open_schedule,
    open_stage,
    short_width,
    why_empty,
    work,
)
from hlo_mlc.templates.elementwise import (
    ABREAST,
    is_in_place,
    share_out,
    vectorize,
    vectorize_along,
)
from hlo_mlc.templates.product import reads_vectors_along
from hlo_mlc.templates.short_axes import MOST_READ, short_axes
from hlo_mlc.tensor.chunks import fold_in_chunks
from hlo_mlc.tensor.classify import cost, is_map, parallelism, reads, stage_cost, stride
from hlo_mlc.tensor.coalesce import coalesce
from hlo_mlc.tensor.combine import merging
from hlo_mlc.tensor.core import Nest, Stage
from hlo_mlc.tensor.guards import guards
from hlo_mlc.tensor.pairs import repeated_reads

# Most chunks that one long reduction is cut into: enough to keep 16 cores busy four times over.
CHUNKS = 64
SHORTEST_CHUNK = 64  # elements
# Bytes of rows that are private to a task: what else it has on its stack is a few vectors.
STACK = STACK_BYTES - (1 << 14)
# Operations on what was folded from which on they are worth a loop of their own, and the vectors of
# results in a block of rows: enough for their chains to overlap, and for calls to be rare.
HEAVY, BLOCK = 8, 4
# Bytes read from which on asking for the next row pays: less stays in the caches.
FAR = 1 << 19
# How far ahead, in bytes, where the next row is nearer or the one pass need not wait for it.  For
# argmax 2 and 8 KB were as good; layernorm of rows of 16 KB lost a tenth when the next row drove
# out the current one, which softmax, whose passes are longer, did not notice at 32 KB.
AHEAD = 1 << 12
LIGHT = 12  # operations of a pass
# Rows that go along what they share together.
ROWS = 4
# Vectors of a row from which on they do.
SHORTEST = 4
# Operations of an element from which on they take long.
LONG_TERM = 12


@dataclass(frozen=True, slots=True)
class ReductionTemplate:
    """Row by row, each pass vectorized; or column by column."""

    name: str = "reduction"

    def refusal(self, nest: Nest, target: CpuTarget) -> str:
        """Why the nest is not a row-wise chain; empty where it is."""
        if len(nest.stages) == 1 and is_map(nest.stages[0]):
            return "no reduction in it"
        if any(s.scan is not None for s in nest.stages):
            return "a scan stores all results on the way"
        return why_empty(nest)

    def space(self, nest: Nest, target: CpuTarget) -> dict[str, tuple[int, ...]]:
        """Partial results in flight for cheap terms, vectors per iteration of maps, work of one
        task, whether the next row is fetched meanwhile, chunks, rows at a time."""
        return {
            "count": (1, 2, 4, 8),
            "unroll": (1, 2, 4),
            "grain": (1, 2, 4),
            "ahead": (0, 1),
            "chunks": (1, 16, 32, 64) if _can_be_cut(nest) else (1,),
            "rows": (1, 2, 4, 8) if _share_a_row(nest, target) else (1,),
        }

    def default(self, nest: Nest, target: CpuTarget) -> Parameters:
        """Enough partial results to hide the latency of one combination (4 cycles, 2 per cycle)."""
        return {
            "count": 8,
            "unroll": 2,
            "grain": 1,
            "ahead": int(_bytes_read(nest) >= FAR),
            "chunks": self._chunks(nest),
            "rows": ROWS if _share_a_row(nest, target) else 1,
        }

    def _chunks(self, nest: Nest) -> int:
        stage = nest.stages[0]
        rows = math.prod(v.extent for v in stage.axes)
        if not _can_be_cut(nest) or rows >= CHUNKS // 2 or work(nest) < SERIAL_WORK:
            return 1
        long, *rest = (v.extent for v in coalesce(stage).reduce_axes)
        longest = min(long, long * math.prod(rest) // SHORTEST_CHUNK)
        return max(1, min(CHUNKS // max(1, rows), work(nest) // TASK_WORK, longest))

    def apply(self, nest: Nest, target: CpuTarget, parameters: Parameters) -> Scheduled:
        if parameters["chunks"] > 1 and _can_be_cut(nest):
            return _chunked(nest, target, parameters)
        if _finishes_late(nest, target):
            return _apart(nest, target, parameters)
        if parameters["rows"] > 1 and _share_a_row(nest, target):
            return _together(nest, target, parameters)
        shared = nest.stages[0].axes[: nest.shared]
        inner = [coalesce(replace(s, axes=s.axes[nest.shared :])) for s in nest.stages]
        schedule = open_schedule(nest, lower_nest(shared, inner))
        for stage in inner:
            schedule = _row(schedule, nest, stage, target, parameters)
        left = STACK
        for buffer in nest.private:
            row = buffer.bytes // math.prod(v.extent for v in shared)
            if row <= left:
                left -= row
                schedule = schedule.contract(buffer.name)
        if shared:
            schedule = schedule.fuse(*(v.name for v in shared))
        if shared and work(nest) > SERIAL_WORK:
            schedule = share_out(schedule, work(nest), parameters["grain"])
        if parameters["ahead"] and shared:
            schedule = _fetched(schedule, nest, inner, target)
        schedule = schedule.cascade()
        return Scheduled.of(schedule)


def _can_be_cut(nest: Nest) -> bool:
    """True for one reduction and nothing else, whose terms may be folded in runs."""
    stage = nest.stages[0]
    return len(nest.stages) == 1 and not stage.along and stage.combiner.identity is not None


def _finishes_late(nest: Nest, target: CpuTarget) -> bool:
    """True where the results of one reduction take longer to compute from what is folded, one by
    one, than the folds take, in vectors: exp(x @ w) of short rows."""
    stage = nest.stages[0]
    if len(nest.stages) > 1 or not stage.assigns:
        return False
    rows = coalesce(stage).axes
    width = lanes((stage,), target)
    vectors = -(-stage.reduce_axes[-1].extent // width) * math.prod(
        v.extent for v in stage.reduce_axes[:-1]
    )
    return (
        bool(rows)
        and rows[-1].extent >= width
        and sum(cost(a.value) for a in stage.assigns) > max(HEAVY, vectors * cost(*stage.terms))
    )


def _apart(nest: Nest, target: CpuTarget, parameters: Parameters) -> Scheduled:
    """for each block of rows: folded[row] = fold of each row;  results of vectors of rows"""
    stage = coalesce(nest.stages[0])
    (*around, axis), width = stage.axes, lanes(nest.stages, target)
    row, block = axis.name, width * BLOCK
    if not around and axis.extent < block:  # what is left over would have no loop around it
        block = width
    schedule = open_schedule(nest, lower_stage(stage)).split(row, block)
    parts = [part for part in (f"{row}.i", f"{row}.t") if part in schedule.loop_names]
    for part in parts:
        schedule = schedule.expand(part, "stack").distribute(part, stage.reduce_axes[0].name, "e")
    if parameters["rows"] > 1 and _share_a_row(nest, target):
        schedule = _in_partial_results(schedule, stage, parameters["rows"], target, parameters)
        for part in parts:
            schedule = _tile(schedule.split(part, parameters["rows"], "repeat"), stage, f"{part}.i")
    else:
        schedule = _row(schedule, nest, stage, target, parameters)
    for part in parts:
        schedule = vectorize(schedule, f"{part}.e", width, parameters["unroll"])
    if work(nest) > SERIAL_WORK:
        schedule = share_out(schedule, work(nest), parameters["grain"])
    return Scheduled.of(schedule.cascade())


def _share_a_row(nest: Nest, target: CpuTarget) -> bool:
    """Whether the rows of one fold, which are read in vectors, meet the elements of another row."""
    stage = coalesce(nest.stages[0])
    if (
        len(nest.stages) > 1
        or not stage.axes
        or stage.combiner.identity is None
        or merging(stage.combiner, stage.terms, stage.reduce_axes) is None
    ):
        return False
    row, along = stage.axes[-1], stage.reduce_axes[-1]
    every = repeated_reads(stage)
    moving = [x for x in every if any(along in i.free for i in x.indices)]
    own = [x for x in moving if any(row in i.free for i in x.indices)]
    return (
        row.extent > 1
        and along.extent >= SHORTEST * lanes((stage,), target)
        and 0 < len(own) < len(moving)
        and all(reads_vectors_along(term, along) for term in stage.terms)
    )


def _together(nest: Nest, target: CpuTarget, parameters: Parameters) -> Scheduled:
    """for each tile of rows: for each vector along them: partial[row] = fold of it, for each row"""
    stage, total = coalesce(nest.stages[0]), work(nest)
    *outer, row = stage.axes
    height, grain = even_groups(row.extent, parameters["rows"]), TASK_WORK * parameters["grain"]
    tiles = -(-row.extent // height)
    tasks = max(2, total // grain) if total > SERIAL_WORK else 1
    blocks = min(tiles, -(-tasks // math.prod(v.extent for v in outer)))
    schedule = _in_partial_results(open_stage(stage, nest), stage, height, target, parameters)
    schedule = in_blocks_of_tiles(schedule, stage, row, height, -(-tiles // blocks))
    schedule = in_tasks(
        _tile(schedule, stage, f"{row.name}.i"),
        len(outer) + 1,
        lambda every: max(1, min(every // 2, grain * every // total)) if tasks > 1 else 0,
    )
    return Scheduled.of(schedule.cascade())


def _in_partial_results(
    schedule: Schedule, stage: Stage, height: int, target: CpuTarget, parameters: Parameters
) -> Schedule:
    """The fold of each row in vectors, so many of them as registers have room for with `height`
    rows at a time."""
    count = _partial_results(stage, parameters["count"]) // height
    return schedule.rfactor(stage.reduce_axes[-1].name, lanes((stage,), target), max(1, count))


def _tile(schedule: Schedule, stage: Stage, row: str) -> Schedule:
    """The loops over the folded axis, moved outside of those over the rows of a tile."""
    schedule = schedule.expand(row, "register")
    *others, last = (v.name for v in stage.reduce_axes)
    for axis in (*others, f"{last}.o"):
        schedule = schedule.distribute(row, axis).reorder(axis, row)
    return schedule.unroll(row)


def _row(
    schedule: Schedule, nest: Nest, stage: Stage, target: CpuTarget, parameters: Parameters
) -> Schedule:
    """One pass over a row."""
    width = lanes((stage,), target)
    if is_map(stage):
        if not stage.axes:
            return schedule
        along = short_axes(stage, target, MOST_READ)
        if along > 1:
            return vectorize_along(schedule, stage.axes[-along:], width, target)
        return vectorize(
            schedule,
            stage.axes[-1].name,
            width,
            parameters["unroll"] * (2 if _waits(*(a.value for a in stage.assigns)) else 1),
            in_pieces=is_in_place(nest, stage),
        )
    axis = stage.reduce_axes[-1]
    if (stage.combiner.identity is None and axis.extent < width) or merging(
        stage.combiner, stage.terms, stage.reduce_axes
    ) is None:
        return schedule
    return schedule.rfactor(
        axis.name, short_width(axis.extent, width), _partial_results(stage, parameters["count"])
    )


def _asking_once(schedule: Schedule, stage: Stage) -> Schedule:
    """Where terms ask whether they count, whole vectors of those that do are folded without."""
    if not any(map(guards, stage.terms)):
        return schedule
    axis = stage.reduce_axes[-1].name
    vectors = next((n for n in (f"{axis}.u", f"{axis}.v") if n in schedule.loop_names), None)
    return schedule if vectors is None else schedule.version(vectors)


def _fetched(schedule: Schedule, nest: Nest, passes: list[Stage], target: CpuTarget) -> Schedule:
    """Ask for what comes next in the pass that computes most, which leaves the memory idle.

    Processors fetch ahead by themselves, but not past the end of a page, where a row often ends.
    """
    rows = nest.stages[0].axes[: nest.shared]
    chosen: dict[Buffer, tuple[int, str, int]] = {}
    vectors = {
        f"{s.var.name}."
        for s in walk(schedule.program.body)
        if isinstance(s, For) and s.kind is LoopKind.VECTORIZE
    }
    for stage in passes:
        for buffer, axis, apart in _rows_read(stage, rows[-1]):
            heavier = stage_cost(stage) >= chosen.get(buffer, (0,))[0]
            if (
                heavier
                and buffer not in nest.private
                and any(name.startswith(f"{axis}.") for name in vectors)
            ):
                chosen[buffer] = stage_cost(stage), axis, apart
    for buffer, (heavy, axis, apart) in chosen.items():
        row = abs(apart) * buffer.dtype.bytes
        if row < AHEAD:
            schedule = schedule.prefetch(buffer.name, axis, AHEAD // row * apart)
        elif len(passes) == 1:
            schedule = schedule.prefetch(buffer.name, axis, AHEAD // buffer.dtype.bytes)
        elif row <= (target.l2_bytes // 16 if heavy > LIGHT else target.l1_bytes // 4):
            schedule = schedule.prefetch(buffer.name, axis, apart)
    return schedule


def _bytes_read(nest: Nest) -> int:
    """The bytes of all buffers that the nest reads, except its private ones."""
    return sum(b.bytes for b in {b for s in nest.stages for b in s.inputs} - {*nest.private})


def _rows_read(stage: Stage, row: Var) -> list[tuple[Buffer, str, int]]:
    """What a pass reads element by element along its axis, and the elements between two rows."""
    if not stage.reduce_axes and not stage.axes:
        return []
    axis = (stage.reduce_axes or stage.axes)[-1]
    return [
        (buffer, axis.name, stride(read, row))
        for buffer in stage.inputs
        for read in reads(stage, buffer)
        if read.guard is None and stride(read, axis) == 1 and stride(read, row)
    ]


def _partial_results(stage: Stage, count: int) -> int:
    """`count` for terms that are hardly more than loads; fewer where computing them takes longer
    than adding them up, and their temporaries need the registers, or several values are folded.
    Half of it for long chains of operations, which would wait for each other's results: argmax of
    numbers drawn at random took 0.59 of the time, their sum 0.77."""
    heavy = cost(*stage.terms)
    if _waits(*stage.terms):
        return max(1, count // 2)
    shared = count // 2 if len(stage.accumulators) > 2 else count
    return max(1, shared if heavy <= 4 else shared // 2 if heavy <= LONG_TERM else shared // 4)


def _waits(*values: Expr) -> bool:
    """Whether to compute values is a long chain of operations, of which a processor looks too few
    ahead: twice as many vectors side by side, and arithmetic of bf16 took 0.7 of the time."""
    return cost(*values) > LONG_TERM and parallelism(*values) < ABREAST


def _chunked(nest: Nest, target: CpuTarget, parameters: Parameters) -> Scheduled:
    """for each chunk: partial[chunk] = fold of the chunk;   result = fold of partial"""
    first, second, partial = fold_in_chunks(coalesce(nest.stages[0]), parameters["chunks"])
    begin, end = (Nest((s,), len(s.axes)) for s in (first, second))
    schedule = _row(open_schedule(begin, lower_stage(first)), begin, first, target, parameters)
    schedule = _asking_once(schedule.parallel(first.axes[0].name).cascade(), first)
    return Scheduled.of(schedule, open_schedule(end, lower_stage(second)), scratch=partial)
