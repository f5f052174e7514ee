"""The tuning of one module, kernel by kernel.

Every cluster of the function gets a study, also those that are left to XLA now. Its candidates are
checked against what XLA computes of the same operations, and in the end the winner runs in turns
with XLA: which is faster is recorded, too.

Where the call is given arrays, and not types only, XLA computes from them what each kernel is
given; else, and in the bodies of loops that stay with XLA, operands are made up.
"""

from __future__ import annotations

import dataclasses
import functools
import io
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jaxlib.mlir import ir

from hlo_mlc.building import rebuild_kernel
from hlo_mlc.compiler import clusters_of
from hlo_mlc.graph.core import Graph
from hlo_mlc.interop import compat
from hlo_mlc.interop.choices import choice_path
from hlo_mlc.interop.cluster_programs import (
    cluster_operands,
    in_memory,
    kernel_program,
    operands_program,
    original_program,
)
from hlo_mlc.interop.compiling import compile_extracted
from hlo_mlc.interop.devices import CPU, compiled_for
from hlo_mlc.interop.extraction import standalone
from hlo_mlc.interop.operands import calls_back
from hlo_mlc.interop.platforms import BACKENDS
from hlo_mlc.interop.synthetic_arguments import synthetic_arguments
from hlo_mlc.interop.tuning_report import TunedKernel
from hlo_mlc.interop.tuning_studies import Studies, outcome
from hlo_mlc.limits import MachineLimits, machine_limits
from hlo_mlc.partition.cluster import Cluster
from hlo_mlc.partition.estimate import Estimate
from hlo_mlc.partition.row_blocks import RowBlocks
from hlo_mlc.report import Comparison
from hlo_mlc.reporting import is_data_dependent
from hlo_mlc.runtime.busyness import Moment, at_once
from hlo_mlc.runtime.measure import PairedTimes, time_in_turns
from hlo_mlc.runtime.records import OURS, XLA, Measured, Record, open_records, today
from hlo_mlc.support.errors import TuningError, UsageError
from hlo_mlc.support.options import Options
from hlo_mlc.target.cpu import CpuTarget
from hlo_mlc.target.cuda import CudaTarget
from hlo_mlc.tuning.generator import ModelledGenerator
from hlo_mlc.tuning.messages import Task
from hlo_mlc.tuning.model import learned
from hlo_mlc.tuning.progress import TuningProgress
from hlo_mlc.tuning.shared import DEFAULT_TRIALS, SharedKernel
from hlo_mlc.tuning.storage import journal_path, open_studies
from hlo_mlc.tuning.study import SHARE_OF
from hlo_mlc.tuning.tuner import Budget, Winner, tune_kernel
from hlo_mlc.tuning.workers import Worker, helpers

# When to stop if nobody says: when half a percent is expected of another trial, half of what the
# final tells apart (11 of 12 kernels then had 98 % of the speed that they had after three times as
# many), and after this many in any case.
LEAST_GAIN, _MOST_TRIALS = 0.005, 64
# Where that was so when a kernel was tuned before: its best are held against each other once more.
_NO_TRIALS = Budget(0)
_LARGEST_BYTES = 1 << 30  # of a kernel's operands and results
_FASTER = 1.05  # the ratio at which one side counts as faster: calls through Python blur the rest
# The same by a model of a GPU: what it is wrong about in one kernel is much the same for all of its
# schedules, but not quite.  Not measured.
_SURELY_FASTER = 1.2
_COMPARISON_S = 0.5
_QUEUED = 16  # calls that a GPU is given at a time: how long it takes to start one is no matter
_FINISH_S = 4.0  # a worker's start, the final where much is sure, the comparison with XLA


class Session:
    """The tuning of one module; what it measures, it measures when `moment` says so."""

    def __init__(
        self,
        module: ir.Module,
        entry: str,
        options: Options,
        trials: int | None,
        minutes: float | None,
        given: Sequence[np.ndarray] | None,
        moment: Moment = at_once,
        storage: str | None = None,
        platform: str = CPU,
        modelled: bool = False,
    ) -> None:
        """`modelled`: nothing runs, since the GPU that the options name need not be here."""
        self._given, self._moment = given, moment
        self._module, self._entry, self._options = module, entry, options
        self._trials = trials
        self._platform = platform
        self._compiled_for = compiled_for(platform, options)
        self._backend = BACKENDS[self._compiled_for](options)
        self._target = self._backend.target
        self._records = open_records(options)
        self._is_shared = storage is not None
        self._studies = Studies(
            open_studies(storage or journal_path(options)), self._records, self._target, modelled
        )
        self._modelled = modelled
        self._generator = ModelledGenerator() if modelled else self._backend.generator
        self._forest = (
            learned(options.cache_dir, self._target)
            if isinstance(self._target, CpuTarget)
            else None
        )
        self._deadline = None if minutes is None else time.monotonic() + 60 * minutes
        self._waiting: list[TunedKernel] = []
        self._helpers: Sequence[Worker] = ()

    def kernels(
        self, progress: TuningProgress, spent: Mapping[str, float] | None = None
    ) -> Iterator[TunedKernel]:
        """Tunes every kernel, each for its share of the time; where it is known what calls have
        `spent` in which kernels, these alone."""
        graph, plan = clusters_of(
            self._module, self._options, entry=self._entry, backend=self._backend
        )
        plan = self._backend.divided(plan, graph, {})
        for cluster, _ in plan.taken:
            _require_whole(cluster)
        found: dict[str, list[Cluster]] = {}
        weights: dict[str, float] = {}
        least_us: dict[str, float] = {}
        xla_us: dict[str, float] = {}
        for cluster, verdict in (*plan.taken, *plan.rejected):
            fingerprint = cluster.kernel.fingerprint
            found.setdefault(fingerprint, []).append(cluster)
            least_us[fingerprint] = self._least_us(verdict.estimate)
            xla_us[fingerprint] = verdict.estimate.xla_us
            weights[fingerprint] = weights.get(fingerprint, 0.0) + verdict.estimate.ours_us
        if spent is not None:
            weights = {kernel: time for kernel, time in spent.items() if kernel in found}
        remaining = sum(weights.values())
        spent_us: dict[str, float] = {}
        costliest = sorted(weights, key=lambda fingerprint: -weights[fingerprint])
        self._waiting = [_untuned(found[fingerprint]) for fingerprint in costliest]
        with helpers() as self._helpers:
            for number, fingerprint in enumerate(costliest, 1):
                budget = self._budget(weights[fingerprint] / remaining, len(costliest) - number + 1)
                remaining -= weights[fingerprint]
                label = f"{number}/{len(costliest)} {found[fingerprint][0].kernel.name}"
                tuned = self._kernel(
                    graph,
                    found[fingerprint],
                    budget,
                    progress,
                    label,
                    least_us[fingerprint],
                    xla_us[fingerprint],
                )
                del self._waiting[0]
                if tuned.record is not None:
                    spent_us[fingerprint] = tuned.record.measured.ours_us * tuned.uses
                yield tuned
        for fingerprint, us in spent_us.items():
            share = us / sum(spent_us.values())
            self._studies.of(fingerprint).describe({f"{SHARE_OF}{self._entry}": share})

    def unfinished(self) -> list[TunedKernel]:
        """What an interrupt left over."""
        return [
            dataclasses.replace(kernel, reason="interrupted before its winner was known")
            for kernel in self._waiting
        ]

    def whole(self) -> Comparison | None:
        """The function as it is compiled now in turns with XLA's; None where it cannot be run by
        itself, or on made-up arguments."""
        if self._modelled or calls_back(self._module, self._entry):
            return None
        original = standalone(self._module, self._entry)
        remembered = choice_path(str(original), self._options, self._platform)
        remembered.unlink(missing_ok=True)  # of slower kernels
        compiled, report = compile_extracted(
            self._module, self._options, entry=self._entry, platform=self._compiled_for
        )
        if compiled is None:
            return None
        if self._given is None and any(kernel.data_dependent for kernel in report.kernels):
            return None
        ours = standalone(compiled, self._entry)
        arguments = synthetic_arguments(original) if self._given is None else self._given
        times = self._times(original, ours, arguments)
        return Comparison(self._options.choose, times.b.median_us, times.a.median_us, times.speedup)

    def _least_us(self, estimate: Estimate) -> float:
        """The time below which no kernel can do this; 0 if that is not known."""
        if isinstance(self._target, CudaTarget):
            return estimate.bytes / self._target.memory_bytes_per_us
        return self._limits.least_us(estimate.bytes, estimate.contraction_flops)

    @functools.cached_property
    def _limits(self) -> MachineLimits:
        return self._moment(lambda: machine_limits(self._options))

    def _budget(self, share: float, kernels: int) -> Budget:
        """A share of the time that is left for trials, this kernel being the first of so many: what
        it does not need, since nothing is expected of another trial, is for those that follow."""
        if self._deadline is None:
            return Budget(self._trials) if self._trials else Budget(_MOST_TRIALS, None, LEAST_GAIN)
        now = time.monotonic()
        left = self._deadline - now - kernels * _FINISH_S
        least_gain = 0.0 if self._trials else LEAST_GAIN
        return Budget(self._trials, now + share * max(left, 0.0), least_gain)

    def _kernel(
        self,
        graph: Graph,
        clusters: Sequence[Cluster],
        budget: Budget,
        progress: TuningProgress,
        label: str,
        least_us: float,
        xla_us: float,
    ) -> TunedKernel:
        """What comes of tuning one kernel, which computes all of these clusters."""
        cluster = clusters[0]
        tuned = _untuned(clusters)
        program = None if self._given is None else operands_program(graph, self._module, cluster)
        known = self._records.get(cluster.kernel.fingerprint, self._target.key)
        if reason := self._why_left_out(cluster, program is not None, known):
            return dataclasses.replace(tuned, reason=reason)
        original = None if self._modelled else original_program(graph, self._module, cluster)
        operands = (
            []
            if self._modelled
            else cluster_operands(graph, cluster, program, self._given or (), self._platform)
        )
        task = self._task(cluster, original, operands)
        space = self._generator.space(cluster.kernel.program, self._target)
        shared = self._shared(cluster.kernel.fingerprint) if self._is_shared else {}
        study = self._studies.opened(cluster, tuned.ops, space, known, shared)
        if self._trials is None and self._deadline is None and study.is_complete:
            budget = _NO_TRIALS
        progress.begin(label, study, space, budget, least_us, xla_us)
        try:
            winner = tune_kernel(
                task,
                study,
                space,
                budget,
                known,
                progress.on_trial,
                on_interrupt=progress.on_interrupt,
                moment=self._moment,
                forest=self._forest,
                helpers=self._helpers,
            )
        except TuningError as error:
            return dataclasses.replace(tuned, reason=str(error))
        if original is None:
            record = self._keep_modelled(cluster, winner, known)
        else:
            record = self._keep(cluster, winner, known, original, operands)
        progress.end(record.measured)
        of_limit = least_us / record.measured.ours_us
        study.describe(outcome(record, winner, of_limit))
        return dataclasses.replace(
            tuned,
            record=record,
            tried=winner.tried,
            failed=winner.failed,
            noise=winner.noise,
            given=program is not None,
            interrupted=winner.interrupted,
            of_limit=of_limit,
        )

    def _task(
        self, cluster: Cluster, original: ir.Module | None, operands: Sequence[np.ndarray]
    ) -> Task:
        """What candidates are run with, if they are, and what is to come of it."""
        expected = () if original is None else compat.compile_for(original)(operands)
        return Task(
            cluster.kernel.program,
            self._target,
            self._generator,
            in_memory(cluster, cluster.operands, operands),
            in_memory(cluster, cluster.results, tuple(map(np.asarray, expected))),
        )

    def _why_left_out(self, cluster: Cluster, given: bool, known: Record | None) -> str:
        """Why a kernel is not tuned; "" if it is."""
        if self._deadline is not None and time.monotonic() > self._deadline:
            return "the time was up before its turn"
        if known is not None and known.by_hand:
            return "it is scheduled by hand: schedule(...).unpin() has it tuned again"
        return "" if self._modelled else _why_not(cluster, given)

    def _keep_modelled(self, cluster: Cluster, winner: Winner, known: Record | None) -> Record:
        """Records a winner that was not run, unless one is known that was: the default schedule
        where the model does not tell much between them."""
        measured, schedules = winner.measured, winner.schedules
        if measured.speedup < _SURELY_FASTER:
            us = measured.default_us
            measured, schedules = Measured(us, us, 1.0), {}
        record = Record(
            cluster.kernel.fingerprint,
            self._target.key,
            schedules,
            dataclasses.replace(measured, modelled=True),
            made=today(),
            name=cluster.kernel.name,
        )
        return self._records.put(
            record, replaces=known if known and known.measured.modelled else None
        )

    def _shared(self, fingerprint: str) -> dict[str, str]:
        """What others need to take trials of a kernel.

        Raises: UsageError for one that is too large.
        """
        module = io.BytesIO()
        self._module.operation.write_bytecode(module)
        return SharedKernel(
            fingerprint,
            self._target.key,
            module.getvalue(),
            self._entry,
            self._options.choose,
            jax.config.jax_enable_x64,
            self._trials or DEFAULT_TRIALS,
        ).attributes()

    def _keep(
        self,
        cluster: Cluster,
        winner: Winner,
        known: Record | None,
        original: ir.Module,
        operands: Sequence[np.ndarray],
    ) -> Record:
        """Records the winner, gives it to programs that run, and compares it with XLA's."""
        record = Record(
            cluster.kernel.fingerprint,
            self._target.key,
            winner.schedules,
            winner.measured,
            made=today(),
            name=cluster.kernel.name,
        )
        kept = self._records.put(record, replaces=known)
        built = rebuild_kernel(cluster.kernel, self._options, self._backend)
        if kept != record:  # somebody else found a faster one meanwhile
            return kept
        program = kernel_program(self._module, cluster, self._backend, built)
        times = self._moment(lambda: self._times(original, program, operands))
        measured = dataclasses.replace(
            record.measured, xla_us=times.a.median_us, xla_ratio=times.speedup
        )
        sure = times.sure_speedup
        choice = OURS if sure >= _FASTER else XLA if sure <= 1 / _FASTER else ""
        return self._records.put(
            dataclasses.replace(record, measured=measured, choice=choice), replaces=record
        )

    def _times(self, original: ir.Module, ours: ir.Module, operands: Sequence[Any]) -> PairedTimes:
        arrays = [compat.place_on(array, self._platform) for array in operands]
        calls = 1 if self._platform == CPU else _QUEUED

        def queued(module: ir.Module) -> Callable[[], object]:
            execute = compat.compile_for(module, self._platform)

            def run() -> None:
                for _ in range(calls):
                    results = execute(arrays)
                jax.block_until_ready(results)

            return run

        return time_in_turns(queued(original), queued(ours), _COMPARISON_S).per_call(calls)


def _require_whole(cluster: Cluster) -> None:
    """Raises: UsageError for what is computed in blocks of rows, each by another kernel."""
    if cluster.blocks is None or _is_in_pieces(cluster.blocks):
        return
    raise UsageError(
        f"{cluster.kernel.name} has {cluster.blocks.rows} rows here, which any_rows=True "
        f"computes in blocks of {', '.join(map(str, cluster.blocks.calls[0].kernels))}: tune it "
        "for arguments with so many rows, one number after the other"
    )


def _is_in_pieces(blocks: RowBlocks) -> bool:
    """Whether there is more to it than rows that are computed each by itself."""
    return len(blocks.calls) > 1 or bool(blocks.calls[0].folds)


def _untuned(clusters: Sequence[Cluster]) -> TunedKernel:
    """A kernel of these places before anything came of it."""
    ops = tuple(node.op for node in clusters[0].nodes)
    kernel = clusters[0].kernel
    return TunedKernel(kernel.name, ops, len(clusters), None, id=kernel.fingerprint)


def _why_not(cluster: Cluster, given: bool) -> str:
    """Why a kernel cannot be measured, on what it is given or on made-up operands; "" if it can."""
    program = cluster.kernel.program
    if cluster.blocks is not None:
        return "any_rows=True computes it in pieces"
    if not given and any(map(is_data_dependent, program.steps)):
        return "its time depends on the values of its operands: call tune with arrays"
    size = sum(b.bytes for b in (*program.operands, *program.results))
    if size > _LARGEST_BYTES:
        return f"its operands and results take {size >> 20} MiB"
    return ""
