"""What `HLO_MLC_DEBUG` prints: one place that knows the levels and where the lines go."""

from __future__ import annotations

import enum
import sys
from collections.abc import Iterable


class Level(enum.IntEnum):
    """What each level adds to those below it."""

    FUNCTIONS = 1  # a line for each compiled function
    KERNELS = 2  # a line for each of its kernels
    REASONS = 3  # why templates were refused and ops stay with XLA
    LOOPS = 4  # the loops of each kernel


def say(level: Level, debug: int, lines: Iterable[str]) -> None:
    """Prints `lines` to stderr if the option `debug` is at least `level`; else leaves them alone.

    They are written in one piece, so that threads that compile at once do not mix theirs.
    """
    if debug >= level:
        sys.stderr.write("".join(f"hlo_mlc: {line}\n" for line in lines))
        sys.stderr.flush()
