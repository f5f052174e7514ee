"""Procedures whose loops have trips that do not wait for each other: vectors of them.

    parallel points
      for step: for 16 neighbouring trips: array[16 trips] = …

What is read against the grain is transposed in squares.  The last vector of a loop begins early,
and puts some of what the one before has put once more.  An array that becomes a result as it is, is
that result.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hlo_mlc.expr import index
from hlo_mlc.expr.build import substitute
from hlo_mlc.expr.core import Buffer, Expr, Load, loads
from hlo_mlc.expr.procedure import Count, Move, Put
from hlo_mlc.loops.core import For, LoopKind, Stmt, Store
from hlo_mlc.loops.rewrite import allocated, loop
from hlo_mlc.target.cpu import CpuTarget
from hlo_mlc.templates.base import Fixed, Parameters, Scheduled, decoded, lanes, shared_out, work
from hlo_mlc.tensor.classify import stride
from hlo_mlc.tensor.coalesce import coalesce
from hlo_mlc.tensor.core import Assign, Nest, Stage

# Smaller squares gain nothing over element by element.
_SMALLEST = 4

Place = tuple[Buffer, tuple[Expr, ...]]
"""A buffer and the first of the indices in it."""


@dataclass(frozen=True, slots=True)
class SideBySideStepsTemplate(Fixed):
    """A point after the other, vectors of what its steps do."""

    name: str = "side_by_side_steps"

    def refusal(self, nest: Nest, target: CpuTarget) -> str:
        """Why the nest is no procedure of such loops; empty where it is."""
        if len(nest.stages) != 1 or nest.stages[0].procedure is None:
            return "no procedure"
        (stage,) = nest.stages
        if not stage.procedure.is_side_by_side:
            return "trips of its loops wait for each other"
        if set(stage.inputs) & {*stage.outputs, *stage.overwrites}:
            return "it reads what it overwrites"
        return ""

    def apply(self, nest: Nest, target: CpuTarget, parameters: Parameters) -> Scheduled:
        """The loops."""
        stage = coalesce(nest.stages[0])
        steps = _Steps(stage, lanes((stage,), target), _handed_on(stage))
        points = math.prod(v.extent for v in stage.axes)
        return Scheduled(shared_out("point", points, work(nest), steps.point), ())


def _handed_on(stage: Stage) -> dict[Buffer, Place]:
    """The arrays that become a result as they are, and are not read before."""
    read = {one.source for e in stage.procedure.expressions for one in loads(e)}
    found: dict[Buffer, Place] = {}
    for a in stage.along:
        if not isinstance(a.value, Load) or a.value.source in read or a.guard is not None:
            continue
        own = len(a.indices) - len(a.value.indices)
        inner = {v for v in stage.reduce_axes if v in a.value.indices}
        if a.value.indices == a.indices[own:] and not any(
                i.free & inner for i in a.indices[:own]) \
                and a.value.source.shape == a.buffer.shape[own:]:
            found.setdefault(a.value.source, (a.buffer, a.indices[:own]))
    return found


@dataclass(frozen=True, slots=True)
class _Steps:
    """What is done at a point, in vectors of so many lanes."""

    stage: Stage
    width: int
    handed_on: dict[Buffer, Place]

    def point(self, number: Expr) -> tuple[Stmt, ...]:
        """All steps of the point with this number."""
        at = dict(decoded(self.stage.axes, number))
        body = self._moves(self.stage.procedure.body, at)
        for a in self.stage.along:
            if self.handed_on.get(getattr(a.value, "source", None), (None,))[0] is not a.buffer:
                body += self._stored(a, at)
        return allocated([b for b in self.stage.procedure.arrays if b not in self.handed_on], body)

    def _stored(self, a: Assign, at: dict[Expr, Expr]) -> tuple[Stmt, ...]:
        body: tuple[Stmt, ...] = (Store(a.buffer, tuple(substitute(i, at) for i in a.indices),
                                        substitute(a.value, at)),)
        for v in reversed([v for v in self.stage.reduce_axes if v in a.indices]):
            body = (For(v, index.constant(v.extent), LoopKind.SERIAL, body),)
        return body

    def _moves(self, body: Sequence[Move], at: dict[Expr, Expr]) -> tuple[Stmt, ...]:
        found: list[Stmt] = []
        for move in body:
            found += self._puts((move,), at) if isinstance(move, Put) else self._count(move, at)
        return tuple(found)

    def _count(self, count: Count, at: dict[Expr, Expr]) -> tuple[Stmt, ...]:
        if _is_innermost(count):
            return self._vectors(count.var.name, count.var.extent, lambda trip: self._puts(
                count.body, {**at, count.var: trip}))
        inner = count.body[0]
        if len(count.body) == 1 and isinstance(inner, Count) and _is_innermost(inner) \
                and any(_crosses(put, count, inner) for put in inner.body):
            return self._squares(count, inner, at)
        return (loop(count.var.name, count.var.extent, LoopKind.SERIAL, lambda trip: self._moves(
            count.body, {**at, count.var: trip})),)

    def _vectors(self, name: str, extent: int, body: Callable[[Expr], tuple[Stmt, ...]]
                 ) -> tuple[Stmt, ...]:
        side = _side(extent, self.width)
        return _blocks(name, extent, side, lambda first: (loop(
            f"{name}_lane", side, LoopKind.VECTORIZE, lambda lane: body(index.add(first, lane))),))

    def _squares(self, outer: Count, inner: Count, at: dict[Expr, Expr]) -> tuple[Stmt, ...]:
        """Rows of squares, written out, whose columns are lanes."""
        side = min(_side(c.var.extent, self.width) for c in (outer, inner))

        def square(put: Put, row: Expr, column: Expr) -> tuple[Stmt, ...]:
            return (loop(f"{outer.var.name}_row", side, LoopKind.UNROLL, lambda r: (
                loop(f"{inner.var.name}_lane", side, LoopKind.VECTORIZE, lambda lane: self._puts(
                    (put,), {**at, outer.var: index.add(row, r),
                             inner.var: index.add(column, lane)})),)),)

        found: tuple[Stmt, ...] = ()
        for put in inner.body:  # one array's after the other: a square fills the registers
            found += _blocks(outer.var.name, outer.var.extent, side, lambda row, put=put: _blocks(
                inner.var.name, inner.var.extent, side, lambda column: square(put, row, column)))
        return found

    def _puts(self, puts: Sequence[Put], at: dict[Expr, Expr]) -> tuple[Stmt, ...]:
        done: dict[Expr, Expr] = {}  # they share most of what they are computed of

        def one(put: Put) -> Store:
            array, leading = self.handed_on.get(put.array, (put.array, ()))
            return Store(array, tuple(substitute(i, at, done) for i in (*leading, *put.indices)),
                         substitute(put.value, at, done))

        return tuple(map(one, puts))


def _is_innermost(count: Count) -> bool:
    return all(isinstance(move, Put) for move in count.body)


def _crosses(put: Put, outer: Count, inner: Count) -> bool:
    """Whether what is read lies side by side along the outer loop, what is put along the inner."""
    assign = Assign(put.array, put.indices, put.value)
    return stride(assign, inner.var) == 1 and isinstance(put.value, Load) \
        and stride(put.value, outer.var) == 1 and stride(put.value, inner.var) != 1 \
        and min(outer.var.extent, inner.var.extent) >= _SMALLEST


def _side(extent: int, most: int) -> int:
    return min(most, 1 << extent.bit_length() - 1)


def _blocks(name: str, extent: int, side: int, body: Callable[[Expr], tuple[Stmt, ...]]
            ) -> tuple[Stmt, ...]:
    """`body` for the first of each `side` trips; the last ones end with the last trip."""
    count = -(-extent // side)
    if count == 1:
        return body(index.constant(0))

    def one(number: Expr) -> tuple[Stmt, ...]:
        first = index.multiply(number, index.constant(side))
        return body(index.minimum(first, index.constant(extent - side)) if extent % side else first)

    return (loop(f"{name}_block", count, LoopKind.SERIAL, one),)
