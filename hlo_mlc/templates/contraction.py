"""Matrix products: a register tile of accumulators over panels of packed columns.

    parallel task -> batch, panel of columns, block of row tiles
      for each row tile: accumulators[rows, panel] in registers
        for k: accumulators[r, :] += lhs[r, k] * rhs[k, :]
        epilogue -> result

The first tile packs the panel of rhs beside its multiplications, [summed, panel]; all of them ask
for the next panel.  Multiplications run at the processor's peak once their factors are near: what
is left to win is the time that a panel takes to come.

The factors may be any expressions (prologues), the results any expressions of the accumulators
(epilogues).  Sums over k are sums of runs of some 256 terms.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from hlo_mlc.schedule.cascade import in_runs
from hlo_mlc.target.cpu import CACHE_LINE_BYTES, CpuTarget
from hlo_mlc.templates.base import Parameters, Scheduled
from hlo_mlc.templates.contraction_loops import (
    ContractionLoops,
    outer_points,
    register_roles,
)
from hlo_mlc.templates.product import (
    PARALLEL_WORK,
    RUN,
    is_direct,
    is_plain,
    is_widened,
    product_refusal,
    reads_vectors_along,
)
from hlo_mlc.templates.register_tile import register_tile
from hlo_mlc.tensor.coalesce import coalesce
from hlo_mlc.tensor.core import Nest, Stage

# Bytes on the stack that a packed panel with the rows that are computed for a tile, and the
# unfinished sums between two blocks of the depth, may take: together below the 256 KiB that a
# worker's stack has to spare.
STACK_PANEL = 176 * 1024
STACK_PARTIAL = 64 * 1024
# Right factors larger than this part of the second level are packed where several tiles read them:
# rows far apart cost more than a copy.  With 2 MiB, products of 384 square and 128 x 256 x 640 ran
# 1.15 to 1.2 times as fast packed, one of 256 square 0.98 times.
PACKED_SHARE = 4
# Steps of the depth by which rows of a large right factor that is not packed are fetched ahead:
# they lie too far apart for a processor to see what comes next (16 x 256 x 1024 ran 1.1 times as
# fast, 4 to 12 rows by matrices of 8 to 16 MB 1.25 to 1.4 times; 16 steps were worse, 4 as good).
AHEAD = 8
# Steps of the depth between two lines of the next panel: to say which one takes 17 instructions,
# where a step of a tile of 6 rows by 2 vectors takes 20.
STEPS_BETWEEN = 8


@dataclass(frozen=True, slots=True)
class ContractionTemplate:
    """Register-tiled matrix product with prologue and epilogue."""

    name: str = "contraction"

    def refusal(self, nest: Nest, target: CpuTarget) -> str:
        """Why the nest is not a matrix product for this template; empty where it is."""
        return product_refusal(nest)

    def space(self, nest: Nest, target: CpuTarget) -> dict[str, tuple[int, ...]]:
        """Tile heights and widths, depth of a block, packing, how finely rows are split, steps by
        which rows of the right factor are fetched ahead, and after how many steps a line of the
        next panel is."""
        return {"rows": (4, 6, 8, 12), "vectors": (1, 2, 3, 4), "pack": (0, 1),
                "depth": (0, 256, 512, 768), "row_blocks": (1, 2, 4, 8), "pack_rows": (0, 1),
                "ahead": (0, 4, 8, 16), "next_panel": (0, 1, 2, 4, 8)}

    def default(self, nest: Nest, target: CpuTarget) -> Parameters:
        """The register tile that wastes least, packing where panels are reused."""
        stage = coalesce(nest.stages[0])
        lanes = _lanes(stage, target)
        roles = register_roles(stage, lanes)
        m, n = roles.rows[-1].extent, roles.columns[-1].extent
        depth = math.prod(v.extent for v in roles.summed)
        rows, vectors = register_tile(m, n, lanes, target)
        tiles = -(-m // rows)
        panels = -(-n // (lanes * vectors)) * outer_points(roles)
        work = m * n * depth * outer_points(roles)
        row_blocks = 1
        if work > PARALLEL_WORK and panels < 2 * target.cores:
            row_blocks = min(tiles, -(-2 * target.cores // panels))
        irregular = not is_direct(roles.rhs, roles.columns[-1]) \
            and (tiles > 1 or not reads_vectors_along(roles.rhs, roles.columns[-1]))
        size = stage.accumulators[0].dtype.bytes
        big = n * depth * size > target.l2_bytes / PACKED_SHARE
        pack = irregular or (tiles // row_blocks >= 3 and big)
        computed = not is_plain(roles.lhs) \
            and not (target.shifts_beside and is_widened(roles.lhs))
        # Of the next panel one line is asked for at a time: 24 by 768 x 3072 ran 1.6 times as fast,
        # 128 rows 1.15 times.
        wide = -(-lanes * vectors * size // CACHE_LINE_BYTES)
        apart = min(tiles // wide, STEPS_BETWEEN) if big and pack else 0
        return _fitting(stage, lanes, {
            "rows": rows, "vectors": vectors, "pack": int(pack), "row_blocks": row_blocks,
            "depth": 0, "pack_rows": int(computed),
            "ahead": AHEAD if big and not pack and roles.summed[-1].extent > AHEAD else 0,
            "next_panel": 1 << apart.bit_length() >> 1})

    def apply(self, nest: Nest, target: CpuTarget, parameters: Parameters) -> Scheduled:
        """The loops for the given parameters."""
        stage = coalesce(nest.stages[0])
        lanes = _lanes(stage, target)
        loops = ContractionLoops.of(stage, _fitting(stage, lanes, parameters), lanes, target.cores)
        return Scheduled(in_runs(loops.build(), RUN), ())


def _fitting(stage: Stage, lanes: int, parameters: Parameters) -> Parameters:
    """The parameters, with so little of the depth at a time, and then so few rows, that what is put
    aside fits on the stack; nothing is where it never does."""
    roles, size = register_roles(stage, lanes), stage.accumulators[0].dtype.bytes
    *outer, last = (v.extent for v in roles.summed)
    width = lanes * parameters["vectors"]
    aside = width * parameters["pack"] + parameters["rows"] * parameters["pack_rows"]
    least = math.prod(outer) * aside * size
    if least > STACK_PANEL:
        return _fitting(stage, lanes, {**parameters, "pack": 0, "pack_rows": 0})
    spans = max(1, -(-least * last // STACK_PANEL))
    step = min(parameters["depth"] or last, -(-last // spans))
    if step >= last:
        return {**parameters, "depth": 0}
    # Unfinished sums of a block of rows stay on the stack between spans.
    most_rows = STACK_PARTIAL // (width * size)
    fewest = -(-roles.rows[-1].extent // most_rows)
    return {**parameters, "depth": step, "row_blocks": max(parameters["row_blocks"], fewest)}


def _lanes(stage: Stage, target: CpuTarget) -> int:
    return max(1, target.vector_bytes // stage.accumulators[0].dtype.bytes)
