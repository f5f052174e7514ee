"""Layouts, levels and parameters that tests of windows have in common."""

from __future__ import annotations

from hlo_mlc.target.cpu import named
from hlo_mlc.target.levels import runnable
from hlo_mlc.templates.program import schedule_program

# What is expected of choices does not depend on the machine that the tests run on.
TARGET = named("x86-64-v4")
NHWC, NCHW = ("NHWC", "HWIO", "NHWC"), ("NCHW", "OIHW", "NCHW")
LEVELS = ["host", *(level for level in ("x86-64", "x86-64-v3") if level in runnable())]


def drawn(program, target, rng) -> dict[int, tuple[str, dict[str, int]]]:
    """Random parameters for every nest of a program."""
    return {
        n: (
            d.template.name,
            {
                key: int(rng.choice(values))
                for key, values in d.template.space(d.nest, target).items()
            },
        )
        for n, d in enumerate(schedule_program(program, target)[1])
    }
