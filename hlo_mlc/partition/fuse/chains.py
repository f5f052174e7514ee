"""Chains of two matrix products that are computed row by row, with all that is between them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hlo_mlc.partition.fuse.nests import COST_LIMIT, Joined, finish
from hlo_mlc.target.rates import NEAR_BYTES
from hlo_mlc.tensor.chain import chain, linked
from hlo_mlc.tensor.classify import stage_cost

# Depth of the first product of a chain, and columns of the second, that leave room in L1 for a
# block of rows; longer ones gain nothing from being computed row by row (encoder_block).
HEAD_LIMIT = 256
# Rows of a chain from which on vectors across them are not mostly empty (small_carry).
ROWS_LEAST = 8


def chained(
    first: Joined, between: Sequence[Joined], last: Joined, leading: int | None = None
) -> Joined | str:
    """One nest of a matrix product, what is computed row by row from it, and the product that sums
    over the rows; or the reason why not.  What is in between exists for a few rows at a time.  The
    first dimension of what the product gives counts as `leading` rows, if that is not None."""
    if len(first.stages) > 1 or len(last.stages) > 1:
        return "a product with other stages in its nest"
    (result,) = last.stages
    stages = linked(first.stages[0], [s for j in between for s in j.stages], result)
    if isinstance(stages, str):
        return stages
    joined = Joined(stages, len(stages[0].axes) - 1)
    found = chain(finish(joined, frozenset(result.outputs)))
    if isinstance(found, str):
        return found
    if (
        math.prod(v.extent for v in found.first.reduce_axes) > HEAD_LIMIT
        or found.column.extent > HEAD_LIMIT
    ):
        return f"more than {HEAD_LIMIT} terms or columns in a product"
    axis = found.first.axes[0]
    rows = found.row.extent if leading is None or found.row is not axis else leading
    if rows < ROWS_LEAST:
        return f"fewer than {ROWS_LEAST} rows with the same keys"
    folds = any(s.combiner is not None for s in found.between)
    sizes = (
        b.bytes if leading is None else leading * b.bytes // max(1, b.shape[0])
        for b in first.stages[0].outputs
    )
    if not folds and all(size <= NEAR_BYTES for size in sizes):
        return "two products whose rows stay in the caches"
    if sum(map(stage_cost, stages)) > COST_LIMIT:
        return "the fused expressions would need more registers than there are"
    return joined
