"""`hlo-mlc worker --engine dask`: a worker on each machine of a cluster that Dask runs.

What a machine is told is a command of ours, which runs as a process of its own: it finds the
database, takes trials and keeps records there, as if somebody had started it there by hand.
"""

from __future__ import annotations

import importlib
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from hlo_mlc.support.errors import UsageError

_LOOK_S = 1.0  # between two looks whether to stop
_CONNECT_S = 15
_PROGRAM = "from hlo_mlc.cli import main; main()"


@dataclass(frozen=True, slots=True)
class Ended:
    """What came of a command on one machine."""

    machine: str
    status: int
    output: str


def run_everywhere(command: Sequence[str], scheduler: str | None) -> Iterator[Ended]:
    """Runs `hlo-mlc COMMAND` on each machine of a cluster at the same time, and gives what comes of
    it as it ends. An interrupt is passed on to all of them.

    `scheduler` is the cluster's address; Dask may be configured for one.

    Raises: UsageError where Dask is missing, or there is no such cluster.
    """
    distributed = _distributed()
    address = scheduler or importlib.import_module("dask").config.get("scheduler-address", None)
    if not address:
        raise UsageError(
            "--engine dask: say which cluster by --scheduler tcp://HOST:8786, or by "
            "DASK_SCHEDULER_ADDRESS"
        )
    try:
        client = distributed.Client(address, timeout=_CONNECT_S)
    except (OSError, ValueError) as error:  # a timeout is an OSError
        raise UsageError(
            f"--engine dask: there is no scheduler at {address} ({error}): start one "
            "by `dask scheduler`, and `dask worker` on each machine"
        ) from error
    with client:
        stop = f"hlo_mlc stop {uuid.uuid4()}"
        event = distributed.Event(stop, client=client)
        machines = _machines(client.scheduler_info(n_workers=-1)["workers"])
        if not machines:
            raise UsageError(
                f"--engine dask: the cluster at {address} has no machines: start "
                "`dask worker` on each"
            )
        futures = [
            client.submit(
                run_here, tuple(command), stop, machine, workers=[worker], pure=False, retries=0
            )
            for machine, worker in machines.items()
        ]
        try:
            for _, ended in distributed.as_completed(futures, with_results=True):
                yield ended
        except KeyboardInterrupt:
            event.set()
            distributed.wait(futures)
            raise


def run_here(command: tuple[str, ...], stop: str, machine: str) -> Ended:
    """Runs `hlo-mlc COMMAND` until it ends, or an event of the cluster called `stop` is set."""
    event = _distributed().Event(stop)
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", _PROGRAM, *command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            while process.poll() is None:
                if event.wait(_LOOK_S):
                    process.terminate()
                    process.wait()
        finally:
            process.kill()
        output.seek(0)
        return Ended(machine, process.wait(), output.read())


def _machines(workers: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """One of the cluster's workers for each machine: several would disturb each other."""
    found: dict[str, str] = {}
    for address, about in sorted(workers.items()):
        found.setdefault(str(about["host"]), address)
    return found


def _distributed() -> ModuleType:
    """Dask's side of it.

    Raises: UsageError where it is missing.
    """
    try:
        return importlib.import_module("distributed")
    except ImportError as error:
        raise UsageError(
            f"--engine dask takes Dask ({error}): pip install 'hlo-mlc[cluster]'"
        ) from error
