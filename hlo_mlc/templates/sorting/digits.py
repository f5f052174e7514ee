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
from hlo_mlc.expr.build import as_index, compare, convert
from hlo_mlc.expr.core import Buffer, Const, Expr, Var
from hlo_mlc.expr.dtypes import U8, U16, U32
from hlo_mlc.loops.rewrite import Steps, allocated, serial, when
from hlo_mlc.templates.base import decoded
from hlo_mlc.templates.by_hand import fold, read, shared_out, store
from hlo_mlc.templates.sorting.records import (
    MOVED,
    STACK,
    Body,
    Room,
    Sorting,
    alone,
    as_number,
    in_row,
    moved,
)

# Records from which on digits are counted in several places, and in how many.
LONG, PLACES = 4096, 2


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
        body = (
            *sorting.fill(digits.front, at, begin, n),
            *digits.sorted(index.constant(n)),
            *sorting.hand_out(digits.ordered, at),
        )
        return allocated((*front, *back), body) if private else body

    total = sorting.rows * n * MOVED * (len(sorting.digits) + 2)
    return shared_out(sorting.stage.name, sorting.rows, total, row)


@dataclass(frozen=True, slots=True)
class _Digit:
    """One of the digits: of which key, the how manieth of all, and its lowest bit."""

    key: int
    number: Expr
    bit: Expr


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

    def sorted(self, length: Expr, in_a_loop: bool = False) -> Body:
        """`length` records, put in order; two digits are passed over where all have the same.

        `in_a_loop`: pairs of digits of a key are a loop, which takes half as long to compile, and
        5 to 10 % longer to run: where a digit is, it has to be told, and not its byte loaded.
        """
        digits = [
            _Digit(key, index.constant(d), index.constant(bit))
            for d, (key, bit) in enumerate(self.sorting.digits)
        ]
        counts = Buffer(
            f"{self.sorting.stage.name}_counts",
            U32,
            (len(digits), self._places, self._counters),
            "stack",
        )

        def clear(d: Expr, q: Expr) -> Body:
            return self.sorting.vectors(
                "digit", self._counters, lambda i: store(counts, 0, d, q, i)
            )

        first = self.front.read(index.constant(0))

        def count(q: int, i: Expr) -> Body:
            record = self.front.read(i)
            return tuple(
                fold("add", counts, 1, *self._counter(d, q, self._digit(d, record))) for d in digits
            )

        def differ(d: _Digit) -> Expr:
            same = self._counted(
                counts, functools.partial(self._counter, d, digit=self._digit(d, first))
            )
            return compare("ne", same, as_number(length))

        def two(one: _Digit, other: _Digit) -> Body:
            there = self._pass(counts, one, self.front, self.back, length)
            back = self._pass(counts, other, self.back, self.front, length)
            return when(differ(one) | differ(other), (there, back))

        def further(begin: int, pair: Expr) -> Body:
            return two(*(self._further(digit, pair) for digit in digits[begin : begin + 2]))

        passes: list[Steps] = []
        begin = 0
        while begin + 1 < len(digits):
            pairs = self._pairs(begin) if in_a_loop else 1
            if pairs < 2:
                passes.append(two(*digits[begin : begin + 2]))
            else:
                passes.append(serial("pair", pairs, functools.partial(further, begin)))
            begin += 2 * max(pairs, 1)
        if begin < len(digits):
            passes.append(self._pass(counts, digits[begin], self.front, self.back, length))
        cleared = serial(
            "cleared",
            len(digits),
            lambda d: serial("places", self._places, functools.partial(clear, d)),
        )
        return allocated((counts,), (cleared, self._in_places(length, count), passes))

    def _pairs(self, begin: int) -> int:
        """How many pairs of digits from one on are of the same key: these differ in numbers
        alone."""
        digits = self.sorting.digits
        key, _ = digits[begin]
        return sum(k == key for k, _ in digits[begin:]) // 2

    def _further(self, digit: _Digit, pair: Expr) -> _Digit:
        """The same digit of a later pair."""
        ahead = pair * 2
        bits = ahead * self.sorting.digit
        return _Digit(digit.key, digit.number + ahead, digit.bit + bits)

    def _in_places(self, length: Expr, body: Callable[[int, Expr], Body]) -> Body:
        """`body(place, record)` for all records."""
        places = self._places
        part = length // places

        def together(i: Var) -> Body:
            return tuple(s for q in range(places) for s in body(q, part * q + i))

        done = part * places
        rest = serial("counted_last", length - done, lambda i: body(0, done + i))
        return (serial("counted", part, together), *((rest,) if places > 1 else ()))

    def _counted(self, counts: Buffer, counter: Callable[[int], tuple[Expr, ...]]) -> Expr:
        """The records that were counted in all places."""
        first, *others = (read(counts, *counter(q)) for q in range(self._places))
        return sum(others, first)

    def _digit(self, digit: _Digit, values: Sequence[Expr]) -> Expr:
        """A digit of a record, an integer of 16 bits at most."""
        value = self.sorting.keys(values)[digit.key]
        bit = convert(digit.bit, value.dtype)
        if not isinstance(digit.bit, Const):  # below the bits there are, as only this tells LLVM
            bit = bit & (value.dtype.bits - 1)
        shifted = value >> bit
        if self.sorting.digit == U8.bits:
            return convert(shifted, U8)
        return convert(shifted & (self._counters - 1), U16)

    def _counter(self, which: _Digit, place: int, digit: Expr) -> tuple[Expr, ...]:
        """Where the records of a place with a digit are counted."""
        most = index.constant(self._counters - 1)
        return which.number, index.constant(place), index.minimum(as_index(digit), most)

    def _pass(self, counts: Buffer, which: _Digit, front: Room, back: Room, length: Expr) -> Body:
        """Where the records with each digit begin, then every record to the next place of its."""
        name = self.sorting.stage.name
        total, own = (Buffer(f"{name}_{what}", U32, (), "register") for what in ("total", "own"))
        dtype = U8 if self.sorting.digit == U8.bits else U16
        digit = Buffer(f"{name}_digit", dtype, (), "register")

        def begin(d: Var) -> Body:
            def counter(q: int) -> tuple[Expr, ...]:
                return which.number, index.constant(q), d

            return (
                store(own, self._counted(counts, counter)),
                store(counts, read(total), *counter(0)),
                store(total, read(total) + read(own)),
            )

        def move(i: Expr) -> Body:
            counter = self._counter(which, 0, read(digit))
            record = front.read(i)
            return (
                store(digit, self._digit(which, record)),
                store(own, read(counts, *counter)),
                *moved(record, back, read(own), length),
                store(counts, read(own) + 1, *counter),
            )

        return allocated(
            (total, own, digit),
            (
                store(total, 0),
                serial("digit", self._counters, begin),
                serial("moved", length, move),
            ),
        )
