"""The command line, run in this process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from hlo_mlc.cli import main


@pytest.fixture
def hlo_mlc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Runs `hlo-mlc` with these arguments, in an empty folder, with a cache in it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HLO_MLC_CACHE", str(tmp_path / "cache"))
    return lambda *arguments: CliRunner().invoke(main, arguments, prog_name="hlo-mlc")
