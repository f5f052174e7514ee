"""The studies of the kernels that a session tunes: what they are called, say of themselves, and try
first.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from optuna.storages import BaseStorage

from hlo_mlc.interop.devices import first_gpu
from hlo_mlc.interop.tuning_report import BUSY
from hlo_mlc.partition.cluster import Cluster
from hlo_mlc.partition.naming import role
from hlo_mlc.report import op_counts
from hlo_mlc.runtime.records import Record, Records, schedules_text
from hlo_mlc.support.wording import counted
from hlo_mlc.target import Target
from hlo_mlc.target.cuda import CudaTarget
from hlo_mlc.tensor.text import program_text
from hlo_mlc.tuning.nearest import Neighbours
from hlo_mlc.tuning.space import Configuration, Space
from hlo_mlc.tuning.study import COMPLETE, OF_LIMIT, KernelStudy
from hlo_mlc.tuning.tuner import Winner


class Studies:
    """Studies in one storage, for one kind of machine."""

    def __init__(
        self, storage: BaseStorage, records: Records, target: Target, modelled: bool
    ) -> None:
        """`modelled`: what they hold is what a model says of the target."""
        self._storage, self._records = storage, records
        self._target, self._modelled = target, modelled
        self._opened: dict[str, KernelStudy] = {}  # by the kernels' fingerprints

    def of(self, fingerprint: str) -> KernelStudy:
        """One that was opened."""
        return self._opened[fingerprint]

    def opened(
        self,
        cluster: Cluster,
        ops: Sequence[str],
        space: Space,
        known: Record | None,
        shared: Mapping[str, str],
    ) -> KernelStudy:
        """The study of a kernel, which says what it is about, and what is `shared` of it with
        others."""
        kernel = cluster.kernel
        text = program_text(kernel.program)
        first = self._first(kernel.fingerprint, text, space, known)
        study = KernelStudy(self._storage, self._name(cluster), space, first)
        study.describe(
            {
                "name": kernel.name,
                "kernel": text,
                "ops": op_counts(ops),
                "target": self._machine,
                "default": schedules_text(space.schedules(space.default)),
                **shared,
            }
        )
        self._opened[kernel.fingerprint] = study
        self._neighbours.add(kernel.fingerprint, text)
        return study

    @functools.cached_property
    def _machine(self) -> str:
        """What studies say of where they are tuned."""
        return f"{self._target.name}, by a model" if self._modelled else _machine(self._target)

    @functools.cached_property
    def _neighbours(self) -> Neighbours:
        studies = self._storage.get_all_studies()
        return Neighbours.of({one.study_name: one.user_attrs for one in studies}, self._machine)

    def _first(
        self, fingerprint: str, text: str, space: Space, known: Record | None
    ) -> list[Configuration]:
        """What to try right after the default: what is recorded of the kernel, or else of those
        that compute the same of the sizes that are nearest to its own."""
        if known is not None and (standing := space.configuration(known.schedules)) is not None:
            return [standing]
        records = (
            self._records.get(other, self._target.key)
            for other in self._neighbours.nearest(fingerprint, text)
        )
        likely = (space.most_like(record.schedules) for record in records if record is not None)
        return [configuration for configuration in likely if configuration is not None]

    def _name(self, cluster: Cluster) -> str:
        """Begins with what a person may recognize the kernel by; its line, which changes with what
        is written above it, is not a part of what the study is found by."""
        shape = cluster.kernel.program.results[0]
        return " ".join(
            (
                role(cluster.kernel.program),
                f"{'x'.join(map(str, shape.shape))}x{shape.dtype.name}",
                f"{cluster.kernel.fingerprint}-{self._target.key}{'-modelled' * self._modelled}",
            )
        )


def _machine(target: Target) -> str:
    """What people call a kind of machine."""
    if isinstance(target, CudaTarget):
        device = first_gpu()
        return f"{target.name}, {'no GPU' if device is None else device.device_kind}"
    return f"{target.cpu}, {counted(target.cores, 'core')}"


def outcome(record: Record, winner: Winner, of_limit: float) -> dict[str, Any]:
    """What a study says of what came of it."""
    return {
        "best": schedules_text(record.schedules),
        "us": record.measured.ours_us,
        "speedup over the default": record.measured.speedup,
        "speedup over XLA": record.measured.xla_ratio,
        "choice": "modelled" if record.measured.modelled else record.choice,
        OF_LIMIT: of_limit,
        **({COMPLETE: True} if winner.complete and winner.noise <= BUSY else {}),
    }
