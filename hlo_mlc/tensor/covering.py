"""Which elements of a buffer stores fill: boxes, as far as can be told."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from hlo_mlc.expr import index
from hlo_mlc.expr.core import Apply, Const, Expr, Var
from hlo_mlc.tensor.core import Assign, Loop, Nest

Box = tuple[tuple[int, int], ...]
"""First and last index of every axis, the last one included."""


def whole(shape: Sequence[int]) -> tuple[Box, ...]:
    """The box of all elements; none where there are none."""
    return (tuple((0, extent - 1) for extent in shape),) if 0 not in shape else ()


def stored_box(assign: Assign, axes: Sequence[Var]) -> Box | None:
    """A box in which an assignment stores every element, all points of `axes` taken together, which
    is inside of its buffer; None where no such box is known."""
    if assign.guard is not None or any(v.extent == 0 for v in axes):
        return None
    if met := _met_box(assign.indices, assign.buffer.shape, axes):
        return met
    box, used = [], set()
    for i in assign.indices:
        terms, offset = index.affine(i)
        reach = 1
        for v, factor in sorted(terms.items(), key=lambda term: abs(term[1])):
            if (
                not isinstance(v, Var)
                or v in used
                or v not in axes
                or (abs(factor) != reach and v.extent > 1)
            ):
                return None
            used.add(v)
            reach *= v.extent
            offset += min(0, factor) * (v.extent - 1)
        box.append((offset, offset + reach - 1))
    return tuple(box)


def always_stored(loop: Loop) -> Iterator[tuple[Assign, tuple[Var, ...]]]:
    """What a loop of known trips stores whatever the data, and the axes of all points of all trips
    that store it."""
    if loop.counter.extent != loop.trip_count:
        return
    for step in loop.body:
        if isinstance(step, Nest):
            for stage in step.stages:
                axes = (loop.counter, *stage.axes)
                yield from ((a, axes) for a in stage.assigns)
                yield from ((a, (*axes, *stage.reduce_axes)) for a in stage.along)
        elif isinstance(step, Loop) and step.trip_count:
            yield from ((a, (loop.counter, *axes)) for a, axes in always_stored(step))


def left_over(boxes: Iterable[Box], taken: Box) -> tuple[Box, ...]:
    """The part of `boxes` that is not in `taken`, as boxes."""
    found: list[Box] = []
    for box in boxes:
        common = [(max(a, c), min(b, d)) for (a, b), (c, d) in zip(box, taken, strict=True)]
        if any(first > last for first, last in common):
            found.append(box)
            continue
        rest = list(box)
        for axis, ((first, last), (low, high)) in enumerate(zip(box, common, strict=True)):
            for begin, end in ((first, low - 1), (high + 1, last)):
                if begin <= end:
                    found.append((*rest[:axis], (begin, end), *rest[axis + 1 :]))
            rest[axis] = (low, high)
    return tuple(found)


def _met_box(indices: Sequence[Expr], shape: Sequence[int], axes: Sequence[Var]) -> Box | None:
    """The box of the elements that the points meet, each point another one: one element along
    indices that are constants, all along others. None where that is not known.

    An axis may be split between indices, `j // 4` and `j % 4`, into digits that are as good as
    axes of their own; indices are sums of digits, each of which steps over all smaller ones.
    """
    digits: dict[Var, list[tuple[int, int]]] = {v: [] for v in axes}
    box = []
    for i, extent in zip(indices, shape, strict=True):
        terms, offset = index.affine(i)
        if not terms:
            box.append((offset, offset))
            continue
        reach = 1
        for atom, factor in sorted(terms.items(), key=lambda term: term[1]):
            digit = _digit(atom)
            if digit is None or digit[0] not in digits or factor != reach:
                return None
            axis, step, count = digit
            digits[axis].append((step, count))
            reach *= count
        if offset or reach != extent:
            return None
        box.append((0, extent - 1))
    is_apart = all(_is_whole(v.extent, found) for v, found in digits.items())
    met = math.prod(last - first + 1 for first, last in box)
    return tuple(box) if is_apart and met == math.prod(v.extent for v in axes) else None


def _digit(atom: Expr) -> tuple[Var, int, int] | None:
    """(axis, step, count) of `axis // step % count`."""
    if isinstance(atom, Var):
        return None if atom.extent is None else (atom, 1, atom.extent)
    step, count = 1, None
    if isinstance(atom, Apply) and atom.op == "floormod" and isinstance(atom.args[1], Const):
        atom, count = atom.args[0], atom.args[1].value
    if isinstance(atom, Apply) and atom.op == "floordiv" and isinstance(atom.args[1], Const):
        atom, step = atom.args[0], atom.args[1].value
    if not isinstance(atom, Var) or atom.extent is None:
        return None
    return atom, step, -(-atom.extent // step) if count is None else count


def _is_whole(extent: int, digits: Sequence[tuple[int, int]]) -> bool:
    """Whether the digits tell all numbers below `extent` apart, and no more."""
    reach = 1
    for step, count in sorted(digits):
        if step != reach:
            return False
        reach *= count
    return reach == extent
