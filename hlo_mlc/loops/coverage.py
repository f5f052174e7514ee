"""Which elements of a buffer are written, and whether all are that are read.

A store in loops writes boxes: loops that walk through neighbouring elements make its sides, the
values of all others are put in (loops/regions.py), guards cut it to size.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hlo_mlc.expr import build, index
from hlo_mlc.expr.core import Const, Expr, Var
from hlo_mlc.expr.dtypes import INDEX
from hlo_mlc.loops.core import Allocate, Call, For, If, LoopProgram, Store, While
from hlo_mlc.loops.dependence import Access, accesses
from hlo_mlc.loops.facts import Facts, exactly, least
from hlo_mlc.loops.regions import (
    Boxes,
    Points,
    Unknown,
    enumerated,
    merged_axes,
    split_axes,
)
from hlo_mlc.loops.rewrite import paths

# Cells between the borders of boxes that are painted at most: a few milliseconds.
MOST_CELLS = 1 << 20

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Gap:
    """Elements that nothing writes, or of which that is not excluded."""

    text: str
    certain: bool


def gaps(program: LoopProgram) -> Iterator[Gap]:
    """The results that are not known to be written as a whole, and the reads of what nothing has
    written before."""
    stores: dict[str, _Stores] = {}
    reads: dict[str, dict[tuple, Access]] = {}
    homes: dict[Allocate, str] = {}  # buffers that exist one after the other may share a name
    summarized = _summarized(program)
    for name, (shape, always) in summarized.items():
        stores[name] = _Stores(shape, [], filled=True if always else None)
    touched = accesses(program.body, private=True, called=not summarized)
    order = {access: n for n, access in enumerate(touched)}
    for access in touched:
        buffer = access.buffer
        if buffer.scope == "operand" or not all(isinstance(d, int) for d in buffer.shape):
            continue
        name = buffer.name
        for stmt, _ in access.path:
            if isinstance(stmt, Allocate) and stmt.buffer == buffer:
                name = homes.setdefault(stmt, f"{name} {len(homes)}")
        if access.writes and isinstance(access.stmt, Store):
            stores.setdefault(name, _Stores(buffer.shape, [])).found.append(access)
        else:
            reads.setdefault(name, {}).setdefault((access.indices, access.guards), access)
    for result in program.results:
        if all(isinstance(d, int) for d in result.shape) and 0 not in result.shape:
            written = stores.get(result.name, _Stores(result.shape, []))
            everything = [_box((0, d - 1) for d in result.shape)]
            if not written.cover(everything, certainly=True):
                yield Gap(f"every element of {result!r} is written",
                          not written.cover(everything, certainly=False))
    for name, places in reads.items():
        yield from _unwritten(list(places.values()), stores.get(name), order)


def _unwritten(reads: list[Access], stores: _Stores | None, order: Mapping[Access, int]
               ) -> Iterator[Gap]:
    """Reads of what nothing writes before; `order` are positions in the program."""
    shape = reads[0].buffer.shape
    stores = stores or _Stores(shape, [])
    groups: dict[frozenset[Access], list[tuple[Access, Boxes]]] = {}
    for access in reads:
        before = [w for w in stores.found if _may_come_before(w, access, order)]
        if stores.filled or any(_fills(w, shape) for w in before):
            continue
        if (boxes := _touched(access)) is not None and len(boxes.owners):
            groups.setdefault(frozenset(before), []).append((access, boxes))
    for before, touched in groups.items():
        earlier = _Stores(shape, list(before), stores.filled)
        if earlier.cover([boxes for _, boxes in touched], certainly=False):
            continue
        for access, boxes in touched:
            if not earlier.cover([boxes], certainly=False):
                yield Gap(f"what {access} reads of {access.buffer!r} is written before", True)


def _may_come_before(write: Access, read: Access, order: Mapping[Access, int]) -> bool:
    """Whether a store may be executed before a read of memory that has kept its value since."""
    if order[write] < order[read]:
        return True
    common = [s for (s, n), (t, m) in zip(write.path, read.path, strict=False)
              if s is t and n == m]
    for stmt in reversed(common):
        if isinstance(stmt, Allocate) and stmt.buffer == read.buffer:
            return False  # what an earlier iteration wrote is gone
        if isinstance(stmt, For | While):
            return True
    return False


def _summarized(program: LoopProgram) -> dict[str, tuple[Shape, bool]]:
    """The buffers that calls write as a whole, with whether they always do; nothing where one of
    the calls does less than that: then it counts what the programs do that are called."""
    found: dict[str, tuple[Shape, bool]] = {}
    whole: dict[LoopProgram, bool] = {}
    for *around, stmt in paths(program.body):
        if not isinstance(stmt, Call):
            continue
        callee = stmt.program
        if callee not in whole:
            whole[callee] = not any(True for _ in gaps(callee))
        if not whole[callee]:
            return {}
        always = all(isinstance(s, Allocate) or (isinstance(s, For) and index.bounds(s.extent)[0])
                     for s in around)
        for buffer in stmt.buffers[len(callee.operands):]:
            _, before = found.get(buffer.name, (buffer.shape, False))
            found[buffer.name] = buffer.shape, always or before
    return found


@dataclass(slots=True)
class _Stores:
    """The stores to one buffer; `filled`: by a call as a whole, None where that may not happen."""

    shape: Shape
    found: list[Access]
    filled: bool | None = False
    known: dict[bool, list[Boxes]] | None = None

    @property
    def fill(self) -> bool:
        """Whether one store alone writes all of the buffer, as is seen at a glance."""
        return bool(self.filled) or any(_fills(access, self.shape) for access in self.found)

    def cover(self, wanted: Sequence[Boxes], certainly: bool) -> bool:
        """Whether all that is wanted is certainly written, or else may be written."""
        if (certainly and self.fill) or (not certainly and self.filled is None):
            return True
        if self.known is None:
            self.known = {True: [], False: []}
            for access in self.found:
                exact = _touched(access)
                most = exact or _touched(access, at_most=True) or _hull(access)
                self.known[True] += [] if exact is None else [exact]
                self.known[False] += [most or _box((0, d - 1) for d in self.shape)]
        return covered(wanted, self.known[certainly], self.shape)


def _box(sides: Iterable[tuple[int, int]]) -> Boxes:
    low, high = ([np.array([end]) for end in ends] for ends in
                 (tuple(zip(*sides, strict=True)) or ((), ())))
    return Boxes(tuple(low), tuple(high), np.zeros(1, np.int64))


def _fills(access: Access, shape: Shape) -> bool:
    """Whether an access in loops without conditions touches everything: each axis has loops of its
    own, which walk along it from end to end."""
    if access.guards or any(isinstance(s, If | While) for s, _ in access.path):
        return False
    place, extents = _numbered(access)
    if any(e.free or index.bounds(e)[0] < 1 for e in extents.values()):
        return False
    used: set[Var] = set()
    for i, extent in zip(access.indices, shape, strict=True):
        terms, offset = index.affine(build.substitute(i, place))
        if offset or not all(v in extents and v not in used for v in terms):
            return False
        used.update(terms)
        reach = 1
        for v, step in sorted(terms.items(), key=lambda term: term[1]):
            if step < 0 or step > reach:
                return False
            reach += step * (int(index.bounds(extents[v])[0]) - 1)
        if reach < extent:
            return False
    return True


def _numbered(access: Access) -> tuple[dict[Var, Expr], dict[Var, Expr]]:
    """The loops around an access with their extents.  Groups of tasks, `for t in
    0..min(size, count - group * size)`, count as one loop over all tasks, whose variable stands in
    place of theirs."""
    loops = [s for s, _ in access.path if isinstance(s, For)]
    place: dict[Var, Expr] = {}
    extents = {s.var: s.extent for s in loops}
    for group, inner in itertools.pairwise(loops):
        size = inner.var.extent
        if not inner.extent.free or size is None or group.extent.free:
            continue
        first = index.multiply(group.var, index.constant(size))
        bounds = {index.add(first, part) for part in least(inner.extent)}
        count = next((b for b in bounds if isinstance(b, Const)), None)
        if count is not None and bounds == {count, index.add(first, index.constant(size))} \
                and -(-count.value // size) <= index.bounds(group.extent)[0]:
            number = Var(f"{group.var.name}+{inner.var.name}", INDEX, count.value)
            place[inner.var] = index.subtract(number, first)
            del extents[inner.var]
            extents[number] = count
    return place, extents


def _touched(access: Access, *, at_most: bool = False) -> Boxes | None:
    """Exactly what an access touches in the course of the program, or `at_most`, all conditions
    holding; None where that is unknown."""
    conditions = [(s.condition, branch == 0) for s, branch in access.path if isinstance(s, If)]
    conditions += [(guard, True) for guard in access.guards]
    if at_most:
        conditions = []
    elif any(isinstance(s, While) for s, _ in access.path):
        return None
    facts: list[Expr] = []
    for condition, holds in conditions:
        parts = exactly(condition, holds)
        if parts is None:
            return None
        facts += parts
    place, loops = _numbered(access)
    facts += [index.subtract(index.constant(1), extent) for extent in loops.values()
              if extent.free or index.bounds(extent)[0] < 1]
    indices, facts = ([build.substitute(e, place) for e in part]
                      for part in (access.indices, facts))
    extents = {v: build.substitute(e, place) for v, e in loops.items()}
    axes, (merged,) = merged_axes(access.buffer.shape, (tuple(indices),))
    if len(axes) < len(indices):
        with contextlib.suppress(Unknown):
            return split_axes(_Sides(merged, tuple(facts), extents).boxes(), axes)
    with contextlib.suppress(Unknown):
        return _Sides(indices, tuple(facts), extents).boxes()
    return None


def _hull(access: Access) -> Boxes | None:
    """No less than what an access touches."""
    extents = {s.var: s.extent for s, _ in access.path if isinstance(s, For)}
    try:
        return Points({}, extents).boxes(access.indices, (), np.zeros(1, np.int64))
    except Unknown:
        return None


class _Sides:
    """The indices of an access as boxes: variables that walk along a side, and all others."""

    def __init__(self, indices: Sequence[Expr], facts: Facts, extents: Mapping[Var, Expr]) -> None:
        self.indices, self.facts, self.extents = indices, facts, extents
        self.sides = [self._walking(axis) for axis in range(len(indices))]
        self.cuts: list[tuple[int, int, Expr]] = []  # axis, sign, rest: sign * index + rest <= 0
        for fact in facts:
            self._cut(fact)

    def _walking(self, axis: int) -> dict[Var, int]:
        """Variables whose values, all together, are a run of neighbours along an axis."""
        terms, _ = index.affine(self.indices[axis])
        elsewhere = frozenset().union(*(i.free for n, i in enumerate(self.indices) if n != axis),
                                      *(a.free for a in terms if not isinstance(a, Var)),
                                      *(extent.free for extent in self.extents.values()))
        reach, found = 1, {}
        for v, step in sorted(((v, k) for v, k in terms.items() if isinstance(v, Var)),
                              key=lambda term: abs(term[1])):
            extent = self.extents.get(v)
            if extent is None:
                raise Unknown
            if v in elsewhere or extent.free or abs(step) > reach:
                continue
            found[v] = step
            reach += abs(step) * (index.bounds(extent)[1] - 1)
        return found

    def _cut(self, fact: Expr) -> None:
        """Let a condition cut a side; where it is none of one axis alone, put its variables in."""
        for axis, side in enumerate(self.sides):
            for sign in (1, -1):
                rest = index.subtract(fact, index.multiply(self.indices[axis],
                                                           index.constant(sign)))
                if not fact.free.isdisjoint(side) and self._is_put_in(rest):
                    self.cuts.append((axis, sign, rest))
                    return
        for side in self.sides:
            for v in [v for v in side if v in fact.free]:
                del side[v]

    def _is_put_in(self, e: Expr) -> bool:
        return all(e.free.isdisjoint(side) for side in self.sides)

    def boxes(self) -> Boxes:
        """The boxes, one for each combination of the values that are put in."""
        walking = {v: np.zeros(1, np.int64) for side in self.sides for v in side}
        used = frozenset().union(*(e.free for e in (*self.indices, *self.facts)))
        used = used.union(*(self.extents[v].free for v in used if v in self.extents)) - set(walking)
        if any(v.extent is None or v not in self.extents for v in used):
            raise Unknown
        if not used and not self.facts:
            return _box(self._side(axis) for axis in range(len(self.indices)))
        values = enumerated({v: v.extent for v in sorted(used, key=lambda v: v.name)})
        count = len(next(iter(values.values()))) if values else 1
        points = Points({**values, **{v: np.zeros(count, np.int64) for v in walking}},
                        {v: e for v, e in self.extents.items() if v not in walking})
        exist, lows, highs = points.exist, [], []
        for i, side in zip(self.indices, self.sides, strict=True):
            begin = _exact(points, i)
            down, up = self._reach(side)
            lows.append(begin + down)
            highs.append(begin + up)
        for axis, sign, rest in self.cuts:
            bound = _exact(points, rest)
            if sign > 0:
                highs[axis] = np.minimum(highs[axis], -bound)
            else:
                lows[axis] = np.maximum(lows[axis], bound)
        for fact in self.facts:
            if self._is_put_in(fact):
                exist = exist & (_exact(points, fact) <= 0)
        for low, high in zip(lows, highs, strict=True):
            exist = exist & (low <= high)
        where = np.flatnonzero(np.broadcast_to(exist, count))
        low, high = (tuple(np.broadcast_to(x, count)[where] for x in ends)
                     for ends in (lows, highs))
        return Boxes(low, high, np.zeros(len(where), np.int64))


    def _reach(self, side: Mapping[Var, int]) -> tuple[int, int]:
        """How far the variables of a side go, down and up."""
        reach = [step * int(index.bounds(self.extents[v])[1] - 1) for v, step in side.items()]
        return sum(min(0, r) for r in reach), sum(max(0, r) for r in reach)

    def _side(self, axis: int) -> tuple[int, int]:
        """The indices along an axis where no value has to be put in."""
        _, offset = index.affine(self.indices[axis])
        down, up = self._reach(self.sides[axis])
        return offset + down, offset + up


def _exact(points: Points, e: Expr) -> np.ndarray:
    low, high = points.interval(e)
    if np.any(low != high):
        raise Unknown
    return low


def covered(wanted: Sequence[Boxes], boxes: Sequence[Boxes], shape: Shape) -> bool:
    """Whether boxes leave nothing of others open; False where there are too many to tell."""
    if not any(len(b.owners) for b in wanted):
        return True
    if not shape:
        return any(len(b.owners) for b in boxes)
    low = [min(int(b.low[axis].min()) for b in wanted if len(b.owners))
           for axis in range(len(shape))]
    high = [max(int(b.high[axis].max()) for b in wanted if len(b.owners))
            for axis in range(len(shape))]
    if any(len(b.owners) == 1 and all(b.low[axis][0] <= low[axis] and high[axis] <= b.high[axis][0]
                                      for axis in range(len(shape))) for b in boxes):
        return True
    cuts = [_borders(shape[axis], [(b.low[axis], b.high[axis]) for b in (*wanted, *boxes)])
            for axis in range(len(shape))]
    if math.prod(len(c) - 1 for c in cuts) > MOST_CELLS:
        return False
    needed = _painted(wanted, cuts)
    return bool(np.all(_painted(boxes, cuts)[needed]))


def _borders(extent: int, sides: Iterable[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    """Where boxes begin and end along an axis, within the buffer."""
    parts = [part for low, high in sides for part in (low, high + 1)]
    return np.unique(np.clip(np.concatenate([*parts, np.array([0, extent])]), 0, extent))


def _painted(boxes: Sequence[Boxes], cuts: Sequence[np.ndarray]) -> np.ndarray:
    """The cells that are in any box: one is added where a box begins, taken away where it ends, and
    summed up along all axes."""
    total = np.zeros([len(c) for c in cuts], np.int64)
    ends = []
    for axis, c in enumerate(cuts):
        low = np.concatenate([b.low[axis] for b in boxes] or [[]])
        high = np.concatenate([b.high[axis] for b in boxes] or [[]])
        ends.append((np.searchsorted(c, np.clip(low, 0, c[-1])),
                     np.searchsorted(c, np.clip(high + 1, 0, c[-1]))))
    for corner in range(1 << len(cuts)):
        chosen = [corner >> axis & 1 for axis in range(len(cuts))]
        place = tuple(ends[axis][side] for axis, side in enumerate(chosen))
        np.add.at(total, place, -1 if sum(chosen) % 2 else 1)
    for axis in range(len(cuts)):
        total = np.cumsum(total, axis)
    return total[(slice(-1),) * len(cuts)] > 0
