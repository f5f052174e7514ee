"""What code for a target may use, and what this machine has."""

from __future__ import annotations

from itertools import pairwise

import pytest

from hlo_mlc.target.cpu import host, named
from hlo_mlc.target.levels import architecture, present_features, required_features


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
