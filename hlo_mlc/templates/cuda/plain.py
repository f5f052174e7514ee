"""The fallback: one thread for each point that is independent of the others, or one for all."""

from __future__ import annotations

from dataclasses import dataclass

from hlo_mlc.expr.core import Var
from hlo_mlc.loops.core import For
from hlo_mlc.loops.dependence import Memory, carried
from hlo_mlc.loops.lower import lower_stage
from hlo_mlc.loops.rewrite import constant_extent
from hlo_mlc.support.errors import ScheduleError
from hlo_mlc.target.cuda import CudaTarget
from hlo_mlc.templates.base import Parameters, Scheduled, open_schedule
from hlo_mlc.templates.cuda.base import (
    THREADS,
    bound,
    by_one_thread,
    by_threads,
    power_of_two,
    product,
)
from hlo_mlc.tensor.coalesce import coalesce
from hlo_mlc.tensor.core import Nest, Stage


@dataclass(frozen=True, slots=True)
class PlainTemplate:
    """Naive loops, those outer ones that are independent shared out to threads."""

    name: str = "plain"

    def refusal(self, nest: Nest, target: CudaTarget) -> str:
        """Refuses only what is several stages, which are computed one after the other."""
        return "several stages" if len(nest.stages) > 1 else ""

    def space(self, nest: Nest, target: CudaTarget) -> dict[str, tuple[int, ...]]:
        """Threads of a block."""
        return {"threads": (32, 128, 256)}

    def default(self, nest: Nest, target: CudaTarget) -> Parameters:
        """Small blocks for few points, so that they are spread over the GPU."""
        points = product(nest.stages[0].axes)
        return {"threads": 32 if points <= 32 * target.multiprocessors else THREADS}

    def apply(self, nest: Nest, target: CudaTarget, parameters: Parameters) -> Scheduled:
        stage = coalesce(nest.stages[0])
        names = [axis.name for axis in _independent(nest, stage)]
        if not names:
            return by_one_thread(nest, stage, target)
        in_blocks = not target.is_one_block
        schedule = open_schedule(nest, lower_stage(stage), in_blocks).fuse(*names)
        count = constant_extent(schedule.loops(".".join(names))[0])
        threads = parameters["threads"] if in_blocks else 2 * THREADS
        try:
            return Scheduled.of(
                bound(
                    *by_threads(
                        schedule, ".".join(names), min(threads, power_of_two(count)), target
                    )
                )
            )
        except ScheduleError:  # what the joined loop does cannot be told apart any more
            return by_one_thread(nest, stage, target)


def _independent(nest: Nest, stage: Stage) -> tuple[Var, ...]:
    """The outermost axes whose points do not touch each other's elements."""
    body = lower_stage(stage)
    memory = Memory.of(open_schedule(nest, body).program)
    found = []
    for axis in stage.axes:
        if (
            len(body) != 1
            or not isinstance(body[0], For)
            or body[0].var is not axis
            or carried(body[0], memory) is not None
        ):
            break
        found.append(axis)
        body = body[0].body
    return tuple(found)
