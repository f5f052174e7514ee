"""What code for a target may use, and what this machine has."""

from __future__ import annotations

import dataclasses
from itertools import pairwise

import pytest

from hlo_mlc.support.errors import UnknownTargetError
from hlo_mlc.target import levels
from hlo_mlc.target.cpu import CpuTarget, host, named
from hlo_mlc.target.levels import (
    architecture,
    planned_for,
    present_features,
    required_features,
    runnable,
)
from hlo_mlc.target.rates import Rates

# A machine with 256-bit vectors, two cores and caches of its own.
AVX2 = dataclasses.replace(
    named("x86-64-v3"),
    name="host",
    cpu="haswell",
    cores=2,
    l1_bytes=48 << 10,
    l2_bytes=512 << 10,
    l3_bytes=6 << 20,
    rates=Rates(vector_operations=1.0),
)
FEATURES = required_features(named("x86-64-v3"))


@pytest.fixture
def avx2(monkeypatch: pytest.MonkeyPatch) -> CpuTarget:
    """This machine is that one."""
    monkeypatch.setattr(levels, "host", lambda: AVX2)
    monkeypatch.setattr(levels, "present_features", lambda: FEATURES)
    return AVX2


def test_levels_build_on_each_other() -> None:
    levels = [required_features(named(f"x86-64{suffix}")) for suffix in ("", "-v2", "-v3", "-v4")]
    assert levels[0] == frozenset()
    assert all(low < high for low, high in pairwise(levels))
    assert "avx512vl" in levels[3] and "fma" in levels[2] and "sse4.2" in levels[1]


def test_this_machine_has_what_it_has() -> None:
    assert required_features(host()) <= present_features()
    assert architecture(host()) in ("x86_64", "aarch64")


@pytest.mark.parametrize(("name", "expected"), [("x86-64-v3", "x86_64"), ("aarch64", "aarch64")])
def test_architectures(name: str, expected: str) -> None:
    assert architecture(named(name)) == expected


def test_a_level_is_planned_with_the_cores_and_caches_of_this_machine(avx2: CpuTarget) -> None:
    assert planned_for("cpu") == avx2
    planned = planned_for("x86-64-v2")
    assert planned == dataclasses.replace(
        named("x86-64-v2"), cores=2, l1_bytes=48 << 10, l2_bytes=512 << 10, l3_bytes=6 << 20
    )
    assert planned.rates == Rates()


def test_levels_that_this_machine_has(avx2: CpuTarget) -> None:
    assert runnable() == ("cpu", "x86-64", "x86-64-v2", "x86-64-v3")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("x86-64-v4", "this machine lacks avx512bw, avx512cd, avx512dq, avx512f, avx512vl"),
        ("aarch64", "it is an aarch64 processor"),
        ("x86-64-v33", r"there is no such CPU \(did you mean 'x86-64-v3'\?\)"),
        ("host", "the machine that a program runs on is called 'cpu'"),
        ("sm_90", "code for a GPU by name is what `hlo_mlc.export` makes"),
    ],
)
def test_what_programs_cannot_be_compiled_for(avx2: CpuTarget, name: str, reason: str) -> None:
    with pytest.raises(UnknownTargetError, match=f"'{name}': {reason}.*expected one of cpu, x86"):
        planned_for(name)


def test_a_processor_may_lack_a_part_of_a_level(
    avx2: CpuTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(levels, "present_features", lambda: FEATURES - {"movbe", "bmi2"})
    with pytest.raises(UnknownTargetError, match="this machine lacks bmi2, movbe"):
        planned_for("x86-64-v3")
