"""What a kernel, and a whole program, is predicted to cost."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hlo_mlc.support.wording import duration


@dataclass(frozen=True, slots=True)
class Estimate:
    """Predicted cost of a kernel on both sides, and the kind of stage that takes most of ours;
    `forks` and `xla_forks`: several threads share a stage of ours, or of XLA's."""

    ours_us: float
    xla_us: float
    operations: int  # rough number of simple ones
    bytes: int  # read and written at the border
    contraction_flops: int  # two for each multiply-add, four where it is in 64 bits
    kind: str
    forks: bool = False
    xla_forks: bool = False


@dataclass(frozen=True, slots=True)
class Prediction:
    """What one call of a whole program is predicted to take: as it was planned, and by XLA alone.

    `deviation` is the standard deviation of what the logarithm of their ratio is off by.
    `guesses_trips`: a loop runs until what it computes stops it, so that only the ratio counts.
    """

    ours_us: float
    xla_us: float
    deviation: float
    guesses_trips: bool = False

    @property
    def lead(self) -> float:
        """By how many standard deviations our time is predicted to be less than XLA's."""
        return math.log(self.xla_us / self.ours_us) / self.deviation

    def __str__(self) -> str:
        guess = ", but nobody knows how often its loops run" if self.guesses_trips else ""
        ours, xla = duration(self.ours_us), duration(self.xla_us)
        return f"predicted: {ours} a call, by XLA alone {xla}{guess}"
