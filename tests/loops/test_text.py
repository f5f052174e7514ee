"""The text of loop programs: readable, canonical, and as small as the program."""

from __future__ import annotations

import textwrap

from hlo_mlc.expr import index
from hlo_mlc.expr.build import TRUE, apply, const, load, variable
from hlo_mlc.expr.combiner import Combiner
from hlo_mlc.expr.core import Buffer, Const, Var
from hlo_mlc.expr.dtypes import F32, I32
from hlo_mlc.loops.core import Accumulate, Allocate, For, If, LoopKind, LoopProgram, Store, While
from hlo_mlc.loops.text import body_text, headline, program_text
from hlo_mlc.tensor.combine import named_combiner

X, Y = Buffer("x", F32, (8, 4), "operand"), Buffer("y", F32, (8,), "result")
ROW, COLUMN = variable("i", 8), variable("j", 4)
ACC = Buffer("acc", F32, (), "register")
ZERO = const(0.0, F32)
FIRST, SECOND = index.constant(0), index.constant(1)


def test_a_whole_program() -> None:
    before = apply("ge", ROW, index.constant(1))
    body = (
        For(
            ROW,
            index.constant(8),
            LoopKind.PARALLEL,
            (
                Allocate(
                    ACC,
                    (
                        Store(ACC, (), ZERO),
                        For(
                            COLUMN,
                            index.constant(4),
                            LoopKind.VECTORIZE,
                            (
                                Accumulate(
                                    (ACC,),
                                    (),
                                    named_combiner("add", F32),
                                    (load(X, (ROW, COLUMN)),),
                                    apply("lt", COLUMN, index.constant(3)),
                                ),
                            ),
                        ),
                        Store(Y, (ROW,), load(ACC, ()), before, streaming=True),
                    ),
                ),
            ),
        ),
        If(
            apply("lt", load(Y, (FIRST,)), ZERO),
            (Store(Y, (FIRST,), ZERO),),
            (While(apply("gt", load(Y, (SECOND,)), ZERO), (Store(Y, (SECOND,), ZERO),)),),
        ),
    )
    tiles = Buffer("t", F32, (2, 3))
    program = LoopProgram("rows", (X,), (Y,), body, ((tiles, 64),), ((Y, X),))
    assert program_text(program) == textwrap.dedent("""\
        kernel rows(x: 8x4xf32) -> (y: 8xf32)
          scratch t: 2x3xf32 at byte 64
          alias y = x
          for i in 0..8 parallel:
            alloc acc: f32 register:
              acc[] = 0.0:f32
              for j in 0..4 vectorize:
                acc[] <- add x[i, j] where j < 3
              y[i] = acc[] where i >= 1 streaming
          if y[0] < 0.0:f32:
            y[0] = 0.0:f32
          else:
            while y[1] > 0.0:f32:
              y[1] = 0.0:f32
        """)


def test_shared_values_are_named_so_that_text_stays_linear() -> None:
    value = load(X, (ROW, COLUMN))
    for _ in range(100):
        value = apply("sin", apply("add", value, value))
    text = body_text((Store(Y, (ROW,), value),))
    assert text.startswith("%0 = sin(x[i, j] + x[i, j])\n%1 = ")
    assert len(text) < 100 * 40


def test_a_combiner_that_is_no_single_op_is_written_out() -> None:
    a, i, b, j = Var("a", F32), Var("i", I32), Var("b", F32), Var("j", I32)
    wins = apply("gt", a, b)
    combiner = Combiner(
        (a, i),
        (b, j),
        (apply("select", wins, a, b), apply("select", wins, i, j)),
        (Const(0.0, F32), Const(7, I32)),
    )
    other = Buffer("at", I32, (), "register")
    line = headline(Accumulate((ACC, other), (), combiner, (ZERO, const(1, I32))))
    assert line == (
        "acc[], at[] <- {(a: f32, i: i32, b: f32, j: i32) select(a > b, a, b), "
        "select(a > b, i, j) identity 0.0:f32, 7:i32} 0.0:f32, 1:i32"
    )


def test_guarded_loads_and_statements_cannot_be_confused() -> None:
    inside, late = apply("lt", COLUMN, index.constant(3)), apply("ge", ROW, index.constant(2))
    both = Store(Y, (ROW,), load(X, (ROW, COLUMN), inside, ZERO), late)
    assert headline(both) == "y[i] = x[i, j] if j < 3 else 0.0:f32 where i >= 2"
    product = Store(Y, (ROW,), apply("mul", load(X, (ROW, COLUMN), inside, ZERO), load(Y, (ROW,))))
    assert headline(product) == "y[i] = (x[i, j] if j < 3 else 0.0:f32) * y[i]"
    assert headline(Store(Y, (ROW,), load(X, (ROW, COLUMN), TRUE, ZERO))) == "y[i] = x[i, j]"
