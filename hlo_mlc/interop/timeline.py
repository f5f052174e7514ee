"""A few calls of a function as a timeline: every kernel and task of ours, and what XLA runs in
between, on the threads that ran it, in a file for https://ui.perfetto.dev.

Source: the trace event format of Chromium, which Perfetto reads.
"""

from __future__ import annotations

import json
import os
import statistics
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax

from hlo_mlc.building import kernel_with_id
from hlo_mlc.interop.arguments import require_count
from hlo_mlc.interop.devices import CPU, platform_of
from hlo_mlc.interop.xla_profile import Operation, XlaThread, profiled
from hlo_mlc.report import KernelReport, Report, lines_of, op_counts
from hlo_mlc.runtime.files import writable, write_for_others
from hlo_mlc.runtime.spans import Lane, Span, recorded_spans
from hlo_mlc.support.errors import UsageError
from hlo_mlc.support.wording import counted, duration, wrapped

CALLS = 3
"""How many calls a timeline is of, unless somebody says."""

_CALL, _KERNEL, _TASK, _XLA = "call", "kernel", "task", "XLA"  # categories of events
_MOST_NAMED = 10  # kernels that are listed of a timeline

JsonEvent = dict[str, object]
Interval = tuple[int, int]


@dataclass(frozen=True, slots=True)
class KernelRuns:
    """The runs of one kernel in a timeline: how many, how many tasks they had, how long they took
    altogether, and on how many threads tasks ran at once, on average."""

    name: str
    runs: int
    tasks: int
    ns: int
    busy_threads: float


@dataclass(frozen=True, slots=True)
class Timeline:
    """What was recorded; `print` shows it in short, the file at `path` has all of it.

    `calls_ns` are the calls' times, `kernels_ns` and `xla_ns` the time in which kernels of ours,
    and operations of XLA's, ran during all of them; `lost` spans found no room.
    """

    path: Path
    name: str
    calls_ns: tuple[int, ...]
    kernels: tuple[KernelRuns, ...]
    kernels_ns: int
    xla_ns: int
    threads: int
    lost: int = 0
    without_xla: str = ""  # why XLA's operations are not in it, if they are not

    def __str__(self) -> str:
        total = sum(self.calls_ns)
        calls = counted(len(self.calls_ns), "call")
        each = duration(statistics.median(self.calls_ns) / 1e3)
        xla = "" if self.without_xla else f", {self.xla_ns / total:.0%} in operations of XLA's"
        lines = [
            *wrapped(
                f"{calls} of {self.name}, {each} each (median), on "
                f"{counted(self.threads, 'thread')}: {self.kernels_ns / total:.0%} of "
                f"the time in kernels of ours{xla}",
                "",
            )
        ]
        if self.kernels:
            lines.append(f"{'a run':>9} {'runs':>6} {'tasks':>7} {'at once':>8}  kernel")
        lines += [
            f"{duration(kernel.ns / kernel.runs / 1e3):>9} {kernel.runs:>6} "
            f"{kernel.tasks:>7} {kernel.busy_threads:>8.1f}  {kernel.name}"
            for kernel in self.kernels[:_MOST_NAMED]
        ]
        if more := len(self.kernels) - _MOST_NAMED:
            lines += [f"{'':33}  and {counted(more, 'kernel')} more"] if more > 0 else []
        if self.lost:
            lines += wrapped(
                f"{self.lost:,} kernels or tasks are not in it: their threads had no "
                "room for more; trace fewer calls",
                "",
            )
        if self.without_xla:
            lines += wrapped(f"XLA's operations are not in it: {self.without_xla}", "")
        return "\n".join([*lines, f"{self.path}: open it at https://ui.perfetto.dev"])

    __repr__ = __str__  # what a person sees who asks for it at a prompt


def record_timeline(
    name: str,
    run: Callable[..., Any],
    report: Callable[[], Report],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    path: str | os.PathLike[str],
    calls: int,
    donates: bool,
) -> Timeline:
    """Calls a function, of which `report()` says what was compiled, and writes what ran when.

    One call goes before those that are recorded. Where it `donates`, each gets copies.

    Raises: UsageError for what cannot be recorded or written; whatever the function raises.
    """
    file = writable(path, "a trace")
    _check(args, kwargs, calls)

    def call() -> Interval:
        given, named = _copied((args, kwargs)) if donates else (args, kwargs)
        begin = time.monotonic_ns()
        jax.block_until_ready(run(*given, **named))
        return begin, time.monotonic_ns()

    call()
    with profiled() as xla, recorded_spans() as lanes:
        times = [call() for _ in range(calls)]
    tracks = _tracks(lanes, xla.threads)
    kernels = {kernel.id: kernel for kernel in report().kernels}
    events = list(_events(name, times, tracks, kernels))
    content = {
        "traceEvents": events,
        "displayTimeUnit": "ns",
        "otherData": {
            "function": name,
            "calls": calls,
            "lost": sum(lane.lost for lane in lanes),
            "without_xla": xla.unavailable,
        },
    }
    write_for_others(file, json.dumps(content, separators=(",", ":")).encode(), "a trace")
    return Timeline(
        file,
        name,
        tuple(end - begin for begin, end in times),
        tuple(_runs(lanes, kernels)),
        _covered(_within(times, (s for lane in lanes for s in lane.spans if s.task is None))),
        _covered(_within(times, (op for track in tracks for op in track.operations))),
        len({track.number for track in tracks if track.spans or track.operations}),
        sum(lane.lost for lane in lanes),
        xla.unavailable,
    )


def _check(args: Sequence[Any], kwargs: Mapping[str, Any], calls: int) -> None:
    require_count("A trace", "call", calls)
    leaves = jax.tree.leaves((tuple(args), dict(kwargs)))
    for leaf in leaves:
        if isinstance(leaf, jax.ShapeDtypeStruct | jax.core.Tracer):
            raise UsageError(
                f"A trace is of calls that run, so it takes arrays, not {type(leaf).__name__}"
            )
    if (platform := platform_of(leaves)) != CPU:
        raise UsageError(
            f"The function runs on {platform} with these arguments, and kernels are "
            "traced on CPUs only so far: jax.profiler.trace shows those of GPUs"
        )


def _copied(tree: Any) -> Any:
    """The arguments once more, since a call that is given them takes them away."""
    copies = jax.tree.map(lambda leaf: leaf.copy() if isinstance(leaf, jax.Array) else leaf, tree)
    return jax.block_until_ready(copies)


@dataclass(frozen=True, slots=True)
class _Track:
    """One thread: what of ours and of XLA's ran on it."""

    number: int
    name: str
    spans: tuple[Span, ...] = ()
    operations: tuple[Operation, ...] = ()


def _tracks(lanes: Sequence[Lane], threads: Sequence[XlaThread]) -> list[_Track]:
    """The threads by their numbers: the caller first, then those that run kernels, then others.

    JAX's profiler does not say which thread it is about: it is the one whose kernels ran during its
    operations. Those are the calls of the kernels, which are left out.
    """
    caller = threading.get_native_id()
    by_number = {lane.thread: _Track(lane.thread, _named(lane.name), lane.spans) for lane in lanes}
    by_number.setdefault(caller, _Track(caller, "Python"))
    free = max(by_number) + 1
    for thread in threads:
        runs = {
            number: _calls_of_kernels(thread.operations, track.spans)
            for number, track in by_number.items()
            if not track.operations
        }
        number = caller if thread.is_caller else max(runs, key=lambda n: len(runs[n]), default=free)
        found = runs.get(number, {})
        if not found and not thread.is_caller:
            number, free = free, free + 1
        track = by_number.get(number, _Track(number, ""))
        by_number[number] = replace(
            track, name=_named(thread.name), operations=_aligned(thread.operations, found)
        )
    caller_track = replace(by_number.pop(caller), name="Python, which calls")
    others = sorted(
        by_number.values(),
        key=lambda track: (
            not track.operations,
            all(span.task is not None for span in track.spans),
            track.number,
        ),
    )
    return [caller_track, *others]


def _named(name: str) -> str:
    """A thread's name without what XLA puts in front of all."""
    return name.partition("/")[0].removeprefix("tf_") or "thread"


def _calls_of_kernels(
    operations: Sequence[Operation], spans: Sequence[Span]
) -> dict[Operation, Span]:
    """The operations during which a kernel ran, and no shorter one that it ran in."""
    found: dict[Operation, Span] = {}
    whole = [span for span in spans if span.task is None]
    begun: list[Operation] = []
    rest = iter(sorted(operations, key=lambda op: (op.begin_ns, -op.end_ns)))
    following = next(rest, None)
    for span in sorted(whole, key=lambda span: span.begin_ns):
        middle = (span.begin_ns + span.end_ns) // 2
        while following is not None and following.begin_ns <= middle:
            begun.append(following)
            following = next(rest, None)
        begun = [op for op in begun if op.end_ns >= middle]
        if begun:
            found[min(begun, key=lambda op: op.end_ns - op.begin_ns)] = span
    return found


def _aligned(
    operations: Sequence[Operation], calls: Mapping[Operation, Span]
) -> tuple[Operation, ...]:
    """The operations but for calls of kernels, moved by what it takes for those to be around their
    kernels: the two clocks were read one after the other."""
    earliest = max((span.end_ns - op.end_ns for op, span in calls.items()), default=0)
    latest = min((span.begin_ns - op.begin_ns for op, span in calls.items()), default=0)
    move = min(max(0, earliest), latest) if earliest <= latest else 0
    return tuple(
        replace(op, begin_ns=op.begin_ns + move, end_ns=op.end_ns + move)
        for op in operations
        if op not in calls
    )


def _events(
    name: str,
    calls: Sequence[Interval],
    tracks: Sequence[_Track],
    kernels: Mapping[str, KernelReport],
) -> Iterator[JsonEvent]:
    """The events of the file; times are microseconds since the first call."""
    pid, zero = os.getpid(), calls[0][0]

    def said(what: str, about: Mapping[str, object], **where: int) -> JsonEvent:
        return {"ph": "M", "pid": pid, **where, "name": what, "args": about}

    def event(
        track: _Track, what: str, category: str, times: Interval, about: Mapping[str, object] = {}
    ) -> JsonEvent:
        begin_ns, end_ns = times
        return {
            "ph": "X",
            "pid": pid,
            "tid": track.number,
            "name": what,
            "cat": category,
            "ts": (begin_ns - zero) / 1e3,
            "dur": (end_ns - begin_ns) / 1e3,
            "args": dict(about),
        }

    yield said("process_name", {"name": name})
    for position, track in enumerate(tracks):
        yield said("thread_name", {"name": track.name}, tid=track.number)
        yield said("thread_sort_index", {"sort_index": position}, tid=track.number)
    for number, call in enumerate(calls, 1):
        yield event(tracks[0], f"{name}, call {number}", _CALL, call)
    for track in tracks:
        for span in track.spans:
            kernel, times = _kernel_name(span.kernel_id, kernels), (span.begin_ns, span.end_ns)
            if span.task is None:
                yield event(track, kernel, _KERNEL, times, _about(span.kernel_id, kernels))
            else:
                what, about = f"{kernel} [{span.task}]", {"task": span.task}
                yield event(track, what, _TASK, times, about)
        for operation in track.operations:
            times = (operation.begin_ns, operation.end_ns)
            yield event(track, operation.name, _XLA, times)


def _kernel_name(kernel_id: str, kernels: Mapping[str, KernelReport]) -> str:
    """What people call a kernel: of this function, or of another that ran meanwhile."""
    fingerprint = kernel_id.partition("-")[0]  # the rest is the target
    if known := kernels.get(fingerprint):
        return known.name
    other = kernel_with_id(fingerprint)
    return kernel_id if other is None else other.name


def _about(kernel_id: str, kernels: Mapping[str, KernelReport]) -> dict[str, object]:
    """What a kernel does, to be read beside its times."""
    kernel = kernels.get(kernel_id.partition("-")[0])
    if kernel is None:
        return {"id": kernel_id}
    return {
        "id": kernel_id,
        "ops": op_counts(kernel.ops),
        "at": lines_of(kernel.locations),
        "read and written, bytes": kernel.bytes,
        "predicted, us": round(kernel.ours_us, 3),
    }


def _runs(lanes: Sequence[Lane], kernels: Mapping[str, KernelReport]) -> list[KernelRuns]:
    """The kernels that ran, those that took longest first."""
    spans: dict[str, list[Span]] = {}
    for lane in lanes:
        for span in lane.spans:
            spans.setdefault(span.kernel_id, []).append(span)
    found = []
    for kernel_id, group in spans.items():
        ns = sum(span.end_ns - span.begin_ns for span in group if span.task is None)
        tasks = [span.end_ns - span.begin_ns for span in group if span.task is not None]
        found.append(
            KernelRuns(
                _kernel_name(kernel_id, kernels),
                len(group) - len(tasks),
                len(tasks),
                ns,
                sum(tasks) / ns if tasks and ns else 1.0,
            )
        )
    return sorted((kernel for kernel in found if kernel.runs), key=lambda kernel: -kernel.ns)


def _within(calls: Sequence[Interval], spans: Iterable[Span | Operation]) -> list[Interval]:
    """The parts of spans that lie in one of the calls, which do not overlap."""
    return [
        (max(begin, span.begin_ns), min(end, span.end_ns))
        for span in spans
        for begin, end in calls
        if span.begin_ns < end and span.end_ns > begin
    ]


def _covered(intervals: Iterable[Interval]) -> int:
    """How much time the intervals take together, where they overlap only once."""
    total, reached = 0, 0
    for begin, end in sorted(intervals):
        total += max(0, end - max(begin, reached))
        reached = max(reached, end)
    return total
