"""Maxima that may ignore NaNs, because every result that depends on them is NaN anyway.

    m[i] = max over k of x[i, k]
    s[i] = sum over k of exp(x[i, k] - m[i])
    y[i, k] = exp(x[i, k] - m[i]) / s[i]

A NaN in a row of x makes s NaN, and with it the row of y, whatever m is. The largest of numbers
takes one instruction; the largest with NaNs respected takes three to six.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum

from hlo_mlc.expr.build import substitute
from hlo_mlc.expr.core import Apply, Buffer, Const, Expr, Load, Var, loads
from hlo_mlc.expr.ops import OPS
from hlo_mlc.tensor.combine import named_combiner
from hlo_mlc.tensor.core import Nest, Stage


class Strictness(IntEnum):
    """Which of the folded values make a value NaN for certain when they are NaN."""

    NONE = 0
    POINT = 1  # that of its own point
    ROW = 2  # all of its row


_Known = dict[Buffer, tuple[Strictness, tuple[Expr, ...]]]


def without_nans(nest: Nest) -> Nest:
    """The nest with maxima of numbers where nobody sees the difference."""
    stages = nest.stages
    for number, stage in enumerate(stages):
        if _is_hidden_maximum(stage, nest) and _makes_no_difference(nest, number):
            numbers = named_combiner("larger", stage.combiner.lhs[0].dtype)
            stages = (*stages[:number], replace(stage, combiner=numbers), *stages[number + 1 :])
    return nest if stages is nest.stages else replace(nest, stages=stages)


def _is_hidden_maximum(stage: Stage, nest: Nest) -> bool:
    """Whether a stage is the largest of some floats, for other stages of the nest alone."""
    if stage.combiner is None or stage.combiner.name != "max" or stage.scan or stage.along:
        return False
    (initial,), (accumulator,) = stage.initial, stage.accumulators
    return (
        accumulator.dtype.is_float
        and isinstance(initial, Const)
        and not math.isnan(initial.value)
        and all(a.buffer in nest.private for a in stage.assigns)
    )


def _makes_no_difference(nest: Nest, number: int) -> bool:
    """Whether all that depends on the maximum, and is not private, is NaN with a NaN in its row."""
    maximum = nest.stages[number]
    seen = _Seen(maximum)
    seen.known |= {a.buffer: (Strictness.NONE, a.indices) for a in maximum.assigns}
    for stage in nest.stages[number + 1 :]:
        if any(b in seen.known for b in stage.inputs) and not seen.stage(stage, nest.private):
            return False
    return True


@dataclass(slots=True)
class _Seen:
    """What is known of buffers that depend on a maximum: written at which indices, in terms of the
    axes that it was found along."""

    maximum: Stage
    known: _Known = field(default_factory=dict)

    def stage(self, stage: Stage, private: tuple[Buffer, ...]) -> bool:
        """Whether what a stage shows to others is NaN where it has to be; what it wrote is known
        from then on."""
        ways = [
            way
            for points in self._points(stage)
            if (way := self._written(stage, points, private)) is not None
        ]
        self.known |= max(ways, key=lambda way: sum(s for s, _ in way.values()), default={})
        return bool(ways)

    def _points(self, stage: Stage) -> Iterator[tuple[Var, ...]]:
        """Which axes of a stage may be those that the maximum was found over."""
        folded = self.maximum.reduce_axes
        own = (*stage.axes[len(self.maximum.axes) :], *stage.reduce_axes)
        for points in itertools.combinations(own, len(folded)):
            if [v.extent for v in points] == [v.extent for v in folded]:
                yield points
        yield ()

    def _written(
        self, stage: Stage, points: tuple[Var, ...], private: tuple[Buffer, ...]
    ) -> _Known | None:
        """What is known of the buffers that a stage writes, if others see nothing that may be no
        NaN; `points` are its axes for those that the maximum was found over."""
        rows = self.maximum.axes
        if (
            [v.extent for v in stage.axes[: len(rows)]] != [v.extent for v in rows]
            or stage.scan is not None
            or stage.sort is not None
        ):
            return None
        here: dict[Var, Expr] = dict(zip(rows, stage.axes, strict=False))
        here |= dict(zip(self.maximum.reduce_axes, points, strict=False))
        term = substitute(self.maximum.terms[0], here) if points else None
        look = _Look(self, here, term)
        folds = Strictness.NONE
        if (
            stage.combiner is not None
            and stage.combiner.name in OPS
            and OPS[stage.combiner.name].strict
        ):
            folds = look.of(stage.terms[0])
            if folds is Strictness.POINT:
                folds = Strictness.ROW if {*points} <= {*stage.reduce_axes} else Strictness.NONE
        folded = any(map(self._depends, (*stage.terms, *stage.initial)))
        look.found |= dict.fromkeys(stage.accumulators, folds)
        back = {v: k for k, v in here.items()}
        written: _Known = {}
        for assign in (*stage.along, *stage.assigns):
            value = assign.value
            depends = self._depends(value) or (
                folded and not value.free.isdisjoint(stage.accumulators)
            )
            hidden = any(
                map(
                    self._depends,
                    (*assign.indices, *((assign.guard,) if assign.guard is not None else ())),
                )
            )
            strictness = look.of(value)
            if (
                hidden
                or assign.buffer in written
                or (depends and (strictness is not Strictness.ROW and assign.buffer not in private))
            ):
                return None
            if depends:
                kept = strictness if assign.guard is None else Strictness.NONE
                written[assign.buffer] = kept, tuple(substitute(i, back) for i in assign.indices)
        return written

    def _depends(self, e: Expr) -> bool:
        return any(load.source in self.known for load in loads(e))


@dataclass(slots=True)
class _Look:
    """A look at expressions of a stage: `here` are its axes for those of the maximum, `term` is
    what that folds."""

    seen: _Seen
    here: Mapping[Var, Expr]
    term: Expr | None
    found: dict[Expr, Strictness] = field(default_factory=dict)

    def of(self, e: Expr) -> Strictness:
        """How strict an expression is."""
        if e not in self.found:
            self.found[e] = Strictness.POINT if e is self.term else self._of(e)
        return self.found[e]

    def _of(self, e: Expr) -> Strictness:
        if isinstance(e, Load):
            strictness, indices = self.seen.known.get(e.source, (Strictness.NONE, ()))
            same = e.guard is None and e.indices == tuple(substitute(i, self.here) for i in indices)
            return strictness if same else Strictness.NONE
        if not isinstance(e, Apply):
            return Strictness.NONE
        if e.op in ("select", "select_unlikely"):
            return min(map(self.of, e.args[1:]))
        if OPS[e.op].strict or (e.op == "convert" and e.dtype.is_float):
            return max(map(self.of, e.args))
        return Strictness.NONE
