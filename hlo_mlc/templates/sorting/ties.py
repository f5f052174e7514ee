"""Elements that are equal, but not the same: zeros of both signs, and NaNs.

Codes (codes.py) put them in an order of their own.  Where different ones of a range of codes are
there, which is rare, they are written once more, in the order in which they come.  Elements are
looked at in vectors for that, and one by one in blocks that have some of the range.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from hlo_mlc.expr import index
from hlo_mlc.expr.build import apply, as_index, const, load
from hlo_mlc.expr.core import Buffer, Expr, Var
from hlo_mlc.expr.dtypes import U32
from hlo_mlc.loops.core import Accumulate, If, Stmt, Store
from hlo_mlc.loops.rewrite import allocated, serial, vectorized
from hlo_mlc.templates.sorting.codes import Range
from hlo_mlc.templates.sorting.records import Body, as_number
from hlo_mlc.tensor.combine import named_combiner

KINDS = ("min", "max")
_OR = named_combiner("or", U32)
# Elements that are looked at together, and of these that ask together where they belong.
BLOCK, TAKEN = 64, 8


class Seen:
    """The smallest and the largest code of a range that were seen, in each of some lanes."""

    def __init__(self, name: str, codes: Range, like: Buffer, lanes: int) -> None:
        self.codes, self.lanes = codes, lanes
        self._ends = {
            kind: Buffer(f"{name}_{kind}", like.dtype, (lanes,), "register") for kind in KINDS
        }

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        return tuple(self._ends.values())

    def nothing(self) -> Stmt:
        """No code was seen."""
        return vectorized(
            "lane",
            self.lanes,
            lambda lane: tuple(
                Store(b, (lane,), self._none(kind)) for kind, b in self._ends.items()
            ),
        )

    def look(self, code: Expr, lane: Expr) -> Body:
        """One more code was."""
        return tuple(
            Accumulate(
                (b,),
                (lane,),
                named_combiner(kind, code.dtype),
                (apply("select", is_in(code, self.codes), code, self._none(kind)),),
            )
            for kind, b in self._ends.items()
        )

    def differ(self, into: Buffer) -> Stmt:
        """Let an element not be 0 if different ones were seen in some lane."""

        def one(lane: Expr) -> Body:
            least, most = (load(b, (lane,)) for b in self._ends.values())
            return (
                Accumulate(
                    (into,), (), _OR, (apply("convert", apply("lt", least, most), dtype=U32),)
                ),
            )

        return vectorized("lane", self.lanes, one)

    def keep(self, ends: Buffer, *place: Expr) -> Body:
        """Put the smallest and the largest of all lanes to `ends[place, 0]` and `[place, 1]`."""
        whole = [Buffer(f"{b.name}_whole", b.dtype, (), "register") for b in self.buffers]

        def one(lane: Expr) -> Body:
            return tuple(
                Accumulate((to,), (), named_combiner(kind, b.dtype), (load(b, (lane,)),))
                for to, (kind, b) in zip(whole, self._ends.items(), strict=True)
            )

        return allocated(
            whole,
            (
                *(Store(to, (), self._none(kind)) for to, kind in zip(whole, KINDS, strict=True)),
                vectorized("lane", self.lanes, one),
                *(
                    Store(ends, (*place, index.constant(n)), load(to, ()))
                    for n, to in enumerate(whole)
                ),
            ),
        )

    def _none(self, kind: str) -> Expr:
        return named_combiner(kind, self._ends[kind].dtype).identity[0]


def is_in(code: Expr, codes: Range) -> Expr:
    """Whether a code is one of a range."""
    low, high = (const(n, code.dtype) for n in (codes[0], codes[1] - codes[0]))
    return apply("le", apply("sub", code, low), high)


def first_in_order(position: Buffer, low: Expr, ordered: Callable[[Expr], Expr], size: int) -> Body:
    """In `position`: how many of `size` codes in order come before one."""
    highest = size.bit_length() - 1

    def step(k: Var) -> Body:
        bit = apply("sub", const(highest, U32), apply("convert", k, dtype=U32))
        here = load(position, ())
        there = apply("add", here, apply("shl", const(1, U32), bit))
        last = ordered(index.minimum(as_index(apply("sub", there, const(1, U32))), size - 1))
        comes_before = apply("and", apply("le", there, const(size, U32)), apply("lt", last, low))
        return (Store(position, (), apply("select", comes_before, there, here)),)

    return (Store(position, (), const(0, U32)), serial("bit", highest + 1, step))


def in_turn(
    name: str,
    low: Expr,
    span: Expr,
    lanes: int,
    count: int,
    given: Callable[[Expr], Expr],
    inside: Callable[[Expr], Expr] | None,
    found: Buffer,
    store: Callable[[Expr, Expr], Body],
) -> Body:
    """`store(k, code)` of the codes from `low` to `low + span` among `given(i)`, for each i below
    `count` that is `inside`, in the order in which they come: k of them came before, and `found` in
    the end.  `count` is so many whole vectors.

    Of blocks that have any all are stored, each where the next of the range belongs: there are no
    branches in them, which nobody could predict.  So what is stored last may be none of the range.
    """
    dtype, length = low.dtype, math.gcd(BLOCK, count)
    together = min(TAKEN, length)
    beyond = Buffer(f"{name}_beyond", dtype, (length,), "stack")
    nearest = Buffer(f"{name}_nearest", dtype, (lanes,), "register")
    least = Buffer(f"{name}_least", dtype, (), "register")
    smallest, none = named_combiner("min", dtype), const(-1, dtype)

    def distance(i: Expr) -> Expr:
        """How far a code is behind the first of the range: no further than the last."""
        value = apply("sub", given(i), low)
        return value if inside is None else apply("select", inside(i), value, none)

    def look(first: Expr) -> Body:
        body: list[Stmt] = []
        for v in range(length // lanes):
            own = index.constant(v * lanes)
            body.append(
                vectorized(
                    "lane",
                    lanes,
                    lambda lane, own=own: (
                        Store(
                            beyond,
                            (index.add(own, lane),),
                            distance(index.add(first, index.add(own, lane))),
                        ),
                    ),
                )
            )
            body.append(
                vectorized(
                    "lane",
                    lanes,
                    lambda lane, own=own: (
                        Accumulate(
                            (nearest,), (lane,), smallest, (load(beyond, (index.add(own, lane),)),)
                        ),
                    ),
                )
            )
        return tuple(body)

    def take(v: Expr) -> Body:
        """Some, which ask once whether there is room for all of them: they have come so far."""
        first = index.multiply(v, together)
        here = index.minimum(as_index(load(found, ())), count - together)
        stores: list[Stmt] = []
        for k in range(together):
            value = load(beyond, (index.add(first, k),))
            stores += store(here, apply("add", value, low))
            here = index.add(
                here,
                apply("select", apply("le", value, span), index.constant(1), index.constant(0)),
            )
        return (*stores, Store(found, (), as_number(here)))

    def block(b: Var) -> Body:
        return allocated(
            (beyond, nearest, least),
            (
                vectorized(
                    "lane", lanes, lambda lane: (Store(nearest, (lane,), smallest.identity[0]),)
                ),
                *look(index.multiply(b, length)),
                Store(least, (), smallest.identity[0]),
                vectorized(
                    "lane",
                    lanes,
                    lambda lane: (Accumulate((least,), (), smallest, (load(nearest, (lane,)),)),),
                ),
                If(
                    apply("le", load(least, ()), span), (serial("taken", length // together, take),)
                ),
            ),
        )

    return (Store(found, (), const(0, U32)), serial("block", count // length, block))
