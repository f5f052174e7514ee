"""Maps against the grain: transposes and what is fused with them.

Some access walks through memory along one axis, the stores along another.  Squares over both axes
are read by rows and transposed in registers, panels of squares stay within few pages:

    parallel task -> outer axes, panel of rows, run of panels of columns
      for each square: result[16 rows, 16 columns] = f(source[16 columns, 16 rows])

Squares of the last panels are moved back to the edge.  A pass of its own over the edges would meet
a page for every square: 2047 x 2045 took 1.15 times as long.  Results in the memory of what is read
are computed once only: there, what is left at the edges comes after all panels, and is no squares.

Where elements along the row lie apart, they are put side by side first, square by square.

Results larger than the caches are stored past them: nothing is read that is about to be
overwritten, and nothing is driven out.  Panels and their squares then follow each other along the
source, whose pages are read to their ends; the order in which whole lines are stored hardly
matters.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from hlo_mlc.expr import index
from hlo_mlc.expr.build import load, substitute, transform
from hlo_mlc.expr.core import Buffer, Expr, Load, Var, loads
from hlo_mlc.loops.core import Allocate, LoopKind, Stmt, Store
from hlo_mlc.loops.rewrite import loop
from hlo_mlc.target.cpu import CACHE_LINE_BYTES, CpuTarget
from hlo_mlc.templates.base import (
    SERIAL_WORK,
    TASK_WORK,
    Parameters,
    Scheduled,
    bounded,
    decoded,
    lanes,
    may_repeat,
    parallel_tasks,
    work,
)
from hlo_mlc.tensor.classify import cost, is_injective, is_map, stride
from hlo_mlc.tensor.coalesce import coalesce
from hlo_mlc.tensor.core import Nest, Stage

# Simple operations that a square may take written out: code size.
WRITTEN_OUT = 1500
# The largest results for which malloc hands out the same pages again, that of glibc.  Fresh pages
# are in a cache already: the system has just filled them with zeros.
# Source: mallopt(3), M_MMAP_THRESHOLD.
LARGEST_REUSED = 32 << 20
# Elements along a side of a panel; the second is for results that do not stay in the caches, but
# are not stored past them.  On Zen 4, 2048 x 2048 f32 from memory to memory took half of the time
# with panels along the source, 0.8 of that with squares along it, too; 512 x 512 in the caches
# would take twice the time with such an order.  On Zen 5, panels of 64 that are stored past the
# caches took 0.6 of the time of larger ones, whose rows are in more pages than the first level of
# translations holds; others took 1.2 to 1.6 times as long in panels of 64.
PANEL, LARGE_PANEL = 64, 256
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
        if any(a.guard is not None for a in stage.assigns) \
                or not all(is_injective(a, stage.axes) for a in stage.assigns):
            return "not every point writes one element of its own"
        if {node.source for e in stage.expressions for node in loads(e)} & set(stage.outputs):
            return "it reads what it overwrites"
        return ""

    def space(self, nest: Nest, target: CpuTarget) -> dict[str, tuple[int, ...]]:
        """Elements along a side of a square and of a panel; stores past the caches."""
        return {"square": (4, 8, 16, 32, 64), "panel": (16, PANEL, LARGE_PANEL),
                "streaming": (0, 1)}

    def default(self, nest: Nest, target: CpuTarget) -> Parameters:
        """Squares that fill vectors, or lines of memory where results do not stay in the caches, as
        far as the axes are long enough."""
        stage = coalesce(nest.stages[0])
        widest = max(b.dtype.bytes for b in stage.outputs)
        side, panel = lanes((stage,), target), PANEL
        if _largest(stage) > target.cores * target.l2_bytes:
            side, panel = max(side, CACHE_LINE_BYTES // widest), LARGE_PANEL
        streams = _streams(stage, side, target)
        return {"square": side, "panel": PANEL if streams else panel, "streaming": int(streams)}

    def apply(self, nest: Nest, target: CpuTarget, parameters: Parameters) -> Scheduled:
        """The loops for the given parameters."""
        stage = coalesce(nest.stages[0])
        row, column = _axes(stage)
        side = min(parameters["square"], 1 << column.extent.bit_length() - 1)
        high = row.extent
        if high >= SMALLEST:
            high = min(side, HIGHEST, 1 << high.bit_length() - 1)
            side = side if high == HIGHEST else high
        squares = _Squares(stage, row, column, high, side, parameters["streaming"] > 0)
        return Scheduled(squares.loops(parameters["panel"], work(nest)), ())


def _largest(stage: Stage) -> int:
    """Bytes of the largest result."""
    return max(b.bytes for b in stage.outputs)


def _streams(stage: Stage, side: int, target: CpuTarget) -> bool:
    """Whether results are so large that storing them past the caches pays, by whole lines.

    Source: results of 8 to 32 MB took 1.5 to 2.7 times less, and the op that read them next up to
    1.5 times more; smaller ones came out even, or took up to twice as long where another level
    holds them and their source; larger ones, on fresh pages, took 1.4 times more.
    """
    if any(side * a.buffer.dtype.bytes % CACHE_LINE_BYTES or any(
            (stride(a, v) or 1) * a.buffer.dtype.bytes % CACHE_LINE_BYTES
            for v in stage.axes if stride(a, v) != 1) for a in stage.assigns):
        return False
    least = max(target.cores * target.l2_bytes, target.l3_bytes // 4)
    return least <= _largest(stage) <= LARGEST_REUSED


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


@dataclass(frozen=True, slots=True)
class _Side:
    """An axis cut into `squares` of `size` elements, `each` of which are a panel; the last panel
    may have one more, which ends with the axis."""

    extent: int
    size: int
    squares: int
    each: int
    panels: int

    @staticmethod
    def of(extent: int, size: int, panel: int, repeats: bool) -> _Side:
        whole, each = extent // size, max(1, panel // size)
        return _Side(extent, size, -(-extent // size) if repeats else whole, each,
                     -(-whole // each))

    def within(self, panel: Expr) -> Expr:
        """How many squares a panel has."""
        is_last = index.floordiv(index.add(panel, index.constant(1)), self.panels)
        most = index.constant(self.each)
        if self.squares > self.panels * self.each:
            most = index.add(most, is_last)
        return index.minimum(most, index.subtract(
            index.constant(self.squares), index.multiply(panel, index.constant(self.each))))

    def number(self, panel: Expr, square: Expr) -> Expr:
        """Which of all squares one of a panel is."""
        return bounded(index.add(index.multiply(panel, index.constant(self.each)), square),
                       self.squares)

    def start(self, square: Expr) -> Expr:
        """The first element of a square."""
        return bounded(index.multiply(square, index.constant(self.size)),
                       self.extent - self.size + 1)


@dataclass(frozen=True, slots=True)
class _Squares:
    """The loops of one stage."""

    stage: Stage
    row: Var
    column: Var
    high: int  # rows of one square: all of them where they are few
    side: int  # columns of one square
    streaming: bool

    def loops(self, panel: int, total: int) -> tuple[Stmt, ...]:
        """Panels of squares with so many elements along a side, and what is left where nothing may
        be computed twice."""
        repeats = may_repeat(self.stage)
        down = _Side.of(self.row.extent, self.high, panel, repeats)
        along = _Side.of(self.column.extent, self.side, panel, repeats)
        outer = [v for v in self.stage.axes if v not in (self.row, self.column)]
        others = math.prod(v.extent for v in outer)

        def run(t: Expr) -> tuple[Stmt, ...]:
            at = decoded(outer, index.floordiv(t, down.panels * along.panels))
            first, second = (t, index.floordiv(t, down.panels)) if self.streaming \
                else (index.floordiv(t, along.panels), t)
            return self._panel(at, down, bounded(index.floormod(first, down.panels), down.panels),
                               along, bounded(index.floormod(second, along.panels), along.panels))

        body = self._shared(f"{self.row.name}_panel", others * down.panels * along.panels, total,
                            run)
        if repeats:
            return body
        few_rows, few_columns = self.row.extent % self.high, self.column.extent % self.side
        last_row = index.constant(self.row.extent - few_rows)
        last_column = index.constant(self.column.extent - few_columns)
        rows, columns = down.squares, along.squares
        if few_columns:
            body += self._shared(
                f"{self.column.name}_end", others * rows, total // columns, lambda t: self._square(
                    decoded(outer, index.floordiv(t, rows)),
                    down.start(bounded(index.floormod(t, rows), rows)), last_column,
                    wide=few_columns))
        if few_rows:
            body += self._shared(
                f"{self.row.name}_end", others * columns, total // rows, lambda t: self._square(
                    decoded(outer, index.floordiv(t, columns)), last_row,
                    along.start(bounded(index.floormod(t, columns), columns)), high=few_rows))
        if few_rows and few_columns:
            body += self._shared(
                "corner", others, total // (rows * columns), lambda t: self._square(
                    decoded(outer, t), last_row, last_column, few_rows, few_columns))
        return body

    def _shared(self, name: str, tasks: int, total: int,
                body: Callable[[Expr], tuple[Stmt, ...]]) -> tuple[Stmt, ...]:
        """`body` for each number below `tasks`, in groups that are worth a task of the pool."""
        group = max(1, min(tasks // 2, TASK_WORK * tasks // total)) if total > SERIAL_WORK else 0
        return parallel_tasks(name, tasks, group, body)

    def _panel(self, at: dict[Var, Expr], down: _Side, upper: Expr, along: _Side, left: Expr
               ) -> tuple[Stmt, ...]:
        def square(r: Expr, c: Expr) -> tuple[Stmt, ...]:
            return self._square(at, down.start(down.number(upper, r)),
                                along.start(along.number(left, c)))

        high, wide = down.within(upper), along.within(left)
        down_square, along_square = f"{self.row.name}_square", f"{self.column.name}_square"
        if self.streaming:
            return (loop(along_square, wide, LoopKind.SERIAL, lambda c: (
                loop(down_square, high, LoopKind.SERIAL, lambda r: square(r, c)),)),)
        return (loop(down_square, high, LoopKind.SERIAL, lambda r: (
            loop(along_square, wide, LoopKind.SERIAL, lambda c: square(r, c)),)),)

    def _square(self, at: dict[Var, Expr], top: Expr, left: Expr, high: int = 0, wide: int = 0
                ) -> tuple[Stmt, ...]:
        """The loops of one square, or of one of another height or width."""
        high, wide = high or self.high, wide or self.side
        each = high * sum(cost(a.value) for a in self.stage.assigns)
        kind = LoopKind.UNROLL if each <= WRITTEN_OUT else LoopKind.SERIAL
        apart = self._apart(high, wide)

        def place(r: Expr, c: Expr) -> dict[Var, Expr]:
            return {**at, self.row: index.add(top, r), self.column: index.add(left, c)}

        def element(r: Expr, c: Expr) -> tuple[Stmt, ...]:
            where = place(r, c)
            beside = {node: load(square, (c, r)) for node, square in apart.items()}
            return tuple(Store(a.buffer, tuple(substitute(i, where) for i in a.indices),
                               substitute(transform(a.value, beside.get), where), None,
                               self.streaming)
                         for a in self.stage.assigns)

        body: tuple[Stmt, ...] = (loop(f"{self.row.name}_r", high, kind, lambda r: (
            loop(f"{self.column.name}_c", wide, LoopKind.VECTORIZE,
                 lambda c: element(r, c)),)),)
        for node, square in apart.items():
            def collected(c: Expr, node: Load = node, square: Buffer = square) -> tuple[Stmt, ...]:
                return (loop(f"{square.name}_r", high, LoopKind.VECTORIZE, lambda r: (
                    Store(square, (c, r), substitute(node, place(r, c))),)),)

            body = (Allocate(square, (loop(f"{square.name}_c", wide, kind, collected),
                                      *body)),)
        return body

    def _apart(self, high: int, wide: int) -> dict[Load, Buffer]:
        """What is read against the grain in steps of more than one element, and the squares to put
        it side by side in: columns by rows."""
        found = dict.fromkeys(node for a in self.stage.assigns for node in loads(a.value)
                              if node.guard is None
                              and stride(node, self.column) not in (0, 1, -1, None)
                              and stride(node, self.row) not in (0, 1, -1, None)
                              and not any(loads(i) for i in node.indices))
        return {node: Buffer(f"{self.stage.name}_square{number}", node.dtype,
                             (wide, high), "stack")
                for number, node in enumerate(found)}
