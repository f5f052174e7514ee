"""One block of rows of a chain of two products, from its queries to its results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, replace

from hlo_mlc.expr import index
from hlo_mlc.expr.build import FALSE, TRUE, apply, const, load, substitute, transform
from hlo_mlc.expr.core import Buffer, Expr, Load, Var, loads
from hlo_mlc.expr.dtypes import INDEX
from hlo_mlc.loops.core import Accumulate, Allocate, If, LoopKind, Stmt, Store
from hlo_mlc.loops.rewrite import allocated, serial
from hlo_mlc.target.cpu import CpuTarget
from hlo_mlc.templates.attention.passes import Pass, RowPasses, Stored
from hlo_mlc.templates.attention.tiles import (
    Tile,
    covering_strips,
    in_squares,
    over,
    panels,
    strips,
)
from hlo_mlc.templates.attention.workspace import Workspace, lies_along
from hlo_mlc.templates.base import may_repeat
from hlo_mlc.templates.by_hand import across, bounded
from hlo_mlc.templates.register_tile import register_tile
from hlo_mlc.tensor.chain import Chain, masks
from hlo_mlc.tensor.classify import cost, stride
from hlo_mlc.tensor.core import Stage
from hlo_mlc.tensor.guards import everywhere

# Simple operations at one key up to which four vectors of rows, or two, are computed side by side:
# beyond, those of one keep the units busy.
FOUR_ABREAST, TWO_ABREAST = 8, 40

Body = tuple[Stmt, ...]


@dataclass(frozen=True, slots=True)
class _Chunk:
    """`size` keys from `first`; at most `most`."""

    first: Expr
    size: Expr
    most: int
    extent: int  # of all keys

    def key(self, near: Expr) -> Expr:
        return bounded(self.first + near, self.extent)


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
        self.keys, self.at, self.start, self.height = keys, at, start, height
        self.name = chain.row.name
        self.queries, self.weights, self.sums = space.queries, space.weights, space.sums
        self.packed_keys, self.packed_values = space.keys, space.values
        here, near = plan.places.here, plan.places.near
        self.crossing = dict(space.crossing)
        self._nearby = {read: load(b, (near, here)) for read, b in space.crossing}

    def build(self) -> Body:
        """Everything for this block."""
        return self.begin() + self.compute() + self.finish()

    def compute(self) -> Body:
        """From packed queries to the sums of all keys."""
        plan, chain = self.plan, self.chain
        body = self._store_rows("before", plan.before, {})
        body += self._each_sum(
            "z",
            lambda r, c: (Store(self.sums, (r, c), self._at(chain.last.initial[0], r, column=c)),),
        )
        for number, step in enumerate(plan.passes):
            body += self._pass(number, step)
        return body

    def _at(
        self,
        e: Expr,
        row: Expr,
        *,
        column: Expr | None = None,
        key: Expr | None = None,
        near: Expr | None = None,
    ) -> Expr:
        """An expression at a row of the block, and at a column or a key."""
        chain, places = self.chain, self.plan.places
        where = {**self.at, chain.row: self.start + row, places.here: row}
        for var, value in ((chain.column, column), (chain.key, key), (places.near, near)):
            if value is not None:
                where[var] = value
        return substitute(e, where)

    def _place(self, place: Load, row: Expr, **where: Expr | None) -> tuple[Expr, ...]:
        return tuple(self._at(i, row, **where) for i in place.indices)

    # Packing

    def begin(self) -> Body:
        """The queries with their rows side by side; transposed in registers where they lie along
        the depth."""
        first, name = self.chain.first, f"{self.name}_q"

        def element(d: Expr, r: Expr, depth: Mapping[Var, Expr]) -> Body:
            value = substitute(self._at(self.chain.query, r), depth)
            return (Store(self.queries, (d, r), value),)

        if lies_along(self.chain.query, first.reduce_axes):
            (axis,) = first.reduce_axes
            return in_squares(
                name,
                index.constant(axis.extent),
                axis.extent,
                self.height,
                self.lanes,
                lambda d, r: element(d, r, {axis: d}),
            )
        return over(
            name,
            first.reduce_axes,
            lambda d, depth: across(
                f"{name}r", self.height, self.lanes, lambda r: element(d, r, depth)
            ),
        )

    def _pack_keys(self, chunk: _Chunk) -> Body:
        if self.packed_keys is None:
            return ()
        *outer, inner = self.chain.first.reduce_axes

        def of_key(near: Expr) -> Body:
            value = substitute(self.chain.keys, {**self.at, self.chain.key: chunk.key(near)})
            return over(
                f"{self.name}_kd",
                outer,
                lambda d, depth: across(
                    f"{self.name}_kp",
                    inner.extent,
                    self.lanes,
                    lambda c: (
                        Store(
                            self.packed_keys,
                            (near, d * inner.extent + c),
                            substitute(value, {**depth, inner: c}),
                        ),
                    ),
                ),
            )

        return (serial(f"{self.name}_kn", chunk.size, of_key),)

    def _pack_values(self, chunk: _Chunk) -> Body:
        if self.packed_values is None:
            return ()
        chain, name = self.chain, f"{self.name}_v"

        def element(near: Expr, c: Expr) -> Body:
            where = {**self.at, chain.key: chunk.key(near), chain.column: c}
            return (Store(self.packed_values, (near, c), substitute(chain.values, where)),)

        if lies_along(chain.values, (chain.key,)):
            return in_squares(
                name, chunk.size, chunk.most, chain.column.extent, self.lanes, element
            )
        return (
            serial(
                f"{name}n",
                chunk.size,
                lambda near: across(
                    f"{name}c", chain.column.extent, self.lanes, lambda c: element(near, c)
                ),
            ),
        )

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
            chunk = _Chunk(first, size, self.keys, extent)
            body: Body = ()
            if number == 0:
                body += self._pack_keys(chunk) + self._scores(chunk)
            final = number == plan.final
            body += self._at_keys(f"{self.name}_{number}", step, totals, chunk, final)
            if final:
                body += self._pack_values(chunk) + self._mix(chunk)
            return body

        every = (serial(f"{self.name}_chunk{number}", chunks, run),)
        body = begin + every + self._store_rows(f"{number}e", step.rows, totals)
        return allocated(reversed((*totals.values(),)), body)

    def _store_rows(
        self, name: str, stored: Iterable[Stored], totals: Mapping[Var, Buffer]
    ) -> Body:
        """Values of the rows, one after the other."""
        body: Body = ()
        for number, (place, value) in enumerate(stored):

            def one(r: Expr, place: Load = place, value: Expr = value) -> Body:
                folded = {v: load(b, (r,)) for v, b in totals.items()}
                return (
                    Store(
                        place.source, self._place(place, r), substitute(self._at(value, r), folded)
                    ),
                )

            body += across(f"{self.name}_{name}{number}", self.height, self.lanes, one)
        return body

    def _scores(self, chunk: _Chunk) -> Body:
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
                return self._at(e, start + r, key=first_key + k, near=near + k)

            def step(d: Expr, depth: Mapping[Var, Expr]) -> Body:
                def key(k: Expr, r: Expr) -> Expr:
                    if self.packed_keys is not None:
                        return load(self.packed_keys, (near + k, d))
                    return substitute(at(chain.keys, k, r), depth)

                return sums.multiply_add(
                    f"{name}k", first.combiner, key, lambda k, r: load(self.queries, (d, start + r))
                )

            def store(k: Expr, r: Expr) -> Body:
                value = substitute(at(plan.score, k, r), {accumulator: sums.at(k, r)})
                return (
                    Store(
                        plan.scores.source, tuple(at(i, k, r) for i in plan.scores.indices), value
                    ),
                )

            body: Body = (
                Allocate(
                    sums.buffer,
                    (
                        *sums.fill(f"{name}z", lambda k, r: at(first.initial[0], k, r)),
                        *over(f"{name}d", first.reduce_axes, step),
                        *sums.each(f"{name}o", store),
                    ),
                ),
            )
            hidden = self._hidden(chunk.first + near, keys, start, rows)
            if hidden is FALSE:
                return body
            # A score that the mask replaces has nothing to do with its product.
            masked = substitute(plan.score, {accumulator: const(0, accumulator.dtype)})
            return (
                If(
                    hidden,
                    sums.each(
                        f"{name}h",
                        lambda k, r: (
                            Store(
                                plan.scores.source,
                                tuple(at(i, k, r) for i in plan.scores.indices),
                                at(masked, k, r),
                            ),
                        ),
                    ),
                    body,
                ),
            )

        def column(start: Expr, rows: int) -> Body:
            def of_keys(near: Expr, keys: int) -> Body:
                return tile(near, keys, start, rows)

            if may_repeat(first) and index.bounds(chunk.size)[0] >= tall:
                return covering_strips(f"{name}t", chunk.size, tall, of_keys)
            return strips(f"{name}t", chunk.size, chunk.most, tall, of_keys)

        return panels(f"{name}p", self.height, vectors * self.lanes, column)

    def _hidden(self, key: Expr, keys: int, row: Expr, rows: int) -> Expr:
        """A condition under which masks replace all scores of a tile."""
        chain, (accumulator,) = self.chain, self.chain.first.accumulators
        k, r = Var(f"{self.name}_k", INDEX, keys), Var(f"{self.name}_r", INDEX, rows)
        place = {chain.key: key + k, **self.at, chain.row: self.start + row + r}
        result: Expr = TRUE
        for assign in chain.first.assigns:
            nowhere: Expr = FALSE
            for condition in masks(assign.value, accumulator):
                one = everywhere((substitute(condition, place),), {k, r})
                nowhere = nowhere if one is None else apply("or", nowhere, one)
            result = apply("and", result, nowhere)
        return result

    def _at_keys(
        self, name: str, step: Pass, totals: Mapping[Var, Buffer], chunk: _Chunk, final: bool
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
        needed = {read for e in values for read in loads(e) if read in self._nearby}
        work = cost(*values)
        stored = [(place, transform(value, self._nearby.get)) for place, value in kept]
        folds = [
            replace(f, terms=tuple(transform(t, self._nearby.get) for t in f.terms))
            for f in step.folds
        ]
        abreast = 4 if work <= FOUR_ABREAST else 2 if work <= TWO_ABREAST else 1

        def some(start: Expr, rows: int) -> Body:
            padded = -(-rows // self.lanes) * self.lanes
            partial = {
                v: Buffer(f"{v.name}_part", v.dtype, (padded,), "register")
                for f in folds
                if f.combiner.identity is not None
                for v in f.accumulators
            }

            def fold(stage: Stage, near: Expr, r: Expr) -> Stmt:
                row = start + r
                terms = tuple(self._at(t, row, key=chunk.key(near), near=near) for t in stage.terms)
                into = tuple(partial.get(v, totals[v]) for v in stage.accumulators)
                place = r if stage.combiner.identity is not None else row
                return Accumulate(into, (place,), stage.combiner, terms)

            def at(near: Expr, r: Expr) -> Body:
                row = start + r
                where = {"key": chunk.key(near), "near": near}
                return (
                    *(fold(f, near, r) for f in folds),
                    *(
                        Store(
                            place.source,
                            self._place(place, row, **where),
                            self._at(value, row, **where),
                        )
                        for place, value in stored
                    ),
                )

            def begin(r: Expr) -> Body:
                return tuple(
                    Store(partial[v], (r,), e)
                    for f in folds
                    if f.combiner.identity is not None
                    for v, e in zip(f.accumulators, f.combiner.identity, strict=True)
                )

            def end(r: Expr) -> Body:
                return tuple(
                    Accumulate(
                        tuple(totals[v] for v in f.accumulators),
                        (start + r,),
                        f.combiner,
                        tuple(load(partial[v], (r,)) for v in f.accumulators),
                    )
                    for f in folds
                    if f.combiner.identity is not None
                )

            body: Body = (
                serial(
                    f"{name}n",
                    chunk.size,
                    lambda near: across(f"{name}r", rows, self.lanes, lambda r: at(near, r)),
                ),
            )
            if partial:
                body = (
                    *across(f"{name}z", rows, self.lanes, begin),
                    *body,
                    *across(f"{name}e", rows, self.lanes, end),
                )
            return allocated(reversed((*partial.values(),)), body)

        across_rows = panels(f"{name}p", self.height, abreast * self.lanes, some)
        return self._pack_crossing(name, needed, chunk) + across_rows

    def _pack_crossing(self, name: str, needed: Set[Load], chunk: _Chunk) -> Body:
        """Transpose what lies along the keys, so that the rows are side by side."""
        body: Body = ()
        for number, (read, buffer) in enumerate(self.crossing.items()):
            if read in needed:
                body += in_squares(
                    f"{name}x{number}",
                    chunk.size,
                    chunk.most,
                    self.height,
                    self.lanes,
                    lambda near, r, read=read, buffer=buffer: (
                        Store(buffer, (near, r), self._at(read, r, key=chunk.key(near))),
                    ),
                )
        return body

    def _mix(self, chunk: _Chunk) -> Body:
        """The second product of one chunk, added to the sums, in tiles of rows by columns."""
        chain, last = self.chain, self.chain.last
        tall, vectors = register_tile(self.height, chain.column.extent, self.lanes, self.target)
        tall = _even(tall, self.height)
        name = f"{self.name}_m"
        (neutral,) = last.combiner.identity

        def tile(row: Expr, rows: int, start: Expr, columns: int) -> Body:
            sums = Tile.of(f"{name}_", self.sums.dtype, rows, columns, self.lanes)

            def place(r: Expr, c: Expr) -> tuple[Expr, Expr]:
                return row + r, start + c

            def step(near: Expr) -> Body:
                def value(r: Expr, c: Expr) -> Expr:
                    if self.packed_values is not None:
                        return load(self.packed_values, (near, start + c))
                    return substitute(
                        chain.values,
                        {**self.at, chain.key: chunk.key(near), chain.column: start + c},
                    )

                return sums.multiply_add(
                    f"{name}k",
                    last.combiner,
                    lambda r, c: load(self.weights, (near, row + r)),
                    value,
                )

            return (
                Allocate(
                    sums.buffer,
                    (
                        *sums.fill(f"{name}z", lambda r, c: neutral),
                        serial(f"{name}n", chunk.size, step),
                        *sums.each(
                            f"{name}o",
                            lambda r, c: (
                                Accumulate(
                                    (self.sums,), place(r, c), last.combiner, (sums.at(r, c),)
                                ),
                            ),
                        ),
                    ),
                ),
            )

        return panels(
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

    def _each_sum(self, name: str, body: Callable[[Expr, Expr], Body]) -> Body:
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

        def store(r: Expr, c: Expr) -> Body:
            def at(e: Expr) -> Expr:
                return substitute(
                    self._at(e, r, column=c), {chain.last.accumulators[0]: load(self.sums, (r, c))}
                )

            return tuple(Store(a.buffer, tuple(map(at, a.indices)), at(a.value)) for a in assigns)

        if all(stride(a, chain.row) == 1 for a in assigns):
            extent = chain.column.extent
            return in_squares(
                f"{self.name}_o",
                index.constant(extent),
                extent,
                self.height,
                self.lanes,
                lambda c, r: store(r, c),
            )
        return self._each_sum("o", store)


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
