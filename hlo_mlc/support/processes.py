"""Processes of our own: a module of this package in another Python, which ends when we do."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from multiprocessing.connection import Connection
from pathlib import Path

_PR_SET_PDEATHSIG = 1  # Source: <linux/prctl.h>
_NICENESS = 19  # where the system has no class for who wants idle CPUs only
_PARENT = "HLO_MLC_PARENT"  # in the environment of what we start: our number


def start_process(
    module: str, connection: Connection, **environment: str
) -> subprocess.Popen[bytes]:
    """Starts `python -m MODULE DESCRIPTOR`, which is to talk through its end of a connection.

    It finds what we find (a generator may come from anywhere), this very package whatever the
    current folder has, and gets no Ctrl-C: we do. It stays in our session: sessions have equal
    shares of the CPUs, whatever the priorities of what runs in them.  Source: sched(7), autogroup.
    """
    folders = (str(Path(__file__).parents[2]), *filter(None, sys.path))
    own = {"PYTHONPATH": os.pathsep.join(folders), "HLO_MLC_ENABLE": "", _PARENT: str(os.getpid())}
    return subprocess.Popen(
        [sys.executable, "-P", "-m", module, str(connection.fileno())],
        pass_fds=[connection.fileno()],
        env=os.environ | own | environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        process_group=0,
    )


def end_with_parent() -> None:
    """Has this process, whatever it hangs in, go when the thread that has started it does, however
    that ends; at once where the process of that thread has ended by now."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.environ.get(_PARENT, str(os.getppid())) != str(os.getppid()):
        os._exit(1)


def step_behind(process: int) -> None:
    """Leaves a process of our session, and what it starts from now on, the CPUs, and the disks,
    that nobody else wants.  Source: sched(7), ioprio_set(2)."""
    for folder in Path(f"/proc/{process}/task").glob("*"):
        with contextlib.suppress(OSError):  # it has ended
            os.setpriority(os.PRIO_PROCESS, int(folder.name), _NICENESS)
            os.sched_setscheduler(int(folder.name), os.SCHED_IDLE, os.sched_param(0))


def end_of(process: subprocess.Popen[bytes]) -> str:
    """What a process ends with: a status, or a signal by its name."""
    code = process.wait()
    if code >= 0:
        return f"status {code}"
    with contextlib.suppress(ValueError):
        return signal.Signals(-code).name
    return f"signal {-code}"
