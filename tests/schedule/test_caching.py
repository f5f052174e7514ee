"""The primitives of `schedule/caching.py`: examples, before and after, and refusals."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hlo_mlc.expr import index
from hlo_mlc.expr.build import apply, load, variable
from hlo_mlc.expr.core import Buffer, Expr
from hlo_mlc.expr.dtypes import F32, INDEX
from hlo_mlc.loops.core import Allocate, For, LoopKind, LoopProgram, Store
from hlo_mlc.loops.interpret import interpret
from hlo_mlc.loops.lower import lower_nest
from hlo_mlc.schedule.core import Schedule
from hlo_mlc.tensor.core import Assign, Stage
from making.rewritten import ONE, TWO, argmax, argmax_stage, minus, refuses, shows


def test_stream(copy) -> None:
    shows(
        Schedule(copy).stream("y").program,
        """
        for i in 0..10:
          y[i] = x[i] streaming
        """,
    )
    refuses(lambda: Schedule(copy).stream("x"), "nothing is stored to a buffer called 'x'")


def test_cache_read(transposed) -> None:
    shows(
        Schedule(transposed).cache_read("x", "i").program,
        """
        for i in 0..4:
          alloc x.i: 8xf32 stack:
            for x.i.0 in 0..8:
              x.i[x.i.0] = x[x.i.0, i]
            for j in 0..8:
              y[i, j] = x.i[j]
        """,
    )


def test_cache_read_by_the_loops_around_it(tiny, assert_same) -> None:
    """Of each place at which something is read nothing but that, in the order of the loops."""
    x, y = tiny.operand("x", 8, 13), tiny.result("y", 3, 4)
    two, four = index.constant(2), index.constant(4)
    program = tiny.program(
        tiny.map(
            y,
            "ij",
            lambda i, j: apply(
                "sub",
                load(x, (index.multiply(j, two), index.multiply(i, four))),
                load(x, (i, index.constant(0))),
            ),
        )
    )
    staged = (
        Schedule(program)
        .split("i", 2, "shorten")
        .reorder("j", "i.i")
        .cache_read("x", "i.o", "loops")
    )
    shows(
        staged.program,
        """
        for i.o in 0..2:
          alloc x.i.o: 4x2xf32 stack:
            alloc x.i.o.1: 2xf32 stack:
              for x.i.o.j in 0..4:
                for x.i.o.i.i in 0..min(2, i.o * -2 + 3):
                  x.i.o[x.i.o.j, x.i.o.i.i] = x[x.i.o.j * 2, i.o * 8 + x.i.o.i.i * 4]
              for x.i.o.i.i in 0..min(2, i.o * -2 + 3):
                x.i.o.1[x.i.o.i.i] = x[i.o * 2 + x.i.o.i.i, 0]
              for j in 0..4:
                for i.i in 0..min(2, i.o * -2 + 3):
                  y[i.i + i.o * 2, j] = x.i.o[j, i.i] - x.i.o.1[i.i]
        """,
    )
    assert_same(program, staged.program, [np.arange(104, dtype=np.float32).reshape(8, 13)])


def test_cache_read_of_what_is_the_same_in_a_loop(tiny, assert_same) -> None:
    """Rows against rows of the same matrix: those of a panel, whatever the other row is."""
    x, y = tiny.operand("x", 6, 5), tiny.result("y", 6, 6, 5)
    program = tiny.program(
        tiny.map(y, "ijk", lambda i, j, k: apply("sub", load(x, (i, k)), load(x, (j, k))))
    )
    panels = Schedule(program).split("j", 3).reorder("j.o", "i", "k", "j.i")
    staged = panels.cache_read("x", "j.o", "loops", "i")
    shows(
        staged.program,
        """
        for j.o in 0..2:
          alloc x.j.o: 5x3xf32 stack:
            for x.j.o.k in 0..5:
              for x.j.o.j.i in 0..3:
                x.j.o[x.j.o.k, x.j.o.j.i] = x[j.o * 3 + x.j.o.j.i, x.j.o.k]
            for i in 0..6:
              for k in 0..5:
                for j.i in 0..3:
                  y[i, j.i + j.o * 3, k] = x[i, k] - x.j.o[k, j.i]
        """,
    )
    assert_same(program, staged.program, [np.arange(30, dtype=np.float32).reshape(6, 5)])
    refuses(lambda: panels.cache_read("x", "j.o", "loops", "k"), "elsewhere in each iteration of k")
    refuses(lambda: panels.cache_read("x", "j.o", "loops", "z"), "no loop is called 'z'")
    refuses(lambda: panels.cache_read("x", "j.o", "rows", "i"), "expected the layout 'loops'")


def test_cache_read_of_what_is_nearest_along_a_loop(tiny, assert_same) -> None:
    """Of a matrix and its transpose the part that lies across the order of the loops."""
    x, y = tiny.operand("x", 6, 6), tiny.result("y", 6, 6)
    program = tiny.program(
        tiny.map(y, "ij", lambda i, j: apply("sub", load(x, (i, j)), load(x, (j, i))))
    )
    tiles = (
        Schedule(program)
        .split("j", 4, "guard")
        .split("i", 4, "guard")
        .reorder("i.o", "j.o", "j.i", "i.i")
    )
    staged = tiles.cache_read("x", "j.o", "loops", along="i.i").reorder("i.i", "j.i")
    shows(
        staged.program,
        """
        for i.o in 0..2:
          for j.o in 0..2:
            alloc x.j.o: 4x4xf32 stack:
              for x.j.o.j.i in 0..4:
                for x.j.o.i.i in 0..4:
                  if ((i.o * 4 + x.j.o.i.i) < 6) & ((j.o * 4 + x.j.o.j.i) < 6):
                    x.j.o[x.j.o.j.i, x.j.o.i.i] = x[j.o * 4 + x.j.o.j.i, i.o * 4 + x.j.o.i.i]
              for i.i in 0..4:
                for j.i in 0..4:
                  if ((i.i + i.o * 4) < 6) & ((j.i + j.o * 4) < 6):
                    y[i.i + i.o * 4, j.i + j.o * 4] = x[i.i + i.o * 4, j.i + j.o * 4] - x.j.o[j.i, i.i]
        """,  # noqa: E501 (as it is written)
    )
    assert_same(program, staged.program, [np.arange(36, dtype=np.float32).reshape(6, 6)])
    refuses(lambda: tiles.cache_read("x", "i.i", "loops", along="j.i"), "at no places", "j.i")
    refuses(lambda: tiles.cache_read("x", "j.o", "loops", along="z"), "no loop is called 'z'")
    refuses(lambda: tiles.cache_read("x", "j.o", along="i.i"), "expected the layout 'loops'")


def test_cache_read_of_a_window_stays_inside_the_buffer(tiny, assert_same) -> None:
    x, y = tiny.operand("x", 10), tiny.result("y", 10)

    def window(i: Expr) -> Expr:
        left = load(x, (minus(i, 1),), apply("ge", i, index.constant(1)), ONE)
        right = load(x, (minus(i, -1),), apply("lt", i, index.constant(9)), TWO)
        return apply("sub", left, right)

    program = tiny.program(tiny.map(y, "i", window))
    staged = Schedule(program).split("i", 4).cache_read("x", "i.o")
    assert "alloc x.i.o: 6xf32 stack" in str(staged)
    assert_same(program, staged.program, [np.arange(10, dtype=np.float32)])


def test_cache_read_at_places_that_change_meanwhile() -> None:
    """Where memory says what is read, and the loop writes there, all of the buffer is copied."""
    x, places = Buffer("x", F32, (8,), "operand"), Buffer("places", INDEX, (4, 8), "operand")
    y, held = Buffer("y", F32, (4, 8), "result"), Buffer("held", INDEX, (), "register")
    i, j = variable("i", 4), variable("j", 8)
    inner = For(
        j,
        index.constant(8),
        LoopKind.SERIAL,
        (
            Store(held, (), index.floormod(load(places, (i, j)), 8)),
            Store(y, (i, j), load(x, (load(held, ()),))),
        ),
    )
    program = LoopProgram(
        "looked_up",
        (x, places),
        (y,),
        (For(i, index.constant(4), LoopKind.SERIAL, (Allocate(held, (inner,)),)),),
    )
    staged = Schedule(program).cache_read("x", "j")
    refuses(lambda: Schedule(program).cache_read("x", "i", "loops"), "changes meanwhile what")
    inputs = [np.arange(8, dtype=np.float32), np.arange(32).reshape(4, 8) * 3]
    (expected,) = interpret(program, inputs)
    (actual,) = interpret(staged.program, inputs, seed=1)
    np.testing.assert_array_equal(actual, expected)
    np.testing.assert_array_equal(expected, (np.arange(32).reshape(4, 8) * 3 % 8))


def test_cache_read_refuses(transposed, running) -> None:
    refuses(lambda: Schedule(transposed).cache_read("z", "i"), "no buffer is called 'z'")
    refuses(lambda: Schedule(running).cache_read("y", "i"), "also writes y")
    refuses(lambda: Schedule(transposed).cache_read("x", "k"), "no loop is called 'k'")
    refuses(lambda: Schedule(transposed).vectorize("j").cache_read("x", "j"), "is a vector")
    staged = Schedule(transposed).cache_read("x", "i")
    refuses(lambda: staged.cache_read("x", "i"), "already")
    inner = Schedule(transposed).parallel("j")
    refuses(lambda: inner.cache_read("x", "i"), "its tasks share x")
    refuses(
        lambda: Schedule(transposed).cache_read("x", "i", "transposed"),
        "expected a layout of 'x' out of rows, loops; got 'transposed'",
    )
    shorter = Schedule(transposed).split("j", 3, "shorten")
    refuses(lambda: shorter.cache_read("x", "i", "loops"), "changes meanwhile what")


def test_cache_write(tiny) -> None:
    x, y = tiny.operand("x", 4, 8), tiny.result("y", 8, 4)
    program = tiny.program(tiny.map(y, "ji", lambda j, i: load(x, (i, j)), order=(1, 0)))
    shows(
        Schedule(program).cache_write("y", "i").program,
        """
        for i in 0..4:
          alloc y.i: 8xf32 stack:
            for j in 0..8:
              y.i[j] = x[i, j]
            for y.i.0 in 0..8:
              y[y.i.0, i] = y.i[y.i.0]
        """,
    )


def test_cache_write_refuses(tiny, running) -> None:
    y = tiny.result("y", 4, 8)
    even = apply("lt", variable("j", 8), index.constant(3))
    stage = tiny.map(y, "ij", lambda i, j: ONE)
    some = Stage("some", stage.axes, (Assign(y, stage.axes, ONE, even),))
    refuses(lambda: Schedule(tiny.program(some)).cache_write("y", "i"), "does not surely write")


def test_cache_write_of_what_an_argmax_reads(tiny, assert_same) -> None:
    """It updates its value and its place together, but not what they are found in."""
    searched, x = argmax(5, 3), tiny.operand("x", 5, 3)
    seen = tiny.result("seen", 5, 3)
    k, i = variable("n", 5), variable("i", 3)
    stored = Stage("stored", (k,), (Assign(seen, (k, i), apply("neg", load(x, (k, i)))),))
    found = argmax_stage(seen, searched.results, i)
    program = LoopProgram(
        "both", (x,), (seen, *searched.results), lower_nest((i,), (stored, replace(found, axes=())))
    )
    cached = Schedule(program).cache_write("seen", "i", "transposed")
    assert_same(program, cached.program, [np.arange(15, dtype=np.float32).reshape(5, 3) % 7])
