"""The first few of long rows: what comes before the last of those that are kept is collected, and
when there is no room for more, sorted and cut."""

from __future__ import annotations

import functools
from collections.abc import Callable

from hlo_mlc.expr import index
from hlo_mlc.expr.build import apply, as_index, const, load
from hlo_mlc.expr.core import Buffer, Expr, Var
from hlo_mlc.expr.dtypes import U32
from hlo_mlc.loops.core import Accumulate, If, LoopKind, Stmt, Store
from hlo_mlc.loops.rewrite import allocated, loop
from hlo_mlc.templates.base import across, decoded, shared_out
from hlo_mlc.templates.sorting.digits import Digits
from hlo_mlc.templates.sorting.records import (
    STACK,
    Body,
    Sorting,
    alone,
    in_row,
    read,
)
from hlo_mlc.tensor.combine import named_combiner

# Records that candidates are collected in, besides twice those that are wanted, and elements that
# are looked at together.
CANDIDATES, BLOCK = 512, 64


def by_candidates(sorting: Sorting) -> Body:
    """What comes before the last of those that are kept is collected, and cut now and then."""
    n, kept = sorting.element.extent, sorting.stage.sort.place.extent
    most = 2 * kept + CANDIDATES + BLOCK
    private = 2 * most * sorting.bytes <= STACK
    shape, scope = ((most,), "stack") if private else ((sorting.rows, most), "scratch")
    front, back = (sorting.records(name, shape, scope) for name in ("front", "back"))

    def row(number: Expr) -> Body:
        place = alone if private else functools.partial(in_row, number)
        digits = Digits(sorting, front, back, place, most)
        body = _Candidates(digits, decoded(sorting.outer, number)).row()
        return allocated((*front, *back), body) if private else body

    return shared_out(sorting.stage.name, sorting.rows, sorting.rows * n * 2, row)


class _Candidates:
    """The first few of one row, and those that may be among them, which `digits` puts in order."""

    def __init__(self, digits: Digits, at: dict[Var, Expr]) -> None:
        self.digits, self.at = digits, at
        self.sorting = sorting = digits.sorting
        name, key = sorting.stage.name, sorting.stage.sort.keys[0].dtype
        self.held, self.all = (Buffer(f"{name}_{what}", U32, (), "register")
                               for what in ("held", "all"))
        self.last, self.best = (Buffer(f"{name}_{what}", key, (), "register")
                                for what in ("last", "best"))
        self.bests = Buffer(f"{name}_bests", key, (sorting.width,), "register")
        self.least = named_combiner("min", key)

    def row(self) -> Body:
        """The loops of a row."""
        s, n = self.sorting, self.sorting.element.extent
        blocks, rest = divmod(n, BLOCK)

        def block(b: Var) -> Body:
            first = index.multiply(b, index.constant(BLOCK))
            return self._where_wanted(first, BLOCK, (loop(
                "part", BLOCK // s.width, LoopKind.SERIAL, lambda v: part(first, v)),))

        def part(first: Expr, v: Var) -> Body:
            here = index.add(first, index.multiply(v, index.constant(s.width)))
            return self._where_wanted(here, s.width, self._collect(here, s.width))

        body = (Store(self.held, (), const(0, U32)), Store(self.all, (), const(1, U32)),
                Store(self.last, (), self.least.identity[0]),
                loop("block", blocks, LoopKind.SERIAL, block))
        if rest:
            body += self._collect(index.constant(blocks * BLOCK), rest)
        body += (*self.digits.sorted(self._length()),
                 *s.hand_out(self.digits.ordered, self.digits.place, self.at))
        return allocated((self.held, self.all, self.last, self.best), body)

    def _length(self) -> Expr:
        return index.minimum(as_index(load(self.held, ())), index.constant(self.digits.most))

    def _is_wanted(self, key: Expr) -> Expr:
        """Whether it comes before the last of those that are kept; all are until there is one."""
        return apply("or", apply("lt", key, load(self.last, ())),
                     apply("ne", load(self.all, ()), const(0, U32)))

    def _where_wanted(self, first: Expr, count: int, body: Body) -> Body:
        """`body`, if some of the elements from `first` on may be among the first few."""
        return (*self._look(first, count), If(self._is_wanted(load(self.best, ())), body))

    def _look(self, first: Expr, count: int) -> Body:
        """The smallest key of some elements."""
        width, (start,) = self.sorting.width, self.least.identity

        def key(i: Expr) -> Expr:
            s = self.sorting
            return s.keys(s.given(self.at, index.add(first, i)))[0]

        def lane(body: Callable[[Var], Body]) -> Stmt:
            return loop("lane", width, LoopKind.VECTORIZE, body)

        each = loop("vector", count // width, LoopKind.UNROLL, lambda v: (lane(lambda i: (
            Accumulate((self.bests,), (i,), self.least, (key(index.add(index.multiply(
                v, index.constant(width)), i)),)),)),))
        return allocated((self.bests,), (
            lane(lambda i: (Store(self.bests, (i,), start),)), each, Store(self.best, (), start),
            lane(lambda i: (Accumulate((self.best,), (), self.least,
                                       (load(self.bests, (i,)),)),))))

    def _collect(self, first: Expr, count: int) -> Body:
        """The candidates among some elements; when there is no room for more, only the first of
        them are kept."""
        s = self.sorting

        def take(i: Var) -> Body:
            values = s.given(self.at, index.add(first, i))
            wanted = self._is_wanted(s.keys(values)[0])
            to = as_index(load(self.held, ()))
            guard = apply("and", wanted, index.compare("lt", to, index.constant(self.digits.most)))
            return (*(Store(b, self.digits.place(to), value, guard)
                      for b, value in zip(self.digits.front, values, strict=True)),
                    Store(self.held, (), apply("add", load(self.held, ()),
                                               apply("convert", wanted, dtype=U32))))

        full = apply("gt", load(self.held, ()), const(self.digits.most - BLOCK, U32))
        return (loop("taken", count, LoopKind.SERIAL, take), If(full, self._cut()))

    def _cut(self) -> Body:
        d, kept = self.digits, self.sorting.stage.sort.place.extent
        steps = d.sorted(self._length())
        if d.ordered is not d.front:
            steps += across("kept", kept, self.sorting.width, lambda i: tuple(
                Store(b, d.place(i), value) for b, value in
                zip(d.front, read(d.ordered, d.place(i)), strict=True)), LoopKind.SERIAL)
        last = self.sorting.keys(read(d.front, d.place(index.constant(kept - 1))))[0]
        return (*steps, Store(self.last, (), last), Store(self.all, (), const(0, U32)),
                Store(self.held, (), const(kept, U32)))
