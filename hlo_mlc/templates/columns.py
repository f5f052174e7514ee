"""Reductions over leading axes: neighbouring results side by side, row after row.

    for each column:                    parallel block of columns:
      accumulator = initial               accumulators[:] = initial, in registers
      for each row: combine        ->     for each row:
      result                                combine accumulators[:] with the row's vectors
                                          results[:]

Column sums, argmax over the first axis, and a vector times a matrix.  Of arrays that come from
memory, a few whole rows are read at a time and the accumulators wait in L1: memory is fastest page
by page.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from hlo_mlc.expr.core import Apply, Buffer
from hlo_mlc.schedule.core import Schedule
from hlo_mlc.target.cpu import CpuTarget
from hlo_mlc.templates.base import (
    SERIAL_WORK,
    TASK_WORK,
    Parameters,
    Scheduled,
    abreast,
    in_tasks,
    in_vectors,
    lanes,
    open_stage,
    points,
    work,
    worth_a_task,
)
from hlo_mlc.templates.product import is_plain
from hlo_mlc.tensor.chunks import fold_in_chunks
from hlo_mlc.tensor.classify import stride, walks_columns, why_not_folded
from hlo_mlc.tensor.coalesce import coalesce
from hlo_mlc.tensor.core import Nest, Stage

# Vectors of accumulators: what a register file of 32 holds next to the terms being computed.
ACCUMULATORS = 16
# With fewer full blocks of columns than this, rows are cut into chunks.  Not a matter of how many
# cores there are: results must not depend on that.
FEW_BLOCKS = 4
# Arrays so many times larger than the second level come from memory: rows by which they are fetched
# ahead (a vector by 1000 x 4100 and 4096 square ran 1.3 to 1.6 times as fast), or rows that are
# read at a time where they have more columns than registers hold (twice as fast again; 8 are as
# good as 4).
FAR, AHEAD, ROWS = 4, 8, 4
# Blocks of columns are so many times wider where accumulators wait in L1: 16 KiB of them.
WIDER = 16
# Tasks that a large array makes if nothing else does; not a matter of how many cores there are.
CHUNKS = 16
# Bytes of a row that are read at a time of a matrix in the second level.  Registers for 8 vectors
# of 32 bytes hold a quarter, and each row may be a page: with AVX2 a vector by 256 x 1024 took 0.8
# of the time with sums in L1, by 255 x 1020 0.8, f64 by 256 x 512 0.76, 128 steps of an LSTM 0.72;
# with SSE4.1 0.8, 0.83, 0.7 and 0.83.  By 300 x 700, which is three pieces, it took 1.08 of it, and
# sums and products of bf16 as long or longer.
LONG_PIECE = 1 << 10


@dataclass(frozen=True, slots=True)
class ColumnsTemplate:
    """Register-blocked reduction over leading axes."""

    name: str = "columns"

    def refusal(self, nest: Nest, target: CpuTarget) -> str:
        """Why the nest is not a reduction over leading axes; empty where it is."""
        if len(nest.stages) != 1:
            return "several stages"
        stage = nest.stages[0]
        if not walks_columns(stage):
            return "its terms, not its results, are neighbours in memory"
        return why_not_folded(stage)

    def space(self, nest: Nest, target: CpuTarget) -> dict[str, tuple[int, ...]]:
        """Vectors per block of columns, chunks of rows, rows fetched ahead, and rows at a time."""
        return {
            "vectors": (1, 2, 4, 8, 16),
            "chunks": (1, 4, 16),
            "ahead": (0, 4, 8, 16),
            "rows": (1, 2, 4, 8),
        }

    def default(self, nest: Nest, target: CpuTarget) -> Parameters:
        """As many accumulators as registers hold; rows in chunks where columns are few."""
        stage = coalesce(nest.stages[0])
        width = lanes((stage,), target)
        most = ACCUMULATORS if target.registers >= 32 else ACCUMULATORS // 2
        vectors = max(1, min(most // len(stage.accumulators), -(-stage.axes[-1].extent // width)))
        blocks = -(-stage.axes[-1].extent // (vectors * width))
        outer = math.prod(v.extent for v in stage.axes[:-1])
        tasks = blocks * outer
        total, rows = work(nest), stage.reduce_axes[0].extent
        if total > SERIAL_WORK and tasks < 2 * target.cores:
            wanted = -(-2 * target.cores // tasks)
            vectors = max(min(vectors, 4), vectors // wanted)
        chunks = 1
        if total > SERIAL_WORK and tasks < FEW_BLOCKS and stage.combiner.identity is not None:
            chunks = max(1, min(16, total // TASK_WORK, rows // 16))
        if not any(b.bytes > FAR * target.l2_bytes for b in stage.inputs):
            if target.vector_bytes * most < LONG_PIECE and _has_long_rows_in_l2(stage, target):
                vectors = max(1, LONG_PIECE // (target.vector_bytes * WIDER))
                return {"vectors": vectors, "chunks": 1, "ahead": 0, "rows": ROWS}
            return {"vectors": vectors, "chunks": chunks, "ahead": 0, "rows": 1}
        if blocks == 1 or stage.combiner.identity is None:
            return {"vectors": vectors, "chunks": chunks, "ahead": AHEAD, "rows": 1}
        vectors = max(1, ACCUMULATORS // len(stage.accumulators))
        tasks = -(-stage.axes[-1].extent // (vectors * width * WIDER)) * outer
        chunks = max(1, min(-(-CHUNKS // tasks), rows // ROWS))
        return {"vectors": vectors, "chunks": chunks, "ahead": 0, "rows": ROWS}

    def apply(self, nest: Nest, target: CpuTarget, parameters: Parameters) -> Scheduled:
        stage = coalesce(nest.stages[0])
        width = lanes((stage,), target)
        chunks, rows = parameters["chunks"], stage.reduce_axes[0].extent
        if chunks <= 1 or chunks > rows or stage.combiner.identity is None:
            return Scheduled.of(_blocks(stage, width, parameters, work(nest)))
        first, second, partial = fold_in_chunks(stage, chunks)
        return Scheduled.of(
            _blocks(first, width, parameters, work(nest)),
            _blocks(second, width, {**parameters, "ahead": 0, "rows": 1}, 0),
            scratch=partial,
        )


def _has_long_rows_in_l2(stage: Stage, target: CpuTarget) -> bool:
    """Whether a vector is multiplied by a matrix that the second level holds, and the first not,
    with rows for several tasks."""
    term, size = stage.terms[0], stage.accumulators[0].dtype.bytes
    if stage.combiner.name != "add" or not isinstance(term, Apply) or term.op != "mul":
        return False
    return (
        all(map(is_plain, term.args))
        and target.l1_bytes < points(stage) * size <= target.l2_bytes
        and round(stage.axes[-1].extent * size / LONG_PIECE) >= FEW_BLOCKS
    )


def _blocks(stage: Stage, width: int, parameters: Parameters, total: int) -> Schedule:
    """Blocks of columns, as tasks where `total` work is worth it."""
    column, rows = stage.axes[-1].name, [v.name for v in stage.reduce_axes]
    inside, in_l1 = f"{column}.i", parameters["rows"] > 1
    schedule = (
        open_stage(stage)
        .split(column, _block(stage.axes[-1].extent, width, parameters), "shorten")
        .specialize(inside, f"{column}.o")
        .expand(inside, "stack" if in_l1 else "register", width)
        .distribute(inside, rows[0])
        .reorder(*rows, inside)
    )
    if in_l1:
        schedule = _some_rows(schedule, rows[-1], parameters["rows"], inside)
    schedule = (in_vectors if in_l1 else abreast)(schedule, inside, width)
    if parameters["ahead"] and not in_l1:
        for buffer, apart in _rows_apart(stage).items():
            schedule = schedule.prefetch(buffer.name, rows[-1], parameters["ahead"] * apart)
    return in_tasks(schedule, len(stage.axes), lambda blocks: worth_a_task(blocks, total)).cascade()


def _block(columns: int, width: int, parameters: Parameters) -> int:
    """The loops of one block of columns."""
    block = width * parameters["vectors"]
    if parameters["rows"] == 1:
        return block
    # Blocks of nearly the same width, so that none is left with a few columns.
    blocks = max(1, round(columns / (WIDER * block)))
    return -(-columns // (blocks * width)) * width


def _some_rows(schedule: Schedule, row: str, count: int, column: str) -> Schedule:
    """Each column of `count` rows folded in a register first."""
    schedule = schedule.split(row, count)
    for part in (f"{row}.i", f"{row}.t"):
        if part in schedule.loop_names:
            schedule = schedule.reorder(column, part).rfactor(part, 1)
            if f"{part}.o" in schedule.loop_names:  # else one row, which is where sums begin
                schedule = schedule.write_out(f"{part}.o")
    return schedule


def _rows_apart(stage: Stage) -> dict[Buffer, int]:
    """What is read column by column, the last first, and the elements between two rows."""
    found = {
        x.source: apart
        for group in stage.loads_by_buffer.values()
        for x in group
        if x.guard is None
        and stride(x, stage.axes[-1]) == 1
        and (apart := stride(x, stage.reduce_axes[-1]))
    }
    return dict(reversed(found.items()))
