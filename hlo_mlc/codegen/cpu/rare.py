"""Long code that rarely runs, as a function of the kernel that exists once.

The expansion of a scalar function may have a branch for unusual arguments that is ten times as long
as the other. The values that it begins with are mostly at hand where it is written, and what it
computes is the same everywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from hlo_mlc.expr.core import Apply, Const, Expr, Var, walk
from hlo_mlc.expr.dtypes import INDEX

# Operations from which on a call pays, which keeps what else is in registers out of them, and from
# which on it pays where there has been another place: where they were always needed, 75 of them
# (lgamma of negative numbers) took 6 % longer, 145 (sines of huge numbers in f64) no longer.
LONG, LONG_AGAIN = 100, 48


class Rare(NamedTuple):
    """What is computed of `parameters` by so many operations, and what these stand for at one
    place."""

    body: Expr
    parameters: tuple[Var, ...]
    arguments: tuple[Expr, ...]
    operations: int


def cut(root: Expr, is_given: Callable[[Expr], bool]) -> Rare | None:
    """An expression as a function of what is given, or is to be evaluated where it is needed: loads
    and all that indices are made of; None where a call would never pay."""

    def is_inside(node: Expr) -> bool:
        return isinstance(node, Const) or (
            isinstance(node, Apply) and not _has_indices(node) and not is_given(node)
        )

    if not isinstance(root, Apply) or _has_indices(root):
        return None
    inside = list(walk(root, into=is_inside))
    operations = sum(isinstance(node, Apply) for node in inside)
    if operations < LONG_AGAIN:
        return None
    parts: dict[Expr, Expr] = {}
    given: dict[Expr, Var] = {}
    for node in inside:
        for child in node.children:
            if child not in parts:
                given[child] = Var(f"x{len(given)}", child.dtype)
                parts[child] = given[child]
        parts[node] = (
            node
            if not isinstance(node, Apply)
            else Apply(node.op, tuple(parts[child] for child in node.args), node.dtype)
        )
    if not given:
        return None
    return Rare(parts[root], tuple(given.values()), tuple(given), operations)


def _has_indices(node: Apply) -> bool:
    return node.dtype is INDEX or any(a.dtype is INDEX for a in node.args)
