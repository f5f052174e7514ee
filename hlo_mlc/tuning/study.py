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
from dataclasses import asdict, dataclass
from pathlib import Path

import optuna
from optuna.trial import FrozenTrial, TrialState

from hlo_mlc.tuning.messages import Failed, Timed
from hlo_mlc.tuning.space import Configuration, Space

# Spaces up to this size are gone through as a whole; a sampler needs about as many trials anyway.
EXHAUSTIVE = 200
# Configurations that the sampler may propose again, in a row, before one that is new is drawn.
_MOST_REPEATS = 8
_MOST_DRAWS = 1000

Outcome = Timed | Failed


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

    def __init__(self, storage: optuna.storages.BaseStorage, name: str, space: Space,
                 first: Sequence[Configuration] = ()) -> None:
        """`first` is tried right after the default."""
        self._space = space
        with quiet():
            self._study = optuna.create_study(
                storage=storage, study_name=f"{name}-{space.digest}", direction="minimize",
                load_if_exists=True)
            self._study.set_metric_names(["log(time / default's time)"])
            self._forget_abandoned()
            past = self._study.get_trials(deepcopy=False)
            seed = zlib.crc32(name.encode()) + len(past)
            # Templates have parameters of their own: each group of them is learned together.
            self._study.sampler = optuna.samplers.TPESampler(seed=seed, group=True)
            self._random = random.Random(seed)
            known = map(_tried, reversed(past))  # of repetitions the first counts
            self._tried = {_key(t.configuration): t for t in known if t is not None}
            self._queue: Iterator[Configuration] = iter(
                space.all() if space.size <= EXHAUSTIVE
                else itertools.chain((space.default, *first), space.starts))

    @property
    def tried(self) -> list[Tried]:
        """What is known, in the order of the trials."""
        return sorted(self._tried.values(), key=lambda tried: tried.number)

    def known_code(self, digest: str) -> Outcome | None:
        """What came of another configuration with the same code."""
        return next((t.outcome for t in self._tried.values() if t.digest == digest), None)

    def next(self) -> Trial | None:
        """What to try next; None when every configuration is known."""
        if len(self._tried) >= self._space.size:
            return None
        for configuration in self._queue:
            if _key(configuration) not in self._tried:
                return self._ask(configuration)
        with quiet():
            for _ in range(_MOST_REPEATS):
                trial = self._drawn()
                tried = self._tried.get(_key(trial.configuration))
                if tried is None:
                    return self._claimed(trial)
                self._tell(trial.handle, tried.outcome, tried.digest)  # the sampler learns
        untried = self._untried()
        return None if untried is None else self._ask(untried)

    def tell(self, trial: Trial, outcome: Outcome, digest: str) -> None:
        """Keeps what came of a trial."""
        with quiet():
            self._tell(trial.handle, outcome, digest)
        self._tried[_key(trial.configuration)] = Tried(
            trial.handle.number, dict(trial.configuration), outcome, digest)

    def abandon(self, trial: Trial) -> None:
        """Nothing came of a trial; it may be tried again."""
        with quiet():
            self._study.tell(trial.handle, state=TrialState.FAIL)

    def describe(self, attributes: dict[str, str | float | list[str]]) -> None:
        """Keeps facts about the kernel with the study."""
        with quiet():
            for name, value in attributes.items():
                self._study.set_user_attr(name, value)

    def _ask(self, configuration: Configuration) -> Trial:
        with quiet():
            self._study.enqueue_trial(dict(configuration))
            return self._claimed(self._drawn())

    def _drawn(self) -> Trial:
        """What the sampler, or the queue, says is next: templates, then their parameters."""
        handle = self._study.ask()
        configuration: dict[str, int | str] = {}
        for choice in self._space.choices:
            configuration[choice.name] = handle.suggest_categorical(choice.name, choice.templates)
        for p in self._space.active(configuration):
            configuration[p.name] = handle.suggest_categorical(p.name, p.values)
        return Trial(configuration, handle)

    def _claimed(self, trial: Trial) -> Trial:
        with quiet():
            trial.handle.set_user_attr("process", _own_name())
        return trial

    def _tell(self, handle: optuna.Trial, outcome: Outcome, digest: str) -> None:
        handle.set_user_attr("code", digest)
        if isinstance(outcome, Timed):
            handle.set_user_attr("measured", asdict(outcome))
            self._study.tell(handle, -math.log(outcome.speedup))
        else:
            # Pruned and not failed: so the sampler learns to keep away from it.
            handle.set_user_attr("problem", outcome.reason)
            self._study.tell(handle, state=TrialState.PRUNED)

    def _untried(self) -> Configuration | None:
        for _ in range(_MOST_DRAWS):
            drawn: dict[str, int | str] = {
                c.name: self._random.choice(c.templates) for c in self._space.choices}
            drawn |= {p.name: self._random.choice(p.values) for p in self._space.active(drawn)}
            if _key(drawn) not in self._tried:
                return drawn
        return None

    def _forget_abandoned(self) -> None:
        """Trials of processes of this machine that are gone: their results will never come."""
        for trial in self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            host, _, process = trial.user_attrs.get("process", "").rpartition(":")
            if host == socket.gethostname() and not Path(f"/proc/{process}").exists():
                self._study.tell(trial.number, state=TrialState.FAIL)


def _own_name() -> str:
    return f"{socket.gethostname()}:{os.getpid()}"


def _key(configuration: Configuration) -> tuple[tuple[str, int | str], ...]:
    return tuple(sorted(configuration.items()))


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
def quiet() -> Iterator[None]:
    """Within it, Optuna says only what is wrong, whatever the user has it say elsewhere."""
    usual = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            yield
    finally:
        optuna.logging.set_verbosity(usual)
