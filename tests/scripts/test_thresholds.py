"""The script that says which cases of the bench show a threshold of fusion."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "scripts" / "thresholds.py"
# Cases that show all numbers between them.
SHOWING = (
    "attention_grouped",
    "bilateral",
    "captured_head",
    "cholesky_8x8",
    "depthwise_signals",
    "elements",
    "encoder_captured",
    "frequencies",
    "gradients_of_updates",
    "joined_features",
    "logistic_step",
    "looked_up_rows",
    "many_leaves",
    "middle_pairs",
    "mirrored_columns",
    "moments",
    "nearest",
    "pixelwise",
    "random_crops",
    "roughness",
    "sampled",
    "scaled_weights",
    "scrambled",
    "slogdet_4x4",
    "small_carry",
    "small_volume",
    "smoothed",
    "solve_16x16",
    "solve_8x8",
    "spreads",
    "spreads_in_f64",
    "turned_at_random",
    "whitened",
    "written_in_turn",
)


def test_each_number_is_shown_by_some_case() -> None:
    """In a process of its own: it puts numbers that watch in the places of thresholds."""
    done = subprocess.run(
        [sys.executable, SCRIPT, *SHOWING], capture_output=True, text=True, check=True
    )
    shown = dict(line.split(": ") for line in done.stdout.splitlines())
    assert "moments" in shown["one_pass.FOLDS_LIMIT"].split(", "), "its two folds share a pass"
    assert "moments" not in shown["nests.BUFFER_LIMIT"].split(", ")
    assert [name for name, cases in shown.items() if cases == "nothing"] == []
