"""The primitives of `schedule/kinds.py`: examples, before and after, and refusals."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hlo_mlc.expr import index
from hlo_mlc.expr.build import apply, as_index, const, load, variable
from hlo_mlc.expr.core import Buffer
from hlo_mlc.expr.dtypes import F32, I32, INDEX
from hlo_mlc.loops.core import (
    Accumulate,
    Allocate,
    For,
    LoopKind,
    LoopProgram,
    While,
    folding,
    walk,
)
from hlo_mlc.loops.interpret import interpret
from hlo_mlc.loops.lower import lower_stage
from hlo_mlc.loops.rewrite import with_body
from hlo_mlc.schedule.core import Schedule
from hlo_mlc.tensor.combine import named_combiner
from hlo_mlc.tensor.core import Assign, Stage
from making.rewritten import ONE, SQUARES, refuses, shows
from making.verified import unproven


def test_unroll(copy) -> None:
    shows(
        Schedule(copy).unroll("i").program,
        """
        for i in 0..10 unroll:
          y[i] = x[i]
        """,
    )


def test_unroll_refuses(copy) -> None:
    shortened = Schedule(copy).split("i", 4, "shorten")
    refuses(lambda: shortened.unroll("i.i"), "needs a constant extent")
    refuses(lambda: Schedule(copy).vectorize("i").unroll("i"), "must be serial")


def test_write_out(copy) -> None:
    shows(
        Schedule(copy).split("i", 4).write_out("i.t").program,
        """
        for i.o in 0..2:
          for i.i in 0..4:
            y[i.i + i.o * 4] = x[i.i + i.o * 4]
        y[8] = x[8]
        y[9] = x[9]
        """,
    )


def test_write_out_decides_guards(running) -> None:
    """Of y[i] = y[i - 1] + x[i], 1 before the first."""
    text = str(Schedule(running).split("i", 3).write_out("i.i"))
    assert text.count(" if ") == 1, "of the first element of a block it is not known"


def test_write_out_refuses(copy) -> None:
    shortened = Schedule(copy).split("i", 4, "shorten")
    refuses(lambda: shortened.write_out("i.i"), "needs a constant extent")
    refuses(lambda: Schedule(copy).vectorize("i").write_out("i"), "must be serial")


def test_bind(copy) -> None:
    blocked = Schedule(copy).split("i", 4, "shorten").bind("i.o", "block").bind("i.i", "thread")
    shows(
        blocked.program,
        """
        for i.o in 0..3 block:
          for i.i in 0..min(4, i.o * -4 + 10) thread:
            y[i.i + i.o * 4] = x[i.i + i.o * 4]
        """,
    )
    (result,) = interpret(blocked.program, [np.arange(10, dtype=np.float32)])
    np.testing.assert_array_equal(result, np.arange(10))


def test_bind_of_loops_that_share_a_buffer(transposed) -> None:
    tiles = Schedule(transposed).cache_read("x", "i", "loops").bind("i", "block")
    shared = tiles.bind(("x.i.j", "j"), "thread")
    shows(
        shared.program,
        """
        for i in 0..4 block:
          alloc x.i: 8xf32 thread:
            for x.i.j in 0..8 thread:
              x.i[x.i.j] = x[x.i.j, i]
            for j in 0..8 thread:
              y[i, j] = x.i[j]
        """,
    )
    x = np.arange(32, dtype=np.float32).reshape(8, 4)
    assert unproven(shared.program) == ()
    np.testing.assert_array_equal(interpret(shared.program, [x])[0], x.T)
    refuses(lambda: tiles.bind("j", "thread"), "would hold `x.i[x.i.j]", "beside its threads")


def test_bind_of_threads_in_threads(transposed, tiny) -> None:
    nested = Schedule(transposed).split("i", 2).bind("i.o", "block").bind("i.i", "thread")
    (result,) = interpret(
        nested.bind("j", "thread").program, [np.arange(32, dtype=np.float32).reshape(8, 4)]
    )
    np.testing.assert_array_equal(result, np.arange(32).reshape(8, 4).T)
    x, y, z = tiny.operand("x", 2, 4, 8), tiny.result("y", 2, 4), tiny.result("z", 2, 4, 8)
    zero = index.constant(0)
    two = Schedule(
        tiny.program(
            tiny.map(y, "ab", lambda a, b: load(x, (a, b, zero))),
            tiny.map(z, "ijk", lambda i, j, k: load(x, (i, j, k))),
        )
    )
    two = two.fuse_loops("a", "i").fuse_loops("b", "j").bind("a", "block").bind("b", "thread")
    refuses(lambda: two.bind("k", "thread"), "not all that the threads around it do")


def test_bind_leaves_threads_what_is_their_own(column_sums, assert_same) -> None:
    apart = column_sums.expand("i", "stack").distribute("i", "k").add_unit_loop("b")
    bound = apart.bind("b", "block").bind("i", "thread")
    assert [s.buffer.scope for s in walk(bound.program.body) if isinstance(s, Allocate)] == [
        "thread"
    ]
    x = np.arange(column_sums.program.operands[0].size, dtype=np.float32)
    assert_same(
        column_sums.program, bound.program, [x.reshape(column_sums.program.operands[0].shape)]
    )


def test_tensorize(small_product, halves, assert_same, copy) -> None:
    units = small_product.tensorize("e")
    assert [s.kind for s in units.loops("e")] == [LoopKind.SERIAL, LoopKind.TENSOR, LoopKind.SERIAL]
    assert_same(small_product.program, units.program, halves)
    idle = replace(copy, body=(replace(copy.body[0], body=()), *copy.body))
    for program in copy, idle:
        refuses(
            lambda program=program: Schedule(program).tensorize("i"),
            "is not what an instruction does",
        )
    refuses(lambda: small_product.split("k", 8).tensorize("e"), "is not what an instruction does")
    refuses(lambda: small_product.unroll("e").tensorize("e"), "must be serial")


def test_bind_refuses(copy, running, total, transposed) -> None:
    refuses(lambda: Schedule(copy).bind("i", "warp"), 'expected "block" or "thread"', "warp")
    refuses(lambda: Schedule(copy).bind("i", "thread"), "is in no block", "bind a loop around it")
    refuses(lambda: Schedule(running).bind("i", "block"), "dependent iterations", "y[i]")
    refuses(lambda: Schedule(total).bind("k", "block"), "private to the task around it")
    inner = Schedule(transposed).bind("j", "block")
    refuses(lambda: inner.bind("i", "block"), "holds `for j in 0..8 block:`")
    outer = Schedule(transposed).bind("i", "block")
    refuses(lambda: outer.bind("j", "block"), "is inside `for i in 0..4 block:`")
    refuses(lambda: outer.unroll("j"), "expected all rewrites before the first bind")


def test_bind_refuses_statements_beside_the_threads(tiny) -> None:
    x, y, z = tiny.operand("x", 4, 8), tiny.result("y", 4), tiny.result("z", 4, 8)
    program = tiny.program(
        tiny.map(y, "a", lambda a: load(x, (a, index.constant(0)))),
        tiny.map(z, "ij", lambda i, j: load(x, (i, j))),
    )
    joined = Schedule(program).fuse_loops("a", "i").bind("a", "block")
    refuses(lambda: joined.bind("j", "thread"), "would hold `y[a]", "beside its threads")


@pytest.fixture
def counts() -> LoopProgram:
    """y[x[i] % 3] = max(i, y[x[i] % 3]) of ten elements."""
    x, y = Buffer("x", I32, (10,), "operand"), Buffer("y", I32, (3,), "result")
    i, k = variable("i", 10), variable("k", 3)
    place = (index.floormod(as_index(load(x, (i,))), 3),)
    value = apply("max", apply("convert", i, dtype=I32), load(y, place))
    start = Stage("start", (k,), (Assign(y, (k,), const(0, I32)),))
    stage = Stage("count", (i,), (Assign(y, place, value),))
    return LoopProgram("counts", (x,), (y,), (*lower_stage(start), *lower_stage(stage)))


def test_atomic(counts, running, assert_same) -> None:
    schedule = Schedule(counts).atomic("y")
    shows(
        schedule.program,
        """
        for k in 0..3:
          y[k] = 0:i32
        for i in 0..10:
          y[floormod(convert(x[i]):index, 3)] <- max convert(i):i32 atomic
        """,
    )
    threads = schedule.split("i", 4, "guard").bind("i.o", "block").bind("i.i", "thread")
    for each in (schedule, threads):
        assert_same(counts, each.program, [np.arange(10, dtype=np.int32)[::-1].copy()])
    refuses(lambda: Schedule(counts).atomic("x"), "no store to a buffer called 'x' updates")
    refuses(lambda: Schedule(running).atomic("y"), "order does not matter")


def test_vectorize(copy) -> None:
    shows(
        Schedule(copy).vectorize("i").program,
        """
        for i in 0..10 vectorize:
          y[i] = x[i]
        """,
    )


def test_vectorize_combines_a_reduction_over_lanes(total) -> None:
    program = Schedule(total).vectorize("k").program
    (result,) = interpret(program, [np.arange(43, dtype=np.float32)])
    assert result == 43 * 42 / 2


def test_vectorize_refuses(tiny, running, transposed) -> None:
    refuses(lambda: Schedule(running).vectorize("i"), "dependent iterations", "y[i]")
    x, y = tiny.operand("x", 65), tiny.result("y", 65)
    long = tiny.program(tiny.map(y, "i", lambda i: load(x, (i,))))
    refuses(lambda: Schedule(long).vectorize("i"), "more than 64", "split it")
    inner = Schedule(transposed).vectorize("j")
    refuses(lambda: inner.vectorize("i"), "cannot run within a vector")
    refuses(lambda: Schedule(transposed).vectorize("i").vectorize("j"), "is inside `for i in")
    blocked = Schedule(transposed).split("j", 3, "shorten")
    refuses(lambda: blocked.vectorize("j.o"), "decides how", "the same way")


def test_vectorize_refuses_colliding_updates(tiny) -> None:
    """Two lanes that add to one element of a histogram would lose an update."""
    bins, y, k = Buffer("bins", I32, (9,), "operand"), tiny.result("y", 4), variable("k", 9)
    place = (apply("convert", load(bins, (k,)), dtype=INDEX),)
    update = Accumulate((y,), place, named_combiner("add", F32), (ONE,))
    program = LoopProgram(
        "histogram", (bins,), (y,), (For(k, index.constant(9), LoopKind.SERIAL, (update,)),)
    )
    refuses(lambda: Schedule(program).vectorize("k"), "may touch the same element of y")


def test_parallel(copy) -> None:
    shows(
        Schedule(copy).parallel("i").program,
        """
        for i in 0..10 parallel:
          y[i] = x[i]
        """,
    )


def test_parallel_after_tiling_is_proved(tiny) -> None:
    x, y = tiny.operand("x", 12, 10), tiny.result("y", 12, 10)
    program = tiny.program(tiny.map(y, "ij", lambda i, j: load(x, (i, j))))
    schedule = Schedule(program).fuse("i", "j").split("i.j", 7).split("i.j.o", 5, "shorten")
    assert schedule.parallel("i.j.o.o").loops("i.j.o.o")[0].kind is LoopKind.PARALLEL


def test_parallel_refuses(tiny, running, total, transposed) -> None:
    refuses(lambda: Schedule(running).parallel("i"), "dependent iterations", "y[i]")
    refuses(lambda: Schedule(total).parallel("k"), "private to the task around it")
    refuses(lambda: Schedule(transposed).parallel("j").parallel("i"), "fuse the two loops")
    refuses(lambda: Schedule(transposed).parallel("i").parallel("j"), "is inside `for i in")


def test_bind_of_threads_that_fold(normed, assert_same) -> None:
    """They update one element, and do nothing else."""
    rows = Schedule(normed).contract("m").inline("m").split("i", 2).split("j", 2).split("k", 2)
    for name in ("k.o", "j.o"):
        rows = rows.fold_apart(name) if name == "k.o" else rows
        rows = rows.rename(name, "", "l")
    apart = rows.begin_inside("l").expand("i.i", "stack").add_loops(("l",), (4,), "i.i")
    bound = apart.distribute("i.i").bind("i.o", "block").bind(("i.i", "l"), "thread")
    assert_same(normed, bound.program, SQUARES)
    assert sum(folding(s) is not None for s in walk(bound.program.body) if isinstance(s, For)) == 1
    assert {
        s.buffer.name: s.buffer.scope for s in walk(bound.program.body) if isinstance(s, Allocate)
    } == {"add.acc": "shared", "add.acc.k.o": "thread"}


def test_while_loops_stay_out_of_vectors(copy) -> None:
    (loop,) = copy.body
    condition = apply("lt", load(copy.results[0], (loop.var,)), ONE)
    body = (For(loop.var, loop.extent, loop.kind, (While(condition, loop.body),)),)
    refuses(lambda: Schedule(with_body(copy, body)).vectorize("i"), "cannot run within a vector")
