"""What `scripts/tuning_goal.py` leaves: how near short searches for schedules come to long ones."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

SHORT = 32
"""Trials of a short search, at most."""


@dataclass(frozen=True, slots=True)
class Found:
    """What searches for the schedule of one kernel came upon, on a CPU of a kind.

    `short`: of each short search the speed of its winner / the default's, the trials, the seconds;
    `long`: the speed of the fastest of the long one / the default's; `trials` of it, of a space of
    `size` schedules.
    """

    case: str
    target: str
    size: int
    default_us: float
    short: Sequence[tuple[float, int, float]]
    long: float
    trials: int

    @property
    def best(self) -> float:
        """The fastest there is, as far as is known; the default is as fast as itself."""
        return max(self.long, *(speedup for speedup, _, _ in self.short), 1.0)

    @property
    def reached(self) -> list[float]:
        """What share of the best each short search came to."""
        return [speedup / self.best for speedup, _, _ in self.short]


def known(path: Path) -> list[Found]:
    """What a file holds, a line for each kernel; nothing if there is no file."""
    return (
        [Found(**json.loads(line)) for line in path.read_text().splitlines()]
        if path.exists()
        else []
    )


def keep(path: Path, found: Found) -> None:
    """Adds a line."""
    with path.open("a") as file:
        file.write(json.dumps(asdict(found)) + "\n")
