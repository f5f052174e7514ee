"""Combiners: the associative functions of reductions, scans and scatters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hlo_mlc.expr.build import substitute
from hlo_mlc.expr.core import Const, Expr, Var


@dataclass(frozen=True, slots=True)
class Combiner:
    """An associative function of two tuples of values: `results` over `lhs` and `rhs` variables.

    lhs is what was accumulated so far (lower indices), rhs is what comes next; the distinction
    matters where ties are broken by position.
    """

    lhs: tuple[Var, ...]
    rhs: tuple[Var, ...]
    results: tuple[Expr, ...]
    identity: tuple[Const, ...] | None  # neutral elements; None where there are none
    name: str = ""  # "add", "max", … where it is one scalar op

    def combined(self, lhs: Sequence[Expr], rhs: Sequence[Expr]) -> tuple[Expr, ...]:
        """What it makes of `lhs`, accumulated so far, and `rhs`, which comes next."""
        values = dict(zip((*self.lhs, *self.rhs), (*lhs, *rhs), strict=True))
        return tuple(substitute(r, values) for r in self.results)


NOTHING = Combiner((), (), (), None)
"""Of no values."""
