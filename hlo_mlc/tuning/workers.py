"""Worker processes, and questions to several of them at a time."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any

from hlo_mlc.support.processes import end_of, start_process
from hlo_mlc.tuning.messages import Failed, Load, Request

START_S = 120.0
"""What a worker may need to start."""

# Each takes 0.1 to 0.2 GB.
_MOST = 8


class Worker:
    """A process that is asked about candidates of one kernel, and replaced when one of them makes
    it crash or hang; it starts with the first question."""

    def __init__(self, packed: bytes = b"") -> None:
        """`packed` is the kernel, as `load` takes it."""
        self._packed = packed
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self.starts = 0
        """How many processes it has had."""

    @property
    def is_running(self) -> bool:
        """Whether there is a process now."""
        return self._process is not None

    def load(self, packed: bytes) -> None:
        """From now on, questions are about this kernel: a packed `Kernel`."""
        self._packed = packed
        if self.is_running:
            with contextlib.suppress(OSError):  # it has ended: the next question finds that out
                self._connection.send(Load(packed))

    def end(self) -> None:
        """Ends the process, whatever it is at."""
        if self._connection is not None:
            self._connection.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._connection = self._process = None

    def _send(self, request: Request) -> float:
        """Asks; how many seconds more the answer may take because the process starts."""
        starts = not self.is_running
        if starts:
            self.starts += 1
            self._connection, theirs = Pipe()
            with theirs:
                self._process = start_process("hlo_mlc.tuning.worker", theirs)
            self._connection.send(Load(self._packed))
        self._connection.send(request)
        return START_S if starts else 0.0

    def _failed(self, reason: str = "") -> Failed:
        """Why there is no answer, as an answer; the process is ended."""
        if self._process is None:
            reason = "the system has no room for its process"
        reason = reason or f"it crashed: {end_of(self._process)}"
        self.end()
        return Failed(reason)


def ask_all(workers: Sequence[Worker], requests: Sequence[Request], seconds: float) -> list[Any]:
    """What the workers answer, in the order of the requests, each of which goes to the first that
    is free and may take so long; `Failed` where a worker crashed or hung. When it returns, no
    worker is at anything; what interrupts it ends those that are.
    """
    answers: list[Any] = [None] * len(requests)
    waiting = list(enumerate(requests))[::-1]
    at_work: dict[Worker, tuple[int, float]] = {}  # the request's number, and until when
    try:
        while waiting or at_work:
            for worker in workers:
                if waiting and worker not in at_work:
                    number, request = waiting.pop()
                    at_work[worker] = number, 0.0
                    try:
                        until = time.monotonic() + seconds + worker._send(request)
                        at_work[worker] = number, until
                    except OSError:
                        answers[number] = worker._failed()
                        del at_work[worker]
            first = min((until for _, until in at_work.values()), default=0.0)
            told = wait(
                [worker._connection for worker in at_work], max(first - time.monotonic(), 0.0)
            )
            for worker, (number, until) in list(at_work.items()):
                if worker._connection in told:
                    try:
                        answers[number] = worker._connection.recv()
                    except (EOFError, OSError):
                        answers[number] = worker._failed()
                elif time.monotonic() >= until:
                    answers[number] = worker._failed(f"it hung: no answer within {seconds:.0f} s")
                else:
                    continue
                del at_work[worker]
        return answers
    except BaseException:
        for worker in at_work:
            worker.end()
        raise


@contextlib.contextmanager
def helpers() -> Iterator[Sequence[Worker]]:
    """Workers for the CPUs that this process may use, besides one that times: they help it to look
    at candidates and to build them, of one kernel after the other."""
    found = [Worker() for _ in range(min(len(os.sched_getaffinity(0)), _MOST) - 1)]
    try:
        yield found
    finally:
        for worker in found:
            worker.end()
