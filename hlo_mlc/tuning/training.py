"""Training the cost model on what was tuned on this machine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import optuna
from optuna.trial import TrialState

from hlo_mlc.support.errors import UsageError
from hlo_mlc.target.cpu import CpuTarget
from hlo_mlc.tuning.features import VOCABULARY
from hlo_mlc.tuning.model import Forest
from hlo_mlc.tuning.storage import open_storage
from hlo_mlc.tuning.study import DIFFERENCES, quiet

# Of less a forest learns next to nothing that is true of other kernels.
_FEWEST_KERNELS, _FEWEST_TRIALS = 4, 100


@dataclass(frozen=True, slots=True, eq=False)
class Trained:
    """A forest, and of how many kernels and trials it was learned."""

    forest: Forest
    kernels: int
    trials: int


def train(journal: Path, target: CpuTarget) -> Trained:
    """A forest of all trials of a journal on this kind of CPU that say what their loops do.

    Raises: UsageError for too few trials, and where scikit-learn is missing; CacheError where the
    journal cannot be read.
    """
    differences: list[list[float]] = []
    logs: list[float] = []
    kernels = 0
    with quiet():
        storage = open_storage(journal)
        for summary in optuna.get_all_study_summaries(storage):
            if summary.user_attrs.get("target", "").partition(",")[0] != target.cpu:
                continue
            before = len(logs)
            study = optuna.load_study(study_name=summary.study_name, storage=storage)
            for trial in study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,)):
                vocabulary, *row = trial.user_attrs.get(DIFFERENCES, [None])
                if vocabulary == VOCABULARY:
                    differences.append(row)
                    logs.append(trial.value)
            kernels += len(logs) > before
    if kernels < _FEWEST_KERNELS or len(logs) < _FEWEST_TRIALS:
        raise UsageError(
            f"A model takes at least {_FEWEST_TRIALS} trials of {_FEWEST_KERNELS} "
            f"kernels on {target.cpu}; there are {len(logs)} of {kernels}: tune more"
        )
    return Trained(
        Forest.trained(np.array(differences, np.float32), np.array(logs)), kernels, len(logs)
    )
