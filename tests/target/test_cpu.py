"""CPU targets: this machine and the named levels."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from hlo_mlc.support.errors import UnknownTargetError
from hlo_mlc.target import cpu


def test_levels_grow() -> None:
    levels = [cpu.named(n) for n in ("x86-64", "x86-64-v2", "x86-64-v3", "x86-64-v4")]
    assert [level.vector_bytes for level in levels] == [16, 16, 32, 64]
    assert [level.registers for level in levels] == [16, 16, 16, 32]
    assert [level.has_fma for level in levels] == [False, False, True, True]
    assert [level.has_masked_bytes for level in levels] == [False, False, False, True]
    assert cpu.named("aarch64").has_fma
    assert not cpu.named("aarch64").is_x86


def test_lanes() -> None:
    assert cpu.named("x86-64-v3").lanes(4) == 8
    assert cpu.named("aarch64").lanes(2) == 8


@pytest.mark.parametrize(
    ("level", "processor", "is_fast"),
    [
        ("x86-64-v4", "znver4", True),
        ("x86-64-v4", "sapphirerapids", False),
        ("x86-64-v4", "x86-64-v4", False),
        ("x86-64-v3", "x86-64-v3", True),
        ("x86-64-v3", "alderlake", True),
        ("x86-64-v3", "haswell", False),
        ("aarch64", "generic", False),
    ],
)
def test_which_processors_divide_fast(level, processor, is_fast) -> None:
    target = dataclasses.replace(cpu.named(level), cpu=processor)
    assert target.has_fast_division == is_fast


@pytest.mark.parametrize(
    ("processor", "gathers", "looks_up"),
    [
        ("skylake-avx512", True, False),
        ("cascadelake", True, False),
        ("sapphirerapids", False, True),
        ("znver4", False, False),
        ("x86-64-v4", False, False),
    ],
)
def test_which_processors_gather_fast(processor, gathers, looks_up) -> None:
    target = dataclasses.replace(cpu.named("x86-64-v4"), cpu=processor)
    assert target.has_fast_gather == gathers
    assert target.has_fast_lookup == looks_up


def test_the_host_is_made_once_and_is_usable() -> None:
    target = cpu.host()
    assert target is cpu.named("host")
    assert target.name == "host"
    assert target.cores >= 1
    assert target.vector_bytes in (16, 32, 64)
    assert 0 < target.l1_bytes <= target.l2_bytes <= target.l3_bytes
    assert hash(target) == hash(cpu.host())


def test_unknown_names_are_refused_with_the_known_ones() -> None:
    with pytest.raises(UnknownTargetError, match=r"'avx512'.*x86-64-v4.*aarch64"):
        cpu.named("avx512")


def test_cache_sizes_are_read_from_the_system(tmp_path: Path) -> None:
    for number, (level, kind, size) in enumerate(
        [("1", "Data", "48K"), ("1", "Instruction", "32K"), ("2", "Unified", "2M")]
    ):
        folder = tmp_path / f"index{number}"
        folder.mkdir()
        for name, text in (("level", level), ("type", kind), ("size", size)):
            (folder / name).write_text(text + "\n")
    l1, l2, l3 = cpu.read_caches(tmp_path)
    assert (l1, l2) == (48 * 1024, 2 * 1024 * 1024)
    assert l3 == cpu.read_caches(tmp_path / "absent")[2]
