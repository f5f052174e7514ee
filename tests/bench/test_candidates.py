"""Whatever there is to choose for the kernels of the cases can be built: tuning loses no trial.

The sizes are those of the cases: what is too large for a stack or for a proof shows there alone.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest

from hlo_mlc.target.cpu import named
from hlo_mlc.tensor.core import TensorProgram
from hlo_mlc.tuning.generator import TemplateGenerator
from hlo_mlc_bench.cases import BY_NAME, GROUPS

GENERATOR = TemplateGenerator()
TARGET = named("x86-64-v4")
CASES, KERNELS, CANDIDATES = 3, 2, 8
# A stack that was too small, a loop of one trip, tasks of parts of rows, results in another order
# than the loops that they come from.
ONCE_LOST = ("large_matmul/bfloat16", "pooling", "synthesis", "mapped_layer", "pixelwise")


def programs_of(name: str, take_apart: Callable) -> list[TensorProgram]:
    with BY_NAME[name].in_its_mode():
        function, args = BY_NAME[name].make()
        return take_apart(function, *args).programs


def build_some(programs: Sequence[TensorProgram], candidates: int, rng: random.Random) -> None:
    for program in programs:
        space = GENERATOR.space(program, TARGET)
        for configuration in (space.default, *(space.anything(rng) for _ in range(candidates))):
            schedules = space.schedules(configuration)
            assert GENERATOR.source(program, TARGET, schedules).text


@pytest.mark.parametrize("group", GROUPS)
def test_every_candidate_is_scheduled_proved_and_printed(group: str, take_apart) -> None:
    rng = random.Random(group)
    names = [name for name, case in BY_NAME.items() if case.group == group]
    for name in rng.sample(names, min(CASES, len(names))):
        programs = programs_of(name, take_apart)
        build_some(rng.sample(programs, min(KERNELS, len(programs))), CANDIDATES, rng)


@pytest.mark.parametrize("name", ONCE_LOST)
def test_those_that_were_lost_once(name: str, take_apart) -> None:
    build_some(programs_of(name, take_apart), 6 * CANDIDATES, random.Random(0))
