"""Short rows as one axis: how many of the last axes of a map vectors go along as if these were one.

    for i in 0..200:                            for i, j in 0..1400, 16 at a time:
      for j in 0..7 vectorize:          ->        for l in 0..16 vectorize:
        y[i, j] = x[i, j] * a[j]                    y[…] = x[…] * a[(i, j + l) % 7]

After a few vectors rows begin at the same lanes again: which places lanes read, and which of them
conditions switch on, are constants then, and a few vectors shuffled (codegen/cpu/strides.py).  Rows
that lie apart from the next are one vector, if it holds them all: four columns of three colours.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from hlo_mlc.expr import index
from hlo_mlc.expr.build import substitute
from hlo_mlc.expr.core import Apply, Const, Expr, Load, Var, loads, walk
from hlo_mlc.expr.dtypes import BOOL, INDEX
from hlo_mlc.target.cpu import MOST_PIECES, CpuTarget
from hlo_mlc.templates.base import lanes, may_repeat
from hlo_mlc.tensor.access import pieces
from hlo_mlc.tensor.classify import cost, offset, picks_along, stride
from hlo_mlc.tensor.coalesce import accesses
from hlo_mlc.tensor.core import Assign, Stage

# Elements of short rows after which vectors along several of these begin alike, and vectors until
# then: code size.
LONGEST_PERIOD, MOST_COPIES = 16, 8
# The same of a body of so many operations in all copies.
MOST_OPERATIONS = 32
# Lanes of all copies, above which vectors are shorter: LLVM takes its time for shuffles of bytes.
MOST_LANES, LEAST_BYTES = 256, 16
# Vectors that are loaded for one that is stored: where other ways have vectors, too, and where not.
MOST_READ_SHORT, MOST_READ = 2, 4


def short_axes(stage: Stage, target: CpuTarget, most_read: int) -> int:
    """How many of the last axes vectors go along as if these were one; 1 where they do not.

    So they do where the last ones are short, results lie side by side along all of them, and what
    is read for a vector lies in a few others, at most `most_read` if it is not all in a row, for
    the same lanes after a few vectors again: constants for each channel of an image, which stay in
    registers.
    """
    width, last = lanes((stage,), target), stage.axes[-1]
    period, count = last.extent, 1
    if not 1 < period < 2 * width or period % width == 0:
        return 1
    each = 1 + sum(cost(a.value) for a in stage.assigns)
    most = max(MOST_COPIES, MOST_OPERATIONS // each)
    for axis in reversed(stage.axes[:-1]):
        if not _stores_along(stage, stage.axes[-count - 1 :]):
            break
        count += 1
        lanes_along = width_along(period, width, target)
        if (
            period > max(LONGEST_PERIOD, lanes_along - 1)
            or math.lcm(period, lanes_along) > most * lanes_along
        ):
            return 1
        period *= axis.extent
        if period >= width:
            return count if _suits(stage, stage.axes[-count:], lanes_along, most_read) else 1
    return count if count > 1 and _suits(stage, stage.axes[-count:], width, most_read) else 1


def width_along(period: int, width: int, target: CpuTarget) -> int:
    """Lanes of vectors along rows of so many elements, where whole ones have `width`."""
    least = max(1, width * LEAST_BYTES // target.vector_bytes)
    while math.lcm(period, width) > MOST_LANES and width > least:
        width //= 2
    return width


def _suits(stage: Stage, axes: Sequence[Var], width: int, most_read: int) -> bool:
    """Whether vectors of a stage may go along some axes as if these were one."""
    read = [load for group in stage.loads_by_buffer.values() for load in group]
    if not may_repeat(stage):
        return False
    if not any(picks_along(stage, v) for v in axes) and all(
        _lies_near(load, axes, width) for load in read
    ):
        return True
    if not _conditions(stage) <= {*axes[1:]}:
        return False
    for first in range(0, math.lcm(math.prod(v.extent for v in axes[1:]), width), width):
        total = 0
        for load in read:
            places = _places(load, axes, first, width)
            if places is None:
                return False
            found = len(pieces(places, width))
            total += found
            if found > MOST_PIECES or total > most_read:
                return False
    return True


def _stores_along(stage: Stage, axes: Sequence[Var]) -> bool:
    """Whether all results lie side by side along some axes."""
    return all(a.guard is None and _lies_along(a, axes) for a in stage.assigns)


def _lies_along(access: Load | Assign, axes: Sequence[Var]) -> bool:
    """Whether what is accessed along some axes lies side by side."""
    return all(
        stride(access, v) == math.prod(w.extent for w in axes[n + 1 :]) for n, v in enumerate(axes)
    )


def _lies_near(read: Load, axes: Sequence[Var], width: int) -> bool:
    """Whether what is read for a vector along some axes as if these were one is in few others."""
    apart = [stride(read, v) for v in axes]
    if read.guard is not None or None in apart or any(loads(i) for i in read.indices):
        return False
    (step, *steps), (_, *short) = apart, axes
    rows = 1 + (width - 2) // math.prod(v.extent for v in short)  # that begin behind the first
    span = rows * abs(step) + sum(
        abs(step) * (v.extent - 1) for step, v in zip(steps, short, strict=True)
    )
    return span < 2 * width or _lies_along(read, axes)


def _conditions(stage: Stage) -> set[Var]:
    """The axes that conditions on where a point stands, in what is computed and read, depend on."""
    found = [
        node
        for node in walk(*stage.expressions)
        if isinstance(node, Apply)
        and node.dtype is BOOL
        and any(e.dtype is INDEX for e in node.args)
    ]
    guards = [x.guard for x in accesses(stage) if x.guard is not None]
    return {v for e in (*found, *guards) for v in e.free}


def _places(read: Load, axes: Sequence[Var], first: int, width: int) -> list[int] | None:
    """Where lanes read that are on, in a vector which begins at this of the points that some axes
    have as one; None where that does not follow from their numbers."""
    step = stride(read, axes[0])
    if step is None or any(loads(i) for i in read.indices):
        return None
    whole = offset(read.source, read.indices)
    elsewhere = {v: index.constant(0) for v in whole.free if v not in axes}
    found = []
    for point in _points(axes[1:], first, width):
        outer, at = point
        if read.guard is not None and not _holds(read.guard, at):
            continue
        place = substitute(whole, {**elsewhere, axes[0]: index.constant(0), **at})
        if not isinstance(place, Const):
            return None
        found.append(place.value + outer * step)
    return found


def _points(short: Sequence[Var], first: int, count: int) -> Iterator[tuple[int, dict[Var, Expr]]]:
    """Points that follow each other: which one of the outer axis, and where they are along the
    others."""
    for number in range(first, first + count):
        at: dict[Var, Expr] = {}
        for axis in reversed(short):
            number, here = divmod(number, axis.extent)
            at[axis] = index.constant(here)
        yield number, at


def _holds(condition: Expr, at: dict[Var, Expr]) -> bool:
    """Whether a condition on where a point stands along short axes holds."""
    found = substitute(condition, at)
    return not isinstance(found, Const) or bool(found.value)
