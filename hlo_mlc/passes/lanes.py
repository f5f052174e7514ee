"""What each lane of a loop goes by: an answer that, once it is no, stays no.

    while any(p) { x = where(p, f(x), x); p = c(x) }

A lane of which p is no keeps its x, and c asks nothing of other lanes: so its p is no for good.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from hlo_mlc.graph.core import Graph, Node, Value
from hlo_mlc.ops.registry import ELEMENTWISE

Dimensions = tuple[int, ...]
"""Those of an array along which lanes lie, in the order of the answer's."""


def ends_for_good(
    asked: Value, answer: Value, asking: Iterable[Node], condition: Graph, body: Graph
) -> bool:
    """Whether what is `asked` by the condition of a loop, which the nodes `asking` compute, stays
    the same in a lane where `answer`, the same in its body, is no.  Lanes are its elements."""
    lanes = tuple(range(len(answer.type.shape)))
    if not lanes:
        return False
    made = {v: node for node in body.nodes for v in node.results}
    changing: dict[Value, Dimensions | None] = {}
    parameters = zip(condition.parameters, body.parameters, body.results, strict=False)
    for parameter, before, after in parameters:
        if after is not before:
            changing[parameter] = _kept(made, after, answer, before)
    for node in asking:
        if changing.keys().isdisjoint(node.used):
            continue
        given = {changing[v] for v in node.used if v in changing}
        at = None if None in given or len(given) > 1 else _behind(node, *given, changing)
        if at is None:
            return False
        changing[node.results[0]] = at
    return changing.get(asked, lanes) == lanes


def _kept(
    made: Mapping[Value, Node], after: Value, answer: Value, before: Value
) -> Dimensions | None:
    """Along which dimensions of what a loop carries lanes lie that are what they were `before`
    where the answer is no."""
    node = made.get(after)
    if node is None or node.op != "stablehlo.select" or node.operands[2] is not before:
        return None
    chosen_by = node.operands[0]
    if chosen_by is answer:
        return tuple(range(len(answer.type.shape)))
    spread = made.get(chosen_by)
    if spread is None or spread.op != "stablehlo.broadcast_in_dim":
        return None
    at = spread.attributes["broadcast_dimensions"]
    whole = tuple(chosen_by.type.shape[d] for d in at) == answer.type.shape
    return at if whole and spread.operands[0] is answer else None


def _behind(node: Node, at: Dimensions, changing: Mapping[Value, object]) -> Dimensions | None:
    """Along which dimensions of what a node gives lanes lie, each of which is made of that lane of
    its operands, which has them `at` these; None where it is not."""
    if len(node.results) > 1 or any(v in changing for r in node.regions for v in r.captures):
        return None
    (source, *_), (result,) = [v for v in node.operands if v in changing], node.results
    before, after, given = source.type.shape, result.type.shape, node.attributes
    match node.op.removeprefix("stablehlo."):
        case "reshape":
            starts = [math.prod(after[:d]) for d in range(len(after))]
            sizes = [*zip(starts, after, strict=True)]
            wanted = [(math.prod(before[:d]), before[d]) for d in at]
            found = tuple(sizes.index(w) for w in wanted if w in sizes)
            return found if len(set(found)) == len(at) else None
        case "broadcast_in_dim":
            found = tuple(given["broadcast_dimensions"][d] for d in at)
        case "transpose":
            found = tuple(given["permutation"].index(d) for d in at)
        case "concatenate" if given["dimension"] not in at:
            found = at
        case "reduce" if not {*given["dimensions"]} & {*at}:
            found = tuple(d - sum(other < d for other in given["dimensions"]) for d in at)
        case "slice":
            found = at
        case _ if node.op in ELEMENTWISE:
            found = at
        case _:
            return None
    whole = [after[d] for d in found] == [before[d] for d in at]
    return found if whole else None
