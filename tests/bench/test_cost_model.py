"""`scripts/cost_model.py`: the picture of what was predicted against what was measured."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest

from hlo_mlc.target.cpu import named
from hlo_mlc.target.rates import Rates
from hlo_mlc_bench.results import Results, Row, environment

_SCRIPT = Path(__file__).parents[2] / "scripts" / "cost_model.py"


@pytest.fixture
def cost_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script as a module, with a project folder of its own."""
    specification = importlib.util.spec_from_file_location("cost_model", _SCRIPT)
    script = importlib.util.module_from_spec(specification)
    monkeypatch.setitem(sys.modules, "cost_model", script)  # where dataclasses look for types
    specification.loader.exec_module(script)
    monkeypatch.setattr(script, "_ROOT", tmp_path)
    monkeypatch.setattr(script, "_PICTURE", tmp_path / "docs" / "cost_model.svg")
    return script


def row(name: str, measured: float, predicted: float | None) -> Row:
    """A case that takes jax.jit longer than us, the more so the longer it takes."""
    return Row(
        name=name,
        group="any",
        status="right",
        ours_ms=measured,
        jax_ms=measured * (1 + measured),
        ratio=1 + measured,
        predicted_ours_ms=predicted,
        predicted_jax_ms=None if predicted is None else predicted * (1 + predicted),
    )


RESULTS = Results(
    environment("auto", 1),
    (
        row("fast", 0.01, 0.02),
        row("slow & large", 10.0, 90.0),
        row("between", 1.0, 0.7),
        row("unknown", 5.0, None),
        replace(row("failed", 1.0, 1.0), status="wrong"),
    ),
)


def test_draws_every_row_with_a_prediction(
    cost_model: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "bench" / "results" / "here.json"
    RESULTS.save(path)
    replace(RESULTS, rows=(row("old", 1.0, None),)).save(path.with_name("old.json"))
    cost_model.main([])
    picture = ElementTree.parse(tmp_path / "docs" / "cost_model.svg").getroot()
    titles = [title.text for title in picture.iter("{http://www.w3.org/2000/svg}title")]
    assert len(titles) == 3 * 3
    assert "slow & large, jax.jit: measured 1.1e+05, predicted 8.19e+06" in titles
    assert not any("unknown" in title or "failed" in title for title in titles)
    output = capsys.readouterr().out
    assert "rank correlation of 3 cases: all times 1.00, hlo_mlc 1.00, jax.jit 1.00" in output
    assert "slow & large, hlo_mlc: measured 1e+04, predicted 9e+04" in output


def test_predicts_anew_what_was_measured(
    cost_model: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Cases that there are, unless nothing was predicted of them before."""
    path = tmp_path / "results.json"
    measured = (row("exp", 1e6, 2.0), row("exp/odd", 1.0, None), row("none", 1.0, 0.5))
    replace(RESULTS, rows=measured).save(path)
    found = {one.name: one.predicted_ours_ms for one in cost_model.anew(cost_model.load(path)).rows}
    assert 0 < found["exp"] < 1.5
    assert (found["exp/odd"], found["none"]) == (None, 0.5)
    slow = replace(named("x86-64-v3"), rates=Rates(far_bytes=9.0))
    held = replace(RESULTS, rows=measured).measured_on(slow)
    there = {one.name: one.predicted_ours_ms for one in cost_model.anew(held).rows}
    assert there["exp"] > 100
    cost_model.main(["--anew", str(path)])
    output = capsys.readouterr().out
    assert "rank correlation of 2 cases" in output
    assert "exp, hlo_mlc: measured 1e+09" in output
    assert not (tmp_path / "docs").exists()


def test_names_what_is_far_off(cost_model: ModuleType) -> None:
    drawn = cost_model.picture(RESULTS, *cost_model.points(RESULTS))
    assert ">slow &amp; large</text>" in drawn
    assert ">fast</text>" not in drawn


def test_rank_correlation(cost_model: ModuleType) -> None:
    def correlation(*pairs: tuple[float, float]) -> float:
        return cost_model.rank_correlation([cost_model.Point("", *pair, "") for pair in pairs])

    assert correlation((1, 10), (2, 20), (3, 1000)) == pytest.approx(1)
    assert correlation((1, 30), (2, 20), (3, 10)) == pytest.approx(-1)
    assert correlation((1, 1), (2, 2), (2, 2), (4, 4)) == pytest.approx(1)
    # Ranks 1 2 3 4 5 and 2 1 4.5 4.5 3, whose products with the means taken off add up to 5.5.
    found = correlation((1, 2), (2, 1), (3, 4), (4, 4), (5, 3))
    assert found == pytest.approx(5.5 / (10 * 9.5) ** 0.5)


def test_says_so_when_there_are_no_results(cost_model: ModuleType) -> None:
    with pytest.raises(SystemExit, match="no results with predictions"):
        cost_model.main([])
