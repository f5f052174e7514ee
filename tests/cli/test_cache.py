"""`hlo-mlc cache`: what is in the folder, checking it, emptying it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from hlo_mlc.runtime.cache import ObjectCache, object_cache
from hlo_mlc.support.options import Options

_KEYS = ("0" * 64, "1" * 64)


@pytest.fixture
def objects(hlo_mlc: Callable) -> ObjectCache:
    """The cache that the command sees, with two objects."""
    cache = object_cache(Options.from_environment())
    for key in _KEYS:
        cache.put(key, b"object")
    return cache


def test_list(hlo_mlc: Callable, objects: ObjectCache) -> None:
    result = hlo_mlc("cache", "list")
    assert result.exit_code == 0
    assert all(key in result.stdout for key in _KEYS)
    assert f"2 kernels, 0.0 MiB in {objects.folder}" in result.stdout


def test_clear(hlo_mlc: Callable, objects: ObjectCache) -> None:
    assert "removed 2 kernels" in hlo_mlc("cache", "clear").stdout
    assert objects.entries() == []
    assert "removed 0 kernels" in hlo_mlc("cache", "clear").stdout


def test_verify(hlo_mlc: Callable, objects: ObjectCache) -> None:
    path = next(file for file in Path(objects.folder).rglob("*") if file.is_file())
    path.write_bytes(path.read_bytes()[:-1])
    result = hlo_mlc("cache", "verify")
    assert result.exit_code == 0
    assert "was damaged and is removed" in result.stdout
    assert "1 kernels are whole, 1 were not" in result.stdout
    assert len(objects.entries()) == 1
