"""Reductions over leading axes: neighbouring results side by side, row after row.

    parallel block of columns:
      accumulators[columns of the block] in registers
      for each row: accumulators[:] = combine(accumulators[:], row[:])
      results

Column sums, argmax over the first axis, and a vector times a matrix.  Of arrays that come from
memory, a few whole rows are read at a time and the accumulators wait in L1: memory is fastest page
by page.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from hlo_mlc.expr import index
from hlo_mlc.expr.build import load, substitute
from hlo_mlc.expr.core import Buffer, Expr, Load, Var
from hlo_mlc.loops.core import Accumulate, Allocate, For, If, LoopKind, Prefetch, Stmt, Store
from hlo_mlc.loops.rewrite import loop
from hlo_mlc.schedule.cascade import in_runs
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
from hlo_mlc.tensor.chunks import fold_in_chunks
from hlo_mlc.tensor.classify import stride, walks_columns
from hlo_mlc.tensor.coalesce import coalesce
from hlo_mlc.tensor.core import Nest, Stage

Body = tuple[Stmt, ...]
At = Mapping[Var, Expr]

# Vectors of accumulators: what a register file of 32 holds next to the terms being computed.
ACCUMULATORS = 16
# With fewer full blocks of columns than this, rows are cut into chunks.  Not a matter of how many
# cores there are: results must not depend on that.
FEW_BLOCKS = 4
# Arrays so many times larger than the second level come from memory: rows by which they are fetched
# ahead (a vector by 1000 x 4100 and 4096 square ran 1.3 to 1.6 times as fast), or rows that are
# read at a time where they have more columns than registers hold (twice as fast again; 8 are as
# good as 4).
FAR, AHEAD, ROWS = 4, 8, 4
# Blocks of columns are so many times wider where accumulators wait in L1: 16 KiB of them.
WIDER = 16
# Tasks that a large array makes if nothing else does; not a matter of how many cores there are.
CHUNKS = 16


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
        """Vectors per block of columns, chunks of rows, rows fetched ahead, and rows at a time."""
        return {"vectors": (1, 2, 4, 8, 16), "chunks": (1, 4, 16), "ahead": (0, 4, 8, 16),
                "rows": (1, 2, 4, 8)}

    def default(self, nest: Nest, target: CpuTarget) -> Parameters:
        """As many accumulators as registers hold; rows in chunks where columns are few."""
        stage = coalesce(nest.stages[0])
        width = lanes((stage,), target)
        most = ACCUMULATORS if target.registers >= 32 else ACCUMULATORS // 2
        vectors = max(1, min(most // len(stage.accumulators), -(-stage.axes[-1].extent // width)))
        blocks = -(-stage.axes[-1].extent // (vectors * width))
        outer = math.prod(v.extent for v in stage.axes[:-1])
        tasks = blocks * outer
        total, rows = work(nest), stage.reduce_axes[0].extent
        if total > SERIAL_WORK and tasks < 2 * target.cores:
            wanted = -(-2 * target.cores // tasks)
            vectors = max(min(vectors, 4), vectors // wanted)
        chunks = 1
        if total > SERIAL_WORK and tasks < FEW_BLOCKS and stage.combiner.identity is not None:
            chunks = max(1, min(16, total // TASK_WORK, rows // 16))
        if not any(b.bytes > FAR * target.l2_bytes for b in stage.inputs):
            return {"vectors": vectors, "chunks": chunks, "ahead": 0, "rows": 1}
        if blocks == 1 or stage.combiner.identity is None:
            return {"vectors": vectors, "chunks": chunks, "ahead": AHEAD, "rows": 1}
        vectors = max(1, ACCUMULATORS // len(stage.accumulators))
        tasks = -(-stage.axes[-1].extent // (vectors * width * WIDER)) * outer
        chunks = max(1, min(-(-CHUNKS // tasks), rows // ROWS))
        return {"vectors": vectors, "chunks": chunks, "ahead": 0, "rows": ROWS}

    def apply(self, nest: Nest, target: CpuTarget, parameters: Parameters) -> Scheduled:
        """The loops for the given parameters."""
        stage = coalesce(nest.stages[0])
        width = lanes((stage,), target)
        chunks, rows = parameters["chunks"], stage.reduce_axes[0].extent
        if chunks <= 1 or chunks > rows or stage.combiner.identity is None:
            return Scheduled(_Columns.of(stage, width, parameters).build(work(nest)), ())
        first, second, partial = fold_in_chunks(stage, chunks)
        combine = {**parameters, "ahead": 0, "rows": 1}
        body = (*_Columns.of(first, width, parameters).build(work(nest)),
                *_Columns.of(second, width, combine).build(0))
        return Scheduled(body, partial)


@dataclass(frozen=True, slots=True)
class _Columns:
    """The loops of one reduction.

    `fetch`: what is asked for some rows ahead, and how far that is; `rows`: read at a time.
    """

    stage: Stage
    width: int
    block: int
    rows: int
    fetch: tuple[tuple[Load, int], ...]

    @staticmethod
    def of(stage: Stage, width: int, parameters: Parameters) -> _Columns:
        """The builder for given parameters."""
        rows, ahead, last = parameters["rows"], parameters["ahead"], stage.axes[-1]
        apart = [(x, stride(x, stage.reduce_axes[-1])) for group in stage.loads_by_buffer.values()
                 for x in group if x.guard is None and stride(x, last) == 1]
        block = width * parameters["vectors"]
        if rows > 1:  # blocks of nearly the same width, so that none is left with a few columns
            blocks = max(1, round(last.extent / (WIDER * block)))
            block = -(-last.extent // (blocks * width)) * width
        return _Columns(stage, width, block, rows,
                        tuple((x, ahead * elements) for x, elements in apart if ahead and elements))

    def build(self, total: int) -> Body:
        """All blocks of columns; in parallel where `total` work is worth it."""
        last, outer = self.stage.axes[-1], self.stage.axes[:-1]
        whole, rest = divmod(last.extent, self.block)
        count = whole + (rest > 0)

        def task(t: Expr) -> Body:
            number = index.floormod(t, count)
            mapping = decoded(outer, index.floordiv(t, count))
            start = index.multiply(number, index.constant(self.block))
            if not rest:
                return self._columns(mapping, start, self.block)
            short = self._columns(mapping, index.constant(whole * self.block), rest)
            if not whole:
                return short
            return (If(index.compare("lt", number, index.constant(whole)),
                       self._columns(mapping, start, self.block), short),)

        return in_runs(shared_out(
            last.name, count * math.prod(v.extent for v in outer), total, task))

    def _columns(self, mapping: At, start: Expr, size: int) -> Body:
        """The results of `size` columns."""
        stage, name = self.stage, self.stage.axes[-1].name
        in_l1 = self.rows > 1
        kind = LoopKind.SERIAL if in_l1 else LoopKind.UNROLL
        padded = -(-size // self.width) * self.width
        folded = tuple(Buffer(f"{stage.name}.{v.name}_{size}", v.dtype, (padded,),
                              "stack" if in_l1 else "register") for v in stage.accumulators)

        def at(column: Expr) -> At:
            return {**mapping, stage.axes[-1]: index.add(start, column)}

        def begin(c: Expr) -> Body:
            return tuple(Store(b, (c,), substitute(e, at(c)))
                         for b, e in zip(folded, stage.initial, strict=True))

        def finish(c: Expr) -> Body:
            where = {**at(c), **{v: load(b, (c,)) for v, b in
                                 zip(stage.accumulators, folded, strict=True)}}
            return tuple(Store(a.buffer, tuple(substitute(i, where) for i in a.indices),
                               substitute(a.value, where)) for a in stage.assigns)

        def step(c: Expr, row: At) -> Body:
            where = {**at(c), **row}
            fetched = tuple(Prefetch(x.source, tuple(substitute(i, where) for i in x.indices), far)
                            for x, far in self.fetch)
            return (*fetched, Accumulate(folded, (c,), stage.combiner,
                                         tuple(substitute(t, where) for t in stage.terms)))

        fold = self._rows_at_a_time(size, folded, at) if in_l1 else (
            For(stage.reduce_axes[-1], index.constant(stage.reduce_axes[-1].extent),
                LoopKind.SERIAL, across(f"{name}_f", size, self.width, lambda c: step(c, {}))),)
        for axis in reversed(stage.reduce_axes[:-1]):
            fold = (For(axis, index.constant(axis.extent), LoopKind.SERIAL, fold),)
        body = (*across(f"{name}_z", size, self.width, begin, kind), *fold,
                *across(f"{name}_s", size, self.width, finish, kind))
        for buffer in reversed(folded):
            body = (Allocate(buffer, body),)
        return body

    def _rows_at_a_time(self, size: int, folded: Sequence[Buffer], at: Callable[[Expr], At]
                        ) -> Body:
        """Vector after vector of some rows, of which the accumulators are in registers."""
        stage, name, long = self.stage, self.stage.axes[-1].name, self.stage.reduce_axes[-1]
        whole, rest = divmod(long.extent, self.rows)
        registers = tuple(replace(b, name=f"{b.name}_r", shape=(self.width,), scope="register")
                          for b in folded)

        def vectors(first: Expr, rows: int) -> Body:
            def vector(c: Expr) -> Body:
                lane = index.floormod(c, self.width)
                terms = (tuple(substitute(t, {**at(c), long: index.add(first, index.constant(u))})
                               for t in stage.terms) for u in range(rows))
                adds = (Accumulate(registers, (lane,), stage.combiner, t) for t in terms)
                if stage.combiner.identity is not None:
                    begin = (Store(r, (lane,), e) for r, e in zip(
                        registers, stage.combiner.identity, strict=True))
                    return (*begin, *adds, Accumulate(folded, (c,), stage.combiner, tuple(
                        load(r, (lane,)) for r in registers)))
                pairs = tuple(zip(folded, registers, strict=True))
                return (*(Store(r, (lane,), load(b, (c,))) for b, r in pairs), *adds,
                        *(Store(b, (c,), load(r, (lane,))) for b, r in pairs))

            return across(f"{name}_f", size, self.width, vector, LoopKind.SERIAL)

        body: Body = (loop(f"{long.name}_rows", whole, LoopKind.SERIAL, lambda g: vectors(
            index.multiply(g, index.constant(self.rows)), self.rows)),)
        if rest:
            body = (*body, *vectors(index.constant(whole * self.rows), rest))
        for buffer in reversed(registers):
            body = (Allocate(buffer, body),)
        return body
