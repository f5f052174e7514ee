"""Phases: a fold over an input whose elements lie apart, as folds over neighbours.

    y[h] = sum over r < 3 of (x[(h + r - 1) / 2] if 2 divides h + r - 1 else 0) * k[r]

has no term but r = 1 where h is even, and r = 0 and 2 where it is odd:

    y[2 h]     = sum over q < 1 of x[h] * k[1]
    y[2 h + 1] = sum over q < 2 of x[h + q] * k[2 q]

Gradients of strided convolutions and pools, and transposed convolutions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from hlo_mlc.expr import index
from hlo_mlc.expr.build import substitute
from hlo_mlc.expr.core import Apply, Const, Expr, Var
from hlo_mlc.tensor.core import Assign, Nest, Stage
from hlo_mlc.tensor.guards import conjuncts, guards, vanishes_outside
from hlo_mlc.tensor.rewrite import map_expressions


@dataclass(frozen=True, slots=True)
class _Spread:
    """`step` divides `along * axis + across * window + offset` where there is an element."""

    axis: Var
    along: int
    window: Var
    across: int
    offset: int
    step: int


def in_phases(nest: Nest) -> tuple[Nest, ...]:
    """Nests that together do what `nest` does; itself alone where no input lies apart."""
    if len(nest.stages) != 1 or nest.private:
        return (nest,)
    done, waiting = [], [nest.stages[0]]
    while waiting:
        stage = waiting.pop()
        spread = _spread(stage)
        if spread is None:
            done.append(stage)
        else:
            waiting += reversed(_split(stage, spread))
    return tuple(Nest((s,), len(s.axes)) for s in done) if len(done) > 1 else (nest,)


def _spread(stage: Stage) -> _Spread | None:
    """The first condition that a sum of an axis and a reduced one is a multiple of something."""
    if stage.combiner is None or stage.along or stage.scan or not stage.combiner.name:
        return None
    neutral = stage.combiner.identity[0]
    (term,) = stage.terms
    if not vanishes_outside(term, stage.combiner.name, neutral):
        return None
    for guard in guards(term):
        for condition in conjuncts(guard):
            found = _divides(condition, stage)
            if found is not None:
                return found
    return None


def _divides(condition: Expr, stage: Stage) -> _Spread | None:
    if not isinstance(condition, Apply) or condition.op != "eq":
        return None
    remainder, zero = condition.args
    if (
        not isinstance(remainder, Apply)
        or remainder.op != "floormod"
        or not isinstance(zero, Const)
        or zero.value != 0
    ):
        return None
    terms, offset = index.affine(remainder.args[0])
    step = remainder.args[1].value
    axes = [(v, c) for v, c in terms.items() if v in stage.axes]
    windows = [(v, c) for v, c in terms.items() if v in stage.reduce_axes]
    if len(axes) != 1 or len(windows) != 1 or len(terms) != 2:
        return None
    (axis, along), (window, across) = axes[0], windows[0]
    if math.gcd(across, step) != 1 or math.gcd(along, step) != 1:
        return None
    return _Spread(axis, along, window, across, offset, step)


def _split(stage: Stage, s: _Spread) -> list[Stage]:
    """One stage for each remainder of the axis that some result has."""
    parts = []
    for phase in range(min(s.step, s.axis.extent)):
        first = -(s.along * phase + s.offset) * pow(s.across, -1, s.step) % s.step
        axis = Var(f"{s.axis.name}_{phase}", s.axis.dtype, _count(s.axis.extent, phase, s.step))
        window = Var(
            f"{s.window.name}_{phase}", s.window.dtype, _count(s.window.extent, first, s.step)
        )
        place: dict[Var, Expr] = {s.axis: axis * s.step + phase, s.window: window * s.step + first}
        name = f"{stage.name}_{s.axis.name}_{phase}"
        if window.extent == 0:
            parts.append(_empty(stage, name, s.axis, axis, place))
            continue
        moved = map_expressions(stage, lambda e, place=place: substitute(e, place))
        parts.append(
            replace(
                moved,
                name=name,
                axes=tuple(axis if v is s.axis else v for v in stage.axes),
                reduce_axes=tuple(window if v is s.window else v for v in stage.reduce_axes),
            )
        )
    return parts


def _count(extent: int, first: int, step: int) -> int:
    """How many of first, first + step, … are less than `extent`."""
    return max(0, -(-(extent - first) // step))


def _empty(stage: Stage, name: str, old: Var, new: Var, place: Mapping[Var, Expr]) -> Stage:
    """The results without any term."""
    values = {**place, **dict(zip(stage.accumulators, stage.initial, strict=True))}
    assigns = tuple(
        Assign(
            a.buffer,
            tuple(substitute(i, values) for i in a.indices),
            substitute(a.value, values),
            None if a.guard is None else substitute(a.guard, values),
        )
        for a in stage.assigns
    )
    return Stage(name, tuple(new if v is old else v for v in stage.axes), assigns)
