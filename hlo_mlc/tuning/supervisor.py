"""What is asked about the candidates of a kernel: built by several processes, timed by one."""

from __future__ import annotations

from collections.abc import Sequence

from hlo_mlc.support.errors import TuningError
from hlo_mlc.tuning.features import Description
from hlo_mlc.tuning.messages import (
    Begin,
    Build,
    Built,
    Describe,
    Failed,
    Kernel,
    Measure,
    Ready,
    Task,
    Timed,
)
from hlo_mlc.tuning.transport import pack
from hlo_mlc.tuning.workers import START_S, Worker, ask_all

DESCRIBE_S = 20.0
"""What the loops of a candidate may need to be generated and looked at. Most take 1 to 10 ms."""

BUILD_S = 40.0
"""What a candidate may need to be generated and assembled. Most take 20 to 200 ms."""

MEASURE_S = 20.0
"""What a candidate may need to be loaded and checked, besides `CALLS` times the default's time."""

CALLS = 200


class Supervisor:
    """Asks worker processes about candidates; to be used as a context, which ends the one that is
    its own. While that one times, the others are at nothing.

    Raises: TuningError if not even the default schedule runs.
    """

    def __init__(self, task: Task, patience: float = 1.0, helpers: Sequence[Worker] = ()) -> None:
        """`patience` scales how long to wait for an answer before a candidate counts as hung;
        `helpers` look at candidates and build them, too."""
        self._begin = Begin(task.operands, task.expected)
        packed = pack(Kernel(task.program, task.target, task.generator))
        self._timing = Worker(packed)
        self._workers = (self._timing, *helpers)
        for helper in helpers:
            helper.load(packed)
        self._patience = patience
        self._ready = 0  # the process, by its number, that has timed the default schedule
        self.default_us = 0.0

    def __enter__(self) -> Supervisor:
        try:
            # They all start, and are done with that, before anything is timed.
            self.describe([Describe({})] * len(self._workers))
            self._make_ready()
        except BaseException:
            self.drop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.drop()

    @property
    def at_once(self) -> int:
        """How many candidates are built at a time."""
        return len(self._workers)

    def describe(self, requests: Sequence[Describe]) -> list[Description | Failed]:
        """What candidates are like that are not built yet."""
        return ask_all(self._workers, requests, DESCRIBE_S * self._patience)

    def build(self, requests: Sequence[Build]) -> list[Built | Failed]:
        """Makes the code of candidates."""
        return ask_all(self._workers, requests, BUILD_S * self._patience)

    def measure(self, built: Built, seconds: float) -> Timed | Failed:
        """Checks and times a candidate, for about so long."""
        self._make_ready()
        most = MEASURE_S + seconds + CALLS * self.default_us / 1e6
        (answer,) = ask_all(
            [self._timing], [Measure(built.source, built.code, seconds)], most * self._patience
        )
        return answer

    def drop(self) -> None:
        """Ends the process that times, whatever it is at; the next question goes to another one."""
        self._timing.end()

    def _make_ready(self) -> None:
        """Has the process that times build, check and time the default schedule, if it is new."""
        if self._timing.is_running and self._timing.starts == self._ready:
            return
        (answer,) = ask_all([self._timing], [self._begin], START_S)
        if not isinstance(answer, Ready):
            self.drop()
            raise TuningError(f"The worker process cannot measure the kernel: {answer.reason}")
        self.default_us, self._ready = answer.default_us, self._timing.starts
