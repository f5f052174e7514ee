"""Small tensors of a batch, gone through step by step: a procedure whose numbers are vectors, an
array of lanes for each of its arrays.

    parallel block of tensors
      tiles in
      for step, row, column: for lane: array[row, column, 16 tensors] = …
      tiles out

An array that is only filled with what is read, or becomes a result as it is, is that tile itself:
what is worked on stays in the first cache.  Of several axes, the last that fills a vector has the
lanes, if tensors come one after the other along it, or side by side: columns of a matrix have them
rather than matrices.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from hlo_mlc.target.cpu import CpuTarget
from hlo_mlc.templates.base import Fixed, Parameters, Scheduled, lanes, may_repeat
from hlo_mlc.templates.lane_tiles import begin, in_lanes
from hlo_mlc.tensor.coalesce import coalesce
from hlo_mlc.tensor.core import Assign, Nest, Stage

# Vectors of tensors side by side: a step waits for the one before, and with two there is as much
# again to do meanwhile (QR factorizations of 8 x 8 took 201 us, and 244 with one).
ABREAST = 2


@dataclass(frozen=True, slots=True)
class StepwiseTemplate(Fixed):
    """Blocks of tensors, each with a lane, a procedure for all of them."""

    name: str = "stepwise"

    def refusal(self, nest: Nest, target: CpuTarget) -> str:
        """Why the nest is no procedure for each point of an axis; empty where it is."""
        if len(nest.stages) != 1 or nest.stages[0].procedure is None or not nest.stages[0].axes:
            return "no procedure at several points"
        stage = coalesce(nest.stages[0])
        if _lanes_last(stage, target) is None:
            return "no tensors one after the other"
        if not all(_is_whole(a, stage) for a in stage.along):
            return "not every element is written once"
        if not may_repeat(stage):
            return "it reads what it overwrites"
        return ""

    def apply(self, nest: Nest, target: CpuTarget, parameters: Parameters) -> Scheduled:
        stage = _lanes_last(coalesce(nest.stages[0]), target)
        return in_lanes(nest, stage, target, abreast=ABREAST)


def fills_lanes(nest: Nest, target: CpuTarget) -> bool:
    """Whether there are tensors enough for all cores, a vector of which the first cache holds."""
    if StepwiseTemplate().refusal(nest, target):
        return False
    stage = _lanes_last(coalesce(nest.stages[0]), target)
    width = lanes((stage,), target)
    size = sum(array.bytes for array in stage.procedure.arrays)
    return stage.axes[-1].extent >= width * target.cores and size * width <= target.l1_bytes


def blocks(stage: Stage, target: CpuTarget) -> int:
    """How many vectors the tensors of a stage are."""
    *others, lane = _lanes_last(coalesce(stage), target).axes
    return math.prod(v.extent for v in others) * -(-lane.extent // lanes((stage,), target))


def _lanes_last(stage: Stage, target: CpuTarget) -> Stage | None:
    """The stage with the axis last that has the lanes; None where there is none."""
    found = [v for v in stage.axes if all(begin(a, v) is not None for a in stage.along)]
    if not found:
        return None
    width = lanes((stage,), target)
    axis = max(reversed(found), key=lambda v: min(v.extent, width))
    return replace(stage, axes=(*(v for v in stage.axes if v is not axis), axis))


def _is_whole(assign: Assign, stage: Stage) -> bool:
    inner = [v for v in stage.reduce_axes if v in assign.indices]
    points = math.prod(v.extent for v in (*stage.axes, *inner))
    return assign.guard is None and points == assign.buffer.size
