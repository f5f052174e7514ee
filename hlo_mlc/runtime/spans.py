"""When our kernels and their tasks ran inside XLA programs, and on which threads."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hlo_mlc.runtime import library
from hlo_mlc.support.errors import UsageError

_WHOLE_KERNEL = -1  # MLC_WHOLE_KERNEL
_PER_THREAD = 1 << 16  # spans: 2 MiB, of which only what is written takes memory


@dataclass(frozen=True, slots=True)
class Span:
    """One run of a kernel, or of one of its tasks, by a clock that counts nanoseconds as
    `time.monotonic_ns` does."""

    kernel_id: str
    task: int | None  # None is the kernel itself, with all of its tasks
    begin_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class Lane:
    """What one thread ran: the system's number and name of it, its spans in the order in which they
    ended, and for how many more there was no room."""

    thread: int
    name: str
    spans: tuple[Span, ...]
    lost: int


@contextlib.contextmanager
def recorded_spans(per_thread: int = _PER_THREAD) -> Iterator[list[Lane]]:
    """Records what runs in here, of whatever thread: the list has the lanes of all threads that ran
    something as soon as it is over, so many spans of each at most.

    Raises: UsageError while somebody else records.
    """
    native = library.load()
    trace = native.mlc_trace_begin(per_thread)
    if trace is None:
        raise UsageError(
            "Another trace is being recorded, and there is one at a time: wait until it has ended"
        )
    found: list[Lane] = []
    try:
        yield found
    finally:
        native.mlc_trace_end(trace)
        found += _lanes(trace)
        native.mlc_trace_release(trace)


class _Span(ctypes.Structure):
    """MlcSpan."""

    _fields_ = [(name, ctypes.c_int64) for name in ("begin_ns", "end_ns", "kernel", "task")]


class _Lane(ctypes.Structure):
    """MlcLane."""

    _fields_ = [
        ("thread", ctypes.c_int64),
        ("spans", ctypes.POINTER(_Span)),
        ("count", ctypes.c_int64),
        ("lost", ctypes.c_int64),
    ]


def _lanes(trace: int) -> Iterator[Lane]:
    """What was recorded by now."""
    native = library.load()
    lane = _Lane()
    names: dict[int, str] = {}
    number = 0
    while native.mlc_trace_lane(trace, number, ctypes.byref(lane)):
        spans = []
        for span in lane.spans[: lane.count]:
            if span.kernel not in names:
                names[span.kernel] = native.mlc_trace_kernel(trace, span.kernel).decode()
            spans.append(
                Span(
                    names[span.kernel],
                    None if span.task == _WHOLE_KERNEL else span.task,
                    span.begin_ns,
                    span.end_ns,
                )
            )
        yield Lane(lane.thread, _thread_name(lane.thread), tuple(spans), lane.lost)
        number += 1


def _thread_name(thread: int) -> str:
    """What the system calls a thread of this process, of which it keeps 15 characters; "" if it has
    ended."""
    try:
        return Path(f"/proc/self/task/{thread}/comm").read_text().rstrip("\n")
    except OSError:
        return ""
