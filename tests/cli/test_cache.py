"""`hlo-mlc cache`: what is in the folder, checking it, emptying it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import jax.numpy as jnp
import pytest

from hlo_mlc import mlc_jit
from hlo_mlc.interop import measuring
from hlo_mlc.runtime.cache import ObjectCache, object_cache
from hlo_mlc.runtime.notes import write_note
from hlo_mlc.support.options import Options

_KEYS = ("0" * 64, "1" * 64)


@pytest.fixture
def objects(hlo_mlc: Callable) -> ObjectCache:
    """The cache that the command sees, with two objects."""
    cache = object_cache(Options.from_environment())
    for key in _KEYS:
        cache.put(key, b"object")
    return cache


@pytest.fixture
def notes(objects: ObjectCache) -> list[Path]:
    """A choice, the limits and the rates of a machine, and a tuning record."""
    folder = objects.folder.parent
    paths = [
        folder / name
        for name in ("choices/0.json", "limits-0.json", "rates-0.json", "records/0.json")
    ]
    for path in paths:
        write_note(path, {"known": 1})
    return paths


def test_list(hlo_mlc: Callable, objects: ObjectCache, notes: list[Path]) -> None:
    result = hlo_mlc("cache", "list")
    assert result.exit_code == 0
    assert all(key in result.stdout for key in _KEYS)
    assert f"2 kernels, 0.0 of 1024 MiB in {objects.folder}" in result.stdout
    assert "1 choice between ours and XLA's" in result.stdout
    assert all(str(path) in result.stdout for path in notes[1:3])


def test_kernels_are_listed_by_their_names(hlo_mlc: Callable) -> None:
    mlc_jit(lambda x: jnp.sin(x) * 0.7531, choose="ours")(jnp.ones(77))
    before = [entry.used_at for entry in object_cache(Options.from_environment()).entries()]
    (head, line, *_) = hlo_mlc("cache", "list").stdout.splitlines()
    assert head.split("  ")[0] == "kernel or program" and head.index("key") == line.rindex("  ") + 2
    assert line.startswith("sin@test_cache.py:")
    assert [e.used_at for e in object_cache(Options.from_environment()).entries()] == before


def test_clear(hlo_mlc: Callable, objects: ObjectCache, notes: list[Path]) -> None:
    assert "removed 2 kernels and 1 choice" in hlo_mlc("cache", "clear").stdout
    assert objects.entries() == []
    assert [path.exists() for path in notes] == [False, True, True, True]
    assert "removed 0 kernels and 0 choices" in hlo_mlc("cache", "clear").stdout


def test_clear_forgets_the_machine_when_asked_to(
    hlo_mlc: Callable, objects: ObjectCache, notes: list[Path]
) -> None:
    result = hlo_mlc("cache", "clear", "--machine")
    assert "removed 2 measurements of machines" in result.stdout
    assert [path.exists() for path in notes] == [False, False, False, True]


def test_a_cleared_choice_is_made_again(hlo_mlc: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = []
    measure = measuring._measure
    monkeypatch.setattr(measuring, "_BUDGET_S", 0.01)
    monkeypatch.setattr(
        measuring, "_measure", lambda *programs: measured.append(1) or measure(*programs)
    )

    def compiled() -> None:
        mlc_jit(lambda x: jnp.sin(x) * 2, choose="measure").lower(jnp.ones(10))

    compiled()
    compiled()
    assert len(measured) == 1
    assert "1 choice" in hlo_mlc("cache", "clear").stdout
    compiled()
    assert len(measured) == 2


def test_verify(hlo_mlc: Callable, objects: ObjectCache) -> None:
    path = next(file for file in Path(objects.folder).rglob("*") if file.is_file())
    path.write_bytes(path.read_bytes()[:-1])
    result = hlo_mlc("cache", "verify")
    assert result.exit_code == 0
    assert "was damaged and is removed" in result.stdout
    assert "1 kernel whole, 1 damaged" in result.stdout
    assert len(objects.entries()) == 1


@pytest.mark.parametrize("command", ["list", "clear", "verify"])
def test_a_folder_that_cannot_be_written(
    hlo_mlc: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HLO_MLC_CACHE", str(tmp_path / "file" / "cache"))
    result = hlo_mlc("cache", command)
    assert result.exit_code == 1
    assert "cannot be written" in result.stderr
