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
from hlo_mlc.expr.combiner import Combiner
from hlo_mlc.expr.core import Buffer, Expr, Load, Var
from hlo_mlc.expr.dtypes import INDEX
from hlo_mlc.loops.core import Accumulate, Allocate, For, LoopKind, Stmt, Store
from hlo_mlc.loops.rewrite import loop
from hlo_mlc.target.cuda import WARP, CudaTarget
from hlo_mlc.templates.base import Parameters, Scheduled
from hlo_mlc.templates.columns import in_chunks
from hlo_mlc.templates.cuda.base import (
    at,
    below,
    equals,
    flat,
    lanes,
    power_of_two,
    product,
    store,
    thread_loop,
    thread_var,
    vector_width,
    where,
)
from hlo_mlc.tensor.classify import walks_columns
from hlo_mlc.tensor.coalesce import coalesce
from hlo_mlc.tensor.combine import merging
from hlo_mlc.tensor.core import Nest, Stage

# Groups of columns below which rows are cut, the blocks that there are then about, and the rows
# that a chunk has at least.  Results must not depend on the GPU at hand.
FEW_GROUPS, BLOCKS, CHUNK_ROWS = 64, 256, 256


@dataclass(frozen=True, slots=True)
class ColumnsTemplate:
    """A warp's rows in registers, warps combined in shared memory."""

    name: str = "columns"

    def refusal(self, nest: Nest) -> str:
        """Why the nest is not a reduction over leading axes; empty where it is."""
        if len(nest.stages) != 1:
            return "several stages"
        stage = nest.stages[0]
        if not walks_columns(stage):
            return "its terms, not its results, are neighbours in memory"
        if stage.along or stage.scan is not None:
            return "it stores on the way"
        if any(v.extent == 0 for v in stage.reduce_axes):
            return "an axis without elements"
        if stage.combiner.identity is None:
            return "its combiner has no identity to start from"
        if merging(stage.combiner, stage.terms, stage.reduce_axes) is None:
            return "its combiner takes terms in order"
        return ""

    def space(self, nest: Nest) -> dict[str, tuple[int, ...]]:
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
        first, second, partial = in_chunks(stage, chunks)
        last = min(8, power_of_two(-(-chunks // 4)))
        return Scheduled((*_columns(first, merged, warps, outer),
                          *_columns(second, merged, last, outer)), partial)


def _width(stage: Stage) -> int:
    return vector_width((stage,), (stage.axes,))


def _columns(stage: Stage, merged: Combiner, warps: int, outer: LoopKind) -> tuple[Stmt, ...]:
    """The loops of one reduction, whose partial results `merged` combines."""
    name, width, last = stage.name, _width(stage), stage.axes[-1]
    groups = -(-last.extent // (WARP * width))
    others = product(stage.axes[:-1])
    rows = product(stage.reduce_axes)
    group = Var(f"{name}_b", INDEX, groups * others)
    warp, lane = thread_var(f"{name}_w", warps), thread_var(f"{name}_l", WARP)
    here = at(index.floordiv(group, groups), stage.axes[:-1])
    first = index.multiply(flat((index.floormod(group, groups), groups), (lane, WARP)),
                           index.constant(width))
    registers = tuple(Buffer(f"{name}_{n}_part", v.dtype, (warps, WARP, width), "thread")
                      for n, v in enumerate(stage.accumulators))
    shared = tuple(Buffer(f"{name}_{n}_all", v.dtype, (warps, WARP, width), "shared")
                   for n, v in enumerate(stage.accumulators))

    def threads(body: Callable[[Expr], tuple[Stmt, ...]], count: int = warps) -> For:
        """`body(lane of the vector)` for the columns there are, by the first so many warps."""
        inside = where(below(first, last.extent), lanes(f"{name}_v", width, body))
        return thread_loop(warp, (thread_loop(lane, inside),), count)

    def begin(v: Expr) -> tuple[Stmt, ...]:
        return tuple(
            Store(b, (warp, lane, v), build.apply(
                "select", equals(warp, 0), build.substitute(e, mapping(v)), neutral))
            for b, e, neutral in zip(registers, stage.initial, stage.combiner.identity,
                                     strict=True))

    def mapping(v: Expr) -> dict[Var, Expr]:
        return {**here, last: index.add(first, v)}

    def row(o: Expr) -> tuple[Stmt, ...]:
        position = flat((o, 1), (warp, warps))

        def step(v: Expr) -> tuple[Stmt, ...]:
            place = {**mapping(v), **at(position, stage.reduce_axes)}
            terms = tuple(build.substitute(t, place) for t in stage.terms)
            return (Accumulate(registers, (warp, lane, v), stage.combiner, terms),)

        inside = build.all_of(below(position, rows), below(first, last.extent))
        return where(inside, lanes(f"{name}_v", width, step))

    def keep(v: Expr) -> tuple[Stmt, ...]:
        return tuple(Store(s, (warp, lane, v), Load(r, (warp, lane, v)))
                     for s, r in zip(shared, registers, strict=True))

    def join(half: int) -> For:
        partner = index.add(warp, index.constant(half))
        return threads(lambda v: (Accumulate(
            shared, (warp, lane, v), merged, tuple(Load(s, (partner, lane, v)) for s in shared)),),
            half)

    def finish(v: Expr) -> tuple[Stmt, ...]:
        values = {a: Load(s, (warp, lane, v))
                  for a, s in zip(stage.accumulators, shared, strict=True)}
        return tuple(store(assign, {**mapping(v), **values}) for assign in stage.assigns)

    fold = loop(f"{name}_o", -(-rows // warps), LoopKind.SERIAL, row)
    all_columns = thread_loop(warp, (thread_loop(lane, (
        *lanes(f"{name}_v", width, begin), fold, *lanes(f"{name}_v", width, keep))),))
    halves = [warps >> n for n in range(1, warps.bit_length())]
    body: tuple[Stmt, ...] = (all_columns, *map(join, halves), threads(finish, 1))
    for buffer in (*registers, *shared):
        body = (Allocate(buffer, body),)
    return (For(group, index.constant(groups * others), outer, body),)

