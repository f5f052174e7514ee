"""Chains of two matrix products, with what is computed row by row in between: attention.

    scores[outer, row, key]  = sum over depth: query(outer, row, depth) * keys(outer, key, depth)
    …                          maps of them, and folds over `key`
    mixed[outer, row, column] = sum over key: weights(outer, row, key) * values(outer, key, column)

Softmax is one of many: the stages in between may be anything that stays with its row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from hlo_mlc.expr import index
from hlo_mlc.expr.core import Apply, Buffer, Const, Expr, Load, Var, loads
from hlo_mlc.expr.dtypes import INDEX
from hlo_mlc.tensor.classify import is_plain, reads
from hlo_mlc.tensor.core import Assign, Nest, Stage
from hlo_mlc.tensor.guards import conjuncts
from hlo_mlc.tensor.rewrite import rename_axes


@dataclass(frozen=True, slots=True)
class Chain:
    """The roles of a nest's axes and factors; all its stages walk over one `key`."""

    outer: tuple[Var, ...]
    row: Var
    key: Var
    column: Var
    first: Stage
    query: Expr
    keys: Expr
    between: tuple[Stage, ...]
    last: Stage
    weights: Expr
    values: Expr
    private: tuple[Buffer, ...]


def chain(nest: Nest) -> Chain | str:
    """The chain that a nest is, or why it is none."""
    if len(nest.stages) < 2:
        return "not a chain of two products"
    first, last = nest.stages[0], nest.stages[-1]
    shared = first.axes[: nest.shared]
    if not _is_product(first) or not _is_product(last):
        return "it does not begin and end with a sum of products"
    if (
        len(first.axes) != nest.shared + 1
        or len(last.axes) != nest.shared + 1
        or len(last.reduce_axes) != 1
    ):
        return "the products have more than one column, or sum over more than the columns between"
    key, column, private = first.axes[-1], last.axes[-1], set(nest.private)
    stages = [_along_key(s, nest.shared, key) for s in nest.stages[1:]]
    for stage in stages:
        if stage is None:
            return "a stage in between walks over something else than the rows and their columns"
    between, last = tuple(stages[:-1]), stages[-1]
    reason = _strangers((first, *between, last), private)
    if reason:
        return reason
    factors = _split(first, key), _split(last, column)
    if None in factors:
        return "a factor depends on rows and columns"
    (query, keys), (weights, values) = factors
    if any(load.source in private for e in (query, keys, values) for load in loads(e)):
        return "a factor of its products is computed in it"
    rows = [v for v in shared if v in query.free and v not in keys.free and v not in values.free]
    if not rows:
        return "every row has keys and values of its own"
    row = max(reversed(rows), key=lambda v: v.extent)
    return Chain(
        tuple(v for v in shared if v is not row),
        row,
        key,
        column,
        first,
        query,
        keys,
        between,
        last,
        weights,
        values,
        nest.private,
    )


def _is_product(stage: Stage) -> bool:
    if stage.combiner is None or stage.combiner.name != "add" or stage.along or stage.scan:
        return False
    return isinstance(stage.terms[0], Apply) and stage.terms[0].op == "mul"


def _along_key(stage: Stage, shared: int, key: Var) -> Stage | None:
    """The stage with `key` as its loop variable, if besides the shared axes it walks over at most
    one more."""
    if stage.scan is not None or any(a.guard is not None for a in stage.assigns):
        return None
    if _is_product(stage) and len(stage.axes) > shared:
        own = stage.reduce_axes
    else:
        own = (*stage.axes[shared:], *stage.reduce_axes)
    if len(own) > 1 or any(v.extent != key.extent for v in own):
        return None
    return rename_axes(stage, dict.fromkeys(own, key))


def _strangers(stages: Sequence[Stage], private: set[Buffer]) -> str:
    """Why some values depend on other rows than their own; empty where none does."""
    points: dict[Buffer, tuple[Expr, ...]] = {}
    for stage in stages:
        for load in {load for e in stage.expressions for load in loads(e)}:
            if load.source in private and (
                load.guard is not None or load.indices != points.get(load.source)
            ):
                return "a row needs what another one computes"
        for assign in (*stage.along, *stage.assigns):
            axes = (*stage.axes, *stage.reduce_axes) if assign in stage.along else stage.axes
            if stage is not stages[-1] and (
                assign.buffer not in private or not is_plain(assign, axes)
            ):
                return "what is between the products is needed outside"
            points[assign.buffer] = assign.indices
    return ""


def _split(product: Stage, along: Var) -> tuple[Expr, Expr] | None:
    """The factors that do not depend on `along`, and those that do."""
    lhs, rhs = product.terms[0].args
    if along in lhs.free:
        lhs, rhs = rhs, lhs
    return None if along in lhs.free or along not in rhs.free else (lhs, rhs)


def linked(first: Stage, between: Sequence[Stage], last: Stage) -> tuple[Stage, ...] | str:
    """The stages of a chain over common leading axes, those of `first` but for the one that `last`
    sums over; or why they do not fit together."""
    places = {a.buffer: a.indices for a in first.assigns if is_plain(a, first.axes)}
    found: list[tuple[Stage, dict[Var, Var]]] = []
    for stage in (*between, last):
        at = _matched(stage, places)
        if isinstance(at, str):
            return at
        found.append((stage, at))
        own = {theirs: ours for ours, theirs in at.items()}
        places |= {
            a.buffer: tuple(own.get(i, i) for i in a.indices)
            for a, axes in _stores(stage)
            if is_plain(a, axes)
        }
    at = found[-1][1]
    summed = [ours for ours, theirs in at.items() if theirs in last.reduce_axes]
    if len(summed) != 1:
        return "the second product does not sum over one axis of the first"
    shared = tuple(v for v in first.axes if v is not summed[0])
    stages = [replace(first, axes=(*shared, *summed))]
    for stage, at in found:
        if any(at.get(v) not in stage.axes for v in shared):
            return "a stage does not walk over the rows of the first product"
        common = [at[v] for v in shared]
        rest = tuple(v for v in stage.axes if v not in common)
        stage = replace(stage, axes=(*common, *rest))
        stages.append(rename_axes(stage, dict(zip(common, shared, strict=True))))
    return tuple(stages)


def _stores(stage: Stage) -> list[tuple[Assign, tuple[Var, ...]]]:
    return [
        *((a, (*stage.axes, *stage.reduce_axes)) for a in stage.along),
        *((a, stage.axes) for a in stage.assigns),
    ]


def _matched(stage: Stage, places: dict[Buffer, tuple[Expr, ...]]) -> dict[Var, Var] | str:
    """For the axes of the first product, those on which `stage` reads what came before it."""
    at: dict[Var, Var] = {}
    for buffer in stage.inputs:
        if buffer not in places:
            continue
        for load in reads(stage, buffer):
            for ours, theirs in zip(places[buffer], load.indices, strict=True):
                if isinstance(ours, Var) and (
                    not isinstance(theirs, Var)
                    or theirs.extent != ours.extent
                    or at.setdefault(ours, theirs) is not theirs
                ):
                    return "it reads the rows at other places than they are computed"
            if isinstance(load, Load) and load.guard is not None:
                return "it reads the rows under a guard"
    if len(set(at.values())) != len(at):
        return "it reads a diagonal"
    return at


def masks(value: Expr, accumulator: Var) -> tuple[Expr, ...]:
    """Conditions on indices, under each of which `value` does not depend on the accumulator.

    select(row >= key, accumulator * 0.125, -inf)   ->   row < key
    """
    if not isinstance(value, Apply) or value.op != "select" or accumulator in value.args[2].free:
        return ()
    found = []
    for condition in conjuncts(value.args[0]):
        if not isinstance(condition, Apply) or condition.op not in _NEGATED:
            continue
        pair = [_as_index(side) for side in condition.args]
        if None not in pair:
            found.append(index.compare(_NEGATED[condition.op], *pair))
    return tuple(found)


_NEGATED = {"lt": "ge", "le": "gt", "gt": "le", "ge": "lt"}


def _as_index(e: Expr) -> Expr | None:
    """The index that an integer is, where none of its values is too large for the type."""
    if isinstance(e, Const) and e.dtype.is_integer:
        return index.constant(e.value)
    if (
        not isinstance(e, Apply)
        or e.op != "convert"
        or e.args[0].dtype is not INDEX
        or not e.dtype.is_integer
    ):
        return None
    low, high = index.bounds(e.args[0])
    info = np.iinfo(e.dtype.numpy)
    return e.args[0] if info.min <= low and high <= info.max else None
