"""The registry: every case, by name and by group."""

from __future__ import annotations

from hlo_mlc_bench.cases import (
    attention,
    contractions,
    convolutions,
    elementwise,
    fusion,
    issues,
    linear_algebra,
    loops,
    math,
    models,
    movement,
    overhead,
    reports,
    rows,
    sorting,
)

CASES = (
    *models.CASES,
    *attention.CASES,
    *elementwise.CASES,
    *rows.CASES,
    *contractions.CASES,
    *convolutions.CASES,
    *loops.CASES,
    *linear_algebra.CASES,
    *math.CASES,
    *movement.CASES,
    *sorting.CASES,
    *overhead.CASES,
    *issues.CASES,
    *reports.CASES,
    *fusion.CASES,
)
"""All cases, in the order in which they are run and shown; neighbours hang on their case."""

GROUPS = tuple(dict.fromkeys(case.group for case in CASES))

DEMO = (
    "encoder_block",
    "lstm_scan",
    "mlp_train_step",
    "attention",
    "gelu",
    "softmax",
    "argmax",
    "matmul",
    "depthwise",
    "mobilenet_stack",
    "resnet_stage",
    "attention_scores",
    "tiny_matmuls",
    "jacobi2d",
    "rotations_unrolled",
    "nbody",
    "black_scholes",
    "normal",
    "cumsum",
    "transpose",
    "tiny_call",
)
"""The cases of `hlo-mlc demo`."""

BY_NAME = {one.name: one for case in CASES for one in (case, *case.neighbours)}
