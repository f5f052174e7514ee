"""Maps: 16 bytes a thread and step, neighbouring threads side by side.

naive loops  ->  fuse  ->  split, vectorize  ->  split "guard", unroll  ->  fuse_last  ->  bind

for b block:
  for t thread:
    for u unroll:
      position = (b * unroll + u) * threads + t
      if position < vectors: for v vectorize: y[position * width + v] = …
    the last thread of all: the elements behind the last vector
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hlo_mlc.loops.rewrite import constant_extent
from hlo_mlc.schedule.core import Schedule
from hlo_mlc.target.cuda import VECTOR_BYTES, CudaTarget
from hlo_mlc.templates.base import Parameters, Scheduled, open_stage
from hlo_mlc.templates.cuda.base import (
    THREADS,
    bound,
    by_one_thread,
    by_threads,
    lane_bytes,
    power_of_two,
    product,
    vector_width,
)
from hlo_mlc.tensor.classify import cost, is_map, why_not_apart
from hlo_mlc.tensor.coalesce import coalesce
from hlo_mlc.tensor.core import Nest, Stage


@dataclass(frozen=True, slots=True)
class ElementwiseTemplate:
    """One or several vectors a thread."""

    name: str = "elementwise"

    def refusal(self, nest: Nest, target: CudaTarget) -> str:
        """Why the nest is not one independent map; empty where it is."""
        if len(nest.stages) != 1 or not is_map(nest.stages[0]):
            return "not a single elementwise stage"
        return why_not_apart(nest.stages[0])

    def space(self, nest: Nest, target: CudaTarget) -> dict[str, tuple[int, ...]]:
        """Vectors a thread, and threads a block."""
        return {"unroll": (1, 2, 4), "threads": (128, 256, 512)}

    def default(self, nest: Nest, target: CudaTarget) -> Parameters:
        """Several loads in flight for short bodies, if there are blocks enough for all of the
        GPU."""
        stage = coalesce(nest.stages[0])
        vectors = product(stage.axes) // _width(stage)
        threads = min(THREADS, max(32, power_of_two(vectors)))
        plenty = vectors > 8 * threads * target.multiprocessors
        short = sum(cost(a.value) for a in stage.assigns) <= 20
        return {"unroll": 2 if plenty and short else 1, "threads": threads}

    def apply(self, nest: Nest, target: CudaTarget, parameters: Parameters) -> Scheduled:
        stage = coalesce(nest.stages[0])
        if not stage.axes:
            return by_one_thread(nest, stage, target)
        schedule, vector = _in_vectors(
            open_stage(stage, nest), [v.name for v in stage.axes], _width(stage)
        )
        count = constant_extent(schedule.loops(vector)[0])
        threads = min(parameters["threads"], power_of_two(count))
        # One block that does it all: its threads need not wait.
        unroll = 1 if target.is_one_block else min(parameters["unroll"], max(1, count // threads))
        schedule, around = by_threads(schedule, vector, threads, target, unroll)
        rest = f"{vector.removesuffix('.o')}.t"
        if rest in schedule.loop_names:
            schedule = schedule.fuse_last(rest, around)
        return Scheduled.of(bound(schedule, around))


def _in_vectors(schedule: Schedule, axes: Sequence[str], width: int) -> tuple[Schedule, str]:
    """The axes as one, in vectors of so many elements, and what the loop over vectors is called."""
    schedule, name = schedule.fuse(*axes), ".".join(axes)
    if width == 1:
        return schedule, name
    return schedule.split(name, width).vectorize(f"{name}.i"), f"{name}.o"


def _width(stage: Stage) -> int:
    """Elements of one vector: a single row may end behind its last whole vector."""
    if not stage.axes:
        return 1
    inner = stage.axes[-1]
    if len(stage.axes) > 1:
        return vector_width(stage, inner)
    width = VECTOR_BYTES // lane_bytes(stage, inner)
    return width if width <= inner.extent else 1
