"""What tuning has tried of kernels, in the order in which it did, for people to look at."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import optuna
from optuna.trial import FrozenTrial, TrialState

from hlo_mlc.tuning.storage import open_storage
from hlo_mlc.tuning.study import quiet


@dataclass(frozen=True, slots=True)
class Attempt:
    """One trial: how many times as fast as the default schedule it was, 0 where it failed, and
    what was tried, or why it failed."""

    number: int
    speedup: float
    what: str


def attempts(journal: Path, kernel_ids: Collection[str]) -> dict[str, tuple[Attempt, ...]]:
    """The trials of these kernels in a journal's studies, by the kernels' ids; one that has several
    studies, of other spaces or for other targets, by the one with the most trials.

    Raises: CacheError where the journal cannot be read.
    """
    found: dict[str, tuple[Attempt, ...]] = {}
    with quiet():
        storage = open_storage(journal)
        for name in optuna.get_all_study_names(storage):
            kernel_id = next((one for one in kernel_ids if f" {one}-" in f" {name}"), None)
            if kernel_id is None:
                continue
            trials = optuna.load_study(study_name=name, storage=storage).get_trials(deepcopy=False)
            tried = tuple(attempt for trial in trials if (attempt := attempt_of(trial)) is not None)
            found[kernel_id] = max(found.get(kernel_id, ()), tried, key=len)
    return {kernel_id: tried for kernel_id, tried in found.items() if tried}


def attempt_of(trial: FrozenTrial) -> Attempt | None:
    """What came of a trial; None for one that is under way, or was abandoned."""
    if trial.state is TrialState.COMPLETE and trial.value is not None:
        parameters = ", ".join(f"{name}={value}" for name, value in trial.params.items())
        return Attempt(trial.number, math.exp(-trial.value), parameters)
    if trial.state is TrialState.PRUNED and "problem" in trial.user_attrs:
        return Attempt(trial.number, 0.0, str(trial.user_attrs["problem"]))
    return None
