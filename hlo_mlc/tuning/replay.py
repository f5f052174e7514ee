"""Recorded schedules on their way back into the compiler."""

from __future__ import annotations

from collections.abc import Sequence

from hlo_mlc.loops.core import LoopProgram
from hlo_mlc.loops.prove import prove
from hlo_mlc.partition.naming import role
from hlo_mlc.runtime.records import Schedules
from hlo_mlc.support.errors import ScheduleError, VerifyError
from hlo_mlc.support.warning import warn
from hlo_mlc.target import Target
from hlo_mlc.target.cuda import CudaTarget
from hlo_mlc.templates.base import Decision, Named
from hlo_mlc.tensor.core import TensorProgram
from hlo_mlc.tuning.generator import CudaGenerator, TemplateGenerator


def generator_for(target: Target) -> TemplateGenerator | CudaGenerator:
    """What makes kernels for a target."""
    return CudaGenerator() if isinstance(target, CudaTarget) else TemplateGenerator()


def schedule_as_recorded(
    program: TensorProgram, target: Target, schedules: Schedules
) -> tuple[LoopProgram, Sequence[Decision[Named]]]:
    """Loops with these schedules, or by default where the templates or primitives have changed so
    much since that they mean nothing any more, which is a warning."""
    why = why_not_followed(program, target, schedules)
    if why:
        warn(
            f"hlo_mlc: the recorded schedule of {role(program)} ({program.name}) cannot be "
            f"followed ({why}); it gets the default (tune or schedule it again)"
        )
    return generator_for(target).schedule(program, target, {} if why else schedules)


def why_not_followed(program: TensorProgram, target: Target, schedules: Schedules) -> str:
    """Why these schedules are none of today's; "" where they are."""
    if not schedules:
        return ""
    generator = generator_for(target)
    tuned = {n: way for n, way in schedules.items() if not isinstance(way[1], tuple)}
    if generator.space(program, target).configuration(tuned) is None:
        return "it is not one that today's templates have"
    if len(tuned) == len(schedules):
        return ""
    try:
        loops, followed = generator.schedule(program, target, schedules)
        prove(loops)
    except (ScheduleError, VerifyError) as error:
        return str(error.args[0])  # without the loops around
    return "" if max(schedules) < len(followed) else f"it has no nest {max(schedules)}"
