"""Maps against the grain: transposes and what is fused with them.

Some access walks through memory along one axis, the stores along another.  Squares over both axes
are read by rows and transposed in registers, panels of squares stay within few pages:

    parallel task -> outer axes, panel of rows, run of panels of columns
      for each square: result[16 rows, 16 columns] = f(source[16 columns, 16 rows])

Squares of the last panels are moved back to the edge.  A pass of its own over the edges would meet
a page for every square: 2047 x 2045 took 1.15 times as long.  Results in the memory of what is read
are computed once only: there, squares at the edges are smaller.

Where elements along the row lie apart, they are put side by side first, square by square.  What is
made of several arrays that all lie otherwise is made as they lie, and a square of it transposed.

Panels of results larger than the caches go along the source, whose pages are read to their ends;
where their rows begin with lines of memory, they may be stored past the caches, in runs of lines:
nothing is read that is about to be overwritten, and nothing is driven out.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from hlo_mlc.expr.core import Load, Var, loads
from hlo_mlc.schedule.core import Schedule
from hlo_mlc.target.cpu import CACHE_LINE_BYTES, CpuTarget
from hlo_mlc.templates.base import (
    SERIAL_WORK,
    TASK_WORK,
    Parameters,
    Scheduled,
    abreast,
    in_tasks,
    lanes,
    may_repeat,
    open_stage,
    work,
)
from hlo_mlc.templates.short_axes import MOST_READ_SHORT, short_axes
from hlo_mlc.tensor.classify import cost, is_map, stride, writes_once
from hlo_mlc.tensor.coalesce import coalesce
from hlo_mlc.tensor.core import Nest, Stage

# Simple operations that a square may take written out: code size.
WRITTEN_OUT = 1500
# The largest results for which malloc hands out the same pages again, that of glibc.  Fresh pages
# are in a cache already: the system has just filled them with zeros.
# Source: mallopt(3), M_MMAP_THRESHOLD.
LARGEST_REUSED = 32 << 20
# Elements along a side of a panel; the second is for results that do not stay in the caches.  On
# Zen 4, 2048 x 2048 f32 from memory to memory took half of the time with panels along the source,
# 0.8 of that with squares along it, too; 512 x 512 in the caches would take twice the time with
# such an order.  On Zen 5, panels whose squares go along the source as well and are stored past the
# caches took 0.6 of the time with 64 as with 256, whose rows are in more pages than the first level
# of translations holds; others took 1.2 to 1.6 times as long with 64.
PANEL, LARGE_PANEL = 64, 256
# Panels and their squares by rows of results, or both along the source; or panels along the source,
# and the squares in each by rows of results, which are written in longer runs.  Past the caches, in
# panels of 256, 2048 x 2048 and 4 x 1024 x 1024 f32 took 0.9 of the time that they took along the
# source in panels of 64, 4096 x 2048 bf16 0.75, 1536 x 1024 f64 0.87, with AVX2 0.9, 0.55 and 0.95.
# Every other element of 4096 x 2048 f32, put side by side first, took 1.3 times as long (Zen 5).
BY_ROWS, ALONG_SOURCE, IN_RUNS = 0, 1, 2
# Operations up to which vectors of half the length are no loss: exp took 1.7 times as long.
LIGHT = 4
# Bytes of a line of the source, or 4 elements, that a band of results is high.  2047 x 2045 f32 in
# bands of 4 rows and 64 columns, whose vectors are stored one behind the other, along the source,
# took 0.6 of the time.
BAND_BYTES = 8
# Smaller squares gain nothing over element by element.
SMALLEST = 4
# Rows of a square: more are more registers than there are.
HIGHEST = 16


@dataclass(frozen=True, slots=True)
class TransposeTemplate:
    """Squares transposed in registers, in panels."""

    name: str = "transpose"

    def refusal(self, nest: Nest, target: CpuTarget) -> str:
        """Why the nest is not a map with a transposed access; empty where it is."""
        if len(nest.stages) != 1 or not is_map(nest.stages[0]):
            return "not a single elementwise stage"
        stage = nest.stages[0]
        if _axes(coalesce(stage)) is None:
            return "no access walks through memory along another axis than the stores"
        if any(a.guard is not None for a in stage.assigns) or not writes_once(stage):
            return "not every point writes one element of its own"
        if short_axes(coalesce(stage), target, MOST_READ_SHORT) > 1:
            return "short rows, several of which are a vector"
        if not set(stage.inputs).isdisjoint(stage.outputs):
            return "it reads what it overwrites"
        return ""

    def space(self, nest: Nest, target: CpuTarget) -> dict[str, tuple[int, ...]]:
        """Elements along a side of a square and of a panel; in which order these are; stores past
        the caches."""
        return {
            "square": (4, 8, 16, 32, 64),
            "high": (4, 8, HIGHEST),
            "panel": (16, PANEL, LARGE_PANEL),
            "along": (BY_ROWS, ALONG_SOURCE, IN_RUNS),
            "streaming": (0, 1),
        }

    def default(self, nest: Nest, target: CpuTarget) -> Parameters:
        """Squares that fill vectors, or lines of memory where results do not stay in the caches, as
        far as the axes are long enough."""
        stage = coalesce(nest.stages[0])
        widest, width = max(b.dtype.bytes for b in stage.outputs), lanes((stage,), target)
        if _largest(stage) <= target.cores * target.l2_bytes:
            half = max(SMALLEST, CACHE_LINE_BYTES // 2 // widest)
            light = sum(cost(a.value) for a in stage.assigns) <= LIGHT
            if light and _are_split(stage) and (width > half or widest >= 4):
                return _squares(min(width, half), LARGE_PANEL)
            return _squares(width, PANEL)
        line = max(width, CACHE_LINE_BYTES // widest)
        if _streams(stage, line, target):
            if _apart(stage, *_axes(stage)):
                return _squares(line, PANEL, along=ALONG_SOURCE, streaming=True)
            return _squares(line, LARGE_PANEL, along=IN_RUNS, streaming=True)
        if _are_split(stage):
            high = max(SMALLEST, BAND_BYTES // widest)
            return _squares(
                width * max(1, target.registers // (2 * high)), LARGE_PANEL, high, ALONG_SOURCE
            )
        return _squares(max(2 * width, line), LARGE_PANEL, along=ALONG_SOURCE)

    def apply(self, nest: Nest, target: CpuTarget, parameters: Parameters) -> Scheduled:
        stage = coalesce(nest.stages[0])
        row, column = _axes(stage)
        side = min(parameters["square"], 1 << column.extent.bit_length() - 1)
        high = row.extent
        if high >= SMALLEST:
            most = min(side, parameters["high"])
            high = min(most, 1 << high.bit_length() - 1)
            side = side if high == most else high
        each = {v: max(1, parameters["panel"] // size) for v, size in ((row, high), (column, side))}
        axes = (row, column) if parameters["along"] == BY_ROWS else (column, row)
        repeats = may_repeat(stage)
        schedule = open_stage(stage).reorder(
            *(v.name for v in stage.axes if v not in axes), row.name, column.name
        )
        for axis, size in ((row, high), (column, side)):
            schedule = schedule.split(axis.name, size, "repeat" if repeats else "shorten")
            schedule = _in_panels(schedule, axis, size, each[axis])
        panels, squares = ([f"{v.name}.o.{part}" for v in axes] for part in "oi")
        if parameters["along"] == IN_RUNS:
            squares.reverse()
        inside = (f"{row.name}.i", f"{column.name}.i")
        schedule = schedule.reorder(*panels, *squares, *reversed(inside))
        nests = [inside]
        for name in _apart(stage, row, column):
            schedule = schedule.cache_read(name, squares[1], "loops")
            nests.append(tuple(f"{name}.{squares[1]}.{loop}" for loop in reversed(inside)))
        written_out = high * sum(cost(a.value) for a in stage.assigns) <= WRITTEN_OUT
        if repeats and high >= SMALLEST and _lie_alike(stage, row, column):
            (result,) = stage.outputs
            schedule = schedule.cache_write(result.name, squares[1], "transposed")
            copy = tuple(f"{result.name}.{squares[1]}.{n}" for n in (1, 0))
            schedule = abreast(schedule.reorder(*copy), copy[1], lanes((stage,), target))
            schedule = schedule.unroll(copy[0])
            nests = [inside[::-1]]
        else:
            schedule = schedule.reorder(*inside)
        for panel in () if repeats else panels:
            schedule = schedule.specialize(squares[0], panel)
        for outer, inner in nests:
            for square in () if repeats else squares:
                schedule = schedule.specialize(outer, square)
            # Vectors of a row are stored one after the other: some share a line.
            schedule = abreast(schedule, inner, lanes((stage,), target))
            schedule = schedule.unroll(outer) if written_out else schedule
        for buffer in stage.outputs if parameters["streaming"] else ():
            schedule = schedule.stream(buffer.name)
        total = work(nest)
        return Scheduled.of(
            in_tasks(
                schedule,
                len(stage.axes),
                lambda panels: (
                    max(1, min(panels // 2, TASK_WORK * panels // total))
                    if total > SERIAL_WORK
                    else 0
                ),
            )
        )


def _squares(
    side: int, panel: int, high: int = HIGHEST, along: int = BY_ROWS, streaming: bool = False
) -> dict[str, int]:
    return {
        "square": side,
        "high": high,
        "panel": panel,
        "along": along,
        "streaming": int(streaming),
    }


def _in_panels(schedule: Schedule, axis: Var, size: int, squares: int) -> Schedule:
    """Panels of so many squares along an axis; a square at the edge, which does again some of what
    the one before did, is in the panel of that one."""
    whole, rest = divmod(axis.extent, size)
    if rest:
        squares = max(squares, 2)
    return schedule.split(
        f"{axis.name}.o", squares, "lengthen" if rest and whole % squares == 0 else "shorten"
    )


def _apart(stage: Stage, row: Var, column: Var) -> dict[str, None]:
    """What is read against the grain in steps of more than one element."""
    return {
        node.source.name: None
        for a in stage.assigns
        for node in loads(a.value)
        if node.guard is None
        and not any(loads(i) for i in node.indices)
        and not {stride(node, row), stride(node, column)} & {0, 1, -1, None}
    }


def _lie_alike(stage: Stage, row: Var, column: Var) -> bool:
    """Whether one result is made of several arrays whose rows all are its columns."""
    (first, *others) = stage.assigns
    if others or not {row, column} <= {*first.indices} <= {*stage.axes}:
        return False
    reads = set(loads(first.value))
    steps = [(stride(node, row), stride(node, column)) for node in reads]
    against = [along for along, across in steps if across not in (0, None)]
    return len(against) > 1 and set(against) == {1} and None not in itertools.chain(*steps)


def _largest(stage: Stage) -> int:
    """Bytes of the largest result."""
    return max(b.bytes for b in stage.outputs)


def _streams(stage: Stage, side: int, target: CpuTarget) -> bool:
    """Whether results are so large that storing them past the caches pays, by whole lines.

    Source: results of 8 to 32 MB took 1.5 to 2.7 times less, and the op that read them next up to
    1.5 times more; smaller ones came out even, or took up to twice as long where another level
    holds them and their source; larger ones, on fresh pages, took 1.4 times more.
    """
    if any(
        side * a.buffer.dtype.bytes % CACHE_LINE_BYTES
        or any(
            (stride(a, v) or 1) * a.buffer.dtype.bytes % CACHE_LINE_BYTES
            for v in stage.axes
            if stride(a, v) != 1
        )
        for a in stage.assigns
    ):
        return False
    least = max(target.cores * target.l2_bytes, target.l3_bytes // 4)
    return least <= _largest(stage) <= LARGEST_REUSED


def _are_split(stage: Stage) -> bool:
    """Whether rows of results do not begin where lines of memory do.

    Source: vectors as long as a line are then stored to two, and 16 rows of them in panels of 64
    took 1.7 to 2.6 times as long as 8 rows of half a line in panels of 256, from 500 x 500 f32 to
    1001 x 1003; of f64 1.8 to 2.1, of 8 bits 1.2 to 1.5 times, of 16 bits sometimes less (Golden
    Cove).
    """
    return any(
        (stride(a, v) or 1) * a.buffer.dtype.bytes % CACHE_LINE_BYTES
        for a in stage.assigns
        for v in stage.axes
        if stride(a, v) != 1
    )


def _axes(stage: Stage) -> tuple[Var, Var] | None:
    """An axis along which a load walks through lines of memory, one by one if any does, and the one
    along which all stores walk one by one."""
    for column in reversed(stage.axes):
        if column.extent < SMALLEST or any(stride(a, column) != 1 for a in stage.assigns):
            continue
        found = {node for e in stage.expressions for node in loads(e)}
        against = [node for node in found if stride(node, column) not in (0, 1, -1, None)]
        rows = [row for row in reversed(stage.axes) if row is not column]
        for most in (1, None):
            for row in rows:
                if any(_stays_in_line(node, row, most) for node in against):
                    return row, column
    return None


def _stays_in_line(node: Load, row: Var, most: int | None) -> bool:
    """Whether neighbours along an axis share lines of memory, and are at most `most` apart."""
    step = abs(stride(node, row) or 0)
    return 0 < step <= (most or CACHE_LINE_BYTES // 2 // node.dtype.bytes)
