"""Loop distribution: products of one row in each trip become one product of all rows, before it.

For rows of what the loop does not change:

    while(i, h) { h = tanh(xs[i] @ w + h @ u) }
    ->  p = xs @ w; while(i, h) { h = tanh(p[i] + h @ u) }

A matrix is then read once and not in every trip.
"""

from __future__ import annotations

import math

from hlo_mlc.expr.dtypes import TensorType
from hlo_mlc.graph.core import Graph, Node, Value
from hlo_mlc.graph.counting import Known, counting
from hlo_mlc.graph.rewrite import NodeList
from hlo_mlc.ops.contraction import DotAxes
from hlo_mlc.ops.registry import ELEMENTWISE
from hlo_mlc.passes.loop_rewriting import Rewritten, rewrite_loops
from hlo_mlc.passes.rows import DOT_OP, Rows, stacked

# Bytes of all rows together that may be kept for a loop.
MOST_BYTES = 64 << 20
# Products of fewer terms cost no more than storing and loading them.
LEAST_TERMS = 8


def multiply_before_loops(graph: Graph) -> Graph:
    """`while { … xs[i] @ w … }` -> `p = xs @ w; while { … p[i] … }`, also for parts of a product.

    Only in loops with at least as many trips as there are rows.  Returns `graph` itself where
    there is no such product.
    """
    return rewrite_loops(graph, _multiply_before)


def terms_of(product: Node) -> int:
    """How many products are added for one element of a dot_general."""
    shape = product.operands[0].type.shape
    return math.prod(shape[d] for d in DotAxes.of(product).lhs_contracting)


def _multiply_before(loop: Node, known: Known) -> Rewritten | None:
    found = counting(loop, known)
    if found is None or found.trips < 2:
        return None
    condition, body = loop.regions
    body = _parted(body, found.trips)
    rows = Rows.of(body)
    moved = _worth_moving(rows, found.trips)
    if not moved:
        return None
    read = set(body.results)
    for node in body.nodes:
        if not moved.issuperset(node.results):
            read.update(node.used)
    before = NodeList(loop.location)
    nodes: list[Node] = []
    for node in body.nodes:
        value = node.results[0] if node.results else None
        if value not in moved:
            nodes.append(node)
        elif value in read:
            nodes += _row(value, rows.rows[value].start, rows.whole(value, before))
    closed = Graph(body.parameters, tuple(nodes), body.results)
    replaced = Node(
        loop.op,
        loop.operands,
        loop.results,
        loop.attributes,
        (condition, closed),
        location=loop.location,
    )
    return Rewritten((*before.nodes, replaced), loop.results)


def _worth_moving(rows: Rows, trips: int) -> set[Value]:
    """Products of rows, and what is elementwise and no larger behind them."""
    moved: set[Value] = set()
    total = 0
    for node in rows.body.nodes:
        row = rows.rows.get(node.results[0]) if node.results else None
        if row is None or row.count > trips:
            continue
        (value,) = node.results
        size = stacked(value.type, row.count).bytes
        if total + size > MOST_BYTES:
            continue
        follows = node.op in ELEMENTWISE and any(
            v in moved and v.type.size >= value.type.size for v in node.operands
        )
        if follows or (node.op == DOT_OP and terms_of(node) >= LEAST_TERMS):
            moved.add(value)
            total += size
    return moved


def _row(value: Value, start: Value, whole: Value) -> list[Node]:
    """Nodes that let `value` be row `start` of `whole`."""
    shape, new = value.type.shape, NodeList()
    starts = (start, *(new.scalar(0, start.type.dtype),) * len(shape))
    one = new.dynamic_slice(whole, starts, (1, *shape))
    new.add("stablehlo.reshape", (one,), value)
    return new.nodes


def _parted(body: Graph, trips: int) -> Graph:
    """`concatenate(x, h) @ w` -> `x @ w[:n] + h @ w[n:]` where x is a row and h is not."""
    rows = Rows.of(body)
    nodes: list[Node] = []
    for node in body.nodes:
        new = NodeList(node.location)
        total = _sum_of_parts(node, rows, trips, new) if node.op == DOT_OP else None
        if total is None:
            nodes.append(node)
        else:
            *others, last = [*new.nodes]
            nodes += [*others, Node(last.op, last.operands, node.results, location=node.location)]
    return Graph(body.parameters, tuple(nodes), body.results)


def _sum_of_parts(node: Node, rows: Rows, trips: int, new: NodeList) -> Value | None:
    """The product as a sum over runs of the parts that one factor is made of."""
    result = node.results[0].type
    if result.dtype.is_narrow_float:
        return None  # a second rounding
    axes = DotAxes.of(node)
    contracting = (axes.lhs_contracting, axes.rhs_contracting)
    for side in (0, 1):
        joined = rows.made.get(node.operands[side])
        factor = node.operands[1 - side]
        if joined is None or joined.op != "stablehlo.concatenate" or not rows.is_invariant(factor):
            continue
        axis = joined.attributes["dimension"]
        if axis not in contracting[side]:
            continue
        other = contracting[1 - side][contracting[side].index(axis)]
        runs = _runs(joined.operands, rows, trips, result)
        if len(runs) < 2:
            continue
        products, start = [], 0
        for part in runs:
            size = sum(v.type.shape[axis] for v in part)
            shape = joined.results[0].type.shape
            whole = (
                part[0]
                if len(part) == 1
                else new.add(
                    joined.op,
                    part,
                    TensorType((*shape[:axis], size, *shape[axis + 1 :]), part[0].type.dtype),
                    {"dimension": axis},
                )
            )
            factors = [whole, new.cut(factor, other, start, size)]
            products.append(
                new.add(DOT_OP, factors[::-1] if side else factors, result, node.attributes)
            )
            start += size
        total = products[0]
        for product in products[1:]:
            total = new.add("stablehlo.add", (total, product), result)
        return total
    return None


def _runs(
    parts: tuple[Value, ...], rows: Rows, trips: int, result: TensorType
) -> list[list[Value]]:
    """Neighbouring parts together that are rows, or are not; one run where none can be moved."""
    runs: list[list[Value]] = []
    starts: list[Value | None] = []
    for part in parts:
        row = rows.rows.get(part)
        movable = (
            row is not None
            and row.count <= trips
            and stacked(result, row.count).bytes <= MOST_BYTES
        )
        start = row.start if movable else None
        if starts and starts[-1] is start:
            runs[-1].append(part)
        else:
            runs.append([part])
            starts.append(start)
    return runs
