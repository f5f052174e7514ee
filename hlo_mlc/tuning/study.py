"""One kernel's study: which configurations were tried, what came of them, what to try next."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import random
import socket
import warnings
import zlib
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path

import optuna
from optuna.storages import fail_stale_trials
from optuna.storages._heartbeat import get_heartbeat_thread, is_heartbeat_enabled
from optuna.trial import FrozenTrial, TrialState

from hlo_mlc.tuning.features import VOCABULARY
from hlo_mlc.tuning.messages import Failed, Outcome, Timed
from hlo_mlc.tuning.model import WORST
from hlo_mlc.tuning.placed import MOST_PLACED, Placed
from hlo_mlc.tuning.pool import Choice, Pool
from hlo_mlc.tuning.space import Configuration, Key, Space, key_of

# Of spaces up to this size all configurations are candidates of a pool.
EXHAUSTIVE = 200
# What is tried in a small space before a process of what was tried says what is next.
_AT_RANDOM = 4
# Configurations that the sampler may propose again, in a row, before one that is new is drawn.
_MOST_REPEATS = 8
_MOST_DRAWS = 1000
# What a search that ends when little is expected tries at least: after 12 trials one of 33 kernels
# was left 1.9 times as slow as it could be, after 16 none more than 4 %. Where trials are off by a
# percent, and each tenth by six, 4 of 50 searches were 7 to 10 % behind others of the same kernel
# after 16, and one after 24.  Source: scripts/search_model.py, scripts/samplers.py.
_FEWEST = 24
_FASTEST = 4  # of which neighbours are candidates

DIFFERENCES = "differences"
"""What Optuna calls what the loops of a trial do differently: the vocabulary, then its features."""

COMPLETE = "nothing is expected of another trial"
"""What is said of a study that ended by itself."""

OF_LIMIT, SHARE_OF = "share of the limit", "share of the time of "
"""What the share of the machine's limit that a kernel reaches is called among the facts about it,
and, in front of a function's name, its share of the time of all the function's kernels."""


@dataclass(frozen=True, slots=True, eq=False)
class Trial:
    """A configuration to try, and what Optuna knows it by."""

    configuration: Configuration
    handle: optuna.Trial


@dataclass(frozen=True, slots=True)
class Tried:
    """What came of a configuration; `digest` is that of its code, "" if none was made."""

    number: int
    configuration: Configuration
    outcome: Outcome
    digest: str


class KernelStudy:
    """The study of one kernel on one target, kept in a storage that several processes may use.

    The value of a trial is log(its time / that of the default schedule, run in turns): 0 for the
    default, and the same distance for twice as fast and twice as slow.
    """

    def __init__(
        self,
        storage: optuna.storages.BaseStorage,
        name: str,
        space: Space,
        first: Sequence[Configuration] = (),
    ) -> None:
        """`first` is tried right after the default."""
        self._space, self._storage = space, storage
        with quiet():
            self._study = optuna.create_study(
                storage=storage,
                study_name=f"{name}-{space.digest}",
                direction="minimize",
                load_if_exists=True,
            )
            self._study.set_metric_names(["log(time / default's time)"])
            self._forget_abandoned()
            past = self._study.get_trials(deepcopy=False)
            # The same for the same study, unless others draw for it at the same time.
            shared = _own_name() if is_heartbeat_enabled(storage) else ""
            seed = zlib.crc32(f"{name}{shared}".encode()) + len(past)
            # What is drawn and not tried is nobody's business: the sampler has a study of its own.
            # Templates have parameters of their own: each group of them is learned together.
            self._drawing = optuna.create_study(
                sampler=optuna.samplers.TPESampler(seed=seed, group=True)
            )
        self._learned: set[int] = set()  # the numbers of the trials that the sampler knows
        self._read()
        self._random = random.Random(seed)
        self._first = (space.default, *first)
        self._queue = space.starts
        self._placed = Placed(space) if space.size <= MOST_PLACED else None
        self._candidates = self._endless()

    def _read(self) -> None:
        """Learns what all processes have tried or are trying."""
        with quiet():
            fail_stale_trials(self._study)
            past = self._study.get_trials(deepcopy=False)
            new = [t for t in past if t.state.is_finished() and t.number not in self._learned]
            self._drawing.add_trials(new)
        self._learned.update(trial.number for trial in new)
        known = map(_tried, reversed(past))  # of repetitions the first counts
        self._tried = {key_of(t.configuration): t for t in known if t is not None}
        self._running = {key_of(t.params) for t in past if t.state is TrialState.RUNNING}

    def _is_new(self, configuration: Configuration) -> bool:
        """Whether nobody has tried it or does so now."""
        key = key_of(configuration)
        return key not in self._tried and key not in self._running

    @property
    def tried(self) -> list[Tried]:
        """What is known, in the order of the trials."""
        return sorted(self._tried.values(), key=lambda tried: tried.number)

    @property
    def is_complete(self) -> bool:
        """Whether next to nothing was expected of another trial when it ended."""
        return bool(self._study.user_attrs.get(COMPLETE))

    @property
    def under_way(self) -> int:
        """How many configurations others tried when this was last looked up."""
        return len(self._running)

    def known_code(self, digest: str) -> Outcome | None:
        """What came of another configuration with the same code."""
        return next((t.outcome for t in self._tried.values() if t.digest == digest), None)

    @property
    def known_codes(self) -> frozenset[str]:
        """The digests of code of which something is known."""
        return frozenset(tried.digest for tried in self._tried.values())

    def next(self, pool: Pool | None = None, least_gain: float = 0.0) -> Trial | None:
        """What to try next, if anything."""
        return next(iter(self.batch(1, pool, least_gain)), None)

    def batch(self, most: int, pool: Pool | None = None, least_gain: float = 0.0) -> list[Trial]:
        """So many to try next: what a pool finds most promising, else what a small space's points
        say or, in a large one, the sampler draws.

        Fewer where the space has no more, or where no other is expected to be faster than the
        fastest by this logarithm.
        """
        self._read()
        trials: list[Trial] = []
        for configuration in filter(self._is_new, self._first):
            if len(trials) < most:
                trials.append(self._ask(configuration))
        wanted = min(most, self._space.size - len(self._tried)) - len(trials)
        choices: Sequence[Choice] | None = None
        if pool is not None and wanted > 0:
            with quiet():
                more = itertools.islice(self._candidates, _MOST_DRAWS)
                choices = pool.choose(
                    self._logs,
                    filter(self._is_new, more),
                    wanted,
                    [trial.configuration for trial in trials],
                )
        anything = (self._space.anything(self._random) for _ in range(_MOST_DRAWS))
        if choices is None and self._placed is not None:
            drawn = filter(self._is_new, itertools.chain(self._queue, anything))
            while (
                wanted > 0
                and len(self._tried) + len(trials) < _AT_RANDOM
                and (configuration := next(drawn, None)) is not None
            ):
                trials.append(self._ask(configuration))
                wanted -= 1
            choices = self._placed.choose(self._logs, self._running, wanted)
        if choices is not None:
            for choice in choices:
                if choice.gain < least_gain and len(self._tried) + len(trials) >= _FEWEST:
                    break
                trials.append(self._ask(choice.configuration))
            return trials
        drawn = filter(self._is_new, itertools.chain(self._queue, self._sampled(), anything))
        trials += map(self._ask, itertools.islice(drawn, max(wanted, 0)))
        return trials

    @property
    def _logs(self) -> dict[Key, float]:
        """What is known of configurations: logarithms of time / the default's."""
        return {key: _log(tried.outcome) for key, tried in self._tried.items()}

    def tell(
        self,
        trial: Trial,
        outcome: Outcome,
        digest: str,
        differences: Sequence[float] | None = None,
    ) -> None:
        """Keeps what came of a trial, and what its loops do differently from the default's, unless
        the trial was taken from us and given to others."""
        with _unless_taken():
            if differences is not None:
                trial.handle.set_user_attr(DIFFERENCES, [VOCABULARY, *differences])
            self._tell(trial.handle, outcome, digest)
        self._running.discard(key_of(trial.configuration))
        self._tried[key_of(trial.configuration)] = Tried(
            trial.handle.number, dict(trial.configuration), outcome, digest
        )

    def lease(self, trial: Trial) -> AbstractContextManager[object]:
        """As long as it lasts, nobody else takes the trial for one of a process that is gone."""
        return get_heartbeat_thread(trial.handle._trial_id, self._storage)

    def abandon(self, trial: Trial) -> None:
        """Nothing came of a trial; it may be tried again."""
        self._running.discard(key_of(trial.configuration))
        with _unless_taken():
            self._study.tell(trial.handle, state=TrialState.FAIL, skip_if_finished=True)

    def describe(self, attributes: dict[str, str | float | list[str]]) -> None:
        """Keeps facts about the kernel with the study."""
        with quiet():
            for name, value in attributes.items():
                self._study.set_user_attr(name, value)

    def _ask(self, configuration: Configuration) -> Trial:
        with quiet():
            self._study.enqueue_trial(dict(configuration))
            configuration, handle = self._drawn(self._study)
            handle.set_user_attr("process", _own_name())
            self._running.add(key_of(configuration))
            return Trial(configuration, handle)

    def _drawn(self, study: optuna.Study) -> tuple[Configuration, optuna.Trial]:
        """What the sampler, or the queue, says is next: templates, then their parameters."""
        with quiet():
            handle = study.ask()
            configuration: dict[str, int | str] = {}
            for choice in self._space.choices:
                configuration[choice.name] = handle.suggest_categorical(
                    choice.name, choice.templates
                )
            for p in self._space.active(configuration):
                configuration[p.name] = handle.suggest_categorical(p.name, p.values)
            return configuration, handle

    def _sampled(self) -> Iterator[Configuration]:
        """What the sampler draws, which learns what it draws again in vain."""
        for _ in range(_MOST_REPEATS):
            configuration, handle = self._drawn(self._drawing)
            yield configuration
            tried = self._tried.get(key_of(configuration))
            with quiet():
                if tried is None:
                    self._drawing.tell(handle, state=TrialState.FAIL)
                else:
                    self._drawing.tell(handle, _log(tried.outcome))

    def _endless(self) -> Iterator[Configuration]:
        """Candidates: all of a small space; of others what analysis says of each template, then in
        turns what the sampler draws, which takes longest, neighbours of the fastest, one that is
        like two of them, and anything."""
        if self._space.size <= EXHAUSTIVE:
            everything = list(self._space.all())
            self._random.shuffle(everything)
            yield from everything
            return
        yield from self._space.starts
        while True:
            yield self._drawn(self._drawing)[0]
            fastest = sorted(self._tried.values(), key=lambda t: _log(t.outcome))[:_FASTEST]
            for tried in fastest:
                yield self._space.neighbour(tried.configuration, self._random)
            if fastest:
                one, other = (self._random.choice(fastest).configuration for _ in range(2))
                yield self._space.crossing(one, other, self._random)
            yield self._space.anything(self._random)

    def _tell(self, handle: optuna.Trial, outcome: Outcome, digest: str) -> None:
        handle.set_user_attr("code", digest)
        if isinstance(outcome, Timed):
            handle.set_user_attr("measured", asdict(outcome))
            self._study.tell(handle, _log(outcome), skip_if_finished=True)
        else:
            # Pruned and not failed: so the sampler learns to keep away from it.
            handle.set_user_attr("problem", outcome.reason)
            self._study.tell(handle, state=TrialState.PRUNED, skip_if_finished=True)

    def _forget_abandoned(self) -> None:
        """Trials of processes of this machine that are gone: their results will never come."""
        for trial in self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            host, _, process = trial.user_attrs.get("process", "").rpartition(":")
            if host == socket.gethostname() and not Path(f"/proc/{process}").exists():
                with _unless_taken():
                    self._study.tell(trial.number, state=TrialState.FAIL, skip_if_finished=True)


def _own_name() -> str:
    return f"{socket.gethostname()}:{os.getpid()}"


def _log(outcome: Outcome) -> float:
    """The logarithm of a time / the default's; what failed is to be kept away from."""
    return -math.log(outcome.speedup) if isinstance(outcome, Timed) else WORST


def _tried(trial: FrozenTrial) -> Tried | None:
    """What came of a trial; None where that is not known, because it was abandoned or its part of
    the journal is lost: it may be tried again."""
    known = trial.user_attrs
    if trial.state is TrialState.COMPLETE and "measured" in known:
        outcome: Outcome = Timed(**known["measured"])
    elif trial.state is TrialState.PRUNED and "problem" in known:
        outcome = Failed(known["problem"])
    else:
        return None
    return Tried(trial.number, trial.params, outcome, known.get("code", ""))


@contextlib.contextmanager
def _unless_taken() -> Iterator[None]:
    """Within it a trial is told that others may end at the same moment, who then are believed."""
    with quiet(), contextlib.suppress(optuna.exceptions.UpdateFinishedTrialError):
        yield


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Within it, Optuna says only what is wrong, whatever the user has it say elsewhere."""
    usual = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            warnings.filterwarnings("ignore", "Heartbeat of storage is supposed")
            yield
    finally:
        optuna.logging.set_verbosity(usual)
