"""The loops of a product of matrices in register tiles; contraction.py chooses their parameters."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from hlo_mlc.expr import index
from hlo_mlc.expr.build import load, substitute
from hlo_mlc.expr.core import Buffer, Expr, Load, Var, loads
from hlo_mlc.loops.core import Accumulate, Allocate, If, LoopKind, Prefetch, Stmt, Store
from hlo_mlc.loops.rewrite import loop
from hlo_mlc.target.cpu import CACHE_LINE_BYTES
from hlo_mlc.templates.base import Parameters, across, bounded, decoded, epilogue_cost, may_repeat
from hlo_mlc.templates.product import (
    Body,
    Element,
    RowTiles,
    Tile,
    in_squares,
    in_turns,
    is_direct,
    is_plain,
    reads_vectors_along,
    share_products,
    strips,
)
from hlo_mlc.tensor.classify import Contraction, contraction, cost, stride
from hlo_mlc.tensor.core import Stage

# Epilogues costlier than this run as a loop over a tile in L1 instead of being written out for
# every register of the tile: code size, for the same speed.
EPILOGUE_INLINE = 4
# Up to this cost the vectors of a row are written out side by side: one alone waits for its own
# results (gelu behind 128 x 768 x 3072: 1.5 times as long in all).
EPILOGUE_ABREAST = 80

# Vectors that printers put into memory in turns (codegen/cpu/strides.py); instructions to store an
# element of a vector alone.
SHUFFLED = 4
STORED_ALONE = 2

Step = Callable[[Expr, dict[Var, Expr]], Body]  # of a place in the span, and the summed axes


def outer_points(roles: Contraction) -> int:
    """How many products of rows by columns there are."""
    return math.prod(v.extent for v in roles.outer)


def register_roles(stage: Stage, lanes: int) -> Contraction:
    """The roles of a product's axes: columns are what goes into vectors.

    As a rule that is the axis along which results lie side by side.  Where they are few, vectors
    along the rows take fewer instructions if the left factor lies along these, though results are
    shuffled then, or stored one by one: a million points times 3 x 3, from three rows of a million,
    took 0.6 of the time.
    """
    roles = contraction(stage)
    rows, columns = roles.rows[-1], roles.columns[-1]
    if not columns.extent < lanes <= rows.extent or not reads_vectors_along(roles.lhs, rows):
        return roles
    depth = math.prod(v.extent for v in roles.summed)
    in_turns = columns.extent <= SHUFFLED and all(
        stride(a, rows) == columns.extent for a in stage.assigns)
    stored = columns.extent * (columns.extent if in_turns else STORED_ALONE * lanes)
    if columns.extent * depth + stored >= lanes * (depth + 1):
        return roles
    return replace(roles, rows=roles.columns, columns=roles.rows, lhs=roles.rhs, rhs=roles.lhs)


@dataclass(frozen=True, slots=True)
class _Span:
    """A block of the innermost summed axis: [begin, begin + size)."""

    begin: Expr
    size: Expr
    number: Expr
    count: int


@dataclass(frozen=True, slots=True)
class _Tile:
    """A register tile: `height` rows from `row`, `width` columns from `start`; the numbered one of
    its block, and of all rows."""

    mapping: dict[Var, Expr]
    row: Expr
    start: Expr
    height: int
    width: int
    span: _Span
    number: Expr
    number_of_all: Expr


@dataclass(frozen=True, slots=True)
class ContractionLoops:
    """Builds the loops of one matrix product.

    `packed`: a panel of rhs; `partial`: sums of a block of rows between two blocks of the depth;
    `computed`: rows of lhs.
    """

    stage: Stage
    roles: Contraction
    parameters: Parameters
    lanes: int
    cores: int
    rows: RowTiles
    packed: Buffer | None
    partial: Buffer | None
    computed: Buffer | None

    @staticmethod
    def of(stage: Stage, parameters: Parameters, lanes: int, cores: int) -> ContractionLoops:
        """The builder for given parameters."""
        roles = register_roles(stage, lanes)
        m, n, last = roles.rows[-1], roles.columns[-1], roles.summed[-1]
        rows = RowTiles.of(m.extent, parameters["rows"], parameters["row_blocks"],
                           may_repeat(stage))
        padded = -(-min(parameters["vectors"] * lanes, n.extent) // lanes) * lanes
        step = _step(roles, parameters)
        depth = math.prod(v.extent for v in roles.summed[:-1]) * step
        packed = partial = computed = None
        if step < last.extent:
            partial = Buffer(f"{m.name}_part", stage.accumulators[0].dtype,
                             (rows.tiles * rows.height, padded), "stack")
        if parameters["pack"]:
            packed = Buffer(f"{n.name}_panel", stage.terms[0].dtype, (depth, padded), "stack")
        if parameters["pack_rows"]:  # rows 4 KiB apart would share their places in L1
            computed = Buffer(f"{m.name}_rows", stage.terms[0].dtype, (rows.height, depth + lanes),
                              "stack")
        return ContractionLoops(stage, roles, parameters, lanes, cores, rows, packed, partial,
                                computed)

    def build(self) -> Body:
        """The loops."""
        m, n = self.roles.rows[-1], self.roles.columns[-1]
        panels, tail = divmod(n.extent, self._width)
        all_panels, blocks = panels + (tail > 0), self.rows.blocks
        depth = math.prod(v.extent for v in self.roles.summed)
        points = outer_points(self.roles)
        tasks = points * all_panels * blocks
        work = points * m.extent * n.extent * depth

        def task(t: Expr) -> Body:
            block, rest = index.floormod(t, blocks), index.floordiv(t, blocks)
            panel = index.floormod(rest, all_panels)
            mapping = decoded(self.roles.outer, index.floordiv(rest, all_panels))
            body: Body = ()
            if panels:
                start = index.multiply(bounded(panel, panels), index.constant(self._width))
                body = self._panel(mapping, start, self._width, block)
            if tail:
                start = index.constant(panels * self._width)
                last = self._panel(mapping, start, tail, block)
                is_whole = index.compare("lt", panel, index.constant(panels))
                body = (If(is_whole, body, last),) if panels else last
            for buffer in (self.packed, self.partial, self.computed):
                if buffer is not None:
                    body = (Allocate(buffer, body),)
            return body

        return share_products(m.name, tasks, work, self.cores, task)

    @property
    def _width(self) -> int:
        return self.parameters["vectors"] * self.lanes

    @property
    def _step(self) -> int:
        return _step(self.roles, self.parameters)

    def _panel(self, mapping: dict[Var, Expr], start: Expr, width: int, block: Expr) -> Body:
        """All row tiles of one block of rows, over one panel of `width` columns."""
        m, rows = self.roles.rows[-1], self.rows

        def of_depth(span: _Span) -> Body:
            def tile(t: Var) -> Body:
                number = index.add(index.multiply(block, index.constant(rows.tiles)), t)
                return rows.tile(block, t, lambda height, row: self._tile(
                    _Tile(mapping, row, start, height, width, span, t, number)))

            body = (loop(f"{m.name}_tile", rows.tiles, LoopKind.SERIAL, tile),)
            if self.packed is not None and not self._packs_beside(width):
                body = (*self._pack(self.packed, mapping, start, width, span), *body)
            return body

        depth, step = self.roles.summed[-1].extent, self._step
        spans = -(-depth // step)

        def one(b: Expr) -> Body:
            begin = index.multiply(b, index.constant(step))
            size = index.minimum(index.constant(step),
                                 index.subtract(index.constant(depth), begin))
            return of_depth(_Span(begin, size, b, spans))

        if spans == 1:
            return one(index.constant(0))
        return (loop(f"{m.name}_span", spans, LoopKind.SERIAL, one),)

    def _packs_beside(self, width: int) -> bool:
        """Whether the first tile of a panel reads rhs itself and packs beside its multiplications,
        which take as long as the panel takes to come; the last, narrow one is not worth the code.
        """
        return self.packed is not None and self.rows.tiles > 1 and width == self._width \
            and reads_vectors_along(self.roles.rhs, self.roles.columns[-1])

    def _pack(self, packed: Buffer, mapping: dict[Var, Expr], start: Expr, width: int,
              span: _Span) -> Body:
        """Copy a panel of rhs; where rhs lies along the depth, in square blocks written out, which
        the printer transposes in registers."""
        n, k = self.roles.columns[-1], self.roles.summed[-1]
        name = n.name

        def row(position: Expr, at: dict[Var, Expr]) -> Body:
            return across(f"{name}_p", width, self.lanes, lambda c: element(position, at, c))

        def element(position: Expr, at: dict[Var, Expr], c: Expr) -> Body:
            value = substitute(self.roles.rhs, {**mapping, **at, n: index.add(start, c)})
            return (Store(packed, (position, c), value),)

        if len(self.roles.summed) > 1 or not isinstance(self.roles.rhs, Load) \
                or stride(self.roles.rhs, k) != 1:
            return self._over_depth(f"{name}_pk", span, row)

        def at_depth(position: Expr, c: Expr) -> Body:
            return element(position, {k: index.add(span.begin, position)}, c)

        return in_squares(f"{name}_p", span.size, k.extent, width, self.lanes, at_depth)

    def _over_depth(self, name: str, span: _Span, body: Step) -> Body:
        """Loops over the summed axes, of which the last one may be cut into spans."""
        summed = self.roles.summed

        def nest(level: int, position: Expr, at: dict[Var, Expr]) -> Body:
            if level == len(summed):
                return body(position, at)
            axis = summed[level]
            if level == len(summed) - 1:
                step = index.constant(self._step)
                return (loop(f"{name}{level}", span.size, LoopKind.SERIAL, lambda k: body(
                    index.add(index.multiply(position, step), k),
                    {**at, **self._at_depth(span, k)})),)
            return (loop(f"{name}{level}", axis.extent, LoopKind.SERIAL, lambda k: nest(
                level + 1, index.add(index.multiply(position, index.constant(axis.extent)), k),
                {**at, axis: k})),)

        return nest(0, index.constant(0), {})

    def _at_depth(self, span: _Span, k: Expr) -> dict[Var, Expr]:
        axis = self.roles.summed[-1]
        return {axis: bounded(index.add(span.begin, k), axis.extent)}

    def _tile(self, t: _Tile) -> Body:
        """One register tile: accumulate over the depth, add what was unfinished, then store."""
        stage, m = self.stage, self.roles.rows[-1]
        tile = Tile.of(f"{m.name}_acc", stage.accumulators[0].dtype, t.height, t.width, self.lanes)

        def values(r: Expr, c: Expr) -> dict[Var, Expr]:
            return {**t.mapping, m: index.add(t.row, r),
                    self.roles.columns[-1]: index.add(t.start, c)}

        def unfinished(r: Expr, c: Expr) -> tuple[Expr, Expr]:
            before = index.multiply(t.number, index.constant(self.rows.height))
            return (index.add(before, r), c)

        begin = tile.fill(f"{m.name}_z", lambda r, c: substitute(stage.initial[0], values(r, c)))
        if self.partial is not None:
            (neutral,) = stage.combiner.identity
            begin = (If(index.compare("eq", t.span.number, index.constant(0)), begin,
                        tile.fill(f"{m.name}_y", lambda r, c: neutral)),)
        finish = self._finish(t, tile, values)
        if self.partial is not None:
            resumed = tile.each(f"{m.name}_w", lambda r, c: (
                Accumulate((tile.buffer,), (r, c), stage.combiner,
                           (load(self.partial, unfinished(r, c)),)),))
            keep = tile.each(f"{m.name}_x", lambda r, c: (
                Store(self.partial, unfinished(r, c), tile.at(r, c)),))
            last = index.compare("eq", t.span.number, index.constant(t.span.count - 1))
            finish = (If(index.compare("gt", t.span.number, index.constant(0)), resumed),
                      If(last, finish, keep))
        body = (*begin, *self._multiply(t, tile, values), *finish)
        return (*self._compute_rows(t), Allocate(tile.buffer, body))

    def _multiply(self, t: _Tile, tile: Tile, values) -> Body:
        """Accumulate over the depth."""
        roles, m = self.roles, self.roles.rows[-1]

        def step(position: Expr, at: dict[Var, Expr], right: Element) -> Body:
            def left(r: Expr, c: Expr) -> Expr:
                return load(self.computed, (r, position)) if self.computed is not None \
                    else substitute(roles.lhs, {**values(r, c), **at})

            return tile.multiply_add(f"{m.name}_k", self.stage.combiner, left, right)

        def in_place(position: Expr, at: dict[Var, Expr]) -> Body:
            def right(r: Expr, c: Expr) -> Expr:
                return substitute(roles.rhs, {**values(r, c), **at})

            keep: Body = ()
            if self.packed is not None:
                keep = across(f"{m.name}_h", t.width, self.lanes, lambda c: (
                    Store(self.packed, (position, c), right(index.constant(0), c)),))
            return (*self._ask_rows(t, at), *keep, *step(position, at, right))

        def from_panel(position: Expr, at: dict[Var, Expr]) -> Body:
            return step(position, at, lambda r, c: load(self.packed, (position, c)))

        def fold(one: Step) -> Body:
            asked = self._asked(t)
            if asked is None:
                return self._over_depth(f"{m.name}_k", t.span, one)
            return in_turns(f"{m.name}_k", t.span.size, self.parameters["next_panel"],
                            lambda k: self._ask_panel(t, asked, k),
                            lambda k: one(k, self._at_depth(t.span, k)))

        if self.packed is None:
            return fold(in_place)
        if not self._packs_beside(t.width):
            return fold(from_panel)
        is_first = index.compare("eq", t.number, index.constant(0))
        return (If(is_first, fold(in_place), fold(from_panel)),)

    def _ask_rows(self, t: _Tile, at: dict[Var, Expr]) -> Body:
        """Ask for what the tile reads of rhs some steps later."""
        rhs, n, ahead = self.roles.rhs, self.roles.columns[-1], self.parameters["ahead"]
        if not ahead or not is_direct(rhs, n):
            return ()
        apart = stride(rhs, self.roles.summed[-1])
        where = {**t.mapping, **at}

        def row(c: Expr) -> Body:
            return (_ask(rhs, {**where, n: index.add(t.start, c)}, ahead * apart),)

        return across(f"{n.name}_f", t.width, self.lanes, row) if apart else ()

    def _asked(self, t: _Tile) -> Load | None:
        """The matrix in rhs of whose next panel a tile asks for its share: one with elements side
        by side along the columns or the only depth."""
        if not self.parameters["next_panel"] or len(self.roles.summed) > 1 or t.width < self._width:
            return None
        for x in filter(is_plain, loads(self.roles.rhs)):
            strides = [stride(x, v) for v in (self.roles.columns[-1], self.roles.summed[-1])]
            if all(strides) and 1 in strides:
                return x
        return None

    def _ask_panel(self, t: _Tile, read: Load, position: Expr) -> Body:
        """Ask for a line of the panel that is read after this one, so that neither multiplications
        nor lines wait: by how far the tile is among all of them."""
        n, k, span = self.roles.columns[-1], self.roles.summed[-1], t.span
        line = CACHE_LINE_BYTES // read.source.dtype.bytes
        by_rows = stride(read, n) == 1
        size, wide = self._step, -(-self._width // line)
        run = wide if by_rows else -(-size // line)
        step = index.add(index.multiply(t.number_of_all, index.constant(size)), position)
        number = index.floordiv(index.multiply(step, index.constant(wide)),
                                self.rows.tiles * self.rows.blocks)
        across_runs = index.floordiv(number, run)
        within = index.multiply(index.floormod(number, run), index.constant(line))
        after = index.add(span.number, index.constant(1))  # in the same columns, as a rule
        begin = index.multiply(index.floormod(after, span.count), index.constant(size))
        start = index.add(t.start, index.multiply(index.floordiv(after, span.count),
                                                  index.constant(self._width)))

        def ask(lane: Expr) -> Body:
            row, column = across_runs, index.add(within, lane)
            if not by_rows:
                row, column = column, row
            return (_ask(read, {**t.mapping, k: index.add(begin, row),
                                n: index.add(start, column)}, 0),)

        return across(f"{n.name}_f", line, self.lanes, ask)

    def _compute_rows(self, t: _Tile) -> Body:
        """What has to be computed of lhs before multiplying; by vectors where it lies along the
        depth."""
        lhs, m, k, span = self.roles.lhs, self.roles.rows[-1], self.roles.summed[-1], t.span
        if self.computed is None:
            return ()

        def element(r: Expr, position: Expr, at: dict[Var, Expr]) -> Body:
            where = {**t.mapping, **at, m: index.add(t.row, r)}
            return (Store(self.computed, (r, position), substitute(lhs, where)),)

        def row(r: Var) -> Body:
            if len(self.roles.summed) > 1 or not reads_vectors_along(lhs, k):
                return self._over_depth(f"{m.name}_pm", span, lambda p, at: element(r, p, at))
            return strips(f"{m.name}_pv", span.size, k.extent, self.lanes, lambda start, count: (
                loop(f"{m.name}_pl", count, LoopKind.VECTORIZE, lambda lane: element(
                    r, index.add(start, lane),
                    {k: index.add(span.begin, index.add(start, lane))})),))

        return (loop(f"{m.name}_pr", t.height, LoopKind.SERIAL, row),)

    def _finish(self, t: _Tile, tile: Tile, values) -> Body:
        """Store the results: straight from the registers, or in a loop if the epilogue is long."""
        stage, name = self.stage, self.roles.rows[-1].name
        accumulator = stage.accumulators[0]

        def store(source: Buffer) -> Callable[[Expr, Expr], Body]:
            def one(r: Expr, c: Expr) -> Body:
                where = {**values(r, c), accumulator: load(source, (r, c))}
                return tuple(Store(a.buffer, tuple(substitute(i, where) for i in a.indices),
                                   substitute(a.value, where)) for a in stage.assigns)
            return one

        if epilogue_cost(stage) <= EPILOGUE_INLINE:
            return tile.each(f"{name}_s", store(tile.buffer), by_rows=all(
                stride(a, self.roles.columns[-1]) == 1 for a in stage.assigns))
        spilled = replace(tile.buffer, name=f"{tile.buffer.name}_out", scope="stack")
        spill = tile.each(f"{name}_o", lambda r, c: (Store(spilled, (r, c), tile.at(r, c)),))
        one = store(spilled)
        work = sum(cost(a.value) for a in stage.assigns)
        kind = LoopKind.UNROLL if work <= EPILOGUE_ABREAST else LoopKind.SERIAL
        body = loop(f"{name}_ei", t.height, LoopKind.SERIAL, lambda r: across(
            f"{name}_e", t.width, self.lanes, lambda c: one(r, c), kind))
        return (Allocate(spilled, (*spill, body)),)


def _step(roles: Contraction, parameters: Parameters) -> int:
    """How much of the innermost summed axis a span takes."""
    extent = roles.summed[-1].extent
    return min(parameters["depth"] or extent, extent)


def _ask(read: Load, where: dict[Var, Expr], ahead: int) -> Stmt:
    return Prefetch(read.source, tuple(substitute(i, where) for i in read.indices), ahead)
