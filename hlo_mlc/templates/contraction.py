"""Matrix products: a register tile of accumulators over panels of packed columns.

    parallel task -> batch, panel of columns, block of row tiles
      pack the panel of rhs                              [summed, panel]
      for each row tile: accumulators[rows, panel] in registers
        for k: accumulators[r, :] += lhs[r, k] * rhs[k, :]
        epilogue -> result

The factors may be any expressions (prologues), the results any expressions of the accumulators
(epilogues).  The order of summation over k is that of the naive nest.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from hlo_mlc.expr import index
from hlo_mlc.expr.build import load, substitute
from hlo_mlc.expr.core import Buffer, Expr, Load, Var
from hlo_mlc.loops.core import Allocate, If, LoopKind, Prefetch, Stmt, Store
from hlo_mlc.loops.rewrite import loop
from hlo_mlc.target.cpu import CpuTarget
from hlo_mlc.templates.base import Parameters, Scheduled, across, bounded, decoded, epilogue_cost
from hlo_mlc.templates.product import (
    PARALLEL_WORK,
    Tile,
    in_squares,
    is_direct,
    is_plain,
    product_refusal,
    share_products,
)
from hlo_mlc.templates.register_tile import register_tile
from hlo_mlc.tensor.classify import Contraction, contraction, cost, stride
from hlo_mlc.tensor.coalesce import coalesce
from hlo_mlc.tensor.core import Nest, Stage

# Bytes on the stack that a packed panel, and the unfinished sums between two blocks of the depth,
# may take: together below the 256 KiB that a worker's stack has to spare.
STACK_PANEL = 160 * 1024
STACK_PARTIAL = 64 * 1024
# Right factors larger than this part of the second level are packed where several tiles read them:
# rows far apart cost more than a copy.  With 2 MiB, products of 384 square and 128 x 256 x 640 ran
# 1.15 to 1.2 times as fast packed, one of 256 square 0.98 times.
PACKED_SHARE = 4
# Steps of the depth by which rows of a large right factor that is not packed are fetched ahead:
# they lie too far apart for a processor to see what comes next (16 x 256 x 1024 ran 1.1 times as
# fast, 4 to 12 rows by matrices of 8 to 16 MB 1.25 to 1.4 times; 16 steps were worse, 4 as good).
AHEAD = 8
# Epilogues costlier than this run as a loop over a tile in L1 instead of being written out for
# every register of the tile: code size, for the same speed.
EPILOGUE_INLINE = 4
# Up to this cost the vectors of a row are written out side by side: one alone waits for its own
# results (gelu behind 128 x 768 x 3072: 1.5 times as long in all).
EPILOGUE_ABREAST = 80


@dataclass(frozen=True, slots=True)
class ContractionTemplate:
    """Register-tiled matrix product with prologue and epilogue."""

    name: str = "contraction"

    def refusal(self, nest: Nest, target: CpuTarget) -> str:
        """Why the nest is not a matrix product for this template; empty where it is."""
        return product_refusal(nest)

    def space(self, nest: Nest, target: CpuTarget) -> dict[str, tuple[int, ...]]:
        """Tile heights and widths, depth of a block, packing, how finely rows are split, and steps
        by which rows of the right factor are fetched ahead."""
        return {"rows": (4, 6, 8, 12), "vectors": (1, 2, 3, 4), "pack": (0, 1),
                "depth": (0, 256, 512, 768), "row_blocks": (1, 2, 4, 8), "pack_rows": (0, 1),
                "ahead": (0, 4, 8, 16)}

    def default(self, nest: Nest, target: CpuTarget) -> Parameters:
        """The register tile that wastes least, packing where panels are reused."""
        stage = coalesce(nest.stages[0])
        roles = contraction(stage)
        lanes = _lanes(stage, target)
        m, n = roles.rows[-1].extent, roles.columns[-1].extent
        depth = math.prod(v.extent for v in roles.summed)
        rows, vectors = register_tile(m, n, lanes, target)
        tiles = -(-m // rows)
        panels = -(-n // (lanes * vectors)) * _outer_points(roles)
        work = m * n * depth * _outer_points(roles)
        row_blocks = 1
        if work > PARALLEL_WORK and panels < 2 * target.cores:
            row_blocks = min(tiles, -(-2 * target.cores // panels))
        irregular = not is_direct(roles.rhs, roles.columns[-1])
        size = stage.accumulators[0].dtype.bytes
        big = n * depth * size > target.l2_bytes / PACKED_SHARE
        pack = irregular or (tiles // row_blocks >= 3 and big)
        blocks = -(-depth * lanes * vectors * size // STACK_PANEL) if pack else 1
        if blocks > 1:  # unfinished sums of a block of rows stay on the stack between blocks
            most_rows = STACK_PARTIAL // (lanes * vectors * size)
            row_blocks = max(row_blocks, -(-m // most_rows))
        pack_rows = not is_plain(roles.lhs) and blocks == 1
        step = -(-roles.summed[-1].extent // blocks) if blocks > 1 else 0
        return {"rows": rows, "vectors": vectors, "pack": int(pack), "row_blocks": row_blocks,
                "depth": step, "pack_rows": int(pack_rows),
                "ahead": AHEAD if big and not pack else 0}

    def apply(self, nest: Nest, target: CpuTarget, parameters: Parameters) -> Scheduled:
        """The loops for the given parameters."""
        stage = coalesce(nest.stages[0])
        builder = _Builder(stage, contraction(stage), parameters, _lanes(stage, target),
                           target.cores)
        return Scheduled(builder.build(), ())


def _lanes(stage: Stage, target: CpuTarget) -> int:
    return max(1, target.vector_bytes // stage.accumulators[0].dtype.bytes)


def _outer_points(roles: Contraction) -> int:
    return math.prod(v.extent for v in (*roles.batch, *roles.rows[:-1], *roles.columns[:-1]))


@dataclass(slots=True)
class _Builder:
    """Builds the loops of one matrix product."""

    stage: Stage
    roles: Contraction
    parameters: Parameters
    lanes: int
    cores: int
    packed: Buffer | None = None  # a panel of rhs
    partial: Buffer | None = None  # sums of a block of rows between two blocks of the depth

    def build(self) -> tuple[Stmt, ...]:
        roles, p = self.roles, self.parameters
        m, n = roles.rows[-1], roles.columns[-1]
        width = p["vectors"] * self.lanes
        panels, tail = divmod(n.extent, width)
        tiles = -(-m.extent // p["rows"])
        blocks = min(p["row_blocks"], tiles)
        outer = (*roles.batch, *roles.rows[:-1], *roles.columns[:-1])
        all_panels = panels + (tail > 0)
        depth = math.prod(v.extent for v in roles.summed)
        points = _outer_points(roles)
        tasks = points * all_panels * blocks
        work = points * m.extent * n.extent * depth
        prefix = m.name
        self._reserve(min(width, n.extent), -(-tiles // blocks) * -(-m.extent // tiles))

        def task(t: Expr) -> tuple[Stmt, ...]:
            block, rest = index.floormod(t, blocks), index.floordiv(t, blocks)
            panel = index.floormod(rest, all_panels)
            mapping = decoded(outer, index.floordiv(rest, all_panels))
            body: tuple[Stmt, ...] = ()
            if panels:
                start = index.multiply(bounded(panel, panels), index.constant(width))
                body = self._panel(mapping, start, width, block, tiles, blocks)
            if tail:
                start = index.constant(panels * width)
                last = self._panel(mapping, start, tail, block, tiles, blocks)
                is_whole = index.compare("lt", panel, index.constant(panels))
                body = (If(is_whole, body, last),) if panels else last
            for buffer in (self.packed, self.partial):
                if buffer is not None:
                    body = (Allocate(buffer, body),)
            return body

        return share_products(prefix, tasks, work, self.cores, task)

    def _panel(self, mapping: dict[Var, Expr], start: Expr, width: int, block: Expr, tiles: int,
               blocks: int) -> tuple[Stmt, ...]:
        """All row tiles of one block of rows, over one panel of `width` columns."""
        m, step = self.roles.rows[-1], self.parameters["depth"]
        low, extra = divmod(m.extent, tiles)  # `extra` tiles of low + 1 rows, then tiles of low
        per_block = -(-tiles // blocks)
        first = index.multiply(block, index.constant(per_block))
        count = index.minimum(index.constant(per_block),
                              index.subtract(index.constant(tiles), first))
        overlap = extra > 0 and blocks == 1 and self._may_repeat()

        def of_depth(span: _Span) -> tuple[Stmt, ...]:
            def tile(t: Expr) -> tuple[Stmt, ...]:
                def of_height(height: int, row: Expr) -> tuple[Stmt, ...]:
                    return self._tile(_Tile(mapping, row, start, height, width, span,
                                            index.subtract(row, base)))

                base = index.add(index.multiply(first, index.constant(low)),
                                 index.minimum(first, index.constant(extra)))
                if not extra:
                    return of_height(low, index.multiply(t, index.constant(low)))
                taller = index.multiply(t, index.constant(low + 1))
                if overlap:
                    last = index.constant(m.extent - low - 1)
                    return of_height(low + 1, index.minimum(taller, last))
                tall = of_height(low + 1, taller)
                if low == 0:
                    return tall
                short = of_height(low, index.add(index.multiply(t, index.constant(low)),
                                                 index.constant(extra)))
                return (If(index.compare("lt", t, index.constant(extra)), tall, short),)

            body: tuple[Stmt, ...] = (
                loop(f"{m.name}_tile", count, LoopKind.SERIAL,
                     lambda t: tile(bounded(index.add(first, t), tiles))),)
            if self.packed is not None:
                body = (*self._pack(self.packed, mapping, start, width, span), *body)
            return body

        if self.partial is None:
            return of_depth(_Span(index.constant(0), None, index.constant(0), 1))
        depth = self.roles.summed[-1].extent
        spans = -(-depth // step)

        def one(b: Var) -> tuple[Stmt, ...]:
            begin = index.multiply(b, index.constant(step))
            size = index.minimum(index.constant(step),
                                 index.subtract(index.constant(depth), begin))
            return of_depth(_Span(begin, size, b, spans))

        return (loop(f"{m.name}_span", spans, LoopKind.SERIAL, one),)

    def _may_repeat(self) -> bool:
        """Whether rows may be computed twice, so that the last tile is as tall as the others and
        needs no code of its own: nothing is read that is written here."""
        return self.partial is None and not set(self.stage.inputs) & set(self.stage.outputs)

    def _reserve(self, width: int, rows: int) -> None:
        """The buffers of one task: all its panels are at most `width` columns by `rows` rows."""
        padded = -(-width // self.lanes) * self.lanes
        step, last = self.parameters["depth"], self.roles.summed[-1].extent
        depth = math.prod(v.extent for v in self.roles.summed)
        if step and step < last:
            depth = depth // last * step
            self.partial = Buffer(f"{self.roles.rows[-1].name}_part",
                                  self.stage.accumulators[0].dtype, (rows, padded), "stack")
        if self.parameters["pack"]:
            self.packed = Buffer(f"{self.roles.columns[-1].name}_panel",
                                 self.stage.terms[0].dtype, (depth, padded), "stack")

    def _pack(self, packed: Buffer, mapping: dict[Var, Expr], start: Expr,
              width: int, span: _Span) -> tuple[Stmt, ...]:
        """Copy a panel of rhs; where rhs lies along the depth, in square blocks written out, which
        the printer transposes in registers."""
        n, k = self.roles.columns[-1], self.roles.summed[-1]
        name = n.name

        def row(position: Expr, at: dict[Var, Expr]) -> tuple[Stmt, ...]:
            return self._across(f"{name}_p", width, lambda c: element(position, at, c))

        def element(position: Expr, at: dict[Var, Expr], c: Expr) -> tuple[Stmt, ...]:
            value = substitute(self.roles.rhs, {**mapping, **at, n: index.add(start, c)})
            return (Store(packed, (position, c), value),)

        if len(self.roles.summed) > 1 or not isinstance(self.roles.rhs, Load) \
                or stride(self.roles.rhs, k) != 1:
            return self._over_depth(f"{name}_pk", span, row)

        def at_depth(position: Expr, c: Expr) -> tuple[Stmt, ...]:
            return element(position, {k: index.add(span.begin, position)}, c)

        size = index.constant(k.extent) if span.size is None else span.size
        return in_squares(f"{name}_p", size, k.extent, width, self.lanes, at_depth)

    def _over_depth(self, name: str, span: _Span, body) -> tuple[Stmt, ...]:
        """Loops over the summed axes, of which the last one may be cut into spans;
        `body(position in the span, {axis: index})`."""
        summed = self.roles.summed

        def nest(level: int, position: Expr, at: dict[Var, Expr]) -> tuple[Stmt, ...]:
            if level == len(summed):
                return body(position, at)
            axis = summed[level]
            if level == len(summed) - 1 and span.size is not None:
                step = index.constant(self.parameters["depth"])
                return (loop(f"{name}{level}", span.size, LoopKind.SERIAL, lambda k: body(
                    index.add(index.multiply(position, step), k),
                    {**at, axis: bounded(index.add(span.begin, k), axis.extent)})),)
            return (loop(f"{name}{level}", axis.extent, LoopKind.SERIAL, lambda k: nest(
                level + 1, index.add(index.multiply(position, index.constant(axis.extent)), k),
                {**at, axis: k})),)

        return nest(0, index.constant(0), {})

    def _across(self, name: str, width: int, body,
                kind: LoopKind = LoopKind.UNROLL) -> tuple[Stmt, ...]:
        return across(name, width, self.lanes, body, kind)

    def _tile(self, t: _Tile) -> tuple[Stmt, ...]:
        """One register tile: start or resume the sums, accumulate over the depth, then store."""
        stage, roles = self.stage, self.roles
        m = roles.rows[-1]
        tile = Tile.of(f"{m.name}_acc", stage.accumulators[0].dtype, t.height, t.width, self.lanes)

        def values(r: Expr, c: Expr) -> dict[Var, Expr]:
            return {**t.mapping, m: index.add(t.row, r),
                    roles.columns[-1]: index.add(t.start, c)}

        begin = tile.fill(f"{m.name}_z", lambda r, c: substitute(stage.initial[0], values(r, c)))
        if self.partial is not None:
            resume = tile.fill(f"{m.name}_y", lambda r, c: load(
                self.partial, (index.add(t.local, r), c)))
            begin = (If(index.compare("eq", t.span.number, index.constant(0)), begin, resume),)

        lhs_rows, prepare = self._pack_rows(t)

        def multiply(position: Expr, at: dict[Var, Expr]) -> tuple[Stmt, ...]:
            def left(r: Expr, c: Expr) -> Expr:
                return load(lhs_rows, (position, r)) if lhs_rows is not None \
                    else substitute(roles.lhs, {**values(r, c), **at})

            def right(r: Expr, c: Expr) -> Expr:
                return load(self.packed, (position, c)) if self.packed is not None \
                    else substitute(roles.rhs, {**values(r, c), **at})

            return (*self._fetch(t, {**t.mapping, **at}),
                    *tile.multiply_add(f"{m.name}_k", stage.combiner, left, right))

        finish = self._finish(t, tile, values)
        if self.partial is not None:
            keep = tile.each(f"{m.name}_x", lambda r, c: (
                Store(self.partial, (index.add(t.local, r), c), tile.at(r, c)),))
            last = index.compare("eq", t.span.number, index.constant(t.span.count - 1))
            finish = (If(last, finish, keep),)
        body = (*begin, *self._over_depth(f"{m.name}_k", t.span, multiply), *finish)
        result: tuple[Stmt, ...] = (Allocate(tile.buffer, body),)
        if lhs_rows is not None:
            result = (Allocate(lhs_rows, (*prepare, *result)),)
        return result

    def _fetch(self, t: _Tile, at: dict[Var, Expr]) -> tuple[Stmt, ...]:
        """Ask for what the tile reads of rhs some steps later."""
        rhs, n, ahead = self.roles.rhs, self.roles.columns[-1], self.parameters["ahead"]
        if not ahead or self.packed is not None or not is_direct(rhs, n):
            return ()
        apart = stride(rhs, self.roles.summed[-1])

        def row(c: Expr) -> tuple[Stmt, ...]:
            where = {**at, n: index.add(t.start, c)}
            return (Prefetch(rhs.source, tuple(substitute(i, where) for i in rhs.indices),
                             ahead * apart),)

        return self._across(f"{self.roles.rows[-1].name}_f", t.width, row) if apart else ()

    def _pack_rows(self, t: _Tile) -> tuple[Buffer | None, tuple[Stmt, ...]]:
        if not self.parameters["pack_rows"] or t.span.size is not None:
            return None, ()
        m = self.roles.rows[-1]
        depth = math.prod(v.extent for v in self.roles.summed)
        buffer = Buffer(f"{m.name}_rows{t.height}", self.stage.terms[0].dtype,
                        (depth, t.height), "stack")

        def one(position: Expr, at: dict[Var, Expr]) -> tuple[Stmt, ...]:
            def element(r: Var) -> tuple[Stmt, ...]:
                where = {**t.mapping, **at, m: index.add(t.row, r)}
                return (Store(buffer, (position, r), substitute(self.roles.lhs, where)),)

            return (loop(f"{m.name}_pr", t.height, LoopKind.UNROLL, element),)

        return buffer, self._over_depth(f"{m.name}_pm", t.span, one)

    def _finish(self, t: _Tile, tile: Tile, values) -> tuple[Stmt, ...]:
        """Store the results: straight from the registers, or in a loop if the epilogue is long."""
        stage, name = self.stage, self.roles.rows[-1].name
        accumulator = stage.accumulators[0]

        def store(source: Buffer):
            def one(r: Expr, c: Expr) -> tuple[Stmt, ...]:
                where = {**values(r, c), accumulator: load(source, (r, c))}
                return tuple(Store(a.buffer, tuple(substitute(i, where) for i in a.indices),
                                   substitute(a.value, where)) for a in stage.assigns)
            return one

        if epilogue_cost(stage) <= EPILOGUE_INLINE:
            return tile.each(f"{name}_s", store(tile.buffer))
        spilled = replace(tile.buffer, name=f"{tile.buffer.name}_out", scope="stack")
        spill = tile.each(f"{name}_o", lambda r, c: (Store(spilled, (r, c), tile.at(r, c)),))
        one = store(spilled)
        work = sum(cost(a.value) for a in stage.assigns)
        kind = LoopKind.UNROLL if work <= EPILOGUE_ABREAST else LoopKind.SERIAL
        body = loop(f"{name}_ei", t.height, LoopKind.SERIAL, lambda r: self._across(
            f"{name}_e", t.width, lambda c: one(r, c), kind))
        return (Allocate(spilled, (*spill, body)),)


@dataclass(frozen=True, slots=True)
class _Span:
    """A block of the innermost summed axis: [begin, begin + size), or all of it without a size."""

    begin: Expr
    size: Expr | None
    number: Expr
    count: int


@dataclass(frozen=True, slots=True)
class _Tile:
    """A register tile: `height` rows from `row`, `width` columns from `start`.

    `local` is its first row's place among the partial sums.
    """

    mapping: dict[Var, Expr]
    row: Expr
    start: Expr
    height: int
    width: int
    span: _Span
    local: Expr
