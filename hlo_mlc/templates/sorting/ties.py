"""Elements that are equal, but not the same: zeros of both signs, and NaNs.

Codes (codes.py) put them in an order of their own.  Where different ones of a range of codes are
there, which is rare, they are written once more, in the order in which they come.  Elements are
looked at in vectors for that, and one by one in blocks that have some of the range.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from hlo_mlc.expr import index
from hlo_mlc.expr.build import as_index, compare, const, select
from hlo_mlc.expr.core import Buffer, Expr, Var
from hlo_mlc.expr.dtypes import U32
from hlo_mlc.loops.core import If, Stmt
from hlo_mlc.loops.rewrite import Steps, allocated, flat, serial, vectorized
from hlo_mlc.templates.by_hand import across, fold, read, store
from hlo_mlc.templates.sorting.codes import Range
from hlo_mlc.templates.sorting.lanes import Lanes
from hlo_mlc.templates.sorting.records import Body, as_number

KINDS = ("min", "max")
# Elements that are looked at together, and of these that ask together where they belong.
BLOCK, TAKEN = 64, 8


class Seen:
    """The smallest and the largest code of each range that were seen, in each of some lanes."""

    def __init__(self, name: str, ranges: Sequence[Range], like: Buffer, lanes: int) -> None:
        self.lanes = lanes
        self._ends = [
            (codes, [Lanes(f"{name}_{kind}{k}", kind, like.dtype, lanes) for kind in KINDS])
            for k, codes in enumerate(ranges)
        ]

    @property
    def buffers(self) -> list[Buffer]:
        return [end.buffer for _, ends in self._ends for end in ends]

    def look(self, count: int, code: Callable[[Expr, Expr], Expr]) -> Body:
        """Whatever `code(i, lane)` is for i below `count`."""

        def one(i: Expr, lane: Expr) -> Steps:
            return [
                end.take(select(is_in(code(i, lane), codes), code(i, lane), end.neutral), lane)
                for codes, ends in self._ends
                for end in ends
            ]

        return flat(
            [
                [end.start() for _, ends in self._ends for end in ends],
                serial(
                    "seen", count, lambda i: vectorized("lane", self.lanes, lambda r: one(i, r))
                ),
            ]
        )

    def differ(self, into: Buffer) -> Steps:
        """Let an element not be 0 if different ones of a range were seen in some lane."""

        def one(ends: Sequence[Lanes], lane: Expr) -> Stmt:
            least, most = (read(end.buffer, lane) for end in ends)
            return fold("or", into, as_number(compare("lt", least, most)))

        return vectorized(
            "lane", self.lanes, lambda lane: [one(ends, lane) for _, ends in self._ends]
        )

    def keep(self, kept: Buffer, *place: Expr) -> Steps:
        """Let `kept[place, k]` be the smallest and the largest of range k."""

        def one(end: Lanes, *there: int) -> Body:
            whole = Buffer(f"{end.buffer.name}_whole", kept.dtype, (), "register")
            return allocated((whole,), (end.whole(whole), store(kept, read(whole), *place, *there)))

        return [
            one(end, k, n) for k, (_, ends) in enumerate(self._ends) for n, end in enumerate(ends)
        ]


def is_in(code: Expr, codes: Range) -> Expr:
    """Whether a code is one of a range."""
    return compare("le", code - codes[0], codes[1] - codes[0])


def first_in_order(position: Buffer, low: Expr, ordered: Callable[[Expr], Expr], size: int) -> Body:
    """In `position`: how many of `size` codes in order come before one."""
    highest = size.bit_length() - 1

    def step(k: Var) -> Stmt:
        bit = highest - as_number(k)
        here = read(position)
        there = here + (const(1, U32) << bit)
        last = ordered(index.minimum(as_index(there - 1), size - 1))
        comes_before = compare("le", there, size) & compare("lt", last, low)
        return store(position, select(comes_before, there, here))

    return (store(position, 0), serial("bit", highest + 1, step))


def in_turn(
    name: str,
    low: Expr,
    span: Expr,
    lanes: int,
    count: int,
    given: Callable[[Expr], Expr],
    inside: Callable[[Expr], Expr] | None,
    found: Buffer,
    put: Callable[[Expr, Expr], Steps],
) -> Body:
    """`put(k, code)` of the codes from `low` to `low + span` among `given(i)`, for each i below
    `count` that is `inside`, in the order in which they come: k of them came before, and `found` in
    the end.  `count` is so many whole vectors.

    Of blocks that have any all are stored, each where the next of the range belongs: there are no
    branches in them, which nobody could predict.  So what is stored last may be none of the range.
    """
    dtype, length = low.dtype, math.gcd(BLOCK, count)
    together = min(TAKEN, length)
    beyond = Buffer(f"{name}_beyond", dtype, (length,), "stack")
    least = Buffer(f"{name}_least", dtype, (), "register")
    nearest = Lanes(f"{name}_nearest", "min", dtype, lanes)

    def distance(i: Expr) -> Expr:
        """How far a code is behind the first of the range: no further than the last."""
        value = given(i) - low
        return value if inside is None else select(inside(i), value, -1)

    def take(v: Expr) -> Steps:
        """Some, which ask once whether there is room for all of them: they have come so far."""
        first = v * together
        here = index.minimum(as_index(read(found)), count - together)
        stores: list[Steps] = []
        for k in range(together):
            value = read(beyond, first + k)
            stores.append(put(here, value + low))
            here = here + select(compare("le", value, span), index.constant(1), 0)
        return (stores, store(found, as_number(here)))

    def block(b: Var) -> Body:
        begin = b * length

        def look(i: Expr) -> Body:
            return (store(beyond, distance(begin + i), i), nearest.take(read(beyond, i), i % lanes))

        return allocated(
            (beyond, nearest.buffer, least),
            (
                nearest.start(),
                *across("looked", length, lanes, look),
                *nearest.whole(least),
                If(compare("le", read(least), span), (serial("taken", length // together, take),)),
            ),
        )

    return (store(found, 0), serial("block", count // length, block))
