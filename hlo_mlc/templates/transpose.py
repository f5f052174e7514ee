"""Maps against the grain: transposes and what is fused with them.

Some access walks through memory along one axis, the stores along another.  Squares over both axes
are read by rows and transposed in registers, panels of squares stay within few pages:

    parallel task -> outer axes, panel of rows, run of panels of columns
      for each square: result[16 rows, 16 columns] = f(source[16 columns, 16 rows])
    the last columns, the last rows: squares moved back to the edge

Results in the memory of what is read are computed once only: there, those at the edges are no
squares, but what is left.

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
# Elements along a side of a panel.  On Zen 4, 2048 x 2048 f32 from memory to memory took half of
# the time with panels along the source, and 0.8 of that with squares along it, too, in larger ones
# (of every other element half); 512 x 512 in the caches would take twice the time with such an
# order.  Where a line of memory takes two vectors of 256 bits or four of 128, squares of whole
# lines took 0.55 and 0.2 of the time of those of one vector, in panels of 64 another fifth less
# than in larger ones (Zen 5, one thread).
PANEL, STREAMED_PANEL = 64, 256
# Smaller squares gain nothing over element by element.
SMALLEST = 4
LARGEST = 16


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
        return {"square": (4, 8, 16), "panel": (16, PANEL, STREAMED_PANEL), "streaming": (0, 1)}

    def default(self, nest: Nest, target: CpuTarget) -> Parameters:
        """Squares that fill vectors, or lines of memory where results do not stay in the caches, as
        far as the axes are long enough."""
        stage = coalesce(nest.stages[0])
        widest = max(b.dtype.bytes for b in stage.outputs)
        largest = max(b.bytes for b in stage.outputs)
        side = lanes((stage,), target)
        if largest > target.cores * target.l2_bytes:
            side = max(side, CACHE_LINE_BYTES // widest)
        side = min(LARGEST, side)
        streams = _streams(stage, side, target)
        whole = side * widest <= target.vector_bytes
        return {"square": side, "panel": STREAMED_PANEL if streams and whole else PANEL,
                "streaming": int(streams)}

    def apply(self, nest: Nest, target: CpuTarget, parameters: Parameters) -> Scheduled:
        """The loops for the given parameters."""
        stage = coalesce(nest.stages[0])
        row, column = _axes(stage)
        side = min(parameters["square"], 1 << column.extent.bit_length() - 1)
        high = row.extent
        if high >= SMALLEST:
            side = high = min(side, 1 << high.bit_length() - 1)
        squares = _Squares(stage, row, column, high, side, parameters["streaming"] > 0)
        return Scheduled(squares.loops(max(1, parameters["panel"] // side), work(nest)), ())


def _streams(stage: Stage, side: int, target: CpuTarget) -> bool:
    """Whether results are so large that storing them past the caches pays, by whole lines.

    Source: results of 8 to 32 MB took 1.5 to 2.7 times less, and the op that read them next up to
    1.5 times more; smaller ones came out even, larger ones, on fresh pages, took 1.4 times more.
    """
    if any(side * b.dtype.bytes < CACHE_LINE_BYTES for b in stage.outputs):
        return False
    largest = max(b.bytes for b in stage.outputs)
    return target.cores * target.l2_bytes < largest <= LARGEST_REUSED


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
class _Squares:
    """The loops of one stage."""

    stage: Stage
    row: Var
    column: Var
    high: int  # rows of one square: all of them where they are few
    side: int  # columns of one square
    streaming: bool

    def loops(self, panel: int, total: int) -> tuple[Stmt, ...]:
        """Panels of whole squares, then those at the edges, which overlap the ones before or are
        smaller."""
        rows, columns = self.row.extent // self.high, self.column.extent // self.side
        outer = [v for v in self.stage.axes if v not in (self.row, self.column)]
        others = math.prod(v.extent for v in outer)
        tall, wide = -(-rows // panel), -(-columns // panel)
        tasks = others * tall * wide

        def run(t: Expr) -> tuple[Stmt, ...]:
            at = decoded(outer, index.floordiv(t, tall * wide))
            down, along = (t, index.floordiv(t, tall)) if self.streaming \
                else (index.floordiv(t, wide), t)
            down = bounded(index.floormod(down, tall), tall)
            along = bounded(index.floormod(along, wide), wide)
            return self._panel(at, down, along, panel, rows, columns)

        body = self._shared(f"{self.row.name}_panel", tasks, total, run)
        few_rows, few_columns = self.row.extent % self.high, self.column.extent % self.side
        if may_repeat(self.stage):
            few_rows, few_columns = few_rows and self.high, few_columns and self.side
        last_row = index.constant(self.row.extent - few_rows)
        last_column = index.constant(self.column.extent - few_columns)
        if few_columns:
            body += self._shared(
                f"{self.column.name}_end", others * rows, total // columns, lambda t: self._square(
                    decoded(outer, index.floordiv(t, rows)),
                    self._top(bounded(index.floormod(t, rows), rows)), last_column,
                    wide=few_columns))
        if few_rows:
            body += self._shared(
                f"{self.row.name}_end", others * columns, total // rows, lambda t: self._square(
                    decoded(outer, index.floordiv(t, columns)), last_row,
                    self._left(bounded(index.floormod(t, columns), columns)), high=few_rows))
        if few_rows and few_columns:
            body += self._shared(
                "corner", others, total // (rows * columns), lambda t: self._square(
                    decoded(outer, t), last_row, last_column, few_rows, few_columns))
        return body

    def _top(self, square: Expr) -> Expr:
        return index.multiply(square, index.constant(self.high))

    def _left(self, square: Expr) -> Expr:
        return index.multiply(square, index.constant(self.side))

    def _shared(self, name: str, tasks: int, total: int,
                body: Callable[[Expr], tuple[Stmt, ...]]) -> tuple[Stmt, ...]:
        """`body` for each number below `tasks`, in groups that are worth a task of the pool."""
        group = max(1, min(tasks // 2, TASK_WORK * tasks // total)) if total > SERIAL_WORK else 0
        return parallel_tasks(name, tasks, group, body)

    def _panel(self, at: dict[Var, Expr], down: Expr, along: Expr, panel: int, rows: int,
               columns: int) -> tuple[Stmt, ...]:
        def within(start: Expr, count: int) -> Expr:
            return index.minimum(index.constant(panel),
                                 index.subtract(index.constant(count), start))

        top, left = (index.multiply(e, index.constant(panel)) for e in (down, along))
        high, wide = within(top, rows), within(left, columns)

        def square(r: Expr, c: Expr) -> tuple[Stmt, ...]:
            return self._square(at, self._top(bounded(index.add(top, r), rows)),
                                self._left(bounded(index.add(left, c), columns)))

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
