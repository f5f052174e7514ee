"""Matrix products: tiles of both factors go through shared memory, and each warp keeps its part of
a tile of results in registers.

    naive loops  ->  split, expand, distribute  ->  hoist, pad  ->  split, unswitch, vectorize
                 ->  split, reorder, tensorize or cache_read  ->  double_buffer  ->  bind

    for b block:                          a tile of results: rows x columns
      sums = initial
      for o in depth / step:
        threads: lhs_tile, rhs_tile = the factors     16 bytes a thread; any prologue
        threads: sums += lhs_tile @ rhs_tile          tensor cores, or multiply-adds
      threads: results = …sums…                       any epilogue

bf16 and f16 are multiplied by tensor cores and added up in f32; so are f32 that have no more bits
than tf32.  XLA takes f32 products in default precision for tf32; here they are exact unless the
product itself asks for tf32 (its `algorithm`).  All other types are multiplied and added one by
one.  The next tiles are on their way to shared memory while these are multiplied.  Few results of
a long depth are summed up in chunks, which are combined at the end.  The order of summation does
not depend on the GPU at hand.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from hlo_mlc.expr.core import Const
from hlo_mlc.loops import matrices
from hlo_mlc.loops.rewrite import constant_extent
from hlo_mlc.schedule.core import Schedule
from hlo_mlc.target.cuda import VECTOR_BYTES, WARP, CudaTarget
from hlo_mlc.templates.base import Parameters, Scheduled, open_stage
from hlo_mlc.templates.cuda.base import THREADS, power_of_two, product
from hlo_mlc.templates.cuda.columns import ColumnsTemplate, why_not_columns
from hlo_mlc.templates.cuda.plain import PlainTemplate
from hlo_mlc.templates.cuda.tiles import Shape, Side, Unit, in_whole_tiles, kept_factors, side_of
from hlo_mlc.templates.product import product_refusal
from hlo_mlc.tensor.chunks import fold_in_chunks
from hlo_mlc.tensor.classify import contraction, cost, why_not_apart
from hlo_mlc.tensor.coalesce import coalesce
from hlo_mlc.tensor.core import Nest, Stage

# Extents of the tiles of results, largest first.  A large tile needs its factors less often, many
# tiles keep more multiprocessors busy.  Not measured.
TILES = ((128, 128), (128, 64), (64, 64), (64, 32), (32, 32), (16, 32))
# Sums that a thread keeps: 64 registers leave room for factors and addresses.
MOST_SUMS = 64
# Bytes of a row of a tile in shared memory: two instructions of the tensor cores.
DEPTH_BYTES = 64
# Products of a sum between two barriers where they are written out one by one: code size.
FEWEST_STEPS, MOST_STEPS = 8, 16
# Bytes between rows that keep eight of them in different banks, with 16-byte accesses aligned.
PADDING = VECTOR_BYTES
# Simple operations of a thread's epilogue that are written out: code size.
WRITTEN_OUT = 2000
# Tiles of results below which a long depth is cut, the blocks that there are then about, and the
# steps that a chunk has at least.  Results must not depend on the GPU at hand.
FEW_TILES, BLOCKS, CHUNK_STEPS = 64, 256, 8
# Products below this need no tile.
SMALL = 8 * 8 * 8


@dataclass(frozen=True, slots=True)
class ContractionTemplate:
    """Tiles in shared memory, sums in registers."""

    name: str = "contraction"

    def refusal(self, nest: Nest, target: CudaTarget) -> str:
        """Why the nest is not a matrix product for tiles; empty where it is."""
        if reason := product_refusal(nest):
            return reason
        stage = nest.stages[0]
        roles = contraction(stage)
        if (
            min(map(product, (roles.rows, roles.columns, roles.summed))) < 2
            or math.prod(map(product, (roles.rows, roles.columns, roles.summed))) < SMALL
        ):
            return "too small for tiles"
        if not isinstance(stage.initial[0], Const):
            return "its sums start from values of their own"
        return why_not_apart(stage)

    def space(self, nest: Nest, target: CudaTarget) -> dict[str, tuple[int, ...]]:
        """Rows and columns of a tile, bytes of its depth, warps of a block; whether the next tiles
        are on their way while these are multiplied (2), and chunks of the depth."""
        return {
            "rows": (16, 32, 64, 128),
            "columns": (32, 64, 128),
            "depth": (32, 64, 128),
            "warps": (1, 2, 4, 8),
            "buffers": (1, 2),
            "chunks": (1, 2, 4, 8, 16, 32),
        }

    def default(self, nest: Nest, target: CudaTarget) -> Parameters:
        """The largest tile of which there are enough to keep the GPU busy."""
        stage = coalesce(nest.stages[0])
        roles = contraction(stage)
        m, n = product(roles.rows), product(roles.columns)
        work = max(1, sum(cost(a.value) for a in stage.assigns))
        for rows, columns in TILES:
            blocks = -(-m // rows) * -(-n // columns) * product(roles.batch)
            warps = max(1, min(8, rows * columns // 1024))
            few = rows * columns // (WARP * warps) * work <= WRITTEN_OUT
            if (
                blocks >= target.multiprocessors
                and few
                and rows <= power_of_two(m)
                and columns <= power_of_two(n)
            ):
                break
        lhs, _, with_tensor_cores = kept_factors(roles, stage.accumulators[0].dtype)
        step = DEPTH_BYTES // lhs.dtype.bytes
        chunks = _chunks(stage, blocks, step)
        steps = product(roles.summed) // (step * chunks)
        return {
            "rows": rows,
            "columns": columns,
            "depth": DEPTH_BYTES,
            "warps": warps,
            "buffers": 2 if with_tensor_cores and steps >= 4 else 1,
            "chunks": chunks,
        }

    def apply(self, nest: Nest, target: CudaTarget, parameters: Parameters) -> Scheduled:
        stage, chunks = coalesce(nest.stages[0]), parameters["chunks"]
        if chunks == 1 or stage.reduce_axes[0].extent % chunks:
            return Scheduled.of(_tiles(stage, parameters, target))
        first, second, partial = fold_in_chunks(stage, chunks)
        if contraction(first) is None:  # a chunk has one term, or the same as all others
            return Scheduled.of(_tiles(stage, parameters, target))
        sums = Nest((second,), len(second.axes))
        template = PlainTemplate() if why_not_columns(sums) else ColumnsTemplate()
        few = {"warps": 1, "chunks": 1, "threads": THREADS}
        return Scheduled.of(
            _tiles(first, parameters, target),
            *template.apply(sums, target, few).schedules,
            scratch=partial,
        )


def _chunks(stage: Stage, tiles: int, step: int) -> int:
    """Into how many equal parts to cut the depth: as many as it takes to keep a GPU busy, if there
    are few tiles of results."""
    extent = stage.reduce_axes[0].extent
    rest = product(stage.reduce_axes[1:])
    if tiles > FEW_TILES or not isinstance(stage.initial[0], Const):
        return 1
    most = min(BLOCKS // tiles, extent * rest // (CHUNK_STEPS * step), extent)
    fitting = [n for n in range(2, most + 1) if extent % n == 0]
    whole = [n for n in fitting if extent // n * rest % step == 0]
    return max(whole or fitting, default=1)


def _tiles(stage: Stage, parameters: Parameters, target: CudaTarget) -> Schedule:
    """A block for each tile of results, whose depth it goes through step by step."""
    roles, accumulator = contraction(stage), stage.accumulators[0]
    lhs, rhs, with_tensor_cores = kept_factors(roles, accumulator.dtype)
    unit = Unit.of(with_tensor_cores)
    shape = Shape.of(
        parameters, (unit.rows, unit.columns), MOST_SUMS * 4 // max(4, accumulator.dtype.bytes)
    )
    depth = parameters["depth"] // lhs.dtype.bytes
    if not with_tensor_cores:
        depth = min(max(depth, FEWEST_STEPS), MOST_STEPS)
    whole = in_whole_tiles(stage, (lhs, rhs), (shape.rows, shape.columns, depth))
    *batch, m, n = (v.name for v in whole.axes)
    k = whole.reduce_axes[0].name
    row, column, step, sums = f"{m}.i", f"{n}.i", f"{k}.i", f"{stage.name}.{accumulator.name}"
    schedule = _step_by_step(open_stage(whole), (m, n, k), (shape.rows, shape.columns, depth))
    filling = []
    deep = product(roles.summed) % depth > 0
    for value, axes, size, own, other in (
        (lhs, roles.rows, shape.rows, row, column),
        (rhs, roles.columns, shape.columns, column, row),
    ):
        side = side_of(value, axes, roles, with_tensor_cores)
        along_depth = side.along_depth and not side.turned
        padding = PADDING // value.dtype.bytes
        if with_tensor_cores and not along_depth:  # four rows of eight f32 at once
            padding = max(8, padding)
        schedule, threads = _filled(
            schedule.reorder(other, *((own, step) if along_depth else (step, own)))
            .hoist(other, other, 1, "source")
            .pad(f"{other}.h", padding),
            side,
            f"{other}.h.{own}",
            f"{other}.h.{step}",
            WARP * shape.down * shape.across,
            deep or product(axes) % size > 0,
        )
        filling.append(threads)
    for one, two in zip(*filling, strict=True):
        schedule = schedule.fuse_loops(one, two)
    schedule, summing, own = _shared_out(schedule, row, column, shape, unit)
    schedule, storing, stored = _shared_out(schedule, f"{row}.e", f"{column}.e", shape, unit)
    schedule = _stored(
        schedule.transform_layout(sums, unit.parts(shape), unit.order),
        stored,
        math.gcd(unit.inner_columns, roles.columns[-1].extent),
        product(roles.rows) % shape.rows + product(roles.columns) % shape.columns > 0,
    )
    if with_tensor_cores:
        schedule = _by_tensor_cores(schedule, own, step, matrices.depth_of(lhs.dtype))
    else:
        schedule = _one_by_one(schedule, own, step, f"{column}.h", f"{row}.h")
    if parameters["buffers"] > 1:
        schedule = schedule.double_buffer(f"{k}.o")
    blocks = (*batch, f"{m}.o", f"{n}.o")
    schedule = schedule.fuse(*blocks)
    if not target.is_one_block:
        schedule = schedule.bind(".".join(blocks), "block")
    return schedule.bind((*filling[0], *summing, *storing), "thread")


def _step_by_step(
    schedule: Schedule, names: tuple[str, str, str], sizes: tuple[int, int, int]
) -> Schedule:
    """Tiles of rows and columns, whose sums all begin, go along the depth in steps, and are stored,
    side by side."""
    (m, n, k), (rows, columns, depth) = names, sizes
    row, column = f"{m}.i", f"{n}.i"
    return (
        schedule.split(m, rows)
        .split(n, columns)
        .split(k, depth)
        .reorder(f"{m}.o", f"{n}.o", row, column)
        .expand(column, "register")
        .expand(row, "register")
        .distribute(row, f"{k}.o", "e")
        .distribute(row, f"{k}.o")
        .reorder(f"{k}.o", row, column, f"{k}.i")
    )


def _filled(
    schedule: Schedule, side: Side, own: str, step: str, threads: int, partial: bool
) -> tuple[Schedule, tuple[str, str]]:
    """A tile of a factor, as vectors by all threads; if it is `partial`, there may be zeros."""
    outer, inner = (own, step) if side.along_depth else (step, own)
    if side.turned:
        schedule = schedule.reorder(outer, inner)
    vector = ""
    if side.width > 1:
        schedule, inner, vector = schedule.split(inner, side.width), f"{inner}.o", f"{inner}.i"
    schedule, name = schedule.fuse(outer, inner), f"{outer}.{inner}"
    schedule = schedule.split(name, threads, "guard").reorder(f"{name}.i", f"{name}.o")
    rounds = constant_extent(schedule.loops(f"{name}.o")[0])
    if rounds * side.width * cost(side.value) <= WRITTEN_OUT:
        schedule = schedule.unroll(f"{name}.o")
    if vector and partial:
        schedule = schedule.unswitch(vector)
    if vector:
        schedule = schedule.vectorize(vector)
    return schedule.split(f"{name}.i", WARP), (f"{name}.i.o", f"{name}.i.i")


def _shared_out(
    schedule: Schedule, row: str, column: str, shape: Shape, unit: Unit
) -> tuple[Schedule, tuple[str, str], tuple[str, ...]]:
    """The loops over a tile's rows and columns as loops over warps and lanes, and those over a
    lane's own: units down and across, rows and columns of its elements in one."""
    loops = []
    for name, size, unit_size, inside in (
        (row, shape.rows // shape.down, unit.rows, unit.inner_rows),
        (column, shape.columns // shape.across, unit.columns, unit.inner_columns),
    ):
        schedule = (
            schedule.split(name, size).split(f"{name}.i", unit_size).split(f"{name}.i.i", inside)
        )
        loops.append([f"{name}.o", f"{name}.i.o", f"{name}.i.i.o", f"{name}.i.i.i"])
    (down, i, *rows), (across, j, lane_column, e_column) = loops
    lane_row, e_row = rows[::-1] if unit.lanes_inside else rows
    schedule = (
        schedule.reorder(down, across, lane_row, lane_column, i, j, e_row, e_column)
        .fuse(down, across)
        .fuse(lane_row, lane_column)
    )
    return schedule, (f"{down}.{across}", f"{lane_row}.{lane_column}"), (i, j, e_row, e_column)


def _by_tensor_cores(schedule: Schedule, own: Sequence[str], step: str, depth: int) -> Schedule:
    """All units of a warp, by an instruction each."""
    i, j, e_row, e_column = own
    schedule, e = schedule.fuse(e_row, e_column), f"{e_row}.{e_column}"
    schedule = schedule.split(step, depth).reorder(f"{step}.o", i, j, e, f"{step}.i")
    return schedule.tensorize(e).write_out(i).write_out(j).unroll(f"{step}.o")


def _one_by_one(schedule: Schedule, own: Sequence[str], step: str, *tiles: str) -> Schedule:
    """All sums of a thread, of which the factors are in registers."""
    schedule = schedule.reorder(step, *own)
    for tile, unit, element in zip(tiles, own[:2], own[2:], strict=True):
        schedule = (
            schedule.cache_read(tile, step, "loops")
            .unroll(f"{tile}.{step}.{unit}")
            .vectorize(f"{tile}.{step}.{element}")
        )
    for name in (step, *own):
        schedule = schedule.unroll(name)
    return schedule


def _stored(schedule: Schedule, own: Sequence[str], width: int, partial: bool) -> Schedule:
    """The results; those of a row that a thread has side by side at once."""
    *rest, vector = own
    if width < constant_extent(schedule.loops(vector)[0]):
        schedule = schedule.split(vector, width)
        rest, vector = [*rest, f"{vector}.o"], f"{vector}.i"
    for name in rest:
        schedule = schedule.unroll(name)
    if width == 1:
        return schedule.unroll(vector)
    return (schedule.unswitch(vector) if partial else schedule).vectorize(vector)
