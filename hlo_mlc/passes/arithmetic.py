"""Algebraic identities that hold for every bit pattern: IEEE floats, wrapping integers.

Only the payloads of NaNs and the flushing of subnormals, which XLA does in some ops and not in
others, may differ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hlo_mlc.expr.dtypes import Kind, holds
from hlo_mlc.graph.core import Node, Value
from hlo_mlc.graph.rewrite import Rewriter, Rule
from hlo_mlc.passes.splat import is_splat_of, splat


def add_zero(node: Node, context: Rewriter) -> Value | None:
    """`x + 0` -> `x`; for floats the zero is -0.0, because -0.0 + 0.0 is 0.0"""
    zero = -0.0 if node.results[0].type.dtype.is_float else 0
    return _neutral_operand(node, zero, context)


def subtract_zero(node: Node, context: Rewriter) -> Value | None:
    """`x - 0` -> `x`"""
    lhs, rhs = node.operands
    return lhs if is_splat_of(rhs, 0, context) else None


def subtract_self(node: Node, context: Rewriter) -> Value | None:
    """`x - x`, `x xor x` -> `0` for integers"""
    lhs, rhs = node.operands
    if lhs is rhs and lhs.type.dtype.kind in (Kind.SIGNED, Kind.UNSIGNED, Kind.BOOL):
        return context.constant(0, lhs.type)
    return None


def multiply_one(node: Node, context: Rewriter) -> Value | None:
    """`x * 1` -> `x`"""
    return _neutral_operand(node, 1, context)


def multiply_zero(node: Node, context: Rewriter) -> Value | None:
    """`x * 0` -> `0` for integers"""
    if node.results[0].type.dtype.is_integer and any(
        is_splat_of(v, 0, context) for v in node.operands
    ):
        return context.constant(0, node.results[0].type)
    return None


def divide_one(node: Node, context: Rewriter) -> Value | None:
    """`x / 1`, `x ** 1` -> `x`"""
    lhs, rhs = node.operands
    return lhs if is_splat_of(rhs, 1, context) else None


def shift_zero(node: Node, context: Rewriter) -> Value | None:
    """`x << 0`, `x >> 0` -> `x`"""
    return subtract_zero(node, context)


def idempotent(node: Node, context: Rewriter) -> Value | None:
    """`max(x, x)`, `min(x, x)`, `x and x`, `x or x` -> `x`"""
    lhs, rhs = node.operands
    return lhs if lhs is rhs else None


def and_mask(node: Node, context: Rewriter) -> Value | None:
    """`x and ~0` -> `x`; `x and 0` -> `0`"""
    return _bitwise(node, _ones(node), 0, context)


def or_mask(node: Node, context: Rewriter) -> Value | None:
    """`x or 0` -> `x`; `x or ~0` -> `~0`"""
    return _bitwise(node, 0, _ones(node), context)


def xor_zero(node: Node, context: Rewriter) -> Value | None:
    """`x xor 0` -> `x`"""
    return _neutral_operand(node, 0, context)


def involution(node: Node, context: Rewriter) -> Value | None:
    """`-(-x)`, `not not x` -> `x`"""
    inner = context.definition(node.operands[0])
    return inner.operands[0] if inner is not None and inner.op == node.op else None


def compare_self(node: Node, context: Rewriter) -> Value | None:
    """`x == x`, `x <= x`, `x >= x` -> `true`; `x != x`, `x < x`, `x > x` -> `false`, integers"""
    lhs, rhs = node.operands
    if lhs is not rhs or lhs.type.dtype.kind in (Kind.FLOAT, Kind.COMPLEX):
        return None
    equal = node.attributes["comparison_direction"] in ("EQ", "LE", "GE")
    return context.constant(equal, node.results[0].type)


def select_same(node: Node, context: Rewriter) -> Value | None:
    """`select(c, x, x)` -> `x`"""
    _, on_true, on_false = node.operands
    return on_true if on_true is on_false else None


def select_known(node: Node, context: Rewriter) -> Value | None:
    """`select(true, x, y)` -> `x`; `select(false, x, y)` -> `y`"""
    predicate, on_true, on_false = node.operands
    known = splat(predicate, context)
    if known is None:
        return None
    return on_true if known else on_false


def select_not(node: Node, context: Rewriter) -> Value | None:
    """`select(not c, x, y)` -> `select(c, y, x)`"""
    predicate, on_true, on_false = node.operands
    inner = context.definition(predicate)
    if inner is None or inner.op != "stablehlo.not":
        return None
    return context.add(
        node.op, (inner.operands[0], on_false, on_true), node.results[0].type, node.attributes
    )


def convert_same(node: Node, context: Rewriter) -> Value | None:
    """`convert(x : t) : t` -> `x`"""
    (operand,) = node.operands
    return operand if operand.type == node.results[0].type else None


def convert_through_wider(node: Node, context: Rewriter) -> Value | None:
    """`convert(convert(x : t) : u) : v` -> `convert(x) : v` where u holds every value of t

    An integer wraps where a float of the same value ends at the limits of v.
    """
    inner = context.definition(node.operands[0])
    if inner is None or inner.op != node.op:
        return None
    (source,) = inner.operands
    first, second, last = (v.type.dtype for v in (source, *inner.results, *node.results))
    wraps = first.is_integer and second.is_float and last.is_integer
    if not holds(second, first) or (wraps and not holds(last, first)):
        return None
    return context.add(node.op, (source,), node.results[0].type, node.attributes)


def _neutral_operand(node: Node, neutral: float, context: Rewriter) -> Value | None:
    lhs, rhs = node.operands
    if is_splat_of(rhs, neutral, context):
        return lhs
    return rhs if is_splat_of(lhs, neutral, context) else None


def _bitwise(node: Node, neutral: int, absorbing: int, context: Rewriter) -> Value | None:
    if any(is_splat_of(v, absorbing, context) for v in node.operands):
        return context.constant(absorbing, node.results[0].type)
    return _neutral_operand(node, neutral, context)


def _ones(node: Node) -> int:
    """The integer of the result's type whose bits are all set."""
    dtype = node.results[0].type.dtype
    return -1 if dtype.is_signed else (1 << dtype.bits) - 1


ARITHMETIC_RULES: Mapping[str, Sequence[Rule]] = {
    "stablehlo.add": (add_zero,),
    "stablehlo.subtract": (subtract_zero, subtract_self),
    "stablehlo.multiply": (multiply_one, multiply_zero),
    "stablehlo.divide": (divide_one,),
    "stablehlo.power": (divide_one,),
    "stablehlo.shift_left": (shift_zero,),
    "stablehlo.shift_right_logical": (shift_zero,),
    "stablehlo.shift_right_arithmetic": (shift_zero,),
    "stablehlo.maximum": (idempotent,),
    "stablehlo.minimum": (idempotent,),
    "stablehlo.and": (idempotent, and_mask),
    "stablehlo.or": (idempotent, or_mask),
    "stablehlo.xor": (xor_zero, subtract_self),
    "stablehlo.negate": (involution,),
    "stablehlo.not": (involution,),
    "stablehlo.compare": (compare_self,),
    "stablehlo.select": (select_same, select_known, select_not),
    "stablehlo.convert": (convert_same, convert_through_wider),
}
