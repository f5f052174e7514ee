"""The primitives of `schedule/fission.py`: examples, before and after, and refusals."""

from __future__ import annotations

import textwrap
from dataclasses import replace

import numpy as np

from hlo_mlc.expr import index
from hlo_mlc.expr.build import load, variable
from hlo_mlc.loops.core import For, LoopKind, LoopProgram
from hlo_mlc.loops.lower import lower_stage
from hlo_mlc.loops.text import body_text
from hlo_mlc.schedule.core import Schedule
from making.rewritten import ONE, refuses, shows


def test_distribute(column_sums, assert_same) -> None:
    cut = column_sums.expand("i", "register").distribute("i", "k")
    shows(
        cut.program,
        """
        alloc add.acc: 6xf32 register:
          for i in 0..6:
            add.acc[i] = 0.0:f32
          for i in 0..6:
            for k in 0..8:
              add.acc[i] <- add x[k, i]
          for i in 0..6:
            y[i] = add.acc[i]
        """,
    )
    across = cut.reorder("k", "i").vectorize("i")
    assert [s.kind for s in across.loops("i")] == 3 * [LoopKind.VECTORIZE]
    assert_same(
        column_sums.program, across.program, [np.arange(48, dtype=np.float32).reshape(8, 6)]
    )


def test_distribute_with_a_name_for_what_is_behind(column_sums) -> None:
    shows(
        column_sums.expand("i", "register").distribute("i", "k", "late").program,
        """
        alloc add.acc: 6xf32 register:
          for i in 0..6:
            add.acc[i] = 0.0:f32
            for k in 0..8:
              add.acc[i] <- add x[k, i]
          for i.late in 0..6:
            y[i.late] = add.acc[i.late]
        """,
    )


def test_distribute_refuses(tiny, chain, column_sums) -> None:
    """The second of two stages needs what the next iteration of the first overwrites."""
    refuses(lambda: Schedule(chain).distribute("i", "j"), "must hold the loop j")
    refuses(lambda: column_sums.distribute("i", "k"), "must hold the loop k")
    a, y = tiny.result("a", 1), tiny.result("y", 8, 4)
    fill = tiny.map(a, "z", lambda z: ONE)
    use = tiny.map(y, "ij", lambda i, j: load(a, (index.constant(0),)))
    i = variable("i", 8)
    body = (*lower_stage(fill), *lower_stage(replace(use, axes=use.axes[1:])))
    program = LoopProgram("kept", (), (a, y), (For(i, index.constant(8), LoopKind.SERIAL, body),))
    refuses(lambda: Schedule(program).distribute("i", "j"), "carries a dependence")
    assert len(Schedule(program, checked=False).distribute("i", "j").loops("i")) == 2


def test_distribute_each_statement(tiny, assert_same) -> None:
    x, y, z = tiny.operand("x", 4, 8), tiny.result("y", 4, 8), tiny.result("z", 4, 8)
    program = tiny.program(
        tiny.map(y, "ij", lambda i, j: load(x, (i, j))),
        tiny.map(z, "kl", lambda k, m: load(x, (k, m))),
    )
    both = Schedule(program).fuse_loops("i", "k").fuse_loops("j", "l")
    shows(
        both.distribute("i").program,
        """
        for i in 0..4:
          for j in 0..8:
            y[i, j] = x[i, j]
        for i in 0..4:
          for j in 0..8:
            z[i, j] = x[i, j]
        """,
    )
    refuses(lambda: Schedule(program).distribute("i"), "must hold several statements")
    turned = tiny.program(
        tiny.map(y, "ij", lambda i, j: load(x, (i, j))),
        tiny.map(z, "kl", lambda k, m: load(y, (k, m))),
    )
    assert len(Schedule(turned).fuse_loops("i", "k").distribute("i").loops("i")) == 2


def test_sink(rising, assert_same) -> None:
    sunk = rising.expand("i", "stack").sink("i")
    assert body_text(sunk.program.body).endswith(
        textwrap.dedent("""
        alloc p: 8xf32 stack:
          for k in 0..4:
            for i in 0..8:
              p[i] = a[i, k, k]
            for j in 0..k:
              for i in 0..8:
                b[i, k, j] = p[i] * 2.0:f32
          for i in 0..8:
            y[i] = p[i]
        """)
    )
    assert_same(
        rising.program,
        sunk.vectorize("i").program,
        [np.arange(128, dtype=np.float32).reshape(8, 4, 4)],
    )


def test_sink_refuses(rising, running) -> None:
    refuses(lambda: Schedule(running).sink("j"), "no loop is called 'j'")
    refuses(lambda: rising.sink("k"), "sink", "carries a dependence")
    refuses(lambda: Schedule(rising.program, checked=False).sink("k"), "that depends on k")
    assert str(rising.sink("i")) == str(rising), "what is private stays inside"
