"""The primitives of `schedule/prefetching.py`: examples, before and after, and refusals."""

from __future__ import annotations

import numpy as np

from hlo_mlc.loops.interpret import interpret
from hlo_mlc.loops.text import body_text
from hlo_mlc.schedule.core import Schedule
from making.rewritten import refuses, shows


def test_prefetch(copy) -> None:
    vectors = Schedule(copy).split("i", 4).vectorize("i.i")
    program = vectors.prefetch("x", "i", 100).program
    shows(
        program,
        """
        for i.o in 0..2:
          for i.i in 0..4 vectorize:
            prefetch x[i.i + i.o * 4] + 100
            y[i.i + i.o * 4] = x[i.i + i.o * 4]
        for i.t in 0..2:
          y[i.t + 8] = x[i.t + 8]
        """,
    )
    given = np.arange(10, dtype=np.float32)
    (result,) = interpret(program, [given])
    np.testing.assert_array_equal(result, given)
    refuses(lambda: vectors.prefetch("y", "i", 100), "no vector", "'i'", "reads 'y'")
    refuses(lambda: Schedule(copy).prefetch("x", "i", 100), "no vector")


def test_prefetch_in_vectors_inside_of_a_loop(column_sums) -> None:
    across = column_sums.expand("i", "register").distribute("i", "k").reorder("k", "i")
    program = across.vectorize("i").prefetch("x", "k", 12).program
    assert body_text(program.body).count("prefetch") == 1
    assert "prefetch x[k, i] + 12" in body_text(program.body)


def test_prefetch_next(product, matrices, assert_same) -> None:
    panels = product.split("j", 2).reorder("j.o", "i")
    asked = panels.prefetch_next("y", ("j.o",), "i")
    shows(
        asked.program,
        """
        for j.o in 0..3:
          for i in 0..4:
            prefetch y[i * 2, j.o * 2 + 2] + 0
            for j.i in 0..2:
              alloc add.acc: f32 register:
                add.acc[] = 0.0:f32
                for k in 0..8:
                  add.acc[] <- add x[i, k] * exp(y[k, j.i + j.o * 2])
                s[i, j.i + j.o * 2] = add.acc[]
        """,
    )
    assert_same(product.program, asked.program, matrices)


def test_prefetch_next_goes_on_with_the_first_part(product) -> None:
    parts = product.split("j", 2).reorder("j.o", "i").expand("j.i", "stack").expand("i", "stack")
    parts = parts.split("k", 4).distribute("i", "k.o").reorder("k.o", "i", "j.i")
    text = str(parts.prefetch_next("y", ("j.o", "k.o"), "i"))
    assert "floormod(k.o + 1, 2) * 4" in text and "floordiv(k.o + 1, 2) * 2" in text


def test_prefetch_next_refuses(product) -> None:
    panels = product.split("j", 2).reorder("j.o", "i")
    refuses(lambda: panels.prefetch_next("y", ("j.o",), "z"), "no loop is called 'z'")
    refuses(lambda: panels.prefetch_next("z", ("j.o",), "i"), "does not use z")
    refuses(lambda: panels.prefetch_next("y", ("i",), "i"), "is not inside of i")
    refuses(lambda: panels.prefetch_next("y", ("i", "j.o"), "k"), "i, j.o, in this order")
    assert "prefetch" not in str(panels.prefetch_next("x", ("j.o",), "i"))
