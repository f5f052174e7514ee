"""The naive loops of a stage."""

from __future__ import annotations

import textwrap

import numpy as np

from hlo_mlc.expr.build import apply, const, load, variable
from hlo_mlc.expr.core import Buffer, Var
from hlo_mlc.expr.dtypes import F32
from hlo_mlc.loops.core import LoopProgram, Stmt
from hlo_mlc.loops.interpret import interpret
from hlo_mlc.loops.lower import lower_stage
from hlo_mlc.loops.text import body_text
from hlo_mlc.tensor.combine import named_combiner
from hlo_mlc.tensor.core import Assign, ScanAxis, Stage

X = Buffer("x", F32, (3, 4), "operand")
Y, Z = Buffer("y", F32, (3,), "result"), Buffer("z", F32, (3, 4), "result")


def row_sums(rows: int = 3, columns: int = 4) -> Stage:
    i, k, total = variable("i", rows), variable("k", columns), Var("total", F32)
    term = apply("exp", load(X, (i, k)))
    return Stage(
        "sums",
        (i,),
        (Assign(Y, (i,), apply("neg", total)),),
        (k,),
        named_combiner("add", F32),
        (term,),
        (const(2.0, F32),),
        (total,),
        (Assign(Z, (i, k), term),),
    )


def shows(statements: tuple[Stmt, ...], expected: str) -> None:
    assert body_text(statements) == textwrap.dedent(expected).lstrip("\n")


def test_a_map_stores_at_every_point() -> None:
    i, k = variable("i", 3), variable("k", 4)
    shows(
        lower_stage(Stage("copy", (k, i), (Assign(Z, (i, k), load(X, (i, k))),))),
        """
        for k in 0..4:
          for i in 0..3:
            z[i, k] = x[i, k]
        """,
    )


def test_a_reduction_runs_in_a_register_that_starts_once() -> None:
    shows(
        lower_stage(row_sums()),
        """
        for i in 0..3:
          alloc sums.total: f32 register:
            sums.total[] = 2.0:f32
            for k in 0..4:
              z[i, k] = exp(x[i, k])
              sums.total[] <- add exp(x[i, k])
            y[i] = neg(sums.total[])
        """,
    )


def test_a_scan_stores_at_every_step_from_either_end() -> None:
    k, i, total = variable("k", 4), variable("i", 3), Var("total", F32)
    for reverse, at in ((False, "k"), (True, "k * -1 + 3")):
        stage = Stage(
            "scan",
            (k, i),
            (Assign(Z, (i, k), total),),
            (),
            named_combiner("add", F32),
            (load(X, (i, k)),),
            (const(0.0, F32),),
            (total,),
            scan=ScanAxis(k, reverse),
        )
        shows(
            lower_stage(stage),
            f"""
            for i in 0..3:
              alloc scan.total: f32 register:
                scan.total[] = 0.0:f32
                for k in 0..4:
                  scan.total[] <- add x[i, {at}]
                  z[i, {at}] = scan.total[]
            """,
        )


def test_it_computes_what_the_stage_says() -> None:
    values = np.arange(12, dtype=np.float32).reshape(3, 4) / 8
    program = LoopProgram("sums", (X,), (Y, Z), lower_stage(row_sums()))
    sums, along = interpret(program, [values])
    np.testing.assert_allclose(along, np.exp(values), rtol=1e-6)
    np.testing.assert_allclose(sums, -(2 + np.exp(values).sum(1)), rtol=1e-6)


def test_nothing_to_reduce_leaves_the_initial_value() -> None:
    shows(
        lower_stage(row_sums(columns=0)),
        """
        for i in 0..3:
          alloc sums.total: f32 register:
            sums.total[] = 2.0:f32
            y[i] = neg(sums.total[])
        """,
    )


def test_no_points_no_loops() -> None:
    assert lower_stage(row_sums(rows=0)) == ()


def test_a_stage_without_axes_is_one_statement() -> None:
    s = Buffer("s", F32, (), "result")
    shows(lower_stage(Stage("one", (), (Assign(s, (), const(1.0, F32)),))), "s[] = 1.0:f32\n")
