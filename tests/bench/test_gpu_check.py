"""What scripts/gpu_check.py measures runs, on small arrays and without a GPU."""

from __future__ import annotations

import functools
import importlib.util
import sys
from pathlib import Path

import pytest

from hlo_mlc import mlc_jit

SCRIPT = Path(__file__).parents[2] / "scripts" / "gpu_check.py"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("gpu_check", SCRIPT)
    module = sys.modules["gpu_check"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_subjects_are_right(script, monkeypatch) -> None:
    monkeypatch.setattr(script, "ROUNDS", 1)
    monkeypatch.setattr(script, "QUEUED", 1)
    compile_ours = functools.partial(mlc_jit, choose="ours")
    subjects = [*script.movement(16, 40), *script.products(32, with_tf32=False)]
    rows = [script.measure(subject, compile_ours, 10.0, with_torch=False) for subject in subjects]
    assert [row.get("message") for row in rows if row["status"] != "right"] == []
    assert all("share_of_copy" in row for row in rows[:10])
    assert all("share_of_cublas" in row for row in rows[10:])
    assert all(row["coverage"] == 1 for row in rows)


def test_wrong_results_are_not_timed(script) -> None:
    def compile_wrongly(function):
        compiled = mlc_jit(lambda *args: function(*args) + 1, choose="ours")
        return compiled

    subject = next(iter(script.movement(4, 8)))
    row = script.measure(subject, compile_wrongly, 10.0, with_torch=False)
    assert row["status"] == "wrong"
    assert "ours_us" not in row


def test_without_a_gpu_it_says_so(script, capsys) -> None:
    assert script.main([]) == 1
    assert "expected a GPU" in capsys.readouterr().err
