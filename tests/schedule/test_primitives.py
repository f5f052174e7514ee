"""Each primitive's example, before and after, and what it refuses."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from hlo_mlc.expr import index
from hlo_mlc.expr.build import all_of, apply, as_index, const, load, variable
from hlo_mlc.expr.combiner import Combiner
from hlo_mlc.expr.core import Buffer, Expr, Var
from hlo_mlc.expr.dtypes import F16, F32, I32, INDEX
from hlo_mlc.loops.core import (
    Accumulate,
    Allocate,
    For,
    If,
    LoopKind,
    LoopProgram,
    Store,
    While,
    folding,
    walk,
)
from hlo_mlc.loops.interpret import interpret
from hlo_mlc.loops.lower import lower_nest, lower_stage
from hlo_mlc.loops.rewrite import with_body
from hlo_mlc.loops.text import body_text, program_text
from hlo_mlc.schedule.core import Schedule, Step, replay
from hlo_mlc.schedule.splitting import TAILS
from hlo_mlc.support.errors import ScheduleError
from hlo_mlc.tensor.combine import merging, named_combiner
from hlo_mlc.tensor.core import Assign, Stage
from making.verified import unproven

ONE, TWO = const(1.0, F32), const(2.0, F32)


def minus(x: Expr, y: int) -> Expr:
    return index.subtract(x, index.constant(y))


def shows(program: LoopProgram, expected: str) -> None:
    assert body_text(program.body) == textwrap.dedent(expected).lstrip("\n")


def refuses(act: Callable[[], object], *parts: str) -> None:
    with pytest.raises(ScheduleError) as caught:
        act()
    for part in parts:
        assert part in str(caught.value)


@pytest.fixture
def copy(tiny) -> LoopProgram:
    """y[i] = x[i] for ten elements."""
    x, y = tiny.operand("x", 10), tiny.result("y", 10)
    return tiny.program(tiny.map(y, "i", lambda i: load(x, (i,))))


@pytest.fixture
def transposed(tiny) -> LoopProgram:
    """y[i, j] = x[j, i]."""
    x, y = tiny.operand("x", 8, 4), tiny.result("y", 4, 8)
    return tiny.program(tiny.map(y, "ij", lambda i, j: load(x, (j, i))))


@pytest.fixture
def total(tiny) -> LoopProgram:
    """y[] = sum of 43 elements."""
    x, y = tiny.operand("x", 43), tiny.result("y")
    return tiny.program(tiny.fold(y, "", "k", 43, lambda k: load(x, (k,))))


@pytest.fixture
def grand_total(tiny) -> LoopProgram:
    """y[] = sum of 4 x 20 elements."""
    x, y = tiny.operand("x", 4, 20), tiny.result("y")
    return tiny.program(tiny.fold(y, "", "ij", (4, 20), lambda i, j: load(x, (i, j))))


@pytest.fixture
def running(tiny) -> LoopProgram:
    """y[i] = y[i - 1] + x[i]: every iteration needs the one before."""
    x, y = tiny.operand("x", 9), tiny.result("y", 9)

    def value(i: Expr) -> Expr:
        before = load(y, (minus(i, 1),), apply("ge", i, index.constant(1)), ONE)
        return apply("add", before, load(x, (i,)))

    return tiny.program(tiny.map(y, "i", value))


def test_split(copy) -> None:
    shows(
        Schedule(copy).split("i", 4).program,
        """
        for i.o in 0..2:
          for i.i in 0..4:
            y[i.i + i.o * 4] = x[i.i + i.o * 4]
        for i.t in 0..2:
          y[i.t + 8] = x[i.t + 8]
        """,
    )


def test_arguments_of_the_wrong_kind_are_refused(copy) -> None:
    with pytest.raises(ScheduleError, match="split: expected factor to be int, got 'four'"):
        Schedule(copy).split("i", "four")
    with pytest.raises(ScheduleError, match="split: expected factor to be int, got None"):
        Schedule(copy).split("i", None)


def test_split_that_divides_leaves_no_tail(copy) -> None:
    assert Schedule(copy).split("i", 5).loop_names == ("i.o", "i.i")


def test_split_of_a_short_loop_is_all_tail(copy) -> None:
    assert Schedule(copy).split("i", 16).loop_names == ("i.t",)


def test_split_keeps_tasks_outside(copy) -> None:
    schedule = Schedule(copy).parallel("i").split("i", 4)
    kinds = {name: schedule.loops(name)[0].kind for name in schedule.loop_names}
    assert kinds == {"i.o": LoopKind.PARALLEL, "i.i": LoopKind.SERIAL, "i.t": LoopKind.SERIAL}


def test_split_rewrites_every_copy(transposed) -> None:
    schedule = Schedule(transposed).split("i", 3).split("j", 5)
    assert len(schedule.loops("j.i")) == 2


def test_split_refuses(copy) -> None:
    refuses(lambda: Schedule(copy).split("k", 4), "no loop is called 'k'", "the loops are: i")
    refuses(lambda: Schedule(copy).split("i", 0), "at least 1", "got 0")
    refuses(lambda: Schedule(copy).unroll("i").split("i", 2), "must be serial or parallel")


def test_split_with_a_shorter_last_block(copy) -> None:
    shows(
        Schedule(copy).split("i", 4, "shorten").program,
        """
        for i.o in 0..3:
          for i.i in 0..min(4, i.o * -4 + 10):
            y[i.i + i.o * 4] = x[i.i + i.o * 4]
        """,
    )
    shows(
        Schedule(copy).split("i", 5, "shorten").program,
        """
        for i.o in 0..2:
          for i.i in 0..5:
            y[i.i + i.o * 5] = x[i.i + i.o * 5]
        """,
    )


def test_split_with_a_longer_last_block(copy, assert_same) -> None:
    shows(
        Schedule(copy).split("i", 4, "lengthen").program,
        """
        for i.o in 0..2:
          for i.i in 0..floordiv(i.o + 1, 2) * 2 + 4:
            y[i.i + i.o * 4] = x[i.i + i.o * 4]
        """,
    )
    shows(
        Schedule(copy).split("i", 6, "lengthen").program,
        """
        for i.o in 0..1:
          for i.i in 0..10:
            y[i.i] = x[i.i]
        """,
    )
    for factor in (1, 3, 5, 10, 16):
        whole = Schedule(copy).split("i", factor, "lengthen").parallel("i.o")
        assert_same(copy, whole.program, [np.arange(10, dtype=np.float32)])


def test_split_that_repeats(copy, column_sums, assert_same) -> None:
    shows(
        Schedule(copy).split("i", 4, "repeat").program,
        """
        for i.o in 0..3:
          for i.i in 0..4:
            y[i.i + min(i.o * 4, 6)] = x[i.i + min(i.o * 4, 6)]
        """,
    )
    shows(
        Schedule(copy).split("i", 16, "repeat").program,
        """
        for i.o in 0..1:
          for i.i in 0..10:
            y[i.i] = x[i.i]
        """,
    )
    # A sum is stored before anything is added to it, again in the iterations that are done again.
    twice = column_sums.expand("i", "stack").distribute("i", "k", "e").split("i", 4, "repeat")
    assert_same(column_sums.program, twice.program, [np.arange(48, dtype=np.float32).reshape(8, 6)])


def test_split_that_repeats_refuses(tiny, copy, total, running, column_sums) -> None:
    refuses(lambda: Schedule(running).split("i", 4, "repeat"), "has dependent iterations")
    refuses(lambda: Schedule(total).split("k", 4, "repeat"), "has dependent iterations")
    refuses(lambda: Schedule(copy).parallel("i").split("i", 4, "repeat"), "must be serial")
    y = tiny.result("y", 10)
    doubled = tiny.program(
        tiny.map(y, "i", lambda i: ONE),
        tiny.map(y, "j", lambda j: apply("add", load(y, (j,)), ONE)),
    )
    refuses(lambda: Schedule(doubled).split("j", 4, "repeat"), "may not do an iteration again")
    in_place = replace(copy, aliases=((copy.results[0], copy.operands[0]),))
    refuses(lambda: Schedule(in_place).split("i", 4, "repeat"), "reads what this overwrites")
    halves = column_sums.expand("i", "stack").distribute("i", "k")
    refuses(lambda: halves.reorder("k", "i").split("i", 4, "repeat"), "reads what this overwrites")
    assert "i.o" in Schedule(in_place, checked=False).split("i", 4, "repeat").loop_names


def test_split_that_begins_early(copy, running, assert_same) -> None:
    shows(
        Schedule(copy).split("i", 4, "early").program,
        """
        for i.o in 0..2:
          for i.i in 0..4:
            y[i.i + i.o * 4] = x[i.i + i.o * 4]
        for i.t in 0..4:
          y[i.t + 6] = x[i.t + 6]
        """,
    )
    for factor in (5, 16):  # nothing is left over, or everything is
        whole = Schedule(copy).split("i", factor, "early")
        assert str(whole) == str(Schedule(copy).split("i", factor))
    assert_same(
        copy, Schedule(copy).split("i", 3, "early").program, [np.arange(10, dtype=np.float32)]
    )
    refuses(lambda: Schedule(running).split("i", 4, "early"), "has dependent iterations")
    refuses(lambda: Schedule(copy).parallel("i").split("i", 4, "early"), "must be serial")
    in_place = replace(copy, aliases=((copy.results[0], copy.operands[0]),))
    refuses(lambda: Schedule(in_place).split("i", 4, "early"), "reads what this overwrites")


@pytest.fixture
def padded(tiny) -> LoopProgram:
    """A copy with a zero before and behind it."""
    x, y = tiny.operand("x", 8), tiny.result("y", 10)
    return tiny.program(
        tiny.map(
            y,
            "i",
            lambda i: load(
                x,
                (minus(i, 1),),
                all_of(
                    index.compare("ge", i, index.constant(1)),
                    index.compare("lt", i, index.constant(9)),
                ),
                const(0.0, F32),
            ),
        )
    )


def test_cut(padded, assert_same) -> None:
    schedule = Schedule(padded).cut("i", 1).cut("i.b", 8)
    shows(
        schedule.program,
        """
        for i.a in 0..1:
          y[i.a] = 0.0:f32
        for i.b.a in 0..8:
          y[i.b.a + 1] = x[i.b.a]
        for i.b.b in 0..1:
          y[i.b.b + 9] = 0.0:f32
        """,
    )
    assert_same(padded, schedule.program, [np.arange(8, dtype=np.float32)])
    for at in (0, 10, 11):
        refuses(lambda at=at: Schedule(padded).cut("i", at), "out of 10")
    refuses(lambda: Schedule(padded).vectorize("i").cut("i", 1), "must be serial or parallel")


def test_set_apart(padded, transposed, assert_same) -> None:
    shows(
        Schedule(padded).set_apart("i", 1, 9).program,
        """
        for i in 0..10:
          if (i >= 1) & (i < 9):
            y[i] = x[i + -1]
          else:
            y[i] = x[i + -1] if (i >= 1) & (i < 9) else 0.0:f32
        """,
    )
    nested = Schedule(padded).set_apart("i", 0, 9).set_apart("i", 1, 10)
    assert "x[i + -1]\n" in str(nested)
    for schedule in (
        Schedule(padded).set_apart("i", 1, 9),
        nested,
        Schedule(padded).set_apart("i", 2, 7).parallel("i"),
    ):
        assert_same(padded, schedule.program, [np.arange(8, dtype=np.float32)])
    assert str(Schedule(padded).set_apart("i", 0, 10)) == str(Schedule(padded))
    assert Schedule(transposed).set_apart("i", 1, 3).loop_names == ("i", "j", "j.e")
    for low, high in ((3, 3), (5, 2), (0, 11), (-1, 4)):
        refuses(lambda low=low, high=high: Schedule(padded).set_apart("i", low, high), "out of 10")


def test_split_that_shifts(copy, running, column_sums, assert_same) -> None:
    shows(
        Schedule(copy).split("i", 4, "shift").program,
        """
        for i.o in 0..3:
          for i.i in 0..4:
            y[i.i + min(i.o * 4, 6)] = x[i.i + min(i.o * 4, 6)] where (i.i + min(i.o * 4, 6)) >= (i.o * 4)
        """,  # noqa: E501
    )
    shows(
        column_sums.split("i", 4, "shift").program,
        """
        for i.o in 0..2:
          for i.i in 0..4:
            alloc add.acc: f32 register:
              add.acc[] = 0.0:f32
              for k in 0..8:
                add.acc[] <- add x[k, i.i + min(i.o * 4, 2)]
              y[i.i + min(i.o * 4, 2)] = add.acc[] where (i.i + min(i.o * 4, 2)) >= (i.o * 4)
        """,
    )
    for program in (running, replace(copy, aliases=((copy.results[0], copy.operands[0]),))):
        size = program.operands[0].shape[0]
        assert_same(
            program,
            Schedule(program).split("i", 4, "shift").program,
            [np.arange(size, dtype=np.float32)],
        )


def test_split_with_guards(copy, tiny, assert_same) -> None:
    shows(
        Schedule(copy).split("i", 4, "guard").program,
        """
        for i.o in 0..3:
          for i.i in 0..4:
            if (i.i + i.o * 4) < 10:
              y[i.i + i.o * 4] = x[i.i + i.o * 4]
        """,
    )
    assert "if" not in str(Schedule(copy).split("i", 5, "guard"))
    for factor in (1, 3, 5, 10, 16):
        whole = Schedule(copy).split("i", factor, "guard").reorder("i.i", "i.o").parallel("i.i")
        assert_same(copy, whole.program, [np.arange(10, dtype=np.float32)])


def test_split_with_masks(copy, column_sums, assert_same) -> None:
    shows(
        column_sums.split("i", 4, "mask").program,
        """
        for i.o in 0..2:
          for i.i in 0..4:
            alloc add.acc: f32 register:
              add.acc[] = 0.0:f32
              for k in 0..8:
                add.acc[] <- add x[k, i.i + i.o * 4] where (i.i + i.o * 4) < 6
              y[i.i + i.o * 4] = add.acc[] where (i.i + i.o * 4) < 6
        """,
    )
    sums = [np.arange(48, dtype=np.float32).reshape(8, 6)]
    for factor in (1, 3, 4, 5, 6, 16):
        whole = Schedule(copy).split("i", factor, "mask").parallel("i.o").vectorize("i.i")
        assert_same(copy, whole.program, [np.arange(10, dtype=np.float32)])
        tiled = (
            column_sums.split("i", factor, "mask")
            .expand("i.i", "register")
            .distribute("i.i", "k")
            .reorder("k", "i.i")
            .vectorize("i.i")
        )
        assert_same(column_sums.program, tiled.program, sums)


def test_split_with_whole_blocks_refuses_loops_that_would_be_longer(transposed) -> None:
    longer = Schedule(transposed).reorder("j", "i").split("j", 3, "lengthen")
    for tail in ("guard", "mask"):
        refuses(lambda tail=tail: longer.split("j.o", 4, tail), "would be longer behind the last")


def test_split_with_masks_begins_with_what_is_there(tiny, assert_same) -> None:
    """Not with an element of a row that does not exist."""
    x, y = tiny.operand("x", 3, 5), tiny.result("y", 5)
    stage = tiny.fold(y, "i", "k", 3, lambda i, k: load(x, (k, i)))
    program = tiny.program(replace(stage, initial=(load(x, (index.constant(0), stage.axes[0])),)))
    masked = Schedule(program).split("i", 2, "mask")
    assert "add.acc[] = x[0, i.i + i.o * 2] where (i.i + i.o * 2) < 5" in str(masked)
    assert_same(program, masked.program, [np.arange(15, dtype=np.float32).reshape(3, 5)])


@pytest.mark.parametrize("tail", ["shorten", "guard", "mask", "lengthen", "repeat", "shift"])
def test_split_refuses_tails(copy, tail) -> None:
    refuses(lambda: Schedule(copy).split("i", 0, tail), "at least 1")
    shortened = Schedule(copy).split("i", 4, "shorten")
    if tail in ("shorten", "guard", "mask"):
        assert str(shortened.split("i.i", 2, tail)).count("for") == 3
    else:
        refuses(lambda: shortened.split("i.i", 2, tail), "needs a constant extent")
    refuses(
        lambda: Schedule(copy).split("i", 4, "clip"),
        "peel, early, shorten, lengthen, guard, mask, repeat, shift",
        "got 'clip'",
    )


def test_specialize(copy, assert_same) -> None:
    shows(
        Schedule(copy).split("i", 4, "shorten").specialize("i.i", "i.o").program,
        """
        for i.o in 0..3:
          if i.o < 2:
            for i.i in 0..4:
              y[i.i + i.o * 4] = x[i.i + i.o * 4]
          else:
            for i.i in 0..2:
              y[i.i + 8] = x[i.i + 8]
        """,
    )
    shifted = Schedule(copy).split("i", 4, "shift").specialize("i.i", "i.o")
    assert str(shifted) == str(Schedule(copy).split("i", 4, "shorten").specialize("i.i", "i.o"))


def test_specialize_gives_no_copy_where_all_iterations_are_alike(copy) -> None:
    for tail in TAILS:
        for factor in (5, 16):
            whole = Schedule(copy).split("i", factor, tail)
            if whole.loop_names == ("i.o", "i.i"):
                assert str(whole.specialize("i.i", "i.o")) == str(whole)


def test_specialize_leaves_out_what_happens_in_no_iteration(transposed, assert_same) -> None:
    """Of both loops, as far as all that is done inside begins late."""
    schedule = Schedule(transposed).split("i", 3, "shift").split("j", 5, "shift")
    schedule = schedule.reorder("j.o", "i.i")
    schedule = schedule.specialize("i.i", "i.o").specialize("j.i", "j.o")
    assert "where" not in str(schedule)
    assert sorted(s.extent.value for s in schedule.loops("j.i")) == [3, 3, 5, 5]
    assert_same(transposed, schedule.program, [np.arange(32, dtype=np.float32).reshape(8, 4)])


def test_specialize_refuses(copy, transposed) -> None:
    shortened = Schedule(copy).split("i", 4, "shorten")
    refuses(lambda: shortened.specialize("i.i", "k"), "no loop is called 'k'")
    refuses(lambda: shortened.specialize("i.o", "i.i"), "needs a constant extent")
    refuses(lambda: Schedule(transposed).specialize("i", "j"), "holds no loop called i")
    refuses(lambda: Schedule(transposed).vectorize("i").specialize("j", "i"), "is a vector")


def test_fuse(tiny) -> None:
    x, y = tiny.operand("x", 32), tiny.result("y", 4, 8)
    program = tiny.program(
        tiny.map(
            y, "ij", lambda i, j: load(x, (index.add(index.multiply(i, index.constant(8)), j),))
        )
    )
    shows(
        Schedule(program).fuse("i", "j").program,
        """
        for i.j in 0..32:
          y[floordiv(i.j, 8), floormod(i.j, 8)] = x[i.j]
        """,
    )


def test_fuse_then_split_by_the_inner_extent_gives_the_loops_back(transposed) -> None:
    shows(
        Schedule(transposed).fuse("i", "j").split("i.j", 8).program,
        """
        for i.j.o in 0..4:
          for i.j.i in 0..8:
            y[i.j.o, i.j.i] = x[i.j.i, i.j.o]
        """,
    )


def test_fuse_refuses(tiny, transposed, copy) -> None:
    refuses(lambda: Schedule(transposed).fuse("j", "i"), "must hold the loop i and nothing else")
    refuses(lambda: Schedule(copy).fuse("i", "j"), "no loop is called 'j'")
    refuses(lambda: Schedule(transposed).vectorize("j").fuse("i", "j"), "must be serial")


def test_reorder(transposed) -> None:
    shows(
        Schedule(transposed).reorder("j", "i").program,
        """
        for j in 0..8:
          for i in 0..4:
            y[i, j] = x[j, i]
        """,
    )


def test_reorder_keeps_loops_that_are_not_named(tiny) -> None:
    x, y = tiny.operand("x", 2, 3, 4), tiny.result("y", 2, 3, 4)
    program = tiny.program(tiny.map(y, "abc", lambda *at: load(x, at)))
    assert Schedule(program).reorder("c", "a").loop_names == ("c", "b", "a")


def test_reorder_lets_reductions_commute(grand_total) -> None:
    assert Schedule(grand_total).reorder("j", "i").loop_names == ("j", "i")


def test_reorder_takes_guards_inside(transposed, assert_same) -> None:
    tiles = Schedule(transposed).split("j", 3, "guard").split("i", 3, "guard")
    tiles = tiles.reorder("i.o", "j.o", "j.i", "i.i")
    shows(
        tiles.program,
        """
        for i.o in 0..2:
          for j.o in 0..3:
            for j.i in 0..3:
              for i.i in 0..3:
                if ((i.i + i.o * 3) < 4) & ((j.i + j.o * 3) < 8):
                  y[i.i + i.o * 3, j.i + j.o * 3] = x[j.i + j.o * 3, i.i + i.o * 3]
        """,
    )
    assert_same(transposed, tiles.program, [np.arange(32, dtype=np.float32).reshape(8, 4)])


def test_reorder_leaves_guards_that_stores_decide_about() -> None:
    x, y = Buffer("x", F32, (4, 6), "operand"), Buffer("y", F32, (4, 6), "result")
    i, j = variable("i", 4), variable("j", 6)
    inner = For(j, index.constant(6), LoopKind.SERIAL, (Store(y, (i, j), load(x, (i, j))),))
    positive = apply("gt", load(y, (i, index.constant(0))), const(0.0, F32))
    nest = For(i, index.constant(4), LoopKind.SERIAL, (If(positive, (inner,), ()),))
    program = LoopProgram("guarded", (x,), (y,), (nest,))
    refuses(lambda: Schedule(program).reorder("j", "i"), "not perfectly nested")


def test_reorder_refuses(tiny, copy, transposed) -> None:
    y = tiny.result("y", 6, 6)

    def wave(i: Expr, j: Expr) -> Expr:
        inside = apply("and", apply("ge", i, index.constant(1)), apply("lt", j, index.constant(5)))
        return load(y, (minus(i, 1), minus(j, -1)), inside, ONE)

    program = tiny.program(tiny.map(y, "ij", wave))
    refuses(lambda: Schedule(program).reorder("j", "i"), "would change the order", "y")
    refuses(lambda: Schedule(transposed).reorder("i"), "two or more")
    refuses(lambda: Schedule(transposed).reorder("i", "k"), "no loop is called 'k'")
    chain = Schedule(
        tiny.program(
            tiny.map(tiny.result("a", 4), "i", lambda i: ONE),
            tiny.map(tiny.result("b", 4), "j", lambda j: TWO),
        )
    )
    refuses(lambda: chain.reorder("i", "j"), "not perfectly nested")
    vector = Schedule(transposed).vectorize("j")
    refuses(lambda: vector.reorder("j", "i"), "is a vector")
    blocked = Schedule(copy).split("i", 4, "shorten")
    refuses(lambda: blocked.reorder("i.i", "i.o"), "depends on a loop which would move inside")


def test_unswitch(transposed, padded, assert_same) -> None:
    inside = Schedule(transposed).split("i", 3, "guard").reorder("i.o", "i.i", "j")
    shows(
        inside.unswitch("j").program,
        """
        for i.o in 0..2:
          for i.i in 0..3:
            if (i.i + i.o * 3) < 4:
              for j in 0..8:
                y[i.i + i.o * 3, j] = x[j, i.i + i.o * 3]
        """,
    )
    x = np.arange(32, dtype=np.float32).reshape(8, 4)
    assert_same(transposed, inside.unswitch("j").program, [x])
    refuses(lambda: inside.unswitch("i.i"), "asks nothing that is the same in all its iterations")
    lanes = Schedule(transposed).split("i", 3, "shift").vectorize("i.i")
    assert "where" in str(lanes)
    refuses(lambda: lanes.unswitch("j"), "asks nothing that is the same in all its iterations")
    refuses(lambda: inside.unswitch("k"), "no loop is called 'k'")


def test_unswitch_of_what_loads_and_stores_ask(tiny, assert_same) -> None:
    x, y = tiny.operand("x", 4, 6), tiny.result("y", 5, 6)

    def value(i: Expr, j: Expr) -> Expr:
        return apply("mul", load(x, (i, j), apply("lt", i, index.constant(4)), ONE), TWO)

    program = tiny.program(tiny.map(y, "ij", value))
    schedule = Schedule(program).unswitch("j")
    shows(
        schedule.program,
        """
        for i in 0..5:
          if i < 4:
            for j in 0..6:
              y[i, j] = x[i, j] * 2.0:f32
          else:
            for j in 0..6:
              y[i, j] = 2.0:f32
        """,
    )
    assert_same(program, schedule.program, [np.arange(24, dtype=np.float32).reshape(4, 6)])
    some = Schedule(program).split("j", 4, "shift").reorder("j.o", "j.i", "i")
    assert "where" in str(some) and "where" not in str(some.unswitch("i"))
    assert_same(
        program, some.unswitch("i").program, [np.arange(24, dtype=np.float32).reshape(4, 6)]
    )


@pytest.fixture
def windows(tiny) -> Schedule:
    return in_tiles_of_four(tiny, 7)


def in_tiles_of_four(tiny, length: int) -> Schedule:
    """y[i] = sum over k, w of x[k, i + w - 1] * f[k, w], with zeros around x: two tiles."""
    x, f, y = tiny.operand("x", 2, length), tiny.operand("f", 2, 3), tiny.result("y", length)

    def term(i: Expr, k: Expr, w: Expr) -> Expr:
        at = minus(index.add(i, w), 1)
        inside = all_of(
            index.compare("ge", at, index.constant(0)),
            index.compare("lt", at, index.constant(length)),
        )
        return apply("mul", load(x, (k, at), inside, const(0.0, F32)), load(f, (k, w)))

    schedule = Schedule(tiny.program(tiny.fold(y, "i", "kw", (2, 3), term)))
    return (
        schedule.split("i", 4, "mask")
        .expand("i.i", "register")
        .distribute("i.i", "k", "s")
        .distribute("i.i", "k")
        .reorder("k", "i.i")
        .reorder("i.i", "w", "k")
    )


@pytest.fixture
def signals() -> list[np.ndarray]:
    return [
        np.arange(14, dtype=np.float32).reshape(2, 7),
        np.arange(6, dtype=np.float32).reshape(2, 3),
    ]


def test_branch(windows, signals, assert_same) -> None:
    around = windows.branch("i.i")
    shows(
        around.program,
        """
        for i.o in 0..2:
          alloc add.acc: 4xf32 register:
            for i.i in 0..4:
              add.acc[i.i] = 0.0:f32
            for i.i in 0..4:
              if (i.i + i.o * 4) < 7:
                for w in 0..3:
                  if ((i.i + i.o * 4 + w + -1) >= 0) & ((i.i + i.o * 4 + w + -1) < 7):
                    for k in 0..2:
                      add.acc[i.i] <- add x[k, i.i + i.o * 4 + w + -1] * f[k, w]
            for i.i.s in 0..4:
              y[i.i.s + i.o * 4] = add.acc[i.i.s] where (i.i.s + i.o * 4) < 7
        """,
    )
    stored = around.branch("i.i.s")
    assert "if (i.i.s + i.o * 4) < 7:" in str(stored) and "where" not in str(stored)
    for schedule in (
        around,
        stored,
        windows.branch("i.o"),
        windows.vectorize("k").branch("i.i"),
        windows.reorder("k", "i.i", "w").branch("k"),
    ):
        assert_same(windows.program, schedule.program, signals)
    # Lanes of a vector do not agree.
    lanes = windows.reorder("k", "w", "i.i").vectorize("i.i").branch("k")
    assert "if" not in str(lanes).split("for k")[1].split("<-")[0]
    assert_same(windows.program, lanes.program, signals)
    outside = windows.vectorize("i.i")
    for schedule in (outside.branch("w"), outside.version("w")):
        assert str(schedule) == str(outside)


def test_branch_around_several_statements(column_sums, assert_same) -> None:
    """What all of them need is asked once."""
    masked = column_sums.split("i", 4, "mask").split("k", 3)
    shows(
        masked.expand("i.i", "register")
        .distribute("i.i", "k.o")
        .reorder("k.o", "i.i")
        .reorder("k.o", "k.i", "i.i")
        .branch("i.i")
        .program,
        """
        for i.o in 0..2:
          alloc add.acc: 4xf32 register:
            for i.i in 0..4:
              add.acc[i.i] = 0.0:f32
            for k.o in 0..2:
              for k.i in 0..3:
                for i.i in 0..4:
                  if (i.i + i.o * 4) < 6:
                    add.acc[i.i] <- add x[k.i + k.o * 3, i.i + i.o * 4]
            for i.i in 0..4:
              if (i.i + i.o * 4) < 6:
                for k.t in 0..2:
                  add.acc[i.i] <- add x[k.t + 6, i.i + i.o * 4]
                y[i.i + i.o * 4] = add.acc[i.i]
        """,
    )


def test_branch_where_there_is_nothing_to_ask(copy) -> None:
    assert str(Schedule(copy).branch("i")) == str(Schedule(copy))
    refuses(lambda: Schedule(copy).branch("z"), "no loop is called 'z'")


def test_branch_leaves_padding_that_counts(tiny) -> None:
    x, y = tiny.operand("x", 6), tiny.result("y")
    program = tiny.program(
        tiny.fold(
            y, "", "k", 8, lambda k: load(x, (k,), index.compare("lt", k, index.constant(6)), ONE)
        )
    )
    assert str(Schedule(program).branch("k")) == str(Schedule(program))


def test_version(windows, signals, assert_same) -> None:
    once = windows.reorder("k", "i.i", "w").branch("k").version("i.i")
    shows(
        once.program,
        """
        for i.o in 0..2:
          alloc add.acc: 4xf32 register:
            for i.i in 0..4:
              add.acc[i.i] = 0.0:f32
            for k in 0..2:
              if (((i.o * 4 + -4) < 0) & ((i.o * 4 + -1) >= 0)) & ((i.o * 4 + -3) < 0):
                for i.i in 0..4:
                  if (i.i + i.o * 4) < 7:
                    for w in 0..3:
                      if ((i.i + i.o * 4 + w + -1) >= 0) & ((i.i + i.o * 4 + w + -1) < 7):
                        add.acc[i.i] <- add x[k, i.i + i.o * 4 + w + -1] * f[k, w]
              else:
                for i.i.e in 0..4:
                  if (i.i.e + i.o * 4) < 7:
                    for w.e in 0..3:
                      if ((i.i.e + i.o * 4 + w.e + -1) >= 0) & ((i.i.e + i.o * 4 + w.e + -1) < 7):
                        add.acc[i.i.e] <- add x[k, i.i.e + i.o * 4 + w.e + -1] * f[k, w.e]
            for i.i.s in 0..4:
              y[i.i.s + i.o * 4] = add.acc[i.i.s] where (i.i.s + i.o * 4) < 7
        """,
    )
    guarded = windows.version("w")
    assert_same(windows.program, once.program, signals)
    assert_same(windows.program, guarded.program, signals)


def test_version_where_nothing_is_asked(copy, transposed) -> None:
    for program in (copy, transposed):
        assert str(Schedule(program).version("i")) == str(Schedule(program))
    refuses(lambda: Schedule(copy).version("z"), "no loop is called 'z'")


def test_jam(windows, signals, assert_same) -> None:
    grouped = windows.branch("i.i").jam(("i.i", "w"))
    shows(
        grouped.program,
        """
        for i.o in 0..2:
          alloc add.acc: 4xf32 register:
            for i.i in 0..4:
              add.acc[i.i] = 0.0:f32
            if (i.o * 4 + -1) >= 0:
              for k in 0..2:
                add.acc[0] <- add x[k, i.o * 4 + -1] * f[k, 0]
            for k in 0..2:
              add.acc[0] <- add x[k, i.o * 4] * f[k, 1]
              add.acc[0] <- add x[k, i.o * 4 + 1] * f[k, 2]
              add.acc[1] <- add x[k, i.o * 4] * f[k, 0]
              add.acc[1] <- add x[k, i.o * 4 + 1] * f[k, 1]
              add.acc[1] <- add x[k, i.o * 4 + 2] * f[k, 2]
              add.acc[2] <- add x[k, i.o * 4 + 1] * f[k, 0]
              add.acc[2] <- add x[k, i.o * 4 + 2] * f[k, 1]
            if (i.o * 4 + 3) < 7:
              for k in 0..2:
                add.acc[2] <- add x[k, i.o * 4 + 3] * f[k, 2]
                add.acc[3] <- add x[k, i.o * 4 + 2] * f[k, 0]
                add.acc[3] <- add x[k, i.o * 4 + 3] * f[k, 1]
            if ((i.o * 4 + 3) < 7) & ((i.o * 4 + 4) < 7):
              for k in 0..2:
                add.acc[3] <- add x[k, i.o * 4 + 4] * f[k, 2]
            for i.i.s in 0..4:
              y[i.i.s + i.o * 4] = add.acc[i.i.s] where (i.i.s + i.o * 4) < 7
        """,
    )
    order = windows.reorder("k", "i.i", "w").branch("k").version("i.i")
    for schedule in (
        grouped,
        order.jam(("i.i", "w")),
        order.jam(("i.i.e",), "w.e").jam(("i.i", "w")),
        windows.branch("i.i").jam(("i.i", "w"), "", 3),
        order.reorder("w.e", "i.i.e").jam(("i.i.e",)),
        windows.jam(("i.i",)),
        windows.jam(("w",)),
        windows.branch("i.i").jam(("i.i", "w"), "w"),
        windows.reorder("w", "i.i", "k").jam(("w", "i.i"), "k"),
    ):
        assert_same(windows.program, schedule.program, signals)


def test_jam_runs_loops_as_one(transposed, product, matrices, assert_same) -> None:
    shows(
        Schedule(transposed).split("i", 2).jam(("i.i",)).program,
        """
        for i.o in 0..2:
          for j in 0..8:
            y[i.o * 2, j] = x[j, i.o * 2]
            y[i.o * 2 + 1, j] = x[j, i.o * 2 + 1]
        """,
    )
    shows(
        Schedule(transposed).split("i", 2).split("j", 3).jam(("i.i",), "j.o").program,
        """
        for i.o in 0..2:
          for j.o in 0..2:
            for j.i in 0..3:
              y[i.o * 2, j.i + j.o * 3] = x[j.i + j.o * 3, i.o * 2]
            for j.i in 0..3:
              y[i.o * 2 + 1, j.i + j.o * 3] = x[j.i + j.o * 3, i.o * 2 + 1]
          for j.t in 0..2:
            y[i.o * 2, j.t + 6] = x[j.t + 6, i.o * 2]
            y[i.o * 2 + 1, j.t + 6] = x[j.t + 6, i.o * 2 + 1]
        """,
    )


def test_jam_asks_first(tiny, assert_same) -> None:
    """What is asked at both ends of a row: that one fails there means that the other one holds."""
    schedule = in_tiles_of_four(tiny, 8).reorder("w", "i.i", "k").branch("i.i").version("i.i")
    asked = schedule.jam(("i.i.e",), choices=2)
    shows(
        asked.program,
        """
        for i.o in 0..2:
          alloc add.acc: 4xf32 register:
            for i.i in 0..4:
              add.acc[i.i] = 0.0:f32
            for w in 0..3:
              if ((i.o * 4 + w + -1) >= 0) & ((i.o * 4 + w + -6) < 0):
                for i.i in 0..4:
                  if ((i.i + i.o * 4 + w + -1) >= 0) & ((i.i + i.o * 4 + w + -1) < 8):
                    for k in 0..2:
                      add.acc[i.i] <- add x[k, i.i + i.o * 4 + w + -1] * f[k, w]
              else:
                if (i.o * 4 + w + -1) >= 0:
                  for k.e in 0..2:
                    add.acc[0] <- add x[k.e, i.o * 4 + w + -1] * f[k.e, w]
                    add.acc[1] <- add x[k.e, i.o * 4 + w] * f[k.e, w]
                    add.acc[2] <- add x[k.e, i.o * 4 + w + 1] * f[k.e, w]
                else:
                  for k.e in 0..2:
                    add.acc[1] <- add x[k.e, i.o * 4 + w] * f[k.e, w]
                    add.acc[2] <- add x[k.e, i.o * 4 + w + 1] * f[k.e, w]
                    add.acc[3] <- add x[k.e, i.o * 4 + w + 2] * f[k.e, w]
            for i.i.s in 0..4:
              y[i.i.s + i.o * 4] = add.acc[i.i.s]
        """,
    )
    signals = [
        np.arange(16, dtype=np.float32).reshape(2, 8),
        np.arange(6, dtype=np.float32).reshape(2, 3),
    ]
    assert_same(schedule.program, asked.program, signals)
    in_turn = schedule.jam(("i.i.e",), choices=1)
    assert str(in_turn.program) == str(schedule.jam(("i.i.e",)).program)


def test_jam_refuses(running, transposed, column_sums) -> None:
    refuses(lambda: Schedule(running).jam(("i",)), "would change the order in which")
    refuses(lambda: column_sums.jam(("i",)), "holds add.acc", "expand first")
    refuses(lambda: Schedule(transposed).jam(()), "names of different loops")
    refuses(lambda: Schedule(transposed).jam(("i", "i")), "names of different loops")
    refuses(lambda: Schedule(transposed).jam(("i", "z")), "no loop is called 'z'")
    refuses(lambda: Schedule(transposed).vectorize("i").jam(("i",)), "must be serial or unroll")
    refuses(lambda: column_sums.jam(("i", "k")), "not perfectly nested")


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


@pytest.fixture
def small_product() -> Schedule:
    """y[e] = sum of a[e, k] * b[k], narrow factors, the sums of which are side by side."""
    a, b, y = (
        Buffer("a", F16, (4, 16), "operand"),
        Buffer("b", F16, (16,), "operand"),
        Buffer("y", F32, (4,), "result"),
    )
    e, k, sum_of = variable("e", 4), variable("k", 16), Var("acc", F32)
    term = apply(
        "mul", *(apply("convert", load(f, i), dtype=F32) for f, i in ((a, (e, k)), (b, (k,))))
    )
    stage = Stage(
        "dot",
        (e,),
        (Assign(y, (e,), sum_of),),
        (k,),
        named_combiner("add", F32),
        (term,),
        (const(0.0, F32),),
        (sum_of,),
    )
    return (
        Schedule(LoopProgram("dot", (a, b), (y,), lower_stage(stage)))
        .expand("e", "stack")
        .distribute("e", "k")
    )


@pytest.fixture
def halves() -> list[np.ndarray]:
    return [np.arange(64, dtype=np.float16).reshape(4, 16), np.arange(16, dtype=np.float16)]


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


def test_add_unit_loop(copy, assert_same) -> None:
    once = Schedule(copy).add_unit_loop("t").add_unit_loop("b")
    shows(
        once.program,
        """
        for b in 0..1:
          for t in 0..1:
            for i in 0..10:
              y[i] = x[i]
        """,
    )
    assert_same(
        copy, once.bind("b", "block").bind("t", "thread").program, [np.arange(10, dtype=np.float32)]
    )
    refuses(lambda: once.add_unit_loop("i"), "a loop is called 'i' already")


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


def test_stream(copy) -> None:
    shows(
        Schedule(copy).stream("y").program,
        """
        for i in 0..10:
          y[i] = x[i] streaming
        """,
    )
    refuses(lambda: Schedule(copy).stream("x"), "nothing is stored to a buffer called 'x'")


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


def test_rfactor(total) -> None:
    shows(
        Schedule(total).rfactor("k", 8, 2).program,
        """
        alloc add.acc: f32 register:
          add.acc[] = 0.0:f32
          alloc add.acc.k: 2x8xf32 register:
            for k.u in 0..2 unroll:
              for k.v in 0..8 vectorize:
                add.acc.k[k.u, k.v] = -0.0:f32
            for k.o in 0..2:
              for k.u in 0..2 unroll:
                for k.v in 0..8 vectorize:
                  add.acc.k[k.u, k.v] <- add x[k.o * 16 + k.u * 8 + k.v]
            for k.v in 0..8 vectorize:
              add.acc.k[0, k.v] <- add x[k.v + 32]
            for k.v in 0..8 vectorize:
              add.acc.k[1, k.v] <- add x[k.v + 40] where k.v < 3
            for k.v in 0..8 vectorize:
              add.acc.k[0, k.v] <- add add.acc.k[1, k.v]
              add.acc[] <- add add.acc.k[0, k.v]
          y[] = add.acc[]
        """,
    )


@pytest.mark.parametrize("extent", [1, 3, 4, 7, 8, 9, 31, 32, 33])
@pytest.mark.parametrize("lanes, count", [(1, 1), (1, 3), (4, 1), (4, 2), (4, 5)])
def test_rfactor_adds_every_term_once(tiny, extent, lanes, count) -> None:
    x, y = tiny.operand("x", extent), tiny.result("y")
    program = tiny.program(tiny.fold(y, "", "k", extent, lambda k: load(x, (k,))))
    values = 2.0 ** (np.arange(extent, dtype=np.float32) % 20)
    (result,) = interpret(Schedule(program).rfactor("k", lanes, count).program, [values])
    assert result == values.sum()


def test_rfactor_keeps_partial_results_outside_of_loops_that_go_on(grand_total) -> None:
    shows(
        Schedule(grand_total).rfactor("j", 4).program,
        """
        alloc add.acc: f32 register:
          add.acc[] = 0.0:f32
          alloc add.acc.j: 1x4xf32 register:
            for j.v in 0..4 vectorize:
              add.acc.j[0, j.v] = -0.0:f32
            for i in 0..4:
              for j.o in 0..5:
                for j.v in 0..4 vectorize:
                  add.acc.j[0, j.v] <- add x[i, j.o * 4 + j.v]
            for j.v in 0..4 vectorize:
              add.acc[] <- add add.acc.j[0, j.v]
          y[] = add.acc[]
        """,
    )


def test_privatize(total, assert_same) -> None:
    parts = Schedule(total).split("k", 4, "guard").privatize("k.i")
    shows(
        parts.program,
        """
        alloc add.acc.k.i: 4xf32 stack:
          for k.i in 0..4:
            alloc add.acc: f32 register:
              add.acc[] = select(k.i == 0, 0.0:f32, -0.0:f32)
              for k.o in 0..11:
                if (k.i + k.o * 4) < 43:
                  add.acc[] <- add x[k.i + k.o * 4]
              add.acc.k.i[k.i] = add.acc[]
          for k.i.2 in 0..2:
            add.acc.k.i[k.i.2] <- add add.acc.k.i[k.i.2 + 2]
          for k.i.1 in 0..1:
            add.acc.k.i[k.i.1] <- add add.acc.k.i[k.i.1 + 1]
          y[] = add.acc.k.i[0]
        """,
    )
    assert_same(total, parts.program, [np.arange(43, dtype=np.float32)])


@pytest.mark.parametrize("parts", [1, 2, 3, 5, 6, 7, 8, 100])
def test_privatize_combines_every_part_once(grand_total, assert_same, parts) -> None:
    schedule = Schedule(grand_total).fuse("i", "j").split("i.j", parts, "guard").privatize("i.j.i")
    x = np.random.default_rng(0).integers(-99, 99, (4, 20)).astype(np.float32)
    assert_same(grand_total, schedule.program, [x])


def test_privatize_goes_by_positions(assert_same) -> None:
    x = Buffer("x", F32, (43,), "operand")
    results = Buffer("best", F32, (), "result"), Buffer("where", I32, (), "result")
    stage = argmax_stage(x, results)
    known = replace(stage.combiner, identity=stage.initial)
    program = LoopProgram("argmax", (x,), results, lower_stage(replace(stage, combiner=known)))
    schedule = Schedule(program).split("k", 8, "guard").privatize("k.i")
    assert_same(program, schedule.program, [np.arange(43, dtype=np.float32) % 7])
    refuses(lambda: Schedule(argmax(43)).privatize("k"), "has no identity to begin with")
    again = schedule.loops("k.i.4")[0].body[0].combiner
    assert merging(again, again.lhs, ()) is again


def test_privatize_refuses(total, grand_total, copy, tiny, column_sums) -> None:
    refuses(lambda: Schedule(total).privatize("z"), "no loop is called 'z'")
    refuses(lambda: Schedule(copy).privatize("i"), "is in no nest that does nothing but update")
    refuses(lambda: Schedule(grand_total).vectorize("j").privatize("i"), "must be serial or unroll")
    refuses(lambda: Schedule(total).split("k", 4).privatize("k.t"), "not all that add.acc is for")
    apart = column_sums.expand("i", "stack").distribute("i", "k")
    refuses(lambda: apart.privatize("k"), "right behind the stores")
    shortened = Schedule(total).split("k", 4, "shorten")
    refuses(lambda: shortened.privatize("k.i"), "needs a constant extent")
    y, x = tiny.result("y", 2), tiny.operand("x", 9)
    (first,) = tiny.program(tiny.fold(y, "i", "k", 9, lambda i, k: load(x, (k,)))).body
    twice = LoopProgram(
        "twice",
        (x,),
        (y,),
        (Allocate(first.body[0].buffer, (*first.body[0].body[:1], *first.body[0].body)),),
    )
    refuses(lambda: Schedule(twice).privatize("k"), "is not all that add.acc is for")


def test_fold_apart(grand_total, assert_same) -> None:
    parts = Schedule(grand_total).split("j", 4).fold_apart("j.o", "j.i")
    shows(
        parts.program,
        """
        alloc add.acc: f32 register:
          add.acc[] = 0.0:f32
          alloc add.acc.j.o: 5x4xf32 stack:
            for j.o in 0..5:
              for j.i in 0..4:
                add.acc.j.o[j.o, j.i] = -0.0:f32
              for i in 0..4:
                for j.i in 0..4:
                  add.acc.j.o[j.o, j.i] <- add x[i, j.i + j.o * 4]
              for j.i.2 in 0..2:
                add.acc.j.o[j.o, j.i.2] <- add add.acc.j.o[j.o, j.i.2 + 2]
              for j.i.1 in 0..1:
                add.acc.j.o[j.o, j.i.1] <- add add.acc.j.o[j.o, j.i.1 + 1]
            for j.o in 0..5:
              add.acc[] <- add add.acc.j.o[j.o, 0]
          y[] = add.acc[]
        """,
    )
    x = np.random.default_rng(0).integers(-99, 99, (4, 20)).astype(np.float32)
    assert_same(grand_total, parts.program, [x])
    whole = Schedule(grand_total).add_unit_loop("b").fold_apart("j").fold_apart("i")
    assert_same(grand_total, whole.program, [x])


def test_fold_apart_goes_by_positions(assert_same) -> None:
    x = Buffer("x", F32, (43,), "operand")
    results = Buffer("best", F32, (), "result"), Buffer("where", I32, (), "result")
    stage = argmax_stage(x, results)
    known = replace(stage.combiner, identity=stage.initial)
    program = LoopProgram("argmax", (x,), results, lower_stage(replace(stage, combiner=known)))
    split = Schedule(program).split("k", 8, "guard")
    schedule = split.fold_apart("k.i")
    assert_same(program, schedule.program, [np.arange(43, dtype=np.float32) % 7])
    again = schedule.loops("k.i")[1].body[0].combiner
    assert merging(again, again.lhs, ()) is again
    refuses(lambda: Schedule(argmax(43)).fold_apart("k"), "has no identity to begin with")
    refuses(lambda: split.reorder("k.i", "k.o"), "would change the order")


def test_fold_apart_refuses(total, grand_total, copy, tiny) -> None:
    refuses(lambda: Schedule(copy).fold_apart("i"), "folds its terms into one element")
    several = Schedule(total).rfactor("k", 2, 2)  # one sum for each iteration of the loops inside
    refuses(lambda: several.fold_apart("k.o"), "folds its terms into one element")
    refuses(lambda: Schedule(total).fold_apart("k", "z"), "no loop is called 'z'")
    refuses(lambda: Schedule(total).fold_apart("k", "k"), "is in no loop called k")
    refuses(lambda: Schedule(grand_total).vectorize("j").fold_apart("j"), "must be serial or unrol")
    shortened = Schedule(total).split("k", 4, "shorten")
    refuses(lambda: shortened.fold_apart("k.i"), "needs a constant extent")
    y, x = tiny.result("y"), tiny.operand("x", 9)
    (scope,) = tiny.program(tiny.fold(y, "", "k", 9, lambda k: load(x, (k,)))).body
    start, fold, _ = scope.body
    loop = For(fold.var, fold.extent, fold.kind, (*fold.body, Store(y, (), load(scope.buffer, ()))))
    seen = LoopProgram("seen", (x,), (y,), (Allocate(scope.buffer, (start, loop)),))
    refuses(lambda: Schedule(seen).fold_apart("k"), "is not all that add.acc is for", "y[] =")
    loop = For(fold.var, fold.extent, fold.kind, (*fold.body, *fold.body))
    twice = LoopProgram("twice", (x,), (y,), (Allocate(scope.buffer, (start, loop)),))
    refuses(lambda: Schedule(twice).fold_apart("k"), "updates one buffer in several statements")


def test_fold_apart_keeps_the_order_of_stores(tiny, assert_same) -> None:
    """What else is done in a nest may not go where loops cannot."""
    x, y, z = tiny.operand("x", 6, 6), tiny.result("y"), tiny.result("z", 6, 6)
    i, j, acc = variable("i", 6), variable("j", 6), Var("acc", F32)
    before = load(
        z,
        (minus(i, 1), apply("add", j, index.constant(1))),
        all_of(apply("ge", minus(i, 1), index.constant(0)), apply("lt", j, index.constant(5))),
        ONE,
    )
    for value, legal in ((load(x, (i, j)), True), (before, False)):
        stage = Stage(
            "s",
            (),
            (Assign(y, (), acc),),
            (i, j),
            named_combiner("add", F32),
            (load(x, (i, j)),),
            (const(0.0, F32),),
            (acc,),
            (Assign(z, (i, j), apply("add", value, ONE)),),
        )
        program = LoopProgram("along", (x,), (y, z), lower_stage(stage))
        schedule = Schedule(program)
        if legal:
            apart = schedule.fold_apart("j").program
            assert_same(program, apart, [np.arange(36, dtype=np.float32).reshape(6, 6)])
        else:
            refuses(lambda s=schedule: s.fold_apart("j"), "fold_apart: ", "touch z")


@pytest.fixture
def normed(tiny) -> LoopProgram:
    """m[i] = sqrt(sum over k of x[i, k]), y[i, j] = x[i, j] / m[i], z[i] = m[i]."""
    x, y = tiny.operand("x", 4, 8), tiny.result("y", 4, 8)
    m, z = tiny.scratch("m", 4), tiny.result("z", 4)
    i, acc, j = variable("i", 4), Var("acc", F32), variable("j", 8)
    fold = replace(
        tiny.fold(m, "i", "k", 8, lambda i, k: load(x, (i, k))),
        axes=(),
        assigns=(Assign(m, (i,), apply("sqrt", acc)),),
    )
    stages = (
        fold,
        Stage("y", (j,), (Assign(y, (i, j), apply("div", load(x, (i, j)), load(m, (i,)))),)),
        Stage("z", (), (Assign(z, (i,), load(m, (i,))),)),
    )
    return LoopProgram("normed", (x,), (y, z), lower_nest((i,), stages), ((m, 0),))


SQUARES = [np.arange(32, dtype=np.float32).reshape(4, 8) ** 2]


def test_inline(normed, assert_same) -> None:
    inlined = Schedule(normed).contract("m").inline("m")
    shows(
        inlined.program,
        """
        for i in 0..4:
          alloc add.acc: f32 register:
            add.acc[] = 0.0:f32
            for k in 0..8:
              add.acc[] <- add x[i, k]
            for j in 0..8:
              y[i, j] = x[i, j] / sqrt(add.acc[])
            z[i] = sqrt(add.acc[])
        """,
    )
    assert_same(normed, inlined.program, SQUARES)
    refuses(lambda: Schedule(normed).inline("m"), "no private buffer is called 'm'", "add.acc")
    refuses(lambda: Schedule(normed).inline("add.acc"), "not stored once, before all that reads")
    outside = Schedule(normed).contract("m").expand("i", "stack")
    refuses(lambda: outside.inline("m"), "is no single value that is stored for certain")


def test_inline_refuses_what_changes(tiny) -> None:
    x, y, m = tiny.operand("x", 3), tiny.result("y", 3), Buffer("m", F32, (), "register")
    zero, one = index.constant(0), index.constant(1)
    body = (
        Store(y, (zero,), load(x, (zero,))),
        Allocate(
            m,
            (Store(m, (), load(y, (zero,))), Store(y, (zero,), ONE), Store(y, (one,), load(m, ()))),
        ),
    )
    refuses(
        lambda: Schedule(LoopProgram("p", (x,), (y,), body)).inline("m"),
        "is computed from what is written behind it",
        "y[0] = 1.0",
    )


def test_add_loops_and_replicate(normed, assert_same) -> None:
    once = (
        Schedule(normed)
        .contract("m")
        .split("j", 2)
        .rename("j.o", "", "l")
        .fold_apart("k")
        .begin_inside("k")
        .expand("i", "stack")
        .add_loops(("l",), (4,), "i")
    )
    own = once.replicate("m", ("l",))
    shows(
        own.program,
        """
        alloc m: 4x4xf32 stack:
          alloc add.acc: 4xf32 stack:
            alloc add.acc.k: 4x8xf32 stack:
              for i in 0..4:
                for k in 0..8:
                  add.acc.k[i, k] = -0.0:f32
                  add.acc[i] = 0.0:f32 where k == 0
                  add.acc.k[i, k] <- add x[i, k]
                for k in 0..8:
                  add.acc[i] <- add add.acc.k[i, k]
                for l in 0..4:
                  m[i, l] = sqrt(add.acc[i])
                for l in 0..4:
                  for j.i in 0..2:
                    y[i, j.i + l * 2] = x[i, j.i + l * 2] / m[i, l]
                for l in 0..4:
                  z[i] = m[i, l] where l == 0
        """,
    )
    for schedule in (once, own, own.distribute("i")):
        assert_same(normed, schedule.program, SQUARES)


def test_add_loops_refuses(normed, total) -> None:
    refuses(lambda: Schedule(normed).add_loops(("l",), (4, 5), "i"), "names and positive extents")
    refuses(lambda: Schedule(normed).add_loops(("l", "l"), (4, 5), "i"), "names and positive ext")
    refuses(lambda: Schedule(normed).add_loops((), (), "i"), "names and positive extents")
    refuses(lambda: Schedule(normed).add_loops(("l",), (0,), "i"), "names and positive extents")
    refuses(lambda: Schedule(normed).add_loops(("i",), (4,), "j"), "is in a loop called i")
    refuses(lambda: Schedule(normed).add_loops(("l",), (4,), "n"), "no loop is called 'n'")
    split = Schedule(total).split("k", 43)
    refuses(lambda: split.add_loops(("l",), (4,), "k.o"), "does nothing outside of the loops in it")


def test_replicate_refuses(normed, total) -> None:
    private = Schedule(normed).contract("m")
    refuses(lambda: private.replicate("m", ("j",)), "is not in loops called j")
    refuses(
        lambda: private.expand("i", "stack").replicate("m", ("i",)),
        "is not what the first iteration of these loops does",
    )
    refuses(lambda: private.replicate("y", ("i",)), "no private buffer is called 'y'")
    refuses(lambda: private.replicate("add.acc", ("i",)), "is not stored once")
    apart = private.begin_inside("k").expand("i", "stack").add_loops(("l",), (4,), "i")
    refuses(lambda: apart.replicate("m", ("l",)), "reads m in no such loops")
    wide = apart.rename("j", "", "l")
    refuses(lambda: wide.replicate("m", ("l",)), "reads m in no such loops")


def test_begin_inside_refuses(normed, total) -> None:
    refuses(lambda: Schedule(normed).begin_inside("j"), "has nothing before it that folds begin")
    refuses(lambda: Schedule(normed).begin_inside("z"), "no loop is called 'z'")
    refuses(lambda: Schedule(normed).vectorize("k").begin_inside("k"), "must be serial or unroll")


def test_rename_of_all(normed, assert_same) -> None:
    renamed = Schedule(normed).rename("j", "", "k")
    assert renamed.loop_names == ("i", "k") and len(renamed.loops("k")) == 2
    assert_same(normed, renamed.program, SQUARES)
    refuses(lambda: renamed.rename("k", "", "i"), "would hold another loop of that name")
    refuses(lambda: renamed.rename("i", "", "k"), "would hold another loop of that name")


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


def test_cascade(tiny) -> None:
    x, y = tiny.operand("x", 40), tiny.result("y")
    program = tiny.program(tiny.fold(y, "", "k", 40, lambda k: load(x, (k,))))
    shows(
        Schedule(program).cascade(8).program,
        """
        alloc add.acc: f32 register:
          add.acc[] = 0.0:f32
          for k.r in 0..5:
            alloc add.acc.k: f32 register:
              add.acc.k[] = -0.0:f32
              for k in 0..8:
                add.acc.k[] <- add x[k + k.r * 8]
              add.acc[] <- add add.acc.k[]
          y[] = add.acc[]
        """,
    )


def test_cascade_counts_the_terms_of_loops_that_go_on(grand_total) -> None:
    """4 x 20 terms in vectors of 4: the loop over rows goes on with the sums of the inner one."""
    shows(
        Schedule(grand_total).rfactor("j", 4).cascade(10).program,
        """
        alloc add.acc: f32 register:
          add.acc[] = 0.0:f32
          alloc add.acc.j: 1x4xf32 register:
            for j.v in 0..4 vectorize:
              add.acc.j[0, j.v] = -0.0:f32
            for i.r in 0..2:
              alloc add.acc.j.i: 1x4xf32 register:
                for j.v in 0..4 vectorize:
                  add.acc.j.i[0, j.v] = -0.0:f32
                for i in 0..2:
                  for j.o in 0..5:
                    for j.v in 0..4 vectorize:
                      add.acc.j.i[0, j.v] <- add x[i + i.r * 2, j.o * 4 + j.v]
                for j.v in 0..4 vectorize:
                  add.acc.j[0, j.v] <- add add.acc.j.i[0, j.v]
            for j.v in 0..4 vectorize:
              add.acc[] <- add add.acc.j[0, j.v]
          y[] = add.acc[]
        """,
    )


@pytest.mark.parametrize("extent", [1, 7, 8, 9, 31, 64, 65, 200, 1000])
@pytest.mark.parametrize("lanes, count, length", [(1, 1, 2), (1, 1, 4), (4, 2, 2), (4, 3, 5)])
def test_cascade_adds_every_term_once(tiny, extent, lanes, count, length) -> None:
    x, y = tiny.operand("x", extent), tiny.result("y")
    program = tiny.program(tiny.fold(y, "", "k", extent, lambda k: load(x, (k,))))
    schedule = Schedule(program).rfactor("k", lanes, count).cascade(length)
    assert unproven(schedule.program) == ()
    values = 2.0 ** (np.arange(extent, dtype=np.float32) % 14)
    (result,) = interpret(schedule.program, [values])
    assert result == values.sum()


def test_cascades_of_cascades(tiny) -> None:
    """A loop over runs of runs is not called as one around it is."""
    x, y = tiny.operand("x", 37), tiny.result("y")
    schedule = Schedule(tiny.program(tiny.fold(y, "", "k", 37, lambda k: load(x, (k,)))))
    values = 2.0 ** (np.arange(37, dtype=np.float32) % 14)
    for length in (6, 2, 2, 2):
        schedule = schedule.cascade(length)
        assert unproven(schedule.program) == ()
        (result,) = interpret(schedule.program, [values])
        assert result == values.sum()


def test_cascade_calls_nothing_as_what_is_there(grand_total, assert_same) -> None:
    apart = Schedule(grand_total).fold_apart("j").cascade(2)
    assert unproven(apart.program) == ()
    x = np.random.default_rng(0).integers(-99, 99, (4, 20)).astype(np.float32)
    assert_same(grand_total, apart.program, [x])


def test_cascade_leaves_alone_what_is_no_sum_of_floats(tiny) -> None:
    x, y = tiny.operand("x", 64), tiny.result("y")
    largest = tiny.program(tiny.fold(y, "", "k", 64, lambda k: load(x, (k,)), "max"))
    for program in (largest, argmax(64)):
        assert str(Schedule(program).cascade(4)) == str(Schedule(program))
    refuses(lambda: Schedule(largest).cascade(1), "at least 2 terms")


def first_of_pair() -> Combiner:
    """(value, index) of the larger value, of the lower index where equal; no neutral element."""
    a, i, b, j = Var("a", F32), Var("i", I32), Var("b", F32), Var("j", I32)
    wins = apply("or", apply("gt", a, b), apply("and", apply("eq", a, b), apply("lt", i, j)))
    return Combiner(
        (a, i), (b, j), (apply("select", wins, a, b), apply("select", wins, i, j)), None
    )


def argmax(extent: int, *columns: int) -> LoopProgram:
    x = Buffer("x", F32, (extent, *columns), "operand")
    results = Buffer("best", F32, columns, "result"), Buffer("where", I32, columns, "result")
    stage = argmax_stage(x, results, *(variable("i", n) for n in columns))
    return LoopProgram("argmax", (x,), results, lower_stage(stage))


def argmax_stage(x: Buffer, results: tuple[Buffer, ...], *axes: Var) -> Stage:
    k, (best, where) = variable("k", x.shape[0]), results
    value, position = Var("value", F32), Var("position", I32)
    return Stage(
        "argmax",
        axes,
        (Assign(best, axes, value), Assign(where, axes, position)),
        (k,),
        first_of_pair(),
        (load(x, (k, *axes)), apply("convert", k, dtype=I32)),
        (const(-1e30, F32), const(99, I32)),
        (value, position),
    )


@pytest.mark.parametrize("extent", [4, 11, 16, 37])
def test_rfactor_without_identity_starts_from_the_first_terms(extent) -> None:
    values = np.array([(k * 7) % 5 for k in range(extent)], np.float32)
    program = Schedule(argmax(extent)).rfactor("k", 4, 2).program
    assert "-inf" not in body_text(program.body)
    best, where = interpret(program, [values])
    assert (best, where) == (values.max(), values.argmax())


def after() -> Combiner:
    """One affine map after another: does not commute, and has no neutral element here."""
    a, b, c, d = (Var(name, F32) for name in "abcd")
    return Combiner((a, b), (c, d), (apply("mul", a, c), apply("add", apply("mul", b, c), d)), None)


def test_rfactor_into_one_partial_result_keeps_the_order(tiny) -> None:
    k, scale, shift = variable("k", 7), Var("scale", F32), Var("shift", F32)
    x, y, z = tiny.operand("x", 2, 7), tiny.result("y"), tiny.result("z")
    stage = Stage(
        "maps",
        (),
        (Assign(y, (), scale), Assign(z, (), shift)),
        (k,),
        after(),
        tuple(load(x, (index.constant(n), k)) for n in range(2)),
        (ONE, TWO),
        (scale, shift),
    )
    program = tiny.program(stage)
    refuses(lambda: Schedule(program).rfactor("k", 2), "does not commute")
    refuses(lambda: Schedule(program).rfactor("k", 1, 2), "does not commute")
    inner = Schedule(program).split("k", 3).rfactor("k.i", 1).program
    values = np.array([[1, 2, 3, 4, 5, 6, 7], [7, 1, 6, 2, 5, 3, 4]], np.float32)
    np.testing.assert_array_equal(interpret(inner, [values]), interpret(program, [values]))


def test_rfactor_refuses(total, grand_total, copy) -> None:
    refuses(lambda: Schedule(copy).rfactor("i", 4), "does not reduce")
    refuses(lambda: Schedule(total).rfactor("k", 65), "1 to 64 lanes")
    refuses(lambda: Schedule(argmax(3)).rfactor("k", 4), "at least 4 unguarded terms", "identity")
    shortened = Schedule(total).split("k", 5, "shorten")
    refuses(lambda: shortened.rfactor("k.i", 4), "needs a constant extent")
    refuses(lambda: Schedule(grand_total).rfactor("i", 4), "hold only stores and updates")


@pytest.fixture
def chain(tiny) -> LoopProgram:
    """a = x + 1; b = a * 2."""
    x, a, b = tiny.operand("x", 8), tiny.result("a", 8), tiny.result("b", 8)
    return tiny.program(
        tiny.map(a, "i", lambda i: apply("add", load(x, (i,)), ONE)),
        tiny.map(b, "j", lambda j: apply("mul", load(a, (j,)), TWO)),
    )


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


@pytest.fixture
def column_sums(tiny) -> Schedule:
    """y[i] = sum over k of x[k, i]."""
    x, y = tiny.operand("x", 8, 6), tiny.result("y", 6)
    return Schedule(tiny.program(tiny.fold(y, "i", "k", 8, lambda i, k: load(x, (k, i)))))


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


def test_expand_and_distribute_partial_sums(column_sums, assert_same) -> None:
    """What is private to a part of an iteration; loops that do not hold the inner one stay."""
    after = column_sums.split("i", 3).rfactor("k", 2).expand("i.i", "stack")
    after = after.distribute("i.i", "k.o").distribute("i.i", "k.v").reorder("k.o", "i.i")
    assert len(after.loops("i.i")) == 5
    assert_same(column_sums.program, after.program, [np.arange(48, dtype=np.float32).reshape(8, 6)])


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


def test_cache_read(transposed) -> None:
    shows(
        Schedule(transposed).cache_read("x", "i").program,
        """
        for i in 0..4:
          alloc x.i: 8xf32 stack:
            for x.i.0 in 0..8:
              x.i[x.i.0] = x[x.i.0, i]
            for j in 0..8:
              y[i, j] = x.i[j]
        """,
    )


def test_reorder_of_a_store_that_is_repeated(transposed, copy, assert_same) -> None:
    """It puts the same there again, whichever comes last."""
    turned = Schedule(transposed).split("i", 3, "repeat").reorder("i.i", "j", "i.o")
    assert_same(transposed, turned.program, [np.arange(32, dtype=np.float32).reshape(8, 4)])
    turned = Schedule(copy).split("i", 4, "repeat").reorder("i.i", "i.o")
    assert_same(copy, turned.program, [np.arange(10, dtype=np.float32)])


def test_cache_read_by_the_loops_around_it(tiny, assert_same) -> None:
    """Of each place at which something is read nothing but that, in the order of the loops."""
    x, y = tiny.operand("x", 8, 13), tiny.result("y", 3, 4)
    two, four = index.constant(2), index.constant(4)
    program = tiny.program(
        tiny.map(
            y,
            "ij",
            lambda i, j: apply(
                "sub",
                load(x, (index.multiply(j, two), index.multiply(i, four))),
                load(x, (i, index.constant(0))),
            ),
        )
    )
    staged = (
        Schedule(program)
        .split("i", 2, "shorten")
        .reorder("j", "i.i")
        .cache_read("x", "i.o", "loops")
    )
    shows(
        staged.program,
        """
        for i.o in 0..2:
          alloc x.i.o: 4x2xf32 stack:
            alloc x.i.o.1: 2xf32 stack:
              for x.i.o.j in 0..4:
                for x.i.o.i.i in 0..min(2, i.o * -2 + 3):
                  x.i.o[x.i.o.j, x.i.o.i.i] = x[x.i.o.j * 2, i.o * 8 + x.i.o.i.i * 4]
              for x.i.o.i.i in 0..min(2, i.o * -2 + 3):
                x.i.o.1[x.i.o.i.i] = x[i.o * 2 + x.i.o.i.i, 0]
              for j in 0..4:
                for i.i in 0..min(2, i.o * -2 + 3):
                  y[i.i + i.o * 2, j] = x.i.o[j, i.i] - x.i.o.1[i.i]
        """,
    )
    assert_same(program, staged.program, [np.arange(104, dtype=np.float32).reshape(8, 13)])


def test_cache_read_of_what_is_the_same_in_a_loop(tiny, assert_same) -> None:
    """Rows against rows of the same matrix: those of a panel, whatever the other row is."""
    x, y = tiny.operand("x", 6, 5), tiny.result("y", 6, 6, 5)
    program = tiny.program(
        tiny.map(y, "ijk", lambda i, j, k: apply("sub", load(x, (i, k)), load(x, (j, k))))
    )
    panels = Schedule(program).split("j", 3).reorder("j.o", "i", "k", "j.i")
    staged = panels.cache_read("x", "j.o", "loops", "i")
    shows(
        staged.program,
        """
        for j.o in 0..2:
          alloc x.j.o: 5x3xf32 stack:
            for x.j.o.k in 0..5:
              for x.j.o.j.i in 0..3:
                x.j.o[x.j.o.k, x.j.o.j.i] = x[j.o * 3 + x.j.o.j.i, x.j.o.k]
            for i in 0..6:
              for k in 0..5:
                for j.i in 0..3:
                  y[i, j.i + j.o * 3, k] = x[i, k] - x.j.o[k, j.i]
        """,
    )
    assert_same(program, staged.program, [np.arange(30, dtype=np.float32).reshape(6, 5)])
    refuses(lambda: panels.cache_read("x", "j.o", "loops", "k"), "elsewhere in each iteration of k")
    refuses(lambda: panels.cache_read("x", "j.o", "loops", "z"), "no loop is called 'z'")
    refuses(lambda: panels.cache_read("x", "j.o", "rows", "i"), "expected the layout 'loops'")


def test_cache_read_of_what_is_nearest_along_a_loop(tiny, assert_same) -> None:
    """Of a matrix and its transpose the part that lies across the order of the loops."""
    x, y = tiny.operand("x", 6, 6), tiny.result("y", 6, 6)
    program = tiny.program(
        tiny.map(y, "ij", lambda i, j: apply("sub", load(x, (i, j)), load(x, (j, i))))
    )
    tiles = (
        Schedule(program)
        .split("j", 4, "guard")
        .split("i", 4, "guard")
        .reorder("i.o", "j.o", "j.i", "i.i")
    )
    staged = tiles.cache_read("x", "j.o", "loops", along="i.i").reorder("i.i", "j.i")
    shows(
        staged.program,
        """
        for i.o in 0..2:
          for j.o in 0..2:
            alloc x.j.o: 4x4xf32 stack:
              for x.j.o.j.i in 0..4:
                for x.j.o.i.i in 0..4:
                  if ((i.o * 4 + x.j.o.i.i) < 6) & ((j.o * 4 + x.j.o.j.i) < 6):
                    x.j.o[x.j.o.j.i, x.j.o.i.i] = x[j.o * 4 + x.j.o.j.i, i.o * 4 + x.j.o.i.i]
              for i.i in 0..4:
                for j.i in 0..4:
                  if ((i.i + i.o * 4) < 6) & ((j.i + j.o * 4) < 6):
                    y[i.i + i.o * 4, j.i + j.o * 4] = x[i.i + i.o * 4, j.i + j.o * 4] - x.j.o[j.i, i.i]
        """,  # noqa: E501 (as it is written)
    )
    assert_same(program, staged.program, [np.arange(36, dtype=np.float32).reshape(6, 6)])
    refuses(lambda: tiles.cache_read("x", "i.i", "loops", along="j.i"), "at no places", "j.i")
    refuses(lambda: tiles.cache_read("x", "j.o", "loops", along="z"), "no loop is called 'z'")
    refuses(lambda: tiles.cache_read("x", "j.o", along="i.i"), "expected the layout 'loops'")


def test_pad(transposed, assert_same) -> None:
    tiles = Schedule(transposed).cache_read("x", "i", "loops")
    shows(
        tiles.pad("x.i", 3).program,
        """
        for i in 0..4:
          alloc x.i: 11xf32 stack:
            for x.i.j in 0..8:
              x.i[x.i.j] = x[x.i.j, i]
            for j in 0..8:
              y[i, j] = x.i[j]
        """,
    )
    assert_same(
        transposed, tiles.pad("x.i", 3).program, [np.arange(32, dtype=np.float32).reshape(8, 4)]
    )


def test_pad_refuses(tiny, transposed, total) -> None:
    tiles = Schedule(transposed).cache_read("x", "i", "loops")
    refuses(lambda: tiles.pad("x.i", 0), "at least one element")
    refuses(lambda: tiles.pad("x", 1), "no private array is called 'x'", "there are: x.i")
    refuses(lambda: Schedule(total).pad("add.acc", 1), "no private array", "there are: none")
    refuses(lambda: tiles.pad("x.i", 1 << 20), "bytes of x.i at once")
    refuses(lambda: tiles.pad("x.i", 1, 1), "no dimension 1")
    assert "alloc x.i: 9xf32" in str(tiles.pad("x.i", 1, 0))


def test_transform_layout(tiny, assert_same) -> None:
    x, y = tiny.operand("x", 8, 6), tiny.result("y", 3, 8, 6)
    program = tiny.program(tiny.map(y, "rij", lambda r, i, j: load(x, (i, j))))
    tiles = Schedule(program).cache_read("x", "r", "loops")
    moved = tiles.transform_layout("x.r", (4, 2, 2, 3), ("0", "1 2", "3"))
    shows(
        moved.program,
        """
        for r in 0..3:
          alloc x.r: 4x4x3xf32 stack:
            for x.r.i in 0..8:
              for x.r.j in 0..6:
                x.r[floordiv(x.r.i, 2), floordiv(x.r.j, 3) + floormod(x.r.i, 2) * 2, floormod(x.r.j, 3)] = x[x.r.i, x.r.j]
            for i in 0..8:
              for j in 0..6:
                y[r, i, j] = x.r[floordiv(i, 2), floordiv(j, 3) + floormod(i, 2) * 2, floormod(j, 3)]
        """,  # noqa: E501 (as it is written)
    )
    for parts, order in (
        ((4, 2, 2, 3), ("3", "0 2", "1")),
        ((8, 1, 6), ("2", "1", "0")),
        ((1, 8, 6, 1), ("1 2", "0 3")),
    ):
        assert_same(
            program,
            tiles.transform_layout("x.r", parts, order).program,
            [np.arange(48, dtype=np.float32).reshape(8, 6)],
        )
    split = (
        tiles.split("i", 2).split("x.r.i", 2).transform_layout("x.r", (4, 2, 6), ("1", "0", "2"))
    )
    assert "x.r[i.i, i.o, j]" in str(split)
    assert replay(program, [Step.from_json(s.to_json()) for s in split.trace]).trace == split.trace
    refuses(lambda: tiles.transform_layout("x.r", (4, 2, 6), ("0", "1")), "3 parts of 'x.r'")
    refuses(lambda: tiles.transform_layout("x.r", (3, 2, 6), ("0", "1", "2")), "parts of 3x2x6")
    refuses(lambda: tiles.transform_layout("x", (8, 6), ("1", "0")), "no private array is called")


def test_what_nothing_is_left_of_disappears(tiny, assert_same) -> None:
    """A loop whose only store never happens in the last block."""
    x, y = tiny.operand("x", 10), tiny.result("y", 10)
    stage = tiny.map(y, "i", lambda i: load(x, (i,)))
    early = replace(
        stage,
        assigns=(replace(stage.assigns[0], guard=apply("lt", stage.axes[0], index.constant(6))),),
        overwrites=(y,),
    )
    blocks = Schedule(tiny.program(early)).split("i", 4, "shorten").specialize("i.i", "i.o")
    assert str(blocks).count("for i.i") == 1


def test_cache_read_of_a_window_stays_inside_the_buffer(tiny, assert_same) -> None:
    x, y = tiny.operand("x", 10), tiny.result("y", 10)

    def window(i: Expr) -> Expr:
        left = load(x, (minus(i, 1),), apply("ge", i, index.constant(1)), ONE)
        right = load(x, (minus(i, -1),), apply("lt", i, index.constant(9)), TWO)
        return apply("sub", left, right)

    program = tiny.program(tiny.map(y, "i", window))
    staged = Schedule(program).split("i", 4).cache_read("x", "i.o")
    assert "alloc x.i.o: 6xf32 stack" in str(staged)
    assert_same(program, staged.program, [np.arange(10, dtype=np.float32)])


def test_cache_read_at_places_that_change_meanwhile() -> None:
    """Where memory says what is read, and the loop writes there, all of the buffer is copied."""
    x, places = Buffer("x", F32, (8,), "operand"), Buffer("places", INDEX, (4, 8), "operand")
    y, held = Buffer("y", F32, (4, 8), "result"), Buffer("held", INDEX, (), "register")
    i, j = variable("i", 4), variable("j", 8)
    inner = For(
        j,
        index.constant(8),
        LoopKind.SERIAL,
        (
            Store(held, (), index.floormod(load(places, (i, j)), 8)),
            Store(y, (i, j), load(x, (load(held, ()),))),
        ),
    )
    program = LoopProgram(
        "looked_up",
        (x, places),
        (y,),
        (For(i, index.constant(4), LoopKind.SERIAL, (Allocate(held, (inner,)),)),),
    )
    staged = Schedule(program).cache_read("x", "j")
    refuses(lambda: Schedule(program).cache_read("x", "i", "loops"), "changes meanwhile what")
    inputs = [np.arange(8, dtype=np.float32), np.arange(32).reshape(4, 8) * 3]
    (expected,) = interpret(program, inputs)
    (actual,) = interpret(staged.program, inputs, seed=1)
    np.testing.assert_array_equal(actual, expected)
    np.testing.assert_array_equal(expected, (np.arange(32).reshape(4, 8) * 3 % 8))


def test_cache_read_refuses(transposed, running) -> None:
    refuses(lambda: Schedule(transposed).cache_read("z", "i"), "no buffer is called 'z'")
    refuses(lambda: Schedule(running).cache_read("y", "i"), "also writes y")
    refuses(lambda: Schedule(transposed).cache_read("x", "k"), "no loop is called 'k'")
    refuses(lambda: Schedule(transposed).vectorize("j").cache_read("x", "j"), "is a vector")
    staged = Schedule(transposed).cache_read("x", "i")
    refuses(lambda: staged.cache_read("x", "i"), "already")
    inner = Schedule(transposed).parallel("j")
    refuses(lambda: inner.cache_read("x", "i"), "its tasks share x")
    refuses(
        lambda: Schedule(transposed).cache_read("x", "i", "transposed"),
        "expected a layout of 'x' out of rows, loops; got 'transposed'",
    )
    shorter = Schedule(transposed).split("j", 3, "shorten")
    refuses(lambda: shorter.cache_read("x", "i", "loops"), "changes meanwhile what")


@pytest.fixture
def product(tiny) -> Schedule:
    """s[i, j] = sum over k of x[i, k] * exp(y[k, j])."""
    x, y, s = tiny.operand("x", 4, 8), tiny.operand("y", 8, 6), tiny.result("s", 4, 6)
    return Schedule(
        tiny.program(
            tiny.fold(
                s,
                "ij",
                "k",
                8,
                lambda i, j, k: apply("mul", load(x, (i, k)), apply("exp", load(y, (k, j)))),
            )
        )
    )


@pytest.fixture
def matrices() -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal(shape, np.float32) for shape in ((4, 8), (8, 6))]


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


def test_promote_refuses(product, copy) -> None:
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
    for kept, dtype in (("value", F32), ("source", F16)):
        hoisted = small_product.hoist("e", "e", 1, kept)
        (tile,) = (
            s.buffer
            for s in walk(hoisted.program.body)
            if isinstance(s, Allocate) and s.buffer.name == "e.h"
        )
        assert tile.dtype is dtype
        assert_same(small_product.program, hoisted.program, halves)
    refuses(lambda: small_product.hoist("e", "e", 1, "half"), "expected value or source")


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


def test_cache_write(tiny) -> None:
    x, y = tiny.operand("x", 4, 8), tiny.result("y", 8, 4)
    program = tiny.program(tiny.map(y, "ji", lambda j, i: load(x, (i, j)), order=(1, 0)))
    shows(
        Schedule(program).cache_write("y", "i").program,
        """
        for i in 0..4:
          alloc y.i: 8xf32 stack:
            for j in 0..8:
              y.i[j] = x[i, j]
            for y.i.0 in 0..8:
              y[y.i.0, i] = y.i[y.i.0]
        """,
    )


def test_cache_write_refuses(tiny, running) -> None:
    y = tiny.result("y", 4, 8)
    even = apply("lt", variable("j", 8), index.constant(3))
    stage = tiny.map(y, "ij", lambda i, j: ONE)
    some = Stage("some", stage.axes, (Assign(y, stage.axes, ONE, even),))
    refuses(lambda: Schedule(tiny.program(some)).cache_write("y", "i"), "does not surely write")


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


@pytest.fixture
def rising(tiny) -> Schedule:
    """Over rows i: p = a[i, k, k], and b[i, k, j] = p * 2 for j < k; then y[i] = p."""
    a, b = tiny.operand("a", 8, 4, 4), tiny.result("b", 8, 4, 4)
    y, p = tiny.result("y", 8), Buffer("p", F32, (), "register")
    i, k, j = variable("i", 8), variable("k", 4), variable("j", 3)
    inner = For(j, k, LoopKind.SERIAL, (Store(b, (i, k, j), apply("mul", load(p, ()), TWO)),))
    outer = For(k, index.constant(4), LoopKind.SERIAL, (Store(p, (), load(a, (i, k, k))), inner))
    body = Allocate(p, (outer, Store(y, (i,), load(p, ()))))
    fill = tiny.map(b, "mno", lambda m, n, o: ONE)
    return Schedule(
        LoopProgram(
            "rising",
            (a,),
            (b, y),
            (*lower_stage(fill), For(i, index.constant(8), LoopKind.SERIAL, (body,))),
        )
    )


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


def test_rename(rising) -> None:
    sunk = rising.expand("i", "stack").distribute("i", "k").rename("i", "k", "i.k")
    assert sunk.loop_names[3:] == ("i.k", "k", "j", "i")
    refuses(lambda: sunk.rename("i", "k", "j"), "a name for 'i' that no loop has")
    refuses(lambda: sunk.rename("i", "k", "l"), "holds no loop called k")
    refuses(lambda: sunk.rename("i", "z", "l"), "no loop is called 'z'")


def test_cache_write_of_what_an_argmax_reads(tiny, assert_same) -> None:
    """It updates its value and its place together, but not what they are found in."""
    searched, x = argmax(5, 3), tiny.operand("x", 5, 3)
    seen = tiny.result("seen", 5, 3)
    k, i = variable("n", 5), variable("i", 3)
    stored = Stage("stored", (k,), (Assign(seen, (k, i), apply("neg", load(x, (k, i)))),))
    found = argmax_stage(seen, searched.results, i)
    program = LoopProgram(
        "both", (x,), (seen, *searched.results), lower_nest((i,), (stored, replace(found, axes=())))
    )
    cached = Schedule(program).cache_write("seen", "i", "transposed")
    assert_same(program, cached.program, [np.arange(15, dtype=np.float32).reshape(5, 3) % 7])


def test_while_loops_stay_out_of_vectors(copy) -> None:
    (loop,) = copy.body
    condition = apply("lt", load(copy.results[0], (loop.var,)), ONE)
    body = (For(loop.var, loop.extent, loop.kind, (While(condition, loop.body),)),)
    refuses(lambda: Schedule(with_body(copy, body)).vectorize("i"), "cannot run within a vector")


def test_trace_replays_from_json(transposed) -> None:
    schedule = Schedule(transposed).fuse("i", "j").split("i.j", 5).vectorize("i.j.i")
    steps = [Step.from_json(step.to_json()) for step in schedule.trace]
    assert [str(s) for s in steps] == ["fuse('i', 'j')", "split('i.j', 5)", "vectorize('i.j.i')"]
    assert str(replay(transposed, steps)) == str(schedule)


def test_the_history_has_every_step(transposed) -> None:
    assert list(Schedule(transposed).history()) == []
    schedule = Schedule(transposed).fuse("i", "j").split("i.j", 5).vectorize("i.j.i")
    assert schedule.naive is transposed
    steps = list(schedule.history())
    assert tuple(step for step, _ in steps) == schedule.trace
    assert "i.j.o" not in program_text(steps[0][1])
    assert "i.j.o" in program_text(steps[1][1])
    assert program_text(steps[-1][1]) == str(schedule)


def test_unknown_primitives_are_refused(copy) -> None:
    refuses(lambda: Schedule(copy).apply(Step("tile", ("i",))), "no schedule primitive", "split")
