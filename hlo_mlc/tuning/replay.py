"""Recorded schedules on their way back into the compiler."""

from __future__ import annotations

from hlo_mlc.loops.core import LoopProgram
from hlo_mlc.partition.naming import role
from hlo_mlc.runtime.records import Schedules
from hlo_mlc.support.warning import warn
from hlo_mlc.target.cpu import CpuTarget
from hlo_mlc.templates.base import Decision, Template
from hlo_mlc.templates.program import schedule_program
from hlo_mlc.tensor.core import TensorProgram
from hlo_mlc.tuning.space import space_of


def schedule_as_recorded(program: TensorProgram, target: CpuTarget, schedules: Schedules
           ) -> tuple[LoopProgram, tuple[Decision[Template], ...]]:
    """Loops with these schedules, or by default where the templates have changed so much since
    that they mean nothing any more, which is a warning."""
    default = schedule_program(program, target)
    if not schedules:
        return default
    if space_of(program, default[1], target).configuration(schedules) is None:
        warn(f"hlo_mlc: the recorded schedule of {role(program)} ({program.name}) is not one that "
             "today's templates have; it gets the default (tune it again)")
        return default
    return schedule_program(program, target, schedules)
