"""Parts of the same rows that are copied from elsewhere, row by row: by one thread each.

    for i: for k<4: y[i, k] = a[…]             for i: for k<4: y[i, k] = a[…]
    for i: for k<9: y[i, k + 4] = b[…]   ->           for k<9: y[i, k + 4] = b[…]

Short parts alone are too little to be shared out, and lines of memory that one thread has written
to come to another one from its caches: images between columns of their own took 0.65 of the time so
(mirrored_columns).
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from hlo_mlc.expr import index
from hlo_mlc.expr.core import Load
from hlo_mlc.partition.fuse.limits import ROW_LIMIT
from hlo_mlc.partition.lower.parts import PARTS_ABREAST
from hlo_mlc.tensor.classify import is_map
from hlo_mlc.tensor.core import Nest, Stage
from hlo_mlc.tensor.rewrite import rename_axes


def row_by_row(stages: Iterable[Stage]) -> list[Nest]:
    """Nests of stages in their order, those that fill parts of the same rows in one."""
    nests: list[Nest] = []
    for stage in stages:
        rows = _common_rows(nests[-1], stage) if nests else 0
        if rows:
            nest = nests.pop()
            names = dict(zip(stage.axes[:rows], nest.stages[0].axes[:rows], strict=True))
            nests.append(Nest((*nest.stages, rename_axes(stage, names)), rows))
        else:
            nests.append(Nest((stage,), len(stage.axes)))
    return nests


def _common_rows(nest: Nest, stage: Stage) -> int:
    """How many axes go through the rows of which the stages of a nest and `stage` each fill a part,
    one behind the other; 0 where they do not."""
    everything = (*nest.stages, stage)
    if len(everything) > PARTS_ABREAST or not all(
        is_map(s) and len(s.assigns) == 1 and s.assigns[0].guard is None for s in everything
    ):
        return 0
    read = [s.assigns[0].value for s in everything]
    if not all(isinstance(one, Load) and one.guard is None for one in read):
        return 0
    (first,), (last,) = nest.stages[-1].assigns, stage.assigns
    if first.buffer is not last.buffer or any(first.buffer in s.inputs for s in everything):
        return 0
    axes = [*zip(nest.stages[-1].axes, stage.axes, strict=False)]
    rows = 0
    for (one, other), *at in zip(axes, first.indices, last.indices, strict=False):
        if at != [one, other] or one.extent != other.extent:
            break
        rows += 1
    if not 0 < rows < len(first.indices) or (len(nest.stages) > 1 and rows != nest.shared):
        return 0
    (_, end), (begin, _) = (index.bounds(a.indices[rows]) for a in (first, last))
    longest = max(math.prod(v.extent for v in s.axes[rows:]) for s in everything)
    return rows if end < begin and longest <= ROW_LIMIT else 0
