"""What else ran while something was measured: from the system's clocks, and what follows."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

import pytest

from hlo_mlc.runtime import busyness
from hlo_mlc.runtime.busyness import (
    BUSY,
    Clocks,
    at_once,
    busy_line,
    disturbed_since,
    observed,
    read_clocks,
    share_in,
    supersedes,
    when_idle,
)


def show(monkeypatch: pytest.MonkeyPatch, *moments: Clocks | None) -> None:
    """The clocks show these, one after the other."""
    left = list(moments)
    monkeypatch.setattr(busyness, "read_clocks", lambda: left.pop(0))


@pytest.mark.parametrize(
    ("passed_s", "busy_s", "own_s", "share"),
    [
        (2.0, 4.0, 4.0, 0.0),  # all of it is ours
        (2.0, 3.0, 1.0, 0.5),
        (2.0, 4.0, 0.0, 1.0),
        (2.0, 1.0, 1.3, 0.0),  # ticks are coarser than our own clock
        (0.1, 0.2, 0.0, 0.0),  # too short to tell
    ],
)
def test_the_share_of_others(passed_s: float, busy_s: float, own_s: float, share: float) -> None:
    before = Clocks(10.0, 20.0, 3.0, cpus=2)
    after = Clocks(10.0 + passed_s, 20.0 + busy_s, 3.0 + own_s, cpus=2)
    assert before.share_of_others(after) == pytest.approx(share)


def test_the_clocks_of_the_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the CPUs that this process may use; idle and waiting CPUs are not busy, stolen ones are,
    and guests are counted once."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {1, 3})
    stat = tmp_path / "stat"
    stat.write_text(
        "cpu  9 9 9 9 9 9 9 9 9 9\ncpu0 9 9 9 9 9 9 9 9 9 9\n"
        "cpu1 100 20 3 5000 700 4 5 60 90 7\ncpu3 8 0 0 1 1 0 0 0 0 0\nintr 5\n"
    )
    clocks = read_clocks(stat)
    assert clocks is not None and clocks.cpus == 2
    assert clocks.busy_s == pytest.approx((192 + 8) / os.sysconf("SC_CLK_TCK"))


@pytest.mark.parametrize("content", ["", "cpu0 1 2 3 4 5\n", "cpu1 x\n"])
def test_a_system_that_does_not_tell(
    tmp_path: Path, content: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {1})
    (tmp_path / "stat").write_text(content)
    assert read_clocks(tmp_path / "stat") is None
    assert read_clocks(tmp_path / "none") is None


def test_what_is_measured_on_a_busy_machine_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    show(monkeypatch, Clocks(0, 0, 0, 4), Clocks(1, 3, 1, 4))
    with pytest.warns(RuntimeWarning, match="while the machine was busy: others had 50% of its"):
        assert observed(lambda: "found") == ("found", 0.5)


@pytest.mark.parametrize(
    "moments",
    [
        (Clocks(0, 0, 0, 4), Clocks(1, 3, 2.8, 4)),
        (None, Clocks(1, 3, 1, 4)),
        (Clocks(0, 0, 0, 4), None),
    ],
)
def test_no_warning_where_it_is_idle_or_unknown(
    moments: Sequence[Clocks | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    show(monkeypatch, *moments)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found, share = observed(lambda: "found")
    assert found == "found" and share <= BUSY and busy_line(share) == ""


def test_what_is_said_of_times_of_a_busy_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    show(monkeypatch, Clocks(2, 3, 0, 2), Clocks(2, 2, 2, 2), None, Clocks(2, 2, 2, 2))
    assert disturbed_since(Clocks(0, 0, 0, 2)).startswith("other programs had 75% of the CPUs' ti")
    assert disturbed_since(Clocks(0, 0, 0, 2)) == disturbed_since(Clocks(0, 0, 0, 2)) == ""
    assert disturbed_since(None) == ""


@pytest.mark.parametrize(
    ("share", "earlier", "kept"),
    [(0.9, None, True), (0.05, 0.0, True), (0.5, 0.6, True), (0.6, 0.5, False), (0.5, 0.0, False)],
)
def test_better_figures_stay(share: float, earlier: float | None, kept: bool) -> None:
    assert supersedes(share, earlier) == kept


def test_the_share_in_notes() -> None:
    assert share_in({"busy": 0.25}) == 0.25
    assert share_in({}) == share_in(None) == 0.0  # before shares were noted
    assert share_in({"busy": "x"}) == share_in({"busy": 7}) == 1.0


def test_only_an_idle_moment_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looked at until it is idle, and measured anew where somebody came meanwhile."""
    monkeypatch.setattr(busyness.time, "sleep", lambda seconds: None)
    idle, busy = (Clocks(0, 0, 0, 4), Clocks(1, 1, 1, 4)), (Clocks(0, 0, 0, 4), Clocks(1, 3, 1, 4))
    measured: list[int] = []

    def measure() -> int:
        measured.append(len(measured))
        return measured[-1]

    show(monkeypatch, *busy, *idle, *busy, *busy, *idle, *idle)
    assert when_idle(measure) == 1
    show(monkeypatch, *busy, *busy)
    assert when_idle(measure, most=0.5) == 2
    assert at_once(measure) == 3


def test_children_are_no_others(tmp_path: Path) -> None:
    """What a process that this thread started runs is its own, while it lives and afterwards."""
    program = (
        "import sys, time\nwhile time.process_time() < 0.3: pass\nprint(flush=True)\n"
        "sys.stdin.readline()"
    )
    before = read_clocks()
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        process.stdout.readline()
        alive = read_clocks()
        process.communicate("\n")
    ended = read_clocks()
    assert alive.own_s - before.own_s > 0.25 and ended.own_s - before.own_s > 0.25
