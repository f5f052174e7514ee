"""The script that says which cases of the bench show a threshold of fusion."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "scripts" / "thresholds.py"


def test_what_a_case_shows() -> None:
    """In a process of its own: it puts numbers that watch in the places of thresholds."""
    done = subprocess.run(
        [sys.executable, SCRIPT, "moments"], capture_output=True, text=True, check=True
    )
    shown = dict(line.split(": ") for line in done.stdout.splitlines())
    assert shown["nests.FOLDS_LIMIT"] == "moments", "its two folds share a pass"
    assert shown["nests.BUFFER_LIMIT"] == "nothing"
