"""What ends a loop, and what its trips go by, is computed once.

The condition of a loop under `vmap` asks whether any of the lanes goes on, and its body asks the
same of each lane again, so that lanes which are done keep what they have.  Both have to get the
same answers: a lane that goes on by the one and is done by the other keeps the loop running for
ever.  Two expressions that are rounded differently, as they are fused with other things, need not.
A lane that is done is so for good, where that is known of it (lanes.py).
"""

from __future__ import annotations

from hlo_mlc.expr.dtypes import BOOL, Kind
from hlo_mlc.graph.core import Graph, Node, Value
from hlo_mlc.graph.effects import is_mergeable
from hlo_mlc.graph.rewrite import (
    copied_nodes,
    eliminate_dead_nodes,
    nodes_behind,
    with_other_values,
)
from hlo_mlc.ops.registry import MOVEMENT
from hlo_mlc.passes.common import node_key
from hlo_mlc.passes.invariant import FREE
from hlo_mlc.passes.lanes import ends_for_good
from hlo_mlc.passes.loop_rewriting import Rewritten, rewrite_loops

# What gives floats without rounding any.
_EXACT = MOVEMENT | FREE


def carry_conditions(graph: Graph) -> Graph:
    """`while any(c(x)) { x = where(c(x), f(x), x) }` ->
    `p = c(x); while any(p) { x = where(p, f(x), x); p = c(x) }`, where floats are rounded in c.

    Returns `graph` itself where no body computes again what its condition has.
    """
    return rewrite_loops(graph, lambda loop, _: _carried(loop))


def _carried(loop: Node) -> Rewritten | None:
    condition, body = loop.regions
    if not any(map(_rounds, condition.nodes)):
        return None
    made = {v: node for node in condition.nodes for v in node.results}
    again = _computed_again(condition, body)
    carried, needed = [], {}
    for value in _answers(condition, made, again):
        below = nodes_behind([value], made)
        if any(_rounds(node) for node in below):
            carried.append(value)
            needed |= dict.fromkeys(below)
    if not carried:
        return None
    nodes = [node for node in condition.nodes if node in needed]

    def computed(given: tuple[Value, ...]) -> tuple[list[Node], tuple[Value, ...]]:
        copies = dict(zip(condition.parameters, given, strict=True))
        return copied_nodes(nodes, copies), tuple([copies[v] for v in carried])

    before, first = computed(loop.operands)
    after, later = computed(body.results)
    for k, value in enumerate(carried):
        behind = nodes_behind([value], made)
        asking = [node for node in nodes if node in behind]
        if ends_for_good(value, again[value], asking, condition, body):
            still = Value(value.type)
            after.append(Node("stablehlo.and", (again[value], later[k]), (still,)))
            later = (*later[:k], still, *later[k + 1 :])
    regions = (
        _told(condition, carried, [], ()),
        _told(body, [again[v] for v in carried], after, later),
    )
    results = (*loop.results, *(Value(v.type) for v in carried))
    carrying = Node(
        loop.op, (*loop.operands, *first), results, loop.attributes, regions, location=loop.location
    )
    return Rewritten((*before, carrying), loop.results)


def _told(region: Graph, values: list[Value], nodes: list[Node], results: tuple) -> Graph:
    """A region that is given `values` and does not compute them; `nodes` and `results` come after
    its own."""
    given = set(values)
    kept = [node for node in region.nodes if given.isdisjoint(node.results)]
    return eliminate_dead_nodes(
        Graph((*region.parameters, *values), (*kept, *nodes), (*region.results, *results))
    )


def _computed_again(condition: Graph, body: Graph) -> dict[Value, Value]:
    """By value of the condition, the one of the body that is the same of the same numbers."""
    known = {node_key(node, {}): node for node in condition.nodes if is_mergeable(node)}
    known.pop(None, None)
    same = dict(zip(body.parameters, condition.parameters, strict=True))
    again = {}
    for node in body.nodes:
        if not is_mergeable(node):
            continue
        first = known.get(node_key(with_other_values(node, lambda v: same.get(v, v)), {}))
        if first is not None:
            same.update(zip(node.results, first.results, strict=True))
            again.update(zip(first.results, node.results, strict=True))
    return again


def _answers(condition: Graph, made: dict[Value, Node], again: dict[Value, Value]) -> list[Value]:
    """The yes or no of each lane nearest to the condition's result that the body computes again."""
    found: dict[Value, None] = {}
    pending, seen = list(condition.results), set()
    while pending:
        value = pending.pop()
        node = made.get(value)
        if node is None or value in seen:
            continue
        seen.add(value)
        if value in again and value.type.dtype is BOOL and len(node.results) == 1:
            found.setdefault(value)
        else:
            pending += node.used
    return list(found)


def _rounds(node: Node) -> bool:
    return node.op not in _EXACT and any(
        v.type is not None and v.type.dtype.kind in (Kind.FLOAT, Kind.COMPLEX) for v in node.results
    )
