"""Stages that are written out, and what is computed of their results at the same point.

    for b: l[b, 0, 0] = …; l[b, 1, 0] = …; …       ->   for b: l00 = …; l10 = …; …
    for b, i, j: y[b, i, j] = l[b, i, j] if i >= j            y[b, 0, 0] = l00; y[b, 1, 0] = l10; …

A factorization hands its elements to the solves after it in registers then.  Where one of them is
read at a place that the factorization found, it is selected from all.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from itertools import product

from hlo_mlc.expr import index
from hlo_mlc.expr.build import load, substitute, transform
from hlo_mlc.expr.core import Buffer, Const, Expr, Load, Var, loads, loads_in
from hlo_mlc.tensor.access import picked
from hlo_mlc.tensor.classify import is_map, is_written_out, stage_cost
from hlo_mlc.tensor.core import Assign, Stage
from hlo_mlc.tensor.rewrite import map_expressions, rename_axes

# Points that one point of the batch becomes, places that an element is selected from, and simple
# operations in all: an inversion of 8 x 8 takes 2,500, and half a second to compile.  They bound
# what compiling takes, which no prediction of a call counts (cholesky_8x8, solve_8x8 of the bench).
_MOST_POINTS, _MOST_PLACES, _MOST_OPERATIONS = 64, 16, 2600
# Operations of both, at all of these points, before what is known of them is: it saves no more
# (solve_16x16).
_MOST_ALONE = 3900


def with_written_out(first: Stage, stage: Stage) -> Stage | None:
    """Both stages as one, if one of them is written out over the axes that they have in common and
    the other can be; None where that is not so."""
    if (
        not is_map(first)
        or not is_map(stage)
        or first.overwrites
        or stage.overwrites
        or not (is_written_out(first, 3) or is_written_out(stage, 3))
        or not set(stage.inputs) & set(first.outputs)
    ):
        return None
    batch = min((s for s in (first, stage) if is_written_out(s, 3)), key=lambda s: len(s.axes)).axes
    if (
        sum(
            stage_cost(s) * math.prod(v.extent for v in s.axes[len(batch) :])
            for s in (first, stage)
        )
        > _MOST_ALONE
    ):
        return None
    found = [_over(s, batch) for s in (first, stage)]
    if None in found:
        return None
    first, stage = found
    known = {a.buffer: {} for a in first.assigns}
    for assign in first.assigns:
        known[assign.buffer][assign.indices] = assign.value
    stage = _with_places(stage, known)
    handed: dict[Expr, Expr] = {}
    for node in loads_in(*stage.expressions):
        if node.source in known:
            value = known[node.source].get(node.indices)
            if value is None or node.guard is not None:
                return None
            handed[node] = value
    stage = map_expressions(stage, lambda e: transform(e, lambda _: None, handed))
    both = replace(first, assigns=(*first.assigns, *stage.assigns))
    return both if stage_cost(both) <= _MOST_OPERATIONS else None


def _over(stage: Stage, batch: tuple[Var, ...]) -> Stage | None:
    """The stage with the axes behind the first ones written out, and those named as `batch`."""
    axes, rest = stage.axes[: len(batch)], stage.axes[len(batch) :]
    extents = [v.extent for v in axes]
    if extents != [v.extent for v in batch] or math.prod(v.extent for v in rest) > _MOST_POINTS:
        return None
    stage = rename_axes(stage, dict(zip(axes, batch, strict=True)))
    points = [
        dict(zip(rest, map(index.constant, at), strict=True))
        for at in product(*(range(v.extent) for v in rest))
    ]
    assigns = []
    for point in points:
        memo: dict[Expr, Expr] = {}
        for a in stage.assigns:
            indices = tuple(substitute(i, point) for i in a.indices)
            inner = [i for i in indices if i not in batch]
            if a.guard is not None or not all(isinstance(i, Const) for i in inner):
                return None
            assigns.append(Assign(a.buffer, indices, substitute(a.value, point, memo)))
    return replace(stage, axes=batch, assigns=tuple(assigns))


def _with_places(stage: Stage, known: Mapping[Buffer, object]) -> Stage:
    """The stage with elements selected where it depends on values of `known` buffers which."""

    def rule(node: Expr) -> Expr | None:
        if not isinstance(node, Load) or node.guard is not None:
            return None
        found = [
            k
            for k, i in enumerate(node.indices)
            if any(inner.source in known for inner in loads(i))
        ]
        if len(found) != 1 or node.source.shape[found[0]] > _MOST_PLACES:
            return None
        (k,) = found
        every = [
            load(node.source, (*node.indices[:k], index.constant(n), *node.indices[k + 1 :]))
            for n in range(node.source.shape[k])
        ]
        return picked(every, node.indices[k])

    memo: dict[Expr, Expr] = {}
    return map_expressions(stage, lambda e: transform(e, rule, memo))
