"""Argmax and argmin in one pass that takes half as many instructions as their definition.

The combiner of the pair (value, position) says which of two equal values wins and that NaNs win
over numbers, a dozen instructions an element.  Terms arrive in the order of their positions, so
"strictly better than what is kept" decides ties; and the first NaN is looked for apart.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from hlo_mlc.expr.build import apply, const, substitute
from hlo_mlc.expr.combiner import Combiner
from hlo_mlc.expr.core import Apply, Const, Expr, Var
from hlo_mlc.expr.dtypes import INDEX
from hlo_mlc.expr.ops import identity
from hlo_mlc.tensor.combine import combiner_variables, named_combiner, side_by_side
from hlo_mlc.tensor.core import Stage


def in_one_pass(stage: Stage, fresh: Callable[[str], str]) -> Stage | None:
    """An equal argmax or argmin stage whose running values are cheap to update; None for any other
    stage."""
    if stage.combiner is None or len(stage.accumulators) != 2 or len(stage.reduce_axes) != 1:
        return None
    op = _extremum(stage.combiner)
    value, position = stage.accumulators
    (axis,) = stage.reduce_axes
    if op is None or not axis.extent or not _counts(stage.terms[1], axis):
        return None
    neutral = const(identity(op, value.dtype), value.dtype)
    begin = stage.initial[1]
    if stage.initial[0] is not neutral or not isinstance(begin, Const) or begin.value < 0:
        return None
    lhs, rhs = combiner_variables((value.dtype, position.dtype))
    better = apply("gt" if op == "max" else "lt", rhs[0], lhs[0])
    running = Combiner(
        lhs,
        rhs,
        tuple(apply("select", better, r, x) for x, r in zip(lhs, rhs, strict=True)),
        (neutral, const(0, position.dtype)),
    )  # where nothing is better, the first is the one
    if not value.dtype.is_float:
        return replace(stage, combiner=running, initial=running.identity)
    term = stage.terms[0]
    nowhere = const(int(np.iinfo(position.dtype.numpy).max), position.dtype)
    first_nan = Var(fresh("acc"), position.dtype)
    has_nan = apply("ne", first_nan, nowhere)
    finished = {
        value: apply("select", has_nan, const(math.nan, value.dtype), value),
        position: apply("select", has_nan, first_nan, position),
    }
    combiner = side_by_side(running, named_combiner("min", position.dtype))
    return replace(
        stage,
        assigns=tuple(replace(a, value=substitute(a.value, finished)) for a in stage.assigns),
        combiner=combiner,
        initial=combiner.identity,
        accumulators=(value, position, first_nan),
        terms=(*stage.terms, apply("select", apply("ne", term, term), stage.terms[1], nowhere)),
    )


def _extremum(combiner: Combiner) -> str | None:
    """ "max" or "min" if the combiner keeps the larger or smaller value, at ties the one of lower
    position, and a NaN as soon as there is one."""
    dtypes = [v.dtype for v in combiner.lhs]
    (left, left_at), (right, right_at) = combiner_variables(dtypes)
    for op, comparison in (("max", "gt"), ("min", "lt")):
        keep = apply(comparison, left, right)
        if left.dtype.is_float:
            keep = keep | apply("ne", left, left)
        earlier = apply("eq", left, right) & apply("lt", left_at, right_at)
        wanted: tuple[Expr, ...] = (
            apply("select", keep, left, right),
            apply("select", keep | earlier, left_at, right_at),
        )
        if combiner.lhs == (left, left_at) and combiner.results == wanted:
            return op
    return None


def _counts(term: Expr, axis: Var) -> bool:
    """The position along `axis`, as an integer."""
    return (
        term.dtype.is_integer
        and isinstance(term, Apply)
        and term.op == "convert"
        and term.args[0] is axis
        and term.args[0].dtype is INDEX
    )
