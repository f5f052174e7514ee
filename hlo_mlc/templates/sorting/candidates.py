"""The first few of long rows: what comes before the last of those that are kept is collected, and
when there is no room for more, sorted and cut.

Where very few are wanted, a row is looked at twice.  At first, here and there, for the smallest key
of each of some groups of elements, more groups than elements are wanted: not fewer elements than
groups whose smallest keys are up to a limit are up to it.  Then for those elements.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

from hlo_mlc.expr import index
from hlo_mlc.expr.build import apply, as_index, const, load
from hlo_mlc.expr.core import Buffer, Expr, Var
from hlo_mlc.expr.dtypes import U32
from hlo_mlc.loops.core import Accumulate, If, LoopKind, Stmt, Store
from hlo_mlc.loops.rewrite import allocated, serial, unrolled, vectorized
from hlo_mlc.templates.base import decoded
from hlo_mlc.templates.by_hand import across, shared_out
from hlo_mlc.templates.sorting.digits import Digits
from hlo_mlc.templates.sorting.ranks import counted
from hlo_mlc.templates.sorting.records import (
    STACK,
    Body,
    Room,
    Sorting,
    alone,
    first_wanted,
    in_row,
    moved,
)
from hlo_mlc.tensor.combine import named_combiner

# Records that candidates are collected in, besides twice those that are wanted, and elements that
# are looked at together.
CANDIDATES, BLOCK = 512, 64
# Groups of elements for each that is wanted: half of the groups have one of the first then.
GROUPS = 2
# Elements of a row for each group at least, and comparisons of groups for each element at most, for
# looking twice to pay; and elements that are looked at while one is collected.
APART, COMPARED, TAKEN = 4, 4, 128
# Groups whose smallest keys are kept in registers, in vectors, and candidates that are put in order
# by counting how many come before each.
IN_REGISTERS, FEW = 8, 64
_ADD = named_combiner("add", U32)


def group_count(kept: int, n: int, width: int) -> int:
    """The groups of a row of n elements of which so many are wanted; 0 where they do not pay."""
    groups = -(-GROUPS * kept // width) * width
    return groups if APART * groups <= n and groups * groups <= COMPARED * n else 0


def by_candidates(sorting: Sorting) -> Body:
    """What comes before the last of those that are kept is collected, and cut now and then."""
    n, kept = sorting.element.extent, first_wanted(sorting.stage)
    most = 2 * kept + CANDIDATES + BLOCK
    private = 2 * most * sorting.bytes <= STACK
    shape, scope = ((most,), "stack") if private else ((sorting.rows, most), "scratch")
    front, back = (sorting.records(name, shape, scope) for name in ("front", "back"))

    def row(number: Expr) -> Body:
        place = alone if private else functools.partial(in_row, number)
        digits = Digits(sorting, Room.of(front, place), Room.of(back, place), most)
        body = _Candidates(digits, decoded(sorting.outer, number)).row()
        return allocated((*front, *back), body) if private else body

    return shared_out(sorting.stage.name, sorting.rows, sorting.rows * n * 2, row)


class _Candidates:
    """The first few of one row, and those that may be among them, which `digits` puts in order."""

    def __init__(self, digits: Digits, at: dict[Var, Expr]) -> None:
        self.digits, self.at = digits, at
        self.sorting = sorting = digits.sorting
        name, key = sorting.stage.name, sorting.stage.sort.keys[0].dtype
        self.held, self.ties = (
            Buffer(f"{name}_{what}", U32, (), "register") for what in ("held", "ties")
        )
        self.last, self.best = (
            Buffer(f"{name}_{what}", key, (), "register") for what in ("last", "best")
        )
        self.bests = Buffer(f"{name}_bests", key, (sorting.width,), "register")
        self.least = named_combiner("min", key)

    def row(self) -> Body:
        """The loops of a row."""
        s, n = self.sorting, self.sorting.element.extent
        blocks, rest = divmod(n, BLOCK)

        def block(b: Var) -> Body:
            first = index.multiply(b, BLOCK)
            return self._where_wanted(
                first, BLOCK, (serial("part", BLOCK // s.width, lambda v: part(first, v)),)
            )

        def part(first: Expr, v: Var) -> Body:
            here = index.add(first, index.multiply(v, s.width))
            return self._where_wanted(here, s.width, self._collect(here, s.width))

        body = (
            Store(self.held, (), const(0, U32)),
            Store(self.ties, (), const(1, U32)),
            *self._limit(),
            serial("block", blocks, block),
        )
        if rest:  # for which there is room in any case, and nothing behind it
            body += self._taken(index.constant(blocks * BLOCK), rest)
        is_few = apply("le", load(self.held, ()), const(FEW, U32))
        in_order = self.digits.sorted(self._length(), in_a_loop=True)  # once a row
        body += (
            If(is_few, self._few_in_order(), in_order),
            *s.hand_out(self.digits.ordered, self.at),
        )
        return allocated((self.held, self.ties, self.last, self.best), body)

    def _length(self, most: int | None = None) -> Expr:
        return index.minimum(as_index(load(self.held, ())), most or self.digits.most)

    def _is_wanted(self, key: Expr) -> Expr:
        """Whether it comes before the last of those that are kept; until there are some, whether it
        does not come behind the limit."""
        tied = apply(
            "and",
            apply("eq", key, load(self.last, ())),
            apply("ne", load(self.ties, ()), const(0, U32)),
        )
        return apply("or", apply("lt", key, load(self.last, ())), tied)

    def _limit(self) -> Body:
        """A key that no wanted element's comes behind."""
        s, n, kept = self.sorting, self.sorting.element.extent, first_wanted(self.sorting.stage)
        groups = group_count(kept, n, s.width)
        if not groups:
            return (Store(self.last, (), self.least.identity[0]),)
        vectors, key = groups // s.width, self.last.dtype
        name, (start,) = s.stage.name, self.least.identity
        found = Buffer(f"{name}_found", key, (groups,), "stack")
        less = Buffer(f"{name}_less", U32, (groups,), "stack")
        inner = (
            found
            if vectors > IN_REGISTERS
            else Buffer(f"{name}_groups", key, (groups,), "register")
        )
        kind = LoopKind.SERIAL if inner is found else LoopKind.UNROLL

        def each(name: str, body: Callable[[Expr], Body], kind: LoopKind = LoopKind.SERIAL) -> Body:
            return across(name, groups, s.width, body, kind)

        def smallest(first: Expr, i: Expr) -> Body:
            values = s.given(self.at, index.add(first, i))
            return (Accumulate((inner,), (i,), self.least, (s.keys(values)[0],)),)

        def below(h: Expr, i: Expr) -> Body:
            is_less = apply("lt", load(found, (h,)), load(found, (i,)))
            return (Accumulate((less,), (i,), _ADD, (apply("convert", is_less, dtype=U32),)),)

        def last(i: Expr) -> Body:
            is_first = apply("lt", load(less, (i,)), const(kept, U32))
            return (
                Accumulate(
                    (self.last,),
                    (),
                    most,
                    (apply("select", is_first, load(found, (i,)), most.identity[0]),),
                ),
            )

        most = named_combiner("max", key)
        # Of n elements in r rounds n / r are up to the limit, or fewer.
        rounds = min(n // groups, math.isqrt(TAKEN * n // groups))
        body = (
            *each("start", lambda i: (Store(inner, (i,), start),), kind),
            serial(
                "round",
                rounds,
                lambda r: each(
                    "group", functools.partial(smallest, index.multiply(r, n // rounds)), kind
                ),
            ),
        )
        if inner is not found:
            body += each("found", lambda i: (Store(found, (i,), load(inner, (i,))),), kind)
        body += (
            *each("less", lambda i: (Store(less, (i,), const(0, U32)),)),
            serial("other", groups, lambda h: each("below", functools.partial(below, h), kind)),
            Store(self.last, (), most.identity[0]),
            *each("last", last),
        )
        return allocated((found, less, *((inner,) if inner is not found else ())), body)

    def _few_in_order(self) -> Body:
        """The candidates, where there are few, go to the places that tell how many come before."""
        d, s, length = self.digits, self.sorting, self._length(FEW)
        keys = Buffer(f"{s.stage.name}_keys", self.last.dtype, (FEW,), "stack")
        rank = Buffer(f"{s.stage.name}_rank", U32, (FEW,), "stack")

        body = (
            *across(
                "cleared",
                FEW,
                s.width,
                lambda i: (
                    Store(keys, (i,), const(0, keys.dtype)),
                    Store(rank, (i,), const(0, U32)),
                ),
                LoopKind.SERIAL,
            ),
            serial("keys", length, lambda i: (Store(keys, (i,), s.keys(d.front.read(i))[0]),)),
            counted(s, (keys,), rank, length),
            serial(
                "moved",
                length,
                lambda i: moved(d.front.read(i), d.back, load(rank, (i,)), index.constant(d.most)),
            ),
        )
        if d.ordered is d.front:
            body += (serial("back", length, lambda i: d.front.store(i, d.back.read(i))),)
        return allocated((keys, rank), body)

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
            return vectorized("lane", width, body)

        each = unrolled(
            "vector",
            count // width,
            lambda v: (
                lane(
                    lambda i: (
                        Accumulate(
                            (self.bests,),
                            (i,),
                            self.least,
                            (key(index.add(index.multiply(v, width), i)),),
                        ),
                    )
                ),
            ),
        )
        return allocated(
            (self.bests,),
            (
                lane(lambda i: (Store(self.bests, (i,), start),)),
                each,
                Store(self.best, (), start),
                lane(
                    lambda i: (Accumulate((self.best,), (), self.least, (load(self.bests, (i,)),)),)
                ),
            ),
        )

    def _collect(self, first: Expr, count: int) -> Body:
        """The candidates among some elements; when there is no room for more, only the first of
        them are kept."""
        full = apply("gt", load(self.held, ()), const(self.digits.most - BLOCK, U32))
        return (*self._taken(first, count), If(full, self._cut()))

    def _taken(self, first: Expr, count: int) -> Body:
        """The candidates among some elements."""
        s = self.sorting

        def take(i: Var) -> Body:
            values = s.given(self.at, index.add(first, i))
            wanted = self._is_wanted(s.keys(values)[0])
            to = as_index(load(self.held, ()))
            guard = apply("and", wanted, index.compare("lt", to, self.digits.most))
            return (
                *self.digits.front.store(to, values, guard),
                Store(
                    self.held,
                    (),
                    apply("add", load(self.held, ()), apply("convert", wanted, dtype=U32)),
                ),
            )

        return (serial("taken", count, take),)

    def _cut(self) -> Body:
        d, kept = self.digits, first_wanted(self.sorting.stage)
        steps = d.sorted(self._length())
        if d.ordered is not d.front:
            steps += across(
                "kept",
                kept,
                self.sorting.width,
                lambda i: d.front.store(i, d.ordered.read(i)),
                LoopKind.SERIAL,
            )
        last = self.sorting.keys(d.front.read(index.constant(kept - 1)))[0]
        return (
            *steps,
            Store(self.last, (), last),
            Store(self.ties, (), const(0, U32)),
            Store(self.held, (), const(kept, U32)),
        )
