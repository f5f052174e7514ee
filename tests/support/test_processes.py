"""Processes of our own are in nobody's way, and end with us."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from multiprocessing import Pipe
from pathlib import Path

from hlo_mlc.support.processes import end_of, start_process, step_behind

# Has a thread more, and says how a process is scheduled that it starts later.
PROGRAM = textwrap.dedent("""
    import subprocess, sys, threading
    over = threading.Event()
    threading.Thread(target=over.wait).start()
    print("started", flush=True)
    sys.stdin.readline()
    subprocess.run([sys.executable, "-c", "import os; print(os.sched_getscheduler(0))"])
    over.set()
""")


def test_what_starts_is_of_our_session() -> None:
    """The system gives a session of its own as much of the CPUs as all that callers run, whatever
    priority it has in there."""
    ours, theirs = Pipe()
    with theirs:
        process = start_process("hlo_mlc.tuning.worker", theirs)
    with ours:
        assert os.getsid(process.pid) == os.getsid(0)
        assert os.getpgid(process.pid) == process.pid  # Ctrl-C is for us
    assert end_of(process) == "status 0"  # there is nobody who could ask


def test_what_steps_behind_takes_what_nobody_else_wants() -> None:
    """All its threads do, and what it starts from then on."""
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "started\n"
        step_behind(process.pid)
        threads = [int(folder.name) for folder in Path(f"/proc/{process.pid}/task").iterdir()]
        assert len(threads) == 2
        for thread in threads:
            assert os.sched_getscheduler(thread) == os.SCHED_IDLE
            assert os.getpriority(os.PRIO_PROCESS, thread) == 19
        told, _ = process.communicate("\n")
    assert told == f"{os.SCHED_IDLE}\n"


def test_nobody_is_left_to_step_behind() -> None:
    with subprocess.Popen(["true"]) as process:
        process.wait()
        step_behind(process.pid)
