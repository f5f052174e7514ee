"""What scripts/gpu_check.py measures runs, on small arrays and without a GPU."""

from __future__ import annotations

import functools
import importlib.util
import json
import math
import sys
from pathlib import Path

import pytest

from hlo_mlc import mlc_jit
from hlo_mlc.codegen.cuda.compile import why_not

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
    groups = [list(group) for group in (
        script.movement(16, 40), script.compute(32), script.products(32, with_tf32=False))]
    movement, compute, products = ([script.measure(subject, compile_ours, 10.0)
                                    for subject in group] for group in groups)
    rows = [*movement, *compute, *products]
    assert [row.get("message") for row in rows if row["status"] != "right"] == []
    assert all("share_of_copy" in row for row in movement)
    assert all("share_of_cublas" in row for row in products)
    assert all(row["coverage"] == 1 for row in rows)
    kinds = script.by_template(rows)
    assert {"elementwise", "scan", "window"} <= kinds.keys()
    assert all(0 < k["lowest"] <= k["median"] <= k["highest"] for k in kinds.values())


def test_wrong_results_are_not_timed(script) -> None:
    def compile_wrongly(function):
        compiled = mlc_jit(lambda *args: function(*args) + 1, choose="ours")
        return compiled

    subject = next(iter(script.movement(4, 8)))
    row = script.measure(subject, compile_wrongly, 10.0)
    assert row["status"] == "wrong"
    assert "ours_us" not in row


def test_without_a_gpu_it_says_so(script, capsys) -> None:
    assert script.main([]) == 1
    assert "expected a GPU" in capsys.readouterr().err


def test_every_step_is_written_at_once(script, tmp_path, capsys) -> None:
    record = script.Record(tmp_path / "results.json")
    record.add("about", {"device": "none"}, is_list=False)
    record.add("movement", {"name": "chain", "status": "right", "ratio": 1.5})
    assert json.loads(record.path.read_text()) == record.found
    assert "movement chain: right ratio 1.5" in capsys.readouterr().err


@pytest.mark.skipif(bool(why_not()), reason=why_not() or "it can")
def test_choices_of_parameters(script, monkeypatch) -> None:
    """On the CPU, whose kernels have the same names: what is published for GPUs is not run."""
    monkeypatch.setattr(script, "ROUNDS", 1)
    monkeypatch.setattr(script, "QUEUED", 1)
    compile_ours = functools.partial(mlc_jit, choose="ours")
    subject = next(iter(script.movement(64, 128)))
    rows = list(script.choices(subject, compile_ours, math.inf))
    assert {"with_grid", "with_unroll", "with_threads"} <= {key for row in rows for key in row}
    assert [row.get("message") for row in rows if row["status"] != "right"] == []
