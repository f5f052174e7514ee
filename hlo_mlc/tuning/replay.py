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
from hlo_mlc.templates.base import Decision, Named
from hlo_mlc.tensor.core import TensorProgram
from hlo_mlc.tuning.generator import ByTemplates

Scheduled = tuple[LoopProgram, Sequence[Decision[Named]]]


def schedule_as_recorded(
    program: TensorProgram, target: Target, schedules: Schedules, generator: ByTemplates
) -> Scheduled:
    """Loops with these schedules, or by default where the templates or primitives have changed so
    much since that they mean nothing any more, which is a warning."""
    if schedules:
        try:
            return _followed(program, target, schedules, generator)
        except (ScheduleError, VerifyError) as error:
            warn(
                f"hlo_mlc: the recorded schedule of {role(program)} ({program.name}) cannot be "
                f"followed ({_reason(error)}); it gets the default (tune or schedule it again)"
            )
    return generator.schedule(program, target, {})


def why_not_followed(
    program: TensorProgram, target: Target, schedules: Schedules, generator: ByTemplates
) -> str:
    """Why these schedules are none of today's; "" where they are."""
    if not schedules:
        return ""
    try:
        _followed(program, target, schedules, generator)
    except (ScheduleError, VerifyError) as error:
        return _reason(error)
    return ""


def _followed(
    program: TensorProgram, target: Target, schedules: Schedules, generator: ByTemplates
) -> Scheduled:
    """Raises: ScheduleError or VerifyError for schedules that are none of today's."""
    tuned = {n: way for n, way in schedules.items() if not isinstance(way[1], tuple)}
    if generator.space(program, target).configuration(tuned) is None:
        raise ScheduleError("it is not one that today's templates have")
    loops, decisions = generator.schedule(program, target, schedules)
    if len(tuned) < len(schedules):
        prove(loops)
        if max(schedules) >= len(decisions):
            raise ScheduleError(f"it has no nest {max(schedules)}")
    return loops, decisions


def _reason(error: Exception) -> str:
    return str(error.args[0])  # without the loops around
