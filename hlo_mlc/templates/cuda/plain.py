"""The fallback: one thread for each point that is independent of the others, or one for all."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hlo_mlc.expr import index
from hlo_mlc.expr.core import Expr, Var
from hlo_mlc.loops.core import For, LoopKind, Stmt
from hlo_mlc.loops.dependence import Memory, carried
from hlo_mlc.loops.lower import lower_stage
from hlo_mlc.loops.rewrite import loop, substitute
from hlo_mlc.schedule.core import Schedule
from hlo_mlc.support.errors import ScheduleError
from hlo_mlc.target.cuda import CudaTarget
from hlo_mlc.templates.base import Parameters, Scheduled, open_schedule
from hlo_mlc.templates.cuda.base import (
    THREADS,
    at,
    below,
    flat,
    power_of_two,
    product,
    thread_loop,
    thread_var,
    where,
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

    def apply(self, nest: Nest, parameters: Parameters, outer: LoopKind) -> Scheduled:
        """The loops for the given parameters."""
        stage = coalesce(nest.stages[0])
        axes = _independent(nest, stage)
        if not axes:
            return Scheduled(_by_one_thread(stage, outer), ())
        if outer is LoopKind.SERIAL:
            return Scheduled(_by_one_block(stage, axes), ())
        names = [axis.name for axis in axes]
        schedule = open_schedule(nest, lower_stage(stage)).fuse(*names)
        threads = min(parameters["threads"], power_of_two(product(axes)))
        try:
            schedule = _shared_out(schedule, ".".join(names), threads)
        except ScheduleError:  # what the joined loop does cannot be told apart any more
            return Scheduled(_by_one_thread(stage, outer), ())
        return Scheduled(schedule.program.body, ())


def _shared_out(schedule: Schedule, name: str, threads: int) -> Schedule:
    schedule = schedule.split(name, threads, "shorten")
    return schedule.bind(f"{name}.o", "block").bind(f"{name}.i", "thread")


def _independent(nest: Nest, stage: Stage) -> tuple[Var, ...]:
    """The outermost axes whose points do not touch each other's elements."""
    body = lower_stage(stage)
    memory = Memory.of(open_schedule(nest, body).program)
    found = []
    for axis in stage.axes:
        if len(body) != 1 or not isinstance(body[0], For) or body[0].var is not axis \
                or carried(body[0], memory) is not None:
            break
        found.append(axis)
        body = body[0].body
    return tuple(found)


def _by_one_thread(stage: Stage, outer: LoopKind) -> tuple[Stmt, ...]:
    thread = thread_loop(thread_var(f"{stage.name}_t", 1), lower_stage(stage))
    if outer is LoopKind.SERIAL:
        return (thread,)
    return (loop(f"{stage.name}_b", 1, outer, lambda b: (thread,)),)


def _by_one_block(stage: Stage, axes: tuple[Var, ...]) -> tuple[Stmt, ...]:
    """All points by the threads of one block, each taking every so manyth."""
    total = product(axes)
    t = thread_var(f"{stage.name}_t", min(2 * THREADS, power_of_two(total)))
    point = lower_stage(replace(stage, axes=stage.axes[len(axes):]))

    def one(o: Expr) -> tuple[Stmt, ...]:
        position = flat((o, 1), (t, t.extent))
        return where(below(position, total), substitute(point, at(position, axes)))

    rounds = -(-total // t.extent)
    if rounds == 1:
        return (thread_loop(t, one(index.constant(0))),)
    return (thread_loop(t, (loop(f"{stage.name}_o", rounds, LoopKind.SERIAL, one),)),)
