"""Argmax and argmin in two passes: the extreme value of a row, then its first position.

The combiner of the pair (value, position) takes a dozen vector instructions an element; a maximum
and a comparison with it take half as many, and the second pass finds the row in cache.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from hlo_mlc.expr.build import apply, const, load, substitute
from hlo_mlc.expr.combiner import Combiner
from hlo_mlc.expr.core import Apply, Expr, Load, Var
from hlo_mlc.expr.dtypes import INDEX, dtype
from hlo_mlc.expr.ops import identity
from hlo_mlc.tensor.classify import walks_columns
from hlo_mlc.tensor.combine import combiner_variables, named_combiner
from hlo_mlc.tensor.core import Assign, Stage
from hlo_mlc.tensor.rewrite import rename_axes


def split_extremum(stage: Stage, fresh: Callable[[str], str]) -> tuple[Stage, Stage] | None:
    """The two passes of an argmax or argmin along a row; None for any other stage."""
    if stage.combiner is None or len(stage.accumulators) != 2 or len(stage.reduce_axes) != 1:
        return None
    op = _extremum(stage.combiner)
    value, position = stage.accumulators
    (axis,) = stage.reduce_axes
    if op is None or not axis.extent or not isinstance(stage.terms[0], Load) \
            or not _counts(stage.terms[1], axis) or walks_columns(stage):
        return None
    if stage.initial[0] is not const(identity(op, value.dtype), value.dtype):
        return None
    ours = tuple(a for a in stage.assigns if position not in a.value.free)
    theirs = tuple(a for a in stage.assigns if position in a.value.free)
    kept = next((a for a in ours if a.value is value), None)
    if kept is None or any(value in a.value.free for a in theirs):
        return None
    first = _values(stage, op, fresh, ours) if value.dtype.is_float else replace(
        stage, assigns=ours, combiner=named_combiner(op, value.dtype), terms=stage.terms[:1],
        initial=stage.initial[:1], accumulators=(value,))
    term = stage.terms[0]
    found = apply("eq", term, load(kept.buffer, kept.indices))
    if value.dtype.is_float:  # in a row with a NaN the extreme is NaN, which equals nothing
        found = apply("or", found, apply("ne", term, term))
    nowhere = const(int(np.iinfo(position.dtype.numpy).max), position.dtype)
    second = replace(stage, name=fresh("s"), assigns=theirs,
                     terms=(apply("select", found, stage.terms[1], nowhere),), initial=(nowhere,),
                     combiner=named_combiner("min", position.dtype), accumulators=(position,))
    renamed = {v: Var(fresh("i"), v.dtype, v.extent)
               for v in (*second.axes, *second.reduce_axes, position)}
    return first, rename_axes(second, renamed)


def _values(stage: Stage, op: str, fresh: Callable[[str], str],
            assigns: tuple[Assign, ...]) -> Stage:
    """The extreme values of floats: NaNs are passed over, but noticed by their bits.

    Two running values, an extreme by one comparison and the largest pattern of bits without
    sign, take fewer instructions than one extreme that propagates NaNs.
    """
    value, term = stage.accumulators[0], stage.terms[0]
    unsigned = dtype(f"ui{value.dtype.bits}")
    bits = Var(fresh("acc"), unsigned)
    (left, left_bits), (right, right_bits) = combiner_variables((value.dtype, unsigned))
    better = apply("gt" if op == "max" else "lt", right, left)
    without_sign = const((1 << unsigned.bits - 1) - 1, unsigned)
    combiner = Combiner((left, left_bits), (right, right_bits),
                        (apply("select", better, right, left),
                         apply("max", left_bits, right_bits)),
                        (const(identity(op, value.dtype), value.dtype), const(0, unsigned)))
    magnitude = apply("and", apply("bitcast", term, dtype=unsigned), without_sign)
    infinity = apply("bitcast", const(math.inf, value.dtype), dtype=unsigned)
    result = apply("select", apply("gt", bits, infinity), const(math.nan, value.dtype), value)
    finished = tuple(replace(a, value=substitute(a.value, {value: result})) for a in assigns)
    return replace(stage, assigns=finished, combiner=combiner, terms=(term, magnitude),
                   initial=combiner.identity, accumulators=(value, bits))


def _extremum(combiner: Combiner) -> str | None:
    """ "max" or "min" if the combiner keeps the larger or smaller value, at ties the one of lower
    position, and a NaN as soon as there is one."""
    dtypes = [v.dtype for v in combiner.lhs]
    (left, left_at), (right, right_at) = combiner_variables(dtypes)
    for op, comparison in (("max", "gt"), ("min", "lt")):
        keep = apply(comparison, left, right)
        if left.dtype.is_float:
            keep = apply("or", keep, apply("ne", left, left))
        earlier = apply("and", apply("eq", left, right), apply("lt", left_at, right_at))
        wanted: tuple[Expr, ...] = (
            apply("select", keep, left, right),
            apply("select", apply("or", keep, earlier), left_at, right_at))
        if combiner.lhs == (left, left_at) and combiner.results == wanted:
            return op
    return None


def _counts(term: Expr, axis: Var) -> bool:
    """The position along `axis`, as an integer."""
    return term.dtype.is_integer and isinstance(term, Apply) and term.op == "convert" \
        and term.args[0] is axis and term.args[0].dtype is INDEX
