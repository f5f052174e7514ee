"""Elements that are equal, but not the same: zeros of both signs, and NaNs.

Codes (codes.py) put them in an order of their own.  Where different ones of a range of codes are
there, which is rare, they are written once more, in the order in which they come.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hlo_mlc.expr import index
from hlo_mlc.expr.build import FALSE, apply, as_index, const, load
from hlo_mlc.expr.core import Buffer, Expr, Var
from hlo_mlc.expr.dtypes import U32
from hlo_mlc.loops.core import Accumulate, LoopKind, Stmt, Store
from hlo_mlc.loops.rewrite import allocated, loop
from hlo_mlc.templates.sorting.codes import Coded, Range
from hlo_mlc.templates.sorting.records import Body
from hlo_mlc.tensor.combine import named_combiner

_ADD = named_combiner("add", U32)


class Ties:
    """The smallest and the largest code of each range that were seen, in vectors of some lanes."""

    def __init__(self, coded: Coded, lanes: int) -> None:
        self.coded, self.lanes = coded, lanes
        name, dtype = coded.stage.name, coded.dtype
        self._seen = [(kind, code_range, Buffer(f"{name}_{kind}{n}", dtype, (lanes,), "register"))
                      for n, code_range in enumerate(coded.ties) for kind in ("min", "max")]

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        return tuple(b for *_, b in self._seen)

    def none(self) -> Body:
        """No element was seen."""
        return (loop("lane", self.lanes, LoopKind.VECTORIZE, lambda i: tuple(
            Store(b, (i,), self._nothing(kind)) for kind, _, b in self._seen)),)

    def look(self, code: Expr, lane: Expr) -> Body:
        """One more element was seen."""
        return tuple(Accumulate(
            (b,), (lane,), named_combiner(kind, code.dtype),
            (apply("select", is_in(code, code_range), code, self._nothing(kind)),))
            for kind, code_range, b in self._seen)

    def differ(self, lane: Expr) -> Expr:
        """Whether different codes of one range were seen in a lane."""
        found = FALSE
        for (*_, least), (*_, most) in zip(self._seen[::2], self._seen[1::2], strict=True):
            found = apply("or", found, apply("lt", load(least, (lane,)), load(most, (lane,))))
        return found

    def _nothing(self, kind: str) -> Expr:
        return named_combiner(kind, self.coded.dtype).identity[0]


def is_in(code: Expr, codes: Range) -> Expr:
    """Whether a code is one of a range."""
    low, high = (const(n, code.dtype) for n in (codes[0], codes[1] - codes[0]))
    return apply("le", apply("sub", code, low), high)


def written_again(coded: Coded, code: Callable[[Expr], Expr],
                  results: Callable[[Expr, Expr, Expr], Sequence[Stmt]]) -> Body:
    """The elements of each range, of a row that has so many codes, in the order in which they come.

    `results(place, code, guard)` stores what takes a place.
    """
    n = coded.stage.reduce_axes[0].extent
    name = coded.stage.name
    starts = [Buffer(f"{name}_start{k}", U32, (), "register") for k in range(len(coded.ties))]

    def counted(i: Var) -> Body:
        return tuple(Accumulate((start,), (), _ADD, (apply("convert", apply(
            "lt", code(i), const(low, coded.dtype)), dtype=U32),))
            for start, (low, _) in zip(starts, coded.ties, strict=True))

    def moved(i: Var) -> Body:
        body: list[Stmt] = []
        for start, codes in zip(starts, coded.ties, strict=True):
            place, own = as_index(load(start, ())), is_in(code(i), codes)
            inside = index.compare("lt", place, index.constant(n))
            body += (*results(place, code(i), apply("and", own, inside)),
                     Store(start, (), apply("add", load(start, ()),
                                            apply("convert", own, dtype=U32))))
        return tuple(body)

    return allocated(starts, (
        *(Store(start, (), const(0, U32)) for start in starts),
        loop("before", n, LoopKind.SERIAL, counted), loop("again", n, LoopKind.SERIAL, moved)))
