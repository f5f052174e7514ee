"""A process that builds and runs candidates: `python -m hlo_mlc.tuning.worker DESCRIPTOR`.

It may crash or hang of a candidate; who asked (workers.py) then ends it and starts another.
"""

from __future__ import annotations

import contextlib
import resource
import sys
from multiprocessing.connection import Connection

import numpy as np

from hlo_mlc.support.errors import MlcError
from hlo_mlc.support.processes import end_with_parent
from hlo_mlc.tuning.agreement import baseline_fault, candidate_fault
from hlo_mlc.tuning.bench import Bench, Candidate
from hlo_mlc.tuning.features import Description, description_of
from hlo_mlc.tuning.messages import (
    Begin,
    Build,
    Built,
    Describe,
    Failed,
    Kernel,
    Load,
    Measure,
    Ready,
    Request,
    Timed,
)
from hlo_mlc.tuning.transport import unpack

_BASELINE_S = 0.05
# The part of its time after which a candidate that is so many times as slow as the default is given
# up: how slow it is exactly is nobody's concern.
_FIRST_LOOK, _GIVEN_UP = 0.2, 1.5


def main(descriptor: int) -> None:
    """Serves one tuner until it closes the connection."""
    end_with_parent()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with Connection(descriptor) as connection, contextlib.suppress(EOFError):
        while True:
            request = connection.recv()
            if isinstance(request, Load):
                candidates = _Candidates(unpack(request.packed))
            else:
                connection.send(candidates.answer(request))


class _Candidates:
    """Those of a kernel, and, in the process that times them, where they run and the default
    schedule to compare with."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._bench: Bench | None = None
        self._default: Candidate | None = None
        self._usual: list[np.ndarray] = []  # what it computes
        self._expected: tuple[np.ndarray, ...] = ()

    def answer(self, request: Request) -> Ready | Description | Built | Timed | Failed:
        """Does what is asked. A candidate's code fails in any way it likes, so all are caught."""
        kernel = self._kernel
        try:
            match request:
                case Begin():
                    return self._begin(request)
                case Describe():
                    loops = kernel.generator.loops(kernel.program, kernel.target, request.schedules)
                    return description_of(loops, kernel.target)
                case Build():
                    return self._build(request)
                case Measure():
                    return self._measure(request)
        except Exception as error:
            return Failed(_described(error))

    def _begin(self, request: Begin) -> Ready | Failed:
        """Builds the default schedule and checks it against the reference."""
        kernel, self._expected = self._kernel, request.expected
        try:
            self._bench = kernel.generator.bench(kernel.target, request.operands, request.expected)
            built = self._build(Build({}))
            default = self._bench.load(built.source, built.code)
        except Exception as error:
            return Failed(f"the default schedule cannot be built: {_described(error)}")
        default.run()
        self._usual = default.results()
        fault = baseline_fault(self._usual, request.expected)
        if fault:
            return Failed(f"the default schedule is wrong: {fault}")
        self._default = default
        return Ready(self._bench.time(default, default, _BASELINE_S).a.median_us)

    def _build(self, request: Build) -> Built:
        kernel = self._kernel
        source = kernel.generator.source(kernel.program, kernel.target, request.schedules)
        return Built(
            source,
            b""
            if source.digest in request.known
            else kernel.generator.assemble(source, kernel.target),
        )

    def _measure(self, request: Measure) -> Timed | Failed:
        candidate = self._bench.load(request.source, request.code)
        candidate.run()
        fault = self._fault(candidate)
        if fault:
            return Failed(fault)
        times = self._bench.time(self._default, candidate, _FIRST_LOOK * request.seconds)
        if times.sure_speedup > 1 / _GIVEN_UP:
            times = self._bench.time(self._default, candidate, (1 - _FIRST_LOOK) * request.seconds)
        # What it left behind after all these runs is still what it should be: no lucky race.
        fault = self._fault(candidate)
        if fault:
            return Failed(f"after several runs, {fault}")
        return Timed(
            times.a.median_us,
            times.b.median_us,
            times.sure_speedup,
            times.a.median_us / max(times.a.best_us, 1e-3),
        )

    def _fault(self, candidate: Candidate) -> str:
        return candidate_fault(candidate.results(), self._expected, self._usual)


def _described(error: Exception) -> str:
    first = (str(error).splitlines() or [""])[0]
    return first if isinstance(error, MlcError) else f"{type(error).__name__}: {first}"


if __name__ == "__main__":
    main(int(sys.argv[1]))
