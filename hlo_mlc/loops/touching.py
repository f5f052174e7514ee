"""What an access touches in the course of a program, as boxes.

Loops that walk through neighbouring elements make the sides of boxes, the values of all other
variables are put in (loops/regions.py), conditions cut them to size.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from hlo_mlc.expr import build, index
from hlo_mlc.expr.core import Apply, Const, Expr, Var, loads, walk
from hlo_mlc.loops.accesses import Access
from hlo_mlc.loops.core import For, If, While
from hlo_mlc.loops.facts import cases, of_condition
from hlo_mlc.loops.loop_nests import LoopNest
from hlo_mlc.loops.regions import Boxes, Points, Unknown, joined, merged_axes, split_axes
from hlo_mlc.loops.sides import Sides

# Cases of conditions around an access that are looked at one by one.
MOST_CASES = 64
# The same of what is below and beyond clamps, each of which makes two of one: 8 clamps take 0.2 s,
# and each further one would double that.
MOST_CLAMPED = 256

Box = tuple[tuple[int, int], ...]
"""First and last index along every axis of a box, the last one included."""


def solid(access: Access) -> Box | None:
    """The box that an access touches as a whole, where that is obvious: its loops are
    unconditional, and those of each axis walk along it without gaps."""
    if access.guards or any(isinstance(s, If | While) for s, _ in access.path):
        return None
    nest = LoopNest.around(access)
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
    """A box that contains all elements an access touches, by the ranges of variables alone."""
    return tuple(index.bounds(i) for i in access.indices)


def contains(outer: Box | None, inner: Box) -> bool:
    """Whether one box is inside of another, if that one is known."""
    return outer is not None and all(
        low <= first and last <= high
        for (low, high), (first, last) in zip(outer, inner, strict=True)
    )


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
    nest, shape = LoopNest.around(access, conditions), access.buffer.shape
    if steps and any(map(_goes_in_turns, nest.indices, steps)):
        with contextlib.suppress(Unknown):
            axes, indices = _in_turns(shape, nest.indices, steps)
            return split_axes(Sides.of(replace(nest, indices=indices)).boxes(), axes)
        return None
    turns = interleaved(shape, steps) if steps else [(d,) for d in shape]
    axes, (merged,) = merged_axes(shape, (tuple(nest.indices),))
    if len(axes) < len(nest.indices):
        # Without the divisions, more loops may count as one.
        whole = replace(nest, indices=merged).renumbered()
        with contextlib.suppress(Unknown):
            return split_axes(split_axes(Sides.of(whole).boxes(), axes), turns)
    with contextlib.suppress(Unknown):
        return split_axes(Sides.of(nest).boxes(), turns)
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
    """One box around everything that an access touches."""
    extents = {s.var: s.extent for s, _ in access.path if isinstance(s, For)}
    axes, (merged,) = merged_axes(access.buffer.shape, (access.indices,))
    try:
        boxes = Points({}, extents).boxes(merged, access.facts(), np.zeros(1, np.int64))
    except Unknown:
        return None
    return split_axes(boxes, axes)
