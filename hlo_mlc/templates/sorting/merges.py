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
from hlo_mlc.expr.build import apply, as_index, const, load
from hlo_mlc.expr.core import Buffer, Expr, Var
from hlo_mlc.expr.dtypes import U32
from hlo_mlc.loops.core import Accumulate, If, LoopKind, Store
from hlo_mlc.loops.rewrite import allocated, serial, vectorized
from hlo_mlc.target.cpu import CpuTarget
from hlo_mlc.templates.base import Scheduled, decoded
from hlo_mlc.templates.by_hand import across, in_blocks, parallel_tasks, shared_out
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
            *self.rooms.behind(),
            *self._merged(),
            *self._with_ties(),
            *self._handed_out(),
        )

    def _within(self, number: Expr) -> tuple[Expr, Expr]:
        """The row of a part, and where in it the part begins."""
        row, part = (f(number, self.parts) for f in (index.floordiv, index.floormod))
        return row, index.multiply(part, self.part)

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

        def merged(level: Expr, into: Codes) -> Body:
            merge = Merge(
                f"{self.name}_", self.coded.dtype, self.lanes, self.run, level, self.part, piece
            )
            source = Codes.of(stacks, _in_turn(level))
            return (
                serial(
                    "piece", self.part // (CHAINS * piece), lambda p: merge.pieces(p, source, into)
                ),
            )

        return allocated(
            (codes, stacks),
            (
                *self._fill(number, codes),
                *self._looked_at(number, codes),
                *network.pad(self.run),
                *network.in_order(),
                *self._apart(codes, stacks),
                *behind(stacks, self.lanes),
                *(
                    (
                        serial(
                            "level",
                            levels - 1,
                            lambda k: merged(k, Codes.of(stacks, _in_turn(index.add(k, 1)))),
                        ),
                    )
                    if levels > 1
                    else ()
                ),
                *merged(index.constant(levels - 1), self.rooms.first(row).behind(first)),
            ),
        )

    def _fill(self, number: Expr, codes: Buffer) -> Body:
        """The runs of a part, each in a lane; the largest codes where there are no elements."""
        row, first = self._within(number)
        at = decoded(self.sorting.outer, row)

        def column(i: Expr) -> Body:
            def one(lane: Expr) -> Body:
                here = index.add(index.add(first, i), index.multiply(lane, self.run))
                code = self.sorting.given(at, index.minimum(here, self.n - 1))[0]
                inside = index.compare("lt", here, self.n)
                return (
                    Store(
                        codes, (i, lane), apply("select", inside, code, const(-1, self.coded.dtype))
                    ),
                )

            return (vectorized("lane", self.lanes, one),)

        return in_blocks("column", self.run, TRANSPOSED, column)

    def _looked_at(self, number: Expr, codes: Buffer) -> Body:
        """Which codes of elements that are equal there are."""
        seen = [
            Seen(f"{self.name}_seen{k}", ties, codes, self.lanes)
            for k, ties in enumerate(self.coded.ties)
        ]

        def look(i: Expr) -> Body:
            return (
                vectorized(
                    "lane",
                    self.lanes,
                    lambda lane: tuple(
                        s for one in seen for s in one.look(load(codes, (i, lane)), lane)
                    ),
                ),
            )

        found = tuple(
            s for k, one in enumerate(seen) for s in one.keep(self.ends, number, index.constant(k))
        )
        return (
            allocated(
                [b for one in seen for b in one.buffers],
                (*(one.nothing() for one in seen), serial("seen", self.run, look), *found),
            )
            if seen
            else ()
        )

    def _apart(self, codes: Buffer, into: Buffer) -> Body:
        """The runs one behind the other."""

        def vectors(v: Var) -> Body:
            begin = index.multiply(v, self.lanes)
            return in_blocks(
                "run",
                self.lanes,
                self.lanes,
                lambda r: (
                    vectorized(
                        "lane",
                        self.lanes,
                        lambda i: (
                            Store(
                                into,
                                (
                                    index.constant(0),
                                    index.add(index.multiply(r, self.run), index.add(begin, i)),
                                ),
                                load(codes, (index.add(begin, i), r)),
                            ),
                        ),
                    ),
                ),
            )

        return (serial("vectors", self.run // self.lanes, vectors),)

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
                row, share = (f(number, shares) for f in (index.floordiv, index.floormod))
                return merge.pieces(share, source(row), into(row))

            return parallel_tasks(f"{self.name}_merge", self.sorting.rows * shares, 1, task)

        return self.rooms.each_level(level)

    def _with_ties(self) -> Body:
        """What is equal but not the same comes as it came: each part says what it has of a range,
        and rows put what their parts have one behind the other."""
        some = Buffer(f"{self.name}_some", U32, (), "register")
        parts, ties = self.sorting.rows * self.parts, self.coded.ties

        def one(k: Var) -> Body:
            low, span = (
                self._of(k, [end(t) for t in ties])
                for end in (lambda t: t[0], lambda t: t[1] - t[0])
            )
            return allocated(
                (some,),
                (
                    Store(some, (), const(0, U32)),
                    serial("row", self.sorting.rows, functools.partial(self._differ, k, some)),
                    If(
                        apply("ne", load(some, ()), const(0, U32)),
                        (
                            *shared_out(
                                f"{self.name}_ties",
                                parts,
                                parts * self.part * MERGED,
                                functools.partial(self._collect, low, span),
                            ),
                            *shared_out(
                                f"{self.name}_again",
                                self.sorting.rows,
                                parts * self.part * COMPARED,
                                functools.partial(self._again, low),
                            ),
                        ),
                    ),
                ),
            )

        return (serial("range", len(ties), one),) if ties else ()

    def _of(self, k: Expr, numbers: Sequence[int]) -> Expr:
        """The `k`th of some codes."""
        *others, found = (const(n, self.coded.dtype) for n in numbers)
        for number, other in enumerate(others):
            found = apply("select", index.compare("eq", k, number), other, found)
        return found

    def _differ(self, k: Expr, some: Buffer, row: Expr) -> Body:
        """Whether a row has different ones of a range."""
        ends = [Buffer(f"{self.name}_{kind}", self.coded.dtype, (), "register") for kind in KINDS]
        folds = [named_combiner(kind, self.coded.dtype) for kind in KINDS]
        part = index.multiply(row, self.parts)
        differs = apply("convert", apply("lt", *(load(end, ()) for end in ends)), dtype=U32)
        return allocated(
            ends,
            (
                *(Store(end, (), fold.identity[0]) for end, fold in zip(ends, folds, strict=True)),
                serial(
                    "part",
                    self.parts,
                    lambda p: tuple(
                        Accumulate(
                            (end,),
                            (),
                            fold,
                            (load(self.ends, (index.add(part, p), k, index.constant(n))),),
                        )
                        for n, (end, fold) in enumerate(zip(ends, folds, strict=True))
                    ),
                ),
                Accumulate((some,), (), named_combiner("or", U32), (differs,)),
            ),
        )

    def _collect(self, low: Expr, span: Expr, number: Expr) -> Body:
        """What a part has of a range, and how many."""
        found = Buffer(f"{self.name}_found", U32, (), "register")
        row, first = self._within(number)
        at, into = decoded(self.sorting.outer, row), self.rooms.spare(row).behind(first)

        def given(i: Expr) -> Expr:
            here = index.minimum(index.add(first, i), self.n - 1)
            return self.sorting.given(at, here)[0]

        def inside(i: Expr) -> Expr:
            return index.compare("lt", index.add(first, i), self.n)

        return allocated(
            (found,),
            (
                *in_turn(
                    self.name,
                    low,
                    span,
                    self.lanes,
                    self.part,
                    given,
                    inside if self.size > self.n else None,
                    found,
                    lambda k, code: (into.write(k, code),),
                ),
                Store(self.counts, (number,), load(found, ())),
            ),
        )

    def _again(self, low: Expr, row: Expr) -> Body:
        """What the parts of a row have of a range, where they begin in it."""
        position = Buffer(f"{self.name}_position", U32, (), "register")
        ordered, came = self.rooms.ordered(row), self.rooms.spare(row)

        def put(p: Var) -> Body:
            number = index.add(index.multiply(row, self.parts), p)
            source = came.behind(index.multiply(p, self.part))
            count = index.minimum(as_index(load(self.counts, (number,))), self.part)
            vectors = index.floordiv(count, self.lanes)

            def one(i: Expr, width: int, lane: Expr) -> Body:
                there = index.minimum(index.add(as_index(load(position, ())), i), self.size - width)
                code = source.read(index.add(i, lane))
                return (ordered.write(index.add(there, lane), code),)

            return (
                serial(
                    "vector",
                    vectors,
                    lambda v: (
                        vectorized(
                            "lane",
                            self.lanes,
                            lambda lane: one(index.multiply(v, self.lanes), self.lanes, lane),
                        ),
                    ),
                ),
                serial(
                    "rest",
                    index.floormod(count, self.lanes),
                    lambda i: one(
                        index.add(index.multiply(vectors, self.lanes), i), 1, index.constant(0)
                    ),
                ),
                Store(position, (), apply("add", load(position, ()), as_number(count))),
            )

        return allocated(
            (position,),
            (
                *first_in_order(position, low, ordered.read, self.size),
                serial("part", self.parts, put),
            ),
        )

    def _handed_out(self) -> Body:
        count = self.sorting.stage.sort.place.extent
        block = min(count, BLOCK)
        blocks = -(-count // block)

        def results(number: Expr) -> Body:
            row, b = index.floordiv(number, blocks), index.floormod(number, blocks)
            at, ordered = decoded(self.sorting.outer, row), self.rooms.ordered(row)

            def some(begin: Expr, length: int) -> Body:
                def one(i: Expr) -> Body:
                    here = index.add(begin, i)
                    code = ordered.read(self.sorting.rank(at, here))
                    return self.sorting.results(at, here, (code,))

                return across("out", length, self.lanes, one, LoopKind.SERIAL)

            whole, rest = divmod(count, block)
            last = some(index.constant(whole * block), rest) if rest else ()
            here = index.minimum(b, whole - 1)
            full = some(index.multiply(here, block), block)
            return (If(index.compare("lt", b, whole), full, last),) if rest else full

        return shared_out(
            f"{self.name}_out",
            self.sorting.rows * blocks,
            self.sorting.rows * count * COMPARED,
            results,
        )


def _in_turn(level: Expr) -> Place:
    """In one room, or in the other at the next level."""
    return lambda i: (index.floormod(level, 2), i)
