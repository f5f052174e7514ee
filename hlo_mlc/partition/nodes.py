"""What single nodes cost: what they compute for an element, and how often they read others."""

from __future__ import annotations

import math

from hlo_mlc.graph.core import Node, Value
from hlo_mlc.ops import elementwise

ELEMENTWISE = frozenset(d.name for d in elementwise.DEFINITIONS)

# Terms of a reduction that is written out: lanes along so short a row would stay empty, while
# those along its results are full.  With 5 and 6, softmax and logsumexp of 20,000 rows took 0.2 to
# 0.6 of the time, sums and distances 0.5 to 1.0, products of two arrays 0.9 to 1.7; with 8, sums
# took 1.1 to 1.4 of it.
SHORT_FOLD = 6

_COSTLY = {"divide": 4, "sqrt": 4, "rsqrt": 6, "remainder": 8, "power": 30, "atan2": 30}
_TRANSCENDENTAL = 12
_SIMPLE = frozenset((
    "add", "subtract", "multiply", "maximum", "minimum", "and", "or", "xor", "not", "negate", "abs",
    "compare", "select", "clamp", "convert", "shift_left", "shift_right_logical",
    "shift_right_arithmetic", "sign", "floor", "ceil", "is_finite", "round_nearest_even",
    "round_nearest_afz", "bitcast_convert", "popcnt", "count_leading_zeros"))
_MOVEMENT = frozenset((
    "broadcast_in_dim", "reshape", "transpose", "slice", "pad", "concatenate", "reverse", "iota",
    "constant", "dynamic_slice", "gather", "optimization_barrier"))


def moves(node: Node) -> bool:
    """Its results are elements of its operands, or known: nothing is computed."""
    return node.op.partition(".")[2] in _MOVEMENT


def operation_cost(node: Node) -> int:
    """Rough cost of one result element of a pointwise op, in simple operations."""
    name = node.op.partition(".")[2]
    if moves(node):
        return 0
    if name in _SIMPLE:
        return 1
    return _COSTLY.get(name, _TRANSCENDENTAL)


def is_written_out(reduction: Node) -> bool:
    """A reduction of so few terms that they are part of what reads their sum."""
    count = math.prod(reduction.operands[0].type.shape[d]
                      for d in reduction.attributes["dimensions"])
    return 0 < count <= SHORT_FOLD


def most_terms(node: Node) -> int:
    """How many terms a fold may have to be computed wherever it is read."""
    return SHORT_FOLD if node.op == "stablehlo.reduce" else 1


def times_read(product: Node, value: Value) -> float:
    """How often a product of two tensors reads each element of one of them."""
    lhs = product.operands[0].type.shape
    depth = math.prod(lhs[d] for d in product.attributes["lhs_contracting_dimensions"])
    return product.results[0].type.size * depth / max(1, value.type.size)
