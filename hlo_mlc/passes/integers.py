"""Quotients and remainders that are rounded down, as Python's `//` and `%` of integers are.

StableHLO rounds towards zero, so each comes as four to eight operations; of a power of two it is
one.  Rules of comparisons take away first what JAX asks of divisors of any sign.
Source: Hacker's Delight, chapter 10.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hlo_mlc.expr.dtypes import BOOL, Kind
from hlo_mlc.graph.core import Node, Value
from hlo_mlc.graph.rewrite import Rewriter, Rule
from hlo_mlc.passes.splat import is_splat_of, splat


def compare_with_false(node: Node, context: Rewriter) -> Value | None:
    """`c != false` -> `c`"""
    lhs, rhs = node.operands
    if node.attributes["comparison_direction"] == "NE" and lhs.type.dtype is BOOL:
        return lhs if is_splat_of(rhs, 0, context) else None
    return None


def less_than_zero(node: Node, context: Rewriter) -> Value | None:
    """`x < 0` -> `false` for unsigned integers"""
    lhs, rhs = node.operands
    if (
        node.attributes["comparison_direction"] == "LT"
        and lhs.type.dtype.kind is Kind.UNSIGNED
        and is_splat_of(rhs, 0, context)
    ):
        return context.constant(0, node.results[0].type)
    return None


def less_and_unequal(node: Node, context: Rewriter) -> Value | None:
    """`x < y and x != y` -> `x < y`"""
    for less, unequal in (node.operands, node.operands[::-1]):
        operands = _compared(less, "LT", context)
        if operands and operands == _compared(unequal, "NE", context):
            return less
    return None


def remainder_rounded_down(node: Node, context: Rewriter) -> Value | None:
    """`select(r < 0, r + c, r)`, r being `x remainder c` -> `x and (c - 1)` for powers of two c"""
    below, plus, rest = node.operands
    found = context.definition(rest)
    if found is None or found.op != "stablehlo.remainder":
        return None
    x, by = found.operands
    asked, sum_ = _compared(below, "LT", context), context.definition(plus)
    power = _power_of_two(by, context)
    if (
        power is None
        or asked is None
        or asked[0] is not rest
        or not is_splat_of(asked[1], 0, context)
        or sum_ is None
        or sum_.op != "stablehlo.add"
        or rest not in sum_.operands
    ):
        return None
    added = sum_.operands[sum_.operands[0] is rest]
    return _masked(x, power, context) if is_splat_of(added, 1 << power, context) else None


def quotient_rounded_down(node: Node, context: Rewriter) -> Value | None:
    """`select(sign(x) != 1 and x remainder c != 0, q - 1, q)`, q being `x / c` -> `x >> log2(c)`
    for powers of two c"""
    rounded, less, quotient = node.operands
    found, both, minus = map(context.definition, (quotient, rounded, less))
    if (
        found is None
        or found.op != "stablehlo.divide"
        or both is None
        or both.op != "stablehlo.and"
        or minus is None
        or minus.op != "stablehlo.subtract"
    ):
        return None
    x, by = found.operands
    power = _power_of_two(by, context)
    if (
        power is None
        or minus.operands[0] is not quotient
        or not is_splat_of(minus.operands[1], 1, context)
    ):
        return None
    for signs, rest in (both.operands, both.operands[::-1]):
        sign, one = _unequal(signs, context)
        remainder, zero = _unequal(rest, context)
        if (
            sign is not None
            and sign.op == "stablehlo.sign"
            and sign.operands == (x,)
            and is_splat_of(one, 1, context)
            and remainder is not None
            and remainder.op == "stablehlo.remainder"
            and remainder.operands[0] is x
            and _power_of_two(remainder.operands[1], context) == power
            and is_splat_of(zero, 0, context)
        ):
            bits = context.constant(power, x.type)
            return context.like("stablehlo.shift_right_arithmetic", x, bits)
    return None


def remainder_of_unsigned(node: Node, context: Rewriter) -> Value | None:
    """`x remainder c` -> `x and (c - 1)` for powers of two c, unsigned"""
    x, by = node.operands
    power = _power_of_two(by, context)
    return (
        None
        if power is None or x.type.dtype.kind is not Kind.UNSIGNED
        else _masked(x, power, context)
    )


def quotient_of_unsigned(node: Node, context: Rewriter) -> Value | None:
    """`x / c` -> `x >> log2(c)` for powers of two c, unsigned"""
    x, by = node.operands
    power = _power_of_two(by, context)
    if power is None or x.type.dtype.kind is not Kind.UNSIGNED:
        return None
    return context.like("stablehlo.shift_right_logical", x, context.constant(power, x.type))


def _power_of_two(value: Value, context: Rewriter) -> int | None:
    """The logarithm of a constant integer."""
    number = splat(value, context)
    if number is None or not value.type.dtype.is_integer or number <= 0:
        return None
    power = int(number).bit_length() - 1
    return power if number == 1 << power else None


def _masked(x: Value, power: int, context: Rewriter) -> Value:
    return context.like("stablehlo.and", x, context.constant((1 << power) - 1, x.type))


def _compared(value: Value, direction: str, context: Rewriter) -> tuple[Value, ...] | None:
    """The operands of a comparison."""
    node = context.definition(value)
    return (
        node.operands
        if node is not None
        and node.op == "stablehlo.compare"
        and node.attributes["comparison_direction"] == direction
        else None
    )


def _unequal(value: Value, context: Rewriter) -> tuple[Node, Value] | tuple[None, None]:
    """What defines the left of `left != right`, and the right."""
    operands = _compared(value, "NE", context)
    left = None if operands is None else context.definition(operands[0])
    return (None, None) if left is None else (left, operands[1])


INTEGER_RULES: Mapping[str, Sequence[Rule]] = {
    "stablehlo.compare": (compare_with_false, less_than_zero),
    "stablehlo.and": (less_and_unequal,),
    "stablehlo.select": (remainder_rounded_down, quotient_rounded_down),
    "stablehlo.divide": (quotient_of_unsigned,),
    "stablehlo.remainder": (remainder_of_unsigned,),
}
