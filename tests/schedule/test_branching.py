"""The primitives of `schedule/branching.py`: examples, before and after, and refusals."""

from __future__ import annotations

from hlo_mlc.expr import index
from hlo_mlc.expr.build import load
from hlo_mlc.schedule.core import Schedule
from making.rewritten import ONE, refuses, shows


def test_branch(windows, signals, assert_same) -> None:
    around = windows.branch("i.i")
    shows(
        around.program,
        """
        for i.o in 0..2:
          alloc add.acc: 4xf32 register:
            for i.i in 0..4:
              add.acc[i.i] = 0.0:f32
            for i.i in 0..4:
              if (i.i + i.o * 4) < 7:
                for w in 0..3:
                  if ((i.i + i.o * 4 + w + -1) >= 0) & ((i.i + i.o * 4 + w + -1) < 7):
                    for k in 0..2:
                      add.acc[i.i] <- add x[k, i.i + i.o * 4 + w + -1] * f[k, w]
            for i.i.s in 0..4:
              y[i.i.s + i.o * 4] = add.acc[i.i.s] where (i.i.s + i.o * 4) < 7
        """,
    )
    stored = around.branch("i.i.s")
    assert "if (i.i.s + i.o * 4) < 7:" in str(stored) and "where" not in str(stored)
    for schedule in (
        around,
        stored,
        windows.branch("i.o"),
        windows.vectorize("k").branch("i.i"),
        windows.reorder("k", "i.i", "w").branch("k"),
    ):
        assert_same(windows.program, schedule.program, signals)
    # Lanes of a vector do not agree.
    lanes = windows.reorder("k", "w", "i.i").vectorize("i.i").branch("k")
    assert "if" not in str(lanes).split("for k")[1].split("<-")[0]
    assert_same(windows.program, lanes.program, signals)
    outside = windows.vectorize("i.i")
    for schedule in (outside.branch("w"), outside.version("w")):
        assert str(schedule) == str(outside)


def test_branch_around_several_statements(column_sums, assert_same) -> None:
    """What all of them need is asked once."""
    masked = column_sums.split("i", 4, "mask").split("k", 3)
    shows(
        masked.expand("i.i", "register")
        .distribute("i.i", "k.o")
        .reorder("k.o", "i.i")
        .reorder("k.o", "k.i", "i.i")
        .branch("i.i")
        .program,
        """
        for i.o in 0..2:
          alloc add.acc: 4xf32 register:
            for i.i in 0..4:
              add.acc[i.i] = 0.0:f32
            for k.o in 0..2:
              for k.i in 0..3:
                for i.i in 0..4:
                  if (i.i + i.o * 4) < 6:
                    add.acc[i.i] <- add x[k.i + k.o * 3, i.i + i.o * 4]
            for i.i in 0..4:
              if (i.i + i.o * 4) < 6:
                for k.t in 0..2:
                  add.acc[i.i] <- add x[k.t + 6, i.i + i.o * 4]
                y[i.i + i.o * 4] = add.acc[i.i]
        """,
    )


def test_branch_where_there_is_nothing_to_ask(copy) -> None:
    assert str(Schedule(copy).branch("i")) == str(Schedule(copy))
    refuses(lambda: Schedule(copy).branch("z"), "no loop is called 'z'")


def test_branch_leaves_padding_that_counts(tiny) -> None:
    x, y = tiny.operand("x", 6), tiny.result("y")
    program = tiny.program(
        tiny.fold(
            y, "", "k", 8, lambda k: load(x, (k,), index.compare("lt", k, index.constant(6)), ONE)
        )
    )
    assert str(Schedule(program).branch("k")) == str(Schedule(program))


def test_version(windows, signals, assert_same) -> None:
    once = windows.reorder("k", "i.i", "w").branch("k").version("i.i")
    shows(
        once.program,
        """
        for i.o in 0..2:
          alloc add.acc: 4xf32 register:
            for i.i in 0..4:
              add.acc[i.i] = 0.0:f32
            for k in 0..2:
              if (((i.o * 4 + -4) < 0) & ((i.o * 4 + -1) >= 0)) & ((i.o * 4 + -3) < 0):
                for i.i in 0..4:
                  if (i.i + i.o * 4) < 7:
                    for w in 0..3:
                      if ((i.i + i.o * 4 + w + -1) >= 0) & ((i.i + i.o * 4 + w + -1) < 7):
                        add.acc[i.i] <- add x[k, i.i + i.o * 4 + w + -1] * f[k, w]
              else:
                for i.i.e in 0..4:
                  if (i.i.e + i.o * 4) < 7:
                    for w.e in 0..3:
                      if ((i.i.e + i.o * 4 + w.e + -1) >= 0) & ((i.i.e + i.o * 4 + w.e + -1) < 7):
                        add.acc[i.i.e] <- add x[k, i.i.e + i.o * 4 + w.e + -1] * f[k, w.e]
            for i.i.s in 0..4:
              y[i.i.s + i.o * 4] = add.acc[i.i.s] where (i.i.s + i.o * 4) < 7
        """,
    )
    guarded = windows.version("w")
    assert_same(windows.program, once.program, signals)
    assert_same(windows.program, guarded.program, signals)


def test_version_where_nothing_is_asked(copy, transposed) -> None:
    for program in (copy, transposed):
        assert str(Schedule(program).version("i")) == str(Schedule(program))
    refuses(lambda: Schedule(copy).version("z"), "no loop is called 'z'")
