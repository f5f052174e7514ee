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
from hlo_mlc.expr.build import as_index, compare, select
from hlo_mlc.expr.core import Buffer, Expr, Var
from hlo_mlc.expr.dtypes import U32
from hlo_mlc.loops.core import If, LoopKind, Stmt
from hlo_mlc.loops.rewrite import Steps, allocated, serial, when
from hlo_mlc.templates.base import decoded
from hlo_mlc.templates.by_hand import across, fold, read, shared_out, store
from hlo_mlc.templates.sorting.digits import Digits
from hlo_mlc.templates.sorting.lanes import Lanes
from hlo_mlc.templates.sorting.ranks import counted
from hlo_mlc.templates.sorting.records import (
    STACK,
    Body,
    Room,
    Sorting,
    alone,
    as_number,
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
        self.held = Buffer(f"{name}_held", U32, (), "register")
        self.last, self.best = (
            Buffer(f"{name}_{what}", key, (), "register") for what in ("last", "best")
        )
        self.smallest = Lanes(f"{name}_bests", "min", key, sorting.width)

    def row(self) -> Body:
        """The loops of a row."""
        s, n = self.sorting, self.sorting.element.extent
        blocks, rest = divmod(n, BLOCK)

        def block(first: Expr) -> Body:
            parts = serial("part", BLOCK // s.width, lambda v: part(first + v * s.width))
            return self._where_wanted(first, BLOCK, parts)

        def part(here: Expr) -> Body:
            return self._where_wanted(here, s.width, self._collect(here, s.width))

        # For what is left over there is room in any case, and nothing behind it.
        left = self._taken(index.constant(blocks * BLOCK), rest) if rest else ()
        is_few = compare("le", read(self.held), FEW)
        in_order = self.digits.sorted(self._length(), in_a_loop=True)  # once a row
        return allocated(
            (self.held, self.last, self.best),
            (
                store(self.held, 0),
                self._limit(),
                serial("block", blocks, lambda b: block(b * BLOCK)),
                left,
                If(is_few, self._few_in_order(), in_order),
                s.hand_out(self.digits.ordered, self.at),
            ),
        )

    def _length(self, most: int | None = None) -> Expr:
        return index.minimum(as_index(read(self.held)), most or self.digits.most)

    def _is_wanted(self, key: Expr) -> Expr:
        """Whether it comes before the last of those that are kept; until there are as many as are
        wanted, none of them behind the limit, whether it does not come behind that either."""
        kept = first_wanted(self.sorting.stage)
        tied = compare("eq", key, read(self.last)) & compare("lt", read(self.held), kept)
        return compare("lt", key, read(self.last)) | tied

    def _limit(self) -> Body:
        """A key that no wanted element's comes behind."""
        s, n, kept = self.sorting, self.sorting.element.extent, first_wanted(self.sorting.stage)
        groups = group_count(kept, n, s.width)
        start = self.smallest.neutral
        if not groups:
            return (store(self.last, start),)
        vectors, key, name = groups // s.width, self.last.dtype, s.stage.name
        found = Buffer(f"{name}_found", key, (groups,), "stack")
        less = Buffer(f"{name}_less", U32, (groups,), "stack")
        inner, kind = found, LoopKind.SERIAL
        if vectors <= IN_REGISTERS:
            inner, kind = Buffer(f"{name}_groups", key, (groups,), "register"), LoopKind.UNROLL

        def each(
            name: str, body: Callable[[Expr], Steps], kind: LoopKind = LoopKind.SERIAL
        ) -> Body:
            return across(name, groups, s.width, body, kind)

        def smallest(first: Expr, i: Expr) -> Stmt:
            return fold("min", inner, self._key(first + i), i)

        def below(h: Expr, i: Expr) -> Stmt:
            return fold("add", less, as_number(compare("lt", read(found, h), read(found, i))), i)

        def last(i: Expr) -> Stmt:
            is_first = compare("lt", read(less, i), kept)
            return fold("max", self.last, select(is_first, read(found, i), lowest))

        lowest = named_combiner("max", key).identity[0]
        # Of n elements in r rounds n / r are up to the limit, or fewer.
        rounds = min(n // groups, math.isqrt(TAKEN * n // groups))
        apart = n // rounds
        return allocated(
            dict.fromkeys((found, less, inner)),
            (
                each("start", lambda i: store(inner, start, i), kind),
                serial(
                    "round",
                    rounds,
                    lambda r: each("group", functools.partial(smallest, r * apart), kind),
                ),
                each("found", lambda i: store(found, read(inner, i), i), kind)
                if inner is not found
                else (),
                each("less", lambda i: store(less, 0, i)),
                serial("other", groups, lambda h: each("below", functools.partial(below, h), kind)),
                store(self.last, lowest),
                each("last", last),
            ),
        )

    def _few_in_order(self) -> Body:
        """The candidates, where there are few, go to the places that tell how many come before."""
        d, s, length = self.digits, self.sorting, self._length(FEW)
        keys = Buffer(f"{s.stage.name}_keys", self.last.dtype, (FEW,), "stack")
        rank = Buffer(f"{s.stage.name}_rank", U32, (FEW,), "stack")

        def put(i: Expr) -> Body:
            return moved(d.front.read(i), d.back, read(rank, i), index.constant(d.most))

        back = serial("back", length, lambda i: d.front.store(i, d.back.read(i)))
        return allocated(
            (keys, rank),
            (
                s.vectors("cleared", FEW, lambda i: (store(keys, 0, i), store(rank, 0, i))),
                serial("keys", length, lambda i: store(keys, s.keys(d.front.read(i))[0], i)),
                counted(s, (keys,), rank, length),
                serial("moved", length, put),
                back if d.ordered is d.front else (),
            ),
        )

    def _key(self, position: Expr) -> Expr:
        return self.sorting.keys(self.sorting.given(self.at, position))[0]

    def _where_wanted(self, first: Expr, count: int, body: Steps) -> Body:
        """`body`, if some of the elements from `first` on may be among the first few."""
        smallest = self.smallest
        return (
            *allocated(
                (smallest.buffer,),
                (
                    smallest.start(),
                    smallest.take_all(count, lambda i: self._key(first + i)),
                    smallest.whole(self.best),
                ),
            ),
            *when(self._is_wanted(read(self.best)), body),
        )

    def _collect(self, first: Expr, count: int) -> Body:
        """The candidates among some elements; when there is no room for more, only the first of
        them are kept."""
        full = compare("gt", read(self.held), self.digits.most - BLOCK)
        return (*self._taken(first, count), *when(full, self._cut()))

    def _taken(self, first: Expr, count: int) -> Body:
        """The candidates among some elements."""
        s = self.sorting

        def take(i: Var) -> Body:
            values = s.given(self.at, first + i)
            wanted = self._is_wanted(s.keys(values)[0])
            to = as_index(read(self.held))
            guard = wanted & compare("lt", to, self.digits.most)
            return (
                *self.digits.front.store(to, values, guard),
                store(self.held, read(self.held) + as_number(wanted)),
            )

        return (serial("taken", count, take),)

    def _cut(self) -> Body:
        d, kept = self.digits, first_wanted(self.sorting.stage)
        back = self.sorting.vectors("kept", kept, lambda i: d.front.store(i, d.ordered.read(i)))
        last = self.sorting.keys(d.front.read(index.constant(kept - 1)))[0]
        return (
            *d.sorted(self._length()),
            *(back if d.ordered is not d.front else ()),
            store(self.last, last),
            store(self.held, kept),
        )
