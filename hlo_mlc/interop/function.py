"""A decorated function: its options, and the reports on what became of it."""

from __future__ import annotations

import dataclasses
import os
import threading
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from jaxlib.mlir import ir

from hlo_mlc.backends.cpu import target_of
from hlo_mlc.backends.recorded import pinned
from hlo_mlc.interop.faults import Faults
from hlo_mlc.report import Comparison, Report
from hlo_mlc.runtime.records import require_target
from hlo_mlc.support.options import Options
from hlo_mlc.target.levels import planned_for

PLATFORMS = ("cpu", "cuda")
"""What they may be lowered for, as JAX calls it."""


_reports_on: weakref.WeakKeyDictionary[ir.Module, list[Report]] = weakref.WeakKeyDictionary()
"""All that was compiled into each module: as long as it is there, it may be compiled by XLA, which
has to find the kernels."""


class Ledger:
    """The reports on one function: one for each module that it was lowered into.

    JAX keeps lowered modules and lowers a call that it has seen no second time, so reports are
    found again by the module, and forgotten with it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_module: weakref.WeakKeyDictionary[ir.Module, Report] = weakref.WeakKeyDictionary()
        self._latest: Report | None = None

    def record(self, module: ir.Module, report: Report) -> None:
        with self._lock:
            self._by_module[module] = report
            _reports_on.setdefault(module, []).append(report)
            self._latest = report

    def find(self, module: ir.Module) -> Report | None:
        """The report on the function as it stands in this module."""
        with self._lock:
            return self._by_module.get(module)

    def settle(self, comparison: Comparison) -> None:
        """Adds what calls have shown to the most recent report."""
        latest = self._latest
        self.revise(
            lambda report: (
                dataclasses.replace(report, comparisons=(comparison,))
                if report is latest
                else report
            )
        )

    def revise(self, change: Callable[[Report], Report]) -> None:
        """Puts what `change` makes of each report in its place."""
        with self._lock:
            known = dict(self._by_module)
            revised = {
                id(report): change(report)
                for report in (*known.values(), self._latest)
                if report is not None
            }
            self._by_module.update((module, revised[id(r)]) for module, r in known.items())
            self._latest = revised.get(id(self._latest))

    @property
    def latest(self) -> Report | None:
        return self._latest

    def __len__(self) -> int:
        """How many modules there are reports on."""
        with self._lock:
            return len(self._by_module)


@dataclass(frozen=True, slots=True, eq=False)
class TracedFunction:
    """The function that a call came from, also after transformations. Identity is equality."""

    name: str
    options: Options
    for_archive: bool = False  # `hlo_mlc.export` asks for it, which writes kernels into its files
    ledger: Ledger = field(default_factory=Ledger)
    faults: Faults = field(default_factory=Faults)
    # What calls have shown to be faster, "ours" or "xla", by where that is remembered; None where
    # they are not asked.
    settled: Mapping[Path, str] | None = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"{self.name}[{self.options.choose}]"


def resolve_options(
    choose: str | None,
    target: str | None,
    deterministic: bool | None = None,
    records: str | os.PathLike[str] | None = None,
    tune: str | None = None,
    any_rows: bool | None = None,
) -> Options:
    """The options for one function; None stands for what the environment says.

    Raises: UsageError, ConfigurationError, and UnknownTargetError.
    """
    options = Options.from_environment(
        choose=choose,
        target=target,
        deterministic=deterministic,
        tune=tune,
        any_rows=any_rows,
        records=os.fspath(records) if isinstance(records, os.PathLike) else records,
    )
    planned_for(options.target)  # not at the first call: what cannot be is said at once
    if options.records is not None:
        pinned(options)
        require_target(options.records, target_of(options).key)
    return options
