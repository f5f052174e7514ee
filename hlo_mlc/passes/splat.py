"""What rules ask about constants."""

from __future__ import annotations

import numpy as np

from hlo_mlc.expr.dtypes import Kind
from hlo_mlc.graph.core import Value
from hlo_mlc.graph.rewrite import Rewriter


def splat(value: Value, context: Rewriter) -> np.generic | None:
    """The element that all elements of `value` are known to be, seen through broadcasts."""
    node = context.definition(value)
    while node is not None and node.op == "stablehlo.broadcast_in_dim":
        node = context.definition(node.operands[0])
    return None if node is None or node.literal is None else element_of(node.literal)


def element_of(literal: np.ndarray) -> np.generic | None:
    """What all elements of an array are, where that is seen without a look at each of them."""
    if literal.size == 0 or (literal.size > 1 and any(literal.strides)):
        return None
    return literal[(0,) * literal.ndim]


def is_splat_of(value: Value, number: float, context: Rewriter) -> bool:
    """Whether every element is `number`, of the same sign where it is zero; never for complex."""
    if value.type.dtype.kind is Kind.COMPLEX:
        return False
    element = splat(value, context)
    if element is None or element != number:
        return False
    return number != 0 or bool(np.signbit(float(element))) == bool(np.signbit(number))
