"""The primitives of `schedule/storage.py`: examples, before and after, and refusals."""

from __future__ import annotations

import numpy as np
import pytest

from hlo_mlc.expr import index
from hlo_mlc.expr.build import apply, const, load
from hlo_mlc.expr.dtypes import F16, F32, INDEX
from hlo_mlc.loops.core import Allocate, walk
from hlo_mlc.schedule.core import Schedule
from hlo_mlc.tensor.core import Assign, Stage
from making.rewritten import ONE, argmax, minus, refuses, shows


def test_expand(column_sums) -> None:
    shows(
        column_sums.expand("i", "register", 4).program,
        """
        alloc add.acc: 8xf32 register:
          for i in 0..6:
            add.acc[i] = 0.0:f32
            for k in 0..8:
              add.acc[i] <- add x[k, i]
            y[i] = add.acc[i]
        """,
    )


def test_expand_keeps_the_buffers_of_one_update_together(assert_same) -> None:
    program = argmax(5, 3)
    apart = Schedule(program).expand("i", "register").distribute("i", "k").reorder("k", "i")
    assert len(apart.loops("i")) == 3
    assert_same(program, apart.program, [np.arange(15, dtype=np.float32).reshape(5, 3) % 7])


def test_expand_refuses(tiny, column_sums, copy) -> None:
    refuses(lambda: column_sums.expand("i", "shared"), "register or stack", "'shared'")
    refuses(lambda: column_sums.expand("i", "stack", 0), "multiple of at least 1", "'stack' and 0")
    refuses(lambda: Schedule(copy).expand("i", "stack"), "no private buffers in its body")
    refuses(lambda: column_sums.expand("k", "stack"), "no private buffers")
    refuses(lambda: column_sums.parallel("i").expand("i", "stack"), "must be serial or unrolled")
    x, y = tiny.operand("x", 2, 1 << 17), tiny.result("y", 1 << 17)
    many = tiny.program(tiny.fold(y, "i", "k", 2, lambda i, k: load(x, (k, i))))
    refuses(lambda: Schedule(many).expand("i", "stack"), "524288 bytes")


def test_expand_and_distribute_partial_sums(column_sums, assert_same) -> None:
    """What is private to a part of an iteration; loops that do not hold the inner one stay."""
    after = column_sums.split("i", 3).rfactor("k", 2).expand("i.i", "stack")
    after = after.distribute("i.i", "k.o").distribute("i.i", "k.v").reorder("k.o", "i.i")
    assert len(after.loops("i.i")) == 5
    assert_same(column_sums.program, after.program, [np.arange(48, dtype=np.float32).reshape(8, 6)])


@pytest.fixture
def mirrored(tiny) -> Schedule:
    """a[i, j] = x[i, j]; y[m, n] = a[m, 3 - n], fused over rows."""
    x, a, y = tiny.operand("x", 8, 4), tiny.scratch("a", 8, 4), tiny.result("y", 8, 4)
    program = tiny.program(
        tiny.map(a, "ij", lambda i, j: load(x, (i, j))),
        tiny.map(y, "mn", lambda m, n: load(a, (m, index.subtract(index.constant(3), n)))),
    )
    return Schedule(program).fuse_loops("i", "m")


def test_contract(mirrored) -> None:
    after = mirrored.contract("a").program
    assert after.scratch == ()
    shows(
        after,
        """
        for i in 0..8:
          alloc a: 4xf32 stack:
            for j in 0..4:
              a[j] = x[i, j]
            for n in 0..4:
              y[i, n] = a[n * -1 + 3]
        """,
    )


def test_contract_to_a_register(tiny, chain) -> None:
    x, a, b = tiny.operand("x", 8), tiny.scratch("a", 8), tiny.result("b", 8)
    program = tiny.program(
        tiny.map(a, "i", lambda i: load(x, (i,))), tiny.map(b, "j", lambda j: load(a, (j,)))
    )
    shows(
        Schedule(program).fuse_loops("i", "j").contract("a").program,
        """
        for i in 0..8:
          alloc a: f32 register:
            a[] = x[i]
            b[i] = a[]
        """,
    )


def test_contract_works_on_peeled_copies(mirrored) -> None:
    after = mirrored.split("i", 3).contract("a").program
    assert str(Schedule(after)).count("alloc a: 4xf32 stack") == 2


def test_contract_refuses(tiny, mirrored) -> None:
    refuses(lambda: mirrored.contract("b"), "no scratch buffer is called 'b'", "there are: a")
    x, a, y = tiny.operand("x", 8), tiny.scratch("a", 8), tiny.result("y", 8)
    apart = tiny.program(
        tiny.map(a, "i", lambda i: load(x, (i,))), tiny.map(y, "j", lambda j: load(a, (j,)))
    )
    refuses(lambda: Schedule(apart).contract("a"), "fuse their loops first")
    before = tiny.map(
        y, "i", lambda i: load(a, (minus(i, 1),), apply("ge", i, index.constant(1)), ONE)
    )
    both = Stage(
        "carry", before.axes, (*before.assigns, Assign(a, before.axes, load(x, before.axes)))
    )
    refuses(lambda: Schedule(tiny.program(both)).contract("a"), "carries values")
    huge = tiny.scratch("h", 2, 1 << 17)
    out = tiny.result("o", 2, 1 << 17)
    rows = tiny.program(
        tiny.map(huge, "ij", lambda i, j: ONE), tiny.map(out, "mn", lambda m, n: load(huge, (m, n)))
    )
    refuses(lambda: Schedule(rows).fuse_loops("i", "m").contract("h"), "524288 bytes")


def test_promote(product, matrices, assert_same) -> None:
    apart = product.expand("j", "stack").distribute("j", "k", "e")
    promoted = apart.promote("k")
    shows(
        promoted.program,
        """
        for i in 0..4:
          alloc add.acc: 6xf32 stack:
            for j in 0..6:
              alloc add.acc.k: f32 register:
                add.acc.k[] = 0.0:f32
                for k in 0..8:
                  add.acc.k[] <- add x[i, k] * exp(y[k, j])
                add.acc[j] = add.acc.k[]
            for j.e in 0..6:
              s[i, j.e] = add.acc[j.e]
        """,
    )
    assert_same(product.program, promoted.program, matrices)
    parts = product.split("k", 3, "shorten").promote("k.i")
    assert "add.acc.k.i[] = add.acc[]" in str(parts)
    assert_same(product.program, parts.program, matrices)


def test_promote_beginning_neutral(product, matrices, assert_same) -> None:
    parts = product.split("k", 3, "shorten").promote("k.i", "neutral")
    shows(
        parts.program,
        """
        for i in 0..4:
          for j in 0..6:
            alloc add.acc: f32 register:
              add.acc[] = 0.0:f32
              for k.o in 0..3:
                alloc add.acc.k.i: f32 register:
                  add.acc.k.i[] = -0.0:f32
                  for k.i in 0..min(3, k.o * -3 + 8):
                    add.acc.k.i[] <- add x[i, k.i + k.o * 3] * exp(y[k.i + k.o * 3, j])
                  add.acc[] <- add add.acc.k.i[]
              s[i, j] = add.acc[]
        """,
    )
    assert_same(product.program, parts.program, matrices)


def test_promote_refuses(product, copy) -> None:
    refuses(lambda: product.promote("k", "late"), "to begin there or neutral, got 'late'")
    refuses(lambda: product.promote("z"), "no loop is called 'z'")
    refuses(lambda: Schedule(copy).promote("i"), "do nothing but update a private buffer")
    across = product.expand("j", "stack").distribute("j", "k").reorder("k", "j")
    refuses(lambda: across.promote("k"), "must update one element")


def test_hoist(product, matrices, assert_same) -> None:
    hoisted = product.hoist("i", "i", 5)
    shows(
        hoisted.program,
        """
        alloc i.h: 6x10xf32 stack:
          for i.h.j in 0..6:
            for i.h.k in 0..8:
              i.h[i.h.j, i.h.k] = exp(y[i.h.k, i.h.j])
          for i in 0..4:
            for j in 0..6:
              alloc add.acc: f32 register:
                add.acc[] = 0.0:f32
                for k in 0..8:
                  add.acc[] <- add x[i, k] * i.h[j, k]
                s[i, j] = add.acc[]
        """,
    )
    assert_same(product.program, hoisted.program, matrices)


def test_hoist_of_what_an_inner_loop_does_not_change(product, matrices, assert_same) -> None:
    """One tile of rows only: both factors are the same for all tiles, one for all rows, too."""
    tiles = product.split("i", 4, "repeat").hoist("i.o", "i.i").hoist("j", "j")
    assert {s.name for s in (f.var for n in tiles.loop_names for f in tiles.loops(n))} >= {
        "i.o.h.j",
        "i.o.h.k",
        "j.h.k",
    }
    assert_same(product.program, tiles.program, matrices)


def test_hoist_of_what_is_computed_from_indices_alone(tiny, matrices, assert_same) -> None:
    """The mask of a triangular product."""
    x, s = tiny.operand("x", 4, 8), tiny.result("s", 4, 6)
    masked = Schedule(
        tiny.program(
            tiny.fold(
                s,
                "ij",
                "k",
                8,
                lambda i, j, k: apply(
                    "mul", load(x, (i, k)), apply("convert", apply("le", k, j), dtype=F32)
                ),
            )
        )
    )
    hoisted = masked.hoist("i", "i")
    assert "i.h[i.h.j, i.h.k] = convert(i.h.k <= i.h.j):f32" in str(hoisted)
    assert_same(masked.program, hoisted.program, matrices[:1])


def test_hoist_of_the_one_that_changes_more(tiny, matrices, assert_same) -> None:
    """One tile of rows only: both factors are the same for all tiles."""
    x, s = tiny.operand("x", 4, 8), tiny.result("s", 4, 6)
    scaled = Schedule(
        tiny.program(
            tiny.fold(
                s,
                "ij",
                "k",
                8,
                lambda i, j, k: apply(
                    "mul", load(x, (i, k)), apply("exp", load(x, (const(0, INDEX), k)))
                ),
            )
        )
    )
    hoisted = scaled.hoist("j", "j")
    assert "add.acc[] <- add j.h[k] * exp(x[0, k])" in str(hoisted)
    assert_same(scaled.program, hoisted.program, matrices[:1])


def test_hoist_of_the_source_of_what_is_converted(small_product, halves, assert_same) -> None:
    for kept, dtype in (("value", F32), ("source", F16), ("f16", F16)):
        hoisted = small_product.hoist("e", "e", 1, kept)
        (tile,) = (
            s.buffer
            for s in walk(hoisted.program.body)
            if isinstance(s, Allocate) and s.buffer.name == "e.h"
        )
        assert tile.dtype is dtype
        assert_same(small_product.program, hoisted.program, halves)
    refuses(lambda: small_product.hoist("e", "e", 1, "half"), "expected value, source or a type")
    refuses(lambda: small_product.hoist("e", "e", 1, "bf16"), "which bf16 may not hold")


def test_hoist_of_a_constant(tiny) -> None:
    x, s = tiny.operand("x", 4, 8), tiny.result("s", 4, 6)
    half = Schedule(
        tiny.program(
            tiny.fold(
                s,
                "ij",
                "k",
                8,
                lambda i, j, k: apply("mul", apply("exp", load(x, (i, k))), const(0.5, F32)),
            )
        )
    )
    assert str(half.hoist("i", "i")) == str(half)


def test_hoist_refuses(tiny, product, total, grand_total) -> None:
    refuses(lambda: product.hoist("i", "i", 0), "multiple of at least 1")
    refuses(lambda: product.hoist("z", "i"), "no loop is called 'z'")
    refuses(lambda: product.hoist("i", "z"), "no loop is called 'z'")
    refuses(lambda: product.hoist("k", "k"), "changes all that its updates combine")
    refuses(lambda: Schedule(total).hoist("k", "k"), "changes all that its updates combine")
    refuses(lambda: product.hoist("i", "i").hoist("i", "i"), "behind i.h already")
    refuses(lambda: product.parallel("i").hoist("i", "i"), "its tasks share i.h")
    refuses(lambda: product.split("k", 3).hoist("i", "i"), "combine different things")
    s, y = tiny.result("s", 4), tiny.operand("y", 1 << 18)
    long = Schedule(
        tiny.program(
            tiny.fold(
                s,
                "i",
                "k",
                1 << 18,
                lambda i, k: apply("mul", apply("convert", i, dtype=F32), load(y, (k,))),
            )
        )
    )
    refuses(lambda: long.hoist("i", "i"), "1048576 bytes")
    own = tiny.program(
        tiny.fold(
            s, "i", "k", 4, lambda i, k: apply("mul", load(s, (k,)), apply("convert", i, dtype=F32))
        )
    )
    refuses(lambda: Schedule(own).hoist("i", "i"), "also writes s")
    refuses(
        lambda: product.split("k", 5, "shift").split("i", 2, "shift").hoist("i.o", "i.i"),
        "does not always happen",
    )
