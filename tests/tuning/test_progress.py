"""What a person sees who waits for tuning."""

from __future__ import annotations

import functools
import io
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from hlo_mlc.runtime.records import Measured
from hlo_mlc.tuning import progress
from hlo_mlc.tuning.messages import Timed
from hlo_mlc.tuning.progress import TuningProgress
from hlo_mlc.tuning.space import Parameter, Space
from hlo_mlc.tuning.storage import open_storage
from hlo_mlc.tuning.study import KernelStudy
from hlo_mlc.tuning.tuner import Budget

SPACE = Space((Parameter(0, "elementwise", "unroll", tuple(range(1, 41)), 2),))


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> TuningProgress:
    """A table on a terminal of 80 columns; `shown._console.file` has what is written there."""
    monkeypatch.setattr(
        progress,
        "Console",
        lambda stderr: Console(
            file=io.StringIO(), force_terminal=True, width=80, color_system=None
        ),
    )
    return TuningProgress()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The time, which passes when `now` is set."""
    found = SimpleNamespace(now=100.0)
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: found.now))
    return found


@pytest.fixture
def study(tmp_path: Path) -> KernelStudy:
    """One with a trial that was 1.25 times as fast as the default."""
    study = KernelStudy(open_storage(tmp_path / "journal"), "k", SPACE)
    for outcome in (Timed(100.0, 100.0, 1.0), Timed(100.0, 80.0, 1.25)):
        study.tell(study.next(), outcome, "")
    return study


def lines(table: TuningProgress) -> list[str]:
    """The table as it is by now."""
    console = Console(file=io.StringIO(), width=80)
    console.print(table._bar.make_tasks_table(table._bar.tasks), soft_wrap=True)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def test_a_kernel_while_it_is_tuned(
    shown: TuningProgress, study: KernelStudy, clock: SimpleNamespace
) -> None:
    with shown:
        shown.begin(
            "1/2 softmax_of_something_long@model.py:1234",
            study,
            SPACE,
            Budget(10),
            least_us=40.0,
            xla_us=240.0,
        )
        head, row = lines(shown)
        assert head.split() == ["kernel", "tried", "best", "default", "XLA", "limit", "left"]
        assert row.split()[-6:] == ["2", "80.0", "us", "1.25x", "~3.00x", "50%"]
        assert row.startswith("1/2 softmax_of_something") and "…" in row and len(row) <= 80
        clock.now += 8.0
        study.tell(study.next(), Timed(100.0, 90.0, 1.1), "")
        shown.on_trial(study, Timed(100.0, 90.0, 1.1))
        assert lines(shown)[1].split()[-1] == "0:56", "seven more, of which one took 8 s"
        shown.end(Measured(100.0, 78.0, 1.28, xla_us=195.0, xla_ratio=2.5))
        assert lines(shown)[1].split()[-6:] == ["78.0", "us", "1.28x", "2.50x", "51%", "done"]


def test_the_time_that_is_left(
    shown: TuningProgress, study: KernelStudy, clock: SimpleNamespace
) -> None:
    with shown:
        shown.begin("k", study, SPACE, Budget(None, clock.now + 90.2))
        assert lines(shown)[1].split()[-1] == "1:30"
        shown.begin("k", study, SPACE, Budget(64, None, 0.005))
        clock.now += 2.0
        study.tell(study.next(), Timed(100.0, 90.0, 1.1), "")
        shown.on_trial(study, Timed(100.0, 90.0, 1.1))
        assert lines(shown)[2].split()[-1] == "<1:14", "37 of 2 s, but it may end before"
        shown.begin("late", study, SPACE, Budget(64, clock.now - 1.0, 0.005))
        assert lines(shown)[3].split()[-1] == "0:00", "it is over, and not before that"


def test_it_is_drawn_on_terminals_alone(
    monkeypatch: pytest.MonkeyPatch, study: KernelStudy, shown: TuningProgress
) -> None:
    with shown:
        shown.begin("drawn", study, SPACE, Budget(10))
    assert "drawn" in shown._console.file.getvalue()
    monkeypatch.setattr(progress, "Console", functools.partial(Console, file=io.StringIO()))
    with TuningProgress() as silent:
        silent.begin("drawn", study, SPACE, Budget(10))
    assert silent._console.file.getvalue() == ""
