"""What a kernel, and a whole program, is predicted to cost."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Estimate:
    """Predicted cost of a kernel on both sides, and the kind of stage that takes most of ours."""

    ours_us: float
    xla_us: float
    operations: int  # rough number of simple ones
    bytes: int  # read and written at the border
    contraction_flops: int  # two for each multiply-add, four where it is in 64 bits
    kind: str


@dataclass(frozen=True, slots=True)
class Prediction:
    """What one call of a whole program is predicted to take: as it was planned, and by XLA alone.

    `guesses_trips`: a loop runs until what it computes stops it, so that only the ratio counts.
    """

    ours_us: float
    xla_us: float
    guesses_trips: bool = False

    def __str__(self) -> str:
        guess = ", but nobody knows how often its loops run" if self.guesses_trips else ""
        return f"predicted: {self.ours_us:.1f} us a call, by XLA alone {self.xla_us:.1f} us{guess}"
