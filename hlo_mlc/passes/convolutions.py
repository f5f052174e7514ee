"""Convolutions that are products of matrices, or other convolutions, in disguise."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

from hlo_mlc.expr.dtypes import TensorType
from hlo_mlc.graph.core import Node, Value
from hlo_mlc.graph.rewrite import Rewriter, Rule
from hlo_mlc.ops.contraction import Convolution

# Phases that are written out, each as loops of its own: 128 of them made 110,000 lines.
MOST_PHASES = 8


def product_of_each_group(node: Node, context: Rewriter) -> Value | None:
    """`convolution(x, k)` of groups, with windows of one element -> `dot_general(x, k)`, a product
    for each group.

    Where windows have several elements, or there is one group, stages show the product as it is.
    """
    c = Convolution.of(node)
    groups, spatial = c.feature_groups, len(c.windows)
    channels, features = (node.operands[1].type.shape[d] for d in c.kernel_axes[1::-1])
    if (
        groups == 1
        or c.batch_groups > 1
        or channels == 1
        or features == groups
        or any((w.size, w.before, w.after, w.input_dilation) != (1, 0, 0, 1) for w in c.windows)
    ):
        return None
    batch, _, *places = c.input_axes
    strides = {axis: w.stride for axis, w in zip(places, c.windows, strict=True)}
    extents = node.operands[0].type.shape
    steps = [strides.get(axis, 1) for axis in range(len(extents))]
    inputs = context.slice(node.operands[0], (0,) * len(extents), extents, steps)
    inputs = context.transpose(inputs, (batch, *places, c.input_axes[1]))
    inputs = context.reshape(inputs, (*inputs.type.shape[:-1], groups, channels))
    kernel = context.transpose(
        node.operands[1], (c.kernel_axes[1], c.kernel_axes[0], *c.kernel_axes[2:])
    )
    kernel = context.reshape(kernel, (channels, groups, features // groups))
    result, rows = node.results[0].type, inputs.type.shape[:-2]
    attributes = {
        "lhs_batching_dimensions": (spatial + 1,),
        "rhs_batching_dimensions": (1,),
        "lhs_contracting_dimensions": (spatial + 2,),
        "rhs_contracting_dimensions": (0,),
    }
    if "precision_config" in node.attributes:
        attributes["precision_config"] = node.attributes["precision_config"]
    products = context.add(
        "stablehlo.dot_general",
        (inputs, kernel),
        TensorType((groups, *rows, features // groups), result.dtype),
        attributes,
    )
    last = spatial + 1
    products = context.transpose(products, (*range(1, last + 1), 0, last + 1))
    products = context.reshape(products, (*rows, features))
    order = dict(zip(c.output_axes, (0, last, *range(1, last)), strict=True))
    return context.transpose(products, tuple(order[d] for d in range(last + 1)))


def phases_as_features(node: Node, context: Rewriter) -> Value | None:
    """A convolution of inputs that lie s apart -> one of inputs side by side, whose features are
    the s outputs between them:

        y[s q - t] = sum(x[q + j] k[s j + t] over j)    ->    z[q, t] = sum(x[q + j] k[j, t] over j)

    Terms are those between which there are no zeros, in the same order.  Few phases are loops of
    their own as they stand (tensor/phases.py).  Source: Shi et al., sub-pixel convolution, 2016.
    """
    c = Convolution.of(node)
    apart = math.prod(w.input_dilation for w in c.windows)
    if (
        apart <= MOST_PHASES
        or c.feature_groups > 1
        or c.batch_groups > 1
        or any((w.stride, w.kernel_dilation) != (1, 1) or w.reversed for w in c.windows)
        or 0 in node.results[0].type.shape
    ):
        return None
    kernel, windows = _phases_of_kernel(node.operands[1], c, context)
    steps = [w.input_dilation for w in c.windows]
    outputs = [node.results[0].type.shape[d] for d in c.output_axes[2:]]
    first = [-(w.before // s) for w, s in zip(c.windows, steps, strict=True)]
    last = [
        -((w.before + 1 - length) // s)
        for w, s, length in zip(c.windows, steps, outputs, strict=True)
    ]
    counts = [b - a + 1 for a, b in zip(first, last, strict=True)]
    rank, batch = len(steps), node.operands[0].type.shape[c.input_axes[0]]
    features = kernel.type.shape[-1] // apart
    dtype = node.results[0].type.dtype
    spatial = tuple(range(1, rank + 1))
    attributes = {
        **node.attributes,
        "padding": tuple(
            (-a, n - w.input_size + a + m - 1)
            for a, n, w, m in zip(first, counts, c.windows, windows, strict=True)
        ),
        "lhs_dilation": (1,) * rank,
        "kernel_input_feature_dimension": rank,
        "kernel_output_feature_dimension": rank + 1,
        "kernel_spatial_dimensions": tuple(range(rank)),
        "output_batch_dimension": 0,
        "output_feature_dimension": rank + 1,
        "output_spatial_dimensions": spatial,
    }
    phases = context.add(
        "stablehlo.convolution",
        (node.operands[0], kernel),
        TensorType((batch, *counts, apart * features), dtype),
        attributes,
    )
    return _in_place(phases, c, outputs, context)


def _in_place(phases: Value, c: Convolution, outputs: Sequence[int], context: Rewriter) -> Value:
    """The outputs [batch, *outputs, o], in the order of the convolution's axes, out of all that
    their phases [batch, *counts, phases and o] have."""
    batch, *counts, columns = phases.type.shape
    steps = [w.input_dilation for w in c.windows]
    rank, features = len(steps), columns // math.prod(steps)
    spatial = tuple(range(1, rank + 1))
    result = context.reshape(phases, (batch, *counts, *steps, features))
    beside = itertools.chain.from_iterable((d, d + rank) for d in spatial)
    result = context.transpose(result, (0, *beside, 2 * rank + 1))
    result = context.reshape(
        result, (batch, *(n * s for n, s in zip(counts, steps, strict=True)), features)
    )
    starts = [s - 1 - w.before % s for w, s in zip(c.windows, steps, strict=True)]
    ends = [start + length for start, length in zip(starts, outputs, strict=True)]
    result = context.slice(result, (0, *starts, 0), (batch, *ends, features))
    order = dict(zip(c.output_axes, (0, rank + 1, *spatial), strict=True))
    return context.transpose(result, tuple(order[d] for d in range(rank + 2)))


def _phases_of_kernel(kernel: Value, c: Convolution, context: Rewriter) -> tuple[Value, list[int]]:
    """The kernel [*windows, c, phases and o], the last phase of an axis first, and its windows."""
    steps = [w.input_dilation for w in c.windows]
    windows = [-(-w.size // s) for w, s in zip(c.windows, steps, strict=True)]
    kernel = context.transpose(kernel, (*c.kernel_axes[2:], c.kernel_axes[1], c.kernel_axes[0]))
    rank, (channels, features) = len(steps), kernel.type.shape[-2:]
    more = [m * s - w.size for m, s, w in zip(windows, steps, c.windows, strict=True)]
    kernel = context.pad(kernel, (0,) * (rank + 2), (*more, 0, 0))
    split = itertools.chain.from_iterable(zip(windows, steps, strict=True))
    kernel = context.reshape(kernel, (*split, channels, features))
    phases = tuple(range(1, 2 * rank, 2))
    kernel = context.add("stablehlo.reverse", (kernel,), kernel.type, {"dimensions": phases})
    kernel = context.transpose(kernel, (*range(0, 2 * rank, 2), 2 * rank, *phases, 2 * rank + 1))
    return context.reshape(kernel, (*windows, channels, math.prod(steps) * features)), windows


CONVOLUTION_RULES: Mapping[str, Sequence[Rule]] = {
    "stablehlo.convolution": (product_of_each_group, phases_as_features)
}
