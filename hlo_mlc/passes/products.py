"""Products of matrices that are faster in another type, or of which one factor is a splat."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from hlo_mlc.expr.dtypes import BOOL, F32, Kind, TensorType
from hlo_mlc.graph.core import Node, Value
from hlo_mlc.graph.rewrite import Rewriter, Rule
from hlo_mlc.passes.splat import splat

_INTEGERS = (Kind.SIGNED, Kind.UNSIGNED)
_AXES = (
    "lhs_batching_dimensions",
    "rhs_batching_dimensions",
    "lhs_contracting_dimensions",
    "rhs_contracting_dimensions",
)


def product_of_bools(node: Node, context: Rewriter) -> Value | None:
    """`dot_general(x : i1, y : i1)` -> `dot_general(f32(x), f32(y)) != 0`

    A sum of zeros and ones is 0 only if all are, however it is rounded.  256 cubed took 62 ms as
    bools, with us as with XLA, and less than half of one as floats.
    """
    result = node.results[0].type
    if any(v.type.dtype is not BOOL for v in (*node.operands, *node.results)):
        return None
    factors = [context.convert(v, F32) for v in node.operands]
    counts = TensorType(result.shape, F32)
    product = context.add(node.op, factors, counts, {name: node.attributes[name] for name in _AXES})
    return context.compare("NE", product, context.constant(0.0, counts))


def product_of_widened(node: Node, context: Rewriter) -> Value | None:
    """`dot_general(convert(x : i8) : i32, convert(y : i8) : i32)` -> `dot_general(x, y) : i32`

    Which is the same by definition, and products of narrow integers are added up two at a time.
    """
    result = node.results[0].type.dtype
    makers = [context.definition(v) for v in node.operands]
    if not all(maker is not None and maker.op == "stablehlo.convert" for maker in makers):
        return None
    factors = [maker.operands[0] for maker in makers]
    narrow = factors[0].type.dtype
    if (
        result.kind not in _INTEGERS
        or narrow.kind not in _INTEGERS
        or narrow.is_packed
        or not narrow.bits < result.bits
        or factors[1].type.dtype is not narrow
        or any(v.type.dtype is not result for v in node.operands)
    ):
        return None
    return context.add(node.op, factors, node.results[0].type, node.attributes)


def product_with_a_splat(node: Node, context: Rewriter) -> Value | None:
    """`dot_general(x [n, k], broadcast(c) [k, m])` -> `broadcast(reduce_add(x * c) [n])`

    Of two factors either may be the one whose elements are all the same, as those of a quadratic
    form of zeros are: what is not a number in the other still makes results of none.  Narrow floats
    are summed in f32, as products of them are.
    """
    result, last = node.results[0].type, len(_AXES) - 1
    for side, factor in enumerate(node.operands):
        element, own = splat(factor, context), _own_axes(node, side)
        other, summed = node.operands[1 - side], node.attributes[_AXES[last - side]]
        repeats = math.prod(factor.type.shape[d] for d in own)
        if element is None or other.type.size == 0 or (summed and repeats <= 1):
            continue
        dtype = F32 if result.dtype.is_narrow_float else result.dtype
        if dtype is BOOL:
            return None
        other = context.convert(other, dtype)
        shape = other.type.shape
        product = context.like("stablehlo.multiply", other, context.constant(element, other.type))
        kept = [d for d in range(len(shape)) if d not in summed]
        if summed:
            product = context.fold("stablehlo.add", product, context.scalar(0, dtype), summed)
        product = context.convert(product, result.dtype)
        batch, free = node.attributes[_AXES[1 - side]], _own_axes(node, 1 - side)
        begin = len(batch) + (len(own) if side == 0 else 0)
        places = {d: n for n, d in enumerate(batch)} | {d: begin + n for n, d in enumerate(free)}
        return context.broadcast(product, result.shape, [places[d] for d in kept])
    return None


def _own_axes(node: Node, side: int) -> list[int]:
    """The axes of one factor that the other does not share."""
    shared = {d for name in _AXES[side::2] for d in node.attributes[name]}
    return [d for d in range(len(node.operands[side].type.shape)) if d not in shared]


PRODUCT_RULES: Mapping[str, Sequence[Rule]] = {
    "stablehlo.dot_general": (product_of_bools, product_of_widened, product_with_a_splat)
}
