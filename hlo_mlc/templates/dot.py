"""Products of few rows, both factors lying along the depth: vectors along it, as in a dot product.

    parallel task -> batch, block of rows and columns
      for each tile of the block: sums[tile] = folds of vectors along the depth
      for each row of the block: epilogue, vectors of columns -> result

Other products have vectors of columns (contraction.py), which lie apart here.  Putting them side by
side takes longer than multiplying them with few rows: `x @ w.T` for a handful of tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hlo_mlc.expr import index
from hlo_mlc.expr.build import load, substitute
from hlo_mlc.expr.core import Buffer, Expr, Var
from hlo_mlc.loops.core import Accumulate, Allocate, If, LoopKind, Stmt, Store
from hlo_mlc.loops.rewrite import loop
from hlo_mlc.schedule.cascade import in_runs
from hlo_mlc.target.cpu import CpuTarget
from hlo_mlc.templates.base import Parameters, Scheduled, across, bounded, decoded, lanes
from hlo_mlc.templates.product import (
    RUN,
    over,
    product_refusal,
    reads_vectors_along,
    share_products,
)
from hlo_mlc.tensor.classify import Contraction, contraction
from hlo_mlc.tensor.coalesce import coalesce
from hlo_mlc.tensor.core import Nest, Stage

Body = tuple[Stmt, ...]
At = Mapping[Var, Expr]

# Rows, or columns, up to which this is the faster way.  1024 x 1024 (in L2) by 4 to 12 rows took a
# quarter to 0.6 of the time, 16 rows 0.8 to 1.4, more the same; 4096 x 1024 by 8 rows 0.4.
FEW = 12
# The shortest depth, in vectors: adding up the lanes of a tile takes as long as ten steps.  Depths
# of 4 to 8 vectors were 0.6 to 1.2 times as fast as with vectors of columns.
SHORTEST = 16
# Rows of a tile: what is read of the other factor serves so many.
TALLEST = 8


@dataclass(frozen=True, slots=True)
class DotTemplate:
    """Tiles of dot products."""

    name: str = "dot"

    def refusal(self, nest: Nest, target: CpuTarget) -> str:
        """Why the nest is not a product of few rows along the depth; empty where it is."""
        if reason := product_refusal(nest):
            return reason
        stage = coalesce(nest.stages[0])
        roles = contraction(stage)
        m, n, depth = roles.rows[-1].extent, roles.columns[-1].extent, roles.summed[-1]
        if min(m, n) > FEW:
            return "neither few rows nor few columns"
        if depth.extent < SHORTEST * lanes((stage,), target):
            return "a short depth"
        if not all(reads_vectors_along(factor, depth) for factor in (roles.lhs, roles.rhs)):
            return "a factor does not lie along the depth"
        return ""

    def space(self, nest: Nest, target: CpuTarget) -> dict[str, tuple[int, ...]]:
        """The tile."""
        return {"rows": (1, 2, 3, 4, 6, 8), "columns": (1, 2, 3, 4, 6, 8)}

    def default(self, nest: Nest, target: CpuTarget) -> Parameters:
        """As many sums as registers hold."""
        roles = contraction(coalesce(nest.stages[0]))
        rows, columns = _tile(roles.rows[-1].extent, roles.columns[-1].extent, target)
        return {"rows": rows, "columns": columns}

    def apply(self, nest: Nest, target: CpuTarget, parameters: Parameters) -> Scheduled:
        """The loops for the given parameters."""
        stage = coalesce(nest.stages[0])
        builder = _Builder(stage, contraction(stage), parameters, lanes((stage,), target),
                           target.cores)
        return Scheduled(in_runs(builder.build(), RUN), ())


def _tile(m: int, n: int, target: CpuTarget) -> tuple[int, int]:
    """Rows by columns: few of one kind are shared out evenly, the other fills the registers."""
    sums = target.registers * 3 // 4  # the factors and an address or two take the rest

    def even(extent: int) -> int:
        return -(-extent // -(-extent // TALLEST))

    if m <= n:
        return even(m), min(n, max(1, sums // even(m)), TALLEST)
    return min(m, max(1, sums // even(n)), TALLEST), even(n)


@dataclass(frozen=True, slots=True)
class _Blocks:
    """How one axis is cut: `count` blocks of `size`, each in tiles; the last one begins where it
    ends with the axis, and `rest` of it is its own."""

    extent: int
    tile: int
    size: int
    count: int

    @staticmethod
    def of(extent: int, tile: int, tiles: int) -> _Blocks:
        tile = min(tile, extent)
        count = 1 if extent <= FEW else -(-extent // (tile * tiles))
        size = min(extent, -(-extent // (count * tile)) * tile)
        return _Blocks(extent, tile, size, -(-extent // size))

    @property
    def rest(self) -> int:
        return self.extent - (self.count - 1) * self.size

    def begin(self, block: Expr) -> Expr:
        return bounded_start(block, self.size, self.extent)

    def tiles(self, name: str, body: Callable[[Expr], Body]) -> Body:
        """`body(start)` for each tile of a block; the last one may repeat a part of another."""
        return (loop(name, -(-self.size // self.tile), LoopKind.SERIAL,
                     lambda t: body(bounded_start(t, self.tile, self.size))),)


def bounded_start(number: Expr, size: int, extent: int) -> Expr:
    """Where the numbered one of runs of `size` begins that all lie inside of `extent`."""
    return bounded(index.multiply(number, index.constant(size)), extent - size + 1)


@dataclass(slots=True)
class _Builder:
    """Builds the loops of one product."""

    stage: Stage
    roles: Contraction
    parameters: Parameters
    lanes: int
    cores: int

    def build(self) -> Body:
        roles, p = self.roles, self.parameters
        row, column = roles.rows[-1], roles.columns[-1]
        rows = _Blocks.of(row.extent, p["rows"], self.lanes)
        columns = _Blocks.of(column.extent, p["columns"], self.lanes)
        outer = (*roles.batch, *roles.rows[:-1], *roles.columns[:-1])
        tasks = math.prod(v.extent for v in outer) * rows.count * columns.count
        work = math.prod(v.extent for v in (*self.stage.axes, *roles.summed))

        def task(t: Expr) -> Body:
            right, t = index.floormod(t, columns.count), index.floordiv(t, columns.count)
            left, t = index.floormod(t, rows.count), index.floordiv(t, rows.count)
            return self._block(decoded(outer, t), rows, left, columns, right)

        return share_products(row.name, tasks, work, self.cores, task)

    def _block(self, at: At, rows: _Blocks, left: Expr, columns: _Blocks, right: Expr) -> Body:
        """Sums of a block, then what becomes of them."""
        name, dtype = self.roles.rows[-1].name, self.stage.accumulators[0].dtype
        sums = Buffer(f"{name}_sums", dtype, (rows.size, columns.size), "stack")
        first = self._from(at, rows.begin(left), columns.begin(right))
        tiles = rows.tiles(f"{name}_r", lambda r: columns.tiles(
            f"{name}_c", lambda c: self._tile(sums, first, r, c, rows.tile, columns.tile)))

        def finish(height: int, width: int) -> Body:
            return self._finish(sums, first, height, width)

        def of_height(height: int) -> Body:
            return _last_apart(right, columns, lambda width: finish(height, width))

        return (Allocate(sums, (*tiles, *_last_apart(left, rows, of_height))),)

    def _from(self, at: At, top: Expr, start: Expr) -> Callable[[Expr, Expr], dict[Var, Expr]]:
        """Where an element of a block is."""
        row, column = self.roles.rows[-1], self.roles.columns[-1]
        return lambda r, c: {**at, row: index.add(top, r), column: index.add(start, c)}

    def _tile(self, sums: Buffer, first: Callable, top: Expr, start: Expr, height: int,
              width: int) -> Body:
        stage, name = self.stage, self.roles.rows[-1].name
        folded = Buffer(f"{name}_acc", stage.accumulators[0].dtype, (height * width, self.lanes),
                        "register")
        neutral, = stage.combiner.identity

        def each(part: str, body: Callable[[Expr, Expr, Expr], Body]) -> Body:
            return (loop(f"{name}_{part}r", height, LoopKind.UNROLL, lambda r: (
                loop(f"{name}_{part}c", width, LoopKind.UNROLL, lambda c: body(
                    index.add(index.multiply(r, index.constant(width)), c),
                    index.add(top, r), index.add(start, c))),)),)

        def vector(part: str, size: int, body: Callable[[Expr], Stmt]) -> Body:
            return (loop(f"{name}_{part}l", size, LoopKind.VECTORIZE, lambda lane: (body(lane),)),)

        def add(where: At, begin: Expr, size: int) -> Body:
            return each("k", lambda number, r, c: vector("k", size, lambda lane: Accumulate(
                (folded,), (number, lane), stage.combiner, (substitute(stage.terms[0], {
                    **first(r, c), **where,
                    self.roles.summed[-1]: index.add(begin, lane)}),))))

        def total(number: Expr, r: Expr, c: Expr) -> Body:
            initial = substitute(stage.initial[0], first(r, c))
            return (Store(sums, (r, c), initial), *vector("s", self.lanes, lambda lane: Accumulate(
                (sums,), (r, c), stage.combiner, (load(folded, (number, lane)),))))

        begin = each("z", lambda number, r, c: vector("z", self.lanes, lambda lane: Store(
            folded, (number, lane), neutral)))
        fold = over(f"{name}_k", self.roles.summed[:-1], lambda _, where: self._along_depth(
            lambda start, size: add(where, start, size)))
        return (Allocate(folded, (*begin, *fold, *each("s", total))),)

    def _along_depth(self, body: Callable[[Expr, int], Body]) -> Body:
        """`body(start, size)` for every vector of the depth, and for the rest."""
        depth = self.roles.summed[-1]
        whole, rest = divmod(depth.extent, self.lanes)
        result = (loop(f"{depth.name}_v", whole, LoopKind.SERIAL, lambda v: body(
            index.multiply(v, index.constant(self.lanes)), self.lanes)),)
        return result + (body(index.constant(whole * self.lanes), rest) if rest else ())

    def _finish(self, sums: Buffer, first: Callable, height: int, width: int) -> Body:
        """The last `height` rows and `width` columns of a block, whose others belong to another."""
        stage, name = self.stage, self.roles.rows[-1].name
        above, before = (index.constant(size - own) for size, own in
                         zip(sums.shape, (height, width), strict=True))

        def one(r: Expr, c: Expr) -> Body:
            r, c = index.add(above, r), index.add(before, c)
            where = {**first(r, c), stage.accumulators[0]: load(sums, (r, c))}
            return tuple(Store(a.buffer, tuple(substitute(i, where) for i in a.indices),
                               substitute(a.value, where)) for a in stage.assigns)

        return (loop(f"{name}_e", height, LoopKind.SERIAL, lambda r: across(
            f"{name}_e", width, self.lanes, lambda c: one(r, c), LoopKind.SERIAL)),)


def _last_apart(block: Expr, blocks: _Blocks, body: Callable[[int], Body]) -> Body:
    """`body` for the whole size of a block, and in the last one for the part that is its own."""
    if blocks.rest == blocks.size:
        return body(blocks.size)
    is_whole = index.compare("lt", block, index.constant(blocks.count - 1))
    return (If(is_whole, body(blocks.size), body(blocks.rest)),)
