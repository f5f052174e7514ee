"""Branches that cost next to nothing are all computed, and what is not wanted is not selected.

A choice then fuses with what is around it, and loops that choose can become kernels.  Nothing in
StableHLO traps, so computing what is not wanted is safe; only its cost counts.  Other branches stay
as they are, with their bodies compiled.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Mapping, Sequence

import numpy as np

from hlo_mlc.expr.dtypes import BOOL
from hlo_mlc.graph.core import Graph, Node, Value
from hlo_mlc.graph.rewrite import Rewriter, Rule, copied_nodes
from hlo_mlc.ops.registry import ELEMENTWISE, MOVEMENT, operation_cost
from hlo_mlc.passes.splat import splat

# Simple operations of all branches together.  Vectorized they take a microsecond, which is what
# XLA takes to choose a branch and to hand its operands over.
MOST_WORK = 1 << 14
MOST_NODES = 128
_UPDATED = 12  # for each element that is updated
# Updates, one of what the other gives, that are computed anew with what is selected: where others
# read them as well, n selections would have n² / 2 (60 of them took 10 s to compile, and 0.8).
_MOST_UPDATES = 4
_COMPUTED = (ELEMENTWISE | MOVEMENT) - {"stablehlo.optimization_barrier"}
_SCATTER = "stablehlo.scatter"
_UPDATES = frozenset(("stablehlo.dynamic_update_slice", _SCATTER))


def select_branch(node: Node, context: Rewriter) -> tuple[Value, ...] | None:
    """`if p { f(x) } else { g(x) }` -> `select(p, f(x), g(x))`, also for `case`; a known choice
    becomes the branch that it is

    What a branch updates is updated in place with what it holds already where the branch is not
    chosen:

        if p { x[i] = f(y) }   ->   x[i] = select(p, f(y), x[i])
    """
    branches = _in_order(node)
    known = splat(node.operands[0], context) if len(branches) > 1 else 0
    if known is not None:
        number = int(known)
        chosen = branches[number] if 0 <= number < len(branches) else branches[-1]
        return context.splice(chosen)
    if not node.results or sum(len(branch.nodes) for branch in branches) > MOST_NODES:
        return None
    updates = [_updates(branch) for branch in branches]
    if any(
        found is None or not _is_simple(branch, found)
        for branch, found in zip(branches, updates, strict=True)
    ):
        return None
    positions = list(zip(*(branch.results for branch in branches), strict=True))
    roots = [
        {_root(v, found) for v, found in zip(values, updates, strict=True) if v in found}
        for values in positions
    ]
    selected = sum(
        len(branches) * values[0].type.size
        for values in positions
        if len({_root(v, u) for v, u in zip(values, updates, strict=True)}) > 1
    )
    if any(len(found) > 1 for found in roots) or selected + sum(map(_work, branches)) > MOST_WORK:
        return None
    wanted = _choices(node.operands[0], len(branches), context)
    results = _whole_values(branches, updates, wanted, context)
    for branch, found, chosen in zip(branches, updates, wanted, strict=True):
        if found:
            # No other branch has changed anything where this one is chosen.
            state = {
                next(iter(root)): value for root, value in zip(roots, results, strict=True) if root
            }
            known = computed(branch, state, found, context)
            results = [
                _updated(value, given, found, known, chosen, context)
                for value, given in zip(results, branch.results, strict=True)
            ]
    return tuple(results)


def select_update(node: Node, context: Rewriter) -> Value | None:
    """`select(p, update(x, i, y), x)` -> `update(x, i, select(p, y, x[i]))` where p is one for all
    of x, or one for each of its batches, and few elements are updated"""
    predicate, *sides = node.operands
    wanted, dimensions = _one_for_all(predicate, context)
    for (changed, kept), wants in zip((sides, sides[::-1]), (True, False), strict=True):
        chain = _chain(changed, kept, context)
        if not chain or not all(_is_chosen_along(dimensions, update) for update in chain.values()):
            continue
        if _UPDATED * sum(map(_updated_elements, chain.values())) > kept.type.size:
            continue
        if not wants:
            wanted = context.like("stablehlo.not", wanted)
        return _updated(kept, changed, chain, {}, wanted, context, dimensions)
    return None


def _one_for_all(predicate: Value, context: Rewriter) -> tuple[Value, tuple[int, ...]]:
    """What a predicate is made of, and the dimensions that it differs along."""
    made = context.definition(predicate)
    if made is not None and made.op == "stablehlo.broadcast_in_dim":
        (value,), dimensions = made.operands, made.attributes["broadcast_dimensions"]
        if value.type.shape == tuple(predicate.type.shape[d] for d in dimensions):
            return value, tuple(dimensions)
    return predicate, tuple(range(len(predicate.type.shape)))


def _chain(value: Value, root: Value, context: Rewriter) -> dict[Value, Node]:
    """The few updates that make `value` of `root`, by their results; none where others do."""
    found: dict[Value, Node] = {}
    while value is not root:
        node = context.definition(value)
        if node is None or not _is_update(node) or len(found) == _MOST_UPDATES:
            return {}
        found[value] = node
        value = node.operands[0]
    return found


def _is_chosen_along(dimensions: Sequence[int], update: Node) -> bool:
    """Whether each index of an update is for one place along these dimensions."""
    batches = update.attributes["input_batching_dims"] if update.op == _SCATTER else ()
    return set(dimensions) <= set(batches)


def _whole_values(
    branches: Sequence[Graph],
    updates: Sequence[Mapping[Value, Node]],
    wanted: Sequence[Value],
    context: Rewriter,
) -> list[Value]:
    """The results without the updates, selected."""
    values = []
    for branch, found in zip(branches, updates, strict=True):
        known = computed(branch, {}, found, context)
        roots = [_root(v, found) for v in branch.results]
        values.append([known.get(v, v) for v in roots])
    results = values[-1]
    for value, chosen in zip(reversed(values[:-1]), reversed(wanted[:-1]), strict=True):
        results = [
            other if one is other else context.select(chosen, one, other)
            for one, other in zip(value, results, strict=True)
        ]
    return results


def _updates(branch: Graph) -> dict[Value, Node] | None:
    """The updates of a branch by their results; None where something but a further update or the
    end of the branch reads one."""
    found = {node.results[0]: node for node in branch.nodes if _is_update(node)}
    targets = Counter(node.operands[0] for node in found.values())
    uses = Counter((*branch.results, *(v for n in branch.nodes for v in n.operands)))
    inside = {v for node in branch.nodes for v in node.results}
    for value in found:
        if uses[value] != 1 or value not in (*branch.results, *targets):
            return None
        if _root(value, found) in inside:
            return None
    return found


def _is_update(node: Node) -> bool:
    return (
        node.op in _UPDATES
        and len(node.results) == 1
        and not node.opaque
        and (node.op != _SCATTER or _knows_nowhere(node))
    )


def _knows_nowhere(scatter: Node) -> bool:
    """Whether its indices can say a place that does not exist, along every axis they are for."""
    operand, indices, *_ = (v.type for v in scatter.operands)
    return (
        bool(indices.size)
        and indices.dtype.is_integer
        and max(operand.shape) <= np.iinfo(indices.dtype.numpy).max
    )


def _root(value: Value, updates: Mapping[Value, Node]) -> Value:
    """What a chain of updates begins with."""
    while value in updates:
        value = updates[value].operands[0]
    return value


def _updated(
    value: Value,
    given: Value,
    updates: Mapping[Value, Node],
    known: Mapping[Value, Value],
    wanted: Value,
    context: Rewriter,
    dimensions: Sequence[int] = (),
) -> Value:
    """`value` after the updates that lead to `given`, if they are `wanted`, which may differ along
    `dimensions` of it."""
    chain = []
    while given in updates:
        chain.append(updates[given])
        given = chain[-1].operands[0]
    for node in reversed(chain):
        changes = [known.get(v, v) for v in node.operands[1:]]
        if node.op == _SCATTER:  # elsewhere, its updates are for places that do not exist
            nowhere = context.constant(max(value.type.shape), changes[0].type)
            here = _for_indices(wanted, dimensions, node, context)
            changes[0] = context.select(here, changes[0], nowhere)
        else:
            new, *starts = changes
            old = context.dynamic_slice(value, starts, new.type.shape)
            changes[0] = context.select(wanted, new, old)
        (copy,) = copied_nodes([node], {})  # somebody else may read what the node itself gives
        value = context.add(node.op, (value, *changes), value.type, node.attributes, copy.regions)
    return value


def _for_indices(
    wanted: Value, dimensions: Sequence[int], scatter: Node, context: Rewriter
) -> Value:
    """What is `wanted` along batches of what a scatter updates, for each of its indices."""
    if not dimensions:
        return wanted
    batches = scatter.attributes["input_batching_dims"]
    along = scatter.attributes["scatter_indices_batching_dims"]
    shape = scatter.operands[1].type.shape
    return context.broadcast(wanted, shape, [along[batches.index(d)] for d in dimensions])


def _choices(choice: Value, count: int, context: Rewriter) -> list[Value]:
    """Whether each of the branches is chosen."""
    wanted = [_is_number(choice, number, context) for number in range(count - 1)]
    if choice.type.dtype is BOOL:
        return [*wanted, choice]
    other = wanted[0]
    for one in wanted[1:]:
        other = context.like("stablehlo.or", other, one)
    return [*wanted, context.like("stablehlo.not", other)]


def _in_order(node: Node) -> tuple[Graph, ...]:
    """The branches by the number that chooses them; other numbers choose the last one."""
    return node.regions[::-1] if node.op == "stablehlo.if" else node.regions


def _is_number(choice: Value, number: int, context: Rewriter) -> Value:
    if choice.type.dtype is BOOL:  # an `if`: number 0 is what a false predicate chooses
        return context.like("stablehlo.not", choice)
    return context.compare("EQ", choice, context.scalar(number, choice.type.dtype))


def _is_simple(branch: Graph, updates: Container[Value]) -> bool:
    """Whether a branch is made of simple operations besides these updates."""
    return all(
        not inner.opaque
        and (inner.op in _COMPUTED or any(v in updates for v in inner.results))
        and all(v.type.is_static for v in (*inner.operands, *inner.results))
        for inner in branch.nodes
    )


def _updated_elements(update: Node) -> int:
    return update.operands[2 if update.op == _SCATTER else 1].type.size


def _work(branch: Graph) -> int:
    """Simple operations of a branch."""
    total = 0
    for inner in branch.nodes:
        if inner.op in _UPDATES:
            total += _UPDATED * _updated_elements(inner)
        else:
            total += inner.results[0].type.size * operation_cost(inner)
    return total


def computed(
    branch: Graph, outside: Mapping[Value, Value], updates: Container[Value], context: Rewriter
) -> dict[Value, Value]:
    """What a branch computes besides these updates; `outside` are other values for those that it
    takes from outside."""
    known = dict(outside)
    for inner in branch.nodes:
        (result,) = inner.results
        if result in updates:
            continue
        if inner.literal is not None:
            known[result] = context.array(inner.literal)
            continue
        (copy,) = copied_nodes([inner], known)
        known[result] = context.add(
            copy.op, copy.operands, result.type, copy.attributes, copy.regions
        )
    return known


BRANCH_RULES: Mapping[str, Sequence[Rule]] = {
    "stablehlo.select": (select_update,),
    "stablehlo.if": (select_branch,),
    "stablehlo.case": (select_branch,),
}
