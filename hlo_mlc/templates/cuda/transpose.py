"""Maps with a transposed access: square tiles go through shared memory, so that both what is read
and what is written are neighbours for neighbouring threads.

    naive loops  ->  split "guard", reorder  ->  cache_read, pad, fuse_loops  ->  split  ->  bind

    for b block:
      for t thread, l thread:  tile[row, l] = x[l, row]     neighbouring l, neighbours in x
      for t thread, l thread:  y[row, l] = … tile[l, row] …  and in y
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hlo_mlc.expr.core import Load, Var
from hlo_mlc.loops.core import Allocate, walk
from hlo_mlc.schedule.core import Schedule
from hlo_mlc.target.cuda import WARP, CudaTarget
from hlo_mlc.templates.base import Parameters, Scheduled, open_stage
from hlo_mlc.templates.cuda.elementwise import ElementwiseTemplate
from hlo_mlc.tensor.access import Pair
from hlo_mlc.tensor.classify import stride
from hlo_mlc.tensor.coalesce import accesses, coalesce
from hlo_mlc.tensor.core import Nest, Stage

# A tile has WARP x WARP elements; its rows are one longer, so that a column lies in all banks of
# shared memory.  Source: CUDA C++ Best Practices Guide, "Shared Memory in Matrix Multiplication".
PADDING = 1
# Several tiles may be needed, of 8 bytes an element at most, within 48 KiB.
MOST_TILES = 4


@dataclass(frozen=True, slots=True)
class TransposeTemplate:
    """Tiles of 32 x 32 elements."""

    name: str = "transpose"

    def refusal(self, nest: Nest, target: CudaTarget) -> str:
        """Why the nest has no use for tiles; empty where it has."""
        reason = ElementwiseTemplate().refusal(nest, target)
        if reason:
            return reason
        stage = coalesce(nest.stages[0])
        axis, loads = _crossing(stage)
        if axis is None:
            return "no access walks along another axis"
        if axis.extent < 2 or stage.axes[-1].extent < 2:
            return "a single row or column"
        if len(loads) > MOST_TILES:
            return "too many transposed accesses"
        if any(load.source in stage.outputs for load in loads):
            return "it is overwritten in place"
        return ""

    def space(self, nest: Nest, target: CudaTarget) -> dict[str, tuple[int, ...]]:
        """Rows of a tile that are done at a time."""
        return {"rows": (4, 8, 16)}

    def default(self, nest: Nest, target: CudaTarget) -> Parameters:
        """256 threads."""
        return {"rows": 8}

    def apply(self, nest: Nest, target: CudaTarget, parameters: Parameters) -> Scheduled:
        stage = coalesce(nest.stages[0])
        axis, loads = _crossing(stage)
        schedule = open_stage(stage, nest)
        return Scheduled.of(
            _in_tiles(
                schedule,
                axis.name,
                tuple(dict.fromkeys(load.source.name for load in loads)),
                parameters["rows"],
                target,
            )
        )


def _crossing(stage: Stage) -> tuple[Var | None, tuple[Load, ...]]:
    """An outer axis along which loads walk one by one while the last axis strides, and all loads of
    what these read that are nearer to each other along the one than along the other."""
    reads = [a for a in accesses(stage) if isinstance(a, Load)]
    for axis in reversed(stage.axes[:-1]):
        crossing = tuple(
            a for a in reads if 0 < abs(stride(a, axis) or 0) < abs(stride(a, stage.axes[-1]) or 0)
        )
        sources = {a.source for a in crossing if a.guard is None and stride(a, axis) == _step(a)}
        if sources:
            return axis, tuple(a for a in crossing if a.source in sources)
    return None, ()


def _step(access: Load) -> int:
    """From an element to its neighbour, which of a complex number's part is another's."""
    return 1 if not access.indices or Pair.of(access.source, access.indices) is None else 2


def _in_tiles(
    schedule: Schedule, row: str, read: Sequence[str], rows: int, target: CudaTarget
) -> Schedule:
    """Tiles of the loop `row` and the last one, each by a block, which reads its part of some
    buffers along the rows first, so many of the last loop's iterations at a time."""
    *others, column = (name for name in schedule.loop_names if name != row)
    tile, inside = f"{column}.o", (f"{row}.i", f"{column}.i")
    schedule = (
        schedule.split(column, WARP, "guard")
        .split(row, WARP, "guard")
        .reorder(*others, f"{row}.o", tile, *reversed(inside))
    )
    for name in reversed(read):
        schedule = schedule.cache_read(name, tile, "loops", along=inside[0])
    schedule = _padded(schedule.reorder(*inside))
    copies = tuple(f"{read[0]}.{tile}.{loop}" for loop in reversed(inside))
    for loop in reversed(inside):
        schedule = _as_one(schedule, [f"{name}.{tile}.{loop}" for name in read])
    threads = []
    for down, lane in (copies, inside):
        each, thread = f"{down}.o", f"{down}.i"
        schedule = schedule.split(down, rows).reorder(thread, lane, each).unroll(each)
        threads.append((thread, lane))
    blocks = (*others, f"{row}.o", tile)
    schedule = schedule.fuse(*blocks)
    if not target.is_one_block:
        schedule = schedule.bind(".".join(blocks), "block")
    for names in zip(*threads, strict=True):
        schedule = schedule.bind(names, "thread")
    return schedule


def _padded(schedule: Schedule) -> Schedule:
    """The rows of all tiles."""
    for tile in [s.buffer.name for s in walk(schedule.program.body) if isinstance(s, Allocate)]:
        schedule = schedule.pad(tile, PADDING)
    return schedule


def _as_one(schedule: Schedule, names: Sequence[str]) -> Schedule:
    """The neighbouring loops of these names as one, which has the first of them."""
    for name in names:
        while len(schedule.loops(name)) > (name == names[0]):
            schedule = schedule.fuse_loops(names[0], name)
    return schedule
