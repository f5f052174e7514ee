"""Tuning in the background of the user's own program: `mlc_jit(tune="background")`.

A thread looks now and then which kernels take the time, and has a process of the lowest priority
tune them (background_process.py), which measures while nobody uses the machine. What that finds it
records, and assembles into the cache. Here the new code is only mapped and takes the place of the
old in the variant table: nothing is traced or compiled anew, and no call waits. Code that was
replaced stays as long as calls may run it. Nothing that fails there reaches a caller; `explain` has
it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import os
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing import Pipe

import jax
from jaxlib.mlir import ir

from hlo_mlc.backends.cpu import CpuBackend, CpuKernel, cpu_backend
from hlo_mlc.building import adopt_recorded
from hlo_mlc.interop.function import Ledger, TracedFunction
from hlo_mlc.report import Report
from hlo_mlc.runtime import busyness, variants
from hlo_mlc.runtime.records import Record, open_records
from hlo_mlc.support.locks import process_lock
from hlo_mlc.support.options import Options
from hlo_mlc.support.processes import end_of, start_process, step_behind
from hlo_mlc.support.turns import short_turns
from hlo_mlc.support.wording import counted

_LOOK_S = 2.0  # between two looks at which kernels take the time: each is a few calls of ctypes
_WORTH_NS = 500e6  # spent in a kernel before it is tuned, for which a core works about a minute
_SHARE = 0.02  # of the time in all kernels: no schedule of one with less is seen in the whole
_TRIALS = 64  # of a kernel: the search, which goes on from process to process, is over then
_BUSY = busyness.BUSY
_LARGEST_BYTES = 64 << 20  # of a program with its constants, which is kept and sent as it is
_AS_MEANT = "status 0"
_TURN_S = 5e-4  # for which callers keep the interpreter from us, and we from them, at a time


@dataclass(frozen=True, slots=True)
class Job:
    """Which kernels of a program are to be tuned, with what calls have spent in each. The program's
    bytecode is sent behind it, as it lies: pickling would keep the interpreter from the callers.

    The machine is idle where others have at most the share `busy` of its CPUs' time."""

    entry: str
    options: Options
    x64: bool
    spent: Mapping[str, float]
    trials: int
    busy: float


@dataclass(frozen=True, slots=True)
class Tuned:
    """A kernel was tuned, and is recorded; or there is a reason why not."""

    kernel: str
    reason: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class _Program:
    """What a function was compiled from and into; kernels by their fingerprints, while they are
    there."""

    module: bytes
    job: Job
    backend: CpuBackend
    kernels: weakref.WeakValueDictionary[str, CpuKernel]


class Background:
    """The programs of this process whose kernels are tuned in the background."""

    def __init__(self) -> None:
        self._lock = process_lock()
        self._followed: weakref.WeakKeyDictionary[Ledger, list[_Program]] = (
            weakref.WeakKeyDictionary()
        )
        self._outcomes: dict[str, str] = {}  # by the ids that programs call kernels by
        self._at_work: frozenset[str] = frozenset()  # the ids of kernels that a process tunes
        self._news = threading.Event()  # there is a program more
        self._thread: threading.Thread | None = None
        os.register_at_fork(after_in_child=self._forget)

    def follow(
        self, function: TracedFunction, module: ir.Module, entry: str, report: Report
    ) -> Report:
        """Has the kernels of a program tuned that take much of the time from now on, if that is
        asked for; the report, which says so."""
        options = function.options
        kernels = {k.id: k.kept for k in report.kernels if isinstance(k.kept, CpuKernel)}
        if options.tune == "off" or not kernels:
            return report
        bytecode = io.BytesIO()
        module.operation.write_bytecode(bytecode)
        why_not = _why_not(options, bytecode.tell())
        if why_not:
            return dataclasses.replace(report, background=f"off: {why_not}")
        job = Job(entry, options.replace(tune="off"), jax.config.jax_enable_x64, {}, _TRIALS, _BUSY)
        program = _Program(
            bytecode.getvalue(), job, cpu_backend(options), weakref.WeakValueDictionary(kernels)
        )
        with self._lock:
            if self._thread is None:
                # It lives as long as the process, which does not wait for it: when it goes, the
                # system ends what it has started.
                thread = threading.Thread(target=self._run, name="hlo_mlc tunes", daemon=True)
                try:
                    thread.start()
                except RuntimeError as error:
                    return dataclasses.replace(report, background=f"off: {error}")
                self._thread = thread
            for kernel in report.kernels:
                if kernel.tuned is not None:
                    self._outcomes.setdefault(kernels[kernel.id].lease.kernel_id, "tuned before")
            self._followed.setdefault(function.ledger, []).append(program)
        self._news.set()
        return self._described(report)

    def _forget(self) -> None:
        """A forked child has no such thread, and nothing of the process that it talks to."""
        self._followed.clear()
        self._thread = None

    def _run(self) -> None:
        """Has tuned what is worth it; runs in a thread of its own. Calls are counted as long as
        that says something."""
        while True:
            with self._lock:
                programs = [one for programs in self._followed.values() for one in programs]
            waiting = self._waiting(programs)
            variants.enable_profiling(bool(waiting))
            if hot := [one for one in waiting if one[1]]:
                self._tune(*max(hot, key=lambda one: sum(one[1].values())))
            else:
                self._news.wait(_LOOK_S if waiting else None)
                self._news.clear()

    def _waiting(self, programs: Sequence[_Program]) -> list[tuple[_Program, dict[str, float]]]:
        """The programs with kernels that nothing has come of yet; those of them that are worth
        tuning, and the nanoseconds that calls have spent in them."""
        kernels = [(program, dict(program.kernels)) for program in programs]
        spent = {
            kernel_id: 0.0 if profile is None else float(profile.total_ns)
            for kernel_id, profile in (
                (one.lease.kernel_id, variants.read_profile(one.lease.kernel_id))
                for _, found in kernels
                for one in found.values()
            )
        }
        least = max(_WORTH_NS, _SHARE * sum(spent.values()))
        result = []
        for program, found in kernels:
            untuned = {
                fingerprint: spent[kernel.lease.kernel_id]
                for fingerprint, kernel in found.items()
                if kernel.lease.kernel_id not in self._outcomes
            }
            if untuned:
                result.append((program, {f: ns for f, ns in untuned.items() if ns >= least}))
        return result

    def _tune(self, program: _Program, spent: Mapping[str, float]) -> None:
        """Has a process tune kernels of a program, and takes over what it finds."""
        waiting, reason = dict(spent), "it was not reached"
        self._at_work = frozenset(
            kernel.lease.kernel_id
            for fingerprint in spent
            if (kernel := program.kernels.get(fingerprint)) is not None
        )
        self._revise(self._described)
        try:
            ours, theirs = Pipe()
            with theirs, short_turns(_TURN_S):  # until then it is as important as callers are
                process = start_process(
                    "hlo_mlc.interop.background_process", theirs, JAX_PLATFORMS="cpu"
                )
                step_behind(process.pid)
            with process, ours, contextlib.suppress(EOFError, OSError):
                ours.send(dataclasses.replace(program.job, spent=spent))
                ours.send_bytes(program.module)
                while True:
                    tuned = ours.recv()
                    self._take(program, tuned)
                    del waiting[tuned.kernel]
            end = end_of(process)
            if end != _AS_MEANT:
                reason = f"the process that tunes has crashed ({end})"
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
        self._at_work = frozenset()
        for fingerprint in waiting:
            self._take(program, Tuned(fingerprint, reason))

    def _take(self, program: _Program, tuned: Tuned) -> None:
        """Has programs run a kernel as it was tuned, and reports say what came of it."""
        kernel = program.kernels.get(tuned.kernel)
        if kernel is None:  # its programs are gone
            return
        options, backend = program.job.options, program.backend
        record, fresh = None, kernel
        if tuned.reason:
            outcome = f"as before: {tuned.reason}"
        else:
            record = open_records(options).get(tuned.kernel, backend.target.key)
            outcome = "tuned, and as fast by default"
            if record is not None and record.schedules:
                with short_turns(_TURN_S):
                    adopted = adopt_recorded(kernel.kernel, options, backend)
                if isinstance(adopted, CpuKernel):
                    fresh, outcome = adopted, "tuned"
                else:
                    record, outcome = None, "tuned for later processes"
        self._outcomes[kernel.lease.kernel_id] = outcome
        self._revise(lambda report: self._described(_with_tuned(report, fresh, record)))

    def _revise(self, change: Callable[[Report], Report]) -> None:
        """Changes what is reported of all programs."""
        with self._lock:
            ledgers = list(self._followed)
        for ledger in ledgers:
            ledger.revise(change)

    def _outcome(self, kernel_id: str) -> str:
        """What has come of a kernel."""
        waits = (
            ": a process measures whenever nobody else uses the machine"
            if kernel_id in self._at_work
            else ""
        )
        return self._outcomes.get(kernel_id, f"not tuned yet{waits}")

    def _described(self, report: Report) -> Report:
        """The report with what has come of its kernels."""
        outcomes = Counter(
            self._outcome(kernel.kept.lease.kernel_id)
            for kernel in report.kernels
            if isinstance(kernel.kept, CpuKernel)
        )
        return dataclasses.replace(
            report,
            background="; ".join(
                f"{counted(count, 'kernel')} {outcome}" for outcome, count in outcomes.items()
            ),
        )


BACKGROUND = Background()


def _why_not(options: Options, size: int) -> str:
    """Why a program of so many bytes is not tuned in the background; "" if it is."""
    if options.deterministic:
        return "deterministic=True"
    if options.records is not None:
        return "records= says how kernels are built"
    if options.any_rows:
        return "any_rows=True: tune(...) for 64, 16 or 4 rows tunes its kernels"
    if options.check:
        return "kernels check their accesses (HLO_MLC_CHECK)"
    if jax.device_count() > 1:
        return "there are several devices"
    if size > _LARGEST_BYTES:
        return f"the program's constants take {size >> 20} MiB"
    return ""


def _with_tuned(report: Report, built: CpuKernel, record: Record | None) -> Report:
    """The report with a kernel as it is recorded and runs now."""
    if record is None:
        return report
    return dataclasses.replace(
        report,
        kernels=tuple(
            dataclasses.replace(
                k, nests=built.nests, proof=str(built.proof), tuned=record.measured, kept=built
            )
            if isinstance(k.kept, CpuKernel) and k.kept.lease is built.lease
            else k
            for k in report.kernels
        ),
    )
