"""Whatever there is to choose for the kernels of the cases can be built: tuning loses no trial.

The sizes are those of the cases: what is too large for a stack or for a proof shows there alone.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import jax
import pytest

from hlo_mlc.compiler import clusters_of
from hlo_mlc.support.options import Options
from hlo_mlc.target.cpu import named
from hlo_mlc.tuning.generator import TemplateGenerator
from hlo_mlc_bench.cases import BY_NAME, GROUPS

GENERATOR = TemplateGenerator()
TARGET = "x86-64-v4"
CASES, KERNELS, CANDIDATES = 3, 2, 8
# A stack that was too small, a loop of one trip, tasks of parts of rows, results in another order
# than the loops that they come from.
ONCE_LOST = ("large_matmul/bfloat16", "pooling", "synthesis", "mapped_layer", "pixelwise")


def kernels_of(name: str):
    with BY_NAME[name].in_its_mode():
        function, args = BY_NAME[name].make()
        module = jax.jit(function).lower(*args).compiler_ir("stablehlo")
        _, plan = clusters_of(module, Options(target=TARGET))
    return list({c.kernel.fingerprint: c.kernel for c, _ in (*plan.taken, *plan.rejected)}.values())


def build_some(kernels: Sequence, candidates: int, rng: random.Random) -> None:
    for kernel in kernels:
        space = GENERATOR.space(kernel.program, named(TARGET))
        for configuration in (space.default, *(space.anything(rng) for _ in range(candidates))):
            schedules = space.schedules(configuration)
            assert GENERATOR.source(kernel.program, named(TARGET), schedules).text


@pytest.mark.parametrize("group", GROUPS)
def test_every_candidate_is_scheduled_proved_and_printed(group: str) -> None:
    rng = random.Random(group)
    names = [name for name, case in BY_NAME.items() if case.group == group]
    for name in rng.sample(names, min(CASES, len(names))):
        kernels = kernels_of(name)
        build_some(rng.sample(kernels, min(KERNELS, len(kernels))), CANDIDATES, rng)


@pytest.mark.parametrize("name", ONCE_LOST)
def test_those_that_were_lost_once(name: str) -> None:
    build_some(kernels_of(name), 6 * CANDIDATES, random.Random(0))
