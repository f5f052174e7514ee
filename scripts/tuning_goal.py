"""How near a short search comes to the best of thousands of trials, and whether it finds it again.

    python scripts/tuning_goal.py run found.jsonl [--trials 2000] [--again 10] [--minutes 9] CASE...
    python scripts/tuning_goal.py show found.jsonl

The kernels are the costliest of cases of the benchmarks. Each is tuned as `hlo-mlc tune` does, with
32 trials at most, as often as is said; then so many schedules are timed without any model: all of
them where there are no more, else half of them drawn at random and half neighbours of the fastest.
What all these came upon is timed once more, in rounds, each in turns with the default, until it is
known whether winners are within 2 % of each other, or rounds are spent. A kernel whose line is in
the file is left out, so that the same command goes on after an interruption, or when the minutes
are over after which no other kernel is begun.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import math
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from search_model import costliest

from hlo_mlc.interop.tuning_session import LEAST_GAIN
from hlo_mlc.runtime import library
from hlo_mlc.runtime.records import Schedules
from hlo_mlc.support.errors import MlcError
from hlo_mlc.tuning.messages import Build, Built, Describe, Failed, Task, Timed
from hlo_mlc.tuning.pool import may_win
from hlo_mlc.tuning.space import Configuration, Key, Space, key_of
from hlo_mlc.tuning.storage import open_storage
from hlo_mlc.tuning.study import KernelStudy
from hlo_mlc.tuning.supervisor import Supervisor
from hlo_mlc.tuning.tuner import Budget, tune_kernel
from hlo_mlc.tuning.workers import Worker, helpers
from hlo_mlc_bench.searches import SHORT, Found, keep, known

TRIAL_S, ROUND_S = 0.05, 0.2
FINALISTS = 4
"""Of the long search so many are timed again."""

WITHIN = math.log(1.02)
"""Up to this logarithm of a ratio winners are the same."""

FEWEST_ROUNDS, MOST_ROUNDS = 6, 24
SLOWEST = 1e-3  # the speed / the default's of what fails
OF_MEDIAN = 1.25
"""The standard error of a median / of a mean, of normal noise."""


def main(arguments: Sequence[str]) -> None:
    """Does what the first argument says with the file that is the second."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["run", "show"])
    parser.add_argument("path", type=Path)
    parser.add_argument("cases", nargs="*", metavar="CASE")
    parser.add_argument("--trials", type=int, default=2000)
    parser.add_argument("--again", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=math.inf)
    given = parser.parse_intermixed_args(arguments)
    if given.what == "show":
        show(known(given.path, Found))
        return
    library.register_with_jax()
    done = {found.case for found in known(given.path, Found)}
    end = time.monotonic() + 60 * given.minutes
    out = Console()
    with Progress(transient=True, console=out) as progress, helpers() as others:
        for case in progress.track([c for c in given.cases if c not in done]):
            if time.monotonic() > end:
                break
            try:
                found = compared(case, given.trials, given.again, others, progress)
            except MlcError as error:
                out.print(f"{case}: {error}")
                continue
            keep(given.path, found)


def compared(
    case: str, trials: int, again: int, others: Sequence[Worker], progress: Progress
) -> Found:
    """All searches for one kernel."""
    task = costliest(case)
    space = task.generator.space(task.program, task.target)
    short = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(again):
            # By the same name, as whoever tunes it twice, each time knowing nothing.
            study = KernelStudy(open_storage(Path(folder, f"{number}.log")), case, space)
            begin = time.monotonic()
            winner = tune_kernel(
                task, study, space, Budget(SHORT, None, LEAST_GAIN), helpers=others
            )
            short.append((winner.schedules, winner.tried, time.monotonic() - begin))
    with Supervisor(task, helpers=others) as supervisor:
        bar = progress.add_task(case, total=min(trials, space.size))
        timed: Timings = {}
        tried = 0
        for some in _batches(task, space, trials, supervisor, timed):
            built = supervisor.build([Build(space.schedules(c), frozenset(timed)) for c in some])
            for configuration, one in zip(some, built, strict=True):
                if isinstance(one, Built) and one.digest not in timed:
                    timed[one.digest] = _speed(supervisor, one, TRIAL_S), configuration
            tried += len(some)
            progress.update(bar, completed=tried)
        long, _ = _again(supervisor, [space.schedules(c) for _, c in _fastest(timed)])
        winners = {repr(schedules): schedules for schedules, *_ in short}
        speeds, error = _again(supervisor, list(winners.values()))
        of_winner = dict(zip(winners, speeds, strict=True))
        progress.remove_task(bar)
        return Found(
            case,
            task.target.cpu,
            space.size,
            supervisor.default_us,
            [(of_winner[repr(s)], count, seconds) for s, count, seconds in short],
            max(long, default=1.0),
            tried,
            error,
        )


Timings = dict[str, tuple[float, Configuration]]
"""By code: its speed / the default's, and a configuration that makes it."""


def _batches(
    task: Task, space: Space, trials: int, supervisor: Supervisor, timed: Timings
) -> Iterator[list[Configuration]]:
    """New configurations, as many at a time as are built together, but for those that take too
    long to be built; these count as trials, too."""
    (default,) = supervisor.describe([Describe({})])
    new = itertools.islice(_new(space, trials, timed), trials)
    while some := list(itertools.islice(new, supervisor.at_once)):
        looks = supervisor.describe([Describe(space.schedules(c)) for c in some])
        yield [
            c
            for c, look in zip(some, looks, strict=True)
            if not isinstance(look, Failed)
            and may_win(task.target, look.features, default.features)
        ]


def _new(space: Space, trials: int, timed: Timings) -> Iterator[Configuration]:
    """Configurations, each once: all of a space that has no more, else what analysis says, and then
    one at random and a neighbour of one of the fastest in turns, as long as they are found."""
    if space.size <= trials:
        yield from space.all()
        return
    rng, seen = random.Random(0), set[Key]()
    for number in range(20 * trials):
        near = _fastest(timed)
        drawn = (
            space.neighbour(rng.choice(near)[1], rng)
            if number % 2 and near
            else space.anything(rng)
        )
        for configuration in (*(space.starts if number == 0 else ()), drawn):
            if key_of(configuration) not in seen:
                seen.add(key_of(configuration))
                yield configuration


def _fastest(timed: Timings) -> list[tuple[float, Configuration]]:
    return heapq.nlargest(FINALISTS, timed.values(), key=lambda pair: pair[0])


def _again(supervisor: Supervisor, every: Sequence[Schedules]) -> tuple[list[float], float]:
    """The speeds / the default's, timed in rounds, in each of which all have a turn; and two
    standard errors of the logarithm of the ratio of two of them."""
    built = supervisor.build([Build(schedules) for schedules in every])
    logs: list[list[float]] = [[] for _ in every]
    medians, error = [0.0] * len(every), 0.0
    for rounds in range(1, MOST_ROUNDS + 1):
        for one, schedules, known_logs in zip(built, every, logs, strict=True):
            assert isinstance(one, Built), one
            # The default is as fast as itself.
            speed = _speed(supervisor, one, ROUND_S) if schedules else 1.0
            known_logs.append(math.log(max(speed, SLOWEST)))
        medians = [statistics.median(one) for one in logs]
        if rounds >= FEWEST_ROUNDS:
            deviation = max((statistics.stdev(one) for one in logs), default=0.0)
            error = 2 * math.sqrt(2) * OF_MEDIAN * deviation / math.sqrt(rounds)
            apart = max(medians, default=0.0) - min(medians, default=0.0)
            if abs(apart - WITHIN) > error:
                break
    return [math.exp(one) for one in medians], error


def _speed(supervisor: Supervisor, built: Built, seconds: float) -> float:
    """0 for what fails."""
    timed = supervisor.measure(built, seconds)
    return timed.speedup if isinstance(timed, Timed) else 0.0


def show(found: Sequence[Found]) -> None:
    """Prints a row for each kernel, and the median of all."""
    table = Table(
        "kernel",
        "schedules",
        "timed",
        "best / default",
        "reached, least",
        "median",
        "winners apart",
        "trials",
        "seconds",
    )
    for one in found:
        trials = statistics.median(count for _, count, _ in one.short)
        seconds = statistics.median(taken for _, _, taken in one.short)
        table.add_row(
            one.case,
            str(one.size),
            str(one.trials),
            f"{one.best:.2f}",
            f"{min(one.reached):.3f}",
            f"{statistics.median(one.reached):.3f}",
            f"{one.apart:.3f} ± {one.error:.3f}" if one.error else f"{one.apart:.3f}",
            f"{trials:.0f}",
            f"{seconds:.1f}",
        )
    middle = statistics.median(statistics.median(one.reached) for one in found)
    slowest = statistics.median(taken for one in found for _, _, taken in one.short)
    near = f"within 2 %: {sum(math.log(one.apart) <= WITHIN for one in found)}"
    row = (f"median of {len(found)}", *[""] * 4, f"{middle:.3f}", near, "", f"{slowest:.1f}")
    table.add_row(*row)
    Console().print(table)


if __name__ == "__main__":
    main(sys.argv[1:])
