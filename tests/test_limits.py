"""The machine's limits: measured once, remembered, and what they say of a kernel."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from hlo_mlc import limits
from hlo_mlc.limits import (
    Level,
    MachineLimits,
    machine_limits,
    measure_limits,
    note_path,
    others_share,
)
from hlo_mlc.support.options import Options
from hlo_mlc.target.cpu import host

KNOWN = MachineLimits(
    gflops=100.0, caches=(Level(1 << 16, 200.0), Level(1 << 20, 50.0)), memory_gb_s=10.0
)


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of times that the machine was measured, which takes no time here."""
    times: list[int] = []

    def measure(target: object) -> MachineLimits:
        times.append(1)
        return KNOWN

    monkeypatch.setattr(limits, "measure_limits", measure)
    return times


def test_measuring_gives_figures_that_can_be() -> None:
    found = measure_limits(host())
    assert 1 < found.gflops < 1e6
    assert 0.1 < found.memory_gb_s < 1e5
    assert all(0.1 < level.gb_s < 1e5 for level in found.caches)
    capacities = [level.capacity for level in found.caches]
    assert capacities == sorted(capacities) and capacities[-1] >= host().l2_bytes


def test_it_measures_once(tmp_path: Path, measured: list[int]) -> None:
    options = Options(cache_dir=tmp_path)
    assert machine_limits(options) == KNOWN
    assert machine_limits(options) == KNOWN
    assert len(measured) == 1
    assert json.loads(note_path(tmp_path, host()).read_text())["cores"] == host().cores


def test_it_measures_again_when_asked_to(tmp_path: Path, measured: list[int]) -> None:
    options = Options(cache_dir=tmp_path)
    machine_limits(options)
    machine_limits(options, refresh=True)
    assert len(measured) == 2


def test_what_was_measured_on_a_busy_machine_is_marked_and_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Better figures replace it, and are not replaced."""
    runs = [(100.0, 0.8), (90.0, 0.9), (110.0, 0.5), (150.0, 0.02), (120.0, 0.7)]
    left = [(dataclasses.replace(KNOWN, gflops=gflops), share) for gflops, share in runs]
    monkeypatch.setattr(limits, "observed", lambda measure: left.pop(0))
    options, path = Options(cache_dir=tmp_path), note_path(tmp_path, host())

    def found(refresh: bool = False) -> tuple[float, float]:
        return machine_limits(options, refresh).gflops, others_share(path)

    assert found() == (100.0, 0.8)
    assert found() == (100.0, 0.8)  # measured again, and no better
    assert found() == (110.0, 0.5)
    assert found() == (150.0, 0.02)
    assert found(refresh=True) == (150.0, 0.02)
    assert not left and found() == (150.0, 0.02)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{}",
        '{"gflops": 1}',
        '{"gflops": "x", "memory_gb_s": 1, "caches": [{"capacity": 1, "gb_s": 1}]}',
        '{"gflops": 0, "memory_gb_s": 1, "caches": [{"capacity": 1, "gb_s": 1}]}',
        '{"gflops": 1, "memory_gb_s": 1, "caches": [{"capacity": 1, "gb_s": NaN}]}',
        '{"gflops": 1, "memory_gb_s": 1, "caches": [{"capacity": 1}]}',
        '{"gflops": 1, "memory_gb_s": 1, "caches": []}',
    ],
)
def test_it_measures_again_when_what_it_knows_is_damaged(
    tmp_path: Path, measured: list[int], content: str
) -> None:
    note_path(tmp_path, host()).write_text(content)
    assert machine_limits(Options(cache_dir=tmp_path)) == KNOWN
    assert len(measured) == 1


@pytest.mark.parametrize(
    ("moved_bytes", "flops", "us"),
    [
        (50_000, 0, 0.25),  # from the smallest cache
        (500_000, 0, 10.0),  # from the next one
        (50_000_000, 0, 5_000.0),  # from memory
        (50_000, 1_000_000, 10.0),  # arithmetic takes longer
        (0, 0, 0.0),
    ],
)
def test_the_least_time(moved_bytes: int, flops: int, us: float) -> None:
    assert KNOWN.least_us(moved_bytes, flops) == pytest.approx(us)
