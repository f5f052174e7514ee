"""One block of rows of a chain of two products, from its queries to its results."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from hlo_mlc.expr import index
from hlo_mlc.expr.build import FALSE, TRUE, const, substitute, transform
from hlo_mlc.expr.core import Buffer, Expr, Load, Var, loads
from hlo_mlc.expr.dtypes import INDEX
from hlo_mlc.loops.core import Accumulate, If, LoopKind, Stmt
from hlo_mlc.loops.lower import stores_at
from hlo_mlc.loops.rewrite import Steps, allocated, flat, serial
from hlo_mlc.target.cpu import CpuTarget
from hlo_mlc.templates.attention.packing import Chunk, Frame, Packing
from hlo_mlc.templates.attention.passes import Pass, RowPasses, Stored
from hlo_mlc.templates.attention.tiles import Tile, covering_strips, in_squares, over, strips
from hlo_mlc.templates.attention.workspace import Workspace
from hlo_mlc.templates.base import may_repeat
from hlo_mlc.templates.by_hand import across, bounded, in_parts, read, store
from hlo_mlc.templates.register_tile import register_tile
from hlo_mlc.tensor.chain import Chain, masks
from hlo_mlc.tensor.classify import cost, stride
from hlo_mlc.tensor.core import Stage
from hlo_mlc.tensor.guards import everywhere

# Simple operations at one key up to which four vectors of rows, or two, are computed side by side:
# beyond, those of one keep the units busy.
FOUR_ABREAST, TWO_ABREAST = 8, 40

Body = tuple[Stmt, ...]


class RowBlock:
    """`height` rows from `start`, at the point `at` of the outer axes, in chunks of `keys`."""

    def __init__(
        self,
        chain: Chain,
        plan: RowPasses,
        space: Workspace,
        target: CpuTarget,
        lanes: int,
        keys: int,
        at: Mapping[Var, Expr],
        start: Expr,
        height: int,
    ) -> None:
        self.chain, self.plan, self.target, self.lanes = chain, plan, target, lanes
        self.keys, self.height, self.name = keys, height, chain.row.name
        self.queries, self.weights, self.sums = space.queries, space.weights, space.sums
        self.packed_keys, self.packed_values = space.keys, space.values
        self.frame = Frame(chain, plan.places, at, start)
        self.packing = Packing(self.frame, space, lanes, height)

    def build(self) -> Body:
        """Everything for this block."""
        return self.begin() + self.compute() + self.finish()

    def begin(self) -> Body:
        """The queries, packed."""
        return self.packing.queries()

    def compute(self) -> Body:
        """From packed queries to the sums of all keys."""
        plan, chain = self.plan, self.chain
        body = self._store_rows("before", plan.before, {})
        body += self._each_sum(
            "z",
            lambda r, c: store(self.sums, self.frame.at(chain.last.initial[0], r, column=c), r, c),
        )
        for number, step in enumerate(plan.passes):
            body += self._pass(number, step)
        return body

    # Passes over the keys

    def _pass(self, number: int, step: Pass) -> Body:
        """One pass over all keys, chunk by chunk, and then the values of the rows."""
        plan = self.plan
        totals = {
            v: Buffer(f"{v.name}_total", v.dtype, (plan.places.here.extent,), "stack")
            for fold in step.folds
            for v in fold.accumulators
        }
        begin = self._store_rows(
            f"{number}t",
            [
                (Load(totals[v], (plan.places.here,), None, None), e)
                for fold in step.folds
                for v, e in zip(fold.accumulators, fold.initial, strict=True)
            ],
            {},
        )
        extent = self.chain.key.extent
        chunks = -(-extent // self.keys)

        def run(b: Expr) -> Body:
            first = b * self.keys
            size: Expr = index.constant(self.keys)
            if extent % self.keys:
                size = index.minimum(size, extent - first)
            chunk = Chunk(first, size, self.keys, extent)
            body: Body = ()
            if number == 0:
                body += self.packing.keys(chunk) + self._scores(chunk)
            final = number == plan.final
            body += self._at_keys(f"{self.name}_{number}", step, totals, chunk, final)
            if final:
                body += self.packing.values(chunk) + self._mix(chunk)
            return body

        every = (serial(f"{self.name}_chunk{number}", chunks, run),)
        body = begin + every + self._store_rows(f"{number}e", step.rows, totals)
        return allocated(reversed((*totals.values(),)), body)

    def _store_rows(
        self, name: str, stored: Iterable[Stored], totals: Mapping[Var, Buffer]
    ) -> Body:
        """Values of the rows, one after the other."""

        def one(place: Load, value: Expr, r: Expr) -> Stmt:
            folded = {v: read(b, r) for v, b in totals.items()}
            new = substitute(self.frame.at(value, r), folded)
            return store(place.source, new, *self.frame.place(place, r))

        return flat(
            [
                across(
                    f"{self.name}_{name}{number}",
                    self.height,
                    self.lanes,
                    functools.partial(one, place, value),
                )
                for number, (place, value) in enumerate(stored)
            ]
        )

    def _scores(self, chunk: Chunk) -> Body:
        """The first product of one chunk, in tiles of keys by rows."""
        chain, plan, first = self.chain, self.plan, self.chain.first
        (accumulator,) = first.accumulators
        tall, vectors = register_tile(chunk.most, self.height, self.lanes, self.target)
        tall = _even(tall, chunk.most)
        name = f"{self.name}_s"

        def tile(near: Expr, keys: int, start: Expr, rows: int) -> Body:
            sums = Tile.of(f"{name}_", accumulator.dtype, keys, rows, self.lanes)
            first_key = bounded(chunk.first + near, chunk.extent - keys + 1)

            def at(e: Expr, k: Expr, r: Expr) -> Expr:
                return self.frame.at(e, start + r, key=first_key + k, near=near + k)

            def step(d: Expr, depth: Mapping[Var, Expr]) -> Body:
                def key(k: Expr, r: Expr) -> Expr:
                    if self.packed_keys is not None:
                        return read(self.packed_keys, near + k, d)
                    return substitute(at(chain.keys, k, r), depth)

                return sums.multiply_add(
                    f"{name}k", first.combiner, key, lambda k, r: read(self.queries, d, start + r)
                )

            def put(score: Expr, k: Expr, r: Expr) -> Stmt:
                place = (at(i, k, r) for i in plan.scores.indices)
                return store(plan.scores.source, at(score, k, r), *place)

            def scored(k: Expr, r: Expr) -> Stmt:
                return put(substitute(plan.score, {accumulator: sums.at(k, r)}), k, r)

            body = allocated(
                (sums.buffer,),
                (
                    sums.fill(f"{name}z", lambda k, r: at(first.initial[0], k, r)),
                    over(f"{name}d", first.reduce_axes, step),
                    sums.each(f"{name}o", scored),
                ),
            )
            hidden = self._hidden(chunk.first + near, keys, start, rows)
            if hidden is FALSE:
                return body
            # A score that the mask replaces has nothing to do with its product.
            masked = substitute(plan.score, {accumulator: const(0, accumulator.dtype)})
            return (If(hidden, sums.each(f"{name}h", functools.partial(put, masked)), body),)

        def column(start: Expr, rows: int) -> Body:
            def of_keys(near: Expr, keys: int) -> Body:
                return tile(near, keys, start, rows)

            if may_repeat(first) and index.bounds(chunk.size)[0] >= tall:
                return covering_strips(f"{name}t", chunk.size, tall, of_keys)
            return strips(f"{name}t", chunk.size, chunk.most, tall, of_keys)

        return in_parts(f"{name}p", self.height, vectors * self.lanes, column)

    def _hidden(self, key: Expr, keys: int, row: Expr, rows: int) -> Expr:
        """A condition under which masks replace all scores of a tile."""
        chain, (accumulator,) = self.chain, self.chain.first.accumulators
        k, r = Var(f"{self.name}_k", INDEX, keys), Var(f"{self.name}_r", INDEX, rows)
        place = {chain.key: key + k, **self.frame.outer, chain.row: self.frame.start + row + r}
        result: Expr = TRUE
        for assign in chain.first.assigns:
            nowhere: Expr = FALSE
            for condition in masks(assign.value, accumulator):
                one = everywhere((substitute(condition, place),), {k, r})
                nowhere = nowhere if one is None else nowhere | one
            result = result & nowhere
        return result

    def _at_keys(
        self, name: str, step: Pass, totals: Mapping[Var, Buffer], chunk: Chunk, final: bool
    ) -> Body:
        """Folds, weights and what is kept, at the keys of one chunk: vectors along the rows."""
        places, kept = self.plan.places, list(step.kept)
        if final:
            kept.insert(
                0, (Load(self.weights, (places.near, places.here), None, None), self.plan.weights)
            )
        if not kept and not step.folds:
            return ()
        values = [*(value for _, value in kept), *(t for f in step.folds for t in f.terms)]
        needed = {read for e in values for read in loads(e) if read in self.packing.nearby}
        work = cost(*values)
        stored = [(place, transform(value, self.packing.nearby.get)) for place, value in kept]
        folds = [
            replace(f, terms=tuple(transform(t, self.packing.nearby.get) for t in f.terms))
            for f in step.folds
        ]
        abreast = 4 if work <= FOUR_ABREAST else 2 if work <= TWO_ABREAST else 1
        some = functools.partial(self._some_at_keys, name, folds, stored, totals, chunk)
        across_rows = in_parts(f"{name}p", self.height, abreast * self.lanes, some)
        return self.packing.crossing(name, needed, chunk) + across_rows

    def _some_at_keys(
        self,
        name: str,
        folds: Sequence[Stage],
        stored: Sequence[tuple[Load, Expr]],
        totals: Mapping[Var, Buffer],
        chunk: Chunk,
        start: Expr,
        rows: int,
    ) -> Body:
        """The same for some of the rows, side by side: each fold begins anew in a chunk, if it can,
        and joins the totals behind it."""
        padded = -(-rows // self.lanes) * self.lanes
        apart = [f for f in folds if f.combiner.identity is not None]
        partial = {
            v: Buffer(f"{v.name}_part", v.dtype, (padded,), "register")
            for f in apart
            for v in f.accumulators
        }

        def fold(stage: Stage, where: Mapping[str, Expr], r: Expr) -> Stmt:
            terms = tuple(self.frame.at(t, start + r, **where) for t in stage.terms)
            into = tuple(partial.get(v, totals[v]) for v in stage.accumulators)
            place = r if stage in apart else start + r
            return Accumulate(into, (place,), stage.combiner, terms)

        def at(near: Expr, r: Expr) -> Steps:
            where = {"key": chunk.key(near), "near": near}
            row = start + r
            return [
                [fold(f, where, r) for f in folds],
                [
                    store(
                        place.source,
                        self.frame.at(value, row, **where),
                        *self.frame.place(place, row, **where),
                    )
                    for place, value in stored
                ],
            ]

        def begin(r: Expr) -> Steps:
            return [
                store(partial[v], e, r)
                for f in apart
                for v, e in zip(f.accumulators, f.combiner.identity, strict=True)
            ]

        def end(r: Expr) -> Steps:
            return [
                Accumulate(
                    tuple(totals[v] for v in f.accumulators),
                    (start + r,),
                    f.combiner,
                    tuple(read(partial[v], r) for v in f.accumulators),
                )
                for f in apart
            ]

        def rows_at(near: Expr) -> Body:
            return across(f"{name}r", rows, self.lanes, lambda r: at(near, r))

        return allocated(
            reversed((*partial.values(),)),
            (
                across(f"{name}z", rows, self.lanes, begin) if partial else (),
                serial(f"{name}n", chunk.size, rows_at),
                across(f"{name}e", rows, self.lanes, end) if partial else (),
            ),
        )

    def _mix(self, chunk: Chunk) -> Body:
        """The second product of one chunk, added to the sums, in tiles of rows by columns."""
        chain, last = self.chain, self.chain.last
        tall, vectors = register_tile(self.height, chain.column.extent, self.lanes, self.target)
        tall = _even(tall, self.height)
        name = f"{self.name}_m"
        (neutral,) = last.combiner.identity

        def tile(row: Expr, rows: int, start: Expr, columns: int) -> Body:
            sums = Tile.of(f"{name}_", self.sums.dtype, rows, columns, self.lanes)

            def step(near: Expr) -> Body:
                key = chunk.key(near)

                def value(r: Expr, c: Expr) -> Expr:
                    if self.packed_values is not None:
                        return read(self.packed_values, near, start + c)
                    where = {**self.frame.outer, chain.key: key, chain.column: start + c}
                    return substitute(chain.values, where)

                return sums.multiply_add(
                    f"{name}k", last.combiner, lambda r, c: read(self.weights, near, row + r), value
                )

            def put(r: Expr, c: Expr) -> Stmt:
                place = (row + r, start + c)
                return Accumulate((self.sums,), place, last.combiner, (sums.at(r, c),))

            return allocated(
                (sums.buffer,),
                (
                    sums.fill(f"{name}z", lambda r, c: neutral),
                    serial(f"{name}n", chunk.size, step),
                    sums.each(f"{name}o", put),
                ),
            )

        return in_parts(
            f"{name}p",
            chain.column.extent,
            vectors * self.lanes,
            lambda start, columns: strips(
                f"{name}t",
                index.constant(self.height),
                self.height,
                tall,
                lambda row, rows: tile(row, rows, start, columns),
            ),
        )

    # Results

    def _each_sum(self, name: str, body: Callable[[Expr, Expr], Steps]) -> Body:
        return (
            serial(
                f"{self.name}_{name}i",
                self.height,
                lambda r: across(
                    f"{self.name}_{name}",
                    self.chain.column.extent,
                    self.lanes,
                    lambda c: body(r, c),
                    LoopKind.SERIAL,
                ),
            ),
        )

    def finish(self) -> Body:
        """The epilogue; transposed in registers where the results of the rows lie side by side."""
        chain, assigns = self.chain, self.plan.epilogue.assigns

        def put(r: Expr, c: Expr) -> Body:
            (total,) = chain.last.accumulators
            point = {**self.frame.point(r, column=c), total: read(self.sums, r, c)}
            return stores_at(assigns, point)

        if all(stride(a, chain.row) == 1 for a in assigns):
            extent = chain.column.extent
            return in_squares(
                f"{self.name}_o",
                index.constant(extent),
                extent,
                self.height,
                self.lanes,
                lambda c, r: put(r, c),
            )
        return self._each_sum("o", put)


def _even(tall: int, extent: int) -> int:
    """A height that divides `extent`, if there is one near `tall`: tiles of one height share their
    code, and four rows keep the multiply-adds as busy as six."""
    return next((n for n in range(tall, tall // 2, -1) if extent % n == 0), tall)


def either_block(condition: Expr, one: RowBlock, other: RowBlock, every: RowBlock | None) -> Body:
    """One block where a condition holds, else the other; `every` computes for both what is between
    their queries and their results."""
    if every is None:
        return (If(condition, one.build(), other.build()),)
    return (
        If(condition, one.begin(), other.begin()),
        *every.compute(),
        If(condition, one.finish(), other.finish()),
    )
