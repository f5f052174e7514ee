"""What each lane of a loop goes by: an answer that, once it is no, stays no.

    while any(p) { x = where(p, f(x), x); p = c(x) }

A lane of which p is no keeps its x, and c asks nothing of other lanes: so its p is no for good.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hlo_mlc.graph.core import Graph, Node, Value
from hlo_mlc.ops.registry import ELEMENTWISE


def ends_for_good(answer: Value, asking: Iterable[Node], condition: Graph, body: Graph) -> bool:
    """Whether what the condition of a loop computes of its parameters by the nodes `asking` stays
    the same in a lane where `answer`, a parameter of its body, is no.

    Lanes are elements of `answer`: rows of values whose first dimensions are its own.
    """
    lanes = answer.type.shape
    if not lanes:
        return False
    steady, kept = set(), set()
    makers = {v: node for node in body.nodes for v in node.results}
    for parameter, before, after in zip(
        condition.parameters, body.parameters, body.results, strict=False
    ):
        if after is before:
            steady.add(parameter)
        elif _keeps(makers, after, answer, before):
            kept.add(parameter)
    changing = {*condition.parameters} - steady
    for node in asking:
        if changing.isdisjoint(node.used):
            continue
        changing.update(node.results)
        if all(v in kept or v not in changing for v in node.used) and _is_by_lanes(
            node, [v for v in node.operands if v in kept], lanes
        ):
            kept.update(node.results)
        else:
            return False
    return True


def _keeps(makers: Mapping[Value, Node], after: Value, answer: Value, before: Value) -> bool:
    """Whether what a loop carries is what was `before` in all rows where the answer is no."""
    maker = makers.get(after)
    if maker is None or maker.op != "stablehlo.select" or maker.operands[2] is not before:
        return False
    chosen_by = maker.operands[0]
    spread = makers.get(chosen_by)
    if spread is not None and spread.op == "stablehlo.broadcast_in_dim":
        rows = tuple(range(len(answer.type.shape)))
        return spread.operands[0] is answer and spread.attributes["broadcast_dimensions"] == rows
    return chosen_by is answer


def _is_by_lanes(node: Node, kept: list[Value], lanes: tuple[int, ...]) -> bool:
    """Whether each row of what a node gives is made of that row of its operands `kept`."""
    count = len(lanes)
    (result, *others) = node.results
    if others or result.type.shape[:count] != lanes:
        return False
    if any(v.type.shape[:count] != lanes for v in kept):
        return False
    given = node.attributes
    match node.op.removeprefix("stablehlo."):
        case "reshape":
            return True
        case "broadcast_in_dim":
            return given["broadcast_dimensions"][:count] == (*range(count),)
        case "slice":
            return given["strides"][:count] == (1,) * count  # all of them, as the shapes are
        case "concatenate":
            return given["dimension"] >= count
        case "reduce":
            return min(given["dimensions"]) >= count
        case _:
            return node.op in ELEMENTWISE
