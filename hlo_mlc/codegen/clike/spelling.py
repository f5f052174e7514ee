"""Nesting expressions in each other, with the parentheses that they need and no others."""

from __future__ import annotations

import enum
import re


class Binding(enum.IntEnum):
    """How strongly the operators of an expression hold it together."""

    LOOSE = 0  # comparisons, choices, logic
    SUM = 1
    PRODUCT = 2
    UNARY = 3  # signs and casts
    ATOM = 4


_TOKEN = re.compile(r" (\S+) ")
_BINDINGS = {
    "+": Binding.SUM,
    "-": Binding.SUM,
    "*": Binding.PRODUCT,
    "/": Binding.PRODUCT,
    "%": Binding.PRODUCT,
}
_ATOM = re.compile(r"[\w.]+$")


def binding(text: str) -> Binding:
    """That of the loosest operator outside of all brackets."""
    if _ATOM.match(text):
        return Binding.ATOM
    outside, depth = [], 0
    for before, character in zip(" " + text, text, strict=False):
        is_template = character in "<>" and before not in " >"  # operators stand between spaces
        depth -= character in "])" or (is_template and character == ">")
        if depth == 0:
            outside.append(character)
        depth += character in "[(" or (is_template and character == "<")
    found = Binding.UNARY if text[0] in "-!~(" else Binding.ATOM
    for operator in _TOKEN.findall("".join(outside)):
        found = min(found, _BINDINGS.get(operator, Binding.LOOSE))
    return found


def operand(text: str, least: Binding = Binding.UNARY) -> str:
    """`text`, in parentheses if it holds together less strongly than `least`."""
    return text if binding(text) >= least else f"({text})"


def infix(left: str, operator: str, right: str) -> str:
    """`left operator right`."""
    mine = _BINDINGS.get(operator, Binding.LOOSE)
    if mine is Binding.LOOSE:  # C++ has fifteen levels of these; nobody knows them by heart
        return f"{operand(left, Binding.SUM)} {operator} {operand(right, Binding.SUM)}"
    return f"{operand(left, mine)} {operator} {operand(right, Binding(mine + 1))}"


def cast(kind: str, text: str) -> str:
    """`text` as a value of another type."""
    return f"({kind}){operand(text)}"


def choice(condition: str, on_true: str, on_false: str) -> str:
    """`condition ? on_true : on_false`."""
    first, second, third = (operand(t, Binding.SUM) for t in (condition, on_true, on_false))
    return f"{first} ? {second} : {third}"
