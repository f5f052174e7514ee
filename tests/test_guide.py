"""docs/guide.md: what it shows runs, and what it quotes is what a user sees."""

from __future__ import annotations

import re
from pathlib import Path

import jax.numpy as jnp
import pytest

import hlo_mlc
from hlo_mlc import mlc_jit

_GUIDE = Path(__file__).parents[1] / "docs" / "guide.md"


def test_its_blocks_run_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HLO_MLC_CHOOSE", "ours")
    blocks = re.findall(r"```python\n(.*?)```", _GUIDE.read_text(), re.DOTALL)
    names: dict[str, object] = {}
    for number, block in enumerate(blocks):
        exec(compile(block, f"guide.md, block {number}", "exec"), names)
    shown = capsys.readouterr().out
    assert "coverage: 100%" in shown and "the whole function, measured" in shown
    assert "not tuned" not in shown
    served, run = names["served"](names["x"]), names["result"]
    assert jnp.allclose(served, run, atol=1e-5)
    assert names["value"] < 2.3, "it has not learned"


def test_it_quotes_what_explain_says(tmp_path: Path) -> None:
    guide = _GUIDE.read_text()
    short, block, compared, timeline = re.findall(r"```text\n(.*?)```", guide, re.DOTALL)
    function = mlc_jit(lambda x: jnp.tanh(x).sum(-1), choose="ours")
    x = jnp.ones((64, 256))
    shown = str(function.explain(x))
    for phrase in (
        "coverage: 100% of the time and 100% of the operations, in ",
        "time of a call: ",
        " share      time  XLA/ours  of limit  kernel\n",
        "x as fast as by XLA alone (",
    ):
        assert phrase in short and phrase in shown
    for phrase in ("read and written", "simple operations", "predicted ", "XLA ", "reduction("):
        assert phrase in block and phrase in function.report(x).explain()
    table = str(hlo_mlc.compare(function, x, rounds=1))
    for phrase in ("jax.jit / ours", "a call", "  spread", "first call", "error against f64"):
        assert phrase in compared and phrase in table
    traced = str(function.trace(x, path=tmp_path / "trace.json"))
    for phrase in (
        "3 calls of ",
        " each (median), on ",
        "    a run   runs   tasks  at once  kernel\n",
        "trace.json: open it at https://ui.perfetto.dev",
    ):
        assert phrase in timeline and phrase in traced
    left = mlc_jit(lambda x: jnp.fft.fft(x).real[::-1] * 2).report(jnp.ones(83)).explain()
    for reason in ("predicted no faster than by XLA", "Fourier transforms "):
        assert reason in guide and reason in left
