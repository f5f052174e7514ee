"""The primitives of `schedule/cascade.py`: examples, before and after, and refusals."""

from __future__ import annotations

import numpy as np
import pytest

from hlo_mlc.expr.build import load
from hlo_mlc.loops.interpret import interpret
from hlo_mlc.schedule.core import Schedule
from making.rewritten import argmax, refuses, shows
from making.verified import unproven


def test_cascade(tiny) -> None:
    x, y = tiny.operand("x", 40), tiny.result("y")
    program = tiny.program(tiny.fold(y, "", "k", 40, lambda k: load(x, (k,))))
    shows(
        Schedule(program).cascade(8).program,
        """
        alloc add.acc: f32 register:
          add.acc[] = 0.0:f32
          for k.r in 0..5:
            alloc add.acc.k: f32 register:
              add.acc.k[] = -0.0:f32
              for k in 0..8:
                add.acc.k[] <- add x[k + k.r * 8]
              add.acc[] <- add add.acc.k[]
          y[] = add.acc[]
        """,
    )


def test_cascade_counts_the_terms_of_loops_that_go_on(grand_total) -> None:
    """4 x 20 terms in vectors of 4: the loop over rows goes on with the sums of the inner one."""
    shows(
        Schedule(grand_total).rfactor("j", 4).cascade(10).program,
        """
        alloc add.acc: f32 register:
          add.acc[] = 0.0:f32
          alloc add.acc.j: 1x4xf32 register:
            for j.v in 0..4 vectorize:
              add.acc.j[0, j.v] = -0.0:f32
            for i.r in 0..2:
              alloc add.acc.j.i: 1x4xf32 register:
                for j.v in 0..4 vectorize:
                  add.acc.j.i[0, j.v] = -0.0:f32
                for i in 0..2:
                  for j.o in 0..5:
                    for j.v in 0..4 vectorize:
                      add.acc.j.i[0, j.v] <- add x[i + i.r * 2, j.o * 4 + j.v]
                for j.v in 0..4 vectorize:
                  add.acc.j[0, j.v] <- add add.acc.j.i[0, j.v]
            for j.v in 0..4 vectorize:
              add.acc[] <- add add.acc.j[0, j.v]
          y[] = add.acc[]
        """,
    )


@pytest.mark.parametrize("extent", [1, 7, 8, 9, 31, 64, 65, 200, 1000])
@pytest.mark.parametrize("lanes, count, length", [(1, 1, 2), (1, 1, 4), (4, 2, 2), (4, 3, 5)])
def test_cascade_adds_every_term_once(tiny, extent, lanes, count, length) -> None:
    x, y = tiny.operand("x", extent), tiny.result("y")
    program = tiny.program(tiny.fold(y, "", "k", extent, lambda k: load(x, (k,))))
    schedule = Schedule(program).rfactor("k", lanes, count).cascade(length)
    assert unproven(schedule.program) == ()
    values = 2.0 ** (np.arange(extent, dtype=np.float32) % 14)
    (result,) = interpret(schedule.program, [values])
    assert result == values.sum()


def test_cascades_of_cascades(tiny) -> None:
    """A loop over runs of runs is not called as one around it is."""
    x, y = tiny.operand("x", 37), tiny.result("y")
    schedule = Schedule(tiny.program(tiny.fold(y, "", "k", 37, lambda k: load(x, (k,)))))
    values = 2.0 ** (np.arange(37, dtype=np.float32) % 14)
    for length in (6, 2, 2, 2):
        schedule = schedule.cascade(length)
        assert unproven(schedule.program) == ()
        (result,) = interpret(schedule.program, [values])
        assert result == values.sum()


def test_cascade_calls_nothing_as_what_is_there(grand_total, assert_same) -> None:
    apart = Schedule(grand_total).fold_apart("j").cascade(2)
    assert unproven(apart.program) == ()
    x = np.random.default_rng(0).integers(-99, 99, (4, 20)).astype(np.float32)
    assert_same(grand_total, apart.program, [x])


def test_cascade_leaves_alone_what_is_no_sum_of_floats(tiny) -> None:
    x, y = tiny.operand("x", 64), tiny.result("y")
    largest = tiny.program(tiny.fold(y, "", "k", 64, lambda k: load(x, (k,)), "max"))
    for program in (largest, argmax(64)):
        assert str(Schedule(program).cascade(4)) == str(Schedule(program))
    refuses(lambda: Schedule(largest).cascade(1), "at least 2 terms")
