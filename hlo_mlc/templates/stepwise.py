"""Small tensors of a batch, gone through step by step: a procedure whose numbers are vectors, an
array of lanes for each of its arrays.

    parallel block of tensors
      tiles in
      for step, row, column: for lane: array[row, column, 16 tensors] = …
      tiles out

An array that is only filled with what is read, or becomes a result as it is, is that tile itself:
what is worked on stays in the first cache.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from hlo_mlc.expr import index
from hlo_mlc.expr.build import load, substitute, transform
from hlo_mlc.expr.core import Buffer, Expr, Load, Var
from hlo_mlc.expr.procedure import Count, Move, Procedure, Put
from hlo_mlc.loops.core import For, LoopKind, Stmt, Store
from hlo_mlc.loops.lower import procedure_loops
from hlo_mlc.target.cpu import CpuTarget
from hlo_mlc.templates.base import Fixed, Parameters, Scheduled
from hlo_mlc.templates.lane_tiles import LaneBlocks, Tile, begin, tensor, tiles_for, width_for
from hlo_mlc.tensor.coalesce import coalesce
from hlo_mlc.tensor.core import Assign, Nest, Stage

# Bytes between rows: addresses are first compared by their last twelve bits.  With such rows,
# eigenvectors of 16 square took two and a half times as long, and twice in f64.
_SEEMS_NEAR = 1024


@dataclass(frozen=True, slots=True)
class StepwiseTemplate(Fixed):
    """Blocks of tensors, each with a lane, a procedure for all of them."""

    name: str = "stepwise"

    def refusal(self, nest: Nest, target: CpuTarget) -> str:
        """Why the nest is no procedure for each point of one axis; empty where it is."""
        if len(nest.stages) != 1 or nest.stages[0].procedure is None or not nest.stages[0].axes:
            return "no procedure at several points"
        stage = coalesce(nest.stages[0])
        if len(stage.axes) > 1 or any(begin(a, stage.axes[0]) is None for a in stage.along):
            return "no tensors one after the other"
        if not all(_is_whole(a, stage) for a in stage.along):
            return "not every element is written once"
        if set(stage.inputs) & {*stage.outputs, *stage.overwrites}:
            return "it reads what it overwrites"
        return ""

    def apply(self, nest: Nest, target: CpuTarget, parameters: Parameters) -> Scheduled:
        """The loops."""
        stage = coalesce(nest.stages[0])
        steps = _Steps.of(stage, width_for(stage, target))
        return Scheduled(steps.blocks.blocks(nest, steps.loops, steps.arrays.values()), ())


def _is_whole(assign: Assign, stage: Stage) -> bool:
    inner = [v for v in stage.reduce_axes if v in assign.indices]
    points = math.prod(v.extent for v in (*stage.axes, *inner))
    return assign.guard is None and points == assign.buffer.size


@dataclass(frozen=True, slots=True)
class _Steps:
    """The loops of a procedure, and its arrays with lanes."""

    procedure: Procedure
    stores: tuple[tuple[Assign, Tile], ...]  # of what is in another place than its tile
    inner: tuple[Expr, ...]
    blocks: LaneBlocks
    arrays: dict[Buffer, Buffer]

    @staticmethod
    def of(stage: Stage, width: int) -> _Steps:
        """Those of a stage over one axis."""
        (axis,), procedure = stage.axes, stage.procedure
        arrays = {b: Buffer(f"{stage.name}_{b.name}", b.dtype, _padded(b, width), "stack")
                  for b in procedure.arrays}
        every = [one for group in stage.loads_by_buffer.values() for one in group
                 if _is_tensor(one, axis)]
        written, stores = [], []
        for assign, tile in zip(stage.along, (
                tiles_for(stage, "out", [a], width)[0] for a in stage.along), strict=True):
            array = _handed_on(assign, axis)
            if array is None or any(array is t.buffer for t in written):
                tile = replace(tile, buffer=replace(
                    tile.buffer, name=f"{tile.buffer.name}_{len(stores)}"))
                stores.append((assign, tile))
            else:
                tile = replace(tile, buffer=arrays[array])
            written.append(tile)
        read, body = [], list(procedure.body)
        for tile in tiles_for(stage, "in", every, width):
            users = [one for one in every if tensor(one, axis) == (tile.source, tile.leading)]
            if len(users) == 1 and (move := _copy(body, users[0], tile)) is not None:
                tile = replace(tile, buffer=arrays[_filled(move)])
                body.remove(move)
            read.append(tile)
        return _Steps(Procedure(procedure.arrays, tuple(body)), tuple(stores), stage.reduce_axes,
                      LaneBlocks(axis, width, tuple(read), tuple(written)), arrays)

    def loops(self, first: Expr) -> tuple[Stmt, ...]:
        """What is done between filling tiles and storing them, for tensors from `first` on."""
        tiles = {(t.source, t.leading): t for t in self.blocks.read}

        def put(puts: Sequence[Put]) -> tuple[Stmt, ...]:
            return self.blocks.lanes(lambda lane: tuple(
                Store(self.arrays[p.array], (*p.indices, lane),
                      self._near(p.value, first, lane, tiles)) for p in puts))

        body = procedure_loops(self.procedure.body, put)
        for a, tile in self.stores:
            stored = self.blocks.lanes(lambda lane, a=a, tile=tile: (Store(
                tile.buffer, (*tile.row(a), lane), self._near(a.value, first, lane, tiles)),))
            for v in reversed([v for v in self.inner if v in a.indices]):
                stored = (For(v, index.constant(v.extent), LoopKind.SERIAL, stored),)
            body += stored
        return body

    def _near(self, value: Expr, first: Expr, lane: Expr, tiles: dict) -> Expr:
        def near(node: Expr) -> Expr | None:
            if isinstance(node, Load) and node.source in self.arrays:
                return load(self.arrays[node.source], (*node.indices, lane))
            return self.blocks.near(node, lane, tiles)

        point, extent = index.add(first, lane), self.blocks.axis.extent
        if extent % self.blocks.width:
            point = index.minimum(point, index.constant(extent - 1))
        return substitute(transform(value, near), {self.blocks.axis: point})


def _is_tensor(read: Load, axis: Var) -> bool:
    """Whether what is read is in a tensor of its own along `axis`, whichever step reads it."""
    return begin(read, axis) is not None and all(
        i.free <= {axis} for i in tensor(read, axis)[1])


def _padded(array: Buffer, width: int) -> tuple[int, ...]:
    """The shape of an array with lanes: its rows do not lie so far apart that a load seems to meet
    what has been stored a few rows before."""
    if len(array.shape) < 2:
        return (*array.shape, width)
    rows, columns, *rest = array.shape
    apart = columns * math.prod(rest) * width * array.dtype.bytes
    return (rows, columns + (apart % _SEEMS_NEAR == 0), *rest, width)


def _handed_on(assign: Assign, axis: Var) -> Buffer | None:
    """The array that becomes a result as it is; None where it does not."""
    value, place = assign.value, assign.indices[begin(assign, axis):]
    return value.source if value.indices == place else None


def _copy(body: Sequence[Move], read: Load, tile: Tile) -> Move | None:
    """The step that fills an array with what is read and nothing else, as it lies in memory, before
    which nothing is done; None where there is none."""
    for move in body:
        inner, extents = move, []
        while isinstance(inner, Count) and len(inner.body) == 1:
            extents.append(inner.extent)
            (inner,) = inner.body
        if not isinstance(inner, Put) or not isinstance(inner.value, Load):
            return None
        shape = inner.array.shape
        if inner.value is read and read.indices[len(tile.leading):] == inner.indices \
                and shape == tile.source.shape[len(tile.leading):] \
                and extents == [index.constant(n) for n in shape if n > 1]:
            return move
    return None


def _filled(move: Move) -> Buffer:
    while isinstance(move, Count):
        (move,) = move.body
    return move.array
