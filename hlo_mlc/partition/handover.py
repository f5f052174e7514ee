"""When XLA hands a program to another thread, which takes longer than to run what is short.

Source: HloCostAnalysis (xla/service/hlo_cost_analysis.cc) and its use in PjRtCpuClient: programs
below a thousand operations run in the thread that calls them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from hlo_mlc.graph.core import Node
from hlo_mlc.ops.library_calls import DIALECT
from hlo_mlc.partition.nodes import moves
from hlo_mlc.partition.plan import CONTROL_FLOW

START_OPERATIONS = 1_000
# What it counts in other columns, and what nothing is known of; loops and branches are as long as
# what is in them, once.
_UNCOUNTED = frozenset((
    "hlo_mlc.kernel", "stablehlo.custom_call", "chlo.erf", *(f"stablehlo.{name}" for name in (
        "atan2", "cbrt", "cosine", "exponential", "exponential_minus_one", "log", "log_plus_one",
        "logistic", "power", "rsqrt", "sine", "sqrt", "tan", "tanh"))))


def counted_operations(nodes: Iterable[Node]) -> int:
    """How many operations XLA finds in them."""
    return sum(_counted(node) for node in nodes)


def _counted(node: Node) -> int:
    if node.op in CONTROL_FLOW:
        return sum(counted_operations(region.nodes) for region in node.regions)
    values = (*node.operands, *node.results)
    if node.op in _UNCOUNTED or node.op.startswith(DIALECT) or moves(node) \
            or any(value.type is None for value in values):
        return 0
    if node.op == "stablehlo.dot_general":
        left = node.operands[0].type.shape
        depth = math.prod(left[d] for d in node.attributes["lhs_contracting_dimensions"])
        return 2 * depth * node.results[0].type.size
    return max(value.type.size for value in values)
