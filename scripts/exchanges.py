"""What calls take while the code that they run is exchanged for another, under load from threads.

    python scripts/exchanges.py [--threads 8] [--seconds 2] [--rounds 20] [--exchanges 10]

Threads call a function as fast as they can. In every other stretch of so many seconds, code of its
kernel takes the place of other code so many times, as `mlc_jit(tune="background")` has it. Calls
wait for other threads and programs in either kind of stretch. What an exchange takes of a CPU is
the most that it makes a call wait, where nobody else takes that CPU meanwhile.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table

from hlo_mlc import kernel_objects, mlc_jit
from hlo_mlc.interop import background
from hlo_mlc.interop.background import BACKGROUND, Tuned
from hlo_mlc.runtime.records import Measured, Record, open_records
from hlo_mlc.tuning.generator import TemplateGenerator

SIZE = 256


def main() -> None:
    """Measures, and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--exchanges", type=int, default=10, help="in a stretch of them")
    given = parser.parse_args()
    background._WORTH_NS = float("inf")  # nothing is tuned, all that is recorded is made up
    with tempfile.TemporaryDirectory() as folder:
        os.environ["HLO_MLC_CACHE"] = folder
        x = np.random.default_rng(0).standard_normal((SIZE, SIZE), np.float32)
        function = mlc_jit(lambda x: jnp.tanh(x @ x.T) + 1, tune="background", choose="ours")
        jax.block_until_ready(function(x))
        record, exchange = exchanges()
        stretches: dict[str, list[list[float]]] = {"as usual": [], "while code is exchanged": []}
        taken: list[float] = []
        with calling(lambda: jax.block_until_ready(function(x)), given.threads) as calls:
            for _, (name, found) in itertools.product(range(given.rounds), stretches.items()):
                calls.clear()
                for _ in range(given.exchanges):
                    time.sleep(given.seconds / given.exchanges)
                    record()
                    if name != "as usual":
                        began = time.thread_time()
                        exchange()
                        taken.append((time.thread_time() - began) * 1e3)
                found.append([*calls])
    show(stretches)
    print(
        f"an exchange takes {statistics.median(taken):.2f} ms of a CPU (median), "
        f"{max(taken):.2f} at most"
    )


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
