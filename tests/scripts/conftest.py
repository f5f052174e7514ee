"""Puts `fuzzing` and what is planted where this process and its workers can import them."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "scripts")]


@pytest.fixture(autouse=True)
def importable(monkeypatch) -> None:
    given = os.environ.get("PYTHONPATH", "")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(HERE), *filter(None, [given])]))
