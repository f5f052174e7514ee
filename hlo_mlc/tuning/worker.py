"""A process that builds and runs candidates: `python -m hlo_mlc.tuning.worker DESCRIPTOR`.

It may crash or hang of a candidate; the tuner (supervisor.py) then ends it and starts another.
"""

from __future__ import annotations

import hashlib
import resource
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection

import numpy as np

from hlo_mlc.runtime.measure import aligned, aligned_empty, bind_kernel, time_in_turns
from hlo_mlc.runtime.records import Schedules
from hlo_mlc.runtime.variants import load_object
from hlo_mlc.support.errors import MlcError
from hlo_mlc.support.processes import end_with_parent
from hlo_mlc.tuning.agreement import baseline_fault, candidate_fault
from hlo_mlc.tuning.features import Description, description_of
from hlo_mlc.tuning.generator import CandidateSource
from hlo_mlc.tuning.messages import Build, Built, Describe, Failed, Measure, Ready, Task, Timed
from hlo_mlc.tuning.transport import unpack

_BASELINE_S = 0.05
_UNTOUCHED = 0x5A  # what results hold before a kernel writes them


def main(descriptor: int) -> None:
    """Serves one tuner until it closes the connection."""
    end_with_parent()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with Connection(descriptor) as connection:
        try:
            bench = _Bench(unpack(connection.recv_bytes()))
            connection.send(bench.ready())
            while True:
                connection.send(bench.answer(connection.recv()))
        except EOFError:
            return


class _Bench:
    """A kernel, its arguments, and the default schedule to compare with."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._operands = [aligned(array) for array in task.operands]
        self._default: list[np.ndarray] = []
        self._run_default: Callable[[], None] | None = None
        self._candidate: CandidateSource | None = None

    def ready(self) -> Ready | Failed:
        """Builds the default schedule and checks it against the reference."""
        try:
            run, self._default = self._bind(self._source({}))
        except Exception as error:
            return Failed(f"the default schedule cannot be built: {_described(error)}")
        run()
        fault = baseline_fault(self._default, self._task.expected)
        if fault:
            return Failed(f"the default schedule is wrong: {fault}")
        self._run_default = run
        return Ready(time_in_turns(run, run, _BASELINE_S).a.median_us)

    def answer(self, request: Describe | Build | Measure) -> Description | Built | Timed | Failed:
        """Does what is asked. A candidate's code fails in any way it likes, so all are caught."""
        task = self._task
        try:
            if isinstance(request, Describe):
                loops = task.generator.loops(task.program, task.target, request.schedules)
                return description_of(loops, task.target)
            if isinstance(request, Build):
                self._candidate = self._source(request.schedules)
                return Built(hashlib.sha256(self._candidate.text.encode()).hexdigest()[:24])
            return self._measure(request.seconds)
        except Exception as error:
            return Failed(_described(error))

    def _source(self, schedules: Schedules) -> CandidateSource:
        task = self._task
        return task.generator.source(task.program, task.target, schedules)

    def _measure(self, seconds: float) -> Timed | Failed:
        run, results = self._bind(self._candidate)
        run()
        fault = candidate_fault(results, self._task.expected, self._default)
        if fault:
            return Failed(fault)
        times = time_in_turns(self._run_default, run, seconds)
        # What it left behind after all these runs is still what it should be: no lucky race.
        fault = candidate_fault(results, self._task.expected, self._default)
        if fault:
            return Failed(f"after several runs, {fault}")
        return Timed(times.a.median_us, times.b.median_us, times.sure_speedup,
                     times.a.median_us / max(times.a.best_us, 1e-3))

    def _bind(self, source: CandidateSource) -> tuple[Callable[[], None], list[np.ndarray]]:
        """A function that runs a candidate, and the results that it writes."""
        task = self._task
        code = load_object(task.generator.assemble(source, task.target), source.symbol,
                           source.scratch_bytes)
        results = [aligned_empty(array.shape, array.dtype) for array in task.expected]
        for array in results:
            array.reshape(-1).view(np.uint8)[...] = _UNTOUCHED  # scalars have no other view
        return bind_kernel(code, self._operands, results, threads=task.target.cores), results


def _described(error: Exception) -> str:
    first = (str(error).splitlines() or [""])[0]
    return first if isinstance(error, MlcError) else f"{type(error).__name__}: {first}"


if __name__ == "__main__":
    main(int(sys.argv[1]))
