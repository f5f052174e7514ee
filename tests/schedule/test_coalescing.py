"""The primitives of `schedule/coalescing.py`: examples, before and after, and refusals."""

from __future__ import annotations

import numpy as np

from hlo_mlc.expr import index
from hlo_mlc.expr.build import apply, load, variable
from hlo_mlc.expr.core import Buffer, Var
from hlo_mlc.expr.dtypes import F32
from hlo_mlc.loops.core import Allocate, For, LoopKind, LoopProgram, Store
from hlo_mlc.schedule.core import Schedule
from making.rewritten import ONE, refuses, shows


def test_coalesce(tiny, assert_same) -> None:
    x, y = tiny.operand("x", 4, 8), tiny.result("y", 8, 4)
    program = tiny.program(tiny.map(y, "ji", lambda j, i: load(x, (i, j)), order=(1, 0)))
    cached = Schedule(program).cache_write("y", "i")
    shows(
        cached.coalesce("y.i").program,
        """
        for i in 0..4:
          for j in 0..8:
            y[j, i] = x[i, j]
        """,
    )
    within = cached.split("i", 3).split("j", 5).coalesce("y.i").vectorize("j.i")
    assert_same(program, within.program, [np.arange(32, dtype=np.float32).reshape(4, 8)])


def test_coalesce_refuses(tiny, running) -> None:
    x, y, z = tiny.operand("x", 8), tiny.result("y", 8), tiny.result("z", 8)
    a, i, j = Buffer("a", F32, (8,), "stack"), variable("i", 8), variable("j", 8)

    def each(v: Var, *body: Store) -> For:
        return For(v, index.constant(8), LoopKind.SERIAL, body)

    def program(*body: For) -> Schedule:
        return Schedule(LoopProgram("copies", (x,), (y, z), (Allocate(a, body),)))

    fill, copied = each(i, Store(a, (i,), load(x, (i,)))), each(j, Store(y, (j,), load(a, (j,))))
    assert program(fill, copied).coalesce("a").loop_names == ("i",)
    refuses(lambda: program(fill, copied).coalesce("b"), "no private buffer is called 'b'", "a")
    refuses(lambda: program(fill).coalesce("a"), "not copied as a whole")
    half = each(j, Store(y, (index.floordiv(j, 2),), load(a, (j,))))
    refuses(lambda: program(fill, half).coalesce("a"), "several elements to one place")
    refuses(
        lambda: program(
            fill, copied, each(i, Store(z, (i,), load(a, (i,))), Store(a, (i,), ONE))
        ).coalesce("a"),
        "not the last",
    )
    refuses(
        lambda: program(each(i, Store(y, (i,), ONE)), fill, copied).coalesce("a"),
        "copies to where `y[i] = 1.0:f32` is",
    )
    assert program(each(i, Store(y, (i,), ONE)), fill, copied).program.body
    guarded = each(j, Store(y, (j,), load(a, (j,)), apply("lt", j, index.constant(3))))
    refuses(lambda: program(fill, guarded).coalesce("a"), "not copied as a whole")
