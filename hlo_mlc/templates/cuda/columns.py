"""Reductions over leading axes: neighbouring results by neighbouring threads.

    for b block:                        a group of columns
      for w thread, l thread:           warps take every so manyth row, lanes some columns each
        fold the warp's rows in registers
      halve the number of warps that hold results, until the first one has combined all
      results

Few columns are cut into chunks of rows, which are combined at the end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hlo_mlc.expr import build, index
from hlo_mlc.expr.build import variable
from hlo_mlc.expr.combiner import Combiner
from hlo_mlc.expr.core import Buffer, Expr, Load, Var
from hlo_mlc.expr.dtypes import INDEX
from hlo_mlc.loops.core import Accumulate, For, LoopKind, Stmt, Store
from hlo_mlc.loops.lower import stores_at
from hlo_mlc.loops.rewrite import allocated, loop, when
from hlo_mlc.target.cuda import WARP, CudaTarget
from hlo_mlc.templates.base import Parameters, Scheduled
from hlo_mlc.templates.cuda.base import (
    at,
    below,
    equals,
    flat,
    lanes,
    power_of_two,
    product,
    thread_loop,
    vector_width,
    why_not_in_parts,
)
from hlo_mlc.tensor.chunks import fold_in_chunks
from hlo_mlc.tensor.classify import walks_columns, why_not_folded
from hlo_mlc.tensor.coalesce import coalesce
from hlo_mlc.tensor.combine import merging
from hlo_mlc.tensor.core import Nest, Stage

# Groups of columns below which rows are cut, the blocks that there are then about, and the rows
# that a chunk has at least.  Results must not depend on the GPU at hand.
FEW_GROUPS, BLOCKS, CHUNK_ROWS = 64, 256, 256


def why_not_columns(nest: Nest) -> str:
    """Why a nest is not a reduction over leading axes; empty where it is."""
    if len(nest.stages) != 1:
        return "several stages"
    stage = nest.stages[0]
    if not walks_columns(stage):
        return "its terms, not its results, are neighbours in memory"
    return why_not_folded(stage) or why_not_in_parts(stage, stage.reduce_axes)


@dataclass(frozen=True, slots=True)
class ColumnsTemplate:
    """A warp's rows in registers, warps combined in shared memory."""

    name: str = "columns"

    def refusal(self, nest: Nest, target: CudaTarget) -> str:
        """Why the nest is not a reduction over leading axes; empty where it is."""
        return why_not_columns(nest)

    def space(self, nest: Nest, target: CudaTarget) -> dict[str, tuple[int, ...]]:
        """Warps of a block, chunks of rows."""
        return {"warps": (1, 4, 8, 16), "chunks": (1, 4, 32)}

    def default(self, nest: Nest, target: CudaTarget) -> Parameters:
        """Rows enough for each warp; chunks where there are few groups of columns."""
        stage = coalesce(nest.stages[0])
        rows, width = product(stage.reduce_axes), _width(stage)
        groups = -(-stage.axes[-1].extent // (WARP * width)) * product(stage.axes[:-1])
        chunks = 1
        if groups < FEW_GROUPS and rows >= 2 * CHUNK_ROWS:
            chunks = min(-(-BLOCKS // groups), stage.reduce_axes[0].extent,
                         max(1, rows // CHUNK_ROWS))
        return {"warps": min(8, power_of_two(-(-rows // (4 * chunks)))), "chunks": chunks}

    def apply(self, nest: Nest, parameters: Parameters, outer: LoopKind) -> Scheduled:
        """The loops for the given parameters."""
        stage = coalesce(nest.stages[0])
        warps, chunks = parameters["warps"], parameters["chunks"]
        # Partial results of the chunks are told apart by the terms that went into them.
        merged = merging(stage.combiner, stage.terms, stage.reduce_axes)
        if chunks <= 1 or chunks > stage.reduce_axes[0].extent:
            return Scheduled(_columns(stage, merged, warps, outer), ())
        first, second, partial = fold_in_chunks(stage, chunks)
        last = min(8, power_of_two(-(-chunks // 4)))
        return Scheduled((*_columns(first, merged, warps, outer),
                          *_columns(second, merged, last, outer)), partial)


def _width(stage: Stage) -> int:
    return vector_width(stage, stage.axes[-1])


def _columns(stage: Stage, merged: Combiner, warps: int, outer: LoopKind) -> tuple[Stmt, ...]:
    """The loops of one reduction, whose partial results `merged` combines."""
    groups = -(-stage.axes[-1].extent // (WARP * _width(stage))) * product(stage.axes[:-1])
    block = _Block(stage, merged, warps, Var(f"{stage.name}_b", INDEX, groups))
    return (For(block.number, index.constant(groups), outer, block.body()),)


class _Block:
    """What one block does: fold the rows of a group of columns, warp by warp, and combine them."""

    def __init__(self, stage: Stage, merged: Combiner, warps: int, number: Var) -> None:
        self.number = number
        self._stage, self._merged, self._width = stage, merged, _width(stage)
        self._warp = variable(f"{stage.name}_w", warps)
        self._lane = variable(f"{stage.name}_l", WARP)
        self._registers = self._partial_results("part", "thread")
        self._shared = self._partial_results("all", "shared")
        groups = -(-stage.axes[-1].extent // (WARP * self._width))
        self._here = at(index.floordiv(number, groups), stage.axes[:-1])
        self._first = index.multiply(
            flat((index.floormod(number, groups), groups), (self._lane, WARP)),
            index.constant(self._width))

    def _partial_results(self, kind: str, scope: str) -> tuple[Buffer, ...]:
        shape = (self._warp.extent, WARP, self._width)
        return tuple(Buffer(f"{self._stage.name}_{n}_{kind}", v.dtype, shape, scope)
                     for n, v in enumerate(self._stage.accumulators))

    def body(self) -> tuple[Stmt, ...]:
        warps = self._warp.extent
        rows = -(-product(self._stage.reduce_axes) // warps)
        fold = loop(f"{self._stage.name}_o", rows, LoopKind.SERIAL, self._row)
        whole_warps = thread_loop(self._warp, (thread_loop(self._lane, (
            *self._vector(self._begin), fold, *self._vector(self._keep))),))
        halves = [warps >> n for n in range(1, warps.bit_length())]
        body: tuple[Stmt, ...] = (
            whole_warps, *map(self._join, halves), self._within(self._finish, 1))
        return allocated(reversed((*self._registers, *self._shared)), body)

    def _vector(self, each: Callable[[Expr], tuple[Stmt, ...]]) -> tuple[Stmt, ...]:
        return lanes(f"{self._stage.name}_v", self._width, each)

    def _within(self, each: Callable[[Expr], tuple[Stmt, ...]], warps: int) -> For:
        """`each(lane of the vector)` for the columns there are, by the first so many warps."""
        inside = when(below(self._first, self._stage.axes[-1].extent), self._vector(each))
        return thread_loop(self._warp, (thread_loop(self._lane, inside),), warps)

    def _places(self, v: Expr) -> tuple[Expr, ...]:
        return self._warp, self._lane, v

    def _column(self, v: Expr) -> dict[Var, Expr]:
        return {**self._here, self._stage.axes[-1]: index.add(self._first, v)}

    def _begin(self, v: Expr) -> tuple[Stmt, ...]:
        """The first warp starts from the initial values, the others from the combiner's."""
        stage = self._stage
        return tuple(
            Store(b, self._places(v), build.apply(
                "select", equals(self._warp, 0), build.substitute(e, self._column(v)), neutral))
            for b, e, neutral in zip(self._registers, stage.initial, stage.combiner.identity,
                                     strict=True))

    def _row(self, o: Expr) -> tuple[Stmt, ...]:
        stage = self._stage
        row = flat((o, 1), (self._warp, self._warp.extent))

        def step(v: Expr) -> tuple[Stmt, ...]:
            place = {**self._column(v), **at(row, stage.reduce_axes)}
            terms = tuple(build.substitute(t, place) for t in stage.terms)
            return (Accumulate(self._registers, self._places(v), stage.combiner, terms),)

        inside = build.all_of(below(row, product(stage.reduce_axes)),
                              below(self._first, stage.axes[-1].extent))
        return when(inside, self._vector(step))

    def _keep(self, v: Expr) -> tuple[Stmt, ...]:
        return tuple(Store(s, self._places(v), Load(r, self._places(v)))
                     for s, r in zip(self._shared, self._registers, strict=True))

    def _join(self, half: int) -> For:
        """The first half of the warps adds what the second one has."""
        partner = index.add(self._warp, index.constant(half))
        return self._within(lambda v: (Accumulate(
            self._shared, self._places(v), self._merged,
            tuple(Load(s, (partner, self._lane, v)) for s in self._shared)),), half)

    def _finish(self, v: Expr) -> tuple[Stmt, ...]:
        values = {a: Load(s, self._places(v))
                  for a, s in zip(self._stage.accumulators, self._shared, strict=True)}
        return stores_at(self._stage.assigns, {**self._column(v), **values})
