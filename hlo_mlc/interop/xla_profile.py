"""When XLA ran what it keeps for itself, by JAX's profiler, on the clock of our own spans."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import jax

_CLOCK = "hlo_mlc: what time is it"
_READINGS = 5  # of both clocks: the first ones take long


@dataclass(frozen=True, slots=True)
class Operation:
    """One run of an operation of XLA's, by a clock that counts nanoseconds as `time.monotonic_ns`
    does."""

    name: str
    begin_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class XlaThread:
    """What XLA ran on one thread, which JAX's profiler calls `name`; `is_caller` is the one that
    began the profile."""

    name: str
    operations: tuple[Operation, ...]
    is_caller: bool


@dataclass(slots=True)
class XlaProfile:
    """What JAX's profiler saw, complete at the end of `profiled`; `unavailable` says why that is
    nothing."""

    threads: tuple[XlaThread, ...] = ()
    unavailable: str = ""
    _readings: list[tuple[int, int]] = field(default_factory=list)


@contextlib.contextmanager
def profiled() -> Iterator[XlaProfile]:
    """Has JAX profile what runs in here; where a profile is under way already, it stays alone."""
    profile = XlaProfile()
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0  # what Python does takes longer when it is watched
    with tempfile.TemporaryDirectory(prefix="hlo_mlc_profile_") as folder:
        try:
            jax.profiler.start_trace(folder, profiler_options=options)
        except RuntimeError as error:
            profile.unavailable = f"JAX's profiler says: {error}"
            yield profile
            return
        try:
            for _ in range(_READINGS):
                before = time.monotonic_ns()
                with jax.profiler.TraceAnnotation(_CLOCK):
                    pass
                profile._readings.append((before, time.monotonic_ns()))
            yield profile
        finally:
            jax.profiler.stop_trace()
        profile.threads = tuple(_threads(Path(folder), profile._readings))


def _threads(folder: Path, readings: list[tuple[int, int]]) -> Iterator[XlaThread]:
    """The threads in the one file that the profiler wrote."""
    for file in folder.rglob("*.xplane.pb"):
        data = jax.profiler.ProfileData.from_file(str(file))
        lines = [
            (
                line.name,
                [
                    (
                        event.name,
                        event.start_ns,
                        event.end_ns,
                        any(key == "hlo_op" for key, _ in event.stats),
                    )
                    for event in line.events
                ],
            )
            for plane in data.planes
            for line in plane.lines
        ]
        clocks = [
            (begin, end) for _, events in lines for name, begin, end, _ in events if name == _CLOCK
        ]
        offset = _offset(readings, sorted(clocks))
        for name, events in lines:
            operations = tuple(
                Operation(op, round(begin + offset), round(end + offset))
                for op, begin, end, is_operation in events
                if is_operation
            )
            is_caller = any(op == _CLOCK for op, *_ in events)
            if operations or is_caller:
                yield XlaThread(name, operations, is_caller)


def _offset(readings: list[tuple[int, int]], clocks: list[tuple[float, float]]) -> float:
    """What to add to the profiler's times: by the reading that took the shortest time."""
    pairs = zip(readings, clocks, strict=False)
    (before, after), (begin, end) = min(pairs, key=lambda pair: pair[0][1] - pair[0][0])
    return (before + after - begin - end) / 2
