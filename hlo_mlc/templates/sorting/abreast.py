"""Rows side by side, each in a lane of its own: a network of comparisons (networks.py) puts all of
them in order at once, by a vector of minima and one of maxima for each.

Rows are transposed on their way there and back.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from hlo_mlc.expr import index
from hlo_mlc.expr.build import apply, const, load
from hlo_mlc.expr.core import Buffer, Expr, Var
from hlo_mlc.expr.dtypes import U32
from hlo_mlc.loops.core import For, If, LoopKind, Store
from hlo_mlc.loops.rewrite import allocated, loop
from hlo_mlc.target.cpu import CpuTarget
from hlo_mlc.templates.base import Scheduled, decoded
from hlo_mlc.templates.by_hand import shared_out
from hlo_mlc.templates.sorting.codes import Coded, Range
from hlo_mlc.templates.sorting.networks import Network, padded, steps
from hlo_mlc.templates.sorting.records import STACK, Body, Sorting
from hlo_mlc.templates.sorting.ties import Seen, written_again

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
    shape = (padded(n) + bool(coded.ties), lanes)
    codes = Buffer(f"{coded.stage.name}_codes", coded.dtype, shape if private
                   else (groups, *shape), "stack" if private else "scratch")

    def group(number: Expr) -> Body:
        body = _Group(coded, sorting, codes, target.registers // 2, number).body()
        return allocated((codes,), body) if private else body

    work = groups * n * steps(n) * COMPARED
    return Scheduled(shared_out(coded.stage.name, groups, work, group),
                     () if private else (codes,))


class _Group:
    """A group of rows, of which the last may have fewer."""

    def __init__(self, coded: Coded, sorting: Sorting, codes: Buffer, at_once: int, number: Expr
                 ) -> None:
        self.coded, self.sorting, self.lanes = coded, sorting, sorting.width
        self.n, self.codes, self.number = sorting.element.extent, codes, number
        self.network = Network(coded.stage.name, codes, self._place, self.n, self.lanes, at_once)

    def body(self) -> Body:
        """Its results."""
        ordered = self._in_order_with_ties() if self.coded.ties else self.network.in_order()
        return (*self._either(self._fill), *self.network.pad(self.n), *ordered,
                *self._either(self._hand_out))

    def _place(self, i: Expr, lane: Expr) -> tuple[Expr, ...]:
        return (i, lane) if self.codes.scope == "stack" else (self.number, i, lane)

    def _either(self, body: Callable[[Expr, int], Body]) -> Body:
        """`body(first row, rows)` for a whole group, or for the last, shorter one."""
        whole, rest = divmod(self.sorting.rows, self.lanes)
        last = body(index.constant(whole * self.lanes), rest) if rest else ()
        if not whole:
            return last
        here = index.minimum(self.number, index.constant(whole - 1))
        full = body(index.multiply(here, index.constant(self.lanes)), self.lanes)
        return (If(index.compare("lt", self.number, index.constant(whole)), full, last),) if rest \
            else full

    def _at(self, row: Expr) -> dict[Var, Expr]:
        return decoded(self.sorting.outer, row)

    # From elements to codes and back

    def _fill(self, first: Expr, rows: int) -> Body:
        def column(i: Expr) -> Body:
            return (loop("lane", rows, LoopKind.VECTORIZE, lambda r: (Store(
                self.codes, self._place(i, r),
                self.sorting.given(self._at(index.add(first, r)), i)[0]),)),)

        body = in_blocks("column", self.n, TRANSPOSED, column)
        return body if rows == self.lanes else (*self.network.pad(0), *body)

    def _hand_out(self, first: Expr, rows: int) -> Body:
        """Along the rows of results, or across them where those lie side by side."""
        place = self.sorting.stage.sort.place

        def results(r: Expr, i: Expr) -> Body:
            at = self._at(index.add(first, r))
            rank = self.sorting.rank(at, i)
            return self.sorting.results(at, i, (load(self.codes, self._place(rank, r)),))

        if all(place not in a.indices[-1].free for a in self.sorting.stage.assigns):
            return (loop("place", place.extent, LoopKind.SERIAL, lambda i: (
                loop("lane", rows, LoopKind.VECTORIZE, lambda r: results(r, i)),)),)

        def across(begin: Expr, count: int) -> Body:
            return in_blocks("row", rows, TRANSPOSED, lambda r: (
                loop("lane", count, LoopKind.VECTORIZE,
                     lambda i: results(r, index.add(begin, i))),))

        whole, rest = divmod(place.extent, self.lanes)
        body: Body = ()
        if whole:
            body += (loop("places", whole, LoopKind.SERIAL, lambda v: across(
                index.multiply(v, index.constant(self.lanes)), self.lanes)),)
        return body + (across(index.constant(whole * self.lanes), rest) if rest else ())

    def _in_order_with_ties(self) -> Body:
        """What is equal but not the same comes as it came."""
        name = self.coded.stage.name
        seen = [Seen(f"{name}_seen{k}", codes, self.codes, self.lanes)
                for k, codes in enumerate(self.coded.ties)]
        differ = [Buffer(f"{name}_differ{k}", U32, (), "register") for k in range(len(seen))]

        def look(i: Expr) -> Body:
            return (self._vector(lambda r: tuple(
                s for one in seen for s in one.look(load(self.codes, self._place(i, r)), r))),)

        looked = allocated([b for one in seen for b in one.buffers], (
            *(one.nothing() for one in seen), loop("seen", self.n, LoopKind.SERIAL, look),
            *(one.differ(flag) for one, flag in zip(seen, differ, strict=True))))
        return allocated(differ, (
            *(Store(flag, (), const(0, U32)) for flag in differ), *looked,
            *self.network.in_order(), *(
                If(apply("ne", load(flag, ()), const(0, U32)),
                   self._either(functools.partial(self._again, codes)))
                for flag, codes in zip(differ, self.coded.ties, strict=True))))

    def _again(self, codes: Range, first: Expr, rows: int) -> Body:
        """What has codes of a range, as it comes."""
        def row(r: Var) -> Body:
            at = self._at(index.add(first, r))
            return written_again(
                self.coded.stage.name, codes, self.codes, lambda i: self._place(i, r),
                self.network.size, self.n, lambda i: self.sorting.given(at, i)[0])

        return (loop("row", rows, LoopKind.SERIAL, row),)

    def _vector(self, body: Callable[[Expr], Body]) -> For:
        return loop("lane", self.lanes, LoopKind.VECTORIZE, body)


def in_blocks(name: str, count: int, most: int, body: Callable[[Expr], Body]) -> Body:
    """`body(number)` for so many, written out some at a time."""
    whole, rest = divmod(count, most)
    result: Body = ()
    if whole:
        result += (loop(f"{name}s", whole, LoopKind.SERIAL, lambda b: (
            loop(name, most, LoopKind.UNROLL, lambda c: body(
                index.add(index.multiply(b, index.constant(most)), c))),)),)
    if rest:
        result += (loop(name, rest, LoopKind.UNROLL, lambda c: body(
            index.add(index.constant(whole * most), c))),)
    return result
