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

What comes from memory to be read once or twice, as weights do by which a few rows are multiplied,
comes fastest some whole rows at a time: all panels of a block go along so much of the depth, and
their sums wait in L1, as in templates/columns.py.

The factors may be any expressions (prologues), the results any expressions of the sums (epilogues).
Sums over k are sums of runs of some 256 terms.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from hlo_mlc.expr.core import loads
from hlo_mlc.expr.dtypes import I16
from hlo_mlc.schedule.core import Schedule
from hlo_mlc.target.cpu import CACHE_LINE_BYTES, PAIR, CpuTarget
from hlo_mlc.templates.base import Parameters, Scheduled, even_groups, points
from hlo_mlc.templates.columns import FAR
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
from hlo_mlc.tensor.classify import Contraction
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

# Where a panel is as narrow as a line, as with AVX2, of right factors that come from memory and are
# not packed: rows at a time, and panels of a block, most and fewest.  8 rows by 4096 or 2048 square
# took 0.24 of the time with 8 rows at a time, in f64 0.23, 0.5 with 16 to 128; 4 rows 0.35.  That
# is as long with 32 panels as with 128, but 30,000 x 2000 took 0.57 with 32, half a page of each
# row, and 0.35 with 64.  From 16 rows on, packed panels were as fast.  With AVX-512, whose panels
# are four lines, 8 by 4096 square took 0.7, by 30,000 x 2000 twice as long.
ROWS_AT_A_TIME, MOST_PANELS, FEWEST_PANELS = 8, 64, 8


@dataclass(frozen=True, slots=True)
class ContractionTemplate:
    """Register-tiled matrix product with prologue and epilogue."""

    name: str = "contraction"

    def refusal(self, nest: Nest, target: CpuTarget) -> str:
        """Why the nest is not a matrix product for this template; empty where it is."""
        return product_refusal(nest)

    def space(self, nest: Nest, target: CpuTarget) -> dict[str, tuple[int, ...]]:
        """Tile heights and widths, depth of a block, panels that go along it in turns, packing, how
        finely rows are split, steps by which rows of the right factor are fetched ahead, after how
        many steps a line of the next panel is, and whether the left factor is laid out along the
        depth first."""
        return {
            "rows": (4, 6, 8, 12),
            "vectors": (1, 2, 3, 4),
            "pack": (0, 1),
            "depth": (0, ROWS_AT_A_TIME, 256, 512, 768),
            "panels": (1, FEWEST_PANELS, MOST_PANELS),
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
        pack_rows = computed and not turn and not is_cheap_across(roles.lhs, roles.rows[-1])
        swept = 1
        if not (pack or pack_rows or pairs) and _comes_by_lines(roles, lanes * vectors, target):
            count = -(-n // (lanes * vectors))
            most = max(FEWEST_PANELS, min(MOST_PANELS, -(-count // target.cores)))
            swept = even_groups(count, most)
        return _fitting(
            stage,
            lanes,
            {
                "rows": rows,
                "vectors": vectors,
                "pack": int(pack),
                "row_blocks": row_blocks,
                "depth": ROWS_AT_A_TIME if swept > 1 else 0,
                "panels": swept,
                "pack_rows": int(pack_rows),
                "pairs": int(pairs),
                "turn": int(turn),
                "ahead": (
                    AHEAD
                    if big and not pack and swept == 1 and roles.summed[-1].extent > AHEAD
                    else 0
                ),
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
    blocks = max(parameters["row_blocks"], -(-roles.rows[-1].extent // most_rows))
    height = -(-roles.rows[-1].extent // blocks) + parameters["rows"] - 1
    panels = max(1, min(parameters["panels"], most_rows // height))
    return {**parameters, "depth": step, "row_blocks": blocks, "panels": panels}


def _comes_by_lines(roles: Contraction, width: int, target: CpuTarget) -> bool:
    """Whether the right factor comes from memory, where panels of so many columns are lines."""
    rhs, (*others, depth) = roles.rhs, roles.summed
    size = max((one.dtype.bytes for one in loads(rhs) if is_plain(one)), default=0)
    return (
        not others
        and 0 < width * size <= CACHE_LINE_BYTES
        and roles.columns[-1].extent >= FEWEST_PANELS * width
        and depth.extent > ROWS_AT_A_TIME
        and roles.columns[-1].extent * depth.extent * size > FAR * target.l2_bytes
    )


def _even_part(extent: int, most: int) -> int | None:
    """The largest multiple of PAIR that divides an extent and is at most `most`, but not much
    less."""
    return next((n for n in range(most, most // 2, -1) if n % PAIR == 0 == extent % n), None)
