"""Matrix products: tiles of both factors go through shared memory, and each warp keeps its part of
a tile of results in registers.

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
from collections.abc import Callable
from dataclasses import dataclass

from hlo_mlc.expr import build, index
from hlo_mlc.expr.build import substitute, variable
from hlo_mlc.expr.core import Buffer, Const, Expr, Load, Var
from hlo_mlc.expr.dtypes import INDEX, DType
from hlo_mlc.loops import matrices
from hlo_mlc.loops.core import Accumulate, For, If, LoopKind, Stmt, Store
from hlo_mlc.loops.lower import stores_at
from hlo_mlc.loops.rewrite import allocated, loop, when
from hlo_mlc.target.cuda import VECTOR_BYTES, WARP, CudaTarget
from hlo_mlc.templates.base import Parameters, Scheduled, open_schedule
from hlo_mlc.templates.cuda.base import (
    THREADS,
    at,
    below,
    flat,
    lanes,
    power_of_two,
    product,
    thread_loop,
)
from hlo_mlc.templates.cuda.columns import ColumnsTemplate, why_not_columns
from hlo_mlc.templates.cuda.elementwise import why_not_apart
from hlo_mlc.templates.cuda.plain import PlainTemplate
from hlo_mlc.templates.cuda.tiles import Shape, Side, kept_factors, side_of
from hlo_mlc.tensor.chunks import fold_in_chunks
from hlo_mlc.tensor.classify import Contraction, contraction, cost, is_map
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
        if len(nest.stages) != 1 or is_map(nest.stages[0]):
            return "not a single reduction"
        stage = nest.stages[0]
        if any(v.extent == 0 for v in stage.reduce_axes):
            return "an axis without elements"
        roles = contraction(stage)
        if roles is None:
            return "not a sum of products of two tensors"
        if min(map(product, (roles.rows, roles.columns, roles.summed))) < 2 or math.prod(map(
                product, (roles.rows, roles.columns, roles.summed))) < SMALL:
            return "too small for tiles"
        if not isinstance(stage.initial[0], Const):
            return "its sums start from values of their own"
        return why_not_apart(stage)

    def space(self, nest: Nest, target: CudaTarget) -> dict[str, tuple[int, ...]]:
        """Rows and columns of a tile, bytes of its depth, warps of a block; whether the next tiles
        are on their way while these are multiplied (2), and chunks of the depth."""
        return {"rows": (16, 32, 64, 128), "columns": (32, 64, 128), "depth": (32, 64, 128),
                "warps": (1, 2, 4, 8), "buffers": (1, 2), "chunks": (1, 2, 4, 8, 16, 32)}

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
            if blocks >= target.multiprocessors and few and rows <= power_of_two(m) \
                    and columns <= power_of_two(n):
                break
        lhs, _, with_tensor_cores = kept_factors(roles, stage.accumulators[0].dtype)
        step = DEPTH_BYTES // lhs.dtype.bytes
        chunks = _chunks(stage, blocks, step)
        steps = product(roles.summed) // (step * chunks)
        return {"rows": rows, "columns": columns, "depth": DEPTH_BYTES, "warps": warps,
                "buffers": 2 if with_tensor_cores and steps >= 4 else 1, "chunks": chunks}

    def apply(self, nest: Nest, parameters: Parameters, outer: LoopKind) -> Scheduled:
        """The loops for the given parameters."""
        stage, chunks = coalesce(nest.stages[0]), parameters["chunks"]
        if chunks == 1 or stage.reduce_axes[0].extent % chunks:
            return Scheduled(_tiles(stage, parameters, outer), ())
        first, second, partial = fold_in_chunks(stage, chunks)
        sums = Nest((second,), len(second.axes))
        template = PlainTemplate() if why_not_columns(sums) else ColumnsTemplate()
        few = {"warps": 1, "chunks": 1, "threads": THREADS}
        return Scheduled((*_tiles(first, parameters, outer),
                          *template.apply(sums, few, outer).body), partial)


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


def _tiles(stage: Stage, parameters: Parameters, outer: LoopKind) -> tuple[Stmt, ...]:
    body = _Builder(stage, contraction(stage), parameters, outer).build()
    if parameters["buffers"] == 1:
        return body
    schedule = open_schedule(Nest((stage,), len(stage.axes)), body)
    return schedule.double_buffer(f"{stage.name}_o").program.body


class _Builder:
    """Builds the loops of one matrix product."""

    def __init__(self, stage: Stage, roles: Contraction, parameters: Parameters,
                 outer: LoopKind) -> None:
        self.stage, self.roles, self.outer = stage, roles, outer
        self.name = name = stage.name
        accumulator = stage.accumulators[0].dtype
        lhs, rhs, self.with_tensor_cores = kept_factors(roles, accumulator)
        self.lhs = side_of(f"{name}_lhs", lhs, roles.rows, roles, self.with_tensor_cores)
        self.rhs = side_of(f"{name}_rhs", rhs, roles.columns, roles, self.with_tensor_cores)
        self.dtype: DType = lhs.dtype
        self.unit = (matrices.ROWS, matrices.COLUMNS) if self.with_tensor_cores else (16, 32)
        self.shape = shape = Shape.of(parameters, self.unit,
                                       MOST_SUMS * 4 // max(4, accumulator.bytes))
        self.depth = parameters["depth"] // self.dtype.bytes
        if not self.with_tensor_cores:
            self.depth = min(max(self.depth, FEWEST_STEPS), MOST_STEPS)
        self.total_depth = product(roles.summed)
        self.tiles_down = -(-product(roles.rows) // shape.rows)
        self.tiles_across = -(-product(roles.columns) // shape.columns)
        self.block = Var(f"{name}_b", INDEX,
                         product(roles.batch) * self.tiles_down * self.tiles_across)
        self.warp = variable(f"{name}_w", shape.down * shape.across)
        self.lane = variable(f"{name}_l", WARP)
        tile = index.floordiv(self.block, self.tiles_across)
        self.first_row = index.multiply(index.floormod(tile, self.tiles_down),
                                        index.constant(shape.rows))
        self.first_column = index.multiply(index.floormod(self.block, self.tiles_across),
                                           index.constant(shape.columns))
        self.batch = at(index.floordiv(tile, self.tiles_down), roles.batch)
        self.lhs_tile = self._tile(self.lhs, shape.rows)
        self.rhs_tile = self._tile(self.rhs, shape.columns)
        self.down = shape.rows // (shape.down * self.unit[0])  # units of a warp
        self.across = shape.columns // (shape.across * self.unit[1])
        each = matrices.LANE_ELEMENTS if self.with_tensor_cores else 16
        threads = self.warp.extent, WARP
        self.sums = Buffer(f"{name}_sums", accumulator, (*threads, self.down, self.across, each),
                           "thread")
        self.factors = () if self.with_tensor_cores else tuple(
            Buffer(f"{side.name}_own", self.dtype, (*threads, count, 4), "thread")
            for side, count in ((self.lhs, self.down), (self.rhs, self.across)))

    def build(self) -> tuple[Stmt, ...]:
        """The loop over tiles."""
        steps = -(-self.total_depth // self.depth)
        body: tuple[Stmt, ...] = (
            self._threads(self._each_sum(lambda i, j, e: (
                Store(self.sums, self._own(i, j, e), self.stage.initial[0]),))),
            loop(f"{self.name}_o", steps, LoopKind.SERIAL, self._step),
            self._threads(self._finish()))
        body = allocated((self.rhs_tile, self.lhs_tile, self.sums, *reversed(self.factors)), body)
        return (For(self.block, index.constant(self.block.extent), self.outer, body),)

    def _threads(self, body: tuple[Stmt, ...]) -> For:
        return thread_loop(self.warp, (thread_loop(self.lane, body),))

    def _own(self, *rest: Expr) -> tuple[Expr, ...]:
        return self.warp, self.lane, *rest

    # Tiles of the factors

    def _tile(self, side: Side, extent: int) -> Buffer:
        padding = PADDING // self.dtype.bytes
        if side.along_depth and not side.turned:
            outer, inner = extent, self.depth
        else:
            outer, inner = self.depth, extent
            if self.with_tensor_cores:  # four rows of eight f32 at once
                padding = max(8, padding)
        return Buffer(f"{side.name}_tile", self.dtype, (outer, inner + padding), "shared")

    def _step(self, o: Expr) -> tuple[Stmt, ...]:
        start = index.multiply(o, index.constant(self.depth))
        stage = (*self._staged(self.lhs, self.lhs_tile, self.shape.rows, self.first_row, start),
                 *self._staged(self.rhs, self.rhs_tile, self.shape.columns, self.first_column,
                               start))
        multiply = self._by_tensor_cores if self.with_tensor_cores else self._one_by_one
        return self._threads(stage), self._threads(multiply())

    def _staged(self, side: Side, tile: Buffer, extent: int, first: Expr,
                start: Expr) -> tuple[Stmt, ...]:
        """A tile of a factor, zero where there are no elements."""
        outer, inner = (extent, self.depth) if side.along_depth else (self.depth, extent)
        vectors = inner // side.width
        threads = self.warp.extent * WARP
        rounds = -(-outer * vectors // threads)
        zero = build.const(0, self.dtype)

        def one(c: Expr) -> tuple[Stmt, ...]:
            number = flat((c, 1), (self.warp, self.warp.extent), (self.lane, WARP))
            a = index.floordiv(number, vectors)
            b = index.multiply(index.floormod(number, vectors), index.constant(side.width))
            position = (index.add(first, a), index.add(start, b)) if side.along_depth \
                else (index.add(first, b), index.add(start, a))
            inside = build.all_of(below(position[0], product(side.axes)),
                                  below(position[1], self.total_depth))

            def stored(value: Callable[[dict[Var, Expr]], Expr]) -> tuple[Stmt, ...]:
                def element(v: Expr) -> tuple[Stmt, ...]:
                    place = [a, index.add(b, v)]
                    here = index.add(position[0], v) if not side.along_depth else position[0]
                    deep = index.add(position[1], v) if side.along_depth else position[1]
                    mapping = {**self.batch, **at(here, side.axes),
                               **at(deep, self.roles.summed)}
                    if side.turned:
                        place.reverse()
                    return (Store(tile, tuple(place), value(mapping)),)

                return lanes(f"{side.name}_v", side.width, element)

            whole = stored(lambda mapping: substitute(side.value, mapping))
            if inside is not build.TRUE:
                whole = (If(inside, whole, stored(lambda mapping: zero)),)
            return when(below(a, outer), whole)

        if rounds == 1:
            return one(index.constant(0))
        short = rounds * side.width * cost(side.value) <= WRITTEN_OUT
        kind = LoopKind.UNROLL if short else LoopKind.SERIAL
        return (loop(f"{side.name}_c", rounds, kind, one),)

    # Products

    def _warp_row(self) -> Expr:
        return index.multiply(index.floordiv(self.warp, self.shape.across),
                              index.constant(self.shape.rows // self.shape.down))

    def _warp_column(self) -> Expr:
        return index.multiply(index.floormod(self.warp, self.shape.across),
                              index.constant(self.shape.columns // self.shape.across))

    def _place(self, i: Expr, j: Expr, e: Expr) -> tuple[Expr, Expr]:
        """The row and column of the tile that an element of a thread is of: `i`, `j` number the
        units, `e` the elements in one."""
        if self.with_tensor_cores:
            row, column = matrices.row(self.lane, e), matrices.column(self.lane, e)
        else:  # 4 x 8 lanes of 4 x 4 elements
            row = flat((index.floordiv(self.lane, 8), 4), (index.floordiv(e, 4), 4))
            column = flat((index.floormod(self.lane, 8), 8), (index.floormod(e, 4), 4))
        return (index.add(index.add(self._warp_row(), row),
                          index.multiply(i, index.constant(self.unit[0]))),
                index.add(index.add(self._warp_column(), column),
                          index.multiply(j, index.constant(self.unit[1]))))

    def _element(self, side: Side, tile: Buffer, position: Expr, k: Expr) -> Load:
        deep_last = side.along_depth and not side.turned
        return Load(tile, (position, k) if deep_last else (k, position))

    def _by_tensor_cores(self) -> tuple[Stmt, ...]:
        depth = matrices.depth_of(self.dtype)
        e, k = Var(f"{self.name}_e", INDEX, matrices.LANE_ELEMENTS), Var(
            f"{self.name}_d", INDEX, depth)

        def one(i: int, j: int, s: Expr) -> Stmt:
            i, j = index.constant(i), index.constant(j)
            row, column = self._place(i, j, e)
            deep = index.add(index.multiply(s, index.constant(depth)), k)
            factors = (self._element(self.lhs, self.lhs_tile, row, deep),
                       self._element(self.rhs, self.rhs_tile, column, deep))
            term = build.apply("mul", *(build.apply("convert", f, dtype=self.sums.dtype)
                                        for f in factors))
            return matrices.product(Accumulate((self.sums,), self._own(i, j, e),
                                               self.stage.combiner, (term,)), e, k)

        return (loop(f"{self.name}_k", self.depth // depth, LoopKind.UNROLL, lambda s: tuple(
            one(i, j, s) for i in range(self.down) for j in range(self.across))),)

    def _one_by_one(self) -> tuple[Stmt, ...]:
        """Each thread multiplies 4 rows by 4 columns of each unit."""
        left, right = self.factors
        zero = index.constant(0)

        def step(k: Expr) -> tuple[Stmt, ...]:
            def of_lhs(i: Expr) -> tuple[Stmt, ...]:
                return lanes(f"{self.name}_x", 4, lambda v: (Store(
                    left, self._own(i, v), self._element(self.lhs, self.lhs_tile, self._place(
                        i, zero, index.multiply(v, index.constant(4)))[0], k)),))

            def of_rhs(j: Expr) -> tuple[Stmt, ...]:
                return lanes(f"{self.name}_y", 4, lambda v: (Store(
                    right, self._own(j, v), self._element(
                        self.rhs, self.rhs_tile, self._place(zero, j, v)[1], k)),))

            def update(i: Expr, j: Expr, e: Expr) -> tuple[Stmt, ...]:
                term = build.apply("mul", Load(left, self._own(i, index.floordiv(e, 4))),
                                   Load(right, self._own(j, index.floormod(e, 4))))
                return (Accumulate((self.sums,), self._own(i, j, e), self.stage.combiner,
                                   (term,)),)

            return (loop(f"{self.name}_p", self.down, LoopKind.UNROLL, of_lhs),
                    loop(f"{self.name}_q", self.across, LoopKind.UNROLL, of_rhs),
                    *self._each_sum(update))

        return (loop(f"{self.name}_k", self.depth, LoopKind.UNROLL, step),)

    # Sums

    def _each_sum(self, body: Callable[[Expr, Expr, Expr], tuple[Stmt, ...]]) -> tuple[Stmt, ...]:
        """`body(unit down, unit across, element)` for all sums of a thread."""
        *_, down, across, each = self.sums.shape
        return (loop(f"{self.name}_i", down, LoopKind.UNROLL, lambda i: (
            loop(f"{self.name}_j", across, LoopKind.UNROLL, lambda j: (
                loop(f"{self.name}_e", each, LoopKind.UNROLL, lambda e: body(i, j, e)),)),)),)

    def _finish(self) -> tuple[Stmt, ...]:
        """The results; the elements of a row that a thread has side by side at once."""
        roles, side = self.roles, 2 if self.with_tensor_cores else 4
        *_, down, across, each = self.sums.shape
        width = math.gcd(side, roles.columns[-1].extent)

        def one(i: Expr, j: Expr, h: Expr) -> tuple[Stmt, ...]:
            def place(v: Expr) -> tuple[Expr, Expr, Expr]:
                e = index.add(index.multiply(h, index.constant(width)), v)
                row, column = self._place(i, j, e)
                return (index.add(self.first_row, row), index.add(self.first_column, column), e)

            def stored(v: Expr) -> tuple[Stmt, ...]:
                row, column, e = place(v)
                mapping = {**self.batch, **at(row, roles.rows), **at(column, roles.columns),
                           self.stage.accumulators[0]: Load(self.sums, self._own(i, j, e))}
                return stores_at(self.stage.assigns, mapping)

            row, column, _ = place(index.constant(0))
            inside = build.all_of(below(row, product(roles.rows)),
                                  below(column, product(roles.columns)))
            return when(inside, lanes(f"{self.name}_v", width, stored))

        return (loop(f"{self.name}_i", down, LoopKind.UNROLL, lambda i: (
            loop(f"{self.name}_j", across, LoopKind.UNROLL, lambda j: (
                loop(f"{self.name}_h", each // width, LoopKind.UNROLL,
                     lambda h: one(i, j, h)),)),)),)
