"""Folds that read the same arrays in one pass."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from hlo_mlc.expr import index
from hlo_mlc.expr.build import TRUE, all_of, substitute
from hlo_mlc.expr.core import Var
from hlo_mlc.tensor.access import masked
from hlo_mlc.tensor.classify import contraction, walks_columns
from hlo_mlc.tensor.combine import side_by_side
from hlo_mlc.tensor.core import Stage
from hlo_mlc.tensor.rewrite import rename_axes

# Folds that share a pass: each has up to eight vectors of partial results in registers (moments).
FOLDS_LIMIT = 3
# Elements that they may have more together than each, and the bytes that both read from which on
# asking which of them count pays: two folds of columns took 0.6 of the time where these were 49 MB,
# 0.7 to 1.2 of 2 MB (small_volume, roughness).  By the cost model, which counts operations and
# bytes, folds of 8 MB stay apart, and take 1.2 times as long.
SLACK, FAR = 1 / 16, 1 << 22


def folded_together(stages: Sequence[Stage], stage: Stage) -> Stage | None:
    """sum over k of f(k), max over k of g(k)   ->   sum, max over k of f(k), g(k)

    Several folds of one tensor take one pass over it.  Folds along rows need no such thing: they
    share a row in L1.
    """
    first, count = stages[0], len(stages[0].accumulators) + len(stage.accumulators)
    for fold in (first, stage):
        if (
            fold.combiner is None
            or fold.combiner.identity is None
            or fold.along
            or fold.scan
            or contraction(fold) is not None
            or (fold.axes and not walks_columns(fold))
        ):
            return None
    shared = {*first.inputs} & {*stage.inputs}
    if (
        len(stages) > 1
        or count > FOLDS_LIMIT
        or [v.extent for v in first.axes] != [v.extent for v in stage.axes]
        or {*first.outputs} & {*stage.inputs}
        or not shared
    ):
        return None
    extents = [[v.extent for v in s.reduce_axes] for s in (first, stage)]
    if extents[0] != extents[1]:
        common = _common_box(*extents)
        if common is None or sum(b.bytes for b in shared) < FAR:
            return None
        first, stage = (_within(s, common) for s in (first, stage))
    stage = rename_axes(
        stage,
        dict(
            zip((*stage.axes, *stage.reduce_axes), (*first.axes, *first.reduce_axes), strict=True)
        ),
    )
    return replace(
        first,
        assigns=first.assigns + stage.assigns,
        terms=first.terms + stage.terms,
        combiner=side_by_side(first.combiner, stage.combiner),
        initial=first.initial + stage.initial,
        accumulators=first.accumulators + stage.accumulators,
    )


def _common_box(one: Sequence[int], other: Sequence[int]) -> list[int] | None:
    """The smallest box that holds both, where it is hardly larger than each."""
    if len(one) != len(other):
        return None
    common = list(map(max, one, other))
    least = min(math.prod(one), math.prod(other))
    return common if math.prod(common) <= least * (1 + SLACK) else None


def _within(fold: Stage, extents: Sequence[int]) -> Stage:
    """sum over k < 7 of f(k)   ->   sum over k < 8 of (f(k) if k < 7 else 0)"""
    axes = [
        Var(v.name, v.dtype, extent) for v, extent in zip(fold.reduce_axes, extents, strict=True)
    ]
    inside = all_of(
        *(
            index.compare("lt", wide, v.extent)
            for v, wide in zip(fold.reduce_axes, axes, strict=True)
            if v.extent < wide.extent
        )
    )
    if inside is TRUE:
        return fold
    wider = dict(zip(fold.reduce_axes, axes, strict=True))
    terms = tuple(
        masked(substitute(term, wider), inside, neutral)
        for term, neutral in zip(fold.terms, fold.combiner.identity, strict=True)
    )
    return replace(fold, reduce_axes=tuple(axes), terms=terms)
