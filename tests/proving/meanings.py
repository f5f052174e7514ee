"""What ops mean that the registry has no reference of, because rules make others of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from hlo_mlc.graph.core import Node
from hlo_mlc.ops.registry import evaluate_graph, references

# The static op that each dynamic one is defined by, how many operands it has, and the attributes
# that stand for the others.  Source: StableHLO specification.
DYNAMIC = {
    f"stablehlo.{name}": (f"stablehlo.{static}", count, names)
    for name, static, count, names in (
        ("dynamic_broadcast_in_dim", "broadcast_in_dim", 1, ()),
        ("dynamic_reshape", "reshape", 1, ()),
        ("dynamic_iota", "iota", 0, ()),
        ("real_dynamic_slice", "slice", 1, ("start_indices", "limit_indices", "strides")),
        ("dynamic_pad", "pad", 2, ("edge_padding_low", "edge_padding_high", "interior_padding")),
        ("dynamic_gather", "gather", 2, ("slice_sizes",)),
        ("dynamic_conv", "convolution", 2, ("padding",)),
    )
}


def dynamic_meaning(node: Node, operands: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
    static, count, names = DYNAMIC[node.op]
    said = {
        name: tuple(tuple(n) if isinstance(n, list) else n for n in array.tolist())
        for name, array in zip(names, operands[count:], strict=bool(names))
    }
    node = replace(
        node, op=static, operands=node.operands[:count], attributes={**node.attributes, **said}
    )
    return references[static](node, operands[:count])


def scan_meaning(node: Node, operands: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
    """Row by row."""
    (region,), axis = node.regions, node.attributes["dimension"]
    carried = node.attributes["operandSegmentSizes"][1]
    inputs, state = operands[:-carried], tuple(operands[-carried:])
    rows = []
    count = inputs[0].shape[axis]
    order = range(count)[::-1] if node.attributes.get("is_reverse") else range(count)
    for k in order:
        results = evaluate_graph(region, [*(x.take(k, axis) for x in inputs), *state])
        rows.append(results[:-carried])
        state = results[-carried:]
    outputs = [np.zeros(v.type.shape, v.type.dtype.numpy) for v in node.results[:-carried]]
    for k, row in zip(order, rows, strict=True):
        for output, part in zip(outputs, row, strict=True):
            np.moveaxis(output, axis, 0)[k] = part
    return (*outputs, *state)


def bitcast_meaning(node: Node, operands: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
    result = node.results[0].type
    return (np.ascontiguousarray(operands[0]).view(result.dtype.numpy).reshape(result.shape),)


def scatter_meaning(node: Node, operands: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
    """Window by window, into several arrays at once whose windows are all there is along axes that
    no place is for."""
    count = len(node.results)
    if count == 1:
        return references[node.op](node, operands)
    (body,), a = node.regions, node.attributes
    assert not a["input_batching_dims"]
    olds, places, news = operands[:count], operands[count], operands[count + 1 :]
    results = [old.copy() for old in olds]
    vectors = np.moveaxis(places, a["index_vector_dim"], -1)
    rows = [
        np.moveaxis(new, a["update_window_dims"], range(-len(a["update_window_dims"]), 0))
        for new in news
    ]
    for batch in np.ndindex(vectors.shape[:-1]):
        starts = dict(zip(a["scatter_dims_to_operand_dims"], vectors[batch].tolist(), strict=True))
        if not all(0 <= at < olds[0].shape[axis] for axis, at in starts.items()):
            continue
        place = tuple([starts.get(axis, slice(None)) for axis in range(olds[0].ndim)])
        windows = [result[(*place, ...)] for result in results]
        for window in np.ndindex(windows[0].shape):
            scalars = [np.asarray(one[window]) for one in windows]
            scalars += [np.asarray(row[batch][window]) for row in rows]
            for one, value in zip(windows, evaluate_graph(body, scalars), strict=True):
                one[window] = value
    return tuple(results)


MEANINGS = {
    "chlo.scan": scan_meaning,
    "stablehlo.scatter": scatter_meaning,
    "stablehlo.bitcast_convert": bitcast_meaning,
    **dict.fromkeys(DYNAMIC, dynamic_meaning),
}
