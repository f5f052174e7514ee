"""The native library can be built with the headers of the jaxlib at hand, not only the oldest."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import jax
import pytest

SOURCES = sorted((Path(__file__).parents[2] / "custom_calls").glob("*.cc"))


@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")
@pytest.mark.parametrize("path", SOURCES, ids=[path.name for path in SOURCES])
def test_headers_of_this_jaxlib(path: Path) -> None:
    """Offline, there is no other jaxlib to build with."""
    checked = subprocess.run(
        ["g++", "-std=c++17", "-fsyntax-only", "-isystem", jax.ffi.include_dir(), str(path)],
        capture_output=True,
        text=True,
    )
    assert checked.returncode == 0, checked.stderr
