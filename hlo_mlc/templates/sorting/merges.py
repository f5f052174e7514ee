"""Long rows of codes: runs in order, each sorted in a lane, then pairs of them merged until there
is one.

A vector of codes is merged with the next one of the run that has the smaller first code, by a
bitonic network whose comparisons are between the lanes of vectors: the smaller half of both goes to
its place, the larger one waits for the next.  Several pieces of what pairs become are merged side
by side, since each of them waits for its own results; where they begin is found by bisection.

Pieces are as long when runs are short and when they are long, so that levels differ in numbers
alone and are a loop: to compile a copy for each takes longer than to sort a million.

Source: H. Inoue et al., AA-sort, PACT 2007; O. Green et al., Merge path, 2012.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from hlo_mlc.expr import index
from hlo_mlc.expr.build import apply, as_index, const, load
from hlo_mlc.expr.core import Buffer, Expr, Var
from hlo_mlc.expr.dtypes import BOOL, U32
from hlo_mlc.loops.core import Accumulate, For, If, LoopKind, Stmt, Store
from hlo_mlc.loops.rewrite import allocated, loop
from hlo_mlc.target.cpu import CpuTarget
from hlo_mlc.templates.base import Scheduled, decoded
from hlo_mlc.templates.by_hand import across, parallel_tasks, shared_out
from hlo_mlc.templates.sorting.abreast import COMPARED, TRANSPOSED, in_blocks, rows_abreast
from hlo_mlc.templates.sorting.codes import Coded
from hlo_mlc.templates.sorting.networks import Network, padded, steps
from hlo_mlc.templates.sorting.records import Body, Sorting, as_number, bisection, row_count
from hlo_mlc.templates.sorting.ties import KINDS, Seen, written_again
from hlo_mlc.tensor.combine import named_combiner

# Pieces that are merged side by side: four take as long, and more code.
CHAINS = 2
# Codes of a run that is sorted in a lane, at most: twice as many, and the room to merge them, are
# more than fits onto the stack.
RUN = 1024
# Codes of a part at least, of which there is one for each core.
PART = 1 << 13
# Comparisons that take as long as a code takes to be merged once.
MERGED = 8
# Results that are handed out together.
BLOCK = 1 << 15

Place = Callable[[Expr], tuple[Expr, ...]]
"""Where code i of all is, or belongs."""


def part_count(coded: Coded, target: CpuTarget) -> int:
    """The parts of a row, each a task: a power of two."""
    n, most, parts = coded.stage.reduce_axes[0].extent, RUN * rows_abreast(coded, target), 1
    while n > parts * most or (row_count(coded.stage) * parts < target.cores
                               and n >= 2 * parts * PART):
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
    """Rows of codes, each a power of two of parts; a part is a run in each lane.

    Rooms that are read and written in turns are rows of one buffer.
    """

    def __init__(self, coded: Coded, target: CpuTarget) -> None:
        self.coded, self.lanes = coded, rows_abreast(coded, target)
        self.sorting = Sorting(coded.stage, 0, self.lanes, coded.stage.accumulators, ())
        self.n, self.name = self.sorting.element.extent, coded.stage.name
        self.parts = part_count(coded, target)
        self.run = -(-self.n // (self.parts * self.lanes * self.lanes)) * self.lanes
        self.part = self.run * self.lanes
        total = self.sorting.rows * self.parts * self.part
        self.rooms = Buffer(f"{self.name}_rooms", coded.dtype,
                            (min(2, self.parts), total + self.lanes), "scratch")
        self.at_once = target.registers // 2
        # The smallest and the largest code of each range of equal elements, in each part.
        self.ends = Buffer(f"{self.name}_ends", coded.dtype, (
            self.sorting.rows * self.parts, max(1, len(coded.ties)), len(KINDS)), "scratch")

    @property
    def scratch(self) -> tuple[Buffer, ...]:
        return (self.rooms, *((self.ends,) if self.coded.ties else ()))

    def body(self) -> Body:
        """All of it."""
        parts = self.sorting.rows * self.parts
        work = parts * self.part * COMPARED * (steps(self.run) + MERGED * self.lanes.bit_length())
        return (*shared_out(f"{self.name}_part", parts, work, self._part),
                *_behind(self.rooms, self.lanes), *self._merged(), *self._with_ties(),
                *self._handed_out())

    def _in_order(self, position: Expr) -> tuple[Expr, ...]:
        """Where the codes of all rows are in the end."""
        return (index.constant((self.parts.bit_length() - 1) % 2), position)

    # Parts

    def _part(self, number: Expr) -> Body:
        """One part, into the first room."""
        codes = Buffer(f"{self.name}_codes", self.coded.dtype, (padded(self.run), self.lanes),
                       "stack")
        network = Network(self.name, codes, lambda i, lane: (i, lane), self.run, self.lanes,
                          self.at_once)
        stacks = Buffer(f"{self.name}_stacks", self.coded.dtype, (2, self.part + self.lanes),
                        "stack")
        levels, place = self.lanes.bit_length() - 1, index.multiply(
            number, index.constant(self.part))
        piece = min(2 * self.run, self.part // CHAINS)

        def merged(level: Expr, write: Place, into: Buffer) -> Body:
            merge = Merge(f"{self.name}_", self.lanes, self.run, level, self.part, piece)
            return (loop("piece", self.part // (CHAINS * piece), LoopKind.SERIAL, lambda p:
                    merge.pieces(p, stacks, _in_turn(level), into, write)),)

        return allocated((codes, stacks), (
            *self._fill(number, codes), *self._looked_at(number, codes),
            *network.pad(self.run), *network.in_order(), *self._apart(codes, stacks),
            *_behind(stacks, self.lanes),
            *((loop("level", levels - 1, LoopKind.SERIAL, lambda k: merged(
                k, _in_turn(index.add(k, index.constant(1))), stacks)),) if levels > 1 else ()),
            *merged(index.constant(levels - 1),
                    lambda i: (index.constant(0), index.add(place, i)), self.rooms)))

    def _fill(self, number: Expr, codes: Buffer) -> Body:
        """The runs of a part, each in a lane; the largest codes where there are no elements."""
        at = decoded(self.sorting.outer, index.floordiv(number, self.parts))
        first = index.multiply(index.floormod(number, self.parts), index.constant(self.part))

        def column(i: Expr) -> Body:
            def one(lane: Expr) -> Body:
                here = index.add(index.add(first, i), index.multiply(
                    lane, index.constant(self.run)))
                code = self.sorting.given(at, index.minimum(here, index.constant(self.n - 1)))[0]
                inside = index.compare("lt", here, index.constant(self.n))
                return (Store(codes, (i, lane), apply(
                    "select", inside, code, const(-1, self.coded.dtype))),)

            return (loop("lane", self.lanes, LoopKind.VECTORIZE, one),)

        return in_blocks("column", self.run, TRANSPOSED, column)

    def _looked_at(self, number: Expr, codes: Buffer) -> Body:
        """Which codes of elements that are equal there are."""
        seen = [Seen(f"{self.name}_seen{k}", ties, codes, self.lanes)
                for k, ties in enumerate(self.coded.ties)]

        def look(i: Expr) -> Body:
            return (loop("lane", self.lanes, LoopKind.VECTORIZE, lambda lane: tuple(
                s for one in seen for s in one.look(load(codes, (i, lane)), lane))),)

        found = tuple(s for k, one in enumerate(seen)
                      for s in one.keep(self.ends, number, index.constant(k)))
        return allocated([b for one in seen for b in one.buffers], (
            *(one.nothing() for one in seen), loop("seen", self.run, LoopKind.SERIAL, look),
            *found)) if seen else ()

    def _apart(self, codes: Buffer, into: Buffer) -> Body:
        """The runs one behind the other."""
        def vectors(v: Var) -> Body:
            begin = index.multiply(v, index.constant(self.lanes))
            return in_blocks("run", self.lanes, self.lanes, lambda r: (
                loop("lane", self.lanes, LoopKind.VECTORIZE, lambda i: (Store(into, (
                    index.constant(0), index.add(index.multiply(r, index.constant(self.run)),
                                                 index.add(begin, i))),
                    load(codes, (index.add(begin, i), r))),)),))

        return (loop("vectors", self.run // self.lanes, LoopKind.SERIAL, vectors),)

    # Rows

    def _merged(self) -> Body:
        """All pairs of runs of all rows, level by level, in tasks of as many pieces."""
        if self.parts == 1:
            return ()
        size = self.parts * self.part
        piece = min(2 * self.part, size // CHAINS)
        share = CHAINS * piece

        def level(k: Var) -> Body:
            merge = Merge(f"{self.name}_", self.lanes, self.part, k, size, piece)

            def task(number: Expr) -> Body:
                row = index.multiply(index.floordiv(number, size // share), index.constant(size))
                read, write = (_from(row, _in_turn(index.add(k, index.constant(turn))))
                               for turn in range(2))
                return merge.pieces(index.floormod(number, size // share), self.rooms, read,
                                    self.rooms, write)

            return parallel_tasks(f"{self.name}_merge", self.sorting.rows * size // share, 1, task)

        return (loop(f"{self.name}_level", self.parts.bit_length() - 1, LoopKind.SERIAL, level),)

    def _with_ties(self) -> Body:
        """What is equal but not the same comes as it came."""
        size = self.parts * self.part
        ends = [Buffer(f"{self.name}_{kind}", self.coded.dtype, (), "register") for kind in KINDS]
        folds = [named_combiner(kind, self.coded.dtype) for kind in KINDS]

        def row(number: Var) -> Body:
            at = decoded(self.sorting.outer, number)
            first = index.multiply(number, index.constant(size))
            part = index.multiply(number, index.constant(self.parts))
            body: Body = ()
            for k, codes in enumerate(self.coded.ties):
                body += (
                    *(Store(end, (), fold.identity[0])
                      for end, fold in zip(ends, folds, strict=True)),
                    loop("part", self.parts, LoopKind.SERIAL, lambda p, k=k: tuple(
                        Accumulate((end,), (), fold, (load(self.ends, (
                            index.add(part, p), index.constant(k), index.constant(n))),))
                        for n, (end, fold) in enumerate(zip(ends, folds, strict=True)))),
                    If(apply("lt", *(load(end, ()) for end in ends)), written_again(
                        self.name, codes, self.rooms,
                        lambda i: self._in_order(index.add(first, i)), size, self.n,
                        lambda i: self.sorting.given(at, i)[0])))
            return allocated(ends, body)

        return (loop("row", self.sorting.rows, LoopKind.SERIAL, row),) if self.coded.ties else ()

    def _handed_out(self) -> Body:
        place, size = self.sorting.stage.sort.place, self.parts * self.part
        count = place.extent
        block = min(count, BLOCK)
        blocks = -(-count // block)

        def results(number: Expr) -> Body:
            row, b = index.floordiv(number, blocks), index.floormod(number, blocks)
            at = decoded(self.sorting.outer, row)

            def some(begin: Expr, length: int) -> Body:
                def one(i: Expr) -> Body:
                    here = index.add(begin, i)
                    code = load(self.rooms, self._in_order(index.add(
                        index.multiply(row, index.constant(size)), self.sorting.rank(at, here))))
                    return self.sorting.results(at, here, (code,))

                return across("out", length, self.lanes, one, LoopKind.SERIAL)

            whole, rest = divmod(count, block)
            last = some(index.constant(whole * block), rest) if rest else ()
            here = index.minimum(b, index.constant(whole - 1))
            full = some(index.multiply(here, index.constant(block)), block)
            return (If(index.compare("lt", b, index.constant(whole)), full, last),) if rest \
                else full

        return shared_out(f"{self.name}_out", self.sorting.rows * blocks,
                          self.sorting.rows * count * COMPARED, results)


class Merge:
    """Pairs of runs that lie one behind the other, `length` codes each at level 0, and twice as
    many at each level; `size` codes in all, of which those of a piece take places that follow each
    other.  A pair has a power of two of pieces."""

    def __init__(self, name: str, lanes: int, length: int, level: Expr, size: int, piece: int
                 ) -> None:
        self.name, self.lanes, self.size, self.piece = name, lanes, size, piece
        level = as_number(level)
        self.length = apply("shl", const(length, U32), level)
        self.halvings = apply("add", const((2 * length // piece).bit_length() - 1, U32), level)

    def pieces(self, number: Expr, source: Buffer, read: Place, into: Buffer, write: Place) -> Body:
        """The `number`th of the groups of pieces that are merged side by side."""
        chains = [_Chain(self, q, source, read) for q in range(CHAINS)]
        begin = [index.multiply(index.add(index.multiply(number, index.constant(CHAINS)),
                                          index.constant(q)), index.constant(self.piece))
                 for q in range(CHAINS)]

        def step(o: Var) -> Body:
            at = index.multiply(o, index.constant(self.lanes))
            stages = [chain.step(lambda lane, b=b: write(index.add(index.add(b, at), lane)), into)
                      for chain, b in zip(chains, begin, strict=True)]
            inner = [b for chain in chains for b in chain.inner]
            return allocated(inner, tuple(
                s for same in zip(*stages, strict=True) for part in same for s in part))

        starts = Buffer(f"{self.name}starts", U32, (CHAINS, len(chains[0].outer) - 1), "stack")
        return allocated([starts, *(b for chain in chains for b in chain.outer)], (
            loop("chain", CHAINS, LoopKind.SERIAL, lambda q: self._start(starts, q, index.add(
                index.multiply(number, index.constant(CHAINS)), q), source, read)),
            *(s for chain in chains for s in chain.start(starts)),
            loop("merged", self.piece // self.lanes, LoopKind.SERIAL, step)))

    def code(self, source: Buffer, read: Place, position: Expr) -> Expr:
        """A code; the first behind all, where there is none."""
        return load(source, read(index.minimum(as_index(position), index.constant(self.size))))

    def _start(self, starts: Buffer, chain: Expr, number: Expr, source: Buffer, read: Place
               ) -> Body:
        """What is next of both runs where a piece begins, and where they end: so many codes of the
        first run come before the piece as bisection finds."""
        first, begin, low, high, middle, more = (
            Buffer(f"{self.name}{name}", dtype, (), "register") for name, dtype in (
                ("pair", U32), ("begin", U32), ("low", U32), ("high", U32), ("middle", U32),
                ("more", BOOL)))
        pair, place, i = load(first, ()), load(begin, ()), load(middle, ())
        second = apply("add", pair, self.length)
        j = apply("sub", apply("sub", place, const(1, U32)), i)
        bisect = bisection(low, high, middle, more, apply("le", *(
            self.code(source, read, apply("add", run, k)) for run, k in ((pair, i), (second, j)))))
        piece, unit = as_number(number), const(self.piece, U32)
        before = apply("shl", apply("shr_logical", piece, self.halvings), self.halvings)
        least, split = apply("min", place, self.length), load(low, ())
        found = (apply("add", pair, split), apply("add", second, apply("sub", place, split)),
                 second, apply("add", second, self.length))
        return allocated((first, begin, low, high, middle, more), (
            Store(first, (), apply("mul", before, unit)),
            Store(begin, (), apply("mul", apply("sub", piece, before), unit)),
            Store(low, (), apply("sub", place, least)), Store(high, (), least), bisect,
            *(Store(starts, (chain, index.constant(k)), value) for k, value in enumerate(found))))


class _Chain:
    """One of the pieces that are merged side by side.

    What each run has next are positions in both, which go on when there is nothing left: then a
    code that is the largest counts as next.  Codes of elements may be as large; these are the last.
    """

    def __init__(self, merge: Merge, number: int, source: Buffer, read: Place) -> None:
        self.merge, self.number, self.source, self.read = merge, number, source, read
        name, dtype, lanes = f"{merge.name}_{number}", source.dtype, merge.lanes
        self.next = [Buffer(f"{name}next{run}", U32, (), "register") for run in range(2)]
        self.end = [Buffer(f"{name}end{run}", U32, (), "register") for run in range(2)]
        self.waits = Buffer(f"{name}waits", dtype, (lanes,), "register")
        self.begin = Buffer(f"{name}begin", U32, (), "register")
        self.left = Buffer(f"{name}left", U32, (), "register")
        self.first = Buffer(f"{name}first", BOOL, (), "register")
        self.taken = Buffer(f"{name}taken", dtype, (lanes,), "register")
        self.turns = [Buffer(f"{name}turn{k}", dtype, (2, lanes), "register") for k in range(2)]

    @property
    def outer(self) -> tuple[Buffer, ...]:
        return (*self.next, *self.end, self.waits)

    @property
    def inner(self) -> tuple[Buffer, ...]:
        return (self.begin, self.left, self.first, self.taken, *self.turns)

    def start(self, starts: Buffer) -> Body:
        """What was found out about the piece; the vector that waits is the next of a run."""
        return (*(Store(own, (), load(starts, (index.constant(self.number), index.constant(k))))
                  for k, own in enumerate((*self.next, *self.end))),
                *allocated((self.begin, self.left, self.first), (*self._take(), self._vector(
                    lambda lane: (Store(self.waits, (lane,), self._taken(lane)),)))))

    def step(self, place: Place, rooms: Buffer) -> list[Body]:
        """One vector of codes: stages of independent statements."""
        lanes, turns = self.merge.lanes, self.turns
        stages: list[Body] = [
            self._take(),
            (self._vector(lambda r: (Store(self.taken, (r,), self._taken(r)),)),),
            (self._vector(lambda r: tuple(
                Store(turns[0], (index.constant(half), r), apply(
                    op, load(self.waits, (r,)),
                    load(self.taken, (index.subtract(index.constant(lanes - 1), r),))))
                for half, op in enumerate(("min", "max")))),)]
        apart = lanes // 2
        while apart:
            source, into = turns
            stages.append((self._vector(functools.partial(_compared, source, into, apart)),))
            turns, apart = turns[::-1], apart // 2
        stages.append((self._vector(lambda r: (
            Store(rooms, place(r), load(turns[0], (index.constant(0), r))),
            Store(self.waits, (r,), load(turns[0], (index.constant(1), r))))),))
        return stages

    def _take(self) -> Body:
        """A vector of the run that has the smaller code next."""
        first = load(self.first, ())
        codes, begins, lefts, behind = [], [], [], []
        for position, end in zip(*([load(b, ()) for b in both] for both in (self.next, self.end)),
                                 strict=True):
            here = apply("min", position, end)
            codes.append(apply("select", apply("lt", position, end),
                               self.merge.code(self.source, self.read, position),
                               const(-1, self.source.dtype)))
            begins.append(here)
            lefts.append(apply("sub", end, here))
            behind.append(apply("add", position, const(self.merge.lanes, U32)))
        return (Store(self.first, (), apply("le", *codes)),
                Store(self.begin, (), apply("select", first, *begins)),
                Store(self.left, (), apply("select", first, *lefts)),
                *(Store(b, (), apply("select", first, *values)) for b, values in zip(
                    self.next, ((behind[0], load(self.next[0], ())),
                                (load(self.next[1], ()), behind[1])), strict=True)))

    def _taken(self, lane: Expr) -> Expr:
        """The codes that were taken, and the largest ones behind the end of their run."""
        begin = index.minimum(as_index(load(self.begin, ())), index.constant(self.merge.size))
        return apply("select", apply("lt", as_number(lane), load(self.left, ())), load(
            self.source, self.read(index.add(begin, lane))), const(-1, self.source.dtype))

    def _vector(self, body: Callable[[Expr], Body]) -> For:
        return loop("lane", self.merge.lanes, LoopKind.VECTORIZE, body)


def _compared(source: Buffer, into: Buffer, apart: int, lane: Expr) -> Body:
    """What lies so far apart within both vectors, the smaller ones in front."""
    is_behind = index.floormod(index.floordiv(lane, apart), 2)
    partner = index.add(
        index.multiply(index.floordiv(lane, 2 * apart), index.constant(2 * apart)),
        index.floormod(index.add(lane, index.constant(apart)), 2 * apart))
    body: list[Stmt] = []
    for half in range(2):
        mine, other = (load(source, (index.constant(half), i)) for i in (lane, partner))
        body.append(Store(into, (index.constant(half), lane), apply(
            "select", index.compare("eq", is_behind, index.constant(0)),
            apply("min", mine, other), apply("max", mine, other))))
    return tuple(body)


def _behind(rooms: Buffer, lanes: int) -> Body:
    """A vector of codes behind the last of each room, which are read and not looked at."""
    count, size = rooms.shape
    return (loop("room", count, LoopKind.SERIAL, lambda k: (
        loop("behind", lanes, LoopKind.VECTORIZE, lambda lane: (Store(
            rooms, (k, index.add(index.constant(size - lanes), lane)),
            const(-1, rooms.dtype)),)),)),)


def _in_turn(level: Expr) -> Place:
    """In one room, or in the other at the next level."""
    return lambda i: (index.floormod(level, 2), i)


def _from(first: Expr, place: Place) -> Place:
    """In a row that begins there."""
    return lambda i: place(index.add(first, i))
