"""Matrix products: a register tile of accumulators over panels of packed columns.

    for each row, column:           parallel task -> batch, panel of columns, block of row tiles
      sum = initial                   for each row tile: sums[rows, panel] in registers
      for k: sum += lhs * rhs    ->     for k: sums[r, :] += lhs[r, k] * panel[k, :]
      result                            results[rows, panel]

Where no panel is packed, blocks of rows come before panels: what stands before and after a product
goes along rows as well, so each thread finds them in its own cache (128 x 128 x 128 and a tanh in a
loop: 22 us on one thread, 28 on two that shared columns, 15 on two that share rows).

The first tile packs the panel of rhs beside its multiplications, [summed, panel]; all of them ask
for the next panel.  Multiplications run at the processor's peak once their factors are near: what
is left to win is the time that a panel takes to come.  Where a panel is longer than there is room
for on the stack, all tiles of a block go along a part of the depth before the next part.

Where the processor adds products of pairs of i16 to i32, factors of at most 16 bits are packed as
such, two steps of the depth side by side: [summed / 2, panel, 2], which goes with pairs of a row.

A large left factor whose rows lie across the depth, and one that is computed and read by many
panels, is laid out along the depth first (left_factor.py).

The factors may be any expressions (prologues), the results any expressions of the sums (epilogues).
Sums over k are sums of runs of some 256 terms.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from hlo_mlc.expr.dtypes import I16
from hlo_mlc.schedule.core import Schedule
from hlo_mlc.target.cpu import CACHE_LINE_BYTES, PAIR, CpuTarget
from hlo_mlc.templates.base import Parameters, Scheduled, points
from hlo_mlc.templates.left_factor import is_cheap_across, laid_out, pays
from hlo_mlc.templates.product import (
    PARALLEL_WORK,
    STACK_PANEL,
    is_direct,
    is_plain,
    is_widened,
    product_refusal,
    reads_vectors_along,
)
from hlo_mlc.templates.product_roles import adds_pairs, lanes_of, register_roles
from hlo_mlc.templates.product_tiles import Tiling
from hlo_mlc.templates.register_tile import register_tile
from hlo_mlc.tensor.coalesce import coalesce
from hlo_mlc.tensor.core import Nest, Stage

# Bytes of the unfinished sums between two blocks of the depth: with STACK_PANEL below the 256 KiB
# that a worker's stack has to spare.
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
        which rows of the right factor are fetched ahead, after how many steps a line of the next
        panel is, and whether the left factor is laid out along the depth first."""
        return {
            "rows": (4, 6, 8, 12),
            "vectors": (1, 2, 3, 4),
            "pack": (0, 1),
            "depth": (0, 256, 512, 768),
            "row_blocks": (1, 2, 4, 8),
            "pack_rows": (0, 1),
            "ahead": (0, 4, 8, 16),
            "next_panel": (0, 1, 2, 4, 8),
            "pairs": (0, 1) if adds_pairs(coalesce(nest.stages[0]), target) else (0,),
            "turn": (0, 1) if laid_out(coalesce(nest.stages[0]), target) else (0,),
        }

    def default(self, nest: Nest, target: CpuTarget) -> Parameters:
        """The register tile that wastes least, packing where panels are reused."""
        stage = coalesce(nest.stages[0])
        lanes = lanes_of(stage, target)
        roles = register_roles(stage, lanes)
        m, n = roles.rows[-1].extent, roles.columns[-1].extent
        depth = math.prod(v.extent for v in roles.summed)
        rows, vectors = register_tile(m, n, lanes, target)
        tiles = -(-m // rows)
        outer = math.prod(v.extent for v in roles.outer)
        panels = -(-n // (lanes * vectors)) * outer
        size = stage.accumulators[0].dtype.bytes
        big = n * depth * size > target.l2_bytes / PACKED_SHARE
        irregular = not is_direct(roles.rhs, roles.columns[-1]) and (
            tiles > 1 or not reads_vectors_along(roles.rhs, roles.columns[-1])
        )
        row_blocks = 1
        if points(stage) > PARALLEL_WORK and panels < 2 * target.cores:
            row_blocks = min(tiles, -(-2 * target.cores // panels))
        elif points(stage) > PARALLEL_WORK and outer < 2 * target.cores and not (big or irregular):
            row_blocks = min(tiles, 2 * target.cores)
        pack = irregular or (tiles // row_blocks >= 3 and big)
        computed = not is_plain(roles.lhs) and not (target.shifts_beside and is_widened(roles.lhs))
        # Of the next panel one line is asked for at a time: 24 by 768 x 3072 ran 1.6 times as fast,
        # 128 rows 1.15 times.
        wide = -(-lanes * vectors * size // CACHE_LINE_BYTES)
        apart = min(tiles // wide, STEPS_BETWEEN) if big and pack else 0
        pairs = adds_pairs(stage, target)
        turn = not pairs and pays(stage, panels, lanes * vectors, computed, target)
        return _fitting(
            stage,
            lanes,
            {
                "rows": rows,
                "vectors": vectors,
                "pack": int(pack),
                "row_blocks": row_blocks,
                "depth": 0,
                "pack_rows": int(
                    computed and not turn and not is_cheap_across(roles.lhs, roles.rows[-1])
                ),
                "pairs": int(pairs),
                "turn": int(turn),
                "ahead": AHEAD if big and not pack and roles.summed[-1].extent > AHEAD else 0,
                "next_panel": 1 << apart.bit_length() >> 1,
            },
        )

    def apply(self, nest: Nest, target: CpuTarget, parameters: Parameters) -> Scheduled:
        stage = coalesce(nest.stages[0])
        turn = parameters["turn"] and not parameters.get("pairs")
        if turn and (found := laid_out(stage, target)) is not None:
            template, nest, stage, factor = found
            first = template.apply(nest, target, template.default(nest, target))
            then = self._tiled(stage, target, parameters)
            return Scheduled.of(*first.schedules, then, scratch=(*first.scratch, factor))
        return Scheduled.of(self._tiled(stage, target, parameters))

    def _tiled(self, stage: Stage, target: CpuTarget, parameters: Parameters) -> Schedule:
        lanes = lanes_of(stage, target)
        return Tiling(
            stage, register_roles(stage, lanes), _fitting(stage, lanes, parameters), target
        ).schedule()


def _fitting(stage: Stage, lanes: int, parameters: Parameters) -> Parameters:
    """The parameters, with so little of the depth at a time, and then so few rows, that what is put
    aside fits on the stack; nothing is where it never does.  Both factors are for pairs."""
    if parameters.get("pairs"):
        parameters = {**parameters, "pack": 1, "pack_rows": 1}
    roles, size = register_roles(stage, lanes), stage.accumulators[0].dtype.bytes
    kept = I16.bytes if parameters.get("pairs") else size
    *outer, last = (v.extent for v in roles.summed)
    width = lanes * parameters["vectors"]
    aside = width * parameters["pack"] + parameters["rows"] * parameters["pack_rows"]
    least = math.prod(outer) * aside * kept
    if least > STACK_PANEL:
        return _fitting(stage, lanes, {**parameters, "pack": 0, "pack_rows": 0, "pairs": 0})
    spans = max(1, -(-last // (STACK_PANEL // max(least, 1))))
    step = min(parameters["depth"] or last, -(-last // spans))
    if step >= last:
        return {**parameters, "depth": 0}
    if parameters.get("pairs") and (step := _even_part(last, step)) is None:
        return _fitting(stage, lanes, {**parameters, "pairs": 0})
    # Unfinished sums of a block of rows stay on the stack between spans.
    most_rows = STACK_PARTIAL // (width * size)
    fewest = -(-roles.rows[-1].extent // most_rows)
    return {**parameters, "depth": step, "row_blocks": max(parameters["row_blocks"], fewest)}


def _even_part(extent: int, most: int) -> int | None:
    """The largest multiple of PAIR that divides an extent and is at most `most`, but not much
    less."""
    return next((n for n in range(most, most // 2, -1) if n % PAIR == 0 == extent % n), None)
