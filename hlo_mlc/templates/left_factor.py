"""Left factors of matrix products in arrays of their own, along the depth, before they multiply.

Where rows lie across the depth, as those of `a.T @ b` do, each step of it is on another page, for
every panel anew.  What is computed is so for every panel anew as well, by the rows of a tile; one
number after the other where rows lie across, as vectors go along the depth.
"""

from __future__ import annotations

import math

from hlo_mlc.expr.core import Buffer, Expr, Var
from hlo_mlc.target.cpu import CpuTarget
from hlo_mlc.templates.base import Template
from hlo_mlc.templates.elementwise import ElementwiseTemplate
from hlo_mlc.templates.product import is_plain, reads_vectors_along
from hlo_mlc.templates.transpose import TransposeTemplate
from hlo_mlc.tensor.classify import Contraction, contraction, cost
from hlo_mlc.tensor.core import Nest, Stage
from hlo_mlc.tensor.factors import with_factor_turned

# Left factors across the depth are laid out along it where they are beyond the second level and at
# least so many panels read them: 1024 square took 0.5 of the time in f64 and 0.7 to 0.9 in f32,
# 2000 square f32 0.4 on AVX2, 768 x 4096 x 768 f64 0.7 and with AVX2 0.3; 1000 square as long as
# before.  It takes their memory again: no more than this.
TURNED_PANELS, MOST_TURNED = 4, 64 << 20
# Factors along it are computed first where so many panels read them, twice as many as there are
# cores, and they fit into that share of the third level.  With AVX2 products of bf16 and f16 took
# 0.7 to 0.93 of the time so, 16 x 256 x 1024 to 1024 square, and of a scaled 512 square in f32 0.8;
# with a factor of 32,768 x 128, 16 MB, twice the time.
# Those across it that are computed always are, if they fit there: 16 x 256 x 256 to 512 square took
# 0.3 to 0.45 of the time in bf16 with AVX2, one panel of 16 columns 0.45, in f16 0.2, 0.4 to 0.65
# with AVX-512.
COMPUTED_PANELS, COMPUTED_SHARE = 8, 8
# Operations to compute a number, of which one after the other is no burden to a tile.
MOST_CHEAP = 4


def pays(stage: Stage, panels: int, width: int, is_computed: bool, target: CpuTarget) -> bool:
    """Whether a product of so many panels, of `width` columns, is faster with its left factor laid
    out first; `is_computed`: it takes more than to load it."""
    roles = contraction(stage)
    size = stage.accumulators[0].dtype.bytes
    factor = math.prod(v.extent for v in (*roles.batch, *roles.rows, *roles.summed)) * size
    is_near = is_computed and factor <= target.l3_bytes // COMPUTED_SHARE
    if _lies_along(roles, roles.summed[-1], target):
        *others, last = (v.extent for v in roles.columns)
        times = math.prod(others) * -(-last // width)  # that each number is read
        wanted = is_near and times >= max(COMPUTED_PANELS, 2 * target.cores)
    else:
        wanted = is_near or (panels >= TURNED_PANELS and target.l2_bytes < factor)
    return wanted and factor <= MOST_TURNED and laid_out(stage, target) is not None


def is_cheap_across(factor: Expr, rows: Var) -> bool:
    """Whether a left factor that lies across the depth takes so little to compute that its numbers,
    one after the other, had better be computed where they multiply than put aside before: by the
    rows of a tile 32,768 x 128 bf16 took 6.5 times as long."""
    return cost(factor) <= MOST_CHEAP and reads_vectors_along(factor, rows)


def laid_out(
    stage: Stage, target: CpuTarget
) -> tuple[Template[CpuTarget], Nest, Stage, Buffer] | None:
    """What lays out the left factor along the depth, and how; the product of that, and where it is.
    None where it lies there as it is, or what it is computed of lies along the rows as well, or
    along neither."""
    roles = contraction(stage)
    is_along, is_across = (
        _lies_along(roles, axis, target) for axis in (roles.summed[-1], roles.rows[-1])
    )
    if (is_along and is_plain(roles.lhs)) or not (is_along or is_across):
        return None
    template = ElementwiseTemplate() if is_along else TransposeTemplate()
    first, product, factor = with_factor_turned(stage)
    nest = Nest((first,), len(first.axes))
    return None if template.refusal(nest, target) else (template, nest, product, factor)


def _lies_along(roles: Contraction, axis: Var, target: CpuTarget) -> bool:
    """Whether vectors along an axis read what lies side by side."""
    width = target.lanes(roles.lhs.dtype.bytes)
    return reads_vectors_along(roles.lhs, axis, width=width)
