"""Products of few rows, both factors lying along the depth: vectors along it, as in a dot product.

    parallel task -> batch, block of rows and columns
      for each tile of the block: sums[tile] = folds of vectors along the depth
      for each row of the block: epilogue, vectors of columns -> result

Other products have vectors of columns (contraction.py), which lie apart here.  Putting them side by
side takes longer than multiplying them with few rows: `x @ w.T` for a handful of tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

from hlo_mlc.target.cpu import CpuTarget
from hlo_mlc.templates.base import (
    Parameters,
    Scheduled,
    along_axes,
    even_groups,
    in_tasks,
    in_vectors,
    lanes,
    open_stage,
    points,
)
from hlo_mlc.templates.product import RUN, product_refusal, products_per_task, reads_vectors_along
from hlo_mlc.tensor.classify import contraction
from hlo_mlc.tensor.coalesce import coalesce
from hlo_mlc.tensor.core import Nest

# Rows, or columns, up to which this is the faster way.  1024 x 1024 (in L2) by 4 to 12 rows took a
# quarter to 0.6 of the time, 16 rows 0.8 to 1.4, more the same; 4096 x 1024 by 8 rows 0.4.
FEW = 12
# The shortest depth, in vectors: adding up the lanes of a tile takes as long as ten steps.  Depths
# of 4 to 8 vectors were 0.6 to 1.2 times as fast as with vectors of columns.
SHORTEST = 16
# Rows of a tile: what is read of the other factor serves so many.
TALLEST = 8


@dataclass(frozen=True, slots=True)
class DotTemplate:
    """Tiles of dot products."""

    name: str = "dot"

    def refusal(self, nest: Nest, target: CpuTarget) -> str:
        """Why the nest is not a product of few rows along the depth; empty where it is."""
        if reason := product_refusal(nest):
            return reason
        stage = coalesce(nest.stages[0])
        roles = contraction(stage)
        m, n, depth = roles.rows[-1].extent, roles.columns[-1].extent, roles.summed[-1]
        if min(m, n) > FEW:
            return "neither few rows nor few columns"
        if depth.extent < SHORTEST * lanes((stage,), target):
            return "a short depth"
        if not all(reads_vectors_along(factor, depth) for factor in (roles.lhs, roles.rhs)):
            return "a factor does not lie along the depth"
        return ""

    def space(self, nest: Nest, target: CpuTarget) -> dict[str, tuple[int, ...]]:
        """The tile."""
        return {"rows": (1, 2, 3, 4, 6, 8), "columns": (1, 2, 3, 4, 6, 8)}

    def default(self, nest: Nest, target: CpuTarget) -> Parameters:
        """As many sums as registers hold."""
        roles = contraction(coalesce(nest.stages[0]))
        rows, columns = _tile(roles.rows[-1].extent, roles.columns[-1].extent, target)
        return {"rows": rows, "columns": columns}

    def apply(self, nest: Nest, target: CpuTarget, parameters: Parameters) -> Scheduled:
        stage = coalesce(nest.stages[0])
        roles, width = contraction(stage), lanes((stage,), target)
        rows, columns, *depth = roles.rows[-1], roles.columns[-1], *(v.name for v in roles.summed)
        outer = [v.name for v in roles.outer]
        row, column, high, wide = rows.name, columns.name, parameters["rows"], parameters["columns"]
        schedule = open_stage(stage)
        schedule = schedule.reorder(*outer, row, column)
        # One of the two is short; blocks of the other one are shared out.
        if rows.extent > columns.extent:
            schedule = schedule.split(row, _block(rows.extent, high, width), "shift")
            long, row = row, f"{row}.i"
        else:
            schedule = schedule.split(column, _block(columns.extent, wide, width), "shift")
            schedule = schedule.reorder(f"{column}.o", row)
            long, column = column, f"{column}.i"
        schedule = (
            # All sums of a block, then what becomes of those that are its own.
            schedule.expand(column, "stack")
            .expand(row, "stack")
            .distribute(row, depth[0], "e")
            # The folds of a tile go along the depth together, in vectors.
            .rfactor(depth[-1], width)
            .split(row, high, "repeat")
            .split(column, wide, "repeat")
            .reorder(f"{column}.o", f"{row}.i")
            .expand(f"{column}.i", "register")
            .expand(f"{row}.i", "register")
        )
        schedule = along_axes(schedule, (*depth[:-1], f"{depth[-1]}.o"), f"{row}.i", f"{column}.i")
        schedule = (
            schedule.unroll(f"{row}.i").unroll(f"{column}.i").specialize(f"{long}.i.e", f"{long}.o")
        )
        schedule = in_tasks(
            in_vectors(schedule, f"{column}.e", width),
            len(outer) + 1,
            lambda blocks: products_per_task(blocks, points(stage), target.cores),
        )
        return Scheduled.of(schedule.cascade(RUN))


def _block(extent: int, tile: int, tiles: int) -> int:
    """The size of a block of an axis, in tiles; the last block begins early."""
    tile = min(tile, extent)
    count = 1 if extent <= FEW else -(-extent // (tile * tiles))
    return min(extent, -(-extent // (count * tile)) * tile)


def _tile(m: int, n: int, target: CpuTarget) -> tuple[int, int]:
    """Rows by columns: few of one kind are shared out evenly, the other fills the registers."""
    few = even_groups(min(m, n), TALLEST)
    many = min(max(m, n), max(1, target.accumulators // few), TALLEST)
    return (few, many) if m <= n else (many, few)
