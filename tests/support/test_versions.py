"""Versions of packages, and ours where nobody installed it."""

from __future__ import annotations

import importlib.metadata
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import llvmlite
import pytest

import hlo_mlc
from hlo_mlc.runtime.records import today
from hlo_mlc.support.versions import VERSION, version

PROJECT = Path(__file__).parents[2] / "pyproject.toml"


@pytest.fixture
def _uninstalled(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As in a tree of sources: no package of this name has metadata."""
    installed = importlib.metadata.version

    def found(package: str) -> str:
        if package in ("hlo-mlc", "absent"):
            raise importlib.metadata.PackageNotFoundError(package)
        return installed(package)

    monkeypatch.setattr(importlib.metadata, "version", found)
    version.cache_clear()
    yield
    version.cache_clear()


def test_ours_is_said_once() -> None:
    assert tomllib.loads(PROJECT.read_text())["project"]["version"] == VERSION
    assert hlo_mlc.__version__ == VERSION


def test_a_tree_of_sources_has_a_version(_uninstalled: None) -> None:
    assert version("hlo-mlc") == f"{VERSION}+source"
    assert today()["hlo-mlc"] == f"{VERSION}+source"


def test_a_package_that_is_loaded_is_asked_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    version.cache_clear()
    monkeypatch.setattr(importlib.metadata, "version", lambda package: pytest.fail(package))
    assert version("llvmlite") == llvmlite.__version__
    version.cache_clear()


def test_what_is_absent_is_named(_uninstalled: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "absent", None)  # as whoever forbids to import it has it
    assert version("numpy") == importlib.metadata.version("numpy")
    with pytest.raises(importlib.metadata.PackageNotFoundError, match="absent"):
        version("absent")
