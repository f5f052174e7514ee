"""Calls: one program on many buffers, for the interpreter, the verifier and the analysis."""

from __future__ import annotations

import numpy as np
import pytest

from hlo_mlc.expr import index
from hlo_mlc.expr.build import const, load, variable
from hlo_mlc.expr.core import Buffer
from hlo_mlc.expr.dtypes import BOOL, F32
from hlo_mlc.loops.core import Accumulate, Call, For, If, LoopKind, LoopProgram, Store
from hlo_mlc.loops.dependence import Memory, accesses, carried, variables
from hlo_mlc.loops.interpret import interpret
from hlo_mlc.loops.prove import prove
from hlo_mlc.loops.rewrite import inline_calls
from hlo_mlc.loops.text import body_text, program_text
from hlo_mlc.loops.verify import verify
from hlo_mlc.support.errors import VerifyError
from hlo_mlc.tensor.combine import named_combiner


def vector(name: str, scope: str = "scratch", extent: int = 4) -> Buffer:
    return Buffer(name, F32, (extent,), scope)


def serial(extent: int, name: str, *body) -> For:
    return For(variable(name, extent), index.constant(extent), LoopKind.SERIAL, body)


P, Q = vector("p", "operand"), vector("q", "result")
AT = variable("x0", 4)
ADD_TO = LoopProgram(
    "add_to",
    (P,),
    (Q,),
    (serial(4, "x0", Accumulate((Q,), (AT,), named_combiner("add", F32), (load(P, (AT,)),))),),
)
X, Y, T = vector("x", "operand"), vector("y", "result"), vector("t")


def test_a_call_works_on_the_buffers_that_it_is_given() -> None:
    program = LoopProgram(
        "twice",
        (X,),
        (Y, vector("z", "result")),
        (Call(ADD_TO, (X, Y)), Call(ADD_TO, (X, Y)), Call(ADD_TO, (Y, vector("z", "result")))),
    )
    assert body_text(inline_calls(program.body)).splitlines()[1::2] == [
        "  y[x0] <- add x[x0]",
        "  y[x0] <- add x[x0]",
        "  z[x0] <- add y[x0]",
    ]
    verify(program)


@pytest.mark.parametrize("sides", [(True, True), (True, False), (False, True), (False, False)])
def test_either_side_of_a_branch_may_call_what_fills_a_result(sides) -> None:
    zero = LoopProgram("clear", (), (Q,), (serial(4, "x0", Store(Q, (AT,), const(0.0, F32))),))
    flag, k = Buffer("flag", BOOL, (), "operand"), variable("k", 4)

    def filled(calls: bool) -> Call | For:
        return Call(zero, (Y,)) if calls else serial(4, "k", Store(Y, (k,), const(1.0, F32)))

    then, otherwise = map(filled, sides)
    both = If(load(flag, ()), (then,), (otherwise,))
    prove(LoopProgram("either", (flag,), (Y,), (both,)))
    with pytest.raises(VerifyError, match="every element of y: 4xf32 result is written"):
        prove(LoopProgram("one", (flag,), (Y,), (If(load(flag, ()), (then,)),)))


def test_results_of_a_called_program_may_hold_values_already() -> None:
    repeat = serial(3, "n", Call(ADD_TO, (X, T)))
    k = variable("k", 4)
    zero = LoopProgram("clear", (), (Q,), (serial(4, "x0", Store(Q, (AT,), const(0.0, F32))),))
    copy = serial(4, "k", Store(Y, (k,), load(T, (k,))))
    program = LoopProgram("thrice", (X,), (Y,), (Call(zero, (T,)), repeat, copy), ((T, 0),))
    verify(program)
    values = np.arange(4, dtype=np.float32)
    assert interpret(program, [values])[0].tolist() == [0, 3, 6, 9]


def test_a_call_works_on_a_part_of_an_operand() -> None:
    rows = Buffer("rows", F32, (3, 4), "operand")
    calls = tuple(Call(ADD_TO, (rows, Y), ((n,),)) for n in (2, 0))
    k = variable("k", 4)
    clear = serial(4, "k", Store(Y, (k,), const(0.0, F32)))
    program = LoopProgram("some", (rows,), (Y,), (clear, *calls))
    verify(program)
    assert "call add_to(rows[2], y)" in program_text(program)
    assert "y[x0] <- add rows[2, x0]" in body_text(inline_calls(calls))
    values = np.arange(12, dtype=np.float32).reshape(3, 4)
    assert interpret(program, [values])[0].tolist() == [8, 10, 12, 14]


def test_text_says_what_is_called() -> None:
    program = LoopProgram("twice", (X,), (Y,), (Call(ADD_TO, (X, Y)), Call(ADD_TO, (X, Y))))
    assert program_text(program).count("call add_to(x, y)") == 2
    assert program_text(program).count("kernel add_to(p: 4xf32) -> (q: 4xf32)") == 1


def test_the_analysis_looks_into_calls() -> None:
    call = Call(ADD_TO, (X, Y))
    assert {a.buffer.name for a in accesses((call,))} == {"x", "y"}
    assert variables((call,)) == {AT}
    again = For(variable("n", 3), index.constant(3), LoopKind.SERIAL, (call,))
    assert carried(again, Memory({}, {})) is not None


@pytest.mark.parametrize("places", [((4,),), ((-1,),), ((0, 0, 0),), ((0,), (0,))])
def test_parts_that_do_not_exist_are_refused(places) -> None:
    rows, results = Buffer("rows", F32, (3, 4), "operand"), Buffer("ys", F32, (2, 4), "result")
    program = LoopProgram("test", (rows,), (results,), (Call(ADD_TO, (rows, results), places),))
    with pytest.raises(VerifyError, match="expected parts of operands"):
        verify(program)


@pytest.mark.parametrize(
    "buffers, callee, reason",
    [
        ((X, vector("w", "result", 5)), ADD_TO, "expected buffers like"),
        ((X,), ADD_TO, "expected buffers like"),
        ((X, Y), LoopProgram("s", (P,), (Q,), (), ((T, 0),)), "expected s to need no scratch"),
        ((X, X), ADD_TO, "x is an operand, which is never written"),
        ((X, vector("w")), ADD_TO, "w: 4xf32 scratch does not exist here"),
    ],
)
def test_calls_that_do_not_fit_are_refused(buffers, callee, reason) -> None:
    program = LoopProgram("test", (X,), (Y,), (Call(callee, buffers),))
    with pytest.raises(VerifyError) as caught:
        verify(program)
    assert reason in str(caught.value)
