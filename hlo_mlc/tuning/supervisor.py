"""Keeps a worker process for a kernel, and replaces it when a candidate crashes or hangs."""

from __future__ import annotations

import subprocess
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any

from hlo_mlc.support.errors import TuningError
from hlo_mlc.support.processes import end_of, start_process
from hlo_mlc.tuning.features import Description
from hlo_mlc.tuning.messages import Build, Built, Describe, Failed, Measure, Ready, Task, Timed
from hlo_mlc.tuning.transport import pack

START_S = 120.0
"""What a worker may need to start, and to build and check the default schedule."""

BUILD_S = 20.0
"""What a candidate may need to be generated. Most kernels take 2 to 20 ms in all."""

MEASURE_S = 20.0
"""What a candidate may need to be assembled, besides `CALLS` times the default's time."""

CALLS = 200


class Supervisor:
    """Asks a worker process about candidates; to be used as a context, which ends the worker.

    Raises: TuningError if not even the default schedule runs.
    """

    def __init__(self, task: Task, patience: float = 1.0) -> None:
        """`patience` scales how long to wait for an answer before a candidate counts as hung."""
        self._packed = pack(task)
        self._patience = patience
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self.default_us = 0.0

    def __enter__(self) -> Supervisor:
        self._start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self._end()

    def describe(self, request: Describe) -> Description | Failed:
        """What a candidate is like that is not built yet."""
        return self._ask(request, BUILD_S * self._patience)

    def build(self, request: Build) -> Built | Failed:
        """Generates a candidate."""
        return self._ask(request, BUILD_S * self._patience)

    def measure(self, request: Measure) -> Timed | Failed:
        """Assembles, checks and times the candidate that was built last."""
        seconds = MEASURE_S + request.seconds + CALLS * self.default_us / 1e6
        return self._ask(request, seconds * self._patience)

    def drop(self) -> None:
        """Ends the worker, whatever it is at; the next question goes to another one."""
        self._end()

    def _ask(self, request: Describe | Build | Measure, seconds: float) -> Any:
        if self._process is None:
            self._start()
        try:
            self._connection.send(request)
            if self._connection.poll(seconds):
                return self._connection.recv()
            reason = f"it hung: no answer within {seconds:.0f} s"
        except (EOFError, OSError):
            reason = f"it crashed: {end_of(self._process)}"
        self._end()
        return Failed(reason)

    def _start(self) -> None:
        ours, theirs = Pipe()
        with theirs:
            self._process = start_process("hlo_mlc.tuning.worker", theirs)
        self._connection = ours
        reason = "it did not start in time"
        try:
            ours.send_bytes(self._packed)
            if ours.poll(START_S):
                answer = ours.recv()
                if isinstance(answer, Ready):
                    self.default_us = answer.default_us
                    return
                reason = answer.reason
        except (EOFError, OSError):
            reason = f"it crashed with the default schedule: {end_of(self._process)}"
        except BaseException:
            self._end()
            raise
        self._end()
        raise TuningError(f"The worker process cannot measure the kernel: {reason}")

    def _end(self) -> None:
        if self._connection is not None:
            self._connection.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._connection = self._process = None
