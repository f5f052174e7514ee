"""What records have a say in, whatever machine they are for: schedules, choices, and reports."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from hlo_mlc.backends.base import Backend
from hlo_mlc.report import KernelReport
from hlo_mlc.runtime.records import (
    OURS,
    Record,
    Schedules,
    find_record,
    not_followed,
    pin_of,
    pinned_records,
)
from hlo_mlc.support.errors import ConfigurationError
from hlo_mlc.support.lazy_imports import lazy_imports
from hlo_mlc.support.options import Options
from hlo_mlc.target import Target
from hlo_mlc.target.cpu import CpuTarget
from hlo_mlc.target.cuda import CudaTarget

with lazy_imports():
    from hlo_mlc.schedule import core as schedule
    from hlo_mlc.tuning import generator, replay

if TYPE_CHECKING:
    from hlo_mlc.partition.cluster import Cluster
    from hlo_mlc.partition.kernel import Kernel
    from hlo_mlc.partition.plan import Verdict

T = TypeVar("T", CpuTarget, CudaTarget)


def unknown_names(schedules: Schedules) -> set[str]:
    """The templates, and primitives of steps, that this version does not have."""
    steps = (how for _, how in schedules.values() if isinstance(how, tuple))
    generators = (generator.TemplateGenerator, generator.CudaGenerator)
    known = {template.name for made in generators for template in made.templates}
    return {template for template, _ in schedules.values()} - known | {
        step.name for trace in steps for step in trace
    } - schedule.PRIMITIVES.keys()


def pinned(options: Options) -> str:
    """What tells kernels that are built by a file from others in the process; "" for none.

    Raises: ConfigurationError for a file that cannot be followed.
    """
    pin = pin_of(options)
    if options.records is not None:
        _require_known(options.records, pin)
    return pin


@functools.lru_cache(maxsize=8)
def _require_known(path: Path, pin: str) -> None:
    """Raises: ConfigurationError where a file with this pin names what this version does not
    have."""
    records = pinned_records(path).values()
    if unknown := set().union(*(unknown_names(record.schedules) for record in records)):
        raise not_followed(path, f"this version does not have {', '.join(sorted(unknown))}")


def recorded_schedules(kernel: Kernel, backend: Backend, options: Options) -> Schedules:
    """What tuning has found for the kernel; nothing where it was not tuned.

    Raises: ConfigurationError where a file that the options pin cannot be followed.
    """
    known = find_record(kernel.fingerprint, backend.target.key, options)
    if known is None:
        return {}
    if options.records and (
        why := replay.why_not_followed(
            kernel.program, backend.target, known.schedules, backend.generator
        )
    ):
        raise ConfigurationError(
            f"The schedule of {known.name or kernel.name} in "
            f"{options.records} cannot be followed ({why}): write the "
            "file anew, with `hlo-mlc records export`"
        )
    return known.schedules


def recorded_or(
    predicted: Callable[[Cluster, T], Verdict], options: Options
) -> Callable[[Cluster, T], Verdict]:
    """What was found to be faster when it was tuned, unless that is XLA and it is wrong there; else
    what is predicted."""

    def choose(cluster: Cluster, target: T) -> Verdict:
        verdict = predicted(cluster, target)
        known = find_record(cluster.kernel.fingerprint, target.key, options)
        if known is None or not known.choice or (known.choice != OURS and verdict.fault):
            return verdict
        found = known.measured
        reason = (
            "scheduled by hand"
            if known.by_hand
            else (
                f"recorded when it was tuned: XLA takes {found.xla_ratio:.2f} times as long as ours"
            )
        )
        return replace(
            verdict,
            take=known.choice == OURS,
            recorded=True,
            reason=reason,
            ours_us=found.ours_us,
            # Its own time is that of a whole call, which kernels of ours were not timed by.
            xla_us=found.ours_us * found.xla_ratio if found.xla_ratio else verdict.xla_us,
        )

    return choose


def as_tuned(kernel: KernelReport, target: Target, options: Options) -> KernelReport:
    """The report with what tuning measured of the kernel, if it is built as recorded."""
    known = find_record(kernel.id, target.key, options)
    if known is None or not _is_built_as(kernel, known):
        return kernel
    return replace(kernel, tuned=known.measured)


def _is_built_as(kernel: KernelReport, record: Record) -> bool:
    for position, (template, how) in record.schedules.items():
        if position >= len(kernel.nests) or kernel.nests[position].template != template:
            return False
        nest = kernel.nests[position]
        if isinstance(how, tuple):
            if nest.steps != tuple(map(str, how)):
                return False
        elif nest.steps is not None or not how.items() <= nest.parameters.items():
            return False
    return True
