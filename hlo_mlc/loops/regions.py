"""Regions of memory, in numbers: which box of a buffer an access touches, for many values of some
variables at once.

What the structure of indices does not tell (loops/equations.py) is often plain once the few hundred
numbers of a parallel loop are put in: then branches are taken or not, divisions are done, and what
remains are intervals.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hlo_mlc.expr import index
from hlo_mlc.expr.core import Apply, Expr, Var
from hlo_mlc.loops.facts import Facts, never_positive

# Points that are put in at most: some ten milliseconds of NumPy's time.
MOST_POINTS = 1 << 19
# Cells between the borders of boxes that are painted at most: as much.
MOST_CELLS = 1 << 20

Interval = tuple[np.ndarray, np.ndarray]


class Unknown(Exception):
    """An index is not a matter of loop variables alone, or there are too many points."""


@dataclass(frozen=True, slots=True)
class Boxes:
    """The smallest and largest index along each axis, at those points where anything is touched:
    arrays [points]; `owners` are the points' numbers."""

    low: tuple[np.ndarray, ...]
    high: tuple[np.ndarray, ...]
    owners: np.ndarray


class Points:
    """The values of some variables at many points, and intervals of whatever depends on them and on
    the variables of loops inside, whose extents are given.

    Arrays of values are spread over each other, as NumPy does it: what depends on a few of many
    variables is computed for the values of these alone.
    """

    def __init__(self, values: Mapping[Var, np.ndarray], extents: Mapping[Var, Expr]) -> None:
        self.shape = np.broadcast_shapes((1,), *(x.shape for x in values.values()))
        if math.prod(self.shape) > MOST_POINTS:
            raise Unknown
        self._extents = extents
        self._known: dict[Expr, Interval] = {v: (x, x) for v, x in values.items()}
        self.exist = np.ones(1, bool)
        for v, x in values.items():
            if v in extents:
                self.exist = self.exist & (x < self.interval(extents[v])[1])

    def interval(self, e: Expr) -> Interval:
        """The smallest and largest value of an index expression at each point: one array where they
        are the same because of what it consists of."""
        known = self._known.get(e)
        if known is None:
            known = self._known[e] = self._interval(e)
        return known

    def _interval(self, e: Expr) -> Interval:
        if isinstance(e, Var):
            return self._of_loop(e)
        terms, offset = index.affine(e)
        if e not in terms:
            low = high = np.int64(offset)
            for atom, k in terms.items():
                ends = self.interval(atom)
                if low is high and ends[0] is ends[1]:
                    low = high = low + k * ends[0]
                else:
                    low, high = low + k * ends[k < 0], high + k * ends[k > 0]
            return low, high
        if isinstance(e, Apply) and e.op in ("min", "max"):
            (a, b), (c, d) = map(self.interval, e.args)
            smaller = np.minimum if e.op == "min" else np.maximum
            low = smaller(a, c)
            return low, low if a is b and c is d else smaller(b, d)
        if isinstance(e, Apply) and e.op in ("floordiv", "floormod"):
            (low, high), by = self.interval(e.args[0]), e.args[1].value
            first = low // by
            last = first if low is high else high // by
            if e.op == "floordiv":
                return first, last
            if first is last:
                rest = low - first * by
                return rest, rest
            same = first == last
            return np.where(same, low - first * by, 0), np.where(same, high - last * by, by - 1)
        low, high = index.bounds(e)
        if low > -index.INFINITY and high < index.INFINITY:
            return np.int64(low), np.int64(high)
        raise Unknown

    def _of_loop(self, var: Var) -> Interval:
        extent = self._extents.get(var)
        if extent is None:
            raise Unknown
        high = self.interval(extent)[1] - 1
        return np.int64(0), high if var.extent is None else np.minimum(high, var.extent - 1)

    def boxes(self, indices: Sequence[Expr], facts: Facts, owners: np.ndarray) -> Boxes:
        """What is touched at most: `facts` hold where it is."""
        exist = self.exist
        known = []
        for fact in facts:
            try:
                exist = exist & (self.interval(fact)[0] <= 0)
            except Unknown:
                continue
            known.append(fact)
        lows, highs = [], []
        for i in indices:
            low, high = self.interval(i)
            for fact in known:
                for factor in _factors(i, fact):  # it never is positive, so it can be added
                    part = fact * factor
                    low = np.maximum(low, self.interval(i + part)[0])
                    high = np.minimum(high, self.interval(i - part)[1])
            exist = exist & (low <= high)
            lows.append(low)
            highs.append(high)
        return self.where(exist, lows, highs, owners)

    def where(
        self,
        exist: np.ndarray,
        lows: Sequence[np.ndarray],
        highs: Sequence[np.ndarray],
        owners: np.ndarray,
    ) -> Boxes:
        """Boxes at those points that exist."""
        there = np.broadcast_to(exist, self.shape)
        low, high = (
            tuple(np.broadcast_to(x, self.shape)[there] for x in ends) for ends in (lows, highs)
        )
        return Boxes(low, high, np.broadcast_to(owners, self.shape)[there])


def _factors(e: Expr, fact: Expr) -> set[int]:
    """How many times a fact is to be added to an expression so that terms of both go away."""
    terms, _ = index.affine(e)
    known, _ = index.affine(fact)
    return {
        abs(terms[atom] // k) for atom, k in known.items() if atom in terms and terms[atom] % k == 0
    }


def box(sides: Iterable[tuple[int, int]]) -> Boxes:
    """One box, its first and last index along each axis given."""
    low, high = (
        [np.array([end]) for end in ends] for ends in (tuple(zip(*sides, strict=True)) or ((), ()))
    )
    return Boxes(tuple(low), tuple(high), np.zeros(1, np.int64))


def joined(parts: Sequence[Boxes]) -> Boxes:
    """All of some boxes together."""
    if len(parts) == 1:
        return parts[0]
    low, high = (
        tuple(map(np.concatenate, zip(*sides, strict=True)))
        for sides in ([p.low for p in parts], [p.high for p in parts])
    )
    return Boxes(low, high, np.concatenate([p.owners for p in parts]))


def enumerated(variables: Mapping[Var, int]) -> dict[Var, np.ndarray]:
    """All combinations of values of some variables below their bounds, each variable along an axis
    of its own.

    Raises: Unknown where there are too many.
    """
    if math.prod(variables.values()) > MOST_POINTS:
        raise Unknown
    count = len(variables)
    return {
        v: np.arange(extent).reshape([-1 if axis == n else 1 for axis in range(count)])
        for n, (v, extent) in enumerate(variables.items())
    }


def within_in_numbers(i: Expr, extent: int, facts: Facts, extents: Mapping[Var, Expr]) -> bool:
    """Whether `0 <= i < extent` wherever the facts hold, found by enumerating the values of
    variables."""
    related = tuple(f for f in facts if not f.free.isdisjoint(i.free))
    used = i.free.union(*(f.free for f in related))
    if any(v.extent is None for v in used):
        return False
    try:
        values = enumerated({v: v.extent for v in used})
        boxes = Points(values, extents).boxes((i,), related, np.zeros(1, np.int64))
    except Unknown:
        return False
    return bool(np.all(boxes.low[0] >= 0) and np.all(boxes.high[0] < extent))


def never_equal(i: Expr, j: Expr) -> bool:
    """Whether two index expressions differ for all values of their variables, which both share."""
    variables = i.free | j.free
    if any(v.extent is None for v in variables):
        return False
    try:
        points = Points(enumerated({v: v.extent for v in variables}), {})
        (low, high), (first, last) = points.interval(i), points.interval(j)
    except Unknown:
        return False
    return bool(np.all((high < first) | (last < low)))


def apart(parts: Iterable[Boxes]) -> bool:
    """Whether boxes of different owners share no element.

    Along each axis, intervals that meet are one cluster; boxes can only meet where they are in the
    same clusters along all axes.
    """
    parts = list(parts)
    owners = np.concatenate([p.owners for p in parts])
    keys = np.zeros(len(owners), np.int64)
    for axis in range(len(parts[0].low)):
        low = np.concatenate([p.low[axis] for p in parts])
        high = np.concatenate([p.high[axis] for p in parts])
        order = np.argsort(low, kind="stable")
        reach = np.maximum.accumulate(high[order])
        cluster = np.empty(len(order), np.int64)
        cluster[order] = np.cumsum(np.concatenate(([0], low[order][1:] > reach[:-1])))
        _, keys = np.unique(keys * (len(order) + 1) + cluster, return_inverse=True)
    order = np.lexsort((owners, keys))
    keys, owners = keys[order], owners[order]
    return not np.any((keys[1:] == keys[:-1]) & (owners[1:] != owners[:-1]))


def covered(wanted: Sequence[Boxes], boxes: Sequence[Boxes], shape: Sequence[int]) -> bool | None:
    """Whether boxes leave nothing of others open; None where there are too many to tell."""
    wanted, boxes = ([b for b in group if len(b.owners)] for group in (wanted, boxes))
    if not wanted or not boxes:
        return not wanted
    low = [min(int(b.low[axis].min()) for b in wanted) for axis in range(len(shape))]
    high = [max(int(b.high[axis].max()) for b in wanted) for axis in range(len(shape))]
    if any(
        len(b.owners) == 1
        and all(
            b.low[axis][0] <= low[axis] and high[axis] <= b.high[axis][0]
            for axis in range(len(shape))
        )
        for b in boxes
    ):
        return True
    is_one = len(wanted) == 1 and len(wanted[0].owners) == 1
    if is_one and sum(map(_elements, boxes)) < _elements(wanted[0]):
        return False
    is_all = is_one and not any(low) and high == [extent - 1 for extent in shape]
    boxes.sort(key=lambda b: len(b.owners))
    count = len(boxes)
    while boxes:
        cuts = _cuts((*wanted, *boxes), shape)
        if cuts is not None:
            found = _painted(boxes, cuts)
            if np.all(found if is_all else found[_painted(wanted, cuts)]):
                return True
            return False if len(boxes) == count else None
        boxes.pop()  # a diagonal makes a cell of each element; others may do it without
    return None


def _elements(boxes: Boxes) -> int:
    """How many elements boxes have in all, counted once for each box that they are in."""
    sides = (high - low + 1 for low, high in zip(boxes.low, boxes.high, strict=True))
    return int(math.prod(sides, start=np.ones(len(boxes.owners), np.int64)).sum())


def disjoint(first: Boxes, second: Boxes, shape: Sequence[int]) -> bool:
    """Whether no element is in boxes of both; False where there are too many to tell."""
    if not len(first.owners) or not len(second.owners):
        return True
    cuts = _cuts((first, second), shape)
    return cuts is not None and not np.any(_painted([first], cuts) & _painted([second], cuts))


def _cuts(boxes: Sequence[Boxes], shape: Sequence[int]) -> dict[int, np.ndarray] | None:
    """Where boxes begin and end along each axis that not all of them span; None where that makes
    too many cells."""
    cuts = {
        axis: _borders(extent, [(b.low[axis], b.high[axis]) for b in boxes])
        for axis, extent in enumerate(shape)
        if not all(_spans(b, axis, extent) for b in boxes)
    }
    return None if math.prod(len(c) - 1 for c in cuts.values()) > MOST_CELLS else cuts


def _spans(boxes: Boxes, axis: int, extent: int) -> bool:
    """Whether all boxes go along the whole of an axis."""
    return not boxes.low[axis].any() and bool((boxes.high[axis] == extent - 1).all())


def _borders(extent: int, sides: Iterable[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    """Where boxes begin and end along an axis, within the buffer."""
    ends = [np.clip(end, 0, extent) for low, high in sides for end in (low, high + 1)]
    found = np.sort(np.concatenate([np.array([0, extent]), *ends]))
    # `np.unique` hashes first, which took 10 times as long for 60,000 of them, 50 for 1,000.
    return found[np.flatnonzero(np.diff(found, prepend=-1))]


def _painted(boxes: Sequence[Boxes], cuts: Mapping[int, np.ndarray]) -> np.ndarray:
    """The cells that are in any box: one is added where a box begins, taken away where it ends, and
    summed up along all axes; `cuts` are those of the axes that matter."""
    sizes, ends = [len(c) for c in cuts.values()], []
    total = np.zeros(math.prod(sizes), np.int64)
    for axis, c in cuts.items():
        low = np.concatenate([b.low[axis] for b in boxes])
        high = np.concatenate([b.high[axis] for b in boxes])
        ends.append(
            (
                np.searchsorted(c, np.clip(low, 0, c[-1])),
                np.searchsorted(c, np.clip(high + 1, 0, c[-1])),
            )
        )
    for corner in range(1 << len(cuts)):
        chosen = [corner >> axis & 1 for axis in range(len(cuts))]
        place = np.zeros(1, np.int64)
        for size, sides, side in zip(sizes, ends, chosen, strict=True):
            place = place * size + sides[side]
        # A tenth of what `np.add.at` takes, which was half of the proof of a refined grid.
        count = np.bincount(place, minlength=len(total))
        total += -count if sum(chosen) % 2 else count
    total = total.reshape(sizes)
    for axis in range(len(cuts)):
        total = np.cumsum(total, axis)
    return total[(slice(-1),) * len(cuts)] > 0


def merged_axes(
    shape: Sequence[int], places: Sequence[tuple[Expr, ...]]
) -> tuple[list[tuple[int, ...]], list[tuple[Expr, ...]]]:
    """The same elements by fewer indices, where axes that were taken apart by divisions are put
    together again, and the extents of what each new axis is made of: `[f // n, f % n]` is `[f]`."""
    if not shape:
        return [], list(places)
    columns = list(zip(*places, strict=True))
    extents = [(d,) for d in shape]
    axis = 0
    while axis + 1 < len(columns):
        next_ = axis + 1  # past axes of one place, which divisions leave out
        while next_ + 1 < len(columns) and math.prod(extents[next_]) == 1:
            next_ += 1
        wide = index.constant(math.prod(extents[next_]))
        joined = tuple(i * wide + j for i, j in zip(columns[axis], columns[next_], strict=True))
        if _divisions(joined) < _divisions((*columns[axis], *columns[next_])):
            columns[axis : next_ + 1] = [joined]
            extents[axis : next_ + 1] = [tuple(itertools.chain(*extents[axis : next_ + 1]))]
        else:
            axis += 1
    return extents, list(zip(*columns, strict=True))


def parted_axes(
    places: Sequence[tuple[Expr, ...]], known: Sequence[Facts]
) -> list[tuple[Expr, ...]]:
    """Indices that are equal where these are, with an axis for each part of one that counts in
    steps of what the parts below it never reach: `[r * 128 + c]` with c < 128 is `[r, c]`.
    `known` are facts that hold where each of the places is touched."""
    columns = list(zip(*places, strict=True))
    axis = 0
    while axis < len(columns):
        parts = _parted(columns[axis], known)
        columns[axis : axis + 1] = parts
        axis += len(parts) == 1
    return list(zip(*columns, strict=True)) if columns else list(places)


def _parted(column: tuple[Expr, ...], known: Sequence[Facts]) -> list[tuple[Expr, ...]]:
    forms = [index.affine(i) for i in column]
    for step in sorted({k for terms, _ in forms for k in terms.values() if k > 1}, reverse=True):
        large, small = [], []
        for terms, offset in forms:
            steps, rest = divmod(offset, step)
            large.append(
                index.from_affine(
                    {atom: k // step for atom, k in terms.items() if k % step == 0}, steps
                )
            )
            small.append(
                index.from_affine({atom: k for atom, k in terms.items() if k % step}, rest)
            )
        if any(index.bounds(e)[1] for e in small) and all(
            index.bounds(e)[0] >= 0 and never_positive(e - (step - 1), facts)
            for e, facts in zip(small, known, strict=True)
        ):
            return [tuple(large), tuple(small)]
    return [column]


def split_axes(boxes: Boxes, extents: Sequence[tuple[int, ...]]) -> Boxes:
    """Boxes of merged axes as boxes of the axes that these are made of."""
    axis = next((n for n, parts in enumerate(extents) if len(parts) > 1), None)
    if axis is None:
        return boxes
    *rows, row = extents[axis]
    low, high = boxes.low[axis], boxes.high[axis]
    (first, begin), (last, end) = np.divmod(low, row), np.divmod(high, row)
    one, edge = first == last, row - 1
    pieces = [  # the first row, those between, the last one
        (first, first, begin, np.where(one, end, edge), first <= last),
        (first + 1, last - 1, np.zeros_like(low), np.full_like(low, edge), first + 1 < last),
        (last, last, np.zeros_like(low), end, ~one),
    ]
    kept = [where for *_, where in pieces]
    sides = [
        np.concatenate([part[n][where] for part, where in zip(pieces, kept, strict=True)])
        for n in range(4)
    ]

    def spread(x: np.ndarray) -> np.ndarray:
        return np.concatenate([x[where] for where in kept])

    def around(ends: tuple[np.ndarray, ...], *new: np.ndarray) -> tuple[np.ndarray, ...]:
        return (*map(spread, ends[:axis]), *new, *map(spread, ends[axis + 1 :]))

    return split_axes(
        Boxes(
            around(boxes.low, sides[0], sides[2]),
            around(boxes.high, sides[1], sides[3]),
            spread(boxes.owners),
        ),
        (*extents[:axis], tuple(rows), (row,), *extents[axis + 1 :]),
    )


def _divisions(places: Iterable[Expr]) -> int:
    return sum(
        isinstance(atom, Apply) and atom.op in ("floordiv", "floormod")
        for e in places
        for atom in index.affine(e)[0]
    )
