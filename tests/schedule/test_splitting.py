"""The primitives of `schedule/splitting.py`: examples, before and after, and refusals."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hlo_mlc.expr import index
from hlo_mlc.expr.build import apply, load
from hlo_mlc.loops.core import LoopKind
from hlo_mlc.schedule.core import Schedule
from hlo_mlc.schedule.splitting import TAILS
from making.rewritten import ONE, refuses, shows


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
