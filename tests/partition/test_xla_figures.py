"""The file of what XLA takes: complete, each figure used, not too old, and written by a script."""

from __future__ import annotations

import ast
import datetime
import importlib.util
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

import hlo_mlc
from hlo_mlc.partition.choose.xla_figures import PATH, read
from hlo_mlc_bench.cases import CASES
from hlo_mlc_bench.results import load

ROOT = Path(__file__).parents[2]
SOURCES = Path(hlo_mlc.__file__).parent / "partition" / "choose"
OLDEST = datetime.timedelta(days=366)


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    specification = importlib.util.spec_from_file_location(
        "xla_figures_script", ROOT / "scripts" / "xla_figures.py"
    )
    loaded = importlib.util.module_from_spec(specification)
    monkeypatch.setitem(sys.modules, "xla_figures_script", loaded)
    specification.loader.exec_module(loaded)
    return loaded


def test_each_figure_has_its_unit_its_run_and_a_case_that_there_is() -> None:
    cases = {case.name for one in CASES for case in (one, *one.neighbours)}
    figures = read()
    for name, figure in figures.by_name.items():
        assert figure.value > 0, name
        assert figure.unit, name
        assert figure.run in figures.runs, name
        assert figure.case in cases if figure.case else figure.seen, name


def test_no_run_is_a_year_older_than_the_newest_results_of_the_bench() -> None:
    newest = max(
        json.loads(path.read_text())["environment"]["date"][:10]
        for path in (ROOT / "bench" / "results").glob("*.json")
    )
    for run in read().runs.values():
        assert run.cpu
        assert run.cores > 0
        assert re.fullmatch(r"\d+\.\d+\.\d+", run.jaxlib)
        age = datetime.date.fromisoformat(newest) - datetime.date.fromisoformat(run.date)
        assert age < OLDEST, "run python scripts/xla_figures.py --write"


def named(node: ast.expr) -> Iterator[str]:
    """The figures that an argument may be the name of, as patterns."""
    if isinstance(node, ast.IfExp):
        yield from (*named(node.body), *named(node.orelse))
    elif isinstance(node, ast.JoinedStr):
        yield "".join(
            part.value if isinstance(part, ast.Constant) else r"\d+" for part in node.values
        )
    elif isinstance(node, ast.Constant):
        yield node.value


def test_each_figure_is_used_and_each_used_is_there() -> None:
    used = [
        name
        for path in SOURCES.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("figure", "thread_figure")
        for name in named(node.args[0])
    ]
    known = read().by_name
    for name in known:
        assert any(re.fullmatch(one, name) for one in used), name
    for one in used:
        assert any(re.fullmatch(one, name) for name in known), one


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    path.write_text(json.dumps({**json.loads(PATH.read_text()), "schema": 0}))
    with pytest.raises(ValueError, match="schema"):
        read(path)


def test_the_script_writes_what_is_read(script: ModuleType, tmp_path: Path) -> None:
    script.write(read(), tmp_path / "figures.json")
    assert (tmp_path / "figures.json").read_text() == PATH.read_text()


@pytest.mark.parametrize(("measured", "times"), [(110, 1), (200, 3), (30, None), (999, None)])
def test_a_figure_is_what_makes_the_prediction_right(
    script: ModuleType, measured: float, times: float | None
) -> None:
    assert script.solved(measured, lambda t: 50 + 50 * t)[0] == times


def test_rates_and_what_a_case_does_not_tell(script: ModuleType) -> None:
    assert script.solved(50, lambda t: 100 / t)[0] == 2
    assert script.solved(50, lambda t: 100 + t)[0] is None
    assert script.solved(50, lambda t: float("nan"))[0] is None


def test_how_far_predictions_are_off_follows_from_results(script: ModuleType) -> None:
    path = max((ROOT / "bench" / "results").glob("*.json"))
    results = replace(load(path), environment={"target": "cpu"})
    assert 0.3 < results.log_ratio_error < 1.5
    held = replace(
        results,
        rows=[replace(row, ratio=row.ratio and 2 * row.ratio) for row in results.rows],
        environment={"target": "x86-64-v3"},
    )
    assert script.deviations([results, held]) == {
        "off": results.log_ratio_error,
        "off_unmeasured": held.log_ratio_error,
    }
    assert held.log_ratio_error != results.log_ratio_error and script.deviations([]) == {}


def test_results_of_several_machines_count_as_their_geometric_mean(script: ModuleType) -> None:
    path = max((ROOT / "bench" / "results").glob("*.json"))
    results = load(path)
    slower = replace(
        results, rows=[replace(row, jax_ms=4 * row.jax_ms) for row in results.rows if row.jax_ms]
    )
    means = script.means([results, slower])
    for row in slower.rows:
        assert means[row.name] == pytest.approx(row.jax_ms * 1e3 / 2)
    run = script.run_of(
        {"a": results.environment, "b": {**results.environment, "date": "2099-01-01T00:00:00"}}
    )
    assert (run.cpu, run.date) == ("a, b", "2099-01-01")
