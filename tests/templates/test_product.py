"""How the rows of a product are cut into tiles."""

from __future__ import annotations

import pytest

from hlo_mlc.expr import index
from hlo_mlc.expr.core import Const
from hlo_mlc.loops.core import If
from hlo_mlc.templates.product import RowTiles


def _computed(rows: RowTiles, block: int) -> list[int]:
    """The rows that the tiles of a block compute."""
    found: list[int] = []

    def body(height: int, row: Const) -> tuple:
        return (range(row.value, row.value + height),)

    for number in range(rows.tiles):
        parts = rows.tile(index.constant(block), index.constant(number), body)
        while parts and isinstance(parts[0], If):
            parts = parts[0].then if parts[0].condition.value else parts[0].otherwise
        found += [row for part in parts for row in part]
    return found


@pytest.mark.parametrize("repeat", [False, True])
@pytest.mark.parametrize("most_rows", [1, 4, 6, 12])
@pytest.mark.parametrize("blocks", [1, 2, 3, 8])
def test_every_row_belongs_to_one_block(most_rows, blocks, repeat):
    """Within it, rows are computed again only where they may be."""
    for extent in (*range(1, 40), 127, 1021, 1024):
        rows = RowTiles.of(extent, most_rows, blocks, repeat)
        computed = [_computed(rows, block) for block in range(rows.blocks)]
        assert rows.height <= most_rows
        assert sorted(row for block in computed for row in set(block)) == list(range(extent))
        if not rows.repeat:
            assert all(len(block) == len(set(block)) for block in computed)
