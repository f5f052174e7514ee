"""The rates of a machine: how they depend on sizes, and what is no rate."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import pytest

import hlo_mlc
from hlo_mlc.target.cpu import named
from hlo_mlc.target.rates import DISTANT_BYTES, FAR_BYTES, NEAR_BYTES, Rates

RATES = Rates(
    near_bytes=100.0, far_bytes=50.0, distant_bytes=5.0, xla_near=2.0, xla_far=1.0, xla_distant=0.5
)


@pytest.mark.parametrize(
    ("size", "speed", "ratio"),
    [
        (0, 100.0, 2.0),
        (1, 100.0, 2.0),
        (NEAR_BYTES, 100.0, 2.0),
        (FAR_BYTES, 50.0, 1.0),
        (DISTANT_BYTES, 5.0, 0.5),
        (1 << 40, 5.0, 0.5),
    ],
)
def test_what_was_measured_holds_there(size: int, speed: float, ratio: float) -> None:
    assert RATES.bytes_per_us(size) == pytest.approx(speed)
    assert RATES.xla_pass(size) == pytest.approx(ratio)


def test_between_two_sizes_speeds_are_between() -> None:
    sizes = [NEAR_BYTES * 1.3**n for n in range(18)]
    speeds = [RATES.bytes_per_us(size) for size in sizes]
    assert speeds == sorted(speeds, reverse=True)
    assert all(5 <= speed <= 100 for speed in speeds)
    times = [size / RATES.bytes_per_us(size) for size in sizes]
    assert times == sorted(times)


@pytest.mark.parametrize("name", [field.name for field in fields(Rates)])
@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_every_rate_is_positive_and_finite(name: str, value: float) -> None:
    assert Rates().are_sane
    assert not replace(Rates(), **{name: value}).are_sane


def test_they_do_not_make_another_target() -> None:
    target = named("x86-64-v3")
    measured = replace(target, rates=RATES)
    assert measured == target
    assert hash(measured) == hash(target)
    assert str(measured) == str(target)


@pytest.mark.parametrize("floor", ["tensor", "loops", "schedule", "templates", "codegen"])
def test_code_does_not_depend_on_them(floor: str) -> None:
    """Kernels are cached by what they compute and for which target, whatever its rates are."""
    package = Path(hlo_mlc.__file__).parent
    files = list((package / floor).rglob("*.py"))
    assert files
    assert [path for path in files if ".rates" in path.read_text()] == []
