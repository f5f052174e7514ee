"""Long rows of codes: runs in order, each sorted in a lane, then pairs of them merged until there
is one.

Pieces of pairs (pairs.py) are as long when runs are short and when they are long, so that levels
differ in numbers alone and are a loop: to compile a copy for each takes longer than to sort a
million.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from hlo_mlc.expr import index
from hlo_mlc.expr.build import as_index, compare, const, select
from hlo_mlc.expr.core import Buffer, Expr, Var
from hlo_mlc.expr.dtypes import U32
from hlo_mlc.loops.core import LoopKind, Stmt
from hlo_mlc.loops.rewrite import allocated, serial, vectorized, when
from hlo_mlc.target.cpu import CpuTarget
from hlo_mlc.templates.base import Scheduled, decoded
from hlo_mlc.templates.by_hand import (
    across,
    fold,
    in_blocks,
    one_of_parts,
    parallel_tasks,
    read,
    shared_out,
    store,
)
from hlo_mlc.templates.sorting.abreast import COMPARED, TRANSPOSED, rows_abreast
from hlo_mlc.templates.sorting.codes import Coded
from hlo_mlc.templates.sorting.networks import Network, padded, steps
from hlo_mlc.templates.sorting.pairs import CHAINS, Merge
from hlo_mlc.templates.sorting.records import Body, Place, Sorting, as_number, row_count
from hlo_mlc.templates.sorting.rooms import Codes, Room, Rooms, behind
from hlo_mlc.templates.sorting.ties import KINDS, Seen, first_in_order, in_turn
from hlo_mlc.tensor.combine import named_combiner

# Codes of a run that is sorted in a lane, at most: twice as many, and the room to merge them, are
# more than fits onto the stack.
RUN = 1024
# Codes of a part at least, of which there is one for each core.
PART = 1 << 13
# Comparisons that take as long as a code takes to be merged once.
MERGED = 8
# Results that are handed out together.
BLOCK = 1 << 15


def part_count(coded: Coded, target: CpuTarget) -> int:
    """The parts of a row, each a task: a power of two."""
    n, most, parts = coded.stage.reduce_axes[0].extent, RUN * rows_abreast(coded, target), 1
    while n > parts * most or (
        row_count(coded.stage) * parts < target.cores and n >= 2 * parts * PART
    ):
        parts *= 2
    return parts


def level_count(coded: Coded, target: CpuTarget) -> int:
    """How often each code is merged."""
    return (part_count(coded, target) * rows_abreast(coded, target)).bit_length() - 1


def by_merges(coded: Coded, target: CpuTarget) -> Scheduled:
    """Runs in the lanes of vectors, which are merged as far as they are on the stack; then all."""
    rows = _Rows(coded, target)
    return Scheduled(rows.body(), rows.scratch)


class _Rows:
    """Rows of codes, each a power of two of parts; a part is a run in each lane."""

    def __init__(self, coded: Coded, target: CpuTarget) -> None:
        self.coded, self.lanes = coded, rows_abreast(coded, target)
        self.sorting = Sorting(coded.stage, 0, self.lanes, coded.stage.accumulators, ())
        self.n, self.name = self.sorting.element.extent, coded.stage.name
        self.parts = part_count(coded, target)
        self.run = -(-self.n // (self.parts * self.lanes * self.lanes)) * self.lanes
        self.part = self.run * self.lanes
        self.size = self.parts * self.part
        self.rooms = Rooms(coded, self.sorting, self.size, self.parts.bit_length() - 1)
        self.at_once = target.registers // 2
        # The smallest and the largest code of each range of equal elements, in each part.
        self.ends = Buffer(
            f"{self.name}_ends",
            coded.dtype,
            (self.sorting.rows * self.parts, max(1, len(coded.ties)), len(KINDS)),
            "scratch",
        )
        # And how many each part has of a range, where these are written once more.
        self.counts = Buffer(
            f"{self.name}_counts", U32, (self.sorting.rows * self.parts,), "scratch"
        )

    @property
    def scratch(self) -> tuple[Buffer, ...]:
        return (self.rooms.scratch, *((self.ends, self.counts) if self.coded.ties else ()))

    def body(self) -> Body:
        """All of it."""
        parts = self.sorting.rows * self.parts
        work = parts * self.part * COMPARED * (steps(self.run) + MERGED * self.lanes.bit_length())
        return (
            *shared_out(f"{self.name}_part", parts, work, self._part),
            self.rooms.behind(),
            *self._merged(),
            *self._with_ties(),
            *self._handed_out(),
        )

    def _within(self, number: Expr) -> tuple[Expr, Expr]:
        """The row of a part, and where in it the part begins."""
        return number // self.parts, number % self.parts * self.part

    # Parts

    def _part(self, number: Expr) -> Body:
        """One part, into the first of the rooms."""
        codes = Buffer(
            f"{self.name}_codes", self.coded.dtype, (padded(self.run), self.lanes), "stack"
        )
        network = Network(
            self.name, codes, lambda i, lane: (i, lane), self.run, self.lanes, self.at_once
        )
        stacks = Buffer(
            f"{self.name}_stacks", self.coded.dtype, (2, self.part + self.lanes), "stack"
        )
        levels, (row, first) = self.lanes.bit_length() - 1, self._within(number)
        piece = min(2 * self.run, self.part // CHAINS)

        def merged(level: Expr, into: Codes) -> Stmt:
            merge = Merge(
                f"{self.name}_", self.coded.dtype, self.lanes, self.run, level, self.part, piece
            )
            source = Codes.of(stacks, _in_turn(level))
            return serial(
                "piece", self.part // (CHAINS * piece), lambda p: merge.pieces(p, source, into)
            )

        last = index.constant(levels - 1)
        return allocated(
            (codes, stacks),
            (
                self._fill(number, codes),
                self._looked_at(number, codes),
                network.pad(self.run),
                network.in_order(),
                self._apart(codes, stacks),
                behind(stacks, self.lanes),
                serial("level", last, lambda k: merged(k, Codes.of(stacks, _in_turn(k + 1))))
                if levels > 1
                else (),
                merged(last, self.rooms.first(row).behind(first)),
            ),
        )

    def _fill(self, number: Expr, codes: Buffer) -> Body:
        """The runs of a part, each in a lane; the largest codes where there are no elements."""
        row, first = self._within(number)
        at = decoded(self.sorting.outer, row)

        def column(i: Expr) -> Stmt:
            def one(lane: Expr) -> Stmt:
                here = first + i + lane * self.run
                code = self.sorting.given(at, index.minimum(here, self.n - 1))[0]
                inside = compare("lt", here, self.n)
                return store(codes, select(inside, code, -1), i, lane)

            return vectorized("lane", self.lanes, one)

        return in_blocks("column", self.run, TRANSPOSED, column)

    def _looked_at(self, number: Expr, codes: Buffer) -> Body:
        """Which codes of elements that are equal there are."""
        if not self.coded.ties:
            return ()
        seen = Seen(f"{self.name}_seen", self.coded.ties, codes, self.lanes)
        looked = seen.look(self.run, functools.partial(read, codes))
        return allocated(seen.buffers, (looked, seen.keep(self.ends, number)))

    def _apart(self, codes: Buffer, into: Buffer) -> Stmt:
        """The runs one behind the other."""

        def one(here: Expr, r: Expr) -> Stmt:
            return store(into, read(codes, here, r), 0, r * self.run + here)

        def vectors(v: Var) -> Body:
            return in_blocks(
                "run",
                self.lanes,
                self.lanes,
                lambda r: vectorized("lane", self.lanes, lambda i: one(v * self.lanes + i, r)),
            )

        return serial("vectors", self.run // self.lanes, vectors)

    # Rows

    def _merged(self) -> Body:
        """All pairs of runs of all rows, level by level, in tasks of as many pieces."""
        piece = min(2 * self.part, self.size // CHAINS)
        shares = self.size // (CHAINS * piece)

        def level(k: Expr, source: Room, into: Room) -> Body:
            merge = Merge(
                f"{self.name}_", self.coded.dtype, self.lanes, self.part, k, self.size, piece
            )

            def task(number: Expr) -> Body:
                row = number // shares
                return merge.pieces(number % shares, source(row), into(row))

            return parallel_tasks(f"{self.name}_merge", self.sorting.rows * shares, 1, task)

        return self.rooms.each_level(level)

    def _with_ties(self) -> Body:
        """What is equal but not the same comes as it came: each part says what it has of a range,
        and rows put what their parts have one behind the other."""
        some = Buffer(f"{self.name}_some", U32, (), "register")
        rows, ties = self.sorting.rows, self.coded.ties
        parts = rows * self.parts
        codes = parts * self.part

        def one(k: Var) -> Body:
            low = self._of(k, [first for first, _ in ties])
            span = self._of(k, [last - first for first, last in ties])
            collect = functools.partial(self._collect, low, span)
            again = functools.partial(self._again, low)
            written = (
                shared_out(f"{self.name}_ties", parts, codes * MERGED, collect),
                shared_out(f"{self.name}_again", rows, codes * COMPARED, again),
            )
            looked = serial("row", rows, functools.partial(self._differ, k, some))
            return allocated(
                (some,), (store(some, 0), looked, when(compare("ne", read(some), 0), written))
            )

        return (serial("range", len(ties), one),) if ties else ()

    def _of(self, k: Expr, numbers: Sequence[int]) -> Expr:
        """The `k`th of some codes."""
        *others, found = (const(n, self.coded.dtype) for n in numbers)
        for number, other in enumerate(others):
            found = select(compare("eq", k, number), other, found)
        return found

    def _differ(self, k: Expr, some: Buffer, row: Expr) -> Body:
        """Whether a row has different ones of a range."""
        ends = [Buffer(f"{self.name}_{kind}", self.coded.dtype, (), "register") for kind in KINDS]
        folded = list(enumerate(zip(KINDS, ends, strict=True)))
        part = row * self.parts
        return allocated(
            ends,
            (
                [
                    store(end, named_combiner(kind, end.dtype).identity[0])
                    for _, (kind, end) in folded
                ],
                serial(
                    "part",
                    self.parts,
                    lambda p: [
                        fold(kind, end, read(self.ends, part + p, k, n))
                        for n, (kind, end) in folded
                    ],
                ),
                fold("or", some, as_number(compare("lt", *map(read, ends)))),
            ),
        )

    def _collect(self, low: Expr, span: Expr, number: Expr) -> Body:
        """What a part has of a range, and how many."""
        found = Buffer(f"{self.name}_found", U32, (), "register")
        row, first = self._within(number)
        at, into = decoded(self.sorting.outer, row), self.rooms.spare(row).behind(first)

        def given(i: Expr) -> Expr:
            return self.sorting.given(at, index.minimum(first + i, self.n - 1))[0]

        def inside(i: Expr) -> Expr:
            return compare("lt", first + i, self.n)

        collected = in_turn(
            self.name,
            low,
            span,
            self.lanes,
            self.part,
            given,
            inside if self.size > self.n else None,
            found,
            into.write,
        )
        return allocated((found,), (collected, store(self.counts, read(found), number)))

    def _again(self, low: Expr, row: Expr) -> Body:
        """What the parts of a row have of a range, where they begin in it."""
        position = Buffer(f"{self.name}_position", U32, (), "register")
        ordered, came = self.rooms.ordered(row), self.rooms.spare(row)

        def put(p: Var) -> Body:
            number = row * self.parts + p
            source = came.behind(p * self.part)
            count = index.minimum(as_index(read(self.counts, number)), self.part)
            vectors = count // self.lanes

            def one(i: Expr, width: int, lane: Expr | int) -> Stmt:
                there = index.minimum(as_index(read(position)) + i, self.size - width)
                return ordered.write(there + lane, source.read(i + lane))

            def vector(v: Var) -> Stmt:
                return vectorized(
                    "lane", self.lanes, lambda lane: one(v * self.lanes, self.lanes, lane)
                )

            return (
                serial("vector", vectors, vector),
                serial("rest", count % self.lanes, lambda i: one(vectors * self.lanes + i, 1, 0)),
                store(position, read(position) + as_number(count)),
            )

        begin = first_in_order(position, low, ordered.read, self.size)
        return allocated((position,), (begin, serial("part", self.parts, put)))

    def _handed_out(self) -> Body:
        count = self.sorting.stage.sort.place.extent
        block = min(count, BLOCK)
        blocks = -(-count // block)

        def results(number: Expr) -> Body:
            row, b = number // blocks, number % blocks
            at, ordered = decoded(self.sorting.outer, row), self.rooms.ordered(row)

            def some(begin: Expr, length: int) -> Body:
                def one(i: Expr) -> Body:
                    code = ordered.read(self.sorting.rank(at, begin + i))
                    return self.sorting.results(at, begin + i, (code,))

                return across("out", length, self.lanes, one, LoopKind.SERIAL)

            return one_of_parts(b, count, block, some)

        return shared_out(
            f"{self.name}_out",
            self.sorting.rows * blocks,
            self.sorting.rows * count * COMPARED,
            results,
        )


def _in_turn(level: Expr) -> Place:
    """In one room, or in the other at the next level."""
    return lambda i: (level % 2, i)
