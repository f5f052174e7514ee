"""Finding and loading the native library, and what is said when that fails."""

from __future__ import annotations

import importlib.util
from importlib.machinery import ModuleSpec

import pytest

from hlo_mlc.runtime import library
from hlo_mlc.support.errors import RuntimeLibraryError

load_again = library.load.__wrapped__


def test_the_installed_library_loads():
    assert library.load().mlc_abi_version() == library.ABI_VERSION


def test_a_missing_library_says_how_to_install(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(RuntimeLibraryError, match=r"_runtime\.so\) was not found.*pip install"):
        load_again()


@pytest.mark.parametrize("content", [b"", b"not a library"])
def test_a_damaged_library_is_named(monkeypatch, tmp_path, content):
    path = tmp_path / "_runtime.so"
    path.write_bytes(content)
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: ModuleSpec(name, None, origin=str(path))
    )
    with pytest.raises(RuntimeLibraryError, match=r"_runtime\.so cannot be loaded.*pip install"):
        load_again()


@pytest.mark.parametrize("lacks", [(), ("mlc_function_of_tomorrow",)])
def test_a_library_of_another_version_is_refused(monkeypatch, lacks):
    """Whatever else is missing there: its version says why."""
    monkeypatch.setattr(library, "ABI_VERSION", library.ABI_VERSION + 1)
    for name in lacks:
        monkeypatch.setitem(library._SIGNATURES, name, (None, []))
    with pytest.raises(RuntimeLibraryError, match=r"ABI version .* different versions of hlo_mlc"):
        load_again()
