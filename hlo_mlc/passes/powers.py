"""Powers with a literal exponent as a few products, quotients and roots.

Special values stay those of `pow`: it is +inf or 0 for -inf where the exponent is no integer, and
never has the sign of a zero then.  Partial results over- and underflow only where the result does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from hlo_mlc.expr.dtypes import F32, F64
from hlo_mlc.graph.core import Node, Value
from hlo_mlc.graph.rewrite import Rewriter, Rule
from hlo_mlc.passes.splat import splat

# Exponents whose products stay within two units in the last place.
_EXPONENTS = (-2.0, -1.5, -1.0, -0.5, 0.5, 1.5, 2.0, 3.0)


def power_of_literal(node: Node, context: Rewriter) -> Value | None:
    """`x ** 2` -> `x * x`; `x ** -1.5` -> `x == -inf ? 0 : (1 / sqrt(x)) / x`; …"""
    base, exponent = node.operands
    number = splat(exponent, context)
    if base.type.dtype not in (F32, F64) or number is None or float(number) not in _EXPONENTS:
        return None
    power = float(number)

    def op(name: str, *operands: Value) -> Value:
        return context.like(f"stablehlo.{name}", *operands)

    def constant(value: float) -> Value:
        return context.constant(value, base.type)

    if power in (2.0, 3.0):
        square = op("multiply", base, base)
        return square if power == 2.0 else op("multiply", square, base)
    if power in (-1.0, -2.0):
        inverse = op("divide", constant(1), base)
        return inverse if power == -1.0 else op("multiply", inverse, inverse)
    if power in (0.5, 1.5):
        root = op("sqrt", base)
        value = op("abs", root) if power == 0.5 else op("multiply", base, root)
    else:
        inverse = op("rsqrt", base)
        value = op("abs", inverse) if power == -0.5 else op("divide", inverse, base)
    is_low = context.compare("EQ", base, constant(-np.inf))
    return context.select(is_low, constant(np.inf if power > 0 else 0), value)


POWER_RULES: Mapping[str, Sequence[Rule]] = {"stablehlo.power": (power_of_literal,)}
