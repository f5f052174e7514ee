"""Small tensors of a batch, written out: what is computed of each of them stands in one lane.

    parallel block of tensors
      tiles in
      for lane: written out, from the rows of tiles to the rows of others
      tiles out

What is written out is there once.
"""

from __future__ import annotations

from dataclasses import dataclass

from hlo_mlc.expr import index
from hlo_mlc.expr.build import load, substitute, transform
from hlo_mlc.expr.core import Buffer, Expr, loads
from hlo_mlc.loops.core import Stmt, Store
from hlo_mlc.target.cpu import CpuTarget
from hlo_mlc.templates.base import Fixed, Parameters, Scheduled
from hlo_mlc.templates.lane_tiles import (
    LaneBlocks,
    begin,
    tensor,
    tiles_for,
    width_for,
)
from hlo_mlc.tensor.classify import is_injective, is_map, is_written_out
from hlo_mlc.tensor.coalesce import coalesce
from hlo_mlc.tensor.core import Nest, Stage


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
        if len(stage.axes) > 1 or any(begin(a, axis) is None for a in stage.assigns) \
                or not is_written_out(stage):
            return "no tensors one after the other, written out"
        if len({tensor(a, axis) for a in stage.assigns}) > len(stage.outputs):
            return "elements that lie apart, each beside those of the next tensor"
        stored = {(a.buffer, tuple(a.indices)) for a in stage.assigns}
        if len(stored) < len(stage.assigns) \
                or len(stored) * axis.extent != sum(b.size for b in stage.outputs) \
                or not all(is_injective(a, stage.axes) for a in stage.assigns):
            return "not every element is written once"
        if any(load.guard is not None for group in stage.loads_by_buffer.values()
               for load in group) or any(a.guard is not None for a in stage.assigns):
            return "some elements do not exist"
        if set(stage.inputs) & {*stage.outputs, *stage.overwrites}:
            return "it reads what it overwrites"
        return ""

    def apply(self, nest: Nest, target: CpuTarget, parameters: Parameters) -> Scheduled:
        """The loops."""
        stage = coalesce(nest.stages[0])
        blocks = _blocks(stage, width_for(stage, target))
        return Scheduled(blocks.blocks(nest, lambda first: _computed(stage, blocks, first)), ())


def _blocks(stage: Stage, width: int) -> LaneBlocks:
    axis = stage.axes[-1]
    every = [one for group in stage.loads_by_buffer.values() for one in group
             if any(axis in i.free for i in one.indices)]
    nested = {inner for one in every for i in one.indices for inner in loads(i)}
    known = {one for one in every if begin(one, axis) is not None}
    alone = [one for one in every if one not in known and one not in nested]
    single = tuple((one, Buffer(f"{stage.name}_one{k}", one.dtype, (width,), "stack"))
                   for k, one in enumerate(alone))
    return LaneBlocks(axis, width, tiles_for(stage, "in", [one for one in every if one in known],
                                             width),
                      tiles_for(stage, "out", stage.assigns, width), single)


def _computed(stage: Stage, blocks: LaneBlocks, first: Expr) -> tuple[Stmt, ...]:
    """All of a lane, of what is in tiles, into tiles."""
    rows = {t.source: t for t in blocks.written}
    tiles = {(t.source, t.leading): t for t in blocks.read}

    def element(lane: Expr) -> tuple[Stmt, ...]:
        known = {node: load(buffer, (lane,)) for node, buffer in blocks.single}
        moved = [(a, transform(a.value, lambda node: blocks.near(node, lane, tiles), known))
                 for a in stage.assigns]
        here, done = {blocks.axis: index.add(first, lane)}, {}
        return tuple(Store(rows[a.buffer].buffer, (*rows[a.buffer].row(a), lane),
                           substitute(value, here, done)) for a, value in moved)

    return blocks.lanes(element)
