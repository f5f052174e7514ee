"""`hlo-mlc report`: a page of a function or a file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from hlo_mlc import explain
from hlo_mlc.limits import Level, MachineLimits

SOURCE = "import jax.numpy as jnp\ndef f(x):\n    return jnp.tanh(x).sum(-1)\n"


@pytest.fixture(autouse=True)
def limits(monkeypatch: pytest.MonkeyPatch) -> None:
    known = MachineLimits(gflops=100.0, caches=(Level(1 << 20, 300.0),), memory_gb_s=20.0)
    monkeypatch.setattr(explain, "machine_limits", lambda options: known)


def test_of_a_function(hlo_mlc: Callable, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(SOURCE)
    ran = hlo_mlc("report", "mine.py:f", "--arg", "f32[64,128]", "--choose", "ours", "-o", "r.html")
    assert ran.exit_code == 0, ran.output
    assert ran.stdout == "r.html: 1 kernel of ours, open it in a browser\n"
    assert (tmp_path / "r.html").read_text().startswith("<!doctype html>")


def test_of_a_file(hlo_mlc: Callable, tmp_path: Path) -> None:
    text = jax.jit(lambda x: jnp.tanh(x).sum(-1)).lower(jnp.ones((8, 16))).as_text()
    (tmp_path / "m.mlir").write_text(text)
    assert hlo_mlc("report", "m.mlir").exit_code == 0
    assert (tmp_path / "report.html").exists()
    ran = hlo_mlc("report", "m.mlir", "--arg", "f32[3]")
    assert ran.exit_code == 2 and "says itself what it takes" in ran.stderr


def test_what_cannot_be_written_is_said_at_once(hlo_mlc: Callable, tmp_path: Path) -> None:
    ran = hlo_mlc("report", "nowhere:f", "-o", "no/r.html")
    assert ran.exit_code == 2 and "there is no folder 'no'" in ran.stderr
    ran = hlo_mlc("report", "nowhere:f", "--arg", "f32[3]", "--arg-file", "x.npy")
    assert ran.exit_code == 2 and "not by both" in ran.stderr
