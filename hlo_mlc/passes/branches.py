"""Branches that cost next to nothing are all computed, and what is not wanted is not selected.

A choice then fuses with what is around it, and loops that choose can become kernels.  Nothing in
StableHLO traps, so computing what is not wanted is safe; only its cost counts.  Other branches stay
as they are, with their bodies compiled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from hlo_mlc.expr.dtypes import BOOL, TensorType
from hlo_mlc.graph.core import Graph, Node, Value
from hlo_mlc.graph.rewrite import Rewriter, Rule
from hlo_mlc.ops import elementwise
from hlo_mlc.passes.splat import splat

# Simple operations of all branches together.  Vectorized they take a microsecond, which is what
# XLA takes to choose a branch and to hand its operands over.
MOST_WORK = 1 << 14
MOST_NODES = 128
_COSTLY = 12  # what is more than one simple operation
_SIMPLE = frozenset(f"stablehlo.{name}" for name in (
    "abs", "add", "and", "bitcast_convert", "ceil", "clamp", "compare", "convert", "floor",
    "is_finite", "maximum", "minimum", "multiply", "negate", "not", "or", "select", "shift_left",
    "shift_right_arithmetic", "shift_right_logical", "sign", "subtract", "xor"))
_MOVES = frozenset(f"stablehlo.{name}" for name in (
    "broadcast_in_dim", "concatenate", "constant", "dynamic_slice", "iota", "pad", "reshape",
    "reverse", "slice", "transpose"))
_ELEMENTWISE = frozenset(definition.name for definition in elementwise.DEFINITIONS)


def select_branch(node: Node, context: Rewriter) -> tuple[Value, ...] | None:
    """`if p { f(x) } else { g(x) }` -> `select(p, f(x), g(x))`, also for `case`; a known choice
    becomes the branch that it is"""
    known = splat(node.operands[0], context)
    branches = _in_order(node)
    if known is not None:
        number = int(known)
        chosen = branches[number] if 0 <= number < len(branches) else branches[-1]
        return _inlined(chosen, context) if _is_simple(chosen) else None
    if not node.results or not all(map(_is_simple, branches)) \
            or sum(map(_work, branches)) > MOST_WORK \
            or sum(len(branch.nodes) for branch in branches) > MOST_NODES:
        return None
    choice = node.operands[0]
    values = [_inlined(branch, context) for branch in branches]
    results = values[-1]
    for number in reversed(range(len(branches) - 1)):
        wanted = _is_number(choice, number, context)
        results = tuple([
            context.add("stablehlo.select", (wanted, value, other), value.type)
            for value, other in zip(values[number], results, strict=True)])
    return results


def _in_order(node: Node) -> tuple[Graph, ...]:
    """The branches by the number that chooses them; other numbers choose the last one."""
    return node.regions[::-1] if node.op == "stablehlo.if" else node.regions


def _is_number(choice: Value, number: int, context: Rewriter) -> Value:
    if choice.type.dtype is BOOL:  # an `if`: number 0 is what a false predicate chooses
        return context.add("stablehlo.not", (choice,), choice.type)
    literal = context.constant(np.asarray(number, choice.type.dtype.numpy))
    return context.add("stablehlo.compare", (choice, literal), TensorType((), BOOL),
                       {"comparison_direction": "EQ", "compare_type": "SIGNED"})


def _is_simple(branch: Graph) -> bool:
    return all(not inner.opaque and (inner.op in _ELEMENTWISE or inner.op in _MOVES)
               and all(v.type.is_static for v in (*inner.operands, *inner.results))
               for inner in branch.nodes)


def _work(branch: Graph) -> int:
    """Simple operations, the selection of the results included."""
    total = sum(v.type.size for v in branch.results)
    for inner in branch.nodes:
        if inner.op not in _MOVES:
            total += inner.results[0].type.size * (1 if inner.op in _SIMPLE else _COSTLY)
    return total


def _inlined(branch: Graph, context: Rewriter) -> tuple[Value, ...]:
    """The results of a branch, computed where it is chosen."""
    known: dict[Value, Value] = {}
    for inner in branch.nodes:
        (result,) = inner.results
        if inner.literal is not None:
            known[result] = context.constant(inner.literal)
            continue
        operands = [known.get(value, value) for value in inner.operands]
        known[result] = context.add(inner.op, operands, result.type, inner.attributes)
    return tuple([known.get(value, value) for value in branch.results])


BRANCH_RULES: Mapping[str, Sequence[Rule]] = {
    "stablehlo.if": (select_branch,),
    "stablehlo.case": (select_branch,),
}
