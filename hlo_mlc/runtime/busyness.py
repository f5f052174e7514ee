"""Whether other programs ran while something was measured, and whose figures are kept then.

Limits and rates of the machine are found with kernels that use all its CPUs; what others take of
those is missing in the figures.
"""

from __future__ import annotations

import contextlib
import functools
import os
import resource
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from hlo_mlc.support.warning import warn

BUSY = 0.1
"""The share of the CPUs' time from which on others make a machine busy: kernels on all its CPUs are
slower by about as much, and a tenth is how far figures of an idle one differ from run to run."""

SHARE = "busy"
"""What the share is called in notes."""

_STAT = Path("/proc/stat")
# Ticks are 10 ms: in less time, one of them would be a considerable share.
_LEAST_S = 0.2
# Columns of /proc/stat that are no work: idle, iowait.  Guests are counted under user already.
# Source: proc_stat(5).
_IDLE, _GUEST = (3, 4), (8, 9)
_USED = slice(11, 13)  # utime, stime behind the name in /proc/PID/stat.  Source: proc_pid_stat(5).

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Clocks:
    """Seconds up to a moment: that passed, that this process's CPUs ran anything (or another
    machine had them), and that this process, and those that this thread started, ran on any."""

    passed_s: float
    busy_s: float
    own_s: float
    cpus: int

    def share_of_others(self, later: Clocks) -> float:
        """Which part of the CPUs' time between two moments other programs had, 0 to 1."""
        passed_s = later.passed_s - self.passed_s
        if passed_s < _LEAST_S:
            return 0.0
        others_s = (later.busy_s - self.busy_s) - (later.own_s - self.own_s)
        return min(max(others_s / (passed_s * self.cpus), 0.0), 1.0)


def read_clocks(stat: Path = _STAT) -> Clocks | None:
    """The clocks now; None where the system does not tell."""
    allowed = {f"cpu{number}" for number in os.sched_getaffinity(0)}
    try:
        rows = [line.split() for line in stat.read_text().splitlines()]
        ticks = [list(map(int, row[1:])) for row in rows if row and row[0] in allowed]
    except (OSError, ValueError):
        return None
    if not ticks:
        return None
    busy = sum(
        count
        for row in ticks
        for column, count in enumerate(row)
        if column not in (*_IDLE, *_GUEST)
    )
    return Clocks(
        time.perf_counter(),
        busy / os.sysconf("SC_CLK_TCK"),
        time.process_time() + _seconds_of_children(),
        len(ticks),
    )


def _seconds_of_children() -> float:
    """What processes of this thread's ran, those that have ended and those that go on; these count
    as others' where the system does not name them."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    ticks = 0
    with contextlib.suppress(OSError):  # one of them ends meanwhile
        for child in (
            Path(f"/proc/self/task/{threading.get_native_id()}/children").read_text().split()
        ):
            fields = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
            ticks += sum(map(int, fields[_USED]))
    return ended.ru_utime + ended.ru_stime + ticks / os.sysconf("SC_CLK_TCK")


class Moment(Protocol):
    """When to measure: what is measured is called at once, later, or more than once."""

    def __call__(self, measure: Callable[[], T], /) -> T: ...


def at_once(measure: Callable[[], T]) -> T:
    """What `measure` finds now, whatever others do."""
    return measure()


def when_idle(measure: Callable[[], T], most: float = BUSY) -> T:
    """What `measure` finds while others have at most this share of the CPUs' time: it begins when
    they have had no more for a while, and again where that was not so to its end."""

    def long_enough() -> T:
        began = time.perf_counter()
        found = measure()
        time.sleep(max(began + _LEAST_S - time.perf_counter(), 0.0))
        return found

    while True:
        while _shared(functools.partial(time.sleep, _LEAST_S))[1] > most:
            pass
        found, share = _shared(long_enough)
        if share <= most:
            return found


def _shared(measure: Callable[[], T]) -> tuple[T, float]:
    """What `measure` finds, and the share of the CPUs' time that others had meanwhile."""
    before = read_clocks()
    found = measure()
    return found, _share_since(before)


def _share_since(before: Clocks | None) -> float:
    after = read_clocks()
    return 0.0 if before is None or after is None else before.share_of_others(after)


def disturbed_since(before: Clocks | None) -> str:
    """What to say of times that were measured since then; "" if others had little."""
    share = _share_since(before)
    return (
        ""
        if share <= BUSY
        else f"other programs had {share:.0%} of the CPUs' time meanwhile: measure again while "
        "nothing else runs"
    )


def observed(measure: Callable[[], T]) -> tuple[T, float]:
    """The same, with a warning if they had much."""
    found, share = _shared(measure)
    if share > BUSY:
        warn(f"hlo_mlc measured this machine {busy_line(share)}")
    return found, share


def supersedes(share: float, earlier: float | None) -> bool:
    """Whether figures that were measured while others had this share are kept in place of earlier
    ones, if there are any."""
    return earlier is None or share <= BUSY or share < earlier


def busy_line(share: float) -> str:
    """What to say of figures that were measured while others had this share; "" if nothing."""
    return (
        ""
        if share <= BUSY
        else (
            f"while the machine was busy: others had {share:.0%} of its "
            "CPUs' time; the next time it is measured again"
        )
    )


def share_in(note: Any) -> float:
    """The share that others had when a note was measured; of earlier notes nobody knows."""
    share = note.get(SHARE, 0.0) if isinstance(note, dict) else 0.0
    return float(share) if isinstance(share, int | float) and 0 <= share <= 1 else 1.0
