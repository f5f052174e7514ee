"""The primitives of `schedule/reduction.py`: examples, before and after, and refusals."""

from __future__ import annotations

import numpy as np
import pytest

from hlo_mlc.expr import index
from hlo_mlc.expr.build import load, variable
from hlo_mlc.expr.core import Var
from hlo_mlc.expr.dtypes import F32
from hlo_mlc.loops.interpret import interpret
from hlo_mlc.loops.text import body_text
from hlo_mlc.schedule.core import Schedule
from hlo_mlc.tensor.core import Assign, Stage
from making.rewritten import ONE, TWO, after, argmax, refuses, shows


def test_rfactor(total) -> None:
    shows(
        Schedule(total).rfactor("k", 8, 2).program,
        """
        alloc add.acc: f32 register:
          add.acc[] = 0.0:f32
          alloc add.acc.k: 2x8xf32 register:
            for k.u in 0..2 unroll:
              for k.v in 0..8 vectorize:
                add.acc.k[k.u, k.v] = -0.0:f32
            for k.o in 0..2:
              for k.u in 0..2 unroll:
                for k.v in 0..8 vectorize:
                  add.acc.k[k.u, k.v] <- add x[k.o * 16 + k.u * 8 + k.v]
            for k.v in 0..8 vectorize:
              add.acc.k[0, k.v] <- add x[k.v + 32]
            for k.v in 0..8 vectorize:
              add.acc.k[1, k.v] <- add x[k.v + 40] where k.v < 3
            for k.v in 0..8 vectorize:
              add.acc.k[0, k.v] <- add add.acc.k[1, k.v]
              add.acc[] <- add add.acc.k[0, k.v]
          y[] = add.acc[]
        """,
    )


@pytest.mark.parametrize("extent", [1, 3, 4, 7, 8, 9, 31, 32, 33])
@pytest.mark.parametrize("lanes, count", [(1, 1), (1, 3), (4, 1), (4, 2), (4, 5)])
def test_rfactor_adds_every_term_once(tiny, extent, lanes, count) -> None:
    x, y = tiny.operand("x", extent), tiny.result("y")
    program = tiny.program(tiny.fold(y, "", "k", extent, lambda k: load(x, (k,))))
    values = 2.0 ** (np.arange(extent, dtype=np.float32) % 20)
    (result,) = interpret(Schedule(program).rfactor("k", lanes, count).program, [values])
    assert result == values.sum()


def test_rfactor_keeps_partial_results_outside_of_loops_that_go_on(grand_total) -> None:
    shows(
        Schedule(grand_total).rfactor("j", 4).program,
        """
        alloc add.acc: f32 register:
          add.acc[] = 0.0:f32
          alloc add.acc.j: 1x4xf32 register:
            for j.v in 0..4 vectorize:
              add.acc.j[0, j.v] = -0.0:f32
            for i in 0..4:
              for j.o in 0..5:
                for j.v in 0..4 vectorize:
                  add.acc.j[0, j.v] <- add x[i, j.o * 4 + j.v]
            for j.v in 0..4 vectorize:
              add.acc[] <- add add.acc.j[0, j.v]
          y[] = add.acc[]
        """,
    )


@pytest.mark.parametrize("extent", [4, 11, 16, 37])
def test_rfactor_without_identity_starts_from_the_first_terms(extent) -> None:
    values = np.array([(k * 7) % 5 for k in range(extent)], np.float32)
    program = Schedule(argmax(extent)).rfactor("k", 4, 2).program
    assert "-inf" not in body_text(program.body)
    best, where = interpret(program, [values])
    assert (best, where) == (values.max(), values.argmax())


def test_rfactor_into_one_partial_result_keeps_the_order(tiny) -> None:
    k, scale, shift = variable("k", 7), Var("scale", F32), Var("shift", F32)
    x, y, z = tiny.operand("x", 2, 7), tiny.result("y"), tiny.result("z")
    stage = Stage(
        "maps",
        (),
        (Assign(y, (), scale), Assign(z, (), shift)),
        (k,),
        after(),
        tuple(load(x, (index.constant(n), k)) for n in range(2)),
        (ONE, TWO),
        (scale, shift),
    )
    program = tiny.program(stage)
    refuses(lambda: Schedule(program).rfactor("k", 2), "does not commute")
    refuses(lambda: Schedule(program).rfactor("k", 1, 2), "does not commute")
    inner = Schedule(program).split("k", 3).rfactor("k.i", 1).program
    values = np.array([[1, 2, 3, 4, 5, 6, 7], [7, 1, 6, 2, 5, 3, 4]], np.float32)
    np.testing.assert_array_equal(interpret(inner, [values]), interpret(program, [values]))


def test_rfactor_refuses(total, grand_total, copy) -> None:
    refuses(lambda: Schedule(copy).rfactor("i", 4), "does not reduce")
    refuses(lambda: Schedule(total).rfactor("k", 65), "1 to 64 lanes")
    refuses(lambda: Schedule(argmax(3)).rfactor("k", 4), "at least 4 unguarded terms", "identity")
    shortened = Schedule(total).split("k", 5, "shorten")
    refuses(lambda: shortened.rfactor("k.i", 4), "needs a constant extent")
    refuses(lambda: Schedule(grand_total).rfactor("i", 4), "hold only stores and updates")
