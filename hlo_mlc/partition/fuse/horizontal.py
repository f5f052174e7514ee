"""Products side by side: which of them share a factor, and whether one kernel for them pays.

    queries = x @ a;  keys = x @ b;  values = x @ c

Each stays a nest of its own, with the tiles that suit it: what is saved is the way from one kernel
to the next, on which threads fall asleep.
"""

from __future__ import annotations

from hlo_mlc.expr.build import substitute
from hlo_mlc.expr.core import Expr, Var, loads
from hlo_mlc.templates.base import points
from hlo_mlc.tensor.classify import contraction
from hlo_mlc.tensor.core import Stage, derived

# Multiply-adds of a product from which on it gains less than anyone could measure from company:
# three of 16 x 256 x 256 ran 1.13 to 1.25 times as fast in one kernel, three of 128 x 256 x 256
# 1.07 to 1.13 times, three of 128 x 768 x 768 1.01 times.  One parallel loop for the tiles of all
# gained another 0.03 at most, for three times the code.
LARGE = 1 << 25


@derived
def factors(stage: Stage) -> tuple[Expr, ...]:
    """The factors of a product, in variables named by their roles: others may have the same."""
    roles = contraction(stage)
    if roles is None:
        return ()
    return tuple(
        substitute(
            factor,
            {
                axis: Var(f"{role}{n}", axis.dtype, axis.extent)
                for role, axes in (("batch", roles.batch), ("own", own), ("summed", roles.summed))
                for n, axis in enumerate(axes)
            },
        )
        for factor, own in ((roles.lhs, roles.rows), (roles.rhs, roles.columns))
        if loads(factor)
    )


def together_refusal(one: Stage, other: Stage) -> str:
    """Why one kernel for two products that share a factor would not pay; empty where it does."""
    if max(points(one), points(other)) >= LARGE:
        return f"products of {LARGE} multiply-adds or more gain nothing from one kernel"
    return ""
