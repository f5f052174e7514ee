"""What the time of a stage depends on besides the stage: what our kernel does for it, and where XLA
computes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hlo_mlc.expr.core import Buffer
from hlo_mlc.partition.work import Work

# In loops XLA stays on one thread below this: 128 KB a trip took 0.6 us, what one computes.
SMALL_LOOP_BYTES = 1 << 20
# One thread gets at least so large a share of what all get from memory: a few are enough for it.
SHARES = 4


@dataclass(frozen=True, slots=True)
class OurTime:
    """What our kernel does for a stage, and what computing it takes.

    `scalar_us` is what its operations and accesses would take one after the other.
    """

    work: Work
    is_serial: bool  # nothing is vectorized
    alone_us: float  # on one thread
    threads: int
    scalar_us: float

    @property
    def computing_us(self) -> float:
        """On all threads."""
        return self.alone_us / self.threads


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Where XLA computes a stage: in the body of a loop of its own or of ours, and, if there is a
    sum of products among its operations, by a library that is made for them; `by_lapack`: small
    matrices are computed by another; `in_function`: the loop is one function, else each operation
    in it has a call of its own; `updates`: parts of values are overwritten, not put together;
    `queued`: threads ask which of the operations in a loop are ready.  `given` is what the program
    is given, of which nothing is near before it has gone through `held_bytes`."""

    in_loop: bool = False
    by_library: bool = True
    by_lapack: bool = False
    in_function: bool = False
    updates: bool = True
    queued: bool = False
    given: frozenset[Buffer] = frozenset()
    held_bytes: int = 0

    def held(self, moved: Mapping[Buffer, int]) -> int:
        """Bytes between two times that the same of these buffers is read or written."""
        own = sum(buffer.bytes for buffer in moved)
        given = sum(size for buffer, size in moved.items() if buffer in self.given)
        is_given = not self.in_loop and 2 * given > sum(moved.values())
        return max(own, self.held_bytes) if is_given else own
