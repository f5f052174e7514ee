"""Procedures as they are spelled, and the rules that stages with one keep."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hlo_mlc.expr import index
from hlo_mlc.expr.build import apply, const, load, variable
from hlo_mlc.expr.combiner import NOTHING
from hlo_mlc.expr.core import Buffer
from hlo_mlc.expr.dtypes import F32, F64
from hlo_mlc.expr.procedure import Count, Put
from hlo_mlc.loops.core import LoopProgram
from hlo_mlc.loops.interpret import interpret
from hlo_mlc.loops.lower import lower_stage
from hlo_mlc.ops.elements import Complex, times
from hlo_mlc.ops.steps import Steps
from hlo_mlc.support.errors import VerifyError
from hlo_mlc.tensor.core import Assign, Nest, Stage, TensorProgram
from hlo_mlc.tensor.text import program_text
from hlo_mlc.tensor.verify import verify

X, Y = Buffer("x", F32, (3, 4), "operand"), Buffer("y", F32, (3, 4), "result")
POINT, PLACE = variable("i", 3), variable("j", 4)


def running_sums(is_written_out: bool = False) -> Steps:
    """Of each row of X, in place."""
    s = Steps(F32, is_complex=False, is_written_out=is_written_out)
    sums = s.array("sums", 4)
    for k in s.each("k", 0, 4):
        s.put(sums, k, load(X, (POINT, k)))
    for k in s.each("k", 1, 4):
        s.put(sums, k, apply("add", sums[k], sums[index.subtract(k, index.constant(1))]))
    return s


def stage_of(s: Steps) -> Stage:
    procedure = s.procedure()
    return Stage(
        "s",
        (POINT,),
        (),
        (PLACE,),
        NOTHING,
        along=(Assign(Y, (POINT, PLACE), load(procedure.arrays[0], (PLACE,))),),
        procedure=procedure,
    )


def program_of(stage: Stage) -> TensorProgram:
    return TensorProgram("k", (X,), (Y,), (), (Nest((stage,), 0),))


def test_a_procedure_runs_at_every_point() -> None:
    stage = stage_of(running_sums())
    verify(program_of(stage))
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    (y,) = interpret(LoopProgram("k", (X,), (Y,), lower_stage(stage)), [x])
    np.testing.assert_array_equal(y, np.cumsum(x, 1))


def test_it_is_spelled_step_by_step() -> None:
    assert program_text(program_of(stage_of(running_sums()))).splitlines()[3:] == [
        "  for i<3:",
        "    array sums: 4xf32 stack",
        "    for k below 4:",
        "      sums[k] = x[i, k]",
        "    for k below 3:",
        "      sums[k + 1] = sums[k + 1] + sums[k]",
        "    then over j<4:",
        "      y[i, j] = sums[j]",
    ]


def test_written_out_steps_are_expressions() -> None:
    s = running_sums(is_written_out=True)
    x = [load(X, (POINT, index.constant(k))) for k in range(4)]
    assert s.array("sums", 4)[3] is x[3] + (x[2] + (x[1] + x[0]))
    assert s.procedure().body == ()


def test_only_loops_that_repeat_are_loops() -> None:
    s = Steps(F32, is_complex=False)
    a = s.array("a", 4)
    one = const(1, F32)
    for first, end in ((0, 1), (2, 2), (3, 1)):
        for i in s.each("i", first, end):
            s.put(a, i, one)
    for i in s.each("i", 1, 3, down=True):
        s.put(a, i, one)
    for _ in s.each("i", 0, 4):
        pass
    i = variable("i", 2)
    assert s.procedure().body == (
        Put(a.buffer, (index.constant(0),), one),
        Count(i, index.constant(2), (Put(a.buffer, (index.subtract(index.constant(2), i),), one),)),
    )


def test_parts_of_complex_numbers_are_computed_before_either_is_put() -> None:
    s = Steps(F64, is_complex=True)
    a = s.array("a", 2)
    s.put(a, 0, Complex(const(1, F64), const(2, F64)))
    s.put(a, 0, times(a[0], a[0]))
    first, second, *squared = s.procedure().body
    assert {first.array, second.array} == {a.buffer}
    assert [move.array is a.buffer for move in squared] == [False, False, True, True]


def test_loops_that_run_less_and_less_often_cost_half() -> None:
    s = Steps(F32, is_complex=False)
    a = s.array("a", 8)
    for i in s.each("i", 0, 8):
        for j in s.each("j", i, 8):
            s.put(a, j, apply("add", a[i], a[j]))
    assert s.procedure().total(lambda _: 1) == 8 * 4


@pytest.mark.parametrize("fault", ["no array", "another type", "outside", "no variable"])
def test_what_breaks_a_rule_is_refused(fault: str) -> None:
    s = running_sums()
    k = variable("k", 4)
    array = s.procedure().arrays[0]
    move = {
        "no array": Put(Buffer("b", F32, (4,), "stack"), (k,), const(0, F32)),
        "another type": Put(array, (k,), const(0, F64)),
        "outside": Put(array, (k,), load(X, (POINT, index.add(k, index.constant(1))))),
        "no variable": Put(array, (variable("n", 4),), const(0, F32)),
    }[fault]
    stage = stage_of(s)
    faulty = replace(
        stage.procedure, body=(*stage.procedure.body, Count(k, index.constant(4), (move,)))
    )
    with pytest.raises(VerifyError, match=r"is no array|stay inside|defines n"):
        verify(program_of(replace(stage, procedure=faulty)))
