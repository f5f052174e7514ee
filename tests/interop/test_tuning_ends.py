"""Tuning that is killed, interrupted, or short of time: what is known is kept."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from click.testing import CliRunner

from hlo_mlc import mlc_jit
from hlo_mlc.cli import main
from hlo_mlc.interop import tuning, tuning_session
from hlo_mlc.interop.tuning_report import TunedKernel
from hlo_mlc.runtime.records import Measured, Record, open_records
from hlo_mlc.support.options import Options
from hlo_mlc.tuning.storage import journal_path
from hlo_mlc.tuning.tuner import Winner
from making.tunable import SCHEDULES, X, product

pytestmark = pytest.mark.usefixtures("empty_cache")


def test_killed_and_started_again(tmp_path: Path) -> None:
    """kill -9 leaves no process behind, and what was measured."""
    (tmp_path / "model.mlir").write_text(jax.jit(product).lower(X).as_text())
    command = [
        sys.executable,
        "-P",
        "-c",
        "from hlo_mlc.cli import main; main()",
        "tune",
        "model.mlir",
        "--minutes",
        "5",
    ]
    journal = journal_path(Options.from_environment())
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        while not journal.exists() or journal.read_text().count("speedup") < 3:
            assert process.poll() is None
            time.sleep(0.05)
        workers = children(process.pid)
        assert workers
        process.kill()
    for _ in range(200):
        if not any(map(is_alive, workers)):
            break
        time.sleep(0.05)
    assert not any(map(is_alive, workers))
    known = journal.read_text().count("speedup")
    result = CliRunner().invoke(main, ["tune", "model.mlir", "--trials", str(known)])
    assert f"{known} configuration" in result.output


def children(process: int) -> list[int]:
    running = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal()]
    return [p for p in running if (status(p) or ["", ""])[1] == str(process)]


def is_alive(process: int) -> bool:
    return (status(process) or "Z")[0] != "Z"


def status(process: int) -> list[str] | None:
    """The state of a process and its parent's number; None if there is no such process."""
    try:
        text = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return None
    return text.rpartition(")")[2].split()[:2]


def test_a_second_interrupt_and_kernels_that_had_no_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    def tune_kernel(task, study, *_, **__):
        if started:
            raise KeyboardInterrupt
        started.append(study)
        return Winner(SCHEDULES, Measured(2.0, 1.0, 2.0), 5, 0, interrupted=again)

    monkeypatch.setattr(tuning_session, "tune_kernel", tune_kernel)
    for again, known in ((False, 1), (True, 1)):
        started: list = []
        f = mlc_jit(lambda x: (x @ x.T + 1, jnp.cumsum(x, 1)), choose="ours")
        with pytest.raises(tuning.TuningInterrupted, match="tuning again goes on") as stopped:
            f.tune(X, trials=9)
        report = stopped.value.report
        assert len(report.kernels) == 2
        assert [k.record is not None for k in report.kernels] == [True] * known + [False]
        assert report.kernels[0].interrupted == again
        assert "not tuned: interrupted before its winner was known" in str(report)
        assert report.whole is None


def test_an_interrupt_keeps_what_is_known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "model.mlir").write_text(jax.jit(product).lower(X).as_text())

    def interrupted(self, study, outcome) -> None:
        if len(study.tried) == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(tuning.TuningProgress, "on_trial", interrupted)
        stopped = CliRunner().invoke(main, ["tune", "model.mlir", "--trials", "3"])
    assert stopped.exit_code == 130 and "the same command goes on" in stopped.output
    assert "2 configurations known" in stopped.output
    assert "interrupted: this is the winner so far" in stopped.output
    (record,) = open_records(Options.from_environment()).all()
    assert record.measured.xla_us > 0
    trials = []
    monkeypatch.setattr(
        tuning.TuningProgress, "on_trial", lambda self, study, outcome: trials.append(outcome)
    )
    assert CliRunner().invoke(main, ["tune", "model.mlir", "--trials", "3"]).exit_code == 0
    assert len(trials) == 1


def test_a_kernel_that_there_was_no_time_for() -> None:
    """Of which it is not said that nothing is faster."""
    record = Record("abc", "cpu", {}, Measured(2.0, 2.0, 1.0))
    text = str(TunedKernel("sum@m.py:1", ("stablehlo.reduce",), 1, record))
    assert text == "sum@m.py:1: reduce\n  nothing was tried: there was no time left"
