"""What an access touches in the course of a program, as boxes.

Loops that walk through neighbouring elements make the sides of boxes, the values of all other
variables are put in (loops/regions.py), conditions cut them to size.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from hlo_mlc.expr import build, index
from hlo_mlc.expr.core import Apply, Const, Expr, Var, loads, walk
from hlo_mlc.expr.dtypes import INDEX
from hlo_mlc.loops.accesses import Access
from hlo_mlc.loops.core import For, If, While
from hlo_mlc.loops.facts import Facts, below, cases, least, of_condition
from hlo_mlc.loops.regions import (
    Boxes,
    Points,
    Unknown,
    box,
    enumerated,
    joined,
    merged_axes,
    split_axes,
)

# Cases of conditions around an access that are looked at one by one.
MOST_CASES = 64
# The same of what is below and beyond clamps, each of which makes two of one: 8 clamps take 0.2 s,
# and each further one would double that.
MOST_CLAMPED = 256

Box = tuple[tuple[int, int], ...]
"""First and last index along every axis of a box, the last one included."""


def solid(access: Access) -> Box | None:
    """The box of which an access in loops without conditions touches everything, seen at a glance:
    each axis has loops of its own, which walk along it without leaving anything out."""
    if access.guards or any(isinstance(s, If | While) for s, _ in access.path):
        return None
    nest = _Nest.around(access)
    if nest.facts or any(e.free or index.bounds(e)[0] < 1 for e in nest.extents.values()):
        return None
    extents = nest.extents
    used: set[Var] = set()
    found = []
    for i in nest.indices:
        terms, first = index.affine(i)
        if not all(v in extents and v not in used for v in terms):
            return None
        used.update(terms)
        reach = 1
        for v, step in sorted(terms.items(), key=lambda term: term[1]):
            if step < 0 or step > reach:
                return None
            reach += step * (int(index.bounds(extents[v])[0]) - 1)
        found.append((first, first + reach - 1))
    return tuple(found)


def around(access: Access) -> Box:
    """A box that nothing of an access is outside of, as the ranges of variables alone tell."""
    return tuple(index.bounds(i) for i in access.indices)


def contains(outer: Box | None, inner: Box) -> bool:
    """Whether one box is inside of another, if that one is known."""
    return outer is not None and all(
        low <= first and last <= high
        for (low, high), (first, last) in zip(outer, inner, strict=True)
    )


@dataclass(frozen=True, slots=True)
class _Nest:
    """The loops around an access: its indices, facts about it, the extents of variables."""

    indices: Sequence[Expr]
    facts: Sequence[Expr]
    extents: Mapping[Var, Expr]

    @classmethod
    def around(cls, access: Access, facts: Sequence[Expr] = ()) -> _Nest:
        """The loops of an access, where those over parts of a number, such as groups of tasks or
        threads of blocks, count as one loop over all of it."""
        extents = {s.var: s.extent for s, _ in access.path if isinstance(s, For)}
        nest = cls(access.indices, facts, extents)._numbered()._taken_apart()._numbered()
        return nest._narrowed()

    def renumbered(self) -> _Nest:
        """The same with loops over parts of a number in one, as the indices are now."""
        return self._numbered()._narrowed()

    def _numbered(self) -> _Nest:
        """The same with one loop over `high * size + low` for two, as often as that takes no
        division that there was not."""
        pairs = self._pairs()
        most = len(self._divisions()) if pairs else 0
        merged = (self._in_one(high, low) for high, low in pairs)
        found = next((nest for nest in merged if len(nest._divisions()) <= most), None)
        return self if found is None else found._numbered()

    def _pairs(self) -> Mapping[tuple[Var, Var], None]:
        """The variables of loops that conditions or divisions have as `high * size + low`."""
        sums = (*self.facts, *self._limits(), *(d.args[0] for d in self._divisions()))
        return {
            (high, low): None
            for terms, _ in map(index.affine, sums)
            for low, high in itertools.permutations(terms, 2)
            if low in self.extents
            and high in self.extents
            and isinstance(self.extents[high], Const)
            and terms[high] == terms[low] * (self._size(low) or 0)
        }

    def _in_one(self, high: Var, low: Var) -> _Nest:
        """The same with one loop for two, which a condition on its variable alone cuts short."""
        size, facts = self._size(low), (*self.facts, *self._limits(low))
        count = size * self.extents[high].value
        left = []
        for fact in facts:
            terms, offset = index.affine(fact)
            if terms.keys() == {high, low} and terms[high] == terms[low] * size > 0:
                count = min(count, -offset // terms[low] + 1)
            else:
                left.append(fact)
        count = max(0, count)
        number = Var(f"{high.name}+{low.name}", INDEX, count)
        place = {high: index.floordiv(number, size), low: index.floormod(number, size)}
        return replace(self, facts=left)._in_terms_of([number], place)

    def _in_terms_of(self, new: Iterable[Var], place: Mapping[Var, Expr]) -> _Nest:
        """The same with loops over other variables, in terms of which those are that go."""
        extents = {v: build.substitute(e, place) for v, e in self.extents.items() if v not in place}
        return _Nest(
            [build.substitute(i, place) for i in self.indices],
            [build.substitute(f, place) for f in self.facts],
            extents | {v: index.constant(v.extent) for v in new},
        )

    def _narrowed(self) -> _Nest:
        """The same where loops begin and end where conditions on their variable alone say, and what
        cuts others short is a condition."""
        extents, left = dict(self.extents), []
        cut_short = [v for v, e in extents.items() if v.extent and not isinstance(e, Const)]
        limits = self._limits(*cut_short) if cut_short else []
        extents.update((v, index.constant(v.extent)) for v in cut_short)
        first: dict[Var, int] = {}
        for fact in (*self.facts, *limits):
            terms, offset = index.affine(fact)
            (v, *more) = terms or (None,)
            if v not in extents or more or not isinstance(extents[v], Const):
                left.append(fact)
            elif terms[v] > 0:
                count = min(extents[v].value, -offset // terms[v] + 1)
                extents[v] = index.constant(max(0, count))
            else:
                first[v] = max(first.get(v, 0), -(offset // terms[v]))
        place, later = {}, []
        for v, begin in first.items():
            if begin > 0:
                count = max(0, extents[v].value - begin)
                later.append(Var(f"{v.name}-{begin}", INDEX, count))
                place[v] = later[-1] + begin
        nest = _Nest(self.indices, left, extents)
        return nest._in_terms_of(later, place) if place else nest

    def _size(self, v: Var) -> int | None:
        """How many values a variable has at most, if that is known."""
        extent = self.extents[v]
        return max(0, extent.value) if isinstance(extent, Const) else v.extent

    def _limits(self, *of: Var) -> list[Expr]:
        """What extents that are no numbers say of the variables, or of some of them."""
        return [
            below(v, bound)
            for v in of or self.extents
            if not isinstance(self.extents[v], Const)
            for bound in least(self.extents[v])
            if not isinstance(bound, Const) or v.extent is None or bound.value < v.extent
        ]

    def _divisions(self) -> list[Apply]:
        return [
            e
            for e in walk(*self.indices, *self.facts, *self.extents.values())
            if isinstance(e, Apply) and e.op in ("floordiv", "floormod")
        ]

    def _taken_apart(self) -> _Nest:
        """The same with loops of their own for the digits of a loop's variable, where that saves
        divisions: `f // 8 % 4`, `f % 8` and `f // 32` of one that ends at 64 are below 4, 8 and 2,
        each with all values of the others, in whatever they are asked for."""
        nest, divisions = self, self._divisions()
        for v in self.extents if divisions else ():
            nest = nest._in_digits(v, divisions) or nest
        return nest

    def _in_digits(self, v: Var, divisions: Iterable[Apply]) -> _Nest | None:
        """The same with loops for the digits of a variable that divisions ask for, if it has such,
        they save any, and no condition is about all of it."""
        found = [digit for e in divisions if (digit := _digit(e, v)) is not None]
        extent = self.extents[v]
        if not found or not isinstance(extent, Const):
            return None
        if any(v in index.affine(fact)[0] for fact in (*self.facts, *self._limits())):
            return None
        ends = sorted({1, extent.value}.union(*((step, step * count) for step, count in found)))
        if ends[-1] > extent.value or any(end % step for step, end in itertools.pairwise(ends)):
            return None
        digits = {
            Var(f"{v.name}<{v.extent}/{step}", INDEX, end // step): step
            for step, end in itertools.pairwise(ends)
        }
        nest = self._in_terms_of(digits, {v: index.from_affine(digits, 0)})
        return nest if len(nest._divisions()) < len(self._divisions()) else None


def _digit(division: Apply, v: Var) -> tuple[int, int] | None:
    """Of `v // step % count`, the step and how many values there are; None for what is no digit."""
    low, high = index.bounds(division)
    step, inner = 1, division
    if inner.op == "floormod":
        if high + 1 != inner.args[1].value:
            return None
        inner = inner.args[0]
    if isinstance(inner, Apply) and inner.op == "floordiv":
        inner, step = inner.args[0], inner.args[1].value
    return (step, int(high) + 1) if inner is v and low == 0 else None


def touched(access: Access, steps: Sequence[int] = ()) -> Boxes | None:
    """Exactly what an access touches in the course of the program; None where that is unknown.
    With `steps`, an axis is two, of every so many elements and of those between (`interleaved`)."""
    if any(isinstance(s, While) for s, _ in access.path):
        return None
    parts = [cases(condition, holds) for condition, holds in _conditions(access)]
    if None in parts or math.prod(map(len, parts)) > MOST_CASES:
        return None
    found = [
        _boxes_by_cases(access, [fact for facts in together for fact in facts], steps)
        for together in itertools.product(*parts)
    ]
    return None if None in found else joined(found)


def reached(access: Access) -> Boxes | None:
    """No less than what an access touches, as closely as it is seen; None where it is not."""
    facts = [
        fact
        for condition, holds in _conditions(access)
        for fact in of_condition(condition, holds)
        if not loads(fact)
    ]
    boxes = _boxes(access, facts)
    return _hull(access) if boxes is None else boxes


def _conditions(access: Access) -> Iterator[tuple[Expr, bool]]:
    """The conditions of branches and guards around an access, and whether they hold there."""
    yield from ((s.condition, branch == 0) for s, branch in access.path if isinstance(s, If))
    yield from ((guard, True) for guard in access.guards)


def _boxes_by_cases(
    access: Access, conditions: Sequence[Expr], steps: Sequence[int], most: int = MOST_CLAMPED
) -> Boxes | None:
    """What is touched where conditions hold. Where there are too many values of what is in a clamp,
    `min(x, 9)` is x where that is at most 9, and 9 elsewhere: two cases, of at most so many."""
    boxes = _boxes(access, conditions, steps)
    few = boxes is not None and len(boxes.owners) <= MOST_CASES
    clamp = None if few or most < 2 else _clamp(*access.indices, *conditions)
    if clamp is None:
        return boxes
    x, highest = clamp.args
    found = []
    for value, fact in ((x, x - highest), (highest, highest + 1 - x)):
        known = {v: v for v in clamp.free} | {clamp: value}
        indices, facts = (
            tuple([build.replaced(e, clamp.free, dict(known)) for e in group])
            for group in (access.indices, conditions)
        )
        part = _boxes_by_cases(replace(access, indices=indices), (*facts, fact), steps, most // 2)
        if part is None:
            return boxes
        found.append(part)
    return joined(found)


def _clamp(*expressions: Expr) -> Apply | None:
    """What keeps something that loops count from growing beyond a number."""
    for e in walk(*expressions):
        is_clamp = isinstance(e, Apply) and e.op == "min" and isinstance(e.args[1], Const)
        if is_clamp and e.free and not loads(e):
            return e
    return None


def _boxes(access: Access, conditions: Sequence[Expr], steps: Sequence[int] = ()) -> Boxes | None:
    """What is touched where conditions hold, said as facts about loops; None where that is not all
    a matter of their variables, or there are too many values."""
    nest, shape = _Nest.around(access, conditions), access.buffer.shape
    if steps and any(map(_goes_in_turns, nest.indices, steps)):
        with contextlib.suppress(Unknown):
            axes, indices = _in_turns(shape, nest.indices, steps)
            return split_axes(_Sides.of(replace(nest, indices=indices)).boxes(), axes)
        return None
    turns = interleaved(shape, steps) if steps else [(d,) for d in shape]
    axes, (merged,) = merged_axes(shape, (tuple(nest.indices),))
    if len(axes) < len(nest.indices):
        # Without the divisions, more loops may count as one.
        whole = replace(nest, indices=merged).renumbered()
        with contextlib.suppress(Unknown):
            return split_axes(split_axes(_Sides.of(whole).boxes(), axes), turns)
    with contextlib.suppress(Unknown):
        return split_axes(_Sides.of(nest).boxes(), turns)
    return None


def interleaved(shape: Sequence[int], steps: Sequence[int]) -> list[tuple[int, ...]]:
    """The extents of what each axis consists of where it is gone along in such steps: 1000 elements
    in steps of 3 are 334 times 3, the last two of which are none."""
    return [
        (-(-d // step), step) if step > 1 else (d,) for d, step in zip(shape, steps, strict=True)
    ]


def step_of(i: Expr) -> int:
    """The step in which an index goes along its axis, whatever it begins at."""
    return math.gcd(*_terms(i)[0].values())


def _terms(i: Expr) -> tuple[Mapping[Expr, int], int]:
    """`index.affine` without variables of loops that are entered once."""
    terms, offset = index.affine(i)
    return {atom: k for atom, k in terms.items() if index.bounds(atom) != (0, 0)}, offset


def _goes_in_turns(i: Expr, step: int) -> bool:
    """Whether an index goes along its axis in such steps, or in whole ones of them."""
    return step > 1 and step_of(i) % step == 0


def _in_turns(
    shape: Sequence[int], indices: Sequence[Expr], steps: Sequence[int]
) -> tuple[list[tuple[int, ...]], list[Expr]]:
    """Indices of what axes consist of, `x * 3 + 2` being `x` and 2, and the extents of each; one
    that goes along otherwise is left as it is, for its boxes to be split."""
    axes, found = [], []
    for parts, i, step in zip(interleaved(shape, steps), indices, steps, strict=True):
        if not _goes_in_turns(i, step):
            axes.append(parts)
            found.append(i)
            continue
        terms, offset = _terms(i)
        whole, rest = divmod(offset, step)
        axes += [(extent,) for extent in parts]
        found += [
            index.from_affine({atom: k // step for atom, k in terms.items()}, whole),
            index.constant(rest),
        ]
    return axes, found


def _hull(access: Access) -> Boxes | None:
    """One box around all that an access touches."""
    extents = {s.var: s.extent for s, _ in access.path if isinstance(s, For)}
    axes, (merged,) = merged_axes(access.buffer.shape, (access.indices,))
    try:
        boxes = Points({}, extents).boxes(merged, access.facts(), np.zeros(1, np.int64))
    except Unknown:
        return None
    return split_axes(boxes, axes)


class _Sides:
    """The indices of an access as boxes: variables that walk along a side, and all others."""

    def __init__(self, indices: Sequence[Expr], facts: Facts, extents: Mapping[Var, Expr]) -> None:
        self.indices, self.facts, self.extents = indices, facts, extents
        self.sides = [self._walking(axis) for axis in range(len(indices))]
        self.cuts: list[tuple[int, int, Expr]] = []  # axis, sign, rest: sign * index + rest <= 0
        for fact in facts:
            self._cut(fact)

    @classmethod
    def of(cls, nest: _Nest) -> _Sides:
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
