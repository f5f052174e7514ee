"""Updates of complex numbers at a place that is known: pointwise, where a scatter would not be.

`x.at[2:5, 1].multiply(y)` is written as a scatter.  Scatters of real numbers are updates in place;
of complex ones, which are two numbers each, only sums and replacements can be, and nothing that is
pointwise is computed with them.  Gates of a quantum circuit took 0.15 of the time so.
"""

from __future__ import annotations

from hlo_mlc.expr.dtypes import I32, Kind
from hlo_mlc.graph.core import Graph, Node, Value
from hlo_mlc.graph.rewrite import Rewriter, apply_rules
from hlo_mlc.passes.movement import combined
from hlo_mlc.passes.splat import splat


def known_updates(graph: Graph) -> Graph:
    """The graph with such updates as slices; `graph` itself where there are none."""
    return apply_rules(graph, {"stablehlo.scatter": (scatter_of_part,)})


def scatter_of_part(node: Node, context: Rewriter) -> Value | None:
    """`scatter(x, constants, y, f)`, of one window of complex numbers -> `x` with `f(slice, y)`"""
    if len(node.operands) != 3 or node.operands[0].type.dtype.kind is not Kind.COMPLEX:
        return None
    operand, indices, update = node.operands
    start, shape, given = _vector(indices, context), operand.type.shape, node.attributes
    dims, inserted = given["scatter_dims_to_operand_dims"], given["inserted_window_dims"]
    rank = len(update.type.shape)
    if (
        start is None
        or len(start) != len(dims)
        or given.get("input_batching_dims")
        or given["update_window_dims"] != tuple(range(rank))
    ):
        return None
    sizes = iter(update.type.shape)
    window = tuple(1 if d in inserted else next(sizes) for d in range(len(shape)))
    first = [0] * len(shape)
    for d, at in zip(dims, start, strict=True):
        first[d] = at
    if any(
        not 0 <= at <= extent - size for at, extent, size in zip(first, shape, window, strict=True)
    ):
        return None  # which drops it all
    limits = tuple(at + size for at, size in zip(first, window, strict=True))
    part, new = context.slice(operand, first, limits), context.reshape(update, window)
    result = combined(node, context, part, new)
    if result is None:
        return None
    return context.update(operand, result, [context.scalar(at, I32) for at in first])


def _vector(value: Value, context: Rewriter) -> list[int] | None:
    """Integers that are constants, be they joined of several."""
    literal, maker = context.literal(value), context.definition(value)
    if literal is not None:
        return [int(n) for n in literal.reshape(-1)]
    parts = (
        maker.operands if maker is not None and maker.op == "stablehlo.concatenate" else (value,)
    )
    known = [(splat(part, context), part.type.size) for part in parts]
    if any(n is None for n, _ in known):
        return None
    return [int(n) for n, count in known for _ in range(count)]
