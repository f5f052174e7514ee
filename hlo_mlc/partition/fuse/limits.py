"""What kernels of a target may be made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

# Elements of one row that may be kept between the passes over it: with f32 about half of a
# typical 32-48 KiB L1 cache per buffer, the measured knee for softmax and layernorm
# (selective_scan).
ROW_LIMIT = 8192


@dataclass(frozen=True, slots=True)
class FusionLimits:
    """What kernels of a target may be made of, and what it leaves to XLA."""

    row_elements: int = ROW_LIMIT  # of a row that is kept between the passes over it
    prologue: int = 0  # simple operations of a factor that each tile of a product does again
    packs_constants: bool = True  # constant factors are laid out as tiles of registers read them
    folds_both_ways: bool = True  # matrices that are, are read once (both_ways.py)
    fills_rows: bool = True  # copied from elsewhere part by part, each at once (row_parts.py)
    keeps_factors: bool = True  # no more of a scan's are multiplied than it says (Stage.trips)
    takes_layouts: bool = True  # of the calls beside kernels (lower/layouts.py)
    left: Mapping[str, str] = field(default_factory=dict)  # ops that stay with XLA, and why


LIMITS = FusionLimits()
"""Those of CPUs."""
