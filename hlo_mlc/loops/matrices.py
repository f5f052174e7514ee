"""Products of small matrices by the tensor cores of a GPU, as loops.

One instruction of a warp multiplies 16 rows by 8 columns.  A loop of kind TENSOR says what one lane
has of that, as if it computed it alone:

    for e in 0..4 tensor:
      for k in 0..depth:
        sums[…, e] = add(sums[…, e], f32(lhs[row(lane, e), k]) * f32(rhs[k, column(lane, e)]))

Source: PTX ISA 9.0, "Matrix Fragments for mma.m16n8k16 with floating point type".
"""

from __future__ import annotations

from dataclasses import dataclass

from hlo_mlc.expr import index
from hlo_mlc.expr.core import Apply, Const, Expr, Load, Var
from hlo_mlc.expr.dtypes import BF16, F16, F32, U32, DType
from hlo_mlc.loops.core import Accumulate, For, LoopKind
from hlo_mlc.loops.rewrite import constant_extent

ROWS, COLUMNS = 16, 8
LANE_ELEMENTS = 4
"""Sums that each lane of a warp holds."""

DEPTH_BYTES = 32  # of a row of lhs
# The bits of an f32 that tf32 leaves out.
_DROPPED = (1 << 13) - 1


def depth_of(dtype: DType) -> int:
    """How many products one instruction adds up, for factors of this type."""
    return DEPTH_BYTES // dtype.bytes


def row(lane: Expr, e: Expr) -> Expr:
    """The row of a lane's element."""
    return lane // 4 + e // 2 * 8


def column(lane: Expr, e: Expr) -> Expr:
    """The column of a lane's element."""
    return lane % 4 * 2 + e % 2


def product(sums: Accumulate, e: Var, k: Var) -> For:
    """The loop that says what one lane does."""
    return For(
        e,
        index.constant(LANE_ELEMENTS),
        LoopKind.TENSOR,
        (For(k, index.constant(k.extent), LoopKind.SERIAL, (sums,)),),
    )


@dataclass(frozen=True, slots=True)
class Product:
    """What a loop of kind TENSOR is made of."""

    e: Var
    k: Var
    update: Accumulate
    lhs: Load
    rhs: Load


def parts(loop: For) -> Product | None:
    """What the loop multiplies, or None where it is not of the form that is expected."""
    inner = loop.body[0] if loop.body else None
    if (
        constant_extent(loop) != LANE_ELEMENTS
        or not isinstance(inner, For)
        or (len(loop.body), len(inner.body)) != (1, 1)
    ):
        return None
    update = inner.body[0]
    if (
        not isinstance(update, Accumulate)
        or update.combiner.name != "add"
        or update.guard is not None
        or update.terms[0].dtype is not F32
    ):
        return None
    term = update.terms[0]
    if not isinstance(term, Apply) or term.op != "mul":
        return None
    factors = [a.args[0] if isinstance(a, Apply) and a.op == "convert" else a for a in term.args]
    if not all(isinstance(f, Load) and f.guard is None for f in factors):
        return None
    kinds = {f.dtype for f in factors}
    if (
        len(kinds) != 1
        or kinds.pop() not in (BF16, F16, F32)
        or constant_extent(inner) != depth_of(factors[0].dtype)
    ):
        return None
    return Product(loop.var, inner.var, update, *factors)


def is_tf32(e: Expr) -> bool:
    """Whether an f32 is known to have no more bits than tf32 has: then products are exact."""
    if not isinstance(e, Apply) or e.dtype is not F32:
        return False
    if e.op == "convert":
        return e.args[0].dtype in (BF16, F16)
    bits = e.args[0]
    return (
        e.op == "bitcast"
        and isinstance(bits, Apply)
        and bits.op == "and"
        and bits.dtype is U32
        and isinstance(bits.args[1], Const)
        and bits.args[1].value & _DROPPED == 0
    )
