"""Reductions over leading axes: neighbouring results by neighbouring threads.

    naive loops  ->  split "guard", privatize  ->  split "shorten"  ->  expand, distribute  ->  bind

    for b block:                        a group of columns
      for w thread, l thread:           warps take every so manyth row, lanes some columns each
        fold the warp's rows in registers
      halve the number of warps that hold results, until the first one has combined all
      results

Few columns are cut into chunks of rows, which are combined at the end.
"""

from __future__ import annotations

from dataclasses import dataclass

from hlo_mlc.schedule.core import Schedule
from hlo_mlc.target.cuda import WARP, CudaTarget
from hlo_mlc.templates.base import Parameters, Scheduled, open_stage
from hlo_mlc.templates.cuda.base import (
    power_of_two,
    product,
    told_apart,
    vector_width,
    why_not_in_parts,
)
from hlo_mlc.tensor.chunks import fold_in_chunks
from hlo_mlc.tensor.classify import walks_columns, why_not_folded
from hlo_mlc.tensor.coalesce import coalesce
from hlo_mlc.tensor.core import Nest, Stage

# Groups of columns below which rows are cut, the blocks that there are then about, and the rows
# that a chunk has at least.  Results must not depend on the GPU at hand.
FEW_GROUPS, BLOCKS, CHUNK_ROWS = 64, 256, 256


def why_not_columns(nest: Nest) -> str:
    """Why a nest is not a reduction over leading axes; empty where it is."""
    if len(nest.stages) != 1:
        return "several stages"
    stage = nest.stages[0]
    if not walks_columns(stage):
        return "its terms, not its results, are neighbours in memory"
    return why_not_folded(stage) or why_not_in_parts(stage, stage.reduce_axes)


@dataclass(frozen=True, slots=True)
class ColumnsTemplate:
    """A warp's rows in registers, warps combined in shared memory."""

    name: str = "columns"

    def refusal(self, nest: Nest, target: CudaTarget) -> str:
        """Why the nest is not a reduction over leading axes; empty where it is."""
        return why_not_columns(nest)

    def space(self, nest: Nest, target: CudaTarget) -> dict[str, tuple[int, ...]]:
        """Warps of a block, chunks of rows."""
        return {"warps": (1, 4, 8, 16), "chunks": (1, 4, 32)}

    def default(self, nest: Nest, target: CudaTarget) -> Parameters:
        """Rows enough for each warp; chunks where there are few groups of columns."""
        stage = coalesce(nest.stages[0])
        rows, width = product(stage.reduce_axes), _width(stage)
        groups = -(-stage.axes[-1].extent // (WARP * width)) * product(stage.axes[:-1])
        chunks = 1
        if groups < FEW_GROUPS and rows >= 2 * CHUNK_ROWS:
            chunks = min(
                -(-BLOCKS // groups), stage.reduce_axes[0].extent, max(1, rows // CHUNK_ROWS)
            )
        return {"warps": min(8, power_of_two(-(-rows // (4 * chunks)))), "chunks": chunks}

    def apply(self, nest: Nest, target: CudaTarget, parameters: Parameters) -> Scheduled:
        stage = coalesce(nest.stages[0])
        warps, chunks = parameters["warps"], parameters["chunks"]
        if chunks <= 1 or chunks > stage.reduce_axes[0].extent:
            return Scheduled.of(_columns(stage, warps, target))
        first, second, partial = fold_in_chunks(told_apart(stage), chunks)
        last = min(8, power_of_two(-(-chunks // 4)))
        return Scheduled.of(
            _columns(first, warps, target), _columns(second, last, target), scratch=partial
        )


def _width(stage: Stage) -> int:
    return vector_width(stage, stage.axes[-1])


def _columns(stage: Stage, warps: int, target: CudaTarget) -> Schedule:
    """Groups of columns by a block each, whose warps share the rows."""
    *others, column = (v.name for v in stage.axes)
    rows, width = [v.name for v in stage.reduce_axes], _width(stage)
    row = ".".join(rows)
    warp = f"{row}.i"
    schedule = open_stage(stage).fuse(*rows).split(row, warps, "guard").privatize(warp)
    phases = [name for name in schedule.loop_names if name.startswith(warp)]
    own = []  # the loop over a lane's columns, if there is one
    if width > 1:
        schedule, own, column = schedule.split(column, width), [f"{column}.i"], f"{column}.o"
    block, lane = f"{column}.o", f"{column}.i"
    schedule = schedule.split(column, WARP, "shorten")
    if own:
        schedule = schedule.reorder(block, *own, lane)
    for each in (lane, *own):  # what warps have: lane by lane, and their columns side by side
        schedule = schedule.expand(each, "stack", 1, "last")
    for phase in phases:
        schedule = schedule.distribute((*own, lane)[0], phase).reorder(phase, lane, *own)
    if own:
        schedule = (
            schedule.reorder(lane, *own)
            .expand(*own, "register")
            .distribute(*own, f"{row}.o")
            .reorder(f"{row}.o", *own)
        )
        if product(stage.reduce_axes) % warps:
            schedule = schedule.unswitch(*own)
        schedule = schedule.vectorize(*own)
    schedule, blocks = schedule.fuse(*others, block), ".".join((*others, block))
    if not target.is_one_block:
        schedule = schedule.bind(blocks, "block")
    return schedule.bind((*phases, lane), "thread")
