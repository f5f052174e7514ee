"""The primitives of `schedule/statements.py`: examples, before and after, and refusals."""

from __future__ import annotations

import numpy as np

from hlo_mlc.expr import index
from hlo_mlc.expr.build import load
from hlo_mlc.expr.core import Buffer
from hlo_mlc.expr.dtypes import F32
from hlo_mlc.loops.core import Allocate, LoopProgram, Store
from hlo_mlc.schedule.core import Schedule
from making.rewritten import ONE, SQUARES, refuses, shows


def test_add_unit_loop(copy, assert_same) -> None:
    once = Schedule(copy).add_unit_loop("t").add_unit_loop("b")
    shows(
        once.program,
        """
        for b in 0..1:
          for t in 0..1:
            for i in 0..10:
              y[i] = x[i]
        """,
    )
    assert_same(
        copy, once.bind("b", "block").bind("t", "thread").program, [np.arange(10, dtype=np.float32)]
    )
    refuses(lambda: once.add_unit_loop("i"), "a loop is called 'i' already")


def test_inline(normed, assert_same) -> None:
    inlined = Schedule(normed).contract("m").inline("m")
    shows(
        inlined.program,
        """
        for i in 0..4:
          alloc add.acc: f32 register:
            add.acc[] = 0.0:f32
            for k in 0..8:
              add.acc[] <- add x[i, k]
            for j in 0..8:
              y[i, j] = x[i, j] / sqrt(add.acc[])
            z[i] = sqrt(add.acc[])
        """,
    )
    assert_same(normed, inlined.program, SQUARES)
    refuses(lambda: Schedule(normed).inline("m"), "no private buffer is called 'm'", "add.acc")
    refuses(lambda: Schedule(normed).inline("add.acc"), "not stored once, before all that reads")
    outside = Schedule(normed).contract("m").expand("i", "stack")
    refuses(lambda: outside.inline("m"), "is no single value that is stored for certain")


def test_inline_refuses_what_changes(tiny) -> None:
    x, y, m = tiny.operand("x", 3), tiny.result("y", 3), Buffer("m", F32, (), "register")
    zero, one = index.constant(0), index.constant(1)
    body = (
        Store(y, (zero,), load(x, (zero,))),
        Allocate(
            m,
            (Store(m, (), load(y, (zero,))), Store(y, (zero,), ONE), Store(y, (one,), load(m, ()))),
        ),
    )
    refuses(
        lambda: Schedule(LoopProgram("p", (x,), (y,), body)).inline("m"),
        "is computed from what is written behind it",
        "y[0] = 1.0",
    )


def test_add_loops_and_replicate(normed, assert_same) -> None:
    once = (
        Schedule(normed)
        .contract("m")
        .split("j", 2)
        .rename("j.o", "", "l")
        .fold_apart("k")
        .begin_inside("k")
        .expand("i", "stack")
        .add_loops(("l",), (4,), "i")
    )
    own = once.replicate("m", ("l",))
    shows(
        own.program,
        """
        alloc m: 4x4xf32 stack:
          alloc add.acc: 4xf32 stack:
            alloc add.acc.k: 4x8xf32 stack:
              for i in 0..4:
                for k in 0..8:
                  add.acc.k[i, k] = -0.0:f32
                  add.acc[i] = 0.0:f32 where k == 0
                  add.acc.k[i, k] <- add x[i, k]
                for k in 0..8:
                  add.acc[i] <- add add.acc.k[i, k]
                for l in 0..4:
                  m[i, l] = sqrt(add.acc[i])
                for l in 0..4:
                  for j.i in 0..2:
                    y[i, j.i + l * 2] = x[i, j.i + l * 2] / m[i, l]
                for l in 0..4:
                  z[i] = m[i, l] where l == 0
        """,
    )
    for schedule in (once, own, own.distribute("i")):
        assert_same(normed, schedule.program, SQUARES)


def test_add_loops_refuses(normed, total) -> None:
    refuses(lambda: Schedule(normed).add_loops(("l",), (4, 5), "i"), "names and positive extents")
    refuses(lambda: Schedule(normed).add_loops(("l", "l"), (4, 5), "i"), "names and positive ext")
    refuses(lambda: Schedule(normed).add_loops((), (), "i"), "names and positive extents")
    refuses(lambda: Schedule(normed).add_loops(("l",), (0,), "i"), "names and positive extents")
    refuses(lambda: Schedule(normed).add_loops(("i",), (4,), "j"), "is in a loop called i")
    refuses(lambda: Schedule(normed).add_loops(("l",), (4,), "n"), "no loop is called 'n'")
    split = Schedule(total).split("k", 43)
    refuses(lambda: split.add_loops(("l",), (4,), "k.o"), "does nothing outside of the loops in it")


def test_replicate_refuses(normed, total) -> None:
    private = Schedule(normed).contract("m")
    refuses(lambda: private.replicate("m", ("j",)), "is not in loops called j")
    refuses(
        lambda: private.expand("i", "stack").replicate("m", ("i",)),
        "is not what the first iteration of these loops does",
    )
    refuses(lambda: private.replicate("y", ("i",)), "no private buffer is called 'y'")
    refuses(lambda: private.replicate("add.acc", ("i",)), "is not stored once")
    apart = private.begin_inside("k").expand("i", "stack").add_loops(("l",), (4,), "i")
    refuses(lambda: apart.replicate("m", ("l",)), "reads m in no such loops")
    wide = apart.rename("j", "", "l")
    refuses(lambda: wide.replicate("m", ("l",)), "reads m in no such loops")


def test_begin_inside_refuses(normed, total) -> None:
    refuses(lambda: Schedule(normed).begin_inside("j"), "has nothing before it that folds begin")
    refuses(lambda: Schedule(normed).begin_inside("z"), "no loop is called 'z'")
    refuses(lambda: Schedule(normed).vectorize("k").begin_inside("k"), "must be serial or unroll")
