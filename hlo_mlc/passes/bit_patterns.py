"""Bitcasts that split elements into narrower ones, or join them, as shifts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hlo_mlc.expr.dtypes import U8, U16, U32, U64, DType, Kind, TensorType
from hlo_mlc.graph.core import Node, Value
from hlo_mlc.graph.rewrite import Rewriter, Rule

_BITCAST = "stablehlo.bitcast_convert"
_UNSIGNED = {8: U8, 16: U16, 32: U32, 64: U64}


def _has_bits(dtype: DType) -> bool:
    return dtype.kind is not Kind.COMPLEX and dtype.bits in _UNSIGNED


def bitcast_in_shifts(node: Node, context: Rewriter) -> Value | None:
    """`bitcast_convert(x : 5xf32) : 5x4xui8` -> `convert(broadcast(bits of x) >> 8 * iota)`

    and the other way round the elements that become one, shifted to their places, as one.
    The first of them has the lowest bits.
    """
    (operand,) = node.operands
    source, result = operand.type, node.results[0].type
    if (
        source is None
        or result is None
        or not (source.is_static and result.is_static)
        or source.dtype.bits == result.dtype.bits
        or not (_has_bits(source.dtype) and _has_bits(result.dtype))
    ):
        return None
    raw = context.bitcast(operand, _UNSIGNED[source.dtype.bits])
    unsigned = _UNSIGNED[result.dtype.bits]
    found = (
        _split(context, raw, result.shape, unsigned)
        if source.dtype.bits > result.dtype.bits
        else _joined(context, raw, unsigned)
    )
    return context.bitcast(found, result.dtype)


def _places(context: Rewriter, tensor: TensorType, bits: int) -> Value:
    """Along the last axis, how far to the left an element of so many bits is."""
    along = context.iota(tensor, len(tensor.shape) - 1)
    return context.like("stablehlo.multiply", along, context.constant(bits, tensor))


def _split(context: Rewriter, raw: Value, shape: Sequence[int], narrow: DType) -> Value:
    spread = context.broadcast(raw, shape, range(len(raw.type.shape)))
    places = _places(context, spread.type, narrow.bits)
    return context.convert(context.like("stablehlo.shift_right_logical", spread, places), narrow)


def _joined(context: Rewriter, raw: Value, wide: DType) -> Value:
    widened = context.convert(raw, wide)
    places = _places(context, widened.type, raw.type.dtype.bits)
    shifted = context.like("stablehlo.shift_left", widened, places)
    *shape, count = widened.type.shape
    found, *others = (
        context.reshape(context.cut(shifted, len(shape), k, 1), shape) for k in range(count)
    )
    for part in others:
        found = context.like("stablehlo.or", found, part)
    return found


BIT_RULES: Mapping[str, Sequence[Rule]] = {_BITCAST: (bitcast_in_shifts,)}
