"""What a call costs when there is nothing to compute."""

from __future__ import annotations

from hlo_mlc_bench.case import Case, of_normals

CASES = (
    # The figure: our dispatch may take 1.3 times that of jax.jit.
    Case(
        "tiny_call",
        of_normals(lambda x: x + 1),
        {"size": 8},
        group="overhead",
        tiny={"size": 2},
        tolerance=1,
        figure=1 / 1.3,
    ),
)
