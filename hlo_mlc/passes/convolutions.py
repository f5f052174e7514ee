"""Convolutions that are products of matrices in disguise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hlo_mlc.expr.dtypes import TensorType
from hlo_mlc.graph.core import Node, Value
from hlo_mlc.graph.rewrite import Rewriter, Rule
from hlo_mlc.ops.contraction import Convolution


def product_of_each_group(node: Node, context: Rewriter) -> Value | None:
    """`convolution(x, k)` of groups, with windows of one element -> `dot_general(x, k)`, a product
    for each group.

    Where windows have several elements, or there is one group, stages show the product as it is.
    """
    c = Convolution.of(node)
    groups, spatial = c.feature_groups, len(c.windows)
    channels, features = (node.operands[1].type.shape[d] for d in c.kernel_axes[1::-1])
    if groups == 1 or c.batch_groups > 1 or channels == 1 or features == groups or any(
            (w.size, w.before, w.after, w.input_dilation) != (1, 0, 0, 1) for w in c.windows):
        return None
    batch, _, *places = c.input_axes
    strides = {axis: w.stride for axis, w in zip(places, c.windows, strict=True)}
    inputs = _every(node.operands[0], strides, context)
    inputs = _transposed(inputs, (batch, *places, c.input_axes[1]), context)
    inputs = _reshaped(inputs, (*inputs.type.shape[:-1], groups, channels), context)
    kernel = _transposed(node.operands[1], (c.kernel_axes[1], c.kernel_axes[0],
                                            *c.kernel_axes[2:]), context)
    kernel = _reshaped(kernel, (channels, groups, features // groups), context)
    result, rows = node.results[0].type, inputs.type.shape[:-2]
    attributes = {
        "lhs_batching_dimensions": (spatial + 1,), "rhs_batching_dimensions": (1,),
        "lhs_contracting_dimensions": (spatial + 2,), "rhs_contracting_dimensions": (0,)}
    if "precision_config" in node.attributes:
        attributes["precision_config"] = node.attributes["precision_config"]
    products = context.add(
        "stablehlo.dot_general", (inputs, kernel),
        TensorType((groups, *rows, features // groups), result.dtype), attributes)
    last = spatial + 1
    products = _transposed(products, (*range(1, last + 1), 0, last + 1), context)
    products = _reshaped(products, (*rows, features), context)
    order = dict(zip(c.output_axes, (0, last, *range(1, last)), strict=True))
    return _transposed(products, tuple(order[d] for d in range(last + 1)), context)


def _every(value: Value, strides: Mapping[int, int], context: Rewriter) -> Value:
    """The elements that are so far apart along some axes, from the first one on."""
    extents = value.type.shape
    steps = tuple(strides.get(axis, 1) for axis in range(len(extents)))
    shape = tuple(-(-extent // step) for extent, step in zip(extents, steps, strict=True))
    return context.add("stablehlo.slice", (value,), TensorType(shape, value.type.dtype), {
        "start_indices": (0,) * len(extents), "limit_indices": extents, "strides": steps})


def _transposed(value: Value, permutation: Sequence[int], context: Rewriter) -> Value:
    shape = tuple(value.type.shape[d] for d in permutation)
    return context.add("stablehlo.transpose", (value,), TensorType(shape, value.type.dtype),
                       {"permutation": tuple(permutation)})


def _reshaped(value: Value, shape: Sequence[int], context: Rewriter) -> Value:
    return context.add("stablehlo.reshape", (value,), TensorType(tuple(shape), value.type.dtype))


CONVOLUTION_RULES: Mapping[str, Sequence[Rule]] = {
    "stablehlo.convolution": (product_of_each_group,),
}
