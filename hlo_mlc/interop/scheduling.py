"""`fn.schedule`: the loops of a kernel for a person to rewrite, run, time and keep."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from hlo_mlc.backends.cpu import CpuBackend, target_of
from hlo_mlc.building import rebuild_kernel
from hlo_mlc.compiler import clusters_of
from hlo_mlc.explain import is_shown_as
from hlo_mlc.expr.layout import restored
from hlo_mlc.interop.arguments import require_count
from hlo_mlc.interop.cluster_programs import KernelAlone, in_memory
from hlo_mlc.interop.devices import require_cpu
from hlo_mlc.interop.operands import parts_of_call
from hlo_mlc.interop.staged import forget
from hlo_mlc.interop.verifying import Verification, held_against_f64
from hlo_mlc.loops.core import Accumulate, For, LoopKind, walk
from hlo_mlc.loops.prove import prove
from hlo_mlc.runtime.measure import aligned, aligned_empty, bind_kernel
from hlo_mlc.runtime.records import (
    OURS,
    Measured,
    Record,
    Schedules,
    find_record,
    open_records,
    require_say,
    today,
)
from hlo_mlc.runtime.variants import KernelCode, load_object
from hlo_mlc.schedule.core import PRIMITIVES, Schedule, Step, Trace, replay
from hlo_mlc.support.errors import ScheduleError, UsageError, did_you_mean
from hlo_mlc.support.options import Options
from hlo_mlc.support.wording import counted
from hlo_mlc.target.cpu import CpuTarget
from hlo_mlc.templates.base import naive_loops, work
from hlo_mlc.templates.plain import PlainTemplate
from hlo_mlc.templates.program import history_text, schedule_program
from hlo_mlc.tuning.generator import TemplateGenerator
from hlo_mlc.tuning.messages import Build, Failed, Task
from hlo_mlc.tuning.replay import why_not_followed
from hlo_mlc.tuning.supervisor import Supervisor

_SECONDS = 0.4  # of timing, as for those of a tuner's candidates that may win
_GPU = (LoopKind.BLOCK, LoopKind.THREAD)
_MOST_LINES = 100_000  # of LLVM IR: they take some 4 s to compile


@dataclass(frozen=True, slots=True, eq=False)
class _Place:
    """A kernel in its function, for a machine, and how the rest of its nests is scheduled."""

    function: Any  # what `mlc_jit` made
    options: Options
    target: CpuTarget
    alone: KernelAlone
    others: Schedules

    def code(self, schedules: Schedules) -> KernelCode:
        """The kernel with these schedules.

        Raises: MlcError where it cannot be proved or printed.
        """
        loops, _ = schedule_program(self.alone.cluster.kernel.program, self.target, schedules)
        loops, _ = prove(loops)
        source = CpuBackend(self.target).print(loops, checked=False, most_lines=_MOST_LINES)
        return load_object(source.assemble(), source.symbol, source.scratch_bytes)

    def runs(self, schedules: Schedules, threads: Iterable[int]) -> list[list[np.ndarray]]:
        """The kernel's results on so many threads, one run after the other.

        Raises: UsageError where its operands are not known.
        """
        if self.alone.refusal:
            raise UsageError(f"The kernel is not run: {self.alone.refusal}")
        code, found = self.code(schedules), []
        cluster = self.alone.cluster
        kernel, values, orders = cluster.kernel, cluster.results, cluster.orders
        operands = [*map(aligned, in_memory(cluster, cluster.operands, self.alone.operands))]
        for count in threads:
            results = [aligned_empty(b.shape, b.dtype.numpy) for b in kernel.program.results]
            bind_kernel(code, operands, results, threads=count)()
            found.append(
                [
                    restored(memory, value.type, orders.get(value, ()))
                    for memory, value in zip(results, values, strict=True)
                ]
            )
        return found

    def renew(self) -> None:
        """Has programs run what is recorded by now, those that are running included."""
        rebuild_kernel(self.alone.cluster.kernel, self.options, CpuBackend(self.target))
        self.function.clear_cache()
        forget()


@dataclass(frozen=True, slots=True, eq=False)
class KernelSchedule:
    """The schedule of one nest of a kernel: the naive loops of a template, and steps from there.

    Every primitive of `schedule/` is a method, which gives a new one or refuses; `print` shows the
    steps and the loops that they have led to.
    """

    schedule: Schedule
    nest: int
    template: str
    place: _Place

    def __getattr__(self, name: str) -> Callable[..., KernelSchedule]:
        if name not in PRIMITIVES:
            raise AttributeError(f"A schedule has no {name!r}{did_you_mean(name, PRIMITIVES)}")
        method = getattr(self.schedule, name)

        @functools.wraps(method)
        def rewritten(*args: Any, **kwargs: Any) -> KernelSchedule:
            return self._with(method(*args, **kwargs))

        rewritten.__signature__ = inspect.signature(method)
        return rewritten

    def __dir__(self) -> Iterable[str]:
        return {*object.__dir__(self), *PRIMITIVES}

    def __str__(self) -> str:
        head = f"{self.name}, nest {self.nest}: {counted(len(self.steps), 'step')} from naive loops"
        return "\n".join(
            [
                head,
                *(f"  {n} {step}" for n, step in enumerate(self.steps)),
                str(self.schedule).rstrip(),
            ]
        )

    __repr__ = __str__  # what a person sees who asks for it at a prompt

    @property
    def name(self) -> str:
        """What the kernel is called."""
        return self.place.alone.cluster.kernel.name

    @property
    def steps(self) -> Trace:
        """The steps from the naive loops to these."""
        return self.schedule.trace

    @property
    def history(self) -> str:
        """The naive loops, and the loops after each step."""
        return history_text(self.schedule)

    def with_steps(self, steps: Iterable[Step]) -> KernelSchedule:
        """The naive loops, and other steps from there: `s.with_steps(s.steps[:3])`.

        Raises: ScheduleError where a step does not apply.
        """
        return self._with(replay(self.schedule.naive or self.schedule.program, steps))

    def run(self) -> list[np.ndarray]:
        """The kernel's results with this schedule, on what the call gives it."""
        with jax.ensure_compile_time_eval():
            (results,) = self.place.runs(self._schedules, [self.place.target.cores])
        return results

    def check(self, runs: int = 3) -> Verification:
        """Holds the kernel with this schedule, and with that of analysis, against the same
        operations in f64, as `verify` does."""
        require_count("check", "run", runs)
        cores = [self.place.target.cores] * runs
        with jax.ensure_compile_time_eval():
            checked = []
            for name, schedules in (("by hand", self._schedules), ("default", {})):
                *ours, one_thread = self.place.runs(schedules, [*cores, 1])
                checked.append(
                    replace(held_against_f64(self.place.alone, ours, one_thread), name=name)
                )
        return Verification(self.name, tuple(checked))

    def measure(self, seconds: float = _SECONDS) -> Measured:
        """Times the kernel with this schedule in turns with that of analysis, in a process of its
        own.

        Raises: ScheduleError where it fails, or computes something else.
        """
        place, alone = self.place, self.place.alone
        if alone.refusal:
            raise UsageError(f"The kernel is not run: {alone.refusal}")
        with jax.ensure_compile_time_eval():
            cluster = alone.cluster
            task = Task(
                cluster.kernel.program,
                place.target,
                TemplateGenerator(),
                in_memory(cluster, cluster.operands, alone.operands),
                in_memory(cluster, cluster.results, alone.expected),
            )
        with Supervisor(task) as supervisor:
            (built,) = supervisor.build([Build(self._schedules)])
            timed = built if isinstance(built, Failed) else supervisor.measure(built, seconds)
        if isinstance(timed, Failed):
            raise ScheduleError(f"{self.name}, scheduled by hand: {timed.reason}")
        return Measured(timed.default_us, timed.us, timed.speedup)

    def pin(self) -> Record:
        """Times the kernel and records this schedule: calls from now on run it, in later processes
        too, whatever tuning finds.

        Raises: ScheduleError as `measure` does, UsageError where records have no say, CacheError
        where they cannot be written.
        """
        place, kernel = self.place, self.place.alone.cluster.kernel
        require_say(place.options, "schedule")
        records, key = open_records(place.options), place.target.key
        record = Record(
            kernel.fingerprint, key, self._schedules, self.measure(), OURS, today(), kernel.name
        )
        kept = records.put(record, replaces=records.get(kernel.fingerprint, key))
        place.renew()
        return kept

    def unpin(self) -> None:
        """Forgets what is recorded of the kernel: it gets the schedule of analysis again.

        Raises: UsageError where records have no say.
        """
        require_say(self.place.options, "schedule")
        open_records(self.place.options).remove(
            self.place.alone.cluster.kernel.fingerprint, self.place.target.key
        )
        self.place.renew()

    @property
    def _schedules(self) -> Schedules:
        return {**self.place.others, self.nest: (self.template, self.steps)}

    def _with(self, schedule: Schedule) -> KernelSchedule:
        if any(
            (isinstance(s, For) and s.kind in _GPU) or (isinstance(s, Accumulate) and s.atomic)
            for s in walk(schedule.program.body)
        ):
            raise ScheduleError(f"{schedule.trace[-1]} is for GPUs; this kernel runs on a CPU")
        return replace(self, schedule=schedule)


def schedule_kernel(
    function: Any,
    options: Options,
    name: str,
    kernel: str,
    nest: int | None,
    args: Sequence[Any],
    kwargs: dict[str, Any],
) -> KernelSchedule:
    """The schedule of a nest of a kernel that `mlc_jit` makes of a function for such arguments: as
    it is recorded, or the chain of primitives that its template makes of naive loops; naive loops
    where it makes none.

    Raises: UsageError for a kernel or nest that is not there, and where the function does not run
    on the CPU.
    """
    if not isinstance(kernel, str):
        raise UsageError(
            "schedule takes the name of a kernel first, as explain(...) shows it, got "
            f"{type(kernel).__name__}"
        )
    require_cpu(jax.tree.leaves((function.args, args, kwargs)), "scheduled")
    found: dict[str, KernelAlone] = {}
    for part in parts_of_call(function, args, kwargs):
        graph, plan = clusters_of(part.module, options, entry=part.entry)
        for cluster, _ in (*plan.taken, *plan.rejected):
            alone = KernelAlone(graph, cluster, part)
            found.setdefault(cluster.kernel.name, alone)
            found.setdefault(cluster.kernel.fingerprint, alone)
    kernel = next((name for name in found if is_shown_as(name, kernel)), kernel)
    if kernel not in found:
        names = dict.fromkeys(alone.cluster.kernel.name for alone in found.values())
        raise UsageError(
            f"{name} has no kernel {kernel!r}{did_you_mean(kernel, names)}; there "
            f"are: {', '.join(names) or 'none'}"
        )
    return _schedule_of(found[kernel], function, options, nest)


def _schedule_of(
    alone: KernelAlone, function: Any, options: Options, nest: int | None
) -> KernelSchedule:
    kernel, target = alone.cluster.kernel, target_of(options)
    known = find_record(kernel.fingerprint, target.key, options)
    schedules: Schedules = {} if known is None else known.schedules
    if why_not_followed(kernel.program, target, schedules, TemplateGenerator()):
        schedules = {}
    _, decisions = schedule_program(kernel.program, target, schedules)
    nests = range(len(decisions))
    if nest is None:
        nest = max(nests, key=lambda n: work(decisions[n].nest), default=0)
    if nest not in nests:
        raise UsageError(f"{kernel.name} has no nest {nest}: it has {counted(len(nests), 'nest')}")
    decision = decisions[nest]
    template, chains = decision.template.name, decision.schedules
    naive = naive_loops(decision.template, decision.nest, target)
    if naive is None or len(chains) != 1:
        plain = PlainTemplate()
        template, chains = plain.name, plain.apply(decision.nest, target, {}).schedules
        naive = chains[0].program
    trace = tuple(step for chain in chains for step in chain.trace)
    others = {n: way for n, way in schedules.items() if n != nest}
    return KernelSchedule(
        replay(naive, trace), nest, template, _Place(function, options, target, alone, others)
    )
