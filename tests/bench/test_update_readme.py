"""`scripts/update_readme.py`: the generated table, and that the rest of the README stays."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest

from hlo_mlc_bench import results
from hlo_mlc_bench.cases import DEMO
from hlo_mlc_bench.results import Results, Row, load

_SCRIPT = Path(__file__).parents[2] / "scripts" / "update_readme.py"


@pytest.fixture
def update_readme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script as a module, with a README of its own."""
    specification = importlib.util.spec_from_file_location("update_readme", _SCRIPT)
    script = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(script)
    monkeypatch.setattr(script, "_README", tmp_path / "README.md")
    monkeypatch.setattr(script, "_PICTURE", tmp_path / "speedup.svg")
    return script


@pytest.fixture
def result_file(tmp_path: Path) -> Path:
    """Results of one right and one wrong case."""
    right = Row(
        name="gelu",
        group="elementwise",
        status="right",
        jax_ms=0.5,
        ours_ms=0.2,
        ratio=2.5,
        ours_error=1e-7,
        clusters=1,
        coverage=1.0,
    )
    wrong = Row(name="softmax", group="rows", status="wrong")
    path = tmp_path / "results.json"
    Results(results.environment("auto", 5), (right, wrong)).save(path)
    return path


def test_replaces_what_stands_between_the_markers(
    update_readme: ModuleType, result_file: Path, tmp_path: Path
) -> None:
    readme = tmp_path / "README.md"
    readme.write_text(f"before\n{update_readme._BEGIN}old\n{update_readme._END}after\n")
    update_readme.main([str(result_file)])
    once = readme.read_text()
    update_readme.main([str(result_file)])
    assert readme.read_text() == once
    assert once.startswith("before\n") and once.endswith("after\n")
    assert "old" not in once
    assert "| gelu | 0.500 | 0.200 | 2.50 | 1.0e-07 | 1 | 100% |" in once
    assert "| softmax | | | wrong |" in once


def test_draws_what_was_right(update_readme: ModuleType, result_file: Path) -> None:
    rows = (
        Row(name=name, group="", status="right", jax_ms=ratio, ours_ms=1.0, ratio=ratio)
        for name, ratio in (("transpose", 0.5), ("argmax", 30.0))
    )
    measured = load(result_file)
    for row in rows:
        measured = measured.with_row(row)
    page = ElementTree.fromstring(update_readme.picture(measured))
    words = [text.text for text in page.findall("{*}text")]
    assert "0.500 → 0.200 ms" in words and "0.500x" in words
    assert [word for word in words if word in ("0.5x", "jax.jit", "2x", "20x", "50x")] == [
        "0.5x",
        "jax.jit",
        "2x",
        "20x",
    ]
    assert [word for word in words if word in DEMO] == ["argmax", "gelu", "transpose"]
    widths = [float(bar.get("width")) for bar in page.findall("{*}rect") if bar.get("rx")]
    assert widths[0] > widths[1] > widths[2] > 0
    assert all(
        float(bar.get("x") or 0) + float(bar.get("width")) <= float(page.get("width"))
        for bar in page.findall("{*}rect")
    )


def test_refuses_a_readme_without_markers(
    update_readme: ModuleType, result_file: Path, tmp_path: Path
) -> None:
    (tmp_path / "README.md").write_text("no markers")
    with pytest.raises(SystemExit, match="lacks the markers"):
        update_readme.main([str(result_file)])


def test_the_real_readme_has_the_markers(update_readme: ModuleType) -> None:
    text = (_SCRIPT.parents[1] / "README.md").read_text()
    assert update_readme._BEGIN in text
    assert update_readme._END in text


def test_a_file_that_is_gone_is_no_traceback(tmp_path: Path) -> None:
    gone = str(tmp_path / "gone.json")
    ended = subprocess.run(
        [sys.executable, _SCRIPT, gone], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 1
    (line,) = ended.stderr.splitlines()
    assert f"Cannot read results from {gone}: No such file" in line
