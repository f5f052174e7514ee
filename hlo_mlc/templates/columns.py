"""Reductions over leading axes: neighbouring results side by side, row after row.

    parallel block of columns:
      accumulators[columns of the block] in registers
      for each row: accumulators[:] = combine(accumulators[:], row[:])
      results

Column sums, argmax over the first axis, and a vector times a matrix.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from hlo_mlc.expr import index
from hlo_mlc.expr.build import load, substitute
from hlo_mlc.expr.core import Buffer, Expr, Var
from hlo_mlc.loops.core import Accumulate, Allocate, For, If, LoopKind, Prefetch, Stmt, Store
from hlo_mlc.target.cpu import CpuTarget
from hlo_mlc.templates.base import (
    SERIAL_WORK,
    TASK_WORK,
    Parameters,
    Scheduled,
    across,
    decoded,
    lanes,
    shared_out,
    work,
)
from hlo_mlc.tensor.access import masked
from hlo_mlc.tensor.classify import stride, walks_columns
from hlo_mlc.tensor.coalesce import coalesce
from hlo_mlc.tensor.core import Assign, Nest, Stage

# Vectors of accumulators: what a register file of 32 holds next to the terms being computed.
ACCUMULATORS = 16
# With fewer full blocks of columns than this, rows are cut into chunks.  Not a matter of how many
# cores there are: results must not depend on that.
FEW_BLOCKS = 4
# Rows by which arrays that are so many times larger than the second level are fetched ahead: a
# vector by 1000 x 4100 and 4096 square ran 1.3 to 1.6 times as fast.
AHEAD, FAR = 8, 4


@dataclass(frozen=True, slots=True)
class ColumnsTemplate:
    """Register-blocked reduction over leading axes."""

    name: str = "columns"

    def refusal(self, nest: Nest, target: CpuTarget) -> str:
        """Why the nest is not a reduction over leading axes; empty where it is."""
        if len(nest.stages) != 1:
            return "several stages"
        stage = nest.stages[0]
        if not walks_columns(stage):
            return "its terms, not its results, are neighbours in memory"
        if stage.along:
            return "it stores on the way"
        if any(v.extent == 0 for v in stage.reduce_axes):
            return "an axis without elements"
        return ""

    def space(self, nest: Nest, target: CpuTarget) -> dict[str, tuple[int, ...]]:
        """Vectors per block of columns, chunks of rows, and rows that are fetched ahead."""
        return {"vectors": (1, 2, 4, 8, 16), "chunks": (1, 4, 16), "ahead": (0, 4, 8, 16)}

    def default(self, nest: Nest, target: CpuTarget) -> Parameters:
        """As many accumulators as registers hold; rows in chunks where columns are few."""
        stage = coalesce(nest.stages[0])
        width = lanes((stage,), target)
        most = ACCUMULATORS if target.registers >= 32 else ACCUMULATORS // 2
        vectors = max(1, min(most // len(stage.accumulators), -(-stage.axes[-1].extent // width)))
        blocks = -(-stage.axes[-1].extent // (vectors * width))
        tasks = blocks * math.prod(v.extent for v in stage.axes[:-1])
        total, rows = work(nest), stage.reduce_axes[0].extent
        if total > SERIAL_WORK and tasks < 2 * target.cores:
            wanted = -(-2 * target.cores // tasks)
            vectors = max(min(vectors, 4), vectors // wanted)
        chunks = 1
        few = blocks * math.prod(v.extent for v in stage.axes[:-1]) < FEW_BLOCKS
        if total > SERIAL_WORK and few and stage.combiner.identity is not None:
            chunks = max(1, min(16, total // TASK_WORK, rows // 16))
        far = any(b.bytes > FAR * target.l2_bytes for b in stage.inputs)
        return {"vectors": vectors, "chunks": chunks, "ahead": AHEAD if far else 0}

    def apply(self, nest: Nest, target: CpuTarget, parameters: Parameters) -> Scheduled:
        """The loops for the given parameters."""
        stage = coalesce(nest.stages[0])
        width = lanes((stage,), target)
        chunks, rows = parameters["chunks"], stage.reduce_axes[0].extent
        if chunks <= 1 or chunks > rows or stage.combiner.identity is None:
            return Scheduled(fold_columns(stage, width, parameters["vectors"], work(nest),
                                          parameters["ahead"]), ())
        first, second, partial = in_chunks(stage, chunks)
        body = (*fold_columns(first, width, parameters["vectors"], work(nest), parameters["ahead"]),
                *fold_columns(second, width, parameters["vectors"], 0))
        return Scheduled(body, partial)


def in_chunks(stage: Stage, chunks: int) -> tuple[Stage, Stage, tuple[Buffer, ...]]:
    """Two stages: partial results of `chunks` equal runs of rows, the last terms guarded; and
    their combination."""
    long = stage.reduce_axes[0]
    size = -(-long.extent // chunks)
    chunk = Var(f"{long.name}_c", long.dtype, chunks)
    within = Var(f"{long.name}_w", long.dtype, size)
    row = index.add(index.multiply(chunk, index.constant(size)), within)
    shape = tuple(v.extent for v in stage.axes)
    partial = tuple(Buffer(f"{stage.name}_{v.name}_part", v.dtype, (chunks, *shape))
                    for v in stage.accumulators)
    place = {long: row}
    terms = tuple(substitute(t, place) for t in stage.terms)
    if chunks * size > long.extent:
        inside = index.compare("lt", row, index.constant(long.extent))
        terms = tuple(masked(t, inside, neutral) for t, neutral in
                      zip(terms, stage.combiner.identity, strict=True))
    first = Stage(f"{stage.name}_chunks", (chunk, *stage.axes), tuple(
        Assign(b, (chunk, *stage.axes), v)
        for b, v in zip(partial, stage.accumulators, strict=True)),
        (within, *stage.reduce_axes[1:]), stage.combiner, terms, stage.combiner.identity,
        stage.accumulators)
    part = Var(f"{long.name}_p", long.dtype, chunks)
    second = Stage(f"{stage.name}_combine", stage.axes, stage.assigns, (part,), stage.combiner,
                   tuple(load(b, (part, *stage.axes)) for b in partial), stage.initial,
                   stage.accumulators)
    return first, second, partial


def fold_columns(stage: Stage, width: int, vectors: int, total: int, ahead: int = 0
                 ) -> tuple[Stmt, ...]:
    """The loops of one reduction; parallel over blocks where `total` work is worth it.

    `ahead`: rows by which it asks for what it reads.
    """
    last = stage.axes[-1]
    block = width * vectors
    whole, rest = divmod(last.extent, block)
    count = whole + (rest > 0)
    outer = stage.axes[:-1]
    name = last.name
    rows = [(x, stride(x, stage.reduce_axes[-1])) for group in stage.loads_by_buffer.values()
            for x in group if x.guard is None and stride(x, last) == 1]
    fetch = [(x, apart) for x, apart in rows if ahead and apart]

    def columns(mapping: dict[Var, Expr], start: Expr, size: int) -> tuple[Stmt, ...]:
        padded = -(-size // width) * width
        registers = tuple(Buffer(f"{stage.name}.{v.name}_{size}", v.dtype, (padded,), "register")
                          for v in stage.accumulators)

        def at(column: Expr) -> dict[Var, Expr]:
            return {**mapping, last: index.add(start, column)}

        def begin(c: Expr) -> tuple[Stmt, ...]:
            return tuple(Store(b, (c,), substitute(e, at(c)))
                         for b, e in zip(registers, stage.initial, strict=True))

        def step(c: Expr) -> tuple[Stmt, ...]:
            terms = tuple(substitute(t, at(c)) for t in stage.terms)
            fetched = tuple(Prefetch(x.source, tuple(substitute(i, at(c)) for i in x.indices),
                                     ahead * apart) for x, apart in fetch)
            return (*fetched, Accumulate(registers, (c,), stage.combiner, terms))

        def finish(c: Expr) -> tuple[Stmt, ...]:
            where = {**at(c), **{v: load(b, (c,)) for v, b in
                                 zip(stage.accumulators, registers, strict=True)}}
            return tuple(Store(a.buffer, tuple(substitute(i, where) for i in a.indices),
                               substitute(a.value, where)) for a in stage.assigns)

        fold = across(f"{name}_f", size, width, step)
        for axis in reversed(stage.reduce_axes):
            fold = (For(axis, index.constant(axis.extent), LoopKind.SERIAL, fold),)
        body: tuple[Stmt, ...] = (*across(f"{name}_z", size, width, begin), *fold,
                                  *across(f"{name}_s", size, width, finish))
        for buffer in reversed(registers):
            body = (Allocate(buffer, body),)
        return body

    def task(t: Expr) -> tuple[Stmt, ...]:
        number = index.floormod(t, count)
        mapping = decoded(outer, index.floordiv(t, count))
        start = index.multiply(number, index.constant(block))
        if not rest:
            return columns(mapping, start, block)
        short = columns(mapping, index.constant(whole * block), rest)
        if not whole:
            return short
        return (If(index.compare("lt", number, index.constant(whole)),
                   columns(mapping, start, block), short),)

    tasks = count * math.prod(v.extent for v in outer)
    return shared_out(name, tasks, total, task)
