"""Pairs of runs of codes, merged in vectors.

A vector of codes is merged with the next one of the run that has the smaller first code, by a
bitonic network whose comparisons are between the lanes of vectors: the smaller half of both goes to
its place, the larger one waits for the next.  Several pieces of what pairs become are merged side
by side, since each of them waits for its own results; where they begin is found by bisection.

Source: H. Inoue et al., AA-sort, PACT 2007; O. Green et al., Merge path, 2012.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from hlo_mlc.expr import index
from hlo_mlc.expr.build import apply, as_index, compare, const, select
from hlo_mlc.expr.core import Buffer, Expr, Var
from hlo_mlc.expr.dtypes import BOOL, U32, DType
from hlo_mlc.loops.core import For
from hlo_mlc.loops.rewrite import Steps, allocated, serial, vectorized
from hlo_mlc.templates.by_hand import read, store
from hlo_mlc.templates.sorting.records import Body, as_number, bisection
from hlo_mlc.templates.sorting.rooms import Codes

# Pieces that are merged side by side: four take as long, and more code.
CHAINS = 2


class Merge:
    """Pairs of runs that lie one behind the other, `length` codes each at level 0, and twice as
    many at each level; `size` codes in all, of which those of a piece take places that follow each
    other.  A pair has a power of two of pieces."""

    def __init__(
        self, name: str, dtype: DType, lanes: int, length: int, level: Expr, size: int, piece: int
    ) -> None:
        self.name, self.dtype, self.lanes = name, dtype, lanes
        self.size, self.piece = size, piece
        level = as_number(level)
        self.length = apply("shl", const(length, U32), level)
        self.halvings = (2 * length // piece).bit_length() - 1 + level

    def pieces(self, number: Expr, source: Codes, into: Codes) -> Body:
        """The `number`th of the groups of pieces that are merged side by side."""
        chains = [_Chain(self, q, source) for q in range(CHAINS)]
        begin = [(number * CHAINS + q) * self.piece for q in range(CHAINS)]

        def step(o: Var) -> Body:
            stages = [
                chain.step(into.behind(b + o * self.lanes))
                for chain, b in zip(chains, begin, strict=True)
            ]
            inner = [b for chain in chains for b in chain.inner]
            return allocated(inner, list(zip(*stages, strict=True)))

        def start(q: Expr) -> Body:
            return self._start(starts, q, number * CHAINS + q, source)

        starts = Buffer(f"{self.name}starts", U32, (CHAINS, len(chains[0].outer) - 1), "stack")
        return allocated(
            [starts, *(b for chain in chains for b in chain.outer)],
            (
                serial("chain", CHAINS, start),
                [chain.start(starts) for chain in chains],
                serial("merged", self.piece // self.lanes, step),
            ),
        )

    def code(self, source: Codes, position: Expr) -> Expr:
        """A code; the first behind all, where there is none."""
        return source.read(index.minimum(as_index(position), self.size))

    def _start(self, starts: Buffer, chain: Expr, number: Expr, source: Codes) -> Body:
        """What is next of both runs where a piece begins, and where they end: so many codes of the
        first run come before the piece as bisection finds."""
        first, begin, low = (
            Buffer(f"{self.name}{name}", U32, (), "register") for name in ("pair", "begin", "low")
        )
        pair, place, split = read(first), read(begin), read(low)
        second = pair + self.length

        def holds(i: Expr) -> Expr:
            places = pair + i, second + (place - 1 - i)
            return compare("le", *(self.code(source, at) for at in places))

        piece = as_number(number)
        before = piece >> self.halvings << self.halvings
        least = apply("min", place, self.length)
        found = (pair + split, second + (place - split), second, second + self.length)
        return allocated(
            (first, begin, low),
            (
                store(first, before * self.piece),
                store(begin, (piece - before) * self.piece),
                bisection(low, place - least, least, holds),
                [store(starts, value, chain, k) for k, value in enumerate(found)],
            ),
        )


class _Chain:
    """One of the pieces that are merged side by side.

    What each run has next are positions in both, which go on when there is nothing left: then a
    code that is the largest counts as next.  Codes of elements may be as large; these are the last.
    """

    def __init__(self, merge: Merge, number: int, source: Codes) -> None:
        self.merge, self.number, self.source = merge, number, source
        name, dtype, lanes = f"{merge.name}_{number}", merge.dtype, merge.lanes
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
        kept = (*self.next, *self.end)
        wait = self._vector(lambda lane: store(self.waits, self._taken(lane), lane))
        return (
            *(store(own, read(starts, self.number, k)) for k, own in enumerate(kept)),
            *allocated((self.begin, self.left, self.first), (self._take(), wait)),
        )

    def step(self, into: Codes) -> list[Steps]:
        """One vector of codes: stages of independent statements."""
        lanes, turns = self.merge.lanes, self.turns

        def halves(r: Expr) -> Body:
            mine, other = read(self.waits, r), read(self.taken, lanes - 1 - r)
            return tuple(
                store(self.turns[0], apply(op, mine, other), half, r)
                for half, op in enumerate(("min", "max"))
            )

        stages = [
            self._take(),
            self._vector(lambda r: store(self.taken, self._taken(r), r)),
            self._vector(halves),
        ]
        apart = lanes // 2
        while apart:
            stages.append(self._vector(functools.partial(_compared, *turns, apart)))
            turns, apart = turns[::-1], apart // 2
        last = turns[0]
        handed = self._vector(
            lambda r: (into.write(r, read(last, 0, r)), store(self.waits, read(last, 1, r), r))
        )
        return [*stages, handed]

    def _take(self) -> Body:
        """A vector of the run that has the smaller code next."""
        first = read(self.first)
        both = [
            (read(position), read(end)) for position, end in zip(self.next, self.end, strict=True)
        ]
        codes = (
            select(compare("lt", position, end), self.merge.code(self.source, position), -1)
            for position, end in both
        )
        begins = [apply("min", position, end) for position, end in both]
        lefts = (end - begin for begin, (_, end) in zip(begins, both, strict=True))
        (one, _), (other, _) = both
        return (
            store(self.first, compare("le", *codes)),
            store(self.begin, select(first, *begins)),
            store(self.left, select(first, *lefts)),
            store(self.next[0], select(first, one + self.merge.lanes, one)),
            store(self.next[1], select(first, other, other + self.merge.lanes)),
        )

    def _taken(self, lane: Expr) -> Expr:
        """The codes that were taken, and the largest ones behind the end of their run."""
        begin = index.minimum(as_index(read(self.begin)), self.merge.size)
        return select(
            compare("lt", as_number(lane), read(self.left)), self.source.read(begin + lane), -1
        )

    def _vector(self, body: Callable[[Expr], Body]) -> For:
        return vectorized("lane", self.merge.lanes, body)


def _compared(source: Buffer, into: Buffer, apart: int, lane: Expr) -> Body:
    """What lies so far apart within both vectors, the smaller ones in front."""
    is_behind = lane // apart % 2
    partner = lane // (2 * apart) * (2 * apart) + (lane + apart) % (2 * apart)
    body: Body = ()
    for half in range(2):
        mine, other = (read(source, half, i) for i in (lane, partner))
        kept = select(
            compare("eq", is_behind, 0), apply("min", mine, other), apply("max", mine, other)
        )
        body += (store(into, kept, half, lane),)
    return body
