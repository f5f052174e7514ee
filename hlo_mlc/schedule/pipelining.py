"""Schedule primitives about what is under way at the same time: persist, double_buffer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from hlo_mlc.expr import index
from hlo_mlc.expr.core import Buffer, Expr, Var
from hlo_mlc.loops.core import Allocate, For, If, LoopKind, LoopProgram, Stmt, Store, walk
from hlo_mlc.loops.dependence import Memory, accesses
from hlo_mlc.loops.rewrite import (
    Body,
    allocated,
    loop,
    redirect,
    serial,
    substitute,
    transform,
    with_body,
)
from hlo_mlc.schedule.loops import refuse, require_constant, rewrite_loops
from hlo_mlc.schedule.storage import taken_out
from hlo_mlc.support.errors import ScheduleError


def persist(program: LoopProgram, name: str, blocks: int) -> LoopProgram:
    """A grid of `blocks` blocks, each of which does every so manyth iteration of the loop.

        for i in 0..10 block:        for i.p in 0..4 block:
          …i…                          for i.o in 0..3:
                               ->        if (i.o * 4 + i.p) < 10:
                                           …i.o * 4 + i.p…

    A loop of no more iterations than there are to be blocks stays as it is.  CUDA: a grid-stride
    loop over a persistent grid.
    """
    if blocks < 1:
        raise ScheduleError(f"persist: expected at least one block for {name!r}, got {blocks}")

    def rounds(stmt: For) -> Body | None:
        if stmt.kind is not LoopKind.BLOCK:
            raise refuse("persist", stmt, "must be over blocks")
        extent = require_constant("persist", stmt)
        if extent <= blocks:
            return None

        def iteration(block: Var, round_number: Var) -> Body:
            at = round_number * blocks + block
            body = substitute(stmt.body, {stmt.var: at})
            if extent % blocks == 0:
                return body
            return (If(index.compare("lt", at, extent), body),)

        return (
            loop(
                f"{name}.p",
                blocks,
                LoopKind.BLOCK,
                lambda p: serial(f"{name}.o", -(-extent // blocks), lambda o: iteration(p, o)),
            ),
        )

    return rewrite_loops(program, "persist", name, rounds)


def double_buffer(program: LoopProgram, name: str) -> LoopProgram:
    """What the first statement of an iteration fills is there twice, so that the next iteration's
    part is under way while the others work on this one's.

        for i in 0..5:             fill a for 0
          fill a             ->    for i.o in 0..2:
          use a                      fill a.b for i.o * 2 + 1
                                     use a for i.o * 2
                                     fill a for i.o * 2 + 2
                                     use a.b for i.o * 2 + 1
                                   use a for 4

    Refused unless the first statement does nothing but fill private buffers, the same elements in
    every iteration, with what the others do not write.  TVM: software_pipeline with two stages.
    """
    memory = Memory.of(program)
    twins: dict[Buffer, Buffer] = {}

    def double(stmt: For) -> Body | None:
        if stmt.kind is not LoopKind.SERIAL:
            raise refuse("double_buffer", stmt, "must be serial")
        trips = require_constant("double_buffer", stmt)
        inside, body = taken_out(stmt.body)
        rounds = stmt.around(body)
        own = {
            buffer: replace(buffer, name=f"{buffer.name}.b") for buffer in _filled(rounds, memory)
        }
        if trips < 2:
            return None
        twins.update(own)
        return allocated(inside, _two_at_once(rounds, trips, own))

    doubled = rewrite_loops(program, "double_buffer", name, double)

    def with_twin(stmt: Stmt) -> Body | None:
        if not isinstance(stmt, Allocate) or stmt.buffer not in twins:
            return None
        inner = transform(stmt.body, with_twin)
        return (Allocate(stmt.buffer, (Allocate(twins[stmt.buffer], inner),)),)

    return with_body(program, transform(doubled.body, with_twin))


def _two_at_once(stmt: For, trips: int, twins: Mapping[Buffer, Buffer]) -> Body:
    """The iterations of a loop in pairs, the second of which fills and uses the twins."""
    fill, use = stmt.body[:1], stmt.body[1:]

    def at(body: Body, iteration: Expr, is_odd: bool) -> Body:
        body = substitute(body, {stmt.var: iteration})
        return redirect(body, twins) if is_odd else body

    def two(o: Var) -> Body:
        first = o * 2
        second, third = (first + n for n in (1, 2))
        return (
            *at(fill, second, True),
            *at(use, first, False),
            *at(fill, third, False),
            *at(use, second, True),
        )

    last = index.constant(trips - 1)
    if trips % 2:
        rest = at(use, last, False)
    else:
        rest = (
            *at(fill, last, True),
            *at(use, index.constant(trips - 2), False),
            *at(use, last, True),
        )
    pairs = (trips - 1) // 2
    rounds = (serial(f"{stmt.var.name}.o", pairs, two),) if pairs else ()
    return (*at(fill, index.constant(0), False), *rounds, *rest)


def _filled(stmt: For, memory: Memory) -> tuple[Buffer, ...]:
    """The buffers that the first statement of a loop's body fills.

    Raises: ScheduleError where it may not be moved before the rest of the iteration before.
    """
    if len(stmt.body) < 2:
        raise refuse("double_buffer", stmt, "must fill something and then use it")
    touched, rest = accesses(stmt.body[:1]), accesses(stmt.body[1:])
    filled = tuple(dict.fromkeys(a.buffer for a in touched if a.writes))
    for a in touched:
        if a.writes and (
            a.buffer.scope not in ("shared", "stack") or not isinstance(a.stmt, Store)
        ):
            raise refuse("double_buffer", stmt, f"does more than to fill private buffers: {a}")
        if not a.writes and a.buffer in filled:
            raise refuse("double_buffer", stmt, f"reads what it fills: {a}")
        if a.writes and any(
            stmt.var in e.free
            for e in (*a.indices, *(() if a.stmt.guard is None else (a.stmt.guard,)))
        ):
            raise refuse("double_buffer", stmt, f"fills other elements in every iteration: {a}")
    for b in rest:
        if b.writes and any(memory.may_overlap(a.buffer, b.buffer) for a in touched):
            raise refuse("double_buffer", stmt, f"overwrites what the next one needs: {b}")
    for inner in walk(stmt.body[:1]):
        if (
            isinstance(inner, If)
            and stmt.var in inner.condition.free
            and _stored(inner.then) != _stored(inner.otherwise)
        ):
            raise refuse("double_buffer", inner, "fills some elements in some iterations only")
    return filled


def _stored(statements: Body) -> set[tuple[str, ...]]:
    """The elements that statements store to, by the names of variables."""
    return {(s.buffer.name, *map(str, s.indices)) for s in walk(statements) if isinstance(s, Store)}
