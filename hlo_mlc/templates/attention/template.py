"""Two matrix products with row-wise stages in between: attention, without storing its scores.

    parallel task -> outer axes, block of rows
      pack the queries                                          [depth, rows]
      for each pass over the keys (passes.py), chunk by chunk:
        first pass: scores[keys, rows] = keys * queries
        folds over the keys, and what later passes need         vectors along the rows
        last pass: weights[keys, rows];  sums[rows, columns] += weights * values
      epilogue -> result

Scores lie with the rows side by side.  So keys, weights and values are read as they come, only the
queries are transposed; and a fold over the keys has a row in each lane.  One block of rows sees all
its keys before the next one begins: memory grows with their number, not with their product.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from hlo_mlc.expr import index
from hlo_mlc.expr.core import Buffer, Expr, Var, loads
from hlo_mlc.loops.core import Stmt
from hlo_mlc.loops.rewrite import allocated, serial
from hlo_mlc.target.cpu import CpuTarget
from hlo_mlc.templates.attention.block import RowBlock, either_block
from hlo_mlc.templates.attention.passes import row_passes
from hlo_mlc.templates.attention.workspace import Workspace
from hlo_mlc.templates.base import Parameters, Scheduled, decoded, epilogue_cost, lanes, why_empty
from hlo_mlc.templates.by_hand import bounded, in_groups
from hlo_mlc.templates.product import PARALLEL_WORK
from hlo_mlc.templates.product_tiles import EPILOGUE_INLINE
from hlo_mlc.tensor.chain import Chain, chain
from hlo_mlc.tensor.core import Nest

# Bytes that the keys, or the values, of one chunk may take: all rows of a block use them, or
# by tile after tile, so they should stay in L1 beside what they meet there.
CHUNK_BYTES = 32 * 1024
# Bytes that the queries, or the sums, of a block may take: several times L1 would be read in vain.
BLOCK_BYTES = 64 * 1024
# Keys of a chunk: the sums of a block are read and written once for so many multiply-adds each.
CHUNK = 96
# Bytes of everything on the stack; what is kept between passes goes into the arena where it would
# take more, and then there is a part for each of so many tasks per core.
STACK = 224 * 1024
SLOTS_PER_CORE = 4


@dataclass(frozen=True, slots=True)
class AttentionTemplate:
    """Blocks of rows that see all their keys."""

    name: str = "attention"

    def refusal(self, nest: Nest, target: CpuTarget) -> str:
        """Why the nest is not a chain of two products; empty where it is."""
        found = chain(nest)
        return found if isinstance(found, str) else why_empty(nest)

    def space(self, nest: Nest, target: CpuTarget) -> dict[str, tuple[int, ...]]:
        """Rows of a block, keys of a chunk."""
        return {"rows": (16, 32, 48, 64), "keys": (48, 96, 192)}

    def default(self, nest: Nest, target: CpuTarget) -> Parameters:
        """As many rows as a register tile is wide, fewer where they are kept for very many keys."""
        found = chain(nest)
        width = _lanes(found, target)
        vectors = 4 if target.registers >= 32 else 2
        kept = found.key.extent * width * found.first.accumulators[0].dtype.bytes
        while vectors > 2 and vectors * kept > target.l2_bytes // 4:
            vectors -= 1
        vectors = min(vectors, _most_rows(found, width) // width)
        blocks = -(-found.row.extent // (vectors * width))
        rows = min(-(-found.row.extent // (blocks * width)) * width, found.row.extent)
        keys = min(CHUNK, _most_keys(found, rows))
        divisors = [n for n in range(keys * 2 // 3, keys + 1) if found.key.extent % n == 0]
        return {"rows": rows, "keys": max(divisors, default=keys)}

    def apply(self, nest: Nest, target: CpuTarget, parameters: Parameters) -> Scheduled:
        builder = _Builder(chain(nest), parameters, target)
        return Scheduled(builder.build(), builder.plan.kept if builder.slots is not None else ())


def _lanes(found: Chain, target: CpuTarget) -> int:
    return lanes((found.first, *found.between, found.last), target)


def _most_rows(found: Chain, width: int) -> int:
    return max(1, BLOCK_BYTES // _row_bytes(found) // width) * width


def _most_keys(found: Chain, rows: int) -> int:
    size = found.first.accumulators[0].dtype.bytes
    return max(1, CHUNK_BYTES // max(_row_bytes(found), rows * size))


def _row_bytes(found: Chain) -> int:
    """Bytes of one query, key or value, whichever is longest."""
    depth = math.prod(v.extent for v in found.first.reduce_axes)
    return max(found.column.extent, depth) * found.first.accumulators[0].dtype.bytes


class _Builder:
    """Builds the loops of one chain."""

    def __init__(self, found: Chain, parameters: Parameters, target: CpuTarget) -> None:
        self.chain, self.target = found, target
        self.lanes = _lanes(found, target)
        self.rows = min(parameters["rows"], found.row.extent, _most_rows(found, self.lanes))
        self.keys = min(parameters["keys"], found.key.extent, _most_keys(found, self.rows))
        self.blocks = -(-found.row.extent // self.rows)
        self.tasks = math.prod(v.extent for v in found.outer) * self.blocks
        rows, columns = self._padded(self.rows), self._padded(found.column.extent)
        self.space = Workspace.of(found, rows, self.keys, columns)
        read = {e for a in found.first.assigns for e in loads(a.value)}
        direct = epilogue_cost(found.first) <= EPILOGUE_INLINE and read.isdisjoint(
            e for e, _ in self.space.crossing
        )
        self.slots: int | None = None
        self.plan = row_passes(found, rows, self.keys, None, direct)
        if sum(b.bytes for b in self._stack()) > STACK:
            self.slots = min(self.tasks, SLOTS_PER_CORE * target.cores)
            self.plan = row_passes(found, rows, self.keys, self.slots, direct)
        self.name = found.row.name

    def _padded(self, width: int) -> int:
        return -(-width // self.lanes) * self.lanes

    def _stack(self) -> tuple[Buffer, ...]:
        plan = self.plan
        own = (*self.space.buffers, plan.chunk, *plan.small, *plan.kept)
        return tuple(b for b in own if b is not None and b.scope == "stack")

    def build(self) -> tuple[Stmt, ...]:
        """All tasks; in groups with a part of the arena each where what is kept lies there."""
        found = self.chain
        work = 2 * self.tasks * self.rows * found.key.extent * found.column.extent
        if work <= PARALLEL_WORK or self.tasks == 1:
            slot = index.constant(0)
            return (serial(f"{self.name}_task", self.tasks, lambda t: self._task(t, slot)),)
        each = -(-PARALLEL_WORK * self.tasks // (4 * work))
        if self.slots is not None:
            each = -(-self.tasks // self.slots)
        return (in_groups(self.name, self.tasks, each, self._task),)

    def _task(self, t: Expr, slot: Expr) -> tuple[Stmt, ...]:
        block = t % self.blocks
        at = decoded(self.chain.outer, t // self.blocks)
        if self.plan.places.slot is not None:
            at[self.plan.places.slot] = slot
        start = block * self.rows
        whole, rest = divmod(self.chain.row.extent, self.rows)
        if not rest:
            body = self._block(at, start, self.rows).build()
        elif not whole:
            body = self._block(at, index.constant(0), rest).build()
        else:
            inside = self._block(at, bounded(start, (whole - 1) * self.rows + 1), self.rows)
            last = self._block(at, index.constant(whole * self.rows), rest)
            every = self._block(at, start, self.rows) if self._may_pad(rest) else None
            body = either_block(index.compare("lt", block, whole), inside, last, every)
        return allocated(reversed((*self._stack(),)), body)

    def _may_pad(self, rest: int) -> bool:
        """Whether the last block may compute rows that there are not, up to as many vectors as the
        others: only queries and results are read or written row by row."""
        found, plan = self.chain, self.plan
        folds = [f for step in plan.passes for f in step.folds]
        stored = [*plan.before, *(s for step in plan.passes for s in (*step.kept, *step.rows))]
        values = [
            plan.score,
            plan.weights,
            *found.first.initial,
            *found.last.initial,
            *(e for _, e in stored),
            *(e for f in folds for e in (*f.initial, *f.terms)),
        ]
        return self._padded(rest) == self.rows and not any(
            found.row in read.free or any(map(loads, read.indices))
            for e in values
            for read in loads(e)
        )

    def _block(self, at: dict[Var, Expr], start: Expr, height: int) -> RowBlock:
        return RowBlock(
            self.chain, self.plan, self.space, self.target, self.lanes, self.keys, at, start, height
        )
