"""Measuring the machine for the cost model: once, in bounded time, and never in the way."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from hlo_mlc import mlc_jit
from hlo_mlc.backends.cpu import target_of
from hlo_mlc.interop import calibration
from hlo_mlc.interop.calibration import calibrated, measure_rates
from hlo_mlc.runtime.rates import known_rates, others_share, remember_rates
from hlo_mlc.support.options import Options
from hlo_mlc.target.cpu import host
from hlo_mlc.target.rates import Rates

MEASURED = Rates(xla_exp=3.0)


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of times that the machine was measured, which takes no time here."""
    times: list[int] = []

    def measure(target: object) -> Rates:
        times.append(1)
        return MEASURED

    monkeypatch.setattr(calibration, "measure_rates", measure)
    return times


def test_it_measures_once_and_again_when_asked_to(tmp_path: Path, measured: list[int]) -> None:
    options = Options(cache_dir=tmp_path)
    assert calibrated(options) == calibrated(options) == MEASURED
    assert len(measured) == 1
    assert target_of(options).rates == MEASURED
    calibrated(options, refresh=True)
    assert len(measured) == 2


def test_what_was_measured_on_a_busy_machine_is_marked_and_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Better figures replace it, and are not replaced."""
    left = [
        (Rates(xla_exp=2.0), 0.8),
        (Rates(xla_exp=3.0), 0.9),
        (Rates(xla_exp=4.0), 0.03),
        (Rates(xla_exp=5.0), 0.7),
    ]
    monkeypatch.setattr(calibration, "observed", lambda measure: left.pop(0))
    options = Options(cache_dir=tmp_path)

    def found(refresh: bool = False) -> tuple[float, float]:
        return (
            calibrated(options, refresh=refresh).xla_exp,
            others_share(tmp_path, target_of(options)),
        )

    assert [found(), found(), found()] == [(2.0, 0.8), (2.0, 0.8), (4.0, 0.03)]
    assert found(refresh=True) == (4.0, 0.03)
    assert not left and found() == (4.0, 0.03)


@pytest.mark.parametrize("changes", [{"calibrate": False}, {"target": "x86-64-v3"}])
def test_it_measures_nothing_that_is_not_wanted(
    tmp_path: Path, measured: list[int], changes: dict
) -> None:
    assert calibrated(Options(cache_dir=tmp_path, **changes)) == Rates()
    assert measured == []
    assert list(tmp_path.iterdir()) == []


def test_compiling_measures_nothing(
    tmp_path: Path, measured: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HLO_MLC_CACHE", str(tmp_path))
    monkeypatch.setenv("HLO_MLC_CALIBRATE", "1")
    mlc_jit(lambda x: jnp.sin(x) * 2)(jnp.ones(1000))
    assert measured == []
    assert known_rates(tmp_path, host()) is None


def test_compiling_predicts_with_what_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HLO_MLC_CACHE", str(tmp_path))
    monkeypatch.setenv("HLO_MLC_CALIBRATE", "1")

    def kernels() -> int:
        return len(mlc_jit(lambda x: jnp.exp(x)).report(jnp.ones(1 << 18)).kernels)

    remember_rates(tmp_path, host(), Rates(xla_exp=50.0))
    assert kernels() == 1
    remember_rates(
        tmp_path,
        host(),
        Rates(xla_exp=0.01, xla_near=0.01, xla_far=0.01, start_us=0.01, xla_fork_us=0.01),
    )
    assert kernels() == 0


def test_every_probe_finds_rates() -> None:
    with jax.enable_x64(True):  # the probes are of 32 bits all the same
        found = measure_rates(host(), longest_s=60)
        assert found.are_sane
        typical = {"thunk_us"}
        known = Rates.typical(host().cpu)
        same = {name for name in Rates.__slots__ if getattr(found, name) == getattr(known, name)}
        assert same == typical


@pytest.mark.parametrize("longest_s", [0.0, 0.2])
def test_what_takes_too_long_keeps_its_typical_figure(longest_s: float) -> None:
    found = measure_rates(host(), longest_s)
    assert found.are_sane
    assert found.call_us == Rates.typical(host().cpu).call_us


def test_a_probe_that_fails_costs_only_its_own_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    def compare(function: Callable, *args: jax.Array, seconds: float = 0.0) -> None:
        raise RuntimeError("no such machine")

    monkeypatch.setattr(calibration, "_compare", compare)
    with pytest.warns(RuntimeWarning, match="cannot measure this machine: no such machine"):
        found = measure_rates(host())
    assert found.are_sane
    assert found.vector_operations == Rates.typical(host().cpu).vector_operations
