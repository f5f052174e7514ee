"""A process that builds and runs candidates: `python -m hlo_mlc.tuning.worker DESCRIPTOR`.

It may crash or hang of a candidate; the tuner (supervisor.py) then ends it and starts another.
"""

from __future__ import annotations

import resource
import sys
from multiprocessing.connection import Connection

import numpy as np

from hlo_mlc.runtime.records import Schedules
from hlo_mlc.support.errors import MlcError
from hlo_mlc.support.processes import end_with_parent
from hlo_mlc.tuning.agreement import baseline_fault, candidate_fault
from hlo_mlc.tuning.bench import Bench, Candidate
from hlo_mlc.tuning.features import Description, description_of
from hlo_mlc.tuning.generator import CandidateSource
from hlo_mlc.tuning.messages import Build, Built, Describe, Failed, Measure, Ready, Task, Timed
from hlo_mlc.tuning.transport import unpack

_BASELINE_S = 0.05
# The part of its time after which a candidate that is so many times as slow as the default is given
# up: how slow it is exactly is nobody's concern.
_FIRST_LOOK, _GIVEN_UP = 0.2, 1.5


def main(descriptor: int) -> None:
    """Serves one tuner until it closes the connection."""
    end_with_parent()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with Connection(descriptor) as connection:
        try:
            trials = _Trials(unpack(connection.recv_bytes()))
            connection.send(trials.ready())
            while True:
                connection.send(trials.answer(connection.recv()))
        except EOFError:
            return


class _Trials:
    """A kernel, where it runs, and the default schedule to compare with."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._bench: Bench | None = None
        self._default: Candidate | None = None
        self._usual: list[np.ndarray] = []  # what it computes
        self._candidate: CandidateSource | None = None

    def ready(self) -> Ready | Failed:
        """Builds the default schedule and checks it against the reference."""
        task = self._task
        try:
            self._bench = task.generator.bench(task.target, task.operands, task.expected)
            default = self._load(self._source({}))
        except Exception as error:
            return Failed(f"the default schedule cannot be built: {_described(error)}")
        default.run()
        self._usual = default.results()
        fault = baseline_fault(self._usual, task.expected)
        if fault:
            return Failed(f"the default schedule is wrong: {fault}")
        self._default = default
        return Ready(self._bench.time(default, default, _BASELINE_S).a.median_us)

    def answer(self, request: Describe | Build | Measure) -> Description | Built | Timed | Failed:
        """Does what is asked. A candidate's code fails in any way it likes, so all are caught."""
        task = self._task
        try:
            if isinstance(request, Describe):
                loops = task.generator.loops(task.program, task.target, request.schedules)
                return description_of(loops, task.target)
            if isinstance(request, Build):
                self._candidate = self._source(request.schedules)
                return Built(self._candidate.digest)
            return self._measure(request.seconds)
        except Exception as error:
            return Failed(_described(error))

    def _source(self, schedules: Schedules) -> CandidateSource:
        task = self._task
        return task.generator.source(task.program, task.target, schedules)

    def _load(self, source: CandidateSource) -> Candidate:
        return self._bench.load(source, self._task.generator.assemble(source, self._task.target))

    def _measure(self, seconds: float) -> Timed | Failed:
        candidate = self._load(self._candidate)
        candidate.run()
        fault = self._fault(candidate)
        if fault:
            return Failed(fault)
        times = self._bench.time(self._default, candidate, _FIRST_LOOK * seconds)
        if times.sure_speedup > 1 / _GIVEN_UP:
            times = self._bench.time(self._default, candidate, (1 - _FIRST_LOOK) * seconds)
        # What it left behind after all these runs is still what it should be: no lucky race.
        fault = self._fault(candidate)
        if fault:
            return Failed(f"after several runs, {fault}")
        return Timed(times.a.median_us, times.b.median_us, times.sure_speedup,
                     times.a.median_us / max(times.a.best_us, 1e-3))

    def _fault(self, candidate: Candidate) -> str:
        return candidate_fault(candidate.results(), self._task.expected, self._usual)


def _described(error: Exception) -> str:
    first = (str(error).splitlines() or [""])[0]
    return first if isinstance(error, MlcError) else f"{type(error).__name__}: {first}"


if __name__ == "__main__":
    main(int(sys.argv[1]))
