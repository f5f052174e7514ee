"""Nests over a few elements, written out one by one, without vectors.

    for i in 0..3: y[i] = sum of a[i, k] * x[k] over k in 0..3    ->    y[0] = a[0, 0] * x[0] + …
                                                                        y[1] = …

Steps of loops over small matrices consist of them.  Vectors would be nearly empty, sums across
their lanes wait, and a vector cannot be loaded from single elements that were just stored before
these have reached the cache.  A scan of 2,000 steps that each multiply some 3 x 3 matrices took 0.4
of the time (bench case small_carry), with 4 x 4 0.7 to 0.9, with 6 x 6 1.2.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, replace

from hlo_mlc.expr import index
from hlo_mlc.expr.build import substitute
from hlo_mlc.expr.core import Apply, Expr, walk
from hlo_mlc.expr.ops import OPS, Accuracy
from hlo_mlc.loops.lower import lower_nest
from hlo_mlc.target.cpu import CpuTarget
from hlo_mlc.templates.base import Fixed, Parameters, Scheduled, open_schedule, points
from hlo_mlc.tensor.core import Nest, Stage

LONGEST = 4  # axis
MOST_POINTS = 64  # of a stage: a product of two matrices of 4 x 4


@dataclass(frozen=True, slots=True)
class ShortTemplate(Fixed):
    """All loops unrolled, on one thread."""

    name: str = "short"

    def refusal(self, nest: Nest, target: CpuTarget) -> str:
        """Why this template cannot compute the nest; empty where it can."""
        return next(filter(None, map(_refusal, nest.stages)), "")

    def apply(self, nest: Nest, target: CpuTarget, parameters: Parameters) -> Scheduled:
        """The naive loops, all of them unrolled."""
        shared = nest.stages[0].axes[: nest.shared]
        inner = [replace(stage, axes=stage.axes[nest.shared :]) for stage in nest.stages]
        schedule = open_schedule(nest, lower_nest(shared, inner), checked=False)
        for name in schedule.loop_names:
            schedule = schedule.unroll(name)
        return Scheduled.of(schedule)


def _refusal(stage: Stage) -> str:
    if stage.sort is not None or stage.scan is not None:
        return "a sort or a scan"
    axes = (*stage.axes, *stage.reduce_axes)
    if not axes:
        return "a single element"
    if points(stage) > MOST_POINTS or any(axis.extent > LONGEST for axis in axes):
        return f"an axis of more than {LONGEST}, or more than {MOST_POINTS} points"
    if _has_more_at_points(stage):
        return "a function that takes as long for one element as for a vector"
    return ""


def _lengthy(expressions: Iterable[Expr]) -> set[Expr]:
    """Functions that take as long for one element as for a vector, each with its argument."""
    return {
        node
        for node in walk(*expressions)
        if isinstance(node, Apply) and OPS[node.op].accuracy is Accuracy.APPROXIMATE
    }


def _has_more_at_points(stage: Stage) -> bool:
    """Whether the points of a stage, written out, have more of these functions than it has."""
    own = _lengthy(stage.expressions)
    if not own:
        return False
    axes = (*stage.axes, *stage.reduce_axes)
    found: set[Expr] = set()
    for point in itertools.product(*(range(axis.extent) for axis in axes)):
        at = dict(zip(axes, map(index.constant, point), strict=True))
        found |= _lengthy(substitute(e, at) for e in stage.expressions)
        if len(found) > len(own):
            return True
    return False
