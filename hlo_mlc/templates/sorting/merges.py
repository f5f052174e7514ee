"""Long rows of codes: runs in order, each sorted in a lane, then pairs of them merged until there
is one.

A vector of codes is merged with the next one of the run that has the smaller first code, by a
bitonic network whose comparisons are between the lanes of vectors: the smaller half of both goes to
its place, the larger one waits for the next.  Several places of a pair are merged side by side,
since each of them waits for its own results; where they begin is found by bisection.

Source: H. Inoue et al., AA-sort, PACT 2007; O. Green et al., Merge path, 2012.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from hlo_mlc.expr import index
from hlo_mlc.expr.build import apply, as_index, const, load
from hlo_mlc.expr.core import Buffer, Expr, Var
from hlo_mlc.expr.dtypes import BOOL, U32, DType
from hlo_mlc.loops.core import Accumulate, For, If, LoopKind, Stmt, Store, While
from hlo_mlc.loops.rewrite import allocated, loop
from hlo_mlc.target.cpu import CpuTarget
from hlo_mlc.templates.base import Scheduled, across, decoded, parallel_tasks, shared_out
from hlo_mlc.templates.sorting.abreast import COMPARED, TRANSPOSED, in_blocks, rows_abreast
from hlo_mlc.templates.sorting.codes import Coded
from hlo_mlc.templates.sorting.networks import Network, padded, steps
from hlo_mlc.templates.sorting.records import Body, Sorting, row_count
from hlo_mlc.templates.sorting.ties import KINDS, Seen, written_again
from hlo_mlc.tensor.combine import named_combiner

# Places of a pair of runs that are merged side by side: four take as long, and more code.
CHAINS = 2
# Codes of a run that is sorted in a lane, at most: twice as many, and the room to merge them, are
# more than fits onto the stack.
RUN = 1024
# Codes of a part at least, of which there is one for each core.
PART = 1 << 13
# Comparisons that take as long as a code takes to be merged once.
MERGED = 8
# Bytes of a share.
SHARE_BYTES = 1 << 18
# Results that are handed out together.
BLOCK = 1 << 15


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
    """Rows of codes, each a power of two of parts; a part is a run in each lane."""

    def __init__(self, coded: Coded, target: CpuTarget) -> None:
        self.coded, self.lanes = coded, rows_abreast(coded, target)
        self.sorting = Sorting(coded.stage, 0, self.lanes, coded.stage.accumulators, ())
        self.n, self.name = self.sorting.element.extent, coded.stage.name
        self.parts = part_count(coded, target)
        unit = CHAINS * self.lanes  # of which places that are merged side by side have whole ones
        self.run = -(-self.n // (self.parts * self.lanes * unit)) * unit
        self.part = self.run * self.lanes
        total = self.sorting.rows * self.parts * self.part
        self.rooms = [Buffer(f"{self.name}_room{k}", coded.dtype, (total + self.lanes,), "scratch")
                      for k in range(min(2, self.parts))]
        self.at_once = target.registers // 2
        # The smallest and the largest code of each range of equal elements, in each part.
        self.ends = Buffer(f"{self.name}_ends", coded.dtype, (
            self.sorting.rows * self.parts, max(1, len(coded.ties)), len(KINDS)), "scratch")

    @property
    def scratch(self) -> tuple[Buffer, ...]:
        return (*self.rooms, *((self.ends,) if self.coded.ties else ()))

    def body(self) -> Body:
        """All of it."""
        parts = self.sorting.rows * self.parts
        work = parts * self.part * COMPARED * (steps(self.run) + MERGED * self.lanes.bit_length())
        body = shared_out(f"{self.name}_part", parts, work, self._part)
        source, length = self.rooms[0], self.part
        body += tuple(_behind(room, self.lanes) for room in self.rooms[:self.parts])
        while length < self.parts * self.part:
            into = self.rooms[source is self.rooms[0]]
            body += self._merged(source, into, length)
            source, length = into, 2 * length
        return body + self._with_ties(source) + self._handed_out(source)

    # Parts

    def _part(self, number: Expr) -> Body:
        """One part, into the first room."""
        codes = Buffer(f"{self.name}_codes", self.coded.dtype, (padded(self.run), self.lanes),
                       "stack")
        network = Network(self.name, codes, lambda i, lane: (i, lane), self.run, self.lanes,
                          self.at_once)
        stacks = [Buffer(f"{self.name}_stack{k}", self.coded.dtype, (self.part + self.lanes,),
                         "stack") for k in range(2)]
        body = (*self._fill(number, codes), *self._looked_at(number, codes),
                *network.pad(self.run), *network.in_order(), *self._apart(codes, stacks[0]),
                *(_behind(stack, self.lanes) for stack in stacks))
        source, length = stacks[0], self.run
        while length < self.part:
            last = 2 * length == self.part
            into = self.rooms[0] if last else stacks[source is stacks[0]]
            begin = index.multiply(number, index.constant(self.part)) if last \
                else index.constant(0)
            body += self._pairs(source, into, length, begin)
            source, length = into, 2 * length
        return allocated((codes, *stacks), body)

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
                loop("lane", self.lanes, LoopKind.VECTORIZE, lambda i: (Store(into, (index.add(
                    index.multiply(r, index.constant(self.run)), index.add(begin, i)),),
                    load(codes, (index.add(begin, i), r))),)),))

        return (loop("vectors", self.run // self.lanes, LoopKind.SERIAL, vectors),)

    def _pairs(self, source: Buffer, into: Buffer, length: int, begin: Expr) -> Body:
        """All pairs of runs of a part."""
        def pair(p: Var) -> Body:
            first = index.multiply(p, index.constant(2 * length))
            return self._merge(source, first, into, index.add(begin, first), length).share(
                index.constant(0), 1)

        return (loop("pair", self.part // (2 * length), LoopKind.SERIAL, pair),)

    def _merge(self, source: Buffer, first: Expr, into: Buffer, begin: Expr, length: int) -> Merge:
        return Merge(f"{self.name}_", self.coded.dtype, self.lanes, length, source,
                     lambda i: index.add(first, i),
                     lambda place, lane, code: (Store(
                         into, (index.add(begin, index.add(place, lane)),), code),))

    # Rows

    def _merged(self, source: Buffer, into: Buffer, length: int) -> Body:
        """All pairs of runs of all rows, in shares."""
        shares = share_count(length, self.lanes, 2 * length * self.coded.dtype.bytes // SHARE_BYTES)
        pairs = self.sorting.rows * self.parts * self.part // (2 * length)

        def task(number: Expr) -> Body:
            first = index.multiply(index.floordiv(number, shares), index.constant(2 * length))
            return self._merge(source, first, into, first, length).share(
                index.floormod(number, shares), shares)

        return parallel_tasks(f"{self.name}_merge", pairs * shares, 1, task)

    def _with_ties(self, ordered: Buffer) -> Body:
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
                        self.name, codes, ordered, lambda i: (index.add(first, i),), size, self.n,
                        lambda i: self.sorting.given(at, i)[0])))
            return allocated(ends, body)

        return (loop("row", self.sorting.rows, LoopKind.SERIAL, row),) if self.coded.ties else ()

    def _handed_out(self, source: Buffer) -> Body:
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
                    code = load(source, (index.add(index.multiply(row, index.constant(size)),
                                                   self.sorting.rank(at, here)),))
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


def share_count(length: int, lanes: int, wanted: int) -> int:
    """In how many shares a pair of runs may be merged: a power of two, as many as wanted or less,
    of which each place has whole vectors."""
    shares = 1
    while shares < wanted and length % (shares * CHAINS * lanes) == 0:
        shares *= 2
    return shares


class Merge:
    """A share of a pair of runs that lie one behind the other: `at(i)` is where code i of both is,
    `store(place, lane, code)` stores the vector of codes that take places from one on."""

    def __init__(self, name: str, dtype: DType, lanes: int, length: int,
                 source: Buffer, at: Callable[[Expr], Expr],
                 store: Callable[[Expr, Expr, Expr], Body]) -> None:
        self.name, self.dtype, self.lanes, self.length = name, dtype, lanes, length
        self.at, self.source, self.store = at, source, store

    def share(self, number: Expr, shares: int) -> Body:
        """What takes the places of one of the shares."""
        part = 2 * self.length // (shares * CHAINS)
        first = index.multiply(number, index.constant(part * CHAINS))
        begin = [index.add(first, index.constant(q * part)) for q in range(CHAINS)]
        chains = [_Chain(self, q) for q in range(CHAINS)]

        def step(o: Var) -> Body:
            at = index.multiply(o, index.constant(self.lanes))
            stages = [chain.step(index.add(b, at)) for chain, b in zip(chains, begin, strict=True)]
            inner = [b for chain in chains for b in chain.inner]
            return allocated(inner, tuple(
                s for same in zip(*stages, strict=True) for part in same for s in part))

        splits = Buffer(f"{self.name}splits", U32, (CHAINS,), "stack")
        return allocated([splits, *(b for chain in chains for b in chain.outer)], (
            loop("place", CHAINS, LoopKind.SERIAL, lambda q: self._split(splits, q, index.add(
                first, index.multiply(q, index.constant(part))))),
            *(s for q, (chain, b) in enumerate(zip(chains, begin, strict=True))
              for s in chain.start(b, load(splits, (index.constant(q),)))),
            loop("merged", part // self.lanes, LoopKind.SERIAL, step)))

    def code(self, position: Expr, run: int) -> Expr:
        """A code of a run; the first behind it, where there is none."""
        here = index.minimum(as_index(position), index.constant((run + 1) * self.length))
        return load(self.source, (self.at(here),))

    def _split(self, splits: Buffer, number: Var, begin: Expr) -> Body:
        """How many codes of the first run come before place `begin`, by bisection."""
        low, high, middle, more = (
            Buffer(f"{self.name}{name}", dtype, (), "register") for name, dtype in (
                ("low", U32), ("high", U32), ("middle", U32), ("more", BOOL)))
        length = index.constant(self.length)
        half = apply("shr_logical", apply("add", load(low, ()), load(high, ())), const(1, U32))
        i, last = load(middle, ()), const(self.length - 1, U32)
        j = apply("add", _number(begin), apply("sub", last, i))
        bisect = While(apply("lt", load(low, ()), load(high, ())), (
            Store(middle, (), half),
            Store(more, (), apply("le", self.code(i, 0), self.code(j, 1))),
            Store(low, (), apply("select", load(more, ()), apply("add", i, const(1, U32)),
                                 load(low, ()))),
            Store(high, (), apply("select", load(more, ()), load(high, ()), i))))
        least = index.maximum(index.subtract(begin, length), index.constant(0))
        return allocated((low, high, middle, more), (
            Store(low, (), _number(least)), Store(high, (), _number(index.minimum(begin, length))),
            bisect, Store(splits, (number,), load(low, ()))))


class _Chain:
    """One of the places that are merged side by side.

    What each run has next are positions in both, which go on when there is nothing left: then a
    code that is the largest counts as next.  Codes of elements may be as large; these are the last.
    """

    def __init__(self, merge: Merge, number: int) -> None:
        self.merge = merge
        name, dtype, lanes = f"{merge.name}_{number}", merge.dtype, merge.lanes
        self.next = [Buffer(f"{name}next{run}", U32, (), "register") for run in range(2)]
        self.waits = Buffer(f"{name}waits", dtype, (lanes,), "register")
        self.begin = Buffer(f"{name}begin", U32, (), "register")
        self.left = Buffer(f"{name}left", U32, (), "register")
        self.first = Buffer(f"{name}first", BOOL, (), "register")
        self.taken = Buffer(f"{name}taken", dtype, (lanes,), "register")
        self.turns = [Buffer(f"{name}turn{k}", dtype, (2, lanes), "register") for k in range(2)]

    @property
    def outer(self) -> tuple[Buffer, ...]:
        return (*self.next, self.waits)

    @property
    def inner(self) -> tuple[Buffer, ...]:
        return (self.begin, self.left, self.first, self.taken, *self.turns)

    def start(self, begin: Expr, split: Expr) -> Body:
        """Where in each run, so many of the first come before; the vector that waits is the next
        of one."""
        one, other = self.next
        length = const(self.merge.length, U32)
        return (Store(one, (), split), Store(other, (), apply(
            "sub", apply("add", _number(begin), length), split)),
            *allocated((self.begin, self.left, self.first), (*self._take(), self._vector(
                lambda lane: (Store(self.waits, (lane,), self._read(lane)),)))))

    def step(self, place: Expr) -> list[Body]:
        """One vector of codes: stages of independent statements."""
        lanes, turns = self.merge.lanes, self.turns
        stages: list[Body] = [
            self._take(),
            (self._vector(lambda r: (Store(self.taken, (r,), self._read(r)),)),),
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
            *self.merge.store(place, r, load(turns[0], (index.constant(0), r))),
            Store(self.waits, (r,), load(turns[0], (index.constant(1), r))))),))
        return stages

    def _take(self) -> Body:
        """A vector of the run that has the smaller code next."""
        first = load(self.first, ())
        codes, begins, lefts, behind = [], [], [], []
        for run, position in enumerate(load(b, ()) for b in self.next):
            end = const((run + 1) * self.merge.length, U32)
            is_there = apply("lt", position, end)
            here = apply("min", position, end)
            codes.append(apply("select", is_there, self.merge.code(position, run),
                               const(-1, self.merge.dtype)))
            begins.append(here)
            lefts.append(apply("sub", end, here))
            behind.append(apply("add", position, const(self.merge.lanes, U32)))
        return (Store(self.first, (), apply("le", *codes)),
                Store(self.begin, (), apply("select", first, *begins)),
                Store(self.left, (), apply("select", first, *lefts)),
                *(Store(b, (), apply("select", first, *values)) for b, values in zip(
                    self.next, ((behind[0], load(self.next[0], ())),
                                (load(self.next[1], ()), behind[1])), strict=True)))

    def _read(self, lane: Expr) -> Expr:
        """The codes that were taken, and the largest ones behind the end of their run."""
        merge = self.merge
        begin = index.minimum(as_index(load(self.begin, ())), index.constant(2 * merge.length))
        return apply("select", apply("lt", _number(lane), load(self.left, ())), load(
            merge.source, (merge.at(index.add(begin, lane)),)), const(-1, merge.dtype))

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


def _behind(room: Buffer, lanes: int) -> For:
    """A vector of codes behind a room's last, which are read and not looked at."""
    begin = index.constant(room.size - lanes)
    return loop("behind", lanes, LoopKind.VECTORIZE, lambda lane: (Store(
        room, (index.add(begin, lane),), const(-1, room.dtype)),))


def _number(e: Expr) -> Expr:
    return apply("convert", e, dtype=U32)
