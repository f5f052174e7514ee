"""What one hour with a GPU is for: runs the GPU tests, then benchmarks against jax.jit.

Usage: python scripts/gpu_check.py [--seconds 400] [--json results.json] [--cases NAME …]

Correctness first: a case whose results are wrong is not timed. Pairs of runs are interleaved
(A B A B), ratios are those of jax.jit to ours. Prints JSON, with versions and the device; it stops
beginning new cases when the time is over. Needs pytest, but nothing from the network. On a machine
without a GPU it says so and ends with status 1; `--any-device` measures what there is.
"""

from __future__ import annotations

import argparse
import functools
import importlib.metadata
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import jax
import jax.numpy as jnp

from hlo_mlc import mlc_jit
from hlo_mlc_bench import timing
from hlo_mlc_bench.cases import BY_NAME, CASES
from hlo_mlc_bench.runner import measuring, run_case

ROOT = Path(__file__).resolve().parent.parent
# Products that cuBLAS keeps say nothing about our kernels.
GROUPS_LEFT_OUT = frozenset(("contractions", "convolutions", "overhead"))
TESTS = "tests/codegen/cuda/test_gpu.py"
COPY_BYTES = 1 << 28
VERSIONS = ("jax", "jaxlib", "numpy", "cupy-cuda13x", "hlo-mlc")


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 0 if all tests passed and no result was wrong."""
    options = _parser().parse_args(arguments)
    device = jax.devices()[0]
    if device.platform != "gpu" and not options.any_device:
        print(f"expected a GPU, JAX has {', '.join(map(str, jax.devices()))}", file=sys.stderr)
        return 1
    began = time.monotonic()
    tests = subprocess.run([sys.executable, "-m", "pytest", "-q", "-m", "cuda", TESTS], cwd=ROOT,
                           capture_output=True, text=True)
    found = {
        "device": getattr(device, "device_kind", str(device)),
        "versions": {name: _version(name) for name in VERSIONS},
        "tests": {"status": tests.returncode, "output": tests.stdout.splitlines()[-20:]},
        "copy_gb_s": _copy_rate(),
        "cases": [],
    }
    wanted = [BY_NAME[name] for name in options.cases] if options.cases else [
        case for case in CASES if case.group not in GROUPS_LEFT_OUT]
    with measuring(functools.partial(mlc_jit, choose="ours")):
        for case in wanted:
            if time.monotonic() - began > options.seconds:
                found["stopped_before"] = case.name
                break
            row = run_case(case, functools.partial(mlc_jit, choose="ours"))
            found["cases"].append(asdict(row))
    text = json.dumps(found, indent=1)
    print(text)
    if options.json is not None:
        options.json.write_text(text + "\n")
    return int(tests.returncode != 0 or any(c["status"] == "wrong" for c in found["cases"]))


def _copy_rate() -> float:
    """Gigabytes read and written in a second by a copy that XLA makes."""
    x = jnp.zeros(COPY_BYTES // 4, jnp.float32)
    copy = jax.jit(lambda x: x + 1)
    times = timing.compare(copy, copy, (x,), 5)
    return 2 * COPY_BYTES / times.a.median_us / 1e3


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=400, help="begin no case after these")
    parser.add_argument("--json", type=Path, help="write the results here too")
    parser.add_argument("--cases", nargs="*", default=[], help="only these")
    parser.add_argument("--any-device", action="store_true", help="measure without a GPU too")
    return parser


if __name__ == "__main__":
    sys.exit(main())
