"""The primitives of `schedule/jamming.py`: examples, before and after, and refusals."""

from __future__ import annotations

import numpy as np

from hlo_mlc.schedule.core import Schedule
from making.rewritten import in_tiles_of_four, refuses, shows


def test_jam(windows, signals, assert_same) -> None:
    grouped = windows.branch("i.i").jam(("i.i", "w"))
    shows(
        grouped.program,
        """
        for i.o in 0..2:
          alloc add.acc: 4xf32 register:
            for i.i in 0..4:
              add.acc[i.i] = 0.0:f32
            if (i.o * 4 + -1) >= 0:
              for k in 0..2:
                add.acc[0] <- add x[k, i.o * 4 + -1] * f[k, 0]
            for k in 0..2:
              add.acc[0] <- add x[k, i.o * 4] * f[k, 1]
              add.acc[0] <- add x[k, i.o * 4 + 1] * f[k, 2]
              add.acc[1] <- add x[k, i.o * 4] * f[k, 0]
              add.acc[1] <- add x[k, i.o * 4 + 1] * f[k, 1]
              add.acc[1] <- add x[k, i.o * 4 + 2] * f[k, 2]
              add.acc[2] <- add x[k, i.o * 4 + 1] * f[k, 0]
              add.acc[2] <- add x[k, i.o * 4 + 2] * f[k, 1]
            if (i.o * 4 + 3) < 7:
              for k in 0..2:
                add.acc[2] <- add x[k, i.o * 4 + 3] * f[k, 2]
                add.acc[3] <- add x[k, i.o * 4 + 2] * f[k, 0]
                add.acc[3] <- add x[k, i.o * 4 + 3] * f[k, 1]
            if ((i.o * 4 + 3) < 7) & ((i.o * 4 + 4) < 7):
              for k in 0..2:
                add.acc[3] <- add x[k, i.o * 4 + 4] * f[k, 2]
            for i.i.s in 0..4:
              y[i.i.s + i.o * 4] = add.acc[i.i.s] where (i.i.s + i.o * 4) < 7
        """,
    )
    order = windows.reorder("k", "i.i", "w").branch("k").version("i.i")
    for schedule in (
        grouped,
        order.jam(("i.i", "w")),
        order.jam(("i.i.e",), "w.e").jam(("i.i", "w")),
        windows.branch("i.i").jam(("i.i", "w"), "", 3),
        order.reorder("w.e", "i.i.e").jam(("i.i.e",)),
        windows.jam(("i.i",)),
        windows.jam(("w",)),
        windows.branch("i.i").jam(("i.i", "w"), "w"),
        windows.reorder("w", "i.i", "k").jam(("w", "i.i"), "k"),
    ):
        assert_same(windows.program, schedule.program, signals)


def test_jam_runs_loops_as_one(transposed, product, matrices, assert_same) -> None:
    shows(
        Schedule(transposed).split("i", 2).jam(("i.i",)).program,
        """
        for i.o in 0..2:
          for j in 0..8:
            y[i.o * 2, j] = x[j, i.o * 2]
            y[i.o * 2 + 1, j] = x[j, i.o * 2 + 1]
        """,
    )
    shows(
        Schedule(transposed).split("i", 2).split("j", 3).jam(("i.i",), "j.o").program,
        """
        for i.o in 0..2:
          for j.o in 0..2:
            for j.i in 0..3:
              y[i.o * 2, j.i + j.o * 3] = x[j.i + j.o * 3, i.o * 2]
            for j.i in 0..3:
              y[i.o * 2 + 1, j.i + j.o * 3] = x[j.i + j.o * 3, i.o * 2 + 1]
          for j.t in 0..2:
            y[i.o * 2, j.t + 6] = x[j.t + 6, i.o * 2]
            y[i.o * 2 + 1, j.t + 6] = x[j.t + 6, i.o * 2 + 1]
        """,
    )


def test_jam_asks_first(tiny, assert_same) -> None:
    """What is asked at both ends of a row: that one fails there means that the other one holds."""
    schedule = in_tiles_of_four(tiny, 8).reorder("w", "i.i", "k").branch("i.i").version("i.i")
    asked = schedule.jam(("i.i.e",), choices=2)
    shows(
        asked.program,
        """
        for i.o in 0..2:
          alloc add.acc: 4xf32 register:
            for i.i in 0..4:
              add.acc[i.i] = 0.0:f32
            for w in 0..3:
              if ((i.o * 4 + w + -1) >= 0) & ((i.o * 4 + w + -6) < 0):
                for i.i in 0..4:
                  if ((i.i + i.o * 4 + w + -1) >= 0) & ((i.i + i.o * 4 + w + -1) < 8):
                    for k in 0..2:
                      add.acc[i.i] <- add x[k, i.i + i.o * 4 + w + -1] * f[k, w]
              else:
                if (i.o * 4 + w + -1) >= 0:
                  for k.e in 0..2:
                    add.acc[0] <- add x[k.e, i.o * 4 + w + -1] * f[k.e, w]
                    add.acc[1] <- add x[k.e, i.o * 4 + w] * f[k.e, w]
                    add.acc[2] <- add x[k.e, i.o * 4 + w + 1] * f[k.e, w]
                else:
                  for k.e in 0..2:
                    add.acc[1] <- add x[k.e, i.o * 4 + w] * f[k.e, w]
                    add.acc[2] <- add x[k.e, i.o * 4 + w + 1] * f[k.e, w]
                    add.acc[3] <- add x[k.e, i.o * 4 + w + 2] * f[k.e, w]
            for i.i.s in 0..4:
              y[i.i.s + i.o * 4] = add.acc[i.i.s]
        """,
    )
    signals = [
        np.arange(16, dtype=np.float32).reshape(2, 8),
        np.arange(6, dtype=np.float32).reshape(2, 3),
    ]
    assert_same(schedule.program, asked.program, signals)
    in_turn = schedule.jam(("i.i.e",), choices=1)
    assert str(in_turn.program) == str(schedule.jam(("i.i.e",)).program)


def test_jam_refuses(running, transposed, column_sums) -> None:
    refuses(lambda: Schedule(running).jam(("i",)), "would change the order in which")
    refuses(lambda: column_sums.jam(("i",)), "holds add.acc", "expand first")
    refuses(lambda: Schedule(transposed).jam(()), "names of different loops")
    refuses(lambda: Schedule(transposed).jam(("i", "i")), "names of different loops")
    refuses(lambda: Schedule(transposed).jam(("i", "z")), "no loop is called 'z'")
    refuses(lambda: Schedule(transposed).vectorize("i").jam(("i",)), "must be serial or unroll")
    refuses(lambda: column_sums.jam(("i", "k")), "not perfectly nested")
