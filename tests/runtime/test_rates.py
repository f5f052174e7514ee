"""Rates on disk: kept for one machine and these versions, ignored where they are damaged."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from hlo_mlc.runtime.rates import known_rates, rates_path, remember_rates, with_known_rates
from hlo_mlc.support.options import Options
from hlo_mlc.target.cpu import CpuTarget, named
from hlo_mlc.target.rates import Rates

TARGET = named("x86-64-v3")
MEASURED = Rates(vector_operations=1234.5, xla_exp=3.0)


def test_they_come_back(tmp_path: Path) -> None:
    assert known_rates(tmp_path, TARGET) is None
    remember_rates(tmp_path, TARGET, MEASURED)
    assert known_rates(tmp_path, TARGET) == MEASURED


@pytest.mark.parametrize("other", [replace(TARGET, cores=TARGET.cores + 1), named("x86-64-v4")])
def test_each_target_has_its_own(tmp_path: Path, other: CpuTarget) -> None:
    remember_rates(tmp_path, TARGET, MEASURED)
    assert known_rates(tmp_path, other) is None


@pytest.mark.parametrize(
    "damage",
    [
        lambda note: "",
        lambda note: "[]",
        lambda note: json.dumps(note)[:-9],
        lambda note: json.dumps({k: v for k, v in note.items() if k != "xla_exp"}),
        lambda note: json.dumps(note | {"xla_exp": "x"}),
        lambda note: json.dumps(note | {"xla_exp": 0}),
        lambda note: json.dumps(note | {"xla_exp": float("nan")}),
    ],
)
def test_damaged_ones_are_not_known(tmp_path: Path, damage) -> None:
    remember_rates(tmp_path, TARGET, MEASURED)
    path = rates_path(tmp_path, TARGET)
    path.write_text(damage(json.loads(path.read_text())))
    assert known_rates(tmp_path, TARGET) is None


def test_options_decide_whether_they_count(tmp_path: Path) -> None:
    remember_rates(tmp_path, TARGET, MEASURED)
    options = Options(cache_dir=tmp_path)
    assert with_known_rates(TARGET, options).rates == MEASURED
    assert with_known_rates(TARGET, options.replace(calibrate=False)).rates == Rates()
    assert with_known_rates(TARGET, options.replace(target="x86-64-v3")).rates == Rates()
    nothing = Options(cache_dir=tmp_path / "empty")
    assert with_known_rates(TARGET, nothing).rates == Rates()
    family = replace(TARGET, cpu="znver5")
    assert with_known_rates(family, nothing).rates == Rates.typical("znver5") != Rates()
    assert with_known_rates(family, nothing.replace(calibrate=False)).rates == Rates()
