"""Bitcasts that split elements into narrower ones, or join them, as shifts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hlo_mlc.expr.dtypes import U8, U16, U32, U64, DType, Kind, TensorType
from hlo_mlc.graph.core import Node, Value
from hlo_mlc.graph.rewrite import Rewriter, Rule
from hlo_mlc.passes.splat import splat_constant

_BITCAST, _CONVERT = "stablehlo.bitcast_convert", "stablehlo.convert"
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
    raw, unsigned = (
        _as(context, _BITCAST, operand, _UNSIGNED[source.dtype.bits]),
        _UNSIGNED[result.dtype.bits],
    )
    found = (
        _split(context, raw, result.shape, unsigned)
        if source.dtype.bits > result.dtype.bits
        else _joined(context, raw, unsigned)
    )
    return _as(context, _BITCAST, found, result.dtype)


def _as(context: Rewriter, op: str, value: Value, dtype: DType) -> Value:
    """The value in another type, if it is another one."""
    if value.type.dtype is dtype:
        return value
    return context.add(op, (value,), TensorType(value.type.shape, dtype))


def _places(context: Rewriter, tensor: TensorType, bits: int) -> Value:
    """Along the last axis, how far to the left an element of so many bits is."""
    along = context.add("stablehlo.iota", (), tensor, {"iota_dimension": len(tensor.shape) - 1})
    amount = splat_constant(tensor, bits, context)
    return context.add("stablehlo.multiply", (along, amount), tensor)


def _split(context: Rewriter, raw: Value, shape: Sequence[int], narrow: DType) -> Value:
    tensor = TensorType(tuple(shape), raw.type.dtype)
    spread = context.add(
        "stablehlo.broadcast_in_dim",
        (raw,),
        tensor,
        {"broadcast_dimensions": tuple(range(len(raw.type.shape)))},
    )
    shifted = context.add(
        "stablehlo.shift_right_logical", (spread, _places(context, tensor, narrow.bits)), tensor
    )
    return _as(context, _CONVERT, shifted, narrow)


def _joined(context: Rewriter, raw: Value, wide: DType) -> Value:
    bits, widened = raw.type.dtype.bits, _as(context, _CONVERT, raw, wide)
    tensor = widened.type
    shifted = context.add("stablehlo.shift_left", (widened, _places(context, tensor, bits)), tensor)
    *shape, count = tensor.shape
    one, whole = TensorType((*shape, 1), wide), TensorType(tuple(shape), wide)
    parts = []
    for k in range(count):
        part = context.add(
            "stablehlo.slice",
            (shifted,),
            one,
            {
                "start_indices": (*(0 for _ in shape), k),
                "limit_indices": (*shape, k + 1),
                "strides": (1,) * len(tensor.shape),
            },
        )
        parts.append(context.add("stablehlo.reshape", (part,), whole))
    found, *others = parts
    for part in others:
        found = context.add("stablehlo.or", (found, part), whole)
    return found


BIT_RULES: Mapping[str, Sequence[Rule]] = {_BITCAST: (bitcast_in_shifts,)}
