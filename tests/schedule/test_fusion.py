"""The primitives of `schedule/fusion.py`: examples, before and after, and refusals."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hlo_mlc.expr import index
from hlo_mlc.expr.build import apply, load
from hlo_mlc.loops.core import LoopProgram
from hlo_mlc.schedule.core import Schedule
from hlo_mlc.tensor.core import Stage
from making.rewritten import minus, refuses, shows


def test_fuse_loops(chain) -> None:
    shows(
        Schedule(chain).fuse_loops("i", "j").program,
        """
        for i in 0..8:
          a[i] = x[i] + 1.0:f32
          b[i] = a[i] * 2.0:f32
        """,
    )


def test_fuse_loops_opens_the_scopes_of_two_reductions(tiny) -> None:
    x, s, t = tiny.operand("x", 8), tiny.result("s"), tiny.result("t")
    first = tiny.fold(s, "", "k", 8, lambda k: load(x, (k,)))
    second = tiny.fold(t, "", "m", 8, lambda m: load(x, (m,)), "max")
    program = Schedule(tiny.program(first, second)).fuse_loops("k", "m").program
    shows(
        program,
        """
        alloc add.acc: f32 register:
          alloc max.acc: f32 register:
            add.acc[] = 0.0:f32
            max.acc[] = 0.0:f32
            for k in 0..8:
              add.acc[] <- add x[k]
              max.acc[] <- max x[k]
            s[] = add.acc[]
            t[] = max.acc[]
        """,
    )


def test_fuse_loops_of_one_name_under_one_condition(tiny, assert_same) -> None:
    x, y = tiny.operand("x", 4, 10), tiny.result("y", 10)
    program = tiny.program(
        tiny.map(
            y,
            "i",
            lambda i: apply(
                "sub", load(x, (index.constant(1), i)), load(x, (index.constant(3), i))
            ),
        )
    )
    tiles = Schedule(program).split("i", 4, "guard").cache_read("x", "i.o", "loops")
    joined = tiles.fuse_loops("x.i.o.i.i", "x.i.o.i.i")
    shows(
        joined.program,
        """
        for i.o in 0..3:
          alloc x.i.o: 4xf32 stack:
            alloc x.i.o.1: 4xf32 stack:
              for x.i.o.i.i in 0..4:
                if (i.o * 4 + x.i.o.i.i) < 10:
                  x.i.o[x.i.o.i.i] = x[1, i.o * 4 + x.i.o.i.i]
                  x.i.o.1[x.i.o.i.i] = x[3, i.o * 4 + x.i.o.i.i]
              for i.i in 0..4:
                if (i.i + i.o * 4) < 10:
                  y[i.i + i.o * 4] = x.i.o[i.i] - x.i.o.1[i.i]
        """,
    )
    assert_same(program, joined.program, [np.arange(40, dtype=np.float32).reshape(4, 10)])
    refuses(lambda: joined.fuse_loops("x.i.o.i.i", "x.i.o.i.i"), "after it")


def test_fuse_loops_refuses(tiny, chain, copy) -> None:
    x, a, b = tiny.operand("x", 8), tiny.result("a", 8), tiny.result("b", 8)
    fill = tiny.map(a, "i", lambda i: load(x, (i,)))
    backward = tiny.program(
        fill, tiny.map(b, "j", lambda j: load(a, (index.subtract(index.constant(7), j),)))
    )
    refuses(lambda: Schedule(backward).fuse_loops("i", "j"), "carries a dependence", "b[i]")
    shorter = tiny.program(fill, tiny.map(tiny.result("c", 7), "j", lambda j: load(a, (j,))))
    refuses(lambda: Schedule(shorter).fuse_loops("i", "j"), "must have the extent")
    refuses(lambda: Schedule(chain).fuse_loops("j", "i"), "after it")
    refuses(lambda: Schedule(copy).fuse_loops("i", "j"), "no loop is called 'j'")
    total = tiny.fold(tiny.result("s"), "", "k", 8, lambda k: load(a, (k,)))
    between = tiny.program(
        fill, total, tiny.map(b, "j", lambda j: load(total.assigns[0].buffer, ()))
    )
    refuses(lambda: Schedule(between).fuse_loops("i", "j"), "needs the one and is needed by")


def test_fuse_last(copy, transposed, assert_same) -> None:
    cut = Schedule(copy).split("i", 4)
    shows(
        cut.fuse_last("i.t", ("i.o",)).program,
        """
        for i.o in 0..2:
          for i.i in 0..4:
            y[i.i + i.o * 4] = x[i.i + i.o * 4]
          if i.o == 1:
            for i.t in 0..2:
              y[i.t + 8] = x[i.t + 8]
        """,
    )
    shows(
        cut.fuse_last("i.t", ("i.o", "i.i")).program,
        """
        for i.o in 0..2:
          for i.i in 0..4:
            y[i.i + i.o * 4] = x[i.i + i.o * 4]
            if (i.o == 1) & (i.i == 3):
              for i.t in 0..2:
                y[i.t + 8] = x[i.t + 8]
        """,
    )
    assert "if" not in str(Schedule(copy).split("i", 6).fuse_last("i.t", ("i.o",)))
    for factor in (3, 4, 7, 9):
        last = Schedule(copy).split("i", factor).fuse_last("i.t", ("i.o", "i.i"))
        bound = last.bind("i.o", "block").bind("i.i", "thread")
        for schedule in (last, bound):
            assert_same(copy, schedule.program, [np.arange(10, dtype=np.float32)])


def _twice(program: LoopProgram) -> Schedule:
    """A program that does the same again."""
    return Schedule(replace(program, body=program.body * 2))


def test_fuse_last_refuses(copy, transposed) -> None:
    cut = Schedule(copy).split("i", 4)
    refuses(lambda: cut.fuse_last("i.t", ()), "expected the loops")
    refuses(lambda: cut.fuse_last("i.o", ("i.t",)), "expected 'i.t' and right behind it 'i.o'")
    refuses(lambda: cut.fuse_last("i.t", ("i.o", "i.t")), "does not end with the loop i.t")
    refuses(lambda: cut.vectorize("i.i").fuse_last("i.t", ("i.o", "i.i")), "must be serial")
    inner = Schedule(transposed).split("i", 3, "shorten").split("i.i", 2)
    refuses(lambda: inner.fuse_last("i.i.t", ("i.i.o",)), "may have no iteration")
    refuses(lambda: _twice(copy).fuse_last("i", ("i",)), "has the variable of a loop of i")


def test_fuse_first(product, matrices, assert_same) -> None:
    hoisted = product.reorder("j", "i").hoist("i", "i")
    fused = hoisted.fuse_first("i.h.k", "k", "i")
    shows(
        fused.program,
        """
        for j in 0..6:
          alloc i.h: 8xf32 stack:
            for i in 0..4:
              alloc add.acc: f32 register:
                add.acc[] = 0.0:f32
                if i == 0:
                  for k in 0..8:
                    i.h[k] = exp(y[k, j])
                    add.acc[] <- add x[i, k] * i.h[k]
                else:
                  for k in 0..8:
                    add.acc[] <- add x[i, k] * i.h[k]
                s[i, j] = add.acc[]
        """,
    )
    assert_same(product.program, fused.program, matrices)


def test_fuse_first_leaves_narrow_ones(product, matrices, assert_same) -> None:
    panels = product.split("j", 4, "shorten").reorder("j.o", "i").specialize("i", "j.o")
    inside = panels.expand("j.i", "stack").distribute("j.i", "k").reorder("k", "j.i")
    hoisted = inside.hoist("i", "i")
    fused = hoisted.fuse_first("i.h.k", "k", "i", 4)
    assert str(fused).count("if i == 0") == 1 < str(hoisted).count("for i in")
    assert_same(product.program, fused.program, matrices)


def test_fuse_first_refuses(product) -> None:
    hoisted = product.reorder("j", "i").hoist("i", "i")
    refuses(lambda: hoisted.fuse_first("i.h.k", "z", "i"), "no loop is called 'z'")
    refuses(lambda: product.fuse_first("i", "k", "j"), "expected 'i' and right behind it 'j'")
    refuses(lambda: hoisted.split("k", 4).fuse_first("i.h.k", "k.o", "i"), "must have the extent")
    some = product.split("i", 3, "shorten").split("i.i", 2).reorder("j", "i.i.i")
    refuses(
        lambda: some.hoist("i.i.o", "i.i.i").fuse_first("i.i.o.h.j", "j", "i.i.o"),
        "may have no iteration",
    )


def test_fuse_first_refuses_what_depends_on_more(tiny) -> None:
    x, p, y = tiny.operand("x", 8), tiny.scratch("p", 8), tiny.operand("y", 4, 8)
    first = tiny.map(p, "k", lambda k: load(x, (k,)))

    def product(name: str, j: str, turned: bool) -> Stage:
        return tiny.fold(
            tiny.result(name, 4),
            f"{name}",
            j,
            8,
            lambda t, j: apply(
                "mul", load(p, (minus(apply("neg", j), -7) if turned else j,)), load(y, (t, j))
            ),
        )

    backwards = Schedule(tiny.program(first, product("t", "j", True)))
    refuses(lambda: backwards.fuse_first("k", "j", "t"), "carries a dependence")
    two = Schedule(tiny.program(first, product("t", "j", False), product("u", "i", False)))
    refuses(lambda: two.fuse_loops("t", "u").fuse_first("k", "j", "t"), "does more beside j")
    assert "if t == 0" in str(two.fuse_first("k", "j", "t"))
    refuses(lambda: two.split("j", 2).fuse_first("k", "j.i", "t"), "must hold the loop j.i")
