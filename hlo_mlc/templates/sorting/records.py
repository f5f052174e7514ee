"""What is moved when elements are put in order: records, with the accumulators that results need,
and those keys that do not follow from them."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from hlo_mlc.expr import index
from hlo_mlc.expr.build import FALSE, as_index, compare, convert, select, substitute
from hlo_mlc.expr.core import Buffer, Expr, Var
from hlo_mlc.expr.dtypes import BOOL, U32
from hlo_mlc.loops.core import LoopKind, Stmt, While
from hlo_mlc.loops.lower import stores_at
from hlo_mlc.loops.rewrite import Steps, allocated
from hlo_mlc.target.cpu import CpuTarget
from hlo_mlc.templates.base import lanes
from hlo_mlc.templates.by_hand import across, read, store
from hlo_mlc.tensor.core import Stage

Body = tuple[Stmt, ...]
Place = Callable[[Expr], tuple[Expr, ...]]  # the indices of a record in its buffers
Records = tuple[Buffer, ...]  # one buffer for each part of a record


@dataclass(frozen=True, slots=True)
class Room:
    """Where records lie: the buffer of each of their parts, and where in it a record has it."""

    buffers: Records
    places: tuple[Place, ...]

    @staticmethod
    def of(buffers: Records, place: Place) -> Room:
        """Records whose parts are all at the same place."""
        return Room(buffers, (place,) * len(buffers))

    def read(self, i: Expr) -> tuple[Expr, ...]:
        """A record."""
        return tuple(read(b, *place(i)) for b, place in zip(self.buffers, self.places, strict=True))

    def store(self, i: Expr, values: Sequence[Expr], guard: Expr | None = None) -> Body:
        """A record that is written."""
        return tuple(
            store(b, value, *place(i), guard=guard)
            for b, place, value in zip(self.buffers, self.places, values, strict=True)
        )


# Bytes of a row with the room to move it, up to which it is private to a task.
STACK = 128 * 1024
# Simple operations (templates/base.py) that moving a record once takes.
MOVED = 6


@dataclass(frozen=True, slots=True)
class Sorting:
    """One sort on a target; `digit`: the bits that are sorted by at once."""

    stage: Stage
    digit: int
    width: int  # lanes of a vector
    kept: tuple[Var, ...]  # accumulators that a record has
    extra: tuple[int, ...]  # the keys that it has besides
    scratch: list[Buffer] = field(default_factory=list)  # that its records are in

    @staticmethod
    def of(stage: Stage, target: CpuTarget, digit: int) -> Sorting:
        """How a stage is sorted: from its nearer end."""
        stage = from_nearer_end(stage)
        kept = kept_of(stage)
        extra = tuple(k for k, key in enumerate(stage.sort.keys) if not key.free <= set(kept))
        return Sorting(stage, digit, lanes((stage,), target), kept, extra)

    @property
    def element(self) -> Var:
        return self.stage.reduce_axes[0]

    @property
    def outer(self) -> tuple[Var, ...]:
        return tuple(v for v in self.stage.axes if v is not self.stage.sort.place)

    @property
    def rows(self) -> int:
        return row_count(self.stage)

    @property
    def digits(self) -> tuple[tuple[int, int], ...]:
        """(key, lowest bit) of each digit, the one that counts least first."""
        keys = self.stage.sort.keys
        return tuple(
            (k, bit)
            for k in reversed(range(len(keys)))
            for bit in range(0, keys[k].dtype.bits, self.digit)
        )

    @property
    def comes_back(self) -> bool:
        """Whether records are where they began when they were moved for each digit."""
        return len(self.digits) % 2 == 0

    def records(
        self, name: str, shape: tuple[int, ...], scope: str = "stack", *, in_results: bool = False
    ) -> Records:
        """Buffers of so many records; parts may lie in the results that are to hold all of them
        and nothing else."""
        parts = [*self.kept, *(self.stage.sort.keys[k] for k in self.extra)]
        stored = Counter(a.buffer for a in self.stage.assigns)
        results = {
            a.value: a.buffer for a in self.stage.assigns if in_results and stored[a.buffer] == 1
        }
        made = {
            part: Buffer(f"{self.stage.name}_{name}{n}", part.dtype, shape, scope)
            for n, part in enumerate(parts)
            if part not in results
        }
        if scope == "scratch":
            self.scratch.extend(made.values())
        return tuple(results.get(part) or made[part] for part in parts)

    def room(self, buffers: Records, place: Place, at: dict[Var, Expr], first: Expr) -> Room:
        """Records in buffers, and in results from the place `first` of a row on."""

        def within(indices: tuple[Expr, ...], i: Expr) -> tuple[Expr, ...]:
            point = {**at, self.stage.sort.place: first + i}
            return tuple(substitute(e, point) for e in indices)

        results = {a.buffer: functools.partial(within, a.indices) for a in self.stage.assigns}
        return Room(buffers, tuple(results.get(b, place) for b in buffers))

    @property
    def bytes(self) -> int:
        """Bytes of a record."""
        return sum(b.bytes for b in self.records("one", (1,)))

    def keys(self, values: Sequence[Expr]) -> tuple[Expr, ...]:
        """The keys of a record."""
        known = dict(zip(self.kept, values, strict=False))
        given = dict(zip(self.extra, values[len(self.kept) :], strict=True))
        return tuple(
            given[k] if k in given else substitute(key, known)
            for k, key in enumerate(self.stage.sort.keys)
        )

    def given(self, at: dict[Var, Expr], position: Expr) -> tuple[Expr, ...]:
        """The record of the element at a position of a row."""
        point = {**at, self.element: position}
        terms = {
            v: substitute(e, point)
            for v, e in zip(self.stage.accumulators, self.stage.terms, strict=True)
        }
        return (
            *(terms[v] for v in self.kept),
            *(substitute(self.stage.sort.keys[k], terms) for k in self.extra),
        )

    def results(self, at: dict[Var, Expr], place: Expr, values: Sequence[Expr]) -> Body:
        """The record that takes a place of a row is stored there."""
        point = {**at, self.stage.sort.place: place, **dict(zip(self.kept, values, strict=False))}
        return stores_at(self.stage.assigns, point)

    def vectors(self, name: str, count: int, body: Callable[[Expr], Steps]) -> Body:
        """`body(i)` for each i below `count`, in vectors."""
        return across(name, count, self.width, body, LoopKind.SERIAL)

    def fill(self, into: Room, at: dict[Var, Expr], first: Expr, count: int) -> Body:
        """The records of `count` elements from the one at `first` on."""
        return self.vectors("fill", count, lambda i: into.store(i, self.given(at, first + i)))

    def hand_out(self, records: Room, at: dict[Var, Expr]) -> Body:
        """The results of a row, from its records in order."""
        return self.vectors(
            "out",
            self.stage.sort.place.extent,
            lambda i: self.results(at, i, records.read(self.rank(at, i))),
        )

    def rank(self, at: dict[Var, Expr], place: Expr) -> Expr:
        """How many records come before the one that takes a place of the results."""
        return substitute(self.stage.sort.at, {**at, self.stage.sort.place: place})


def row_count(stage: Stage) -> int:
    """The rows that are put in order."""
    return math.prod(v.extent for v in stage.axes if v is not stage.sort.place)


def kept_of(stage: Stage) -> tuple[Var, ...]:
    """The accumulators that results need."""
    wanted = frozenset[Expr]().union(*(a.value.free for a in stage.assigns))
    return tuple(v for v in stage.accumulators if v in wanted)


def from_nearer_end(stage: Stage) -> Stage:
    """The same results, of rows and orders that begin at their ends where the last are wanted."""
    (element,), sort = stage.reduce_axes, stage.sort
    last = index.constant(element.extent - 1)
    low, high = index.bounds(sort.at)
    if high < element.extent - low:
        return stage
    turned = {element: last - element}
    return replace(
        stage,
        terms=tuple(substitute(e, turned) for e in stage.terms),
        sort=replace(sort, keys=tuple(~key for key in sort.keys), at=last - sort.at),
    )


def first_wanted(stage: Stage) -> int:
    """How many of the first records of a row its results show some of."""
    return int(index.bounds(stage.sort.at)[1]) + 1


def comes_first(one: Sequence[Expr], other: Sequence[Expr], tied: Expr = FALSE) -> Expr:
    """Whether keys come before others; `tied` where they are the same."""
    for mine, theirs in reversed(tuple(zip(one, other, strict=True))):
        equal = compare("eq", mine, theirs) & tied
        tied = compare("lt", mine, theirs) | equal
    return tied


def length(run: Expr, size: int, n: int) -> Expr:
    """Elements of a run, of which the last may be shorter."""
    return index.minimum(size, index.maximum(n - run * size, 0))


def alone(i: Expr) -> tuple[Expr, ...]:
    return (i,)


def in_row(row: Expr, i: Expr) -> tuple[Expr, ...]:
    return (row, i)


def moved(record: Sequence[Expr], room: Room, to: Expr, length: Expr) -> Body:
    """A record to the place that a counter says; whether that is inside is asked, so that nobody
    need believe the counters."""
    there = as_index(to)
    return room.store(there, record, compare("lt", there, length))


def as_number(i: Expr) -> Expr:
    """An index, or whether something holds, as it is kept in registers."""
    return convert(i, U32)


def bisection(low: Buffer, first: Expr, last: Expr, holds: Callable[[Expr], Expr]) -> Body:
    """In `low`: the first number from `first` to `last` of which something does not hold."""
    high, middle = (Buffer(f"{low.name}_{end}", U32, (), "register") for end in ("high", "middle"))
    more = Buffer(f"{low.name}_more", BOOL, (), "register")
    halves = (
        store(middle, (read(low) + read(high)) >> 1),
        store(more, holds(read(middle))),
        store(low, select(read(more), read(middle) + 1, read(low))),
        store(high, select(read(more), read(high), read(middle))),
    )
    search = While(compare("lt", read(low), read(high)), halves)
    return (store(low, first), *allocated((high, middle, more), (store(high, last), search)))
