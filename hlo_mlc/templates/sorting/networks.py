"""Networks of comparisons, in many lanes at once: each sorts codes of its own.

Blocks of codes are sorted in registers.  Then neighbours are merged, as Batcher's bitonic sorters
do it: of two sorted blocks the first is compared with the second backwards, then what lies half a
block apart, a quarter, and so on.  As many of these steps are done at once as registers hold.
What is the same at several levels is there once: codes are sorted faster than code is compiled.

Source: K. E. Batcher, Sorting networks and their applications, AFIPS 1968.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from hlo_mlc.expr.build import apply, compare
from hlo_mlc.expr.core import Buffer, Expr, Var
from hlo_mlc.loops.core import For, If, Stmt
from hlo_mlc.loops.rewrite import Steps, allocated, serial, vectorized
from hlo_mlc.templates.by_hand import read, store
from hlo_mlc.templates.sorting.records import Body

Pairs = tuple[tuple[int, int], ...]  # of which the first gets the smaller one


def steps(n: int) -> int:
    """How often each of n codes is compared."""
    levels = max(1, (n - 1).bit_length())
    return levels * (levels + 1) // 2


def padded(n: int) -> int:
    """The codes that a network for n of them sorts."""
    return 1 << max(1, (n - 1).bit_length())


@dataclass(frozen=True, slots=True)
class Network:
    """`length` codes in each of some lanes, in room for a power of two or more; what follows is
    the largest.  `place(i, lane)` is where code i is.  Registers hold `at_once` vectors."""

    name: str
    codes: Buffer
    place: Callable[[Expr, Expr], tuple[Expr, ...]]
    length: int
    lanes: int
    at_once: int

    @property
    def size(self) -> int:
        return padded(self.length)

    @property
    def _block(self) -> int:
        return min(self.at_once, self.size)

    def pad(self, begin: int) -> Body:
        """From a position on, codes of no element, which are the largest."""
        count = self.size - begin

        def one(i: Expr) -> Stmt:
            at = begin + i
            return self._vector(lambda lane: store(self.codes, -1, *self.place(at, lane)))

        return (serial("pad", count, one),) if count else ()

    def in_order(self) -> Body:
        """Blocks that registers hold, then twice as many codes each time."""
        begin = self._block
        return (
            *self._steps(
                "block", self.size // begin, lambda b, k: b * begin + k, sorted_pairs(begin)
            ),
            *self._merged(),
        )

    def _merged(self) -> Body:
        """Pairs of sorted blocks, level by level: the steps of each in parts that registers hold,
        and those that several levels have are there once."""
        most = self._block.bit_length() - 1
        levels = {k: _shares(most + 1 + k, most) for k in range(self.size.bit_length() - 1 - most)}
        further: dict[tuple[int, int], list[int]] = {}  # what lies apart, steps: levels
        for k, parts in levels.items():
            for n, many in enumerate(parts[1:], 1):
                further.setdefault((sum(parts[n:]), many), []).append(k)

        def level(k: Var) -> Steps:
            first = [
                _if_any(k, [n], levels, self._first_steps(1 << (most + n), many))
                for n, (many, *_) in levels.items()
            ]
            return first + [
                _if_any(k, having, levels, self._further_steps(1 << apart, many))
                for (apart, many), having in sorted(further.items(), reverse=True)
            ]

        return (serial("twice", len(levels), level),) if levels else ()

    def _first_steps(self, half: int, many: int) -> Body:
        """The first with the second backwards; each half is then one to be put in order."""
        count, step = 1 << many, 2 * half >> many
        middle = count // 2

        def blocks(b: Var) -> Body:
            low = b * (2 * half)
            high = low + (2 * half - 1)

            def position(j: Expr, k: int) -> Expr:
                if k < middle:
                    return low + k * step + j
                return high - (count - 1 - k) * step - j

            backwards = tuple((k, count - 1 - k) for k in range(middle))
            return self._steps(
                "apart",
                step,
                position,
                (backwards, *(_apart(count, middle >> s) for s in range(1, many))),
            )

        return (serial("merged", self._blocks(2 * half), blocks),)

    def _further_steps(self, apart: int, many: int) -> Body:
        count, step = 1 << many, apart >> many

        def blocks(b: Var) -> Body:
            low = b * apart
            return self._steps(
                "apart",
                step,
                lambda j, k: low + k * step + j,
                tuple(_apart(count, count >> s) for s in range(1, many + 1)),
            )

        return (serial("merged", self._blocks(apart), blocks),)

    def _blocks(self, size: int) -> int:
        """Blocks that have codes of elements."""
        return -(-self.length // size)

    def _steps(
        self, name: str, times: int, position: Callable[[Expr, int], Expr], stages: Sequence[Pairs]
    ) -> Body:
        """Stages of comparisons among codes that registers hold, so many times."""
        turns = tuple(
            Buffer(f"{self.name}_turn{k}", self.codes.dtype, (self._block, self.lanes), "register")
            for k in range(2)
        )
        used = sorted({k for pairs in stages for pair in pairs for k in pair})

        def once(j: Var) -> Body:
            turn = dict.fromkeys(used, 0)

            def held(k: int, r: Expr) -> Expr:
                return read(turns[turn[k]], k, r)

            def taken(r: Expr) -> Steps:
                return [
                    store(turns[0], read(self.codes, *self.place(position(j, k), r)), k, r)
                    for k in used
                ]

            def compared(pairs: Pairs, r: Expr) -> Steps:
                return [
                    store(turns[1 - turn[k]], apply(op, held(a, r), held(b, r)), k, r)
                    for a, b in pairs
                    for k, op in ((a, "min"), (b, "max"))
                ]

            def put(r: Expr) -> Steps:
                return [store(self.codes, held(k, r), *self.place(position(j, k), r)) for k in used]

            body = [self._vector(taken)]
            for pairs in stages:
                body.append(self._vector(functools.partial(compared, pairs)))
                turn.update({k: 1 - turn[k] for pair in pairs for k in pair})
            return allocated(turns, (body, self._vector(put)))

        return (serial(name, times, once),)

    def _vector(self, body: Callable[[Expr], Steps]) -> For:
        return vectorized("lane", self.lanes, body)


def _shares(steps: int, most: int) -> list[int]:
    """So many steps in parts of nearly equal length, `most` of them at once; the first are short,
    so that few levels have others at their ends."""
    parts = -(-steps // most)
    return [steps // parts + (k >= parts - steps % parts) for k in range(parts)]


def _if_any(k: Var, numbers: Sequence[int], among: Collection[int], body: Body) -> Body:
    """`body`, if k is one of some numbers among those that it may be."""
    if len(numbers) == len(among):
        return body
    return (If(functools.reduce(operator.or_, (compare("eq", k, n) for n in numbers)), body),)


def _apart(count: int, distance: int) -> Pairs:
    """All that lie so far apart within blocks of twice that length."""
    return tuple((k, k + distance) for k in range(count) if not k & distance)


def sorted_pairs(count: int) -> tuple[Pairs, ...]:
    """Stages of comparisons that sort a power of two, by odd-even merges."""
    stages: list[Pairs] = []
    half = 1
    while half < count:
        distance = half
        while distance:
            begin = distance % half
            stages.append(
                tuple(
                    (i, i + distance)
                    for j in range(begin, count - distance, 2 * distance)
                    for i in range(j, min(j + distance, count - distance))
                    if i // (2 * half) == (i + distance) // (2 * half)
                )
            )
            distance //= 2
        half *= 2
    return tuple(stages)
