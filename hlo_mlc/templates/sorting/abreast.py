"""Rows side by side, each in a lane of its own: a network of comparisons (networks.py) puts all of
them in order at once, by a vector of minima and one of maxima for each.

Rows are transposed on their way there and back.
"""

from __future__ import annotations

from collections.abc import Callable

from hlo_mlc.expr import index
from hlo_mlc.expr.build import as_index, compare, const, convert, select
from hlo_mlc.expr.core import Buffer, Expr, Var
from hlo_mlc.expr.dtypes import U16, U32
from hlo_mlc.loops.core import Stmt
from hlo_mlc.loops.rewrite import Steps, allocated, serial, unrolled, vectorized, when
from hlo_mlc.target.cpu import CpuTarget
from hlo_mlc.templates.base import Scheduled, decoded
from hlo_mlc.templates.by_hand import (
    fold,
    in_blocks,
    in_parts,
    one_of_parts,
    read,
    shared_out,
    store,
)
from hlo_mlc.templates.sorting.codes import Coded
from hlo_mlc.templates.sorting.networks import Network, padded, steps
from hlo_mlc.templates.sorting.records import STACK, Body, Sorting
from hlo_mlc.templates.sorting.ties import Seen, is_in

# Simple operations (templates/base.py) that a comparison takes, with what it reads and writes.
COMPARED = 3
# Columns that are transposed at once.
TRANSPOSED = 16


def rows_abreast(coded: Coded, target: CpuTarget) -> int:
    """The lanes of a vector of codes."""
    return max(1, target.vector_bytes // coded.dtype.bytes)


def by_networks(coded: Coded, target: CpuTarget) -> Scheduled:
    """Groups of as many rows as vectors have lanes."""
    lanes = rows_abreast(coded, target)
    sorting = Sorting(coded.stage, 0, lanes, coded.stage.accumulators, ())
    n, groups = sorting.element.extent, -(-sorting.rows // lanes)
    private = padded(n) * target.vector_bytes <= STACK
    # What has no place goes behind all: with as much room again, a mask says that it is inside.
    masked = bool(coded.ties) and 2 * padded(n) * target.vector_bytes <= STACK
    shape = (2 * padded(n) if masked else padded(n) + bool(coded.ties), lanes)
    codes = Buffer(
        f"{coded.stage.name}_codes",
        coded.dtype,
        shape if private else (groups, *shape),
        "stack" if private else "scratch",
    )

    def group(number: Expr) -> Body:
        body = _Group(coded, sorting, codes, target.registers // 2, number).body()
        return allocated((codes,), body) if private else body

    work = groups * n * steps(n) * COMPARED
    return Scheduled(shared_out(coded.stage.name, groups, work, group), () if private else (codes,))


class _Group:
    """A group of rows, of which the last may have fewer."""

    def __init__(
        self, coded: Coded, sorting: Sorting, codes: Buffer, at_once: int, number: Expr
    ) -> None:
        self.coded, self.sorting, self.lanes = coded, sorting, sorting.width
        self.n, self.codes, self.number = sorting.element.extent, codes, number
        self.network = Network(coded.stage.name, codes, self._place, self.n, self.lanes, at_once)

    def body(self) -> Body:
        """Its results."""
        ordered = self._in_order_with_ties() if self.coded.ties else self.network.in_order()
        return (
            *self._either(self._fill),
            *self.network.pad(self.n),
            *ordered,
            *self._either(self._hand_out),
        )

    def _place(self, i: Expr, lane: Expr) -> tuple[Expr, ...]:
        return (i, lane) if self.codes.scope == "stack" else (self.number, i, lane)

    def _either(self, body: Callable[[Expr, int], Body]) -> Body:
        """`body(first row, rows)` for a whole group, or for the last, shorter one."""
        return one_of_parts(self.number, self.sorting.rows, self.lanes, body)

    def _at(self, row: Expr) -> dict[Var, Expr]:
        return decoded(self.sorting.outer, row)

    def _given(self, row: Expr, i: Expr) -> Expr:
        """The code of an element of a row."""
        return self.sorting.given(self._at(row), i)[0]

    # From elements to codes and back

    def _fill(self, first: Expr, rows: int) -> Body:
        def column(i: Expr) -> Stmt:
            return vectorized(
                "lane",
                rows,
                lambda r: store(self.codes, self._given(first + r, i), *self._place(i, r)),
            )

        body = in_blocks("column", self.n, TRANSPOSED, column)
        return body if rows == self.lanes else (*self.network.pad(0), *body)

    def _hand_out(self, first: Expr, rows: int) -> Body:
        """Along the rows of results, or across them where those lie side by side."""
        place = self.sorting.stage.sort.place

        def results(r: Expr, i: Expr) -> Body:
            at = self._at(first + r)
            rank = self.sorting.rank(at, i)
            return self.sorting.results(at, i, (read(self.codes, *self._place(rank, r)),))

        def vectors(begin: Expr, count: int) -> Body:
            return in_blocks(
                "row",
                rows,
                TRANSPOSED,
                lambda r: vectorized("lane", count, lambda i: results(r, begin + i)),
            )

        if any(place in a.indices[-1].free for a in self.sorting.stage.assigns):
            return in_parts("places", place.extent, self.lanes, vectors)
        return (
            serial(
                "place", place.extent, lambda i: vectorized("lane", rows, lambda r: results(r, i))
            ),
        )

    def _in_order_with_ties(self) -> Body:
        """What is equal but not the same comes as it came."""
        name, codes = self.coded.stage.name, self.codes
        seen = Seen(f"{name}_seen", self.coded.ties, codes, self.lanes)
        differ = Buffer(f"{name}_differ", U32, (), "register")
        looked = seen.look(self.n, lambda i, r: read(codes, *self._place(i, r)))
        return allocated(
            (differ,),
            (
                store(differ, 0),
                allocated(seen.buffers, (looked, seen.differ(differ))),
                self.network.in_order(),
                when(compare("ne", read(differ), 0), self._either(self._again)),
            ),
        )

    def _again(self, first: Expr, rows: int) -> Body:
        """What has codes of a range, as it comes: how many did before is counted in each lane, what
        has none goes behind all."""
        name, size = self.coded.stage.name, self.network.size
        dtype = U16 if size < 1 << 15 else U32
        ranges = self.coded.ties
        places = [
            Buffer(f"{name}_place{k}", dtype, (self.lanes,), "register") for k in range(len(ranges))
        ]
        again = Buffer(f"{name}_again", self.codes.dtype, (TRANSPOSED, self.lanes), "stack")
        to = Buffer(f"{name}_to", dtype, (TRANSPOSED, self.lanes), "stack")

        def lane(body: Callable[[Expr], Steps]) -> Stmt:
            return vectorized("lane", rows, body)

        def before(i: Expr, r: Expr) -> Steps:
            code = read(self.codes, *self._place(i, r))
            return [
                fold("add", place, convert(compare("lt", code, low), dtype), r)
                for place, (low, _) in zip(places, ranges, strict=True)
            ]

        def found(c: Expr, r: Expr) -> Steps:
            there, counted = const(size, dtype), []
            for place, ties in zip(places, ranges, strict=True):
                is_one = is_in(read(again, c, r), ties)
                there = select(is_one, read(place, r), there)
                counted.append(fold("add", place, convert(is_one, dtype), r))
            return (store(to, there, c, r), counted)

        def moved(c: Expr, r: Expr) -> Stmt:
            place = read(to, c, r)
            if self.codes.shape[-2] == 2 * size:
                there = as_index(place & (2 * size - 1))
            else:
                there = index.minimum(as_index(place), size)
            return store(self.codes, read(again, c, r), *self._place(there, r))

        def columns(begin: Expr, count: int) -> Body:
            def given(c: Expr, r: Expr) -> Stmt:
                return store(again, self._given(first + r, begin + c), c, r)

            return (
                unrolled("column", count, lambda c: lane(lambda r: given(c, r))),
                serial("found", count, lambda c: lane(lambda r: found(c, r))),
                serial("moved", count, lambda c: unrolled("row", rows, lambda r: moved(c, r))),
            )

        return allocated(
            (*places, again, to),
            (
                lane(lambda r: [store(b, 0, r) for b in places]),
                serial("before", size, lambda i: lane(lambda r: before(i, r))),
                in_parts("columns", self.n, TRANSPOSED, columns),
            ),
        )
