"""What one hour with a GPU is for: builds, runs the GPU tests, then benchmarks against jax.jit.

Usage: python scripts/gpu_check.py [--seconds 400] [--json results.json] [--cases NAME …]

In this order:

  build      of this checkout where hlo_mlc cannot be imported: pip, with what is installed
  about      versions, device, driver
  tests      those that are marked `cuda`
  movement   what memory bounds, as a share of a measured copy
  compute    folds over windows, updates, loops with small bodies
  products   matrix products with and without something around, as a share of cuBLAS (jax.jit);
             f32 in full precision on both sides, and as tf32 on both
  tuned      the same kernels after a few trials of each, against those by analysis
  torch      torch.compile on the same functions, where that is installed
  cases      those of the benchmark registry

Runs are interleaved (A B A B), ratios are those of the other's time to ours. What is known is
written to the file after every step, with versions and the device; at the end come the ratios by
kind of template, which is what the cost model (hlo_mlc/partition/choose/gpu_cost.py) is to be
checked against. Nothing new is begun when the time is over, and what hangs is given up. Needs
pytest for the tests, but nothing from the network. On a machine without a GPU it says so and ends
with status 1; `--any-device` measures what there is, on small arrays.
"""

from __future__ import annotations

import argparse
import functools
import importlib.metadata
import importlib.util
import json
import os
import re
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
# Products that cuBLAS keeps say nothing about our kernels.
GROUPS_LEFT_OUT = frozenset(("contractions", "convolutions", "overhead"))
TESTS = ("tests/codegen/cuda/test_gpu.py",)
VERSIONS = ("jax", "jaxlib", "numpy", "cupy-cuda13x", "torch", "triton", "hlo-mlc")
# Seconds that building, the tests and torch may take, and after which what hangs is given up.
BUILD_SECONDS, TEST_SECONDS, TORCH_SECONDS, GIVEN_UP = 120, 150, 60, 60
BUILT = "MLC_GPU_CHECK_BUILT"  # in the environment of the process that follows a build


def build() -> str:
    """Installs this checkout with what is here, nothing from the network; what pip says if that
    fails."""
    try:
        built = subprocess.run(
            [
                sys.executable,
                "-m",
                "pip",
                "install",
                "--no-index",
                "--no-deps",
                "--no-build-isolation",
                "--disable-pip-version-check",
                "--editable",
                str(ROOT),
            ],
            capture_output=True,
            text=True,
            timeout=BUILD_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return f"pip was not done after {BUILD_SECONDS} s"
    return "" if built.returncode == 0 else built.stdout + built.stderr


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 0 if all tests passed and no result was wrong."""
    options = _parser().parse_args(arguments)
    if importlib.util.find_spec("hlo_mlc_bench") is None:
        failure = "it cannot be imported after a build" if BUILT in os.environ else build()
        if failure:
            print(f"hlo_mlc cannot be built: {failure}", file=sys.stderr)
            return 1
        os.environ[BUILT] = "1"  # this process would not find what has been installed meanwhile
        os.execv(sys.executable, [sys.executable, *sys.argv])
    # The tests run in a process of their own meanwhile, and torch has its own allocator.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    return Check(options).run()


class Check:
    """All steps, one after the other, as long as there is time."""

    def __init__(self, options: argparse.Namespace) -> None:
        # At first use: there is nothing to import before it is built.
        self.gpu = importlib.import_module("hlo_mlc_bench.gpu")
        self.subjects = importlib.import_module("hlo_mlc_bench.gpu_subjects")
        self.jax = importlib.import_module("jax")
        mlc_jit = importlib.import_module("hlo_mlc").mlc_jit
        self.compile_ours = functools.partial(mlc_jit, choose="ours")
        self.options, self.record = options, Record(options.json)
        self.device = self.jax.devices()[0]
        self.is_gpu = self.device.platform == "gpu"
        self.ends = time.monotonic() + options.seconds

    def run(self) -> int:
        """The exit status."""
        if not self.is_gpu and not self.options.any_device:
            found = ", ".join(map(str, self.jax.devices()))
            print(f"expected a GPU, JAX has {found}", file=sys.stderr)
            return 1
        watchdog = threading.Timer(self.options.seconds + GIVEN_UP, _give_up)
        watchdog.daemon = True
        watchdog.start()
        record = self.record
        record.add("about", about(self.device, len(self.jax.devices())), is_list=False)
        print(json.dumps(record.found["about"], indent=1), flush=True)
        if not self.options.cases:
            seconds = min(TEST_SECONDS, self.options.seconds / 2)
            record.add("tests", run_tests(seconds, must_run=self.is_gpu), is_list=False)
            print(f"tests: {record.found['tests']['status']}", file=sys.stderr, flush=True)
        copy = self.gpu.copy_rate(1 << 28 if self.is_gpu else 1 << 22)
        record.add("copy_gb_s", copy, is_list=False)
        print(f"copy: {copy:.0f} GB/s", file=sys.stderr, flush=True)
        if not self.options.cases:
            self.measure_subjects(copy)
        self.measure_cases()
        record.add("by_template", by_template(record.rows()), is_list=False)
        watchdog.cancel()
        print(json.dumps(record.found, indent=1))
        failed = record.found.get("tests", {}).get("status", 0) != 0
        return int(failed or any(row["status"] == "wrong" for row in record.rows()))

    def measure_subjects(self, copy: float) -> None:
        """All of them, then tuned, then torch."""
        shape, size = ((16_384, 4096), 4096) if self.is_gpu else ((512, 256), 128)
        subjects = [
            *(("movement", s) for s in self.subjects.movement(*shape)),
            *(("compute", s) for s in self.subjects.compute(size)),
            *(("products", s) for s in self.subjects.products(size, self.is_gpu)),
        ]
        for group, subject in subjects:
            if time.monotonic() < self.ends:
                self.record.add(group, self.gpu.measure(subject, self.compile_ours, copy))
        if not self.is_gpu:
            return
        half = (time.monotonic() + self.ends) / 2
        for _, subject in subjects:
            if time.monotonic() < half:
                for row in self.gpu.tuned(subject, self.compile_ours):
                    self.record.add("tuned", row)
        until = min(self.ends, time.monotonic() + TORCH_SECONDS)
        for _, subject in subjects:
            if subject.in_torch is not None and time.monotonic() < until:
                self.record.add("torch", {"name": subject.name, **self.gpu.in_torch(subject)})

    def measure_cases(self) -> None:
        """The cases of the registry, or those that are named."""
        registry = importlib.import_module("hlo_mlc_bench.cases")
        runner = importlib.import_module("hlo_mlc_bench.runner")
        names = self.options.cases
        wanted = (
            [registry.BY_NAME[name] for name in names]
            if names
            else [case for case in registry.CASES if case.group not in GROUPS_LEFT_OUT]
        )
        with runner.measuring(self.compile_ours):
            for case in wanted:
                if time.monotonic() > self.ends:
                    self.record.add("stopped_before", case.name, is_list=False)
                    return
                self.record.add("cases", asdict(runner.run_case(case, self.compile_ours)))


class Record:
    """What is known so far, written to a file whenever something is added."""

    def __init__(self, path: Path | None) -> None:
        self.path, self.found = path, {}

    def add(self, group: str, row: Any, is_list: bool = True) -> None:
        """Takes down a row of a group, or what is all of it."""
        if is_list:
            self.found.setdefault(group, []).append(row)
            print(_line(group, row), file=sys.stderr, flush=True)
        else:
            self.found[group] = row
        if self.path is not None:
            self.path.write_text(json.dumps(self.found, indent=1) + "\n")

    def rows(self) -> list[Mapping[str, Any]]:
        """All that was compared with jax.jit."""
        return [
            row
            for group in ("movement", "compute", "products", "cases")
            for row in self.found.get(group, ())
        ]


def _line(group: str, row: Mapping[str, Any]) -> str:
    numbers = " ".join(
        f"{key} {row[key]:.3g}"
        for key in (
            "ratio",
            "ours_us",
            "jax_us",
            "share_of_copy",
            "share_of_cublas",
            "torch_us",
            "gain",
        )
        if isinstance(row.get(key), float)
    )
    return f"{group} {row['name']}: {row.get('status', '')} {numbers} {row.get('message', '')}"


def _give_up() -> None:
    print("something hangs: given up", file=sys.stderr, flush=True)
    os._exit(3)


def about(device: Any, count: int) -> dict[str, Any]:
    """The machine and what is installed on it."""
    found: dict[str, Any] = {
        "device": getattr(device, "device_kind", str(device)),
        "devices": count,
        "python": sys.version.split()[0],
        "nvrtc": _nvrtc_version(),
        "versions": {name: _version(name) for name in VERSIONS},
    }
    try:
        found["driver"] = subprocess.run(
            [
                "nvidia-smi",
                "--query-gpu=name,driver_version,memory.total,clocks.max.sm",
                "--format=csv,noheader",
            ],
            capture_output=True,
            text=True,
            timeout=20,
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError) as error:
        found["driver"] = str(error)
    return found


def _nvrtc_version() -> str:
    nvrtc = importlib.import_module("hlo_mlc.codegen.cuda.compile")
    try:
        return str(nvrtc.version())
    except importlib.import_module("hlo_mlc.support.errors").CodegenError as error:
        return str(error)


def run_tests(seconds: float, must_run: bool) -> dict[str, Any]:
    """What became of the tests that need a GPU; `must_run`: that all are skipped is a failure."""
    # Most of their time is that of compilers.
    side_by_side = ("-n", "8") if importlib.util.find_spec("xdist") is not None else ()
    try:
        # Without the project's own options: those of a plugin may not be known here.
        tests = subprocess.run(
            [
                sys.executable,
                "-m",
                "pytest",
                "-q",
                "-rs",
                "--tb=short",
                "-o",
                "addopts=--import-mode=importlib",
                "-m",
                "cuda",
                *side_by_side,
                *TESTS,
            ],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=seconds,
        )
    except subprocess.TimeoutExpired as error:
        return {"status": -1, "output": [f"not done after {error.timeout:.0f} s"]}
    output = (tests.stdout + tests.stderr).splitlines()
    # Warnings of plugins that happen to be installed may come after the closing line.
    found = re.search(r"(\d+) passed\b.* in \d", tests.stdout)
    passed = int(found[1]) if found else 0
    status = tests.returncode or int(must_run and not passed)
    return {"status": status, "passed": passed, "output": output[-200:]}


def by_template(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The ratios of XLA's time to ours by the templates of what was measured: a cost model may
    take a kind whose lowest ratio is above 1, and should leave one whose highest is below."""
    found: dict[str, list[float]] = {}
    for row in rows:
        if row.get("templates") and row["status"] == "right":
            found.setdefault("+".join(sorted(set(row["templates"]))), []).append(row["ratio"])
    return {
        kind: {
            "count": len(ratios),
            "lowest": min(ratios),
            "highest": max(ratios),
            "median": statistics.median(ratios),
        }
        for kind, ratios in sorted(found.items())
    }


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=400, help="begin nothing after these")
    parser.add_argument("--json", type=Path, help="write the results here too")
    parser.add_argument("--cases", nargs="*", default=[], help="only these of the registry")
    parser.add_argument("--any-device", action="store_true", help="measure without a GPU too")
    return parser


if __name__ == "__main__":
    sys.exit(main())
