"""The register tile of a matrix product: rows by vectors of columns.

A tile is written out in full for every width that occurs, so one that divides the columns evenly
saves compilation as well as idle lanes.
"""

from __future__ import annotations

from hlo_mlc.target.cpu import CpuTarget

# A core starts two fused multiply-adds and two loads a cycle, and a multiply-add takes four
# cycles: with fewer than eight sums in flight it waits.
IN_FLIGHT = 8
# What a step costs besides its multiply-adds, in half cycles: tiles of 24 sums ran 1.15 to 1.25
# times as fast as tiles of 16 (products of 512 square, and of 16 x 256 x 1024).
STEP = 4
# A load as a part of a multiply-add, where loads are not what limits: larger tiles read less.
LOAD_SHARE = 0.1
# What another width may cost in speed before it is accepted: it takes about 10 ms to
# compile, and its code as much room in the instruction cache.
VARIANT_SHARE = 0.03
# Rows of a tile; of one that divides them evenly, and what it must save then, as it reads the left
# factor more often: images of networks have 14, 28 and 56 columns as a rule.  Convolutions of such
# by 64 to 256 channels took 0.90 to 0.94 of the time in 14 rows by two vectors, 28 x 512 x 1024
# 0.92; 512 square took 1.03 in 13, and 3136 x 64 x 64 1.03 in 14.
MOST_ROWS, MOST_EVEN_ROWS = 12, 14
TALL_SHARE = 0.04


def register_tile(rows: int, columns: int, lanes: int, target: CpuTarget) -> tuple[int, int]:
    """The tile (rows, vectors) for a product of `rows` by `columns`.

    Sums fill the register file but for one row of the right factor, a broadcast and a spare one:
    24 of 32 registers reached 92-98 % of the multiply-add peak, 28 spilled; 12 of 16 ran 1.4 times
    as fast as 10.
    """
    most = 4 if target.registers >= 32 else 2
    candidates = []
    for vectors in range(1, min(most, -(-columns // lanes)) + 1):
        tallest = min(rows, (target.registers - vectors - 2) // vectors, MOST_EVEN_ROWS)
        candidates += [
            (height, vectors)
            for height in range(1, tallest + 1)
            if height <= MOST_ROWS or rows % height == 0
        ]
    return min(candidates, key=lambda tile: (_cost(rows, columns, lanes, *tile), -tile[1]))


def _cost(rows: int, columns: int, lanes: int, height: int, vectors: int) -> float:
    """Half cycles for one step of the depth over the whole product, compilation weighed in."""
    tiles = -(-rows // height)
    height = -(-rows // tiles)  # the last tile begins where it ends with the last row
    panels, rest = divmod(columns, lanes * vectors)
    widths = [(vectors, panels), (-(-rest // lanes), 1)]
    total, variants = 0.0, 0
    for width, times in widths:
        if width and times:
            step = max(height * width, height + width, IN_FLIGHT) + STEP
            total += tiles * times * (step + LOAD_SHARE * (height + width))
            variants += 1
    return total * (1 + VARIANT_SHARE * (variants - 1) + TALL_SHARE * (height > MOST_ROWS))
