"""Schedules as chains of primitives: their trace, their history, and what no primitive takes."""

from __future__ import annotations

import inspect
from dataclasses import replace

import pytest

from hlo_mlc.expr import index
from hlo_mlc.expr.build import apply, load
from hlo_mlc.loops.text import program_text
from hlo_mlc.schedule.core import Schedule, Step, replay
from hlo_mlc.support.errors import ScheduleError
from making.rewritten import refuses


def test_arguments_of_the_wrong_kind_are_refused(copy) -> None:
    with pytest.raises(ScheduleError, match="split: expected factor to be int, got 'four'"):
        Schedule(copy).split("i", "four")
    with pytest.raises(ScheduleError, match="split: expected factor to be int, got None"):
        Schedule(copy).split("i", None)


def test_calls_that_do_not_fit_are_told_how_it_is_called(copy) -> None:
    with pytest.raises(TypeError, match=r"split\(name.*, factor.*\): missing .*'factor'"):
        Schedule(copy).split("i")
    assert list(inspect.signature(Schedule.split).parameters) == ["self", "name", "factor", "tail"]


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
