"""`hlo-mlc doctor`: what it shows, and that it says so when something is broken."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import jax
import pytest

from hlo_mlc.runtime import library
from hlo_mlc.support.errors import RuntimeLibraryError


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
    assert "There is no CPU target 'vax'" in result.stdout
