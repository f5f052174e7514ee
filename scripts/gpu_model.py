"""Holds the model of GPUs that are not here (tuning/gpu_model.py) against what an H100 took.

Usage: python scripts/gpu_model.py [bench/results/gpu/h100.json]

No GPU is needed, but NVRTC is (pip install 'hlo-mlc[cuda]'). Measured times include what a call of
JAX's takes, 35 us or so.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import jax
import numpy as np

from hlo_mlc import MlcError, mlc_jit
from hlo_mlc.compiler import clusters_of
from hlo_mlc.interop.devices import CUDA
from hlo_mlc.interop.operands import parts_of_call
from hlo_mlc.interop.platforms import BACKENDS
from hlo_mlc.support.options import Options
from hlo_mlc.target.cuda import named
from hlo_mlc.tensor.core import TensorProgram
from hlo_mlc.tuning.generator import ModelledGenerator
from hlo_mlc_bench.gpu_subjects import Subject, compute, movement, products
from hlo_mlc_bench.script import arguments

RESULTS = Path(__file__).parents[1] / "bench" / "results" / "gpu" / "h100.json"
TARGET = named("sm_90")
GROUPS = ("movement", "compute", "products")


def subjects() -> Iterator[Subject]:
    """As scripts/gpu_check.py has them."""
    yield from movement(16_384, 4096)
    yield from compute(4096)
    yield from products(4096, with_tf32=True)


def programs(subject: Subject) -> Iterator[TensorProgram]:
    """The kernels of a subject."""
    options = Options.from_environment(choose="ours", target=TARGET.name)
    types = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in subject.arguments]
    for part in parts_of_call(mlc_jit(subject.function), types, {}, CUDA):
        _, plan = clusters_of(
            part.module, options, entry=part.entry, backend=BACKENDS[CUDA](options)
        )
        for cluster, _ in plan.taken:
            yield cluster.kernel.program


def predicted_us(program: TensorProgram) -> float:
    """The time of a kernel's default schedule by the model."""
    generator = ModelledGenerator()
    source = generator.source(program, TARGET, {})
    return generator.bench(TARGET, (), ()).load(source, generator.assemble(source, TARGET)).us


def main(results: str = str(RESULTS)) -> None:
    """Prints a row for each subject that our kernels ran, and what they come to."""
    found = json.loads(Path(results).read_text())
    measured = {
        row["name"]: row["ours_us"]
        for group in GROUPS
        for row in found[group]
        if row.get("templates") and "ours_us" in row
    }
    pairs = []
    for subject in subjects():
        if subject.name in measured:
            try:
                us = sum(map(predicted_us, programs(subject)))
            except MlcError as error:
                print(f"{subject.name:28} {error}")
                continue
            pairs.append((measured[subject.name], us))
            print(
                f"{subject.name:28} measured {pairs[-1][0]:8.1f} us, predicted {us:8.1f} us "
                f"({us / pairs[-1][0]:.2f})"
            )
    ranks = np.argsort(np.argsort(np.array(pairs), axis=0), axis=0)
    within = np.mean([0.5 <= us / took <= 2 for took, us in pairs])
    print(
        f"{len(pairs)} kernels, rank correlation {np.corrcoef(ranks.T)[0, 1]:.2f}, "
        f"within a factor of two {within:.0%}"
    )


if __name__ == "__main__":
    main(*arguments(__doc__, most=1))
