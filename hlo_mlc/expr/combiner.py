"""Combiners: the associative functions of reductions, scans and scatters."""

from __future__ import annotations

from dataclasses import dataclass

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


NOTHING = Combiner((), (), (), None)
"""Of no values."""
