"""docs/performance.md is drawn from what was measured; sizes span three decades."""

from __future__ import annotations

import json
import math
import runpy
import xml.etree.ElementTree as ET
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import jax
import pytest

from hlo_mlc import mlc_jit
from hlo_mlc.tuning.space import Parameter, Space, TemplateChoice, key_of
from hlo_mlc_bench.case import Case
from hlo_mlc_bench.cases import BY_NAME
from hlo_mlc_bench.results import Results, Row, load
from hlo_mlc_bench.searches import Derived, Found, Timings, keep, known, timings

_ROOT = Path(__file__).parents[2]
_SCRIPT = runpy.run_path(str(_ROOT / "scripts" / "performance.py"))
_ENVIRONMENT = {"cpu": "a <CPU>", "cores": 2, "date": "2026-01-01T00:00", "packages": {"jax": "1"}}
_OTHERS = {
    "environment": _ENVIRONMENT,
    "peers": {"NumPy": "2", "IREE": "3"},
    "rows": [
        {
            "name": "gelu",
            "ms": {"hlo_mlc": 0.5, "jax.jit": 2.0, "IREE": 1.0},
            "failed": {"NumPy": "no program for it"},
            "after_pause_ms": {"hlo_mlc": 0.8, "jax.jit": 3.0, "IREE": 2.0},
        },
        {
            "name": "exp",
            "ms": {"hlo_mlc": 2.0, "jax.jit": 0.1, "NumPy": 1.0},
            "after_pause_ms": {"hlo_mlc": 4.0, "jax.jit": 0.1, "NumPy": 3.6},
        },
        {
            "name": "gru",
            "ms": {"hlo_mlc": 3.0, "jax.jit": 4.0},
            "after_pause_ms": {"hlo_mlc": 3.5, "jax.jit": 4.0},
        },
    ],
}
_REPORTED = Results(
    _ENVIRONMENT,
    (
        Row(
            name="median",
            group="issues",
            status="right",
            jax_ms=8.0,
            ours_ms=2.0,
            ratio=4.0,
            ours_first_call_s=0.1,
            jax_first_call_s=0.25,
        ),
        Row(name="median/odd", group="issues", status="right", jax_ms=3.0, ours_ms=2.0, ratio=1.5),
        Row(name="popped", group="issues", status="wrong"),
    ),
)

_HELD = Results(
    _ENVIRONMENT,
    (
        Row(name="exp", group="elementwise", status="right", ratio=2.0),
        Row(name="exp/odd", group="elementwise", status="right", ratio=8.0),
        Row(name="take", group="movement", status="right", ratio=0.5),
        Row(name="tanh", group="elementwise", status="wrong"),
    ),
)

_SEARCHED = [
    Found("gelu", "znver4", 96, 50.0, [(1.5, 16, 3.0), (1.2, 18, 5.0)], 1.6, 96),
    Found("exp", "znver4", 5000, 9.0, [(1.0, 8, 1.0), (1.0, 8, 1.0)], 0.98, 2000),
]
_DERIVED = [
    Derived("outer", "znver4", "elementwise", 500, 1.0, 1.2, "nest 0: derived(rows=2)"),
    Derived("rows", "znver4", "reduction", 500, 1.1, 0.9, ""),
]


@pytest.fixture
def measured() -> Any:
    cost, work = _SCRIPT["Cost"], _SCRIPT["Work"]
    return _SCRIPT["Measured"](
        _ENVIRONMENT,
        {"gflops": 100.0, "memory_gb_s": 10.0, "cache_gb_s": 80.0},
        [cost(name, n, n / 1e6, n / 5e5) for name in ("exp", "softmax") for n in (10, 1000, 10**5)],
        [work("far", 10**6, 10**5, 0.2), work("near", 10**4, 10**8, 2.0)],
    )


@pytest.mark.parametrize("name", _SCRIPT["SCALED"])
def test_sizes_span_three_decades_of_work(name: str) -> None:
    sizes = _SCRIPT["SCALED"][name]
    work = []
    for each in (sizes[0], sizes[-1]):
        function, args = replace(BY_NAME[name], sizes=each).make()
        analysis = jax.jit(function).lower(*args).cost_analysis() or {}
        work.append(max(analysis.get("flops", 0), sum(a.size for a in jax.tree.leaves(args))))
    assert work[1] >= 1000 * work[0]


def test_pictures_show_every_point(measured: Any, tmp_path: Path) -> None:
    _SCRIPT["draw"](measured, _OTHERS, _SEARCHED, _DERIVED, _REPORTED, _HELD, tmp_path)
    for name, count in (("scaling.svg", 12), ("roofline.svg", 2)):
        root = ET.fromstring((tmp_path / name).read_text())
        circles = [e for e in root.iter() if e.tag.endswith("circle")]
        assert len(circles) == count
        width, height = float(root.get("width")), float(root.get("height"))
        for circle in circles:
            assert 0 <= float(circle.get("cx")) <= width
            assert 0 <= float(circle.get("cy")) <= height
    text = (tmp_path / "performance.md").read_text()
    assert "| exp | 1,000 | 0.001 | 0.002 | 2.00 |" in text and "100 GFLOP/s" in text
    assert "| gelu | 0.5 | 2 |  | 1 | 2.00 | 0.8 | 2.50 |" in text
    assert "| gru | 3 | 4 |  |  |  | 3.5 |  |" in text
    assert (
        "[jax #4379](https://github.com/jax-ml/jax/issues/4379) | 2 | 8 | 4.00 | 1.50 | 100 |"
        " 250 |" in text
    )
    assert "issues/31284) | wrong |" in text
    assert "3 ratios of the time of jax.jit over ours, their geometric mean 2.00." in text
    assert "| elementwise | 2 | 4.00 | 2.00 (exp) |\n| movement | 1 | 0.50 | 0.50 (take) |" in text
    assert "| gelu | 50 | 96 | 96 | 1.60 | 84.4% | 75.0% | 17 | 4.0 |" in text
    assert "| exp | 9 | 5,000 | 2,000 | 1.00 | 100.0% | 100.0% | 8 | 1.0 |" in text
    assert "come to 92.2% of the best speed that was found, or nearer, in 2.0 s" in text
    assert "over ours: their geometric mean is 1.00, and 1 of 2 are at least 0.97. The" in text
    assert "caches; their geometric mean is 1.50, and 1 of 2 are at least 0.97." in text
    assert "| outer | elementwise | 1.00 | 1.20 | 1.20 |" in text
    assert "in 1 of 2 the derived one is more than 2% ahead" in text


def test_nothing_lies_above_its_roof(measured: Any) -> None:
    roof = list(_SCRIPT["_roof"](10.0, 100.0, (0.1, 1000.0), (0.5, 200.0)))
    assert roof == [(0.1, 1.0), (10.0, 100.0), (1000.0, 100.0)]


def test_what_was_measured_is_read_again(measured: Any, tmp_path: Path) -> None:
    path = tmp_path / "performance.json"
    path.write_text(json.dumps(asdict(measured)))
    assert _SCRIPT["Measured"].read(path) == measured


def test_searches_are_kept_line_by_line(tmp_path: Path) -> None:
    path = tmp_path / "found.jsonl"
    assert known(path, Found) == []
    for found in _SEARCHED:
        keep(path, found)
    assert [(one.case, one.best, one.reached) for one in known(path, Found)] == [
        (one.case, one.best, one.reached) for one in _SEARCHED
    ]


@pytest.mark.parametrize("is_whole", [True, False])
def test_timings_are_read_as_written(tmp_path: Path, is_whole: bool) -> None:
    space = Space(
        (Parameter(0, "a", "x", (1, 2), 2), Parameter(1, "b", "y", (0, 1), 0)),
        (TemplateChoice(0, ("c", "a")),),
    )
    keys = list(map(key_of, space.all()))[: None if is_whole else 3]
    ratios = dict(zip(keys, (1.0, None, 0.5, 2.0, 3.0, 4.0), strict=False))
    found = Timings("softmax", "znver4", space, ratios)
    path = tmp_path / "timed.jsonl"
    path.write_text(found.line() * 2)
    assert ("schedules" in json.loads(found.line())) != is_whole
    for again in timings(path):
        assert (again.case, again.target, again.space) == (found.case, found.target, space)
        assert list(again.ratios.items()) == list(found.ratios.items())
    assert timings(tmp_path / "none.jsonl") == []


def test_cases_are_measured(case: Case) -> None:
    """A case that is all ours, at one size."""
    cost = _SCRIPT["cost_of"](case, mlc_jit)
    assert cost.elements == 16 and cost.ours_ms > 0 and cost.jax_ms > 0
    softmax = replace(BY_NAME["softmax"], sizes={"rows": 32, "columns": 64})
    work = _SCRIPT["work_of"](softmax, lambda f: mlc_jit(f, choose="ours"))
    assert work.bytes == 2 * 4 * 32 * 64 and math.isfinite(work.gops) and work.intensity > 0
    assert _SCRIPT["work_of"](softmax, lambda f: mlc_jit(f, choose="xla")) is None
    moved = replace(BY_NAME["transpose"], sizes=BY_NAME["transpose"].tiny)
    assert _SCRIPT["work_of"](moved, lambda f: mlc_jit(f, choose="ours")) is None


def test_the_page_is_drawn_from_what_is_kept(tmp_path: Path) -> None:
    others = json.loads(_SCRIPT["PEERS"].read_text())
    reported = load(_SCRIPT["ISSUES"])
    _SCRIPT["draw"](
        _SCRIPT["Measured"].read(_SCRIPT["MEASURED"]),
        others,
        known(_SCRIPT["TUNED"], Found),
        known(_SCRIPT["DERIVED"], Derived),
        reported,
        load(_SCRIPT["HELD"]),
        tmp_path,
    )
    for name in ("performance.md", "scaling.svg", "roofline.svg"):
        assert (tmp_path / name).read_text() == (_ROOT / "docs" / name).read_text(), (
            "run python scripts/performance.py --draw"
        )
