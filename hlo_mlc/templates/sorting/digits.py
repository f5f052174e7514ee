"""Radix sort from the lowest digit: count the digits, then move every record to where the ones with
its digit begin, digit by digit.

A counter that was just written is read again by the next record with the same digit, which waits
for it; so digits of long rows are counted in several places at once, with counters for each.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hlo_mlc.expr import index
from hlo_mlc.expr.build import apply, as_index, const, load
from hlo_mlc.expr.core import Buffer, Expr, Var
from hlo_mlc.expr.dtypes import U8, U16, U32
from hlo_mlc.loops.core import Accumulate, If, LoopKind, Stmt, Store
from hlo_mlc.loops.rewrite import allocated, loop
from hlo_mlc.templates.base import across, decoded, shared_out
from hlo_mlc.templates.sorting.records import (
    MOVED,
    STACK,
    Body,
    Room,
    Sorting,
    alone,
    in_row,
    moved,
)
from hlo_mlc.tensor.combine import named_combiner

# Records from which on digits are counted in several places, and in how many.
LONG, PLACES = 4096, 2
_ADD = named_combiner("add", U32)
_ONE = const(1, U32)


def by_digits(sorting: Sorting) -> Body:
    """Each row in a task of its own."""
    n = sorting.element.extent
    private = 2 * n * sorting.bytes <= STACK
    shape, scope = ((n,), "stack") if private else ((sorting.rows, n), "scratch")
    front = sorting.records("front", shape, scope)
    back = sorting.records("back", shape, scope, in_results=not private and sorting.comes_back)

    def row(number: Expr) -> Body:
        at = decoded(sorting.outer, number)
        place = alone if private else functools.partial(in_row, number)
        begin = index.constant(0)
        digits = Digits(sorting, Room.of(front, place), sorting.room(back, place, at, begin), n)
        body = (*sorting.fill(digits.front, at, begin, n), *digits.sorted(index.constant(n)),
                *sorting.hand_out(digits.ordered, at))
        return allocated((*front, *back), body) if private else body

    total = sorting.rows * n * MOVED * (len(sorting.digits) + 2)
    return shared_out(sorting.stage.name, sorting.rows, total, row)


@dataclass(frozen=True, slots=True)
class Digits:
    """Up to `most` records that lie in `front`, with room to move them in `back`."""

    sorting: Sorting
    front: Room
    back: Room
    most: int

    @property
    def ordered(self) -> Room:
        """Where records are when they have been put in order."""
        return self.front if self.sorting.comes_back else self.back

    @property
    def _places(self) -> int:
        return PLACES if self.most >= LONG else 1

    @property
    def _counters(self) -> int:
        return 1 << self.sorting.digit

    def sorted(self, length: Expr) -> Body:
        """`length` records, put in order; two digits are passed over where all have the same."""
        digits = range(len(self.sorting.digits))
        counts = Buffer(f"{self.sorting.stage.name}_counts", U32,
                        (len(digits), self._places, self._counters), "stack")
        zero = loop("cleared", len(digits), LoopKind.SERIAL, lambda d: (
            loop("places", self._places, LoopKind.SERIAL, lambda q: across(
                "digit", self._counters, self.sorting.width,
                lambda i: (Store(counts, (d, q, i), const(0, U32)),), LoopKind.SERIAL)),))
        first = self.front.read(index.constant(0))

        def count(q: int, i: Expr) -> Body:
            record = self.front.read(i)
            return tuple(Accumulate((counts,), self._counter(d, q, self._digit(d, record)), _ADD,
                                    (_ONE,)) for d in digits)

        def differ(d: int) -> Expr:
            same = self._counted(counts, functools.partial(
                self._counter, d, digit=self._digit(d, first)))
            return apply("ne", same, apply("convert", length, dtype=U32))

        body: list[Stmt] = [zero, *self._in_places(length, count)]
        front, back = self.front, self.back
        for d in digits[::2]:
            steps = self._pass(counts, d, front, back, length)
            if d + 1 == len(digits):
                body += steps
                break
            steps += self._pass(counts, d + 1, back, front, length)
            body.append(If(apply("or", differ(d), differ(d + 1)), steps))
        return allocated((counts,), tuple(body))

    def _in_places(self, length: Expr, body: Callable[[int, Expr], Body]) -> Body:
        """`body(place, record)` for all records."""
        places = self._places
        part = index.floordiv(length, places)

        def together(i: Var) -> Body:
            return tuple(s for q in range(places) for s in body(
                q, index.add(index.multiply(part, index.constant(q)), i)))

        done = index.multiply(part, index.constant(places))
        rest = loop("counted_last", index.subtract(length, done), LoopKind.SERIAL,
                    lambda i: body(0, index.add(done, i)))
        return (loop("counted", part, LoopKind.SERIAL, together), *((rest,) if places > 1 else ()))

    def _counted(self, counts: Buffer, counter: Callable[[int], tuple[Expr, ...]]) -> Expr:
        """The records that were counted in all places."""
        return functools.reduce(functools.partial(apply, "add"), [
            load(counts, counter(q)) for q in range(self._places)])

    def _digit(self, number: int, values: Sequence[Expr]) -> Expr:
        """A digit of a record, an integer of 16 bits at most."""
        key, bit = self.sorting.digits[number]
        value = self.sorting.keys(values)[key]
        shifted = apply("shr_logical", value, const(bit, value.dtype)) if bit else value
        if self.sorting.digit == U8.bits:
            return apply("convert", shifted, dtype=U8)
        low = apply("and", shifted, const(self._counters - 1, value.dtype))
        return apply("convert", low, dtype=U16)

    def _counter(self, number: int, place: int, digit: Expr) -> tuple[Expr, ...]:
        """Where the records of a place with a digit are counted."""
        most = index.constant(self._counters - 1)
        return index.constant(number), index.constant(place), index.minimum(as_index(digit), most)

    def _pass(self, counts: Buffer, number: int, front: Room, back: Room, length: Expr) -> Body:
        """Where the records with each digit begin, then every record to the next place of its."""
        name = self.sorting.stage.name
        total, own = (Buffer(f"{name}_{what}", U32, (), "register") for what in ("total", "own"))
        digit = Buffer(f"{name}_digit", U8 if self.sorting.digit == U8.bits else U16, (),
                       "register")

        def begin(d: Var) -> Body:
            def counter(q: int) -> tuple[Expr, ...]:
                return index.constant(number), index.constant(q), d

            return (Store(own, (), self._counted(counts, counter)),
                    Store(counts, counter(0), load(total, ())),
                    Store(total, (), apply("add", load(total, ()), load(own, ()))))

        def move(i: Expr) -> Body:
            counter = self._counter(number, 0, load(digit, ()))
            record = front.read(i)
            return (Store(digit, (), self._digit(number, record)),
                    Store(own, (), load(counts, counter)),
                    *moved(record, back, load(own, ()), length),
                    Store(counts, counter, apply("add", load(own, ()), _ONE)))

        return allocated((total, own, digit), (
            Store(total, (), const(0, U32)),
            loop("digit", self._counters, LoopKind.SERIAL, begin),
            loop("moved", length, LoopKind.SERIAL, move)))
