"""A few places of rows: the key that takes a place is found bit by bit, from the highest.

How many keys come before one whose next bit is set says whether it is: all of a row are compared,
in vectors.  Where a bit tells none apart of those that are left, the smallest and the largest of
them say which is the next one that does, if there is any.  Where few are left, these are collected,
and more bits found among them, until one is left or all that are have the same key.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from hlo_mlc.expr import index
from hlo_mlc.expr.build import as_index, compare, const, select
from hlo_mlc.expr.core import Buffer, Expr, Var
from hlo_mlc.expr.dtypes import BOOL, U32
from hlo_mlc.loops.core import If, While
from hlo_mlc.loops.rewrite import allocated, serial
from hlo_mlc.templates.base import decoded
from hlo_mlc.templates.by_hand import in_parts, read, shared_out, store
from hlo_mlc.templates.sorting.lanes import Lanes
from hlo_mlc.templates.sorting.records import STACK, Body, Place, Sorting, alone, as_number, in_row

# Elements that are looked at together, those left that are collected, and elements of a row from
# which on that pays.
BLOCK, LEFT, LONG = 64, 512, 4096
# Stages of a kernel, each of which looks for places, that may have their keys on the stack.
_AT_ONCE = 4
_ZERO, _NONE = const(0, U32), index.constant(0)


def by_bits(sorting: Sorting) -> Body:
    """Each row in a task of its own."""
    n, (key,) = sorting.element.extent, sorting.stage.sort.keys
    private = n * key.dtype.bytes <= STACK // _AT_ONCE
    keys = Buffer(
        f"{sorting.stage.name}_keys",
        key.dtype,
        (n,) if private else (sorting.rows, n),
        "stack" if private else "scratch",
    )
    if not private:
        sorting.scratch.append(keys)

    def row(number: Expr) -> Body:
        at = decoded(sorting.outer, number)
        place = alone if private else functools.partial(in_row, number)
        search = _Search(sorting, keys, place, at)
        body = (
            *sorting.vectors(
                "fill", n, lambda i: store(keys, sorting.keys(sorting.given(at, i))[0], *place(i))
            ),
            serial("place", sorting.stage.sort.place.extent, search.one),
        )
        return allocated((keys,), body) if private else body

    places = sorting.stage.sort.place.extent
    total = sorting.rows * n * places * key.dtype.bits // sorting.width
    return shared_out(sorting.stage.name, sorting.rows, total, row)


class _Search:
    """Places of one row: its keys are from `low` to `low + mask` until nothing is left of that."""

    def __init__(self, sorting: Sorting, keys: Buffer, place: Place, at: dict[Var, Expr]) -> None:
        self.sorting, self.keys, self.place, self.at = sorting, keys, place, at
        self.n = sorting.element.extent
        self.low, self.mask, self.trial, self.best = (
            Buffer(f"{sorting.stage.name}_{name}", keys.dtype, (), "register")
            for name in ("low", "mask", "trial", "best")
        )
        self.rank, self.below, self.above, self.count, self.seen, self.earlier = (
            Buffer(f"{sorting.stage.name}_{name}", U32, (), "register")
            for name in ("rank", "below", "above", "count", "seen", "earlier")
        )
        self.goes = Buffer(f"{sorting.stage.name}_goes", BOOL, (), "register")
        self.few = Buffer(f"{sorting.stage.name}_few", keys.dtype, (LEFT,), "stack")

    def one(self, number: Expr) -> Body:
        """The results at one place."""
        start = (
            store(self.rank, as_number(self.sorting.rank(self.at, number))),
            store(self.low, 0),
            store(self.mask, -1),
            store(self.below, 0),
            store(self.above, self.n),
        )
        most = LEFT if self.n >= LONG else 1
        comes_first = self._counted(self.n, lambda i: compare("lt", self._key(i), read(self.trial)))
        found: Body = (
            While(
                self._more_than(most),
                (
                    store(self.earlier, self._left()),
                    *self._step(comes_first),
                    If(compare("eq", self._left(), read(self.earlier)), self._spanned()),
                ),
            ),
        )
        if most > 1:
            found += (If(self._more_than(1), self._among_few()),)
        keys = (self.low, self.mask, self.trial)
        counts = (self.rank, self.below, self.above, self.count, self.earlier)
        return allocated((*keys, self.goes, *counts), (*start, *found, *self._hand_out(number)))

    def _more_than(self, most: int) -> Expr:
        """Whether more keys have all bits found so far, and there are bits in which they differ."""
        return compare("ne", read(self.mask), 0) & compare("gt", self._left(), most)

    def _left(self) -> Expr:
        return read(self.above) - read(self.below)

    def _beyond(self, i: Expr) -> Expr:
        """At most `mask` where a key has all bits found so far."""
        return self._key(i) - read(self.low)

    def _is_left(self, i: Expr) -> Expr:
        return compare("le", self._beyond(i), read(self.mask))

    def _key(self, i: Expr) -> Expr:
        return read(self.keys, *self.place(i))

    def _step(self, counted: Body) -> Body:
        """One more bit, by how many keys come before the one that has it."""
        half = read(self.mask) >> 1
        bit = read(self.mask) ^ half
        goes, count = read(self.goes), read(self.count)
        return (
            store(self.trial, read(self.low) | bit),
            *counted,
            store(self.goes, compare("le", count, read(self.rank))),
            store(self.below, select(goes, count, read(self.below))),
            store(self.above, select(goes, read(self.above), count)),
            store(self.low, select(goes, read(self.trial), read(self.low))),
            store(self.mask, half),
        )

    def _counted(
        self, n: int, holds: Callable[[Expr], Expr], first: Expr = _NONE, before: Expr = _ZERO
    ) -> Body:
        """In `count`: of how many elements, from the first on, something holds, and so many."""
        lanes = Lanes(f"{self.sorting.stage.name}_lanes", "add", U32, self.sorting.width)

        def some(begin: Expr, count: int) -> Body:
            return lanes.take_all(count, lambda i: as_number(holds(first + begin + i)))

        counted = in_parts("block", n, BLOCK, some) if n > BLOCK else some(_NONE, n)
        return allocated(
            (lanes.buffer,), (lanes.start(), *counted, *lanes.whole(self.count, before))
        )

    def _spanned(self) -> Body:
        """From the first bit on in which the keys that are left differ."""
        name, dtype, width = self.sorting.stage.name, self.keys.dtype, self.sorting.width
        lanes = [Lanes(f"{name}_{op}s", op, dtype, width) for op in ("min", "max")]
        ends = [Buffer(f"{name}_{one.op}", dtype, (), "register") for one in lanes]

        def look(i: Expr) -> Body:
            return tuple(
                one.take(select(self._is_left(i), self._key(i), one.neutral), i % width)
                for one in lanes
            )

        least, most = map(read, ends)
        differs = least ^ most
        for power in range(dtype.bits.bit_length() - 1):
            differs = differs | (differs >> (1 << power))
        return allocated(
            (*ends, *(one.buffer for one in lanes)),
            (
                *(one.start() for one in lanes),
                *self.sorting.vectors("look", self.n, look),
                *(s for one, end in zip(lanes, ends, strict=True) for s in one.whole(end)),
                store(self.mask, differs),
                store(self.low, least & ~read(self.mask)),
            ),
        )

    def _among_few(self) -> Body:
        """The bits that are left, found among the keys that have all bits found so far."""
        few, base = self.few, self.seen
        # What comes before no other.
        cleared = self.sorting.vectors("few", LEFT, lambda i: store(few, -1, i))
        steps = self._step(
            self._counted(
                LEFT, lambda i: compare("lt", read(few, i), read(self.trial)), before=read(base)
            )
        )
        return allocated(
            (few, base),
            (
                *cleared,
                store(self.count, 0),
                *self._collect(),
                store(base, read(self.below)),
                While(self._more_than(1), steps),
            ),
        )

    def _collect(self) -> Body:
        """In `few`: the keys that have all bits found so far, `count` of them."""
        held, lanes = (
            self.count,
            Lanes(f"{self.sorting.stage.name}_bests", "min", self.best.dtype, self.sorting.width),
        )

        def take(i: Expr) -> Body:
            wanted = self._is_left(i)
            to = as_index(read(held))
            return (
                store(self.few, self._key(i), to, guard=wanted & compare("lt", to, LEFT)),
                store(held, read(held) + as_number(wanted)),
            )

        def block(begin: Expr, count: int) -> Body:
            taken = serial("taken", count, lambda i: take(begin + i))
            if count < BLOCK:
                return (taken,)
            return allocated(
                (self.best, lanes.buffer),
                (
                    lanes.start(),
                    *lanes.take_all(count, lambda i: self._beyond(begin + i)),
                    *lanes.whole(self.best),
                    If(compare("le", read(self.best), read(self.mask)), (taken,)),
                ),
            )

        return in_parts("block", self.n, BLOCK, block)

    def _hand_out(self, number: Expr) -> Body:
        """The element that takes the place: of those that are left, which have one key, as many
        come before it as places are left."""
        s, n, seen = self.sorting, self.n, self.seen
        left = read(self.rank) - read(self.below)
        begin, before, position = (
            Buffer(f"{s.stage.name}_{name}", U32, (), "register")
            for name in ("begin", "before", "position")
        )

        def unless_behind(count: Buffer, **new: Expr) -> Body:
            """Stored as long as what is looked for is not behind what was counted."""
            not_yet = compare("le", read(count), left)
            return tuple(
                store(b, select(not_yet, new[name], read(b)))
                for name, b in (("begin", begin), ("before", before), ("position", position))
                if name in new
            )

        def block(first: Expr, count: int) -> Body:
            return (
                *unless_behind(seen, begin=as_number(first), before=read(seen)),
                *self._counted(count, self._is_left, first),
                store(seen, read(seen) + read(self.count)),
            )

        def one(i: Var) -> Body:
            here = index.minimum(as_index(read(begin)) + i, n - 1)
            found = as_number(self._is_left(here))
            return (
                *unless_behind(before, position=as_number(here)),
                store(before, read(before) + found),
            )

        there = index.minimum(as_index(read(position)), n - 1)
        return allocated(
            (seen, begin, before, position),
            (
                *(store(b, 0) for b in (seen, begin, before, position)),
                *in_parts("block", n, BLOCK, block),
                serial("one", min(n, BLOCK), one),
                *s.results(self.at, number, s.given(self.at, there)),
            ),
        )
