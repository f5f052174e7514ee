"""What is known about index values at a point of a program; what follows from it is the business
of expr/facts.py."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from hlo_mlc.expr import index
from hlo_mlc.expr.core import Apply, Expr, Var, loads
from hlo_mlc.expr.facts import (
    Facts,
    below,
    cases,
    exactly,
    impossible,
    never_positive,
    of_condition,
    resolved,
    within,
)
from hlo_mlc.loops.core import For, If, Stmt, bodies

__all__ = [
    "Facts",
    "below",
    "cases",
    "exactly",
    "impossible",
    "learned",
    "least",
    "never_positive",
    "of_condition",
    "resolved",
    "within",
]


def learned(stmt: Stmt) -> tuple[Facts, ...]:
    """What holds in each statement list inside of a statement, as long as it is in there."""
    match stmt:
        case For():
            return (
                _lasting(
                    below(stmt.var, bound)
                    for bound in least(stmt.extent)
                    if bound.free or _narrows(stmt.var, bound)
                ),
            )
        case If():
            return (
                _lasting(of_condition(stmt.condition)),
                _lasting(of_condition(stmt.condition, holds=False)),
            )
    return tuple(() for _ in bodies(stmt))


def _narrows(var: Var, bound: Expr) -> bool:
    """Whether a constant bound says more than the variable's own range."""
    return var.extent is None or index.bounds(bound)[1] < var.extent


def _lasting(facts: Iterable[Expr]) -> Facts:
    """The facts that no store can end."""
    return tuple(f for f in facts if all(load.source.scope == "operand" for load in loads(f)))


def least(extent: Expr) -> Iterator[Expr]:
    """The operands of a minimum."""
    if isinstance(extent, Apply) and extent.op == "min":
        for part in extent.args:
            yield from least(part)
    else:
        yield extent
