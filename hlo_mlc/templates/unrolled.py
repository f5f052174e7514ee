"""Small tensors of a batch, written out: what is computed of each of them stands in one lane.

    parallel block of tensors
      tiles in
      for lane: written out, from the rows of tiles to the rows of others
      tiles out

What is written out is there once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from hlo_mlc.expr import index
from hlo_mlc.expr.build import load
from hlo_mlc.expr.core import Buffer, Var
from hlo_mlc.expr.dtypes import INDEX
from hlo_mlc.expr.procedure import Procedure, Put
from hlo_mlc.target.cpu import CpuTarget
from hlo_mlc.templates.base import Fixed, Parameters, Scheduled, may_repeat
from hlo_mlc.templates.lane_tiles import begin, in_lanes, tensor
from hlo_mlc.tensor.classify import is_map, is_written_out, writes_once
from hlo_mlc.tensor.coalesce import coalesce
from hlo_mlc.tensor.core import Assign, Nest, Stage


@dataclass(frozen=True, slots=True)
class UnrolledTemplate(Fixed):
    """Blocks of tensors, transposed so that each has a lane."""

    name: str = "unrolled"

    def refusal(self, nest: Nest, target: CpuTarget) -> str:
        """Why the nest is not written out for each point of one axis; empty where it is."""
        if len(nest.stages) != 1 or not is_map(nest.stages[0]) or not nest.stages[0].axes:
            return "not a single elementwise stage"
        stage = coalesce(nest.stages[0])
        axis = stage.axes[-1]
        if (
            len(stage.axes) > 1
            or any(begin(a, axis) is None for a in stage.assigns)
            or not is_written_out(stage)
        ):
            return "no tensors one after the other, written out"
        if len({tensor(a, axis) for a in stage.assigns}) > len(stage.outputs):
            return "elements that lie apart, each beside those of the next tensor"
        stored = {(a.buffer, tuple(a.indices)) for a in stage.assigns}
        if (
            len(stored) < len(stage.assigns)
            or len(stored) * axis.extent != sum(b.size for b in stage.outputs)
            or not writes_once(stage)
        ):
            return "not every element is written once"
        if any(
            load.guard is not None for group in stage.loads_by_buffer.values() for load in group
        ) or any(a.guard is not None for a in stage.assigns):
            return "some elements do not exist"
        if not may_repeat(stage):
            return "it reads what it overwrites"
        return ""

    def apply(self, nest: Nest, target: CpuTarget, parameters: Parameters) -> Scheduled:
        return in_lanes(nest, _in_steps(coalesce(nest.stages[0])), target)


def _in_steps(stage: Stage) -> Stage:
    """The stage as a procedure, which puts all elements of a tensor, and stores the tensor."""
    (axis,) = stage.axes
    arrays, along, axes = {}, [], []
    for number, (buffer, leading) in enumerate(
        dict.fromkeys(tensor(a, axis) for a in stage.assigns)
    ):
        shape = buffer.shape[len(leading) :]
        array = Buffer(f"{stage.name}_out{number}", buffer.dtype, shape, "stack")
        own = tuple(
            Var(f"e{number}_{k}", INDEX, n) if n > 1 else index.constant(0)
            for k, n in enumerate(shape)
        )
        arrays[buffer, leading] = array
        along.append(Assign(buffer, (*leading, *own), load(array, own)))
        axes += [v for v in own if isinstance(v, Var)]
    puts = [
        Put(arrays[tensor(a, axis)], a.indices[begin(a, axis) :], a.value) for a in stage.assigns
    ]
    return replace(
        stage,
        assigns=(),
        along=tuple(along),
        reduce_axes=tuple(axes),
        procedure=Procedure(tuple(arrays.values()), tuple(puts)),
    )
