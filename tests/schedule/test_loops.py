"""The primitives of `schedule/loops.py`: examples, before and after, and refusals."""

from __future__ import annotations

import numpy as np

from hlo_mlc.expr import index
from hlo_mlc.expr.build import apply, const, load, variable
from hlo_mlc.expr.core import Buffer, Expr
from hlo_mlc.expr.dtypes import F32
from hlo_mlc.loops.core import For, If, LoopKind, LoopProgram, Store
from hlo_mlc.schedule.core import Schedule
from making.rewritten import ONE, SQUARES, TWO, minus, refuses, shows


def test_fuse(tiny) -> None:
    x, y = tiny.operand("x", 32), tiny.result("y", 4, 8)
    program = tiny.program(
        tiny.map(
            y, "ij", lambda i, j: load(x, (index.add(index.multiply(i, index.constant(8)), j),))
        )
    )
    shows(
        Schedule(program).fuse("i", "j").program,
        """
        for i.j in 0..32:
          y[floordiv(i.j, 8), floormod(i.j, 8)] = x[i.j]
        """,
    )


def test_fuse_then_split_by_the_inner_extent_gives_the_loops_back(transposed) -> None:
    shows(
        Schedule(transposed).fuse("i", "j").split("i.j", 8).program,
        """
        for i.j.o in 0..4:
          for i.j.i in 0..8:
            y[i.j.o, i.j.i] = x[i.j.i, i.j.o]
        """,
    )


def test_fuse_refuses(tiny, transposed, copy) -> None:
    refuses(lambda: Schedule(transposed).fuse("j", "i"), "must hold the loop i and nothing else")
    refuses(lambda: Schedule(copy).fuse("i", "j"), "no loop is called 'j'")
    refuses(lambda: Schedule(transposed).vectorize("j").fuse("i", "j"), "must be serial")


def test_reorder(transposed) -> None:
    shows(
        Schedule(transposed).reorder("j", "i").program,
        """
        for j in 0..8:
          for i in 0..4:
            y[i, j] = x[j, i]
        """,
    )


def test_reorder_keeps_loops_that_are_not_named(tiny) -> None:
    x, y = tiny.operand("x", 2, 3, 4), tiny.result("y", 2, 3, 4)
    program = tiny.program(tiny.map(y, "abc", lambda *at: load(x, at)))
    assert Schedule(program).reorder("c", "a").loop_names == ("c", "b", "a")


def test_reorder_lets_reductions_commute(grand_total) -> None:
    assert Schedule(grand_total).reorder("j", "i").loop_names == ("j", "i")


def test_reorder_takes_guards_inside(transposed, assert_same) -> None:
    tiles = Schedule(transposed).split("j", 3, "guard").split("i", 3, "guard")
    tiles = tiles.reorder("i.o", "j.o", "j.i", "i.i")
    shows(
        tiles.program,
        """
        for i.o in 0..2:
          for j.o in 0..3:
            for j.i in 0..3:
              for i.i in 0..3:
                if ((i.i + i.o * 3) < 4) & ((j.i + j.o * 3) < 8):
                  y[i.i + i.o * 3, j.i + j.o * 3] = x[j.i + j.o * 3, i.i + i.o * 3]
        """,
    )
    assert_same(transposed, tiles.program, [np.arange(32, dtype=np.float32).reshape(8, 4)])


def test_reorder_leaves_guards_that_stores_decide_about() -> None:
    x, y = Buffer("x", F32, (4, 6), "operand"), Buffer("y", F32, (4, 6), "result")
    i, j = variable("i", 4), variable("j", 6)
    inner = For(j, index.constant(6), LoopKind.SERIAL, (Store(y, (i, j), load(x, (i, j))),))
    positive = apply("gt", load(y, (i, index.constant(0))), const(0.0, F32))
    nest = For(i, index.constant(4), LoopKind.SERIAL, (If(positive, (inner,), ()),))
    program = LoopProgram("guarded", (x,), (y,), (nest,))
    refuses(lambda: Schedule(program).reorder("j", "i"), "not perfectly nested")


def test_reorder_refuses(tiny, copy, transposed) -> None:
    y = tiny.result("y", 6, 6)

    def wave(i: Expr, j: Expr) -> Expr:
        inside = apply("and", apply("ge", i, index.constant(1)), apply("lt", j, index.constant(5)))
        return load(y, (minus(i, 1), minus(j, -1)), inside, ONE)

    program = tiny.program(tiny.map(y, "ij", wave))
    refuses(lambda: Schedule(program).reorder("j", "i"), "would change the order", "y")
    refuses(lambda: Schedule(transposed).reorder("i"), "two or more")
    refuses(lambda: Schedule(transposed).reorder("i", "k"), "no loop is called 'k'")
    chain = Schedule(
        tiny.program(
            tiny.map(tiny.result("a", 4), "i", lambda i: ONE),
            tiny.map(tiny.result("b", 4), "j", lambda j: TWO),
        )
    )
    refuses(lambda: chain.reorder("i", "j"), "not perfectly nested")
    vector = Schedule(transposed).vectorize("j")
    refuses(lambda: vector.reorder("j", "i"), "is a vector")
    blocked = Schedule(copy).split("i", 4, "shorten")
    refuses(lambda: blocked.reorder("i.i", "i.o"), "depends on a loop which would move inside")


def test_unswitch(transposed, padded, assert_same) -> None:
    inside = Schedule(transposed).split("i", 3, "guard").reorder("i.o", "i.i", "j")
    shows(
        inside.unswitch("j").program,
        """
        for i.o in 0..2:
          for i.i in 0..3:
            if (i.i + i.o * 3) < 4:
              for j in 0..8:
                y[i.i + i.o * 3, j] = x[j, i.i + i.o * 3]
        """,
    )
    x = np.arange(32, dtype=np.float32).reshape(8, 4)
    assert_same(transposed, inside.unswitch("j").program, [x])
    refuses(lambda: inside.unswitch("i.i"), "asks nothing that is the same in all its iterations")
    lanes = Schedule(transposed).split("i", 3, "shift").vectorize("i.i")
    assert "where" in str(lanes)
    refuses(lambda: lanes.unswitch("j"), "asks nothing that is the same in all its iterations")
    refuses(lambda: inside.unswitch("k"), "no loop is called 'k'")


def test_unswitch_of_what_loads_and_stores_ask(tiny, assert_same) -> None:
    x, y = tiny.operand("x", 4, 6), tiny.result("y", 5, 6)

    def value(i: Expr, j: Expr) -> Expr:
        return apply("mul", load(x, (i, j), apply("lt", i, index.constant(4)), ONE), TWO)

    program = tiny.program(tiny.map(y, "ij", value))
    schedule = Schedule(program).unswitch("j")
    shows(
        schedule.program,
        """
        for i in 0..5:
          if i < 4:
            for j in 0..6:
              y[i, j] = x[i, j] * 2.0:f32
          else:
            for j in 0..6:
              y[i, j] = 2.0:f32
        """,
    )
    assert_same(program, schedule.program, [np.arange(24, dtype=np.float32).reshape(4, 6)])
    some = Schedule(program).split("j", 4, "shift").reorder("j.o", "j.i", "i")
    assert "where" in str(some) and "where" not in str(some.unswitch("i"))
    assert_same(
        program, some.unswitch("i").program, [np.arange(24, dtype=np.float32).reshape(4, 6)]
    )


def test_rename_of_all(normed, assert_same) -> None:
    renamed = Schedule(normed).rename("j", "", "k")
    assert renamed.loop_names == ("i", "k") and len(renamed.loops("k")) == 2
    assert_same(normed, renamed.program, SQUARES)
    refuses(lambda: renamed.rename("k", "", "i"), "would hold another loop of that name")
    refuses(lambda: renamed.rename("i", "", "k"), "would hold another loop of that name")


def test_reorder_of_a_store_that_is_repeated(transposed, copy, assert_same) -> None:
    """It puts the same there again, whichever comes last."""
    turned = Schedule(transposed).split("i", 3, "repeat").reorder("i.i", "j", "i.o")
    assert_same(transposed, turned.program, [np.arange(32, dtype=np.float32).reshape(8, 4)])
    turned = Schedule(copy).split("i", 4, "repeat").reorder("i.i", "i.o")
    assert_same(copy, turned.program, [np.arange(10, dtype=np.float32)])


def test_rename(rising) -> None:
    sunk = rising.expand("i", "stack").distribute("i", "k").rename("i", "k", "i.k")
    assert sunk.loop_names[3:] == ("i.k", "k", "j", "i")
    refuses(lambda: sunk.rename("i", "k", "j"), "a name for 'i' that no loop has")
    refuses(lambda: sunk.rename("i", "k", "l"), "holds no loop called k")
    refuses(lambda: sunk.rename("i", "z", "l"), "no loop is called 'z'")
