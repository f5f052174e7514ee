"""Counts how many kernels of the benchmark cases are proved, guarded and refused.

    python scripts/proofs.py [--target NAME]... [--every N]

Kernels are scheduled and proved (loops/prove.py), not assembled, and nothing runs: for each level
of CPUs and each GPU architecture asked for, by default x86-64-v3, x86-64-v4 as far as this machine
can plan for them, and sm_90.  `--every N` takes one case in N, neighbours included.  Ends with
status 1 if anything is refused, or less than 95 % is proved without a guard.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import jax
from jaxlib.mlir import ir
from rich.console import Console
from rich.table import Table

from hlo_mlc.backends.base import Backend
from hlo_mlc.backends.cpu import cpu_backend
from hlo_mlc.backends.cuda import CudaBackend
from hlo_mlc.compiler import clusters_of
from hlo_mlc.loops.prove import prove
from hlo_mlc.partition.kernel import Kernel
from hlo_mlc.runtime.proofs import OUTCOMES
from hlo_mlc.support.errors import CodegenError, VerifyError
from hlo_mlc.support.options import Options
from hlo_mlc.target import cuda
from hlo_mlc.target.levels import runnable
from hlo_mlc_bench.cases import BY_NAME

USUAL = ("x86-64-v3", "x86-64-v4", "sm_90")
LEAST_PROVED = 0.95  # of all kernels, without guards


@dataclass(frozen=True, slots=True)
class Finding:
    """What became of a kernel, of which case, and why it was not proved as it is."""

    case: str
    kernel: str
    outcome: str
    reasons: tuple[str, ...] = ()


def main(arguments: Sequence[str]) -> int:
    """Prints a table and the reasons; 1 if too little is proved."""
    known = (*runnable(), *cuda.names())
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--target",
        action="append",
        choices=known,
        metavar="NAME",
        help=f"one of {', '.join(known)}; may be given several times",
    )
    parser.add_argument("--every", type=int, default=1, metavar="N", help="one case in N")
    asked = parser.parse_args(arguments)
    targets = asked.target or [name for name in USUAL if name in known]
    if asked.every < 1:
        parser.error("--every: expected 1 or more")
    cases = list(BY_NAME)[:: asked.every]
    found: dict[str, list[Finding]] = {target: [] for target in targets}
    processes = multiprocessing.get_context("spawn").Pool(len(os.sched_getaffinity(0)))
    with tempfile.TemporaryDirectory() as empty, processes:  # nothing that was tuned here counts
        of_cases = processes.starmap(
            findings, [(case, targets, Path(empty)) for case in cases], chunksize=1
        )
    for of_case in of_cases:
        for target, rows in of_case.items():
            found[target] += rows
    console = Console()
    console.print(table(found, len(cases)))
    for target, rows in found.items():
        for row in rows:
            for reason in row.reasons:
                console.print(
                    f"{target}, {row.case}, {row.kernel}: {row.outcome}: {reason}",
                    markup=False,
                    highlight=False,
                    soft_wrap=True,
                )
    return 0 if all(is_enough(rows) for rows in found.values()) else 1


def findings(name: str, targets: Sequence[str], cache_dir: Path) -> dict[str, list[Finding]]:
    """What becomes of the kernels of a case on each target; it is traced once for all, and lowered
    once for each platform."""
    case = BY_NAME[name]
    found: dict[str, list[Finding]] = {}
    modules: dict[str, ir.Module] = {}
    with case.in_its_mode():
        function, args = case.make()
        traced = jax.jit(function).trace(*args)
        for target in targets:
            options = Options(choose="ours", target=target, cache_dir=cache_dir)
            for_gpu = target in cuda.names()
            backend = CudaBackend(cuda.named(target)) if for_gpu else cpu_backend(options)
            platform = "cuda" if for_gpu else "cpu"
            if platform not in modules:
                lowered = traced.lower(lowering_platforms=(platform,))
                modules[platform] = lowered.compiler_ir("stablehlo")
            _, plan = clusters_of(modules[platform], options, backend=backend)
            kernels = {c.kernel.fingerprint: c.kernel for c, _ in plan.taken}
            found[target] = [finding(name, kernel, backend) for kernel in kernels.values()]
    return found


def finding(case: str, kernel: Kernel, backend: Backend) -> Finding:
    """What becomes of one kernel."""
    name = kernel.program.name
    try:
        _, proof = prove(backend.generator.loops(kernel.program, backend.target, {}))
    except (CodegenError, VerifyError) as error:
        return Finding(case, name, "refused", (str(error),))
    return Finding(case, name, "guarded" if proof.guarded else "proved", proof.guarded)


def is_enough(rows: Sequence[Finding]) -> bool:
    """Whether nothing is refused and almost all is proved."""
    counts = Counter(row.outcome for row in rows)
    return bool(rows) and not counts["refused"] and counts["proved"] >= LEAST_PROVED * len(rows)


def table(found: dict[str, list[Finding]], cases: int) -> Table:
    """The counts, a row for each target."""
    drawn = Table(title=f"kernels of {cases} cases")
    for column in ("target", "kernels", *OUTCOMES, "proved without guards"):
        drawn.add_column(column, justify="left" if column == "target" else "right")
    for target, rows in found.items():
        counts = Counter(row.outcome for row in rows)
        share = counts["proved"] / max(1, len(rows))
        drawn.add_row(target, str(len(rows)), *(str(counts[o]) for o in OUTCOMES), f"{share:.1%}")
    return drawn


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
