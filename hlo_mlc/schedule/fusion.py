"""Schedule primitives that merge the loops of neighbouring statements."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from hlo_mlc.expr import build, index
from hlo_mlc.expr.core import Expr, loads
from hlo_mlc.loops.core import Allocate, For, If, LoopKind, LoopProgram, Stmt, bodies, walk
from hlo_mlc.loops.dependence import Memory, accesses, pairs, variables
from hlo_mlc.loops.equations import solve
from hlo_mlc.loops.rewrite import Body, allocated, substitute, transform_lists, when, with_body
from hlo_mlc.schedule.fission import check_same_iteration
from hlo_mlc.schedule.loops import refuse, require_kind, require_loops
from hlo_mlc.support.errors import ScheduleError


def fuse_loops(program: LoopProgram, first: str, second: str) -> LoopProgram:
    """Run two loops of equal extent as one, which keeps the first one's name.

        for i in 0..8:                 for i in 0..8:
          a[i] = x[i] + 1                a[i] = x[i] + 1
        for j in 0..8:         ->        b[i] = a[i] * 2
          b[j] = a[j] * 2

    What lies between them moves out of the way where nothing depends on it; scopes of private
    buffers grow to hold both.  With one name twice, two loops of that name become one.  Refused
    where an iteration of the second needs what another iteration of the first does.  Halide and
    TVM: compute_at; elsewhere loop fusion.
    """
    require_loops(program, "fuse_loops", first)
    require_loops(program, "fuse_loops", second)
    memory = Memory.of(program)

    def visit(statements: Body) -> Body:
        before, after = _holder(statements, first, 0), None
        if before is not None:
            after = _holder(statements, second, before + 1)
        if before is None or after is None:
            return statements
        opened, scopes = _opened(statements[before : after + 1], first, second)
        if len({scope.buffer.name for scope in scopes}) < len(scopes):
            raise refuse(
                "fuse_loops",
                statements[after],
                "would share a scope with a private buffer of the same name",
            )
        body = _merge(opened, first, second, memory)
        body = allocated([scope.buffer for scope in scopes], body)
        return (*statements[:before], *body, *statements[after + 1 :])

    result = transform_lists(program.body, visit)
    if result is program.body:
        raise ScheduleError(
            f"fuse_loops: expected {first!r} and, after it in the same list of "
            f"statements, {second!r}; fuse the loops around them first"
        )
    return with_body(program, result)


def fuse_first(
    program: LoopProgram, first: str, second: str, at: str, least: int = 1, *, checked: bool = True
) -> LoopProgram:
    """Run a loop that stands in front of the loop `at` beside one in its first iteration.

        for k in 0..8:                    for t in 0..4:
          p[k] = exp(x[k])                  if t == 0:
        for t in 0..4:              ->        for k in 0..8:
          for j in 0..8:                        p[k] = exp(x[k])
            s[t] <- add p[j] * y[t, j]          s[t] <- add p[k] * y[t, k]
                                            else:
                                              for j in 0..8:
                                                s[t] <- add p[j] * y[t, j]

    What the first one waits for, memory as a rule, and what the second one does then take as long
    as the longer of them.  Where loops in the first one have fewer than `least` iterations in all,
    that is not worth the code, and they stay as they are.  Refused where an iteration of the second
    needs what another iteration of the first does, or anything else in an iteration of `at` touches
    it.  Halide: compute_with.
    """
    require_loops(program, "fuse_first", second)
    memory = Memory.of(program)
    found = False

    def visit(statements: Body) -> Body:
        nonlocal found
        place = next(
            (
                n
                for n, (a, b) in enumerate(pairwise(statements))
                if _is_loop(a, first) and _is_loop(b, at)
            ),
            None,
        )
        if place is None:
            return statements
        one, outer = statements[place : place + 2]
        found = True
        if math.prod(s.var.extent or 1 for s in walk(one.body) if isinstance(s, For)) < least:
            return statements
        if index.bounds(outer.extent)[0] < 1:
            raise refuse("fuse_first", outer, "may have no iteration")
        if outer.kind is LoopKind.VECTORIZE:
            raise refuse("fuse_first", outer, "is a vector, all of whose lanes go the same way")
        inside, scopes = _opened(list(outer.body), second)
        if sum(_is_loop(s, second) for s in inside) != 1:
            raise refuse(
                "fuse_first", outer, f"must hold the loop {second} as one of its statements"
            )
        body = allocated(
            [s.buffer for s in scopes],
            tuple(
                _beside(one, s, outer, memory if checked else None) if _is_loop(s, second) else s
                for s in inside
            ),
        )
        rest = tuple(s for s in inside if not _is_loop(s, second))
        if checked and not _independent((one,), rest, memory):
            raise refuse("fuse_first", outer, f"does more beside {second} with what {first} does")
        return (*statements[:place], outer.around(body), *statements[place + 2 :])

    result = transform_lists(program.body, visit)
    if not found:
        raise ScheduleError(f"fuse_first: expected {first!r} and right behind it {at!r}")
    return with_body(program, result)


def _beside(one: For, two: For, outer: For, memory: Memory | None) -> Stmt:
    """The loop `two`, in the first iteration of the outer one with what the loop `one` does."""
    if one.extent is not two.extent or one.kind is not two.kind:
        raise refuse(
            "fuse_first",
            two,
            f"must have the extent and the kind of {one.var.name}, "
            f"which is 0..{one.extent} {one.kind.value}",
        )
    moved = substitute(one.body, {one.var: two.var})
    if memory is not None:
        check_same_iteration("fuse_first", (two,), moved, two.body, memory)
    both = two.around((*moved, *two.body))
    return If(index.compare("eq", outer.var, 0), (both,), (two,))


def fuse_last(program: LoopProgram, last: str, at: tuple[str, ...]) -> LoopProgram:
    """Run a loop that stands behind others in the last iteration of those.

        for i in 0..2:                       for i in 0..2:
          for j in 0..4:                       for j in 0..4:
            y[i * 4 + j] = x[i * 4 + j]  ->      y[i * 4 + j] = x[i * 4 + j]
        for t in 0..3:                           if i == 1 and j == 3:
          y[t + 8] = x[t + 8]                      for t in 0..3:
                                                     y[t + 8] = x[t + 8]

    `at` are nested loops, outermost first, each of which the next one ends: what `split` leaves
    over needs no launch of its own.  Refused where one of them may have no iteration.  Halide and
    TVM: compute_at.
    """
    if not at:
        raise ScheduleError(f"fuse_last: expected the loops in which {last!r} is to be done")

    def visit(statements: Body) -> Body:
        place = next(
            (
                n
                for n, (a, b) in enumerate(pairwise(statements))
                if _is_loop(a, at[0]) and _is_loop(b, last)
            ),
            None,
        )
        if place is None:
            return statements
        outer, one = statements[place : place + 2]
        return (*statements[:place], _ending(outer, at[1:], one, ()), *statements[place + 2 :])

    result = transform_lists(program.body, visit)
    if result is program.body:
        raise ScheduleError(f"fuse_last: expected {at[0]!r} and right behind it {last!r}")
    return with_body(program, result)


def _ending(outer: For, inner: Sequence[str], one: For, known: tuple[Expr, ...]) -> For:
    """A loop in whose last iteration, and that of the loops `inner` in it, the loop `one` is done;
    `known` say so of the loops around it."""
    require_kind("fuse_last", outer, LoopKind.SERIAL)
    if index.bounds(outer.extent)[0] < 1:
        raise refuse("fuse_last", outer, "may have no iteration")
    if any(isinstance(s, For) and s.var is outer.var for s in walk((one,))):
        raise refuse("fuse_last", outer, f"has the variable of a loop of {one.var.name}")
    known = (*known, index.compare("eq", outer.var, outer.extent - 1))
    *before, end = outer.body
    if not inner:
        body = (*outer.body, *when(build.all_of(*known), (one,)))
    elif not _is_loop(end, inner[0]):
        raise refuse("fuse_last", outer, f"does not end with the loop {inner[0]}")
    else:
        body = (*before, _ending(end, inner[1:], one, known))
    return outer.around(body)


def _holder(statements: Body, name: str, start: int) -> int | None:
    """The position of the loop called `name`, or of the allocations that are all around it."""
    for position in range(start, len(statements)):
        if _exposed(statements[position], name):
            return position
    return None


def _exposed(stmt: Stmt, name: str) -> bool:
    if isinstance(stmt, Allocate):
        return any(_exposed(s, name) for s in stmt.body)
    return _is_loop(stmt, name)


def _is_loop(stmt: Stmt, name: str) -> bool:
    return isinstance(stmt, For) and stmt.var.name == name


def _opened(statements: Body, *names: str) -> tuple[list[Stmt], list[Allocate]]:
    """The statements without the allocations around the loops `names`, and those."""
    result: list[Stmt] = []
    scopes: list[Allocate] = []
    for stmt in statements:
        if isinstance(stmt, Allocate) and any(_exposed(stmt, name) for name in names):
            inner, more = _opened(stmt.body, *names)
            result += inner
            scopes += [stmt, *more]
        else:
            result.append(stmt)
    return result, scopes


def _merge(statements: list[Stmt], first: str, second: str, memory: Memory) -> Body:
    start = next(n for n, s in enumerate(statements) if _is_loop(s, first))
    end = next(n for n, s in enumerate(statements) if n > start and _is_loop(s, second))
    one, two = statements[start], statements[end]
    if one.extent is not two.extent or one.kind is not two.kind:
        raise refuse(
            "fuse_loops",
            two,
            f"must have the extent and the kind of {first}, which is "
            f"0..{one.extent} {one.kind.value}",
        )
    early, late = _parted(statements[start + 1 : end], one, two, memory)
    moved = substitute(two.body, {two.var: one.var})
    check_same_iteration("fuse_loops", (one,), one.body, moved, memory)
    both = one.around(_in_turn(one.body, moved))
    return (*statements[:start], *early, both, *late, *statements[end + 1 :])


def _in_turn(first: Body, second: Body) -> Body:
    """One after the other; under one condition where both have the same."""
    if (
        first
        and second
        and isinstance(first[-1], If)
        and isinstance(second[0], If)
        and first[-1].condition is second[0].condition
        and not loads(first[-1].condition)
    ):
        both = (a + b for a, b in zip(bodies(first[-1]), bodies(second[0]), strict=True))
        return (*first[:-1], If(first[-1].condition, *both), *second[1:])
    return first + second


def _parted(between: list[Stmt], one: For, two: For, memory: Memory) -> tuple[Body, Body]:
    """The statements between two loops: those that can go before the first of them, and the
    others, which must be able to go behind the second."""
    early: list[Stmt] = []
    late: list[Stmt] = []
    for stmt in between:
        if _independent((one, *late), (stmt,), memory):
            early.append(stmt)
        elif _independent((stmt,), (two,), memory):
            late.append(stmt)
        else:
            raise refuse(
                "fuse_loops",
                stmt,
                f"stands between {one.var.name} and {two.var.name}, "
                "needs the one and is needed by the other",
            )
    return tuple(early), tuple(late)


def _independent(first: Body, second: Body, memory: Memory) -> bool:
    before, after = accesses(first), accesses(second)
    varying = variables((*first, *second))
    unstable = {a.buffer for a in (*before, *after) if a.writes}
    return all(
        memory.comparable(a.buffer, b.buffer) and solve(a, b, varying, unstable) is None
        for a, b in pairs(memory, before, after)
    )
