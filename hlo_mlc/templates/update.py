"""Updates that may meet: rows of a scatter, one after the other, each as vectors.

    for each row, in order:
      for vectors along it: target[place(row), vector] = combine(target[place(row), vector], row)

Rows may fall on the same place, elements of one row never do, so every element of the target sees
its updates in their order.
"""

from __future__ import annotations

from dataclasses import dataclass

from hlo_mlc.expr import index
from hlo_mlc.expr.core import Expr, Var, loads
from hlo_mlc.loops.lower import lower_stage
from hlo_mlc.target.cpu import CpuTarget
from hlo_mlc.templates.base import Parameters, Scheduled, lanes, open_schedule
from hlo_mlc.templates.elementwise import vectorize
from hlo_mlc.tensor.classify import is_map
from hlo_mlc.tensor.coalesce import coalesce
from hlo_mlc.tensor.core import Nest


@dataclass(frozen=True, slots=True)
class UpdateTemplate:
    """Serial but for the axis along which nothing can meet."""

    name: str = "update"

    def refusal(self, nest: Nest, target: CpuTarget) -> str:
        """Why the nest is not an update by rows; empty where it is."""
        if len(nest.stages) != 1 or not is_map(nest.stages[0]):
            return "not a single elementwise stage"
        stage = coalesce(nest.stages[0])
        if not stage.axes or stage.axes[-1].extent < 2:
            return "no rows"
        places = {(a.buffer, a.indices) for a in stage.assigns}
        if not all(_walks_alone(indices, stage.axes[-1]) for _, indices in places):
            return "elements of a row may meet"
        written = set(stage.outputs)
        if len(places) > len(written):
            return "it writes to several places of one buffer"
        for e in stage.expressions:
            for access in loads(e):
                if access.source in written and (access.source, access.indices) not in places:
                    return "it reads elements that other points overwrite"
        return ""

    def space(self, nest: Nest, target: CpuTarget) -> dict[str, tuple[int, ...]]:
        """Vectors per iteration."""
        return {"unroll": (1, 2, 4)}

    def default(self, nest: Nest, target: CpuTarget) -> Parameters:
        """Several vectors in flight."""
        return {"unroll": 4}

    def apply(self, nest: Nest, target: CpuTarget, parameters: Parameters) -> Scheduled:
        """The loops for the given parameters."""
        stage = coalesce(nest.stages[0])
        schedule = vectorize(open_schedule(nest, lower_stage(stage)), stage.axes[-1].name,
                             lanes((stage,), target), parameters["unroll"])
        return Scheduled.of(schedule)


def _walks_alone(indices: tuple[Expr, ...], axis: Var) -> bool:
    """Whether one of the indices is the axis, from anywhere on, and the others have no part in it.
    """
    steps = [index.coefficient(i, axis) for i in indices]
    return None not in steps and sorted(map(abs, steps)) == [*[0] * (len(steps) - 1), 1]
