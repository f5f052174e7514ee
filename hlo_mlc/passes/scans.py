"""`chlo.scan` as windows, where it is a running sum or product, and as a loop.

    scan(xs) inits(0) {(x, s) -> x + s}    ->   reduce_window(xs, 0, +), from the start of the axis
    scan(xs) inits(s) {(x, s) -> (y, t)}   ->   while i < n: ys[i], s = f(xs[i], s); i = i + 1

With `is_reverse` from the last element to the first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from hlo_mlc.expr.dtypes import I32, TensorType
from hlo_mlc.graph.builder import combining
from hlo_mlc.graph.core import WHILE, Graph, Node, Value
from hlo_mlc.graph.rewrite import NodeList, Rewriter, Rule
from hlo_mlc.passes.splat import is_splat_of

_NEUTRAL = {"stablehlo.add": 0.0, "stablehlo.multiply": 1.0}
_COUNTER = TensorType((), I32)


def scan_as_windows(node: Node, context: Rewriter) -> tuple[Value, ...] | None:
    """`scan(xs) inits(0) {x + s}` -> `reduce_window(xs, 0) {+}`, and the last element of it

    As JAX writes cumulative sums and products for GPUs, where the order of terms is free.
    """
    (region,) = node.regions
    if (
        not node.attributes.get("is_associative")
        or len(node.operands) != 2
        or len(region.nodes) != 1
        or not node.operands[0].type.is_static
    ):
        return None
    (step,), (xs, start) = region.nodes, node.operands
    if (
        step.op not in _NEUTRAL
        or set(step.operands) != set(region.parameters)
        or region.results != (step.results[0],) * 2
        or not is_splat_of(start, _NEUTRAL[step.op], context)
    ):
        return None
    axis, shape = node.attributes["dimension"], xs.type.shape
    if shape[axis] == 0:
        return None
    lines, scalar = NodeList(node.location), TensorType((), xs.type.dtype)
    neutral = lines.constant(_NEUTRAL[step.op], scalar)
    around = (shape[axis] - 1, 0) if not node.attributes.get("is_reverse") else (0, shape[axis] - 1)
    running = lines.add(
        "stablehlo.reduce_window",
        (xs, neutral),
        xs.type,
        {
            "window_dimensions": tuple(n if d == axis else 1 for d, n in enumerate(shape)),
            "padding": tuple(around if d == axis else (0, 0) for d in range(len(shape))),
        },
        (combining(step.op, xs.type.dtype),),
    )
    end = 0 if node.attributes.get("is_reverse") else shape[axis] - 1
    last = lines.reshape(lines.cut(running, axis, end, 1), start.type.shape)
    return context.splice(Graph((), tuple(lines.nodes), (running, last)))


def scan_as_loop(node: Node, context: Rewriter) -> tuple[Value, ...] | None:
    """`scan(xs) inits(s) {f}` -> `while i < n: ys[i], s = f(xs[i], s)`"""
    (region,) = node.regions
    if any(
        v.type is None or not v.type.is_static
        for v in (*node.operands, *node.results, *region.parameters)
    ):
        return None
    axis = node.attributes["dimension"]
    carried = _carried(node)
    inputs = node.operands[: len(node.operands) - carried]
    outputs = node.results[: len(node.results) - carried]
    lengths = {v.type.shape[axis] for v in (*inputs, *outputs)}
    if len(lengths) != 1:  # nothing says how often it runs
        return None
    (trips,) = lengths
    outside = NodeList(node.location)
    start = outside.scalar(0, I32)
    buffers = [outside.constant(0, v.type) for v in outputs]
    state = (start, *buffers, *node.operands[len(inputs) :])
    body = _body(node, region, inputs, len(outputs), axis, trips)
    results = tuple(Value(v.type) for v in state)
    outside.nodes.append(
        Node(WHILE, state, results, {}, (_condition(state, trips), body), location=node.location)
    )
    return context.splice(Graph((), tuple(outside.nodes), results))[1:]


def _carried(node: Node) -> int:
    """How many values go from one trip to the next: of the body's parameters, those that are no
    part of an operand."""
    return node.attributes["operandSegmentSizes"][1]


def _condition(state: Sequence[Value], trips: int) -> Graph:
    lines, parameters = NodeList(""), tuple(Value(v.type) for v in state)
    goes_on = lines.compare("LT", parameters[0], lines.scalar(trips, I32))
    return Graph(parameters, tuple(lines.nodes), (goes_on,))


def _body(
    node: Node, region: Graph, inputs: Sequence[Value], outputs: int, axis: int, trips: int
) -> Graph:
    lines, counter = NodeList(node.location), Value(_COUNTER)
    buffers = [Value(v.type) for v in node.results[:outputs]]
    place = counter
    if node.attributes.get("is_reverse"):
        place = lines.like("stablehlo.subtract", lines.scalar(trips - 1, I32), counter)

    def starts(rank: int) -> Iterator[Value]:
        return (place if d == axis else lines.scalar(0, I32) for d in range(rank))

    for whole, part in zip(inputs, region.parameters[: len(inputs)], strict=True):
        shape = whole.type.shape
        sizes = (*shape[:axis], 1, *shape[axis + 1 :])
        row = lines.dynamic_slice(whole, [*starts(len(shape))], sizes)
        lines.add("stablehlo.reshape", (row,), part)
    lines.nodes += region.nodes
    filled = []
    for buffer, part in zip(buffers, region.results[:outputs], strict=True):
        shape = buffer.type.shape
        row = lines.reshape(part, (*shape[:axis], 1, *shape[axis + 1 :]))
        filled.append(lines.update(buffer, row, [*starts(len(shape))]))
    following = lines.like("stablehlo.add", counter, lines.scalar(1, I32))
    return Graph(
        (counter, *buffers, *region.parameters[len(inputs) :]),
        tuple(lines.nodes),
        (following, *filled, *region.results[outputs:]),
    )


SCAN_RULES: Mapping[str, Sequence[Rule]] = {"chlo.scan": (scan_as_windows, scan_as_loop)}
