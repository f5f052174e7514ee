"""What scripts/gpu_check.py measures runs, on small arrays and without a GPU."""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hlo_mlc import mlc_jit
from hlo_mlc.runtime.records import open_records
from hlo_mlc.support.options import Options
from hlo_mlc_bench import gpu
from hlo_mlc_bench.gpu_subjects import compute, movement, products

SCRIPT = Path(__file__).parents[2] / "scripts" / "gpu_check.py"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("gpu_check", SCRIPT)
    module = sys.modules["gpu_check"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def hurried(monkeypatch) -> None:
    """Everything is run once."""
    monkeypatch.setattr(gpu, "ROUNDS", 1)
    monkeypatch.setattr(gpu, "QUEUED", 1)


def test_subjects_are_right(script, hurried) -> None:
    compile_ours = functools.partial(mlc_jit, choose="ours")
    groups = [
        list(group) for group in (movement(16, 40), compute(32), products(32, with_tf32=False))
    ]
    moving, computing, multiplying = (
        [gpu.measure(subject, compile_ours, 10.0) for subject in group] for group in groups
    )
    rows = [*moving, *computing, *multiplying]
    assert [row.get("message") for row in rows if row["status"] != "right"] == []
    assert all("share_of_copy" in row for row in moving)
    assert all("share_of_cublas" in row for row in multiplying)
    assert all(row["coverage"] == 1 for row in rows)
    kinds = script.by_template(rows)
    assert {"elementwise", "scan", "window"} <= kinds.keys()
    assert all(0 < k["lowest"] <= k["median"] <= k["highest"] for k in kinds.values())


def test_wrong_results_are_not_timed() -> None:
    def compile_wrongly(function):
        compiled = mlc_jit(lambda *args: function(*args) + 1, choose="ours")
        return compiled

    subject = next(iter(movement(4, 8)))
    row = gpu.measure(subject, compile_wrongly, 10.0)
    assert row["status"] == "wrong"
    assert "ours_us" not in row


def test_without_a_gpu_it_says_so(script, capsys) -> None:
    assert script.main([]) == 1
    assert "expected a GPU" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("output", "returned", "must_run", "status"),
    [
        ("34 passed in 3 s", 0, True, 0),
        ("1 failed, 33 passed in 3 s", 1, True, 1),
        ("34 passed, 1 warning in 3 s\nplugin: 1 warning", 0, True, 0),
        ("34 skipped in 1 s", 0, True, 1),
        ("34 skipped in 1 s", 0, False, 0),
        ("", 2, False, 2),
    ],
)
def test_tests_that_are_all_skipped_have_shown_nothing(
    script, monkeypatch, output: str, returned: int, must_run: bool, status: int
) -> None:
    monkeypatch.setattr(
        script.subprocess,
        "run",
        lambda *_, **__: subprocess.CompletedProcess((), returned, output, ""),
    )
    assert script.run_tests(1.0, must_run)["status"] == status


BUILDING = """
import importlib.util, os, runpy, subprocess, sys
found = importlib.util.find_spec
importlib.util.find_spec = lambda name: None if name == "hlo_mlc_bench" else found(name)
def run(command, **_):
    print("ran", *command[1:])
    return subprocess.CompletedProcess(command, int(os.environ["STATUS"]), "", "no compiler")
subprocess.run = run
def execv(program, arguments):
    print("then", *arguments[1:])
    sys.exit(7)
os.execv = execv
runpy.run_path(sys.argv.pop(1), run_name="__main__")
"""


@pytest.mark.parametrize(
    ("before", "status", "returned", "said"),
    [
        ({}, 0, 7, "ran -m pip install --no-index --no-deps --no-build-isolation"),
        ({}, 1, 1, "hlo_mlc cannot be built: no compiler"),
        ({"MLC_GPU_CHECK_BUILT": "1"}, 0, 1, "cannot be imported after a build"),
    ],
)
def test_it_builds_what_is_not_there(before: dict, status: int, returned: int, said: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", BUILDING, str(SCRIPT), "--seconds", "5"],
        text=True,
        capture_output=True,
        env={**os.environ, **before, "STATUS": str(status)},
    )
    assert ran.returncode == returned, ran.stderr
    assert said in ran.stdout + ran.stderr
    assert ("then" in ran.stdout) is (returned == 7)
    if returned == 7:
        assert ran.stdout.rstrip().endswith("gpu_check.py --seconds 5")


def test_every_step_is_written_at_once(script, tmp_path, capsys) -> None:
    record = script.Record(tmp_path / "results.json")
    record.add("about", {"device": "none"}, is_list=False)
    record.add("movement", {"name": "chain", "status": "right", "ratio": 1.5})
    assert json.loads(record.path.read_text()) == record.found
    assert "movement chain: right ratio 1.5" in capsys.readouterr().err


def test_subjects_are_tuned(monkeypatch) -> None:
    """On the CPU.  What is found there is not remembered."""
    monkeypatch.setattr(gpu, "TRIALS", 2)
    cache = os.environ["HLO_MLC_CACHE"]
    known = len(open_records(Options.from_environment()).all())
    (row,) = gpu.tuned(next(iter(movement(64, 128))), functools.partial(mlc_jit, choose="ours"))
    assert (row["status"], row["tried"]) == ("right", 2)
    assert row["gain"] >= 1
    assert os.environ["HLO_MLC_CACHE"] == cache
    assert len(open_records(Options.from_environment()).all()) == known
