"""Operations whose operands say at run time where something is, between arrays of known shapes.

XLA takes those of StableHLO that begin with dynamic_ (and real_dynamic_slice) with constants only.
Where types say every shape, the operands say places: a slice may begin anywhere, and what is padded
may lie anywhere in the result.

    real_dynamic_slice(x, starts, limits, strides)  ->  dynamic_slice(x, starts), slice
    dynamic_pad(x, v, low, high, interior)          ->  dynamic_update_slice(v, x, low + n), slice
    dynamic_conv(x, w, padding)                     ->  convolution(dynamic_pad(x), w)
    dynamic_gather(x, i, sizes)                     ->  gather(x, i): the result says the sizes

Steps and what lies between elements are constants.  Source: StableHLO's specification.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from hlo_mlc.frontend.shape_dialects import Rewrite
from hlo_mlc.frontend.writing import Writer, integer_array, with_sizes

_SAID = {
    "stablehlo.real_dynamic_slice": 1,
    "stablehlo.dynamic_pad": 2,
    "stablehlo.dynamic_gather": 2,
    "stablehlo.dynamic_conv": 2,
}
"""Of each how many operands are arrays; the others say places."""


def _is_needed(operation: ir.Operation) -> bool:
    """Whether shapes are known, and some place is not."""
    said = operation.operands[_SAID[operation.name] :]
    return all(
        value.type.has_static_shape for value in (*operation.operands, *operation.results)
    ) and any(_numbers(value) is None for value in said)


def _numbers(value: ir.Value) -> tuple[int, ...] | None:
    """The elements of a constant."""
    operation = value.owner
    if isinstance(operation, ir.Block) or operation.name != "stablehlo.constant":
        return None
    array = np.asarray(operation.attributes["value"])
    return tuple(int(n) for n in np.broadcast_to(array, value.type.shape).ravel())


def _shape(value: ir.Value) -> tuple[int, ...]:
    return tuple(value.type.shape)


def _sliced(writer: Writer, operation: ir.Operation) -> ir.Value | None:
    array, starts, _, strides = operation.operands
    steps, result = _numbers(strides), operation.results[0].type
    if steps is None or not _is_needed(operation):
        return None
    spans = [max(0, (n - 1) * step + 1) for n, step in zip(result.shape, steps, strict=True)]
    part = writer.op(
        "stablehlo.dynamic_slice",
        (array, *writer.elements(starts)),
        with_sizes(array.type, spans),
        slice_sizes=integer_array(spans),
    )
    return _cut(writer, part, [0] * len(spans), spans, steps, result)


def _cut(
    writer: Writer,
    array: ir.Value,
    starts: Sequence[int],
    limits: Sequence[int],
    steps: Sequence[int],
    result: ir.Type,
) -> ir.Value:
    if array.type == result:
        return array
    return writer.op(
        "stablehlo.slice",
        (array,),
        result,
        start_indices=integer_array(starts),
        limit_indices=integer_array(limits),
        strides=integer_array(steps),
    )


def _padded(writer: Writer, operation: ir.Operation) -> ir.Value | None:
    array, value, low, _, between = operation.operands
    apart = _numbers(between)
    if apart is None or not _is_needed(operation):
        return None
    return _placed(
        writer,
        _apart(writer, array, value, apart),
        value,
        writer.elements(low),
        operation.results[0].type,
    )


def _apart(writer: Writer, array: ir.Value, value: ir.Value, between: Sequence[int]) -> ir.Value:
    """With so many others between its elements."""
    if not any(between):
        return array
    nothing = integer_array([0] * len(between))
    sizes = [n + max(0, n - 1) * more for n, more in zip(_shape(array), between, strict=True)]
    return writer.op(
        "stablehlo.pad",
        (array, value),
        with_sizes(array.type, sizes),
        edge_padding_low=nothing,
        edge_padding_high=nothing,
        interior_padding=integer_array(between),
    )


def _placed(
    writer: Writer, array: ir.Value, value: ir.Value, low: Sequence[ir.Value], result: ir.Type
) -> ir.Value:
    """An array in one of `value`, beginning at `low`: put into one that has room for all of it on
    both sides, of which the middle is left."""
    sizes, room = list(result.shape), list(_shape(array))
    whole = with_sizes(result, [n + 2 * m for n, m in zip(sizes, room, strict=True)])
    starts = [
        writer.same("stablehlo.add", place, writer.number(n, place.type.element_type))
        for place, n in zip(low, room, strict=True)
    ]
    filled = writer.broadcast(value, (), whole, tuple)
    put = writer.op("stablehlo.dynamic_update_slice", (filled, array, *starts), whole)
    return _cut(
        writer,
        put,
        room,
        [n + m for n, m in zip(sizes, room, strict=True)],
        [1] * len(sizes),
        result,
    )


def _gathered(writer: Writer, operation: ir.Operation) -> ir.Value | None:
    if not _is_needed(operation):
        return None
    array, places, _ = operation.operands
    result = operation.results[0].type
    numbers = operation.attributes["dimension_numbers"]
    read = stablehlo.GatherDimensionNumbers(numbers)
    alone = {*read.collapsed_slice_dims, *read.operand_batching_dims}
    offsets = iter(read.offset_dims)
    sizes = [
        min(1, n) if d in alone else result.shape[next(offsets)]
        for d, n in enumerate(_shape(array))
    ]
    return writer.op(
        "stablehlo.gather",
        (array, places),
        result,
        dimension_numbers=numbers,
        slice_sizes=integer_array(sizes),
    )


def _convolved(writer: Writer, operation: ir.Operation) -> ir.Value | None:
    if not _is_needed(operation):
        return None
    array, kernel, padding = operation.operands
    result, numbers = operation.results[0].type, operation.attributes["dimension_numbers"]
    read = stablehlo.ConvDimensionNumbers(numbers)
    spatial, count = read.input_spatial_dimensions, len(read.input_spatial_dimensions)
    given = {one if isinstance(one, str) else one.name for one in operation.attributes}

    def numbers_of(name: str) -> list[int]:
        return list(operation.attributes[name]) if name in given else [1] * count

    steps, between, apart = map(numbers_of, ("window_strides", "lhs_dilation", "rhs_dilation"))
    element = array.type.element_type
    zero = writer.number(0, element)
    more = [0] * array.type.rank
    for axis, n in zip(spatial, between, strict=True):
        more[axis] = n - 1
    array = _apart(writer, array, zero, more)
    lows = writer.elements(writer.reshaped(padding, with_sizes(padding.type, [2 * count]), ()))
    place = lows[0].type if lows else None
    sizes, low = (
        list(_shape(array)),
        [writer.number(0, place.element_type) for _ in more] if place is not None else [],
    )
    for n, axis in enumerate(spatial):
        window = (_shape(kernel)[read.kernel_spatial_dimensions[n]] - 1) * apart[n] + 1
        sizes[axis] = (result.shape[read.output_spatial_dimensions[n]] - 1) * steps[n] + window
        low[axis] = lows[2 * n]
    kept = {name: operation.attributes[name] for name in given - {"lhs_dilation"}}
    return writer.op(
        "stablehlo.convolution",
        (_placed(writer, array, zero, low, with_sizes(array.type, sizes)), kernel),
        result,
        **kept,
    )


REWRITES: Mapping[str, Rewrite] = {
    "stablehlo.real_dynamic_slice": _sliced,
    "stablehlo.dynamic_pad": _padded,
    "stablehlo.dynamic_gather": _gathered,
    "stablehlo.dynamic_conv": _convolved,
}
