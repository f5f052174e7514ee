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
from hlo_mlc.expr.build import apply, as_index, const, load
from hlo_mlc.expr.core import Buffer, Expr, Var
from hlo_mlc.expr.dtypes import BOOL, U32, DType
from hlo_mlc.loops.core import For, Stmt, Store
from hlo_mlc.loops.rewrite import allocated, serial, vectorized
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
        self.halvings = apply("add", const((2 * length // piece).bit_length() - 1, U32), level)

    def pieces(self, number: Expr, source: Codes, into: Codes) -> Body:
        """The `number`th of the groups of pieces that are merged side by side."""
        chains = [_Chain(self, q, source) for q in range(CHAINS)]
        begin = [
            index.multiply(index.add(index.multiply(number, CHAINS), q), self.piece)
            for q in range(CHAINS)
        ]

        def step(o: Var) -> Body:
            at = index.multiply(o, self.lanes)
            stages = [
                chain.step(into.behind(index.add(b, at)))
                for chain, b in zip(chains, begin, strict=True)
            ]
            inner = [b for chain in chains for b in chain.inner]
            return allocated(
                inner, tuple(s for same in zip(*stages, strict=True) for part in same for s in part)
            )

        starts = Buffer(f"{self.name}starts", U32, (CHAINS, len(chains[0].outer) - 1), "stack")
        return allocated(
            [starts, *(b for chain in chains for b in chain.outer)],
            (
                serial(
                    "chain",
                    CHAINS,
                    lambda q: self._start(
                        starts, q, index.add(index.multiply(number, CHAINS), q), source
                    ),
                ),
                *(s for chain in chains for s in chain.start(starts)),
                serial("merged", self.piece // self.lanes, step),
            ),
        )

    def code(self, source: Codes, position: Expr) -> Expr:
        """A code; the first behind all, where there is none."""
        return source.read(index.minimum(as_index(position), self.size))

    def _start(self, starts: Buffer, chain: Expr, number: Expr, source: Codes) -> Body:
        """What is next of both runs where a piece begins, and where they end: so many codes of the
        first run come before the piece as bisection finds."""
        first, begin, low, high, middle, more = (
            Buffer(f"{self.name}{name}", dtype, (), "register")
            for name, dtype in (
                ("pair", U32),
                ("begin", U32),
                ("low", U32),
                ("high", U32),
                ("middle", U32),
                ("more", BOOL),
            )
        )
        pair, place, i = load(first, ()), load(begin, ()), load(middle, ())
        second = apply("add", pair, self.length)
        j = apply("sub", apply("sub", place, const(1, U32)), i)
        bisect = bisection(
            low,
            high,
            middle,
            more,
            apply(
                "le",
                *(self.code(source, apply("add", run, k)) for run, k in ((pair, i), (second, j))),
            ),
        )
        piece, unit = as_number(number), const(self.piece, U32)
        before = apply("shl", apply("shr_logical", piece, self.halvings), self.halvings)
        least, split = apply("min", place, self.length), load(low, ())
        found = (
            apply("add", pair, split),
            apply("add", second, apply("sub", place, split)),
            second,
            apply("add", second, self.length),
        )
        return allocated(
            (first, begin, low, high, middle, more),
            (
                Store(first, (), apply("mul", before, unit)),
                Store(begin, (), apply("mul", apply("sub", piece, before), unit)),
                Store(low, (), apply("sub", place, least)),
                Store(high, (), least),
                bisect,
                *(
                    Store(starts, (chain, index.constant(k)), value)
                    for k, value in enumerate(found)
                ),
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
        return (
            *(
                Store(own, (), load(starts, (index.constant(self.number), index.constant(k))))
                for k, own in enumerate((*self.next, *self.end))
            ),
            *allocated(
                (self.begin, self.left, self.first),
                (
                    *self._take(),
                    self._vector(lambda lane: (Store(self.waits, (lane,), self._taken(lane)),)),
                ),
            ),
        )

    def step(self, into: Codes) -> list[Body]:
        """One vector of codes: stages of independent statements."""
        lanes, turns = self.merge.lanes, self.turns
        stages: list[Body] = [
            self._take(),
            (self._vector(lambda r: (Store(self.taken, (r,), self._taken(r)),)),),
            (
                self._vector(
                    lambda r: tuple(
                        Store(
                            turns[0],
                            (index.constant(half), r),
                            apply(
                                op,
                                load(self.waits, (r,)),
                                load(self.taken, (index.subtract(lanes - 1, r),)),
                            ),
                        )
                        for half, op in enumerate(("min", "max"))
                    )
                ),
            ),
        ]
        apart = lanes // 2
        while apart:
            stages.append((self._vector(functools.partial(_compared, *turns, apart)),))
            turns, apart = turns[::-1], apart // 2
        stages.append(
            (
                self._vector(
                    lambda r: (
                        into.write(r, load(turns[0], (index.constant(0), r))),
                        Store(self.waits, (r,), load(turns[0], (index.constant(1), r))),
                    )
                ),
            )
        )
        return stages

    def _take(self) -> Body:
        """A vector of the run that has the smaller code next."""
        first = load(self.first, ())
        codes, begins, lefts, behind = [], [], [], []
        for position, end in zip(
            *([load(b, ()) for b in both] for both in (self.next, self.end)), strict=True
        ):
            here = apply("min", position, end)
            codes.append(
                apply(
                    "select",
                    apply("lt", position, end),
                    self.merge.code(self.source, position),
                    const(-1, self.merge.dtype),
                )
            )
            begins.append(here)
            lefts.append(apply("sub", end, here))
            behind.append(apply("add", position, const(self.merge.lanes, U32)))
        return (
            Store(self.first, (), apply("le", *codes)),
            Store(self.begin, (), apply("select", first, *begins)),
            Store(self.left, (), apply("select", first, *lefts)),
            *(
                Store(b, (), apply("select", first, *values))
                for b, values in zip(
                    self.next,
                    ((behind[0], load(self.next[0], ())), (load(self.next[1], ()), behind[1])),
                    strict=True,
                )
            ),
        )

    def _taken(self, lane: Expr) -> Expr:
        """The codes that were taken, and the largest ones behind the end of their run."""
        begin = index.minimum(as_index(load(self.begin, ())), self.merge.size)
        return apply(
            "select",
            apply("lt", as_number(lane), load(self.left, ())),
            self.source.read(index.add(begin, lane)),
            const(-1, self.merge.dtype),
        )

    def _vector(self, body: Callable[[Expr], Body]) -> For:
        return vectorized("lane", self.merge.lanes, body)


def _compared(source: Buffer, into: Buffer, apart: int, lane: Expr) -> Body:
    """What lies so far apart within both vectors, the smaller ones in front."""
    is_behind = index.floormod(index.floordiv(lane, apart), 2)
    partner = index.add(
        index.multiply(index.floordiv(lane, 2 * apart), 2 * apart),
        index.floormod(index.add(lane, apart), 2 * apart),
    )
    body: list[Stmt] = []
    for half in range(2):
        mine, other = (load(source, (index.constant(half), i)) for i in (lane, partner))
        body.append(
            Store(
                into,
                (index.constant(half), lane),
                apply(
                    "select",
                    index.compare("eq", is_behind, 0),
                    apply("min", mine, other),
                    apply("max", mine, other),
                ),
            )
        )
    return tuple(body)
