"""Tuning one kernel: candidates are tried until the budget is spent, the best measured again."""

from __future__ import annotations

import contextlib
import math
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from hlo_mlc.runtime.busyness import Moment, at_once
from hlo_mlc.runtime.records import Measured, Record, Schedules
from hlo_mlc.tuning.features import Description
from hlo_mlc.tuning.final import MOST_ROUNDS, Final
from hlo_mlc.tuning.messages import Build, Built, Describe, Failed, Outcome, Task, Timed
from hlo_mlc.tuning.model import Forest
from hlo_mlc.tuning.pool import Pool
from hlo_mlc.tuning.space import Configuration, Space
from hlo_mlc.tuning.study import KernelStudy, Tried
from hlo_mlc.tuning.supervisor import Supervisor
from hlo_mlc.tuning.workers import Worker

# Seconds of timing for each candidate, and in each round of the final for each that may still win.
TRIAL_S, ROUND_S = 0.1, 0.1
FINALISTS = 6
# What the rounds of a final take at most, and one measurement, in times of the default: five rounds
# in each of two looks, half of them of the candidate.
FINAL_S, _CALLS = 8.0, 30
# A candidate that was slower than the fastest by more than this logarithm is no finalist: on a busy
# machine a trial is off by about as much.
_NEAR = 0.08


@dataclass(frozen=True, slots=True)
class Budget:
    """When to stop: after so many configurations in the study, at this time (of `time.monotonic`),
    or when no more than this gain (a logarithm) is expected of the next, whichever comes first;
    None is no limit."""

    trials: int | None = None
    deadline: float | None = None
    least_gain: float = 0.0

    def is_spent(self, tried: int) -> bool:
        """Whether it is time to name the winner."""
        return self.is_late or self.trials_left(tried) <= 0

    @property
    def is_late(self) -> bool:
        """Whether the time is up."""
        return self.deadline is not None and time.monotonic() >= self.deadline

    def trials_left(self, tried: int) -> int:
        """How many configurations may still be tried."""
        return sys.maxsize if self.trials is None else self.trials - tried


@dataclass(frozen=True, slots=True)
class Winner:
    """The schedules that are to be used, which are none where the default is as fast."""

    schedules: Schedules
    measured: Measured
    tried: int  # configurations in the study
    failed: int  # of these, such as could not be built, were wrong, crashed or hung
    noise: float = 1.0  # of the final, see Timed
    interrupted: bool = False  # before the budget was spent
    complete: bool = False  # all is known, or next to nothing was expected of another trial


OnTrial = Callable[[KernelStudy, Outcome], None]
OnInterrupt = Callable[[], None]


def tune_kernel(
    task: Task,
    study: KernelStudy,
    space: Space,
    budget: Budget,
    known: Record | None = None,
    on_trial: OnTrial = lambda study, outcome: None,
    patience: float = 1.0,
    on_interrupt: OnInterrupt = lambda: None,
    moment: Moment = at_once,
    forest: Forest | None = None,
    helpers: Sequence[Worker] = (),
) -> Winner:
    """Searches for the fastest schedules of a kernel, in the order that a model suggests if there
    is one.

    `known`, a record of it, runs in the final whatever the study says. `patience` scales how long
    a candidate may take before it counts as hung; `moment` says when candidates are tried.
    `helpers` build them, as many at a time as there are workers. An interrupt (Ctrl-C) ends the
    search: the winner among what is known is still named; a second one ends that, too.

    Raises: TuningError if not even the default schedule runs, CacheError where the study cannot be
    kept, KeyboardInterrupt for an interrupt before anything is known or while the winner is named.
    """
    with Supervisor(task, patience, helpers) as supervisor:

        def describe(configurations: Sequence[Configuration]) -> list[Description | None]:
            answers = supervisor.describe([Describe(space.schedules(c)) for c in configurations])
            return [None if isinstance(answer, Failed) else answer for answer in answers]

        pool = (
            Pool(task.target, space.default, describe, forest)
            if task.generator.is_predicted
            else None
        )
        interrupted = complete = False
        try:
            complete = _search(supervisor, study, space, budget, on_trial, moment, pool)
        except KeyboardInterrupt:
            if not study.tried:
                raise
            interrupted = True
            supervisor.drop()
            on_interrupt()
        winner = _final(supervisor, study, space, known, moment)
        return replace(winner, interrupted=interrupted, complete=complete)


def _search(
    supervisor: Supervisor,
    study: KernelStudy,
    space: Space,
    budget: Budget,
    on_trial: OnTrial,
    moment: Moment,
    pool: Pool | None,
) -> bool:
    """Tries configurations until the budget is spent, or all are known: some are built at the same
    time, then timed one after the other. Whether it ended before the budget did."""
    while not budget.is_spent(len(study.tried)):
        left = max(budget.trials_left(len(study.tried) + study.under_way), 1)
        trials = study.batch(min(supervisor.at_once, left), pool, budget.least_gain)
        if not trials:
            return True
        with contextlib.ExitStack() as leases:
            for trial in trials:
                leases.enter_context(study.lease(trial))
            try:
                built = _built(
                    supervisor,
                    [space.schedules(t.configuration) for t in trials],
                    study.known_codes,
                    moment,
                )
                for one in built:
                    if budget.is_late:
                        return False
                    outcome, digest = _timed(supervisor, one, study, TRIAL_S, moment)
                    trial = trials[0]
                    differences = pool and pool.differences(trial.configuration)
                    study.tell(trials.pop(0), outcome, digest, differences)
                    on_trial(study, outcome)
            finally:  # an interrupt, or it is late
                for trial in trials:
                    study.abandon(trial)
    return False


def _built(
    supervisor: Supervisor, schedules: Sequence[Schedules], known: frozenset[str], moment: Moment
) -> list[Built | Failed]:
    """The code of candidates; it is kept if the moment turns out to have been none."""
    found: list[Built | Failed] = []

    def build() -> list[Built | Failed]:
        if not found:
            found.extend(supervisor.build([Build(one, known) for one in schedules]))
        return found

    return moment(build)


def _timed(
    supervisor: Supervisor,
    built: Built | Failed,
    study: KernelStudy | None,
    seconds: float,
    moment: Moment,
) -> tuple[Outcome, str]:
    """Measures a candidate, unless the study knows its code."""
    if isinstance(built, Failed):
        return built, ""
    known = study.known_code(built.digest) if study is not None else None
    return known or moment(partial(supervisor.measure, built, seconds)), built.digest


def _final(
    supervisor: Supervisor, study: KernelStudy, space: Space, known: Record | None, moment: Moment
) -> Winner:
    """Measures the best again, in rounds and each in turns with the default, and picks the fastest:
    of those that are as fast what stands in the records, else the first in order."""
    tried = study.tried
    failed = sum(isinstance(t.outcome, Failed) for t in tried)
    standing = known and space.configuration(known.schedules)
    finalists = finalists_of(tried, space, standing)
    built = _built(supervisor, [space.schedules(one) for one in finalists], frozenset(), moment)
    round_s = len(built) * max(ROUND_S, _CALLS * supervisor.default_us / 1e6)
    final = Final(len(built), min(MOST_ROUNDS, max(1, int(FINAL_S / max(round_s, ROUND_S)))))
    timed: list[list[Timed]] = [[] for _ in built]
    while left := final.next_round():
        for number in left:
            outcome, _ = _timed(supervisor, built[number], None, ROUND_S, moment)
            if isinstance(outcome, Timed):
                timed[number].append(outcome)
                final.tell(number, math.log(outcome.speedup))
            else:
                final.tell(number, None)
    noise = statistics.median([one.noise for some in timed for one in some] or [1.0])
    if not (winners := final.winners):
        us = supervisor.default_us
        return Winner({}, Measured(us, us, 1.0), len(tried), failed, noise)
    number = min(winners, key=lambda n: (finalists[n] != standing, sorted(finalists[n].items())))
    return Winner(
        space.schedules(finalists[number]),
        Measured(
            statistics.median(one.default_us for one in timed[number]),
            statistics.median(one.us for one in timed[number]),
            math.exp(final.gain(number)),
        ),
        len(tried),
        failed,
        noise,
    )


def finalists_of(
    tried: Sequence[Tried], space: Space, standing: Configuration | None = None
) -> list[Configuration]:
    """The fastest configurations of different code, and the one that stands in the records."""
    timed = [t for t in tried if isinstance(t.outcome, Timed)]
    default = {t.digest for t in timed if t.configuration == space.default}
    least = max((t.outcome.speedup for t in timed), default=1.0) * math.exp(-_NEAR)
    chosen: dict[str, Configuration] = {}
    for one in sorted(timed, key=lambda t: (-t.outcome.speedup, t.number)):
        if len(chosen) < FINALISTS and one.outcome.speedup >= least and one.digest not in default:
            chosen.setdefault(one.digest, one.configuration)
    result = list(chosen.values())
    if standing is not None and standing not in result and standing != space.default:
        result.append(standing)
    return result
