"""Tuning by a team: kernels lie in a database with their studies, and processes on any number of
machines take trials of those for their own kind.

A kernel travels as the StableHLO that it is compiled from, which is data and runs nothing where it
is read. Every process holds the best of all trials against each other once more on its own machine,
and records there what it finds.
"""

from __future__ import annotations

from collections.abc import Iterator

import jax
import optuna
from optuna.storages import BaseStorage
from optuna.trial import TrialState

from hlo_mlc.building import keeping
from hlo_mlc.frontend.parse import parse_module
from hlo_mlc.interop.devices import CPU, CUDA, first_gpu
from hlo_mlc.interop.measuring import register_handler
from hlo_mlc.interop.platforms import BACKENDS
from hlo_mlc.interop.tuning_report import TunedKernel
from hlo_mlc.interop.tuning_session import Session
from hlo_mlc.runtime.records import open_records
from hlo_mlc.support.options import Options
from hlo_mlc.tuning.progress import TuningProgress
from hlo_mlc.tuning.shared import SharedKernel
from hlo_mlc.tuning.storage import open_studies
from hlo_mlc.tuning.study import quiet

_ENDED = (TrialState.COMPLETE, TrialState.PRUNED)


def take_trials(url: str, options: Options, progress: TuningProgress) -> Iterator[TunedKernel]:
    """Tunes the kernels for this kind of machine that others have put into a database, until each
    has had its trials, here or elsewhere; the database is opened at once.

    Raises: UsageError where that cannot be.
    """
    return _taken(open_studies(url), url, options, progress)


def _taken(
    storage: BaseStorage, url: str, options: Options, progress: TuningProgress
) -> Iterator[TunedKernel]:
    records = open_records(options)
    here = [CPU] if first_gpu() is None else [CPU, CUDA]
    platforms = {BACKENDS[platform](options).target.key: platform for platform in here}
    for platform in here:
        register_handler(platform)
    with quiet():
        names = optuna.get_all_study_names(storage)
    for name in names:
        with quiet():
            study = optuna.load_study(study_name=name, storage=storage)
            known, ended = study.user_attrs, study.get_trials(deepcopy=False, states=_ENDED)
        kernel = SharedKernel.read(known)
        if (
            kernel is None
            or kernel.target not in platforms
            or (
                len(ended) >= kernel.trials
                and records.get(kernel.fingerprint, kernel.target) is not None
            )
        ):
            continue
        with jax.enable_x64(kernel.x64), keeping():
            session = Session(
                parse_module(kernel.module),
                kernel.entry,
                options.replace(choose=kernel.choose),
                kernel.trials,
                None,
                None,
                storage=url,
                platform=platforms[kernel.target],
            )
            yield from session.kernels(progress, {kernel.fingerprint: 1.0})
