"""Folds of whatever two arrays have in common, for all pairs of their rows: which axes are which.

out[row, column] = sum over k of |x[row, k] - y[column, k]|
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

from hlo_mlc.expr.core import Buffer, Load, Var, loads
from hlo_mlc.tensor.classify import contraction, stride, walks_columns, why_not_folded
from hlo_mlc.tensor.coalesce import coalesce
from hlo_mlc.tensor.core import Stage, derived, derived_of_any_names

# Rows below which what is the same for all of them is not worth a copy, and columns that are worth
# a vector.
FEWEST_ROWS, FEWEST_COLUMNS = 4, 16


@dataclass(frozen=True, slots=True)
class Roles:
    """What the axes of a fold are for: an element of some buffers, the same for all rows, meets an
    element of others, the same for all columns."""

    outer: tuple[Var, ...]
    row: Var
    column: Var
    summed: tuple[Var, ...]
    shared: tuple[Load, ...]
    """What is read for a column, whatever the row."""

    @property
    def packed(self) -> tuple[Buffer, ...]:
        """The buffers of `shared` whose elements for neighbouring columns lie apart."""
        return tuple(dict.fromkeys(x.source for x in self.shared if stride(x, self.column) != 1))

    def panel_bytes(self, width: int) -> int:
        """What a copy of `packed` takes for so many columns."""
        return sum(
            width * x.dtype.bytes * math.prod(v.extent for v in self.summed if _moves(x, v))
            for x in self.shared
            if x.source in self.packed
        )


def terms_refusal(stage: Stage) -> str:
    """Why a stage is no fold whose terms may be taken in any order; empty where it is."""
    if stage.combiner is None or stage.sort is not None or stage.scan is not None:
        return "not a fold"
    return why_not_folded(stage) or (
        "a product of matrices" if contraction(stage) is not None else ""
    )


def all_roles(stage: Stage) -> Iterator[Roles]:
    """Every choice of rows and columns: the last axis as columns comes first, as do the rows next
    to it."""
    for column, row in itertools.permutations(reversed(stage.axes), 2):
        outer = tuple(v for v in stage.axes if v not in (row, column))
        shared = tuple(x for x in repeated_reads(stage) if _moves(x, column) and not _moves(x, row))
        yield Roles(outer, row, column, stage.reduce_axes, shared)


@derived
def natural_roles(stage: Stage) -> Roles | None:
    """Columns along which results lie side by side, and the rows that share most with each other;
    None where they share nothing."""
    fitting = [
        roles
        for roles in all_roles(stage)
        if roles.shared and all(stride(a, roles.column) == 1 for a in stage.assigns)
    ]
    return max(
        fitting,
        default=None,
        key=lambda r: sum(
            math.prod(v.extent for v in (r.column, *r.summed) if _moves(x, v)) for x in r.shared
        ),
    )


@derived_of_any_names
def is_pairwise(stage: Stage) -> bool:
    """A fold along the rows of arrays, for all pairs of enough of them."""
    if stage.combiner is None:  # as most are
        return False
    merged = coalesce(stage)
    if terms_refusal(merged) or walks_columns(merged):
        return False
    roles = natural_roles(merged)
    return roles is not None and bool(roles.packed) and _are_many(roles)


@derived_of_any_names
def meets_columns(stage: Stage) -> bool:
    """The same of the rows of one array and the columns of another: each element belongs to a row
    or to a column, and neighbouring columns are neighbours in memory."""
    merged = coalesce(stage)
    if terms_refusal(merged) or not walks_columns(merged):
        return False
    roles = natural_roles(merged)
    return (
        roles is not None
        and not roles.packed
        and _are_many(roles)
        and any(_moves(x, v) for x in roles.shared for v in roles.summed)
        and not any(
            _moves(x, roles.row) and _moves(x, roles.column) for x in repeated_reads(merged)
        )
    )


def _are_many(roles: Roles) -> bool:
    return roles.row.extent >= FEWEST_ROWS and roles.column.extent >= FEWEST_COLUMNS


def repeated_reads(stage: Stage) -> tuple[Load, ...]:
    """What is read at all points of a fold, or of a map."""
    values = stage.terms or tuple(a.value for a in stage.assigns)
    return tuple(dict.fromkeys(x for value in values for x in loads(value)))


def _moves(x: Load, axis: Var) -> bool:
    return any(axis in i.free for i in x.indices)
