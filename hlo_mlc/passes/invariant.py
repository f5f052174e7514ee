"""Loop-invariant code motion: what is the same in every trip is computed once, before the loop."""

from __future__ import annotations

from dataclasses import replace

from hlo_mlc.graph.core import WHILE, Graph, Node, Value
from hlo_mlc.graph.counting import Known, counting
from hlo_mlc.graph.effects import is_mergeable
from hlo_mlc.graph.rewrite import with_other_values, with_parts
from hlo_mlc.ops.registry import DEFINITIONS, ELEMENTWISE, MOVEMENT
from hlo_mlc.passes.loop_rewriting import Rewritten, rewrite_loops

# Computed where they are read, in every trip, at no cost.
FREE = frozenset(
    f"stablehlo.{name}" for name in ("broadcast_in_dim", "constant", "iota", "reshape")
)
# Cost less to compute again than to load, where the result is larger than what it is made of.
_CHEAP = MOVEMENT | {name for name in ELEMENTWISE if DEFINITIONS[name].cost <= 2}
# So many of them cost what a load from the second level does.
_MOST_OPERATIONS = 4
# Bytes that a value may take which is larger than what it is made of.
_MOST_GROWN_BYTES = 64 << 20
# Nobody knows what they cost, or whether they end.
_UNKNOWN = frozenset((WHILE, "stablehlo.custom_call"))
# The same where they run in any case.
_UNCALLED = frozenset(("stablehlo.custom_call",))


def hoist_invariants(graph: Graph) -> Graph:
    """`while(x) { x = x * exp(w) }` -> `e = exp(w); while(x) { x = x * e }`, inner loops first.

    A loop that may run no trip at all wastes one evaluation; loops of one trip are left.  Inner
    loops, which need not end, move out of loops that are known to run.  Whatever is free stays
    inside, and so does what is cheap and larger than what it is made of, a few operations on iotas
    for instance.  Returns `graph` itself where nothing moved.
    """
    return rewrite_loops(graph, _hoist)


def _hoist(loop: Node, known: Known) -> Rewritten | None:
    found = counting(loop, known)
    if found is not None and found.trips < 2:
        return None
    outside: list[Node] = []
    regions = []
    for region in loop.regions:
        moved, left = _split(region, found is not None)
        outside += moved
        regions.append(left)
    if not outside:
        return None
    return Rewritten((*outside, with_parts(loop, loop.operands, tuple(regions))), loop.results)


def _split(region: Graph, runs: bool) -> tuple[list[Node], Graph]:
    """(nodes to compute before the loop, the region without them); `runs`: it surely is."""
    invariant = invariant_nodes(region, runs)
    staying = _staying(invariant)
    # What the rest of the region reads, followed down through what stays inside.
    pending = list(region.results)
    for node in region.nodes:
        if invariant.get(node.results[0] if node.results else None) is not node:
            pending += node.used
    inside: set[Node] = set()
    outside: set[Node] = set()
    while pending:
        node = invariant.get(pending.pop())
        if node is None or node in inside or node in outside:
            continue
        if node in staying:
            inside.add(node)
            pending += node.used
        else:
            outside.add(node)
    if not outside:
        return [], region
    needed = _needed(outside, invariant)
    moved: list[Node] = []
    copies: dict[Value, Value] = {}
    for node in dict.fromkeys(invariant.values()):
        if node not in needed:
            continue
        if node in inside:  # computed on both sides
            operands = tuple([copies.get(v, v) for v in node.operands])
            results = tuple([Value(v.type) for v in node.results])
            copies.update(zip(node.results, results, strict=True))
            moved.append(replace(node, operands=operands, results=results))
        else:
            moved.append(with_other_values(node, lambda v: copies.get(v, v)))
    gone = {node for node in needed if node not in inside}
    left = tuple([node for node in region.nodes if node not in gone])
    return moved, Graph(region.parameters, left, region.results)


def invariant_nodes(region: Graph, runs: bool = False) -> dict[Value, Node]:
    """By result, in order, the pure nodes of a loop's region that depend on nothing in it; where
    the region `runs` for sure, loops are among them."""
    varying = set(region.parameters)
    found: dict[Value, Node] = {}
    for node in region.nodes:
        if varying.isdisjoint(node.used) and _is_movable(node, runs):
            found.update((value, node) for value in node.results)
        else:
            varying.update(node.results)
    return found


def _is_movable(node: Node, runs: bool) -> bool:
    unknown = _UNCALLED if runs else _UNKNOWN
    if not node.results or node.op in unknown or not is_mergeable(node):
        return False
    if any(v.type is None or not v.type.is_static for v in node.results):
        return False
    return not any(inner.op in unknown for region in node.regions for inner in region.walk())


def _staying(invariant: dict[Value, Node]) -> set[Node]:
    """The invariant nodes that are computed in every trip, because that costs nothing or less than
    a load of what they make."""
    inside: set[Node] = set()
    behind: dict[Value, tuple[int, int]] = {}  # bytes to read, and operations, where it is used
    for node in dict.fromkeys(invariant.values()):
        operands = [behind.get(v, (v.type.bytes, 0)) for v in dict.fromkeys(node.used)]
        read, operations = (
            (sum(part) for part in zip(*operands, strict=True)) if operands else (0, 0)
        )
        if node.op not in FREE:
            operations += 1
            made = sum(v.type.bytes for v in node.results)
            cheap = node.op in _CHEAP and operations <= _MOST_OPERATIONS
            if made <= read or not (cheap or made > _MOST_GROWN_BYTES):
                continue
        inside.add(node)
        behind.update(dict.fromkeys(node.results, (read, operations)))
    return inside


def _needed(roots: set[Node], invariant: dict[Value, Node]) -> set[Node]:
    found: set[Node] = set()
    pending = list(roots)
    while pending:
        node = pending.pop()
        if node not in found:
            found.add(node)
            pending += [invariant[v] for v in node.used if v in invariant]
    return found
