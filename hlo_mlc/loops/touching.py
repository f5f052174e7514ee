"""What an access touches in the course of a program, as boxes.

Loops that walk through neighbouring elements make the sides of boxes, the values of all other
variables are put in (loops/regions.py), conditions cut them to size.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hlo_mlc.expr import build, index
from hlo_mlc.expr.core import Apply, Const, Expr, Var, loads
from hlo_mlc.expr.dtypes import INDEX
from hlo_mlc.loops.accesses import Access
from hlo_mlc.loops.core import For, If, While
from hlo_mlc.loops.facts import Facts, cases, least, of_condition
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

Box = tuple[tuple[int, int], ...]
"""First and last index along every axis of a box, the last one included."""


def solid(access: Access) -> Box | None:
    """The box of which an access in loops without conditions touches everything, seen at a glance:
    each axis has loops of its own, which walk along it without leaving anything out."""
    if access.guards or any(isinstance(s, If | While) for s, _ in access.path):
        return None
    nest = _Nest.around(access)
    if any(e.free or index.bounds(e)[0] < 1 for e in nest.extents.values()):
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
        """The loops of an access, where groups of tasks count as one loop over all tasks."""
        loops = [s for s, _ in access.path if isinstance(s, For)]
        nest = cls(access.indices, facts, {s.var: s.extent for s in loops})
        for group, inner in itertools.pairwise(loops):
            nest = nest._numbered(group, inner)
        return nest._taken_apart()

    def _numbered(self, group: For, inner: For) -> _Nest:
        """The same, `for t in 0..min(size, count - group * size)` and the loop around it being one
        over `group * size + t`, if that is all that is asked of the two."""
        size = inner.var.extent
        if not inner.extent.free or size is None or group.extent.free:
            return self
        first = group.var * size
        bounds = {first + part for part in least(inner.extent)}
        count = next((b for b in bounds if isinstance(b, Const)), None)
        if (
            count is None
            or bounds != {count, first + size}
            or -(-count.value // size) > index.bounds(group.extent)[0]
        ):
            return self
        number = Var(f"{group.var.name}+{inner.var.name}", INDEX, count.value)
        place = {inner.var: number - first}
        extents = {
            v: build.substitute(e, place)
            for v, e in self.extents.items()
            if v not in (group.var, inner.var)
        }
        one = _Nest(
            [build.substitute(i, place) for i in self.indices],
            [build.substitute(f, place) for f in self.facts],
            {**extents, number: count},
        )
        left = (*one.indices, *one.facts, *extents.values())
        return self if any(group.var in e.free for e in left) else one

    def _taken_apart(self) -> _Nest:
        """The same with loops of their own for the digits of a loop's variable, if indices consist
        of these in whatever order: `f // 8 % 4`, `f % 8` and `f // 32` of one that ends at 64 are
        below 4, 8 and 2, each with all values of the others."""
        forms = [index.affine(i) for i in self.indices]
        atoms = {atom for terms, _ in forms for atom in terms}
        digits: dict[Expr, Var] = {}
        extents = dict(self.extents)
        for v in {v for atom in atoms for v in atom.free}:
            found = {atom: part for atom in atoms if (part := _digit(atom, v)) is not None}
            steps, counts = zip(*sorted(found.values()), strict=True) if found else ((), ())
            others = (*self.facts, *extents.values(), *(atoms - found.keys()))
            if (
                not found
                or any(v in e.free for e in others)
                or index.constant(steps[-1] * counts[-1]) != extents.get(v)
                or steps != (1, *map(operator.mul, steps[:-1], counts[:-1]))
            ):
                continue
            digits |= {
                atom: Var(f"{v.name}<{v.extent}/{step}", INDEX, count)
                for atom, (step, count) in found.items()
            }
            del extents[v]
        extents |= {v: index.constant(v.extent) for v in digits.values()}
        return _Nest(
            [
                index.from_affine({digits.get(atom, atom): k for atom, k in terms.items()}, offset)
                for terms, offset in forms
            ],
            self.facts,
            extents,
        )


def _digit(atom: Expr, v: Var) -> tuple[int, int] | None:
    """Of `v // step % count`, the step and how many values there are; None for what is no digit."""
    low, high = index.bounds(atom)
    step, inner = 1, atom
    if isinstance(inner, Apply) and inner.op == "floormod":
        if high + 1 != inner.args[1].value:
            return None
        inner = inner.args[0]
    if isinstance(inner, Apply) and inner.op == "floordiv":
        inner, step = inner.args[0], inner.args[1].value
    return (step, int(high) + 1) if inner is v and atom is not v and low == 0 else None


def touched(access: Access, steps: Sequence[int] = ()) -> Boxes | None:
    """Exactly what an access touches in the course of the program; None where that is unknown.
    With `steps`, an axis is two, of every so many elements and of those between (`interleaved`)."""
    if any(isinstance(s, While) for s, _ in access.path):
        return None
    parts = [cases(condition, holds) for condition, holds in _conditions(access)]
    if None in parts or math.prod(map(len, parts)) > MOST_CASES:
        return None
    found = [
        _boxes(access, [fact for facts in together for fact in facts], steps)
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


def _boxes(access: Access, conditions: Sequence[Expr], steps: Sequence[int] = ()) -> Boxes | None:
    """What is touched where conditions hold, said as facts about loops; None where that is not all
    a matter of their variables, or there are too many values."""
    nest, shape = _Nest.around(access, conditions), access.buffer.shape
    extents = nest.extents
    facts = (
        *nest.facts,
        *(1 - extent for extent in extents.values() if extent.free or index.bounds(extent)[0] < 1),
    )
    if steps and any(map(_goes_in_turns, nest.indices, steps)):
        with contextlib.suppress(Unknown):
            axes, indices = _in_turns(shape, nest.indices, steps)
            return split_axes(_Sides(indices, facts, extents).boxes(), axes)
        return None
    turns = interleaved(shape, steps) if steps else [(d,) for d in shape]
    axes, (merged,) = merged_axes(shape, (tuple(nest.indices),))
    if len(axes) < len(nest.indices):
        with contextlib.suppress(Unknown):
            return split_axes(split_axes(_Sides(merged, facts, extents).boxes(), axes), turns)
    with contextlib.suppress(Unknown):
        return split_axes(_Sides(nest.indices, facts, extents).boxes(), turns)
    return None


def interleaved(shape: Sequence[int], steps: Sequence[int]) -> list[tuple[int, ...]]:
    """The extents of what each axis consists of where it is gone along in such steps: 1000 elements
    in steps of 3 are 334 times 3, the last two of which are none."""
    return [
        (-(-d // step), step) if step > 1 else (d,) for d, step in zip(shape, steps, strict=True)
    ]


def step_of(i: Expr) -> int:
    """The step in which an index goes along its axis, whatever it begins at."""
    return math.gcd(*index.affine(i)[0].values())


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
        terms, offset = index.affine(i)
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
        values = enumerated(ranges)
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

    def _put_in(self, walking: Mapping[Var, np.ndarray]) -> dict[Var, int]:
        """The other variables that anything depends on, extents included, below their bounds."""
        found: dict[Var, int] = {}
        left = [v for e in (*self.indices, *self.facts) for v in e.free]
        while left:
            v = left.pop()
            if v in walking or v in found:
                continue
            if v.extent is None or v not in self.extents:
                raise Unknown
            found[v] = v.extent
            left += self.extents[v].free
        return dict(sorted(found.items(), key=lambda item: item[0].name))

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
