"""`hlo-mlc doctor`: what it shows, and that it says so when something is broken."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import jax
import pytest

from hlo_mlc import limits
from hlo_mlc.interop import calibration
from hlo_mlc.limits import Level, MachineLimits
from hlo_mlc.runtime import busyness, library
from hlo_mlc.runtime.busyness import Clocks
from hlo_mlc.support.errors import RuntimeLibraryError
from hlo_mlc.target.levels import runnable
from hlo_mlc.target.rates import Rates


def test_shows_what_is_here(hlo_mlc: Callable, tmp_path: Path) -> None:
    result = hlo_mlc("doctor", "--quick")
    assert result.exit_code == 0, result.output
    for expected in (jax.__version__, "llvmlite", "optuna", "runtime library", "ABI version"):
        assert expected in result.stdout
    assert "cache" in result.stdout


def test_a_missing_library_is_a_problem(hlo_mlc: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    def load() -> None:
        raise RuntimeLibraryError("The native runtime library was not found.")

    monkeypatch.setattr(library, "load", load)
    result = hlo_mlc("doctor", "--quick")
    assert result.exit_code == 1
    assert "problem" in result.stdout
    assert "was not found" in result.stdout


def test_an_unknown_target_is_a_problem(hlo_mlc: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HLO_MLC_TARGET", "vax")
    result = hlo_mlc("doctor", "--quick")
    assert result.exit_code == 1
    assert "Target 'vax': there is no such CPU" in result.stdout


def test_the_limits_are_measured_once_and_again_when_asked_to(
    hlo_mlc: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = [MachineLimits(gflops, (Level(1 << 20, 50.0),), 10.0) for gflops in (100.0, 123.0)]
    monkeypatch.setattr(limits, "measure_limits", lambda target: measured.pop(0))
    for arguments, figure in (((), "100"), ((), "100"), (("--refresh",), "123"), ((), "123")):
        result = hlo_mlc("doctor", *arguments)
        assert result.exit_code == 0, result.output
        assert f"{figure} GFLOP/s" in result.stdout
        assert "10 GB/s read and written" in result.stdout
    assert list((tmp_path / "cache").glob("limits-*.json"))


def test_the_rates_are_measured_once(
    hlo_mlc: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = MachineLimits(1.0, (Level(1 << 20, 1.0),), 1.0)
    monkeypatch.setattr(limits, "measure_limits", lambda target: known)
    assert "these are typical figures" in hlo_mlc("doctor").stdout
    monkeypatch.setenv("HLO_MLC_CALIBRATE", "1")
    measured = [Rates(xla_exp=3.25), Rates(xla_exp=3.75)]
    monkeypatch.setattr(calibration, "measure_rates", lambda target: measured.pop(0))
    for arguments, figure in (((), "3.25"), ((), "3.25"), (("--refresh",), "3.75")):
        result = hlo_mlc("doctor", *arguments)
        assert result.exit_code == 0, result.output
        assert f"exp {figure}" in result.stdout
    assert list((tmp_path / "cache").glob("rates-*.json"))


def test_figures_of_a_busy_machine_are_marked(
    hlo_mlc: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HLO_MLC_CALIBRATE", "1")
    monkeypatch.setenv("COLUMNS", "200")
    known = MachineLimits(1.0, (Level(1 << 20, 1.0),), 1.0)
    monkeypatch.setattr(limits, "measure_limits", lambda target: known)
    monkeypatch.setattr(calibration, "measure_rates", lambda target: Rates(xla_exp=3.25))
    moments = [Clocks(2.0 * n, 3.0 * n, 1.0 * n, cpus=2) for n in range(4)]
    monkeypatch.setattr(busyness, "read_clocks", lambda: moments.pop(0))
    result = hlo_mlc("doctor")
    assert result.exit_code == 0, result.output
    assert result.stdout.count("while the machine was busy: others had 50% of its CPUs") == 2
    assert result.stderr.count("warning: measured this machine while the machine was busy") == 1
    moments[:] = [Clocks(2.0 * n, 3.0 * n, 3.0 * n, cpus=2) for n in range(4)]
    result = hlo_mlc("doctor")
    assert "machine was busy" not in result.output and not moments


def test_it_names_the_level(hlo_mlc: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    level = runnable()[1]
    monkeypatch.setenv("HLO_MLC_TARGET", level)
    result = hlo_mlc("doctor", "--quick")
    assert result.exit_code == 0 and f"{level}, of cpu, {level}" in result.stdout
