"""What a call pays once, besides what is computed in it: for threads that sleep until then, and
for the one that XLA hands a program to, which takes longer than to run what is short.

Source: HloCostAnalysis (xla/service/hlo_cost_analysis.cc) and its use in PjRtCpuClient: programs
below a thousand operations run in the thread that calls them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from hlo_mlc.graph.core import Node
from hlo_mlc.ops.definition import OpKind
from hlo_mlc.ops.library_calls import DIALECT
from hlo_mlc.ops.registry import lookup, moves
from hlo_mlc.partition.calls import HOLDING
from hlo_mlc.partition.choose.xla_figures import figure
from hlo_mlc.target.rates import Rates

START_OPERATIONS = 1_000
# Roots and functions it counts in another column; of the functions of CHLO it has this one, the
# others are made of what it counts.  Of calls nothing is known; loops and branches are as long as
# what is in them, once.
_UNCOUNTED = frozenset(("stablehlo.sqrt", "chlo.erf", "stablehlo.custom_call", "hlo_mlc.kernel"))


def waking_us(forks: bool, rates: Rates) -> float:
    """What a program of ours pays: `forks` says that several threads share some of it."""
    return rates.fork_us if forks else 0.0


def xla_waking_us(forks: bool, nodes: Iterable[Node], rates: Rates) -> float:
    """What a program of XLA's pays; its loops have what they take on threads that are awake."""
    starts = counted_operations(nodes) >= START_OPERATIONS
    waking = max(0.0, rates.xla_fork_us - figure("fork_us")) if forks else 0.0
    return (rates.start_us if starts else 0.0) + waking


def starting_us(rates: Rates) -> float:
    """What a call mostly pays for the thread that XLA hands a program to: called again and again,
    that is awake, and the best calls of edge_sums showed 5 us of the 35 that half of them took.
    """
    return rates.start_us + rates.sleeping_us


def counted_operations(nodes: Iterable[Node]) -> int:
    """How many operations XLA finds in them."""
    return sum(_counted(node) for node in nodes)


def _counted(node: Node) -> int:
    if node.op in HOLDING:
        return sum(counted_operations(region.nodes) for region in node.regions)
    values = (*node.operands, *node.results)
    if (
        node.op in _UNCOUNTED
        or node.op.startswith(DIALECT)
        or moves(node)
        or _is_function(node)
        or any(value.type is None for value in values)
    ):
        return 0
    if node.op == "stablehlo.dot_general":
        left = node.operands[0].type.shape
        depth = math.prod(left[d] for d in node.attributes["lhs_contracting_dimensions"])
        return 2 * depth * node.results[0].type.size
    return max(value.type.size for value in values)


def _is_function(node: Node) -> bool:
    definition = lookup(node.op)
    return (
        definition is not None
        and definition.kind is OpKind.ELEMENTWISE
        and not definition.is_exact
        and node.op.startswith("stablehlo.")
    )
