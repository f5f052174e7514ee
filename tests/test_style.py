"""All files are as the formatter writes them, and the linter has nothing to say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("arguments", [("format", "--diff"), ("check",)], ids=lambda a: a[0])
def test_ruff_leaves_all_files_as_they_are(arguments: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "ruff", *arguments, "--quiet", "--no-cache", str(ROOT)]
    found = subprocess.run(command, capture_output=True, text=True)
    assert found.returncode == 0, found.stdout + found.stderr
