"""The fallback: the naive nest, serial.  Takes everything; for updates in order and odd shapes."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hlo_mlc.loops.lower import lower_nest
from hlo_mlc.target.cpu import CpuTarget
from hlo_mlc.templates.base import Fixed, Parameters, Scheduled, open_schedule
from hlo_mlc.tensor.coalesce import coalesce
from hlo_mlc.tensor.core import Nest


@dataclass(frozen=True, slots=True)
class PlainTemplate(Fixed):
    """Loops in the order of the axes, one thread, one element at a time."""

    name: str = "plain"

    def refusal(self, nest: Nest, target: CpuTarget) -> str:
        """Never refuses."""
        return ""

    def apply(self, nest: Nest, target: CpuTarget, parameters: Parameters) -> Scheduled:
        """The naive loops; buffers of the nest keep their full size in the arena."""
        depth = nest.shared if len(nest.stages) > 1 else 0  # axes of a scan alone are its own
        shared = nest.stages[0].axes[:depth]
        inner = [coalesce(replace(s, axes=s.axes[depth:])) for s in nest.stages]
        return Scheduled.of(open_schedule(nest, lower_nest(shared, inner)))
