"""Updates of places that may meet: a thread for each of them, each update at once.

    naive loops  ->  fuse  ->  atomic  ->  split "guard"  ->  bind

    for b block: for t thread:
      target[place] <- op term  atomic

Neighbouring threads have neighbouring elements of an update.  Whole numbers, minima and maxima come
out the same in every run.  Sums and products of floats do so but for their last bits, since they
are added in the order in which threads arrive; so are those of XLA's own scatter on GPUs.
"""

from __future__ import annotations

from dataclasses import dataclass

from hlo_mlc.expr.combiner import Combiner
from hlo_mlc.expr.core import Expr, Load, loads
from hlo_mlc.target.cuda import CudaTarget
from hlo_mlc.templates.base import Parameters, Scheduled, open_stage
from hlo_mlc.templates.cuda.base import THREADS, bound, by_threads, power_of_two, product
from hlo_mlc.tensor.classify import is_map, writes_once
from hlo_mlc.tensor.coalesce import coalesce
from hlo_mlc.tensor.combine import update_of
from hlo_mlc.tensor.core import Assign, Nest


@dataclass(frozen=True, slots=True)
class ScatterTemplate:
    """A thread for each update."""

    name: str = "scatter"

    def refusal(self, nest: Nest, target: CudaTarget) -> str:
        """Why the nest is not one of updates that may meet; empty where it is."""
        if len(nest.stages) != 1 or not is_map(nest.stages[0]):
            return "not a single elementwise stage"
        stage = nest.stages[0]
        if not stage.axes:
            return "a single update"
        if writes_once(stage):
            return "no two points write one element"
        for assign in stage.assigns:
            if assign.buffer.dtype.bytes < 2 or assign.buffer.dtype.bits < 16:
                return "elements that cannot be exchanged alone"
            if _update(assign) is None:
                return "the last of several updates counts, or each sees those before it"
        written = set(stage.outputs)
        rest = [
            e
            for a in stage.assigns
            for e in (_update(a)[1], *a.indices, *(() if a.guard is None else (a.guard,)))
        ]
        if any(load.source in written for e in rest for load in loads(e)):
            return "it reads elements that other points overwrite"
        return ""

    def space(self, nest: Nest, target: CudaTarget) -> dict[str, tuple[int, ...]]:
        """Threads of a block."""
        return {"threads": (64, 128, 256)}

    def default(self, nest: Nest, target: CudaTarget) -> Parameters:
        """Small blocks for few updates."""
        points = product(nest.stages[0].axes)
        return {"threads": 64 if points <= 64 * target.multiprocessors else THREADS}

    def apply(self, nest: Nest, target: CudaTarget, parameters: Parameters) -> Scheduled:
        stage = coalesce(nest.stages[0])
        names = [v.name for v in stage.axes]
        schedule = open_stage(stage, nest).fuse(*names)
        for buffer in stage.outputs:
            schedule = schedule.atomic(buffer.name)
        threads = min(parameters["threads"], power_of_two(product(stage.axes)))
        return Scheduled.of(bound(*by_threads(schedule, ".".join(names), threads, target)))


def _update(assign: Assign) -> tuple[Combiner, Expr] | None:
    """The combiner and the term with which an assignment updates its element."""
    return update_of(assign.value, Load(assign.buffer, assign.indices))
