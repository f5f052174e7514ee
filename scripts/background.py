"""What calls take while a process tunes in the background, and while code is exchanged, under load.

    python scripts/background.py [--threads 8] [--seconds 2] [--rounds 20] [--exchanges 10]

Threads call a function as fast as they can, in stretches of so many seconds that take turns: as
usual; while a process builds and times candidates of the function's kernel, which it does here
without waiting for an idle moment; and while code of the kernel takes the place of other code so
many times, as `mlc_jit(tune="background")` has it. Between its stretches the process is stopped.
Calls wait for other threads and programs in every kind of stretch. What an exchange takes of a CPU
is the most that it makes a call wait, where nobody else takes that CPU meanwhile.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import itertools
import os
import signal
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table

from hlo_mlc import kernel_objects, mlc_jit
from hlo_mlc.interop import background
from hlo_mlc.interop.background import BACKGROUND, Tuned
from hlo_mlc.runtime.records import Measured, Record, open_records
from hlo_mlc.support.options import Options
from hlo_mlc.tuning.generator import TemplateGenerator
from hlo_mlc.tuning.storage import journal_path

SIZE = 256
TRIALS = 10**6  # more than anyone has time for
USUAL, TUNED, EXCHANGED = "as usual", "while candidates are timed", "while code is exchanged"


def main() -> None:
    """Measures, and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--exchanges", type=int, default=10, help="in a stretch of them")
    given = parser.parse_args()
    background._WORTH_NS = float("inf")  # nothing is tuned but what is tuned here
    with tempfile.TemporaryDirectory() as folder:
        os.environ["HLO_MLC_CACHE"] = folder
        x = np.random.default_rng(0).standard_normal((SIZE, SIZE), np.float32)
        function = mlc_jit(lambda x: jnp.tanh(x @ x.T) + 1, tune="background", choose="ours")
        jax.block_until_ready(function(x))
        stretches: dict[str, list[list[float]]] = {USUAL: [], TUNED: [], EXCHANGED: []}
        taken: list[float] = []
        with (
            tuning() as tuner,
            calling(lambda: jax.block_until_ready(function(x)), given.threads) as calls,
        ):
            record, exchange = exchanges()
            before = trials()
            for _, (name, found) in itertools.product(range(given.rounds), stretches.items()):
                calls.clear()
                with going_on(tuner) if name == TUNED else contextlib.nullcontext():
                    for _ in range(given.exchanges):
                        time.sleep(given.seconds / given.exchanges)
                        record()
                        if name == EXCHANGED:
                            began = time.thread_time()
                            exchange()
                            taken.append((time.thread_time() - began) * 1e3)
                found.append([*calls])
            tried = trials() - before
    show(stretches)
    print(
        f"an exchange takes {statistics.median(taken):.2f} ms of a CPU (median), "
        f"{max(taken):.2f} at most; {tried} candidates were timed"
    )


@contextmanager
def tuning() -> Iterator[int]:
    """The number of a process that tunes the program that is followed; it has begun to time
    candidates, and is stopped."""
    ((program,),) = BACKGROUND._followed.values()
    eager = dataclasses.replace(
        program, job=dataclasses.replace(program.job, trials=TRIALS, busy=1.0)
    )
    started: list[subprocess.Popen[bytes]] = []
    start = background.start_process

    def noted(*args: Any, **environment: str) -> subprocess.Popen[bytes]:
        started.append(start(*args, **environment))
        return started[-1]

    background.start_process = noted
    thread = threading.Thread(
        target=BACKGROUND._tune, args=(eager, dict.fromkeys(program.kernels, 1.0))
    )
    thread.start()
    try:
        while not trials():
            if not thread.is_alive():
                raise SystemExit(f"nothing was timed: {[*BACKGROUND._outcomes.values()]}")
            time.sleep(0.1)
        send(started[0].pid, signal.SIGSTOP)
        yield started[0].pid
    finally:
        started[0].kill()  # what it has started goes with it
        thread.join()


def trials() -> int:
    """How many candidates were timed by now."""
    journal = journal_path(Options.from_environment())
    return journal.read_text().count('"measured"') if journal.exists() else 0


@contextmanager
def going_on(process: int) -> Iterator[None]:
    """A stopped process, and what it has started, go on in here."""
    send(process, signal.SIGCONT)
    try:
        yield
    finally:
        send(process, signal.SIGSTOP)


def send(process: int, number: int) -> None:
    """Sends a signal to a process, and to all that it and its threads have started."""
    with contextlib.suppress(OSError):  # it has ended
        os.kill(process, number)
        for children in Path(f"/proc/{process}/task").glob("*/children"):
            for child in map(int, children.read_text().split()):
                send(child, number)


@contextmanager
def calling(call: Callable[[], object], threads: int) -> Iterator[list[float]]:
    """What calls of so many threads take meanwhile, in ms."""
    over, found = threading.Event(), list[float]()

    def loop() -> None:
        while not over.is_set():
            began = time.perf_counter()
            call()
            found.append((time.perf_counter() - began) * 1e3)

    running = [threading.Thread(target=loop) for _ in range(threads)]
    for thread in running:
        thread.start()
    try:
        yield found
    finally:
        over.set()
        for thread in running:
            thread.join()


def exchanges() -> tuple[Callable[[], None], Callable[[], None]]:
    """What records other code of the program that is followed, assembled before, as another process
    does; and what has it run that."""
    ((program,),) = BACKGROUND._followed.values()
    ((fingerprint, first),) = program.kernels.items()
    options, backend = program.job.options, program.backend
    records = open_records(options)
    template = first.nests[0].template
    rows = next(
        p
        for p in TemplateGenerator().space(first.kernel.program, backend.target).parameters
        if p.template == template and p.key == "rows"
    )

    def recorded(value: int) -> None:
        records.put(
            Record(
                fingerprint,
                backend.target.key,
                {rows.position: (template, {rows.key: value})},
                Measured(2.0, 1.0, 2.0),
            ),
            replaces=records.get(fingerprint, backend.target.key),
        )

    for value in rows.values:
        recorded(value)
        kernel_objects.kernel_object(first.kernel, options, backend)
    turns = itertools.cycle(rows.values)
    return lambda: recorded(next(turns)), lambda: BACKGROUND._take(program, Tuned(fingerprint))


def show(found: Mapping[str, list[list[float]]]) -> None:
    """Prints a row for each kind of stretch."""
    table = Table("calls, ms", "number", "median", "99.9 %", "longest, median", "longest of all")
    for name, stretches in found.items():
        every = [ms for stretch in stretches for ms in stretch]
        longest = [max(stretch) for stretch in stretches]
        figures = (
            statistics.median(every),
            np.percentile(every, 99.9),
            statistics.median(longest),
            max(longest),
        )
        table.add_row(name, str(len(every)), *(f"{figure:.2f}" for figure in figures))
    Console().print(table)


if __name__ == "__main__":
    main()
