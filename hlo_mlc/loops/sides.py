"""The boxes that the loops of a nest walk along, for all values of those that do not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from hlo_mlc.expr import index
from hlo_mlc.expr.core import Const, Expr, Var, loads
from hlo_mlc.loops.facts import Facts
from hlo_mlc.loops.loop_nests import LoopNest
from hlo_mlc.loops.regions import Boxes, Points, Unknown, box, enumerated


class Sides:
    """The indices of an access as boxes: variables that walk along a side, and all others."""

    def __init__(self, indices: Sequence[Expr], facts: Facts, extents: Mapping[Var, Expr]) -> None:
        self.indices, self.facts, self.extents = indices, facts, extents
        self.sides = [self._walking(axis) for axis in range(len(indices))]
        self.cuts: list[tuple[int, int, Expr]] = []  # axis, sign, rest: sign * index + rest <= 0
        for fact in facts:
            self._cut(fact)

    @classmethod
    def of(cls, nest: LoopNest) -> Sides:
        """Those of an access where all loops around it are entered."""
        extents = nest.extents
        entered = (1 - e for e in extents.values() if e.free or index.bounds(e)[0] < 1)
        return cls(nest.indices, (*nest.facts, *entered), extents)

    def _walking(self, axis: int) -> dict[Var, int]:
        """Variables whose values, all together, are a run of neighbours along an axis."""
        terms, _ = index.affine(self.indices[axis])
        elsewhere = frozenset().union(
            *(i.free for n, i in enumerate(self.indices) if n != axis),
            *(a.free for a in terms if not isinstance(a, Var)),
            *(extent.free for extent in self.extents.values()),
        )
        steps = {v: k for v, k in terms.items() if isinstance(v, Var)}
        if not steps.keys() <= self.extents.keys():
            raise Unknown
        return self._run({v: k for v, k in steps.items() if v not in elsewhere})

    def _run(self, steps: Mapping[Var, int]) -> dict[Var, int]:
        """Of variables, by their steps, those that leave nothing out, all together."""
        reach, found = 1, {}
        for v, step in sorted(steps.items(), key=lambda term: abs(term[1])):
            extent = self.extents[v]
            if isinstance(extent, Const) and abs(step) <= reach:
                found[v] = step
                reach += abs(step) * (extent.value - 1)
        return found

    def _cut(self, fact: Expr) -> None:
        """Let a condition cut a side; where it is none of one axis alone, put its variables in."""
        for axis, side in enumerate(self.sides):
            for sign in (1, -1):
                rest = fact - self.indices[axis] * sign
                if not fact.free.isdisjoint(side) and self._is_put_in(rest):
                    self.cuts.append((axis, sign, rest))
                    return
        self.sides = [
            self._run({v: k for v, k in side.items() if v not in fact.free}) for side in self.sides
        ]

    def _is_put_in(self, e: Expr) -> bool:
        return all(e.free.isdisjoint(side) for side in self.sides)

    def boxes(self) -> Boxes:
        """The boxes, one for each combination of the values that are put in."""
        walking = {v: np.zeros(1, np.int64) for side in self.sides for v in side}
        ranges = self._put_in(walking)
        if not ranges and not self.facts and not any(loads(i) for i in self.indices):
            return box(self._side(axis) for axis in range(len(self.indices)))
        values = {
            v: x + ranges[v].start
            for v, x in enumerated({v: len(r) for v, r in ranges.items()}).items()
        }
        points = Points({**values, **walking}, {})
        exist, lows, highs = np.ones(1, bool), [], []
        for v, x in values.items():
            exist = exist & (x < _exact(points, self.extents[v]))
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
        return points.where(exist, lows, highs, np.zeros(1, np.int64))

    def _put_in(self, walking: Mapping[Var, np.ndarray]) -> dict[Var, range]:
        """The other variables that anything depends on, extents included, with the values that the
        conditions on one alone leave it."""
        found: dict[Var, range] = {}
        left = [v for e in (*self.indices, *self.facts) for v in e.free]
        while left:
            v = left.pop()
            if v in walking or v in found:
                continue
            if v.extent is None or v not in self.extents:
                raise Unknown
            found[v] = self._values(v)
            left += self.extents[v].free
        return dict(sorted(found.items(), key=lambda item: item[0].name))

    def _values(self, v: Var) -> range:
        first, last = 0, min(v.extent, int(index.bounds(self.extents[v])[1])) - 1
        for fact in self.facts:
            terms, offset = index.affine(fact)
            if terms.keys() == {v}:
                if terms[v] > 0:
                    last = min(last, -offset // terms[v])
                else:
                    first = max(first, -(offset // terms[v]))
        return range(first, last + 1)

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
    if low is not high and np.any(low != high):
        raise Unknown
    return low
