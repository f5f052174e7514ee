"""Merging axes that memory does not tell apart.

    for i<4: for j<8: y[i, j] = exp(x[i, j]) + b[j]      stays: b[j] jumps back with every i
    for i<4: for j<8: y[i, j] = exp(x[i, j])        ->   for f<32: y[f // 8, f % 8] = exp(x[...])

Two neighbouring axes merge where every access steps over the outer one exactly as far as over the
whole inner one, and conditions on where they stand are on both as one.  The offsets of the merged
accesses rejoin to plain `f` (expr/index.py).
"""

from __future__ import annotations

import functools
import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace

from hlo_mlc.expr import index
from hlo_mlc.expr.build import substitute
from hlo_mlc.expr.core import Apply, Const, Expr, Load, Var, loads, loads_in, walk
from hlo_mlc.expr.dtypes import INDEX
from hlo_mlc.tensor.classify import is_map, stride
from hlo_mlc.tensor.core import Assign, Stage, derived
from hlo_mlc.tensor.rewrite import map_expressions

LONGEST = 16  # row that is counted along an axis
SHORTEST = 4  # axis that has rows: those are written out


@derived
def coalesce(stage: Stage) -> Stage:
    """The stage over as few axes as its accesses allow; a map also over those that it counts along
    one axis.

        for f<24: y[f] = x[f // 3] * b[f % 3]   ->   for i<8: for j<3: y[3 * i + j] = x[i] * b[j]
    """
    if is_map(stage):
        stage = with_counted_apart(stage)
    stage, axes = _merge(stage, stage.axes)
    if stage.procedure is not None:
        return replace(stage, axes=axes)
    stage, reduce_axes = _merge(stage, stage.reduce_axes)
    return replace(stage, axes=axes, reduce_axes=reduce_axes)


@derived
def with_counted_apart(stage: Stage) -> Stage:
    """A map over those of its axes apart that it counts along one axis; itself where there are
    none."""
    waiting, divisors = list(stage.axes), _divisors(stage)
    for axis in waiting:
        counts = divisors[axis]
        # Of several, which count within each other, the longest first.
        count = max(counts, default=0)
        if (
            not 0 < count <= LONGEST
            or any(count % n for n in counts)
            or axis.extent % count
            or axis.extent <= SHORTEST
        ):
            continue
        outer = Var(axis.name, INDEX, axis.extent // count)
        inner = Var(f"{axis.name}_{count}", INDEX, count)
        both = outer * count + inner
        stage = map_expressions(stage, functools.partial(substitute, mapping={axis: both}, memo={}))
        stage = replace(
            stage,
            axes=tuple(
                v for one in stage.axes for v in ((outer, inner) if one is axis else (one,))
            ),
        )
        waiting.append(inner)
        divisors = _divisors(stage)
    return stage


def _divisors(stage: Stage) -> defaultdict[Var, set[int]]:
    """The constants by which index expressions divide variables."""
    found: dict[Var, set[int]] = defaultdict(set)
    for node in walk(*_indices(stage)):
        if (
            isinstance(node, Apply)
            and node.op in ("floordiv", "floormod")
            and isinstance(node.args[0], Var)
            and isinstance(node.args[1], Const)
        ):
            found[node.args[0]].add(node.args[1].value)
    return found


def _indices(stage: Stage) -> Iterator[Expr]:
    """All index expressions, those inside addresses included."""
    for access in accesses(stage):
        yield from access.indices
        if access.guard is not None:
            yield access.guard
    yield from stage.expressions


def in_memory_order(axes: tuple[Var, ...], terms: Sequence[Expr]) -> tuple[Var, ...]:
    """Axes that may run in any order, as most of what `terms` read lies in memory: the innermost
    last, and the others in the order of what that is best for.

        for i<4: for j<8: s += x[j, i]      ->      for j<8: for i<4: s += x[j, i]
    """
    steps = [
        {v: abs(step) for v in axes if (step := stride(load, v))}
        for load in dict.fromkeys(load for term in terms for load in loads(term))
    ]
    nearest = [min(reversed(of), key=of.__getitem__) for of in steps if of]
    votes = Counter(nearest)
    if not votes or votes[axes[-1]] == max(votes.values()):
        return axes
    inner, _ = votes.most_common(1)[0]
    best = next(of for of, v in zip(filter(None, steps), nearest, strict=True) if v is inner)
    others = sorted((v for v in axes if v is not inner), key=lambda v: -best.get(v, 0))
    return (*others, inner)


def _merge(stage: Stage, axes: tuple[Var, ...]) -> tuple[Stage, tuple[Var, ...]]:
    """Neighbouring axes that merge pairwise become one axis each."""
    runs: list[list[Var]] = [[axis] for axis in axes[:1]]
    found = accesses(stage)
    steps = [[stride(access, axis) for access in found] for axis in axes]
    for number, (outer, inner) in enumerate(itertools.pairwise(axes)):
        if _mergeable(stage, outer, inner, steps[number], steps[number + 1]):
            runs[-1].append(inner)
        else:
            runs.append([inner])
    result, parts = [], {}
    for run in runs:
        if len(run) == 1:
            result += run
            continue
        joint: Expr = Var(run[0].name, INDEX, math.prod(v.extent for v in run))
        result.append(joint)
        for axis in reversed(run[1:]):
            parts[axis] = joint % axis.extent
            joint = joint // axis.extent
        parts[run[0]] = joint
    if parts:
        stage = map_expressions(stage, functools.partial(substitute, mapping=parts, memo={}))
    return stage, tuple(result)


def _mergeable(
    stage: Stage, outer: Var, inner: Var, over: Sequence[int | None], under: Sequence[int | None]
) -> bool:
    """`over` and `under`: how far each access steps along both."""
    if (
        inner.extent == 0
        or (stage.scan is not None and stage.scan.axis in (outer, inner))
        or (stage.sort is not None and stage.sort.place in (outer, inner))
    ):
        return False
    if any(
        far is None or near is None or far != near * inner.extent
        for far, near in zip(over, under, strict=True)
    ):
        return False
    return all(_counts_both(e, outer, inner) for e in _values(stage, outer))


def accesses(stage: Stage) -> tuple[Load | Assign, ...]:
    """Every distinct load and every store of the stage."""
    return (*loads_in(*stage.expressions), *stage.along, *stage.assigns)


def _values(stage: Stage, outer: Var) -> Iterator[Expr]:
    """Expressions of indices that matter other than as part of an address (iota, padding guards);
    but for comparisons of `outer` with a constant, which those of any axis around others become.
    """
    for node in _judging_indices(stage):
        if not (
            node.op in ("lt", "ge") and index.affine(index.subtract(*node.args))[0] == {outer: 1}
        ):
            yield from (arg for arg in node.args if arg.dtype is INDEX)


@derived
def _judging_indices(stage: Stage) -> tuple[Apply, ...]:
    """What makes something else of indices."""
    steps = stage.procedure.expressions if stage.procedure is not None else ()
    values = [*steps, *stage.terms, *(a.value for a in (*stage.along, *stage.assigns))]
    guards = [a.guard for a in (*stage.along, *stage.assigns) if a.guard is not None]
    return tuple(
        node
        for node in walk(*_outside_addresses(*values, *guards))
        if isinstance(node, Apply) and node.dtype is not INDEX
    )


def _counts_both(e: Expr, outer: Var, inner: Var) -> bool:
    """Whether an expression depends on two axes only as it would on one axis over both."""
    if outer not in e.free and inner not in e.free:
        return True
    terms, _ = index.affine(e)
    return terms.get(outer, 0) == terms.get(inner, 0) * inner.extent and all(
        atom in (outer, inner) or atom.free.isdisjoint((outer, inner)) for atom in terms
    )


def _outside_addresses(*roots: Expr) -> list[Expr]:
    """The index-typed expressions in `roots` that are converted, compared or guard a load."""
    found: list[Expr] = []
    for node in walk(*roots):
        if isinstance(node, Load):
            if node.guard is not None:
                found.append(node.guard)
        elif (
            getattr(node, "args", None) and node.args[0].dtype is INDEX and node.dtype is not INDEX
        ):
            found.append(node)
    return found
