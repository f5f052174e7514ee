"""Merging axes that memory does not tell apart.

    for i<4: for j<8: y[i, j] = exp(x[i, j]) + b[j]      stays: b[j] jumps back with every i
    for i<4: for j<8: y[i, j] = exp(x[i, j])        ->   for f<32: y[f // 8, f % 8] = exp(x[...])

Two neighbouring axes merge where every access steps over the outer one exactly as far as over the
whole inner one.  The offsets of the merged accesses rejoin to plain `f` (expr/index.py).
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from hlo_mlc.expr import index
from hlo_mlc.expr.build import substitute
from hlo_mlc.expr.core import Expr, Load, Var, loads, walk
from hlo_mlc.expr.dtypes import INDEX
from hlo_mlc.tensor.classify import stride
from hlo_mlc.tensor.core import Assign, Stage, derived
from hlo_mlc.tensor.rewrite import map_expressions


@derived
def coalesce(stage: Stage) -> Stage:
    """The stage over as few axes as its accesses allow."""
    stage, axes = _merge(stage, stage.axes)
    stage, reduce_axes = _merge(stage, stage.reduce_axes)
    return replace(stage, axes=axes, reduce_axes=reduce_axes)


def in_memory_order(axes: tuple[Var, ...], terms: Sequence[Expr]) -> tuple[Var, ...]:
    """Axes that may run in any order, as most of what `terms` read lies in memory: the innermost
    last, and the others in the order of what that is best for.

        for i<4: for j<8: s += x[j, i]      ->      for j<8: for i<4: s += x[j, i]
    """
    steps = [{v: abs(step) for v in axes if (step := stride(load, v))}
             for load in dict.fromkeys(load for term in terms for load in loads(term))]
    nearest = [min(reversed(of), key=of.__getitem__) for of in steps if of]
    votes = Counter(nearest)
    if not votes or votes[axes[-1]] == max(votes.values()):
        return axes
    inner, _ = votes.most_common(1)[0]
    best = next(of for of, v in zip(filter(None, steps), nearest, strict=True) if v is inner)
    others = sorted((v for v in axes if v is not inner), key=lambda v: -best.get(v, 0))
    return (*others, inner)


def _merge(stage: Stage, axes: tuple[Var, ...]) -> tuple[Stage, tuple[Var, ...]]:
    result = list(axes)
    position = len(result) - 2
    while position >= 0:
        outer, inner = result[position], result[position + 1]
        if _mergeable(stage, outer, inner):
            joint = Var(outer.name, INDEX, outer.extent * inner.extent)
            parts = {outer: index.floordiv(joint, inner.extent),
                     inner: index.floormod(joint, inner.extent)}
            stage = map_expressions(
                stage, functools.partial(substitute, mapping=parts, memo={}))
            result[position:position + 2] = [joint]
        position -= 1
    return stage, tuple(result)


def _mergeable(stage: Stage, outer: Var, inner: Var) -> bool:
    if inner.extent == 0 or (stage.scan is not None and stage.scan.axis in (outer, inner)) \
            or (stage.sort is not None and stage.sort.place in (outer, inner)):
        return False
    for access in accesses(stage):
        over, under = stride(access, outer), stride(access, inner)
        if over is None or under is None or over != under * inner.extent:
            return False
    return not _used_as_value(stage, (outer, inner))


def accesses(stage: Stage) -> tuple[Load | Assign, ...]:
    """Every distinct load and every store of the stage."""
    found = dict.fromkeys(load for e in stage.expressions for load in loads(e))
    return (*found, *stage.along, *stage.assigns)


def _used_as_value(stage: Stage, axes: Sequence[Var]) -> bool:
    """True where an axis matters other than as part of an address (iota, padding guards)."""
    values = [*stage.terms, *(a.value for a in (*stage.along, *stage.assigns))]
    guards = [a.guard for a in (*stage.along, *stage.assigns) if a.guard is not None]
    inside = [e for value in (*values, *guards) for e in _outside_addresses(value)]
    return any(v in e.free for e in inside for v in axes)


def _outside_addresses(root: Expr) -> list[Expr]:
    """The index-typed expressions in `root` that are converted, compared or guard a load."""
    found: list[Expr] = []
    for node in walk(root):
        if isinstance(node, Load):
            if node.guard is not None:
                found.append(node.guard)
        elif getattr(node, "args", None) and node.args[0].dtype is INDEX \
                and node.dtype is not INDEX:
            found.append(node)
    return found
