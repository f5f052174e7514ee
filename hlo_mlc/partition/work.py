"""What a stage does, in numbers: operations, products, bytes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from hlo_mlc.expr.core import Apply, Buffer, Expr, loads, walk
from hlo_mlc.templates.base import points
from hlo_mlc.tensor.classify import contraction, cost
from hlo_mlc.tensor.core import Stage

_ROUNDING = 5  # operations of codegen/legalize/rounding.py
_EXACT = frozenset(("abs", "max", "min", "neg", "select", "sign"))  # need none
_FACTOR_REUSE = 16  # of what is computed for a factor of a product: a register tile is so high


@dataclass(frozen=True, slots=True)
class Work:
    """What one run of a stage does.

    `operations` are simple ones, besides the multiply-adds of a product: none where values only
    move. `moved` are the bytes read and written of each buffer.
    """

    operations: int
    products: int  # multiply-adds of a sum of products
    moved: Mapping[Buffer, int]

    @classmethod
    def of(cls, stage: Stage) -> Work:
        """The work of a stage."""
        count = points(stage)
        moved = {b: min(b.bytes, count * b.dtype.bytes) for b in (*stage.inputs, *stage.outputs)}
        return cls(_operations(stage), count if multiplies(stage) else 0, moved)

    @property
    def moved_bytes(self) -> int:
        """All that is read and written."""
        return sum(self.moved.values())


def multiplies(stage: Stage) -> bool:
    """A sum of products, be there several rows and columns or not."""
    return stage.combiner is not None and stage.combiner.name == "add" and \
        isinstance(stage.terms[0], Apply) and stage.terms[0].op == "mul"


def _operations(stage: Stage) -> int:
    outer = math.prod(v.extent for v in stage.axes)
    values = [a.value for a in (*stage.along, *stage.assigns)]
    guards = [a.guard for a in (*stage.along, *stage.assigns) if a.guard is not None]
    folded = _cost(*stage.terms)
    if stage.combiner is not None:
        folded += -1 if multiplies(stage) else _cost(*stage.combiner.results)
    evaluated = points(stage)
    if contraction(stage) is not None:
        evaluated //= _FACTOR_REUSE
    return evaluated * folded + outer * _cost(*values, *guards)


def _cost(*roots: Expr) -> int:
    """`cost`, and what it takes to round every f16 and bf16."""
    rounded = sum(isinstance(node, Apply) and node.dtype.is_narrow_float
                  and node.op not in _EXACT for node in walk(*roots))
    return cost(*roots) + _ROUNDING * rounded


def window(stage: Stage) -> int:
    """How many neighbours a result folds, where neighbouring results share them; else 0."""
    return math.prod(v.extent for v in stage.reduce_axes) if any(
        _mixes(i, stage) for term in stage.terms for load in loads(term) for i in load.indices
    ) else 0


def _mixes(index: Expr, stage: Stage) -> bool:
    return any(v in index.free for v in stage.axes) and \
        any(v in index.free for v in stage.reduce_axes)
