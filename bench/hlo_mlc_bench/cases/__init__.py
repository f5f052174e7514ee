"""The registry: every case, by name and by group."""

from __future__ import annotations

from hlo_mlc_bench.cases import contractions, elementwise, loops, models, overhead, rows

CASES = (
    *models.CASES,
    *elementwise.CASES,
    *rows.CASES,
    *contractions.CASES,
    *loops.CASES,
    *overhead.CASES,
)
"""All cases, in the order in which they are run and shown; neighbours hang on their case."""

GROUPS = tuple(dict.fromkeys(case.group for case in CASES))

DEMO = (
    "encoder_block",
    "lstm_scan",
    "mlp_train_step",
    "gelu",
    "softmax",
    "argmax",
    "matmul",
    "attention_scores",
    "tiny_matmuls",
    "jacobi2d",
    "rotations_unrolled",
    "tiny_call",
)
"""The cases of `hlo-mlc demo`."""

BY_NAME = {one.name: one for case in CASES for one in (case, *case.neighbours)}
