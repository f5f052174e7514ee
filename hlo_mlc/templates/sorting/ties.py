"""Elements that are equal, but not the same: zeros of both signs, and NaNs.

Codes (codes.py) put them in an order of their own.  Where different ones of a range of codes are
there, which is rare, they are written once more, in the order in which they come.
"""

from __future__ import annotations

from collections.abc import Callable

from hlo_mlc.expr import index
from hlo_mlc.expr.build import apply, as_index, const, load
from hlo_mlc.expr.core import Buffer, Expr, Var
from hlo_mlc.expr.dtypes import U32
from hlo_mlc.loops.core import Accumulate, LoopKind, Stmt, Store
from hlo_mlc.loops.rewrite import allocated, loop
from hlo_mlc.templates.sorting.codes import Range
from hlo_mlc.templates.sorting.records import Body, Place
from hlo_mlc.tensor.combine import named_combiner

KINDS = ("min", "max")
_OR = named_combiner("or", U32)


class Seen:
    """The smallest and the largest code of a range that were seen, in each of some lanes."""

    def __init__(self, name: str, codes: Range, like: Buffer, lanes: int) -> None:
        self.codes, self.lanes = codes, lanes
        self._ends = {kind: Buffer(f"{name}_{kind}", like.dtype, (lanes,), "register")
                      for kind in KINDS}

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        return tuple(self._ends.values())

    def nothing(self) -> Stmt:
        """No code was seen."""
        return loop("lane", self.lanes, LoopKind.VECTORIZE, lambda lane: tuple(
            Store(b, (lane,), self._none(kind)) for kind, b in self._ends.items()))

    def look(self, code: Expr, lane: Expr) -> Body:
        """One more code was."""
        return tuple(Accumulate(
            (b,), (lane,), named_combiner(kind, code.dtype),
            (apply("select", is_in(code, self.codes), code, self._none(kind)),))
            for kind, b in self._ends.items())

    def differ(self, into: Buffer) -> Stmt:
        """Let an element not be 0 if different ones were seen in some lane."""
        def one(lane: Expr) -> Body:
            least, most = (load(b, (lane,)) for b in self._ends.values())
            return (Accumulate((into,), (), _OR, (
                apply("convert", apply("lt", least, most), dtype=U32),)),)

        return loop("lane", self.lanes, LoopKind.VECTORIZE, one)

    def keep(self, ends: Buffer, *place: Expr) -> Body:
        """Put the smallest and the largest of all lanes to `ends[place, 0]` and `[place, 1]`."""
        whole = [Buffer(f"{b.name}_whole", b.dtype, (), "register") for b in self.buffers]

        def one(lane: Expr) -> Body:
            return tuple(Accumulate((to,), (), named_combiner(kind, b.dtype), (load(b, (lane,)),))
                         for to, (kind, b) in zip(whole, self._ends.items(), strict=True))

        return allocated(whole, (
            *(Store(to, (), self._none(kind)) for to, kind in zip(whole, KINDS, strict=True)),
            loop("lane", self.lanes, LoopKind.VECTORIZE, one),
            *(Store(ends, (*place, index.constant(n)), load(to, ()))
              for n, to in enumerate(whole))))

    def _none(self, kind: str) -> Expr:
        return named_combiner(kind, self._ends[kind].dtype).identity[0]


def is_in(code: Expr, codes: Range) -> Expr:
    """Whether a code is one of a range."""
    low, high = (const(n, code.dtype) for n in (codes[0], codes[1] - codes[0]))
    return apply("le", apply("sub", code, low), high)


def written_again(name: str, codes: Range, ordered: Buffer, place: Place, size: int, count: int,
                  given: Callable[[Expr], Expr]) -> Body:
    """The codes of a range, among `size` that are in order and have room for one more, in the order
    in which they come: `given(i)`, for each i below `count`.

    All are written, each to where the next of the range belongs, and what comes last of these is
    put back: there are no branches, which nobody could predict.
    """
    begin, end = (Buffer(f"{name}_{which}", U32, (), "register") for which in ("begin", "end"))
    behind = Buffer(f"{name}_behind", ordered.dtype, (), "register")
    low, high = (const(n, ordered.dtype) for n in codes)

    def at(position: Expr, most: int) -> tuple[Expr, ...]:
        return place(index.minimum(as_index(position), index.constant(most)))

    def write(i: Var) -> Body:
        code, here = given(i), load(begin, ())
        return (Store(ordered, at(here, size), code), Store(begin, (), apply(
            "add", here, apply("convert", is_in(code, codes), dtype=U32))))

    def halved(position: Buffer, comes_before: Callable[[Expr], Expr]) -> Body:
        """How many come before something."""
        highest = size.bit_length() - 1

        def step(k: Var) -> Body:
            bit = apply("sub", const(highest, U32), apply("convert", k, dtype=U32))
            here = load(position, ())
            there = apply("add", here, apply("shl", const(1, U32), bit))
            last = load(ordered, at(apply("sub", there, const(1, U32)), size - 1))
            fits = apply("le", there, const(size, U32))
            return (Store(position, (), apply(
                "select", apply("and", fits, comes_before(last)), there, here)),)

        return (Store(position, (), const(0, U32)),
                loop("bit", highest + 1, LoopKind.SERIAL, step))

    return allocated((begin, end, behind), (
        *halved(begin, lambda code: apply("lt", code, low)),
        *halved(end, lambda code: apply("le", code, high)),
        Store(behind, (), load(ordered, at(load(end, ()), size))),
        loop("again", count, LoopKind.SERIAL, write),
        Store(ordered, at(load(end, ()), size), load(behind, ()))))
