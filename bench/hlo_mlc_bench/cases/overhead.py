"""What a call costs when there is nothing to compute."""

from __future__ import annotations

import jax

from hlo_mlc_bench.case import Case, Inputs, Workload


def tiny_call(inputs: Inputs, *, size: int) -> Workload:
    def function(x: jax.Array) -> jax.Array:
        return x + 1

    return function, (inputs.normal(size),)


CASES = (
    Case(
        name="tiny_call",
        group="overhead",
        build=tiny_call,
        sizes={"size": 8},
        tiny={"size": 2},
        tolerance=1,
        figure=1 / 1.3,  # our dispatch may take 1.3 times that of jax.jit
    ),
)
