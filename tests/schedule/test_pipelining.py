"""Persistent grids and double buffering: what the primitives do, keep and refuse."""

from __future__ import annotations

import textwrap

import numpy as np
import pytest

from hlo_mlc.expr import index
from hlo_mlc.expr.build import apply, const, load, variable
from hlo_mlc.expr.core import Buffer, Expr, Var
from hlo_mlc.expr.dtypes import F32
from hlo_mlc.loops.core import (
    Accumulate,
    Allocate,
    For,
    If,
    LoopKind,
    LoopProgram,
    Stmt,
    Store,
    walk,
)
from hlo_mlc.loops.interpret import interpret
from hlo_mlc.loops.lower import lower_stage
from hlo_mlc.loops.text import body_text
from hlo_mlc.loops.verify import verify
from hlo_mlc.schedule.core import Schedule, Step, replay
from hlo_mlc.support.errors import ScheduleError
from hlo_mlc.tensor.combine import named_combiner
from hlo_mlc.tensor.core import Assign, Stage
from making.rewritten import shows
from making.verified import unproven

X, Y = Buffer("x", F32, (24, 8), "operand"), Buffer("y", F32, (24,), "result")
TILE, TOTAL = Buffer("a", F32, (8,), "shared"), Buffer("s", F32, (8,), "shared")
ZERO = const(0.0, F32)


def loop(var: Var, kind: LoopKind, *body: Stmt) -> For:
    return For(var, index.constant(var.extent), kind, body)


def copying(blocks: int) -> LoopProgram:
    """y[b] = x[b, 0] + 1 by a block each."""
    b, t = variable("b", blocks), variable("t", 1)
    value = apply("add", load(X, (b, index.constant(0))), const(1.0, F32))
    return LoopProgram(
        "k",
        (X,),
        (Y,),
        (loop(b, LoopKind.BLOCK, loop(t, LoopKind.THREAD, Store(Y, (index.add(b, t),), value))),),
    )


def sums(
    rounds: int,
    *,
    place: Expr | None = None,
    inside: Expr | None = None,
    kind: LoopKind = LoopKind.SERIAL,
    more: tuple[Stmt, ...] = (),
) -> LoopProgram:
    """y[t] = sum over i of x[i, t], by way of a tile, which may be filled at `place`, or only
    `inside`; `more` is done with it too."""
    b, i = variable("b", 1), variable("i", rounds)
    t, u, v, w = (variable(name, 8) for name in "tuvw")
    fill: Stmt = Store(TILE, (t if place is None else place,), load(X, (i, t)))
    if inside is not None:
        fill = If(inside, (fill,), ())
    add = Accumulate((TOTAL,), (u,), named_combiner("add", F32), (load(TILE, (u,)),))
    body: tuple[Stmt, ...] = (
        loop(v, LoopKind.THREAD, Store(TOTAL, (v,), ZERO)),
        loop(i, kind, loop(t, LoopKind.THREAD, fill), loop(u, LoopKind.THREAD, add), *more),
        loop(w, LoopKind.THREAD, Store(Y, (w,), load(TOTAL, (w,)))),
    )
    for buffer in (TILE, TOTAL):
        body = (Allocate(buffer, body),)
    return LoopProgram("k", (X,), (Y,), (loop(b, LoopKind.BLOCK, *body),))


ROUND, THREAD = variable("i", 5), variable("t", 8)


def test_a_grid_of_four_blocks() -> None:
    shows(
        Schedule(copying(10)).persist("b", 4).program,
        """
        for b.p in 0..4 block:
          for b.o in 0..3:
            if (b.o * 4 + b.p) < 10:
              for t in 0..1 thread:
                y[b.o * 4 + b.p + t] = x[b.o * 4 + b.p, 0] + 1.0:f32
        """,
    )


@pytest.mark.parametrize(("tiles", "blocks"), [(10, 4), (12, 4), (24, 1), (7, 6), (5, 5), (3, 8)])
def test_every_tile_is_done_once(tiles: int, blocks: int) -> None:
    before = copying(tiles)
    schedule = Schedule(before).persist("b", blocks)
    assert unproven(schedule.program) == ()
    x = np.random.default_rng(0).standard_normal(X.shape).astype(np.float32)
    (one,), (other,) = interpret(before, [x]), interpret(schedule.program, [x], seed=1)
    np.testing.assert_array_equal(one[:tiles], other[:tiles])
    assert (schedule.program.body[0].var.extent == tiles) == (tiles <= blocks)
    assert str(replay(before, schedule.trace)) == str(schedule)


def test_two_tiles_in_turns() -> None:
    schedule = Schedule(sums(5)).double_buffer("i")
    inner = schedule.program.body[0].body[0].body[0].body[0].body[1:-1]
    assert body_text(inner) == textwrap.dedent("""\
        for t in 0..8 thread:
          a[t] = x[0, t]
        for i.o in 0..2:
          for t in 0..8 thread:
            a.b[t] = x[i.o * 2 + 1, t]
          for u in 0..8 thread:
            s[u] <- add a[u]
          for t in 0..8 thread:
            a[t] = x[i.o * 2 + 2, t]
          for u in 0..8 thread:
            s[u] <- add a.b[u]
        for u in 0..8 thread:
          s[u] <- add a[u]
        """)


@pytest.mark.parametrize("rounds", range(1, 8))
def test_every_round_is_done_once(rounds: int) -> None:
    before = sums(rounds)
    schedule = Schedule(before).double_buffer("i")
    verify(schedule.program)
    x = np.random.default_rng(0).integers(-9, 9, X.shape).astype(np.float32)
    (actual,) = interpret(schedule.program, [x], seed=2)
    np.testing.assert_array_equal(actual[:8], x[:rounds].sum(0))
    assert str(replay(before, schedule.trace)) == str(schedule)


def test_buffers_of_a_round_are_there_for_all_of_them() -> None:
    i, j, total = variable("i", 5), variable("j", 8), Var("total", F32)
    stage = Stage(
        "sum",
        (),
        (Assign(Y, (index.constant(0),), total),),
        (i, j),
        named_combiner("add", F32),
        (load(X, (i, j)),),
        (ZERO,),
        (total,),
    )
    before = LoopProgram("k", (X,), (Y,), lower_stage(stage))
    schedule = Schedule(before).cache_read("x", "i", "loops").double_buffer("i")
    assert [s.buffer.name for s in walk(schedule.program.body) if isinstance(s, Allocate)] == [
        "sum.total",
        "x.i",
        "x.i.b",
    ]
    x = np.random.default_rng(0).integers(-9, 9, X.shape).astype(np.float32)
    (actual,) = interpret(schedule.program, [x])
    assert actual[0] == x[:5].sum()
    assert str(replay(before, schedule.trace)) == str(schedule)


def test_zeros_may_take_the_place_of_what_is_not_there() -> None:
    """A store in each branch of a condition on the round fills the same elements in all of them."""
    program = sums(6)
    t = variable("t", 8)

    def with_zeros(stmt: For) -> For:
        fill = stmt.body[0]
        inside = index.compare("lt", stmt.var, index.constant(4))
        both = If(inside, fill.body, (Store(TILE, (t,), ZERO),))
        return For(
            stmt.var,
            stmt.extent,
            stmt.kind,
            (
                For(
                    t,
                    fill.extent,
                    fill.kind,
                    (If(inside, (Store(TILE, (t,), load(X, (stmt.var, t))),), both.otherwise),),
                ),
                *stmt.body[1:],
            ),
        )

    (block,) = program.body
    (tile,) = block.body
    (total,) = tile.body
    start, rounds, end = total.body
    body = Allocate(tile.buffer, (Allocate(total.buffer, (start, with_zeros(rounds), end)),))
    program = LoopProgram("k", (X,), (Y,), (loop(block.var, LoopKind.BLOCK, body),))
    x = np.random.default_rng(0).integers(-9, 9, X.shape).astype(np.float32)
    (actual,) = interpret(Schedule(program).double_buffer("i").program, [x])
    np.testing.assert_array_equal(actual[:8], x[:4].sum(0))


REFUSED = {
    "no loop is called 'z'": (copying(4), Step("persist", ("z", 2))),
    "expected at least one block": (copying(4), Step("persist", ("b", 0))),
    "must be over blocks": (copying(4), Step("persist", ("t", 2))),
    "must fill something and then use it": (
        Schedule(copying(12)).persist("b", 4).program,
        Step("double_buffer", ("b.o",)),
    ),
    "must be serial": (sums(5, kind=LoopKind.UNROLL), Step("double_buffer", ("i",))),
    "fills other elements in every iteration": (
        sums(5, place=index.floormod(index.add(THREAD, ROUND), 8)),
        Step("double_buffer", ("i",)),
    ),
    "fills some elements in some iterations only": (
        sums(5, inside=index.compare("lt", ROUND, index.constant(3))),
        Step("double_buffer", ("i",)),
    ),
    "overwrites what the next one needs": (
        sums(
            5,
            more=(loop(variable("z", 8), LoopKind.THREAD, Store(TILE, (variable("z", 8),), ZERO)),),
        ),
        Step("double_buffer", ("i",)),
    ),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_refusals(reason: str) -> None:
    program, step = REFUSED[reason]
    with pytest.raises(ScheduleError, match=reason):
        Schedule(program).apply(step)
