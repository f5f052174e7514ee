"""Whatever there is to choose for a kernel can be built: no trial of tuning is lost."""

from __future__ import annotations

import random

import pytest

from hlo_mlc.target.cpu import named
from hlo_mlc.tuning.generator import TemplateGenerator
from hlo_mlc.tuning.space import key_of

GENERATOR = TemplateGenerator()
CANDIDATES = 6


@pytest.mark.parametrize("level", ["x86-64-v2", "x86-64-v4"])
def test_every_candidate_is_scheduled_proved_and_printed(sample, name: str, level: str) -> None:
    target, rng = named(level), random.Random(f"{name} {level}")
    for seed in range(2):
        for program in sample(name, seed).parts.programs:
            space = GENERATOR.space(program, target)
            drawn = (space.anything(rng) for _ in range(CANDIDATES))
            for configuration in {key_of(c): c for c in (*space.starts, *drawn)}.values():
                assert GENERATOR.source(program, target, space.schedules(configuration)).text
