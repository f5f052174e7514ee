"""The loops of a fold over windows: tiles of results in registers, conditions around them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from hlo_mlc.expr import index
from hlo_mlc.expr.build import FALSE, TRUE, all_of, load, substitute
from hlo_mlc.expr.core import Buffer, Expr, Var
from hlo_mlc.loops.core import Accumulate, For, If, LoopKind, Stmt, Store
from hlo_mlc.loops.lower import stores_at
from hlo_mlc.loops.rewrite import allocated, guarded, loop, when
from hlo_mlc.target.cpu import CpuTarget
from hlo_mlc.templates.base import Parameters, across, bounded, epilogue_cost, lanes, shared_out
from hlo_mlc.templates.window_roles import (
    Order,
    Panel,
    Roles,
    begins_early,
    first_lane,
    order_of,
    product_roles,
    roles_of,
)
from hlo_mlc.tensor.core import Stage
from hlo_mlc.tensor.guards import conjuncts, everywhere, guards, vanishes_outside, where_true

# Positions of a window that are written out inside of the results, not around them.
SLIDES_INSIDE = 4
# With at least this many tiles along each axis, those at its ends are few enough for short code:
# the benchmarks' depthwise and single_channel run no slower with it.
FEW_EDGES = 5
# Epilogues costlier than this run as a loop over a tile in L1 instead of being written out.
EPILOGUE_INLINE = 4

Place = dict[Var, Expr]
Point = tuple[tuple[Expr, ...], Place]  # numbers in the tile, and the axes
Body = Callable[[tuple[Expr, ...], Place], tuple[Stmt, ...]]


@dataclass(frozen=True, slots=True)
class WindowLoops:
    """Builds the loops of one stage.

    `asked`: conditions, the same for all lanes, without which a term is neutral; the terms that
    are folded where they hold, and where all guards hold.
    """

    stage: Stage
    target: CpuTarget
    roles: Roles
    order: Order
    lanes: int
    vectors: int
    unroll: int
    work: int
    asked: tuple[Expr, ...]
    checked_terms: tuple[Expr, ...]
    free_terms: tuple[Expr, ...]
    number: Var | None
    is_product: bool

    @staticmethod
    def of(stage: Stage, target: CpuTarget, parameters: Parameters, total: int,
           number: Var | None = None) -> WindowLoops:
        """The builder for given parameters; one task where `total` is not worth more.  `number`
        is what terms call the number of their panel of lanes."""
        width = lanes((stage,), target)
        roles = roles_of(stage, width, parameters["tile"])
        unroll = parameters["unroll"]
        if roles.unrolled is not None:
            unroll = min(unroll, roles.unrolled.extent)
        conditions = dict.fromkeys(c for t in stage.terms for g in guards(t) for c in conjuncts(g))
        asked = ()
        if all(vanishes_outside(t, stage.combiner.name, neutral)
               for t, neutral in zip(stage.terms, stage.combiner.identity, strict=True)):
            asked = tuple(c for c in conditions if roles.lane not in c.free)
        panels = -(-roles.lane.extent // (width * parameters["vectors"]))
        order = order_of(stage, roles, panels, target.cores)
        return WindowLoops(stage, target, roles, order, width, parameters["vectors"], unroll, total,
                           asked, tuple(where_true(t, set(asked)) for t in stage.terms),
                           tuple(where_true(t, conditions.keys()) for t in stage.terms), number,
                           product_roles(stage, width) is not None)

    @property
    def edges_are_rare(self) -> bool:
        """Whether few tiles have results whose windows leave the operand, or do not exist."""
        asked = {v for t in self.stage.terms for g in guards(t) for v in g.free}
        return self.roles.unrolled is not None and self.unroll > 1 and all(
            -(-v.extent // count) >= FEW_EDGES for v, count in self.roles.tile
            if v in asked or self._is_ragged(v, count))

    @property
    def _reduces_lanes(self) -> bool:
        return self.roles.lane in self.stage.reduce_axes

    def build(self) -> tuple[Stmt, ...]:
        """Rows of tiles in the order of memory, panel by panel, shared out."""
        lane, width = self.roles.lane, self.lanes * self.vectors
        whole, rest = (0, 0) if self._reduces_lanes else divmod(lane.extent, width)

        def task(t: Expr) -> tuple[Stmt, ...]:
            panel, base = self.order.at(t)
            if self.number is not None:
                base = {**base, self.number: panel}
            if self._reduces_lanes:
                return self._row(base, Panel(index.constant(0), width))
            start = first_lane(panel, lane.extent, width, self.lanes)
            if begins_early(lane.extent, width, self.lanes):
                return self._row(base, Panel(start, width, panel))
            short = self._row(base, Panel(index.constant(whole * width), rest)) if rest else ()
            if not whole:
                return short
            full = self._row(base, Panel(start, width))
            if not rest:
                return full
            return (If(index.compare("lt", panel, index.constant(whole)), full, short),)

        return shared_out(lane.name, self.order.tasks, self.work, task)

    def _row(self, base: Place, panel: Panel) -> tuple[Stmt, ...]:
        """All tiles of a task."""
        if self.order.row is None:
            return self._tile(base, panel)
        axis, count = self.order.row

        def tile(n: Expr) -> tuple[Stmt, ...]:
            start = index.multiply(n, index.constant(count))
            if axis is self.order.repeated:
                start = index.minimum(start, index.constant(axis.extent - count))
            return self._tile({**base, axis: start}, panel)

        return (loop(f"{axis.name}_tile", -(-axis.extent // count), LoopKind.SERIAL, tile),)

    def _tile(self, base: Place, panel: Panel) -> tuple[Stmt, ...]:
        """One tile of results at `base`: begin, fold, store."""
        stage, width = self.stage, panel.width
        padded = -(-width // self.lanes) * self.lanes
        shape = (*(count for _, count in self.roles.tile), padded)
        sums = tuple(Buffer(f"{stage.name}.{v.name}_{width}", v.dtype, shape, "register")
                     for v in stage.accumulators)
        first = stage.combiner.identity if self._reduces_lanes else stage.initial

        def begin(at: tuple[Expr, ...], where: Place) -> tuple[Stmt, ...]:
            return tuple(Store(b, at, substitute(e, where))
                         for b, e in zip(sums, first, strict=True))

        lane = {} if self._reduces_lanes else {self.roles.lane: panel.start}
        body = (*self._each("z", {**base, **lane}, width, begin),
                *self._fold(sums, {**base, **lane}, width))
        finish = self._finish(sums, {**base, **lane}, width) if panel.number is None \
            else self._finish_own(sums, base, panel)
        return allocated(sums, (*body, *finish))

    def _finish_own(self, sums: tuple[Buffer, ...], base: Place, panel: Panel
                    ) -> tuple[Stmt, ...]:
        """Store what a panel stores alone: all lanes, or the last ones of the last panel."""
        lane, width = self.roles.lane, panel.width
        nominal = index.multiply(panel.number, index.constant(width))
        if self.target.has_masked_bytes:  # AVX-512, where masks cost nothing
            return self._finish(sums, {**base, lane: panel.start}, width, nominal)
        end = lane.extent // width * width
        start = bounded(nominal, end - width + 1)
        last = index.constant(lane.extent - width)
        return (If(index.compare("lt", panel.number, index.constant(end // width)),
                   self._finish(sums, {**base, lane: start}, width),
                   self._finish(sums, {**base, lane: last}, width, index.constant(end))),)

    def _each(self, prefix: str, base: Place, width: int, body: Body,
              kind: LoopKind = LoopKind.UNROLL) -> tuple[Stmt, ...]:
        """`body(place in the tile, axes)` for every element of the tile, lane by lane."""
        return self._along_lanes(prefix, (), base, width, lambda c, there: self._over_tile(
            prefix, there, lambda at, where: body((*at, *c), where)), kind)

    def _along_lanes(self, prefix: str, at: tuple[Expr, ...], base: Place, width: int, body: Body,
                     kind: LoopKind = LoopKind.UNROLL) -> tuple[Stmt, ...]:
        """`body` for the lanes of the result number `at`."""
        lane = self.roles.lane

        def within(c: Expr) -> tuple[Stmt, ...]:
            start = {lane: index.add(base[lane], c)} if lane in base else {}
            return body((*at, c), {**base, **start})

        return across(f"{lane.name}_{prefix}", width, self.lanes, within, kind)

    def _where_it_exists(self, place: Place, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        """`body` for a result, if it is one."""
        return when(all_of(*self._ragged(place)), body)

    def _over_tile(self, prefix: str, base: Place, body: Body) -> tuple[Stmt, ...]:
        """`body(numbers, axes)` for the results of a tile, written out."""

        def nest(level: int, at: tuple[Expr, ...], where: Place) -> tuple[Stmt, ...]:
            if level == len(self.roles.tile):
                return body(at, where)
            axis, count = self.roles.tile[level]
            return (loop(f"{axis.name}_{prefix}", count, LoopKind.UNROLL, lambda t: nest(
                level + 1, (*at, t), {**where, axis: index.add(base[axis], t)})),)

        return nest(0, (), base)

    def _fold(self, sums: tuple[Buffer, ...], base: Place, width: int) -> tuple[Stmt, ...]:
        """The loops over the reduced axes around what is written out."""
        roles = self.roles
        lane, written = roles.lane, roles.unrolled

        def panels(where: Place) -> tuple[Stmt, ...]:
            if not self._reduces_lanes:
                return self._written_out(sums, where, width)
            whole, rest = divmod(lane.extent, width)
            body: tuple[Stmt, ...] = ()
            if whole:
                body = (loop(f"{lane.name}_p", whole, LoopKind.SERIAL, lambda p:
                    self._written_out(sums, {
                        **where, lane: index.multiply(p, index.constant(width))}, width)),)
            if rest:
                body += self._written_out(
                    sums, {**where, lane: index.constant(whole * width)}, rest)
            return body

        if written is None:
            body = panels(base)
        else:
            count = -(-written.extent // self.unroll)
            body = (loop(f"{written.name}_b", count, LoopKind.SERIAL, lambda b: panels(
                {**base, written: index.multiply(b, index.constant(self.unroll))})),)
        for axis in reversed(roles.serial):
            body = (For(axis, index.constant(axis.extent), LoopKind.SERIAL, body),)
        return body

    def _written_out(self, sums: tuple[Buffer, ...], base: Place,
                     width: int) -> tuple[Stmt, ...]:
        """All terms of a tile at one position of the serial axes.

            if what all terms ask for:
              if the rest holds everywhere in the tile:   every term without conditions
              else:                                       groups of terms that ask for the same
        """
        groups = self._groups(self._points(base))
        if not groups:
            return ()
        common = [c for c in next(iter(groups)) if all(c in asked for asked in groups)]
        inside = self._inside(base, width)
        rest = FALSE if inside is None \
            else all_of(*(c for c in conjuncts(inside) if c not in common))
        parts: tuple[Stmt, ...] = ()
        if rest is not TRUE:
            parts = self._checked(sums, groups, width, common) if rest is FALSE \
                or not self.edges_are_rare else self._checked_in_turn(sums, base, width, common)
        if rest is not FALSE:
            # By groups: in the order of positions, more sums wait in registers.
            points = [point for group in groups.values() for point in group]
            free = self._add(sums, points, width, self.free_terms)
            parts = free if rest is TRUE else (If(rest, free, parts),)
        return when(all_of(*common), parts)

    def _groups(self, points: Iterable[Point]) -> dict[tuple[Expr, ...], list[Point]]:
        """The points by what they ask for, but for those that do not exist."""
        points = list(points)
        groups: dict[tuple[Expr, ...], list[Point]] = {}
        for (at, where), holds in zip(points, _at_each(self.asked, points), strict=True):
            asked = tuple(dict.fromkeys(
                c for hold in (*holds, *self._ragged(where)) for c in conjuncts(hold)))
            if FALSE not in asked:
                groups.setdefault(asked, []).append((at, where))
        return groups

    def _checked(self, sums: tuple[Buffer, ...], groups: Mapping[tuple[Expr, ...], Sequence[Point]],
                 width: int, known: Collection[Expr]) -> tuple[Stmt, ...]:
        """The terms of each group behind what they ask for, as far as it is not known to hold."""
        parts: tuple[Stmt, ...] = ()
        for asked, points in groups.items():
            parts += when(all_of(*(c for c in asked if c not in known)),
                           self._add(sums, points, width, self.checked_terms))
        return parts

    def _checked_in_turn(self, sums: tuple[Buffer, ...], base: Place, width: int,
                         known: Collection[Expr]) -> tuple[Stmt, ...]:
        """The same, in a loop over the positions of the windows: code that rarely runs is short."""
        unrolled = self.roles.unrolled

        def one(position: Var) -> tuple[Stmt, ...]:
            there = {**base, unrolled: index.add(base[unrolled], position)}
            groups = self._groups(self._points(there, written=False))
            return self._checked(sums, groups, width, known)

        return (loop(f"{unrolled.name}_e", self.unroll, LoopKind.SERIAL, one),)

    def _points(self, base: Place, written: bool = True) -> Iterator[Point]:
        """The results of a tile with the positions of their windows that are written out."""
        pieces, unrolled = [*self.roles.tile], self.roles.unrolled if written else None
        first = len(pieces)
        if unrolled is not None:
            # Long windows slide outermost: then fewer of their elements wait in registers.
            first = 0 if self.unroll > SLIDES_INSIDE else first
            pieces.insert(first, (unrolled, self.unroll))
        for numbers in product(*(range(count) for _, count in pieces)):
            constants = [index.constant(n) for n in numbers]
            where = {axis: index.add(base[axis], n)
                     for (axis, _), n in zip(pieces, constants, strict=True)}
            at = tuple(n for (axis, _), n in zip(pieces, constants, strict=True)
                       if axis is not unrolled)
            yield at, {**base, **where}

    def _ragged(self, where: Place) -> tuple[Expr, ...]:
        """That a result and a term exist, where the last pieces are short."""
        pieces = [*self.roles.tile]
        if self.roles.unrolled in where:
            pieces.append((self.roles.unrolled, self.unroll))
        return tuple(index.compare("lt", where[v], index.constant(v.extent))
                     for v, count in pieces if self._is_ragged(v, count))

    def _is_ragged(self, axis: Var, count: int) -> bool:
        """Whether the last `count` along an axis are fewer."""
        return axis.extent % count > 0 and axis is not self.order.repeated

    def _inside(self, base: Place, width: int) -> Expr | None:
        """When no guard fails in the whole tile; None where that cannot be told."""
        pieces = [*self.roles.tile, (self.roles.lane, width)]
        if self.roles.unrolled is not None:
            pieces.append((self.roles.unrolled, self.unroll))
        axes = {axis: Var(f"{axis.name}_any", axis.dtype, count) for axis, count in pieces}
        where = {**base, **{v: index.add(base[v], inside) for v, inside in axes.items()}}
        asked = all_of(*(substitute(g, where) for t in self.stage.terms for g in guards(t)),
                       *self._ragged(where))
        return everywhere(conjuncts(asked), frozenset(axes.values()))

    def _add(self, sums: tuple[Buffer, ...], points: Sequence[Point], width: int,
             terms: tuple[Expr, ...]) -> tuple[Stmt, ...]:
        """Fold the terms at some points, vector by vector; or point by point where each has a
        factor for all vectors, of which few registers hold one at a time."""
        lane = self.roles.lane

        def at_lanes(points: Sequence[Point], c: Expr) -> tuple[Stmt, ...]:
            there = [(at, {**where, lane: index.add(where[lane], c)}) for at, where in points]
            return tuple(Accumulate(sums, (*at, c), self.stage.combiner, values)
                         for (at, _), values in zip(there, _at_each(terms, there), strict=True))

        together = [[point] for point in points] if self.is_product else [points]
        body = tuple(stmt for group in together for stmt in across(
            f"{lane.name}_f", width, self.lanes, functools.partial(at_lanes, group)))
        for axis in reversed(self.roles.inner):
            body = (For(axis, index.constant(axis.extent), LoopKind.SERIAL, body),)
        return body

    def _finish(self, sums: tuple[Buffer, ...], base: Place, width: int, first: Expr | None = None
                ) -> tuple[Stmt, ...]:
        """Store the results of lanes from `first` on: straight from the registers, or in a loop if
        the epilogue is long."""
        stage = self.stage

        def store(source: tuple[Buffer, ...], asked: bool = True) -> Body:
            def one(at: tuple[Expr, ...], where: Place) -> tuple[Stmt, ...]:
                values = {**where, **{v: load(b, at) for v, b in
                                      zip(stage.accumulators, source, strict=True)}}
                exists = all_of(*self._ragged(where)) if asked else TRUE
                if first is not None:
                    own = index.compare("ge", where[self.roles.lane], first)
                    exists = all_of(exists, own)
                return tuple(filter(None, (
                    guarded(s, exists) for s in stores_at(stage.assigns, values))))
            return one

        if self._reduces_lanes:
            totals = tuple(Buffer(f"{b.name}_total", b.dtype, b.shape[:-1], "register")
                           for b in sums)
            begin = self._over_tile("y", base, lambda at, where: tuple(
                Store(b, at, substitute(e, where))
                for b, e in zip(totals, stage.initial, strict=True)))
            combine = self._each("x", base, width, lambda at, where: (Accumulate(
                totals, at[:-1], stage.combiner, tuple(load(b, at) for b in sums)),))
            return allocated(totals, (*begin, *combine,
                                       *self._over_tile("s", base, store(totals))))
        if epilogue_cost(stage) <= EPILOGUE_INLINE:
            return self._over_tile("s", base, lambda at, where: self._where_it_exists(
                where, self._along_lanes("s", at, where, width, store(sums, asked=False))))
        spilled = tuple(Buffer(f"{b.name}_out", b.dtype, b.shape, "stack") for b in sums)
        spill = self._each("o", base, width, lambda at, where: tuple(
            Store(new, at, load(old, at)) for new, old in zip(spilled, sums, strict=True)))
        return allocated(spilled, (*spill, *self._each(
            "s", base, width, store(spilled), LoopKind.SERIAL)))


def _at_each(expressions: Sequence[Expr], points: Sequence[Point]) -> Iterator[tuple[Expr, ...]]:
    """The expressions at every point; what is the same at all of them is put in once."""
    first = points[0][1]
    common = {v: e for v, e in first.items() if all(where[v] is e for _, where in points)}
    begun = [substitute(e, common) for e in expressions]
    for _, where in points:
        own = {v: e for v, e in where.items() if v not in common}
        yield tuple(substitute(e, own) for e in begun)
