"""Schedule primitives that tell the iterations of a loop apart by where they are in its range, so
that conditions on that are settled in each part."""

from __future__ import annotations

from hlo_mlc.expr import build, index
from hlo_mlc.expr.core import Var
from hlo_mlc.loops.core import For, If, LoopKind, LoopProgram, Stmt
from hlo_mlc.loops.rewrite import Body, loop, substitute, transform
from hlo_mlc.schedule.loops import require_constant, require_kind, rewrite_loops
from hlo_mlc.support.errors import ScheduleError


def cut(program: LoopProgram, name: str, at: int) -> LoopProgram:
    """Make two loops of one: over its first `at` iterations, and over the rest.  What conditions on
    iterations say is settled in each of them.

        for i in 0..10:                                for i.a in 0..1:
          y[i] = x[i - 1] if i >= 1 else 0    ->         y[i.a] = 0
                                                       for i.b in 0..9:
                                                         y[i.b + 1] = x[i.b]

    Halide: loop partition; others: index set splitting.
    """

    def parts(stmt: For) -> Body:
        require_kind("cut", stmt, LoopKind.SERIAL, LoopKind.PARALLEL)
        extent = require_constant("cut", stmt)
        if not 0 < at < extent:
            raise ScheduleError(
                f"cut: expected an iteration of {name!r} behind the first out of {extent}, got {at}"
            )
        return tuple(
            loop(
                f"{name}.{suffix}",
                high - low,
                stmt.kind,
                lambda i, low=low: substitute(stmt.body, {stmt.var: i + low}),
            )
            for suffix, low, high in (("a", 0, at), ("b", at, extent))
        )

    return rewrite_loops(program, "cut", name, parts)


def set_apart(program: LoopProgram, name: str, low: int, high: int) -> LoopProgram:
    """Give a loop a copy of its body for the iterations from `low` on that are before `high`.  What
    conditions on iterations say is settled in it, and in the other where that is for one range.
    Loops in the other one have names of their own.

        for i in 0..10:                                for i in 0..10:
          for j in 0..8:                                 if i >= 1:
            y[i, j] = x[i - 1, j]             ->           for j in 0..8:
              if i >= 1 else 0                               y[i, j] = x[i - 1, j]
                                                         else:
                                                           for j.e in 0..8:
                                                             y[i, j.e] = 0

    Halide: specialize; others: loop unswitching.
    """

    def copies(stmt: For) -> Body:
        require_kind("set_apart", stmt, LoopKind.SERIAL, LoopKind.PARALLEL)
        extent = require_constant("set_apart", stmt)
        if not 0 <= low < high <= extent:
            raise ScheduleError(
                f"set_apart: expected some iterations of {name!r} out of {extent}, "
                f"got those from {low} on that are before {high}"
            )
        inside = build.all_of(
            index.compare("ge", stmt.var, low), index.compare("lt", stmt.var, high)
        )
        if inside is build.TRUE:
            return (stmt,)
        then, otherwise = _known(stmt, low, high), stmt.body
        if low == 0:
            otherwise = _known(stmt, high, extent)
        elif high == extent:
            otherwise = _known(stmt, 0, low)
        return (stmt.around((If(inside, then, renamed(otherwise)),)),)

    return rewrite_loops(program, "set_apart", name, copies)


def _known(stmt: For, low: int, high: int) -> Body:
    """The body of a loop in iterations that are known to be in a range."""
    start = index.constant(low)
    near = Var(stmt.var.name, stmt.var.dtype, high - low)
    placed = substitute(stmt.body, {stmt.var: near + start})
    return substitute(placed, {near: stmt.var - start})


def renamed(statements: Body) -> Body:
    """The same with names of their own for loops."""

    def visit(stmt: Stmt) -> Body | None:
        if not isinstance(stmt, For):
            return None
        return (
            loop(
                f"{stmt.var.name}.e",
                stmt.extent,
                stmt.kind,
                lambda i: renamed(substitute(stmt.body, {stmt.var: i})),
            ),
        )

    return transform(statements, visit)
