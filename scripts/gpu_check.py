"""What one hour with a GPU is for: runs the GPU tests, then benchmarks against jax.jit.

Usage: python scripts/gpu_check.py [--seconds 400] [--json results.json] [--cases NAME …]

Correctness first: a case whose results are wrong is not timed. In this order:

  about      versions, device, driver
  tests      those that are marked `cuda`
  movement   what memory bounds, as a share of a measured copy
  compute    folds over windows, updates, loops with small bodies
  products   matrix products with and without something around, as a share of cuBLAS (jax.jit);
             f32 in full precision on both sides, and as tf32 on both
  choices    the same kernels with other parameters, against those by analysis
  torch      torch.compile on the same functions, where that is installed
  cases      those of the benchmark registry

Runs are interleaved (A B A B), ratios are those of the other's time to ours. What is known is
written to the file after every step, with versions and the device; at the end come the ratios by
kind of template, which is what a cost model for GPUs would start from. What fails is in its row,
and the rest goes on; nothing new is begun when the time is over, and what hangs is given up. Needs
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
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from hlo_mlc import mlc_jit
from hlo_mlc.codegen.cuda import compile as nvrtc
from hlo_mlc.codegen.cuda.printer import print_program
from hlo_mlc.runtime import cuda as runtime
from hlo_mlc.templates.cuda.program import schedule_program
from hlo_mlc_bench.cases import BY_NAME, CASES
from hlo_mlc_bench.runner import measuring, run_case

ROOT = Path(__file__).resolve().parent.parent
# Products that cuBLAS keeps say nothing about our kernels.
GROUPS_LEFT_OUT = frozenset(("contractions", "convolutions", "overhead"))
TESTS = ("tests/codegen/cuda/test_gpu.py",)
VERSIONS = ("jax", "jaxlib", "numpy", "cupy-cuda13x", "torch", "triton", "hlo-mlc")
# Calls that are queued before the last one is waited for: dispatch hides behind them.
QUEUED = 20
ROUNDS = 9
# Seconds that the tests and torch may take, and after which what hangs is given up.
TEST_SECONDS, TORCH_SECONDS, GIVEN_UP = 150, 60, 60
# Errors allowed, in rounding steps of the result's type relative to its largest value: sums of
# thousands of terms in another order.
ROUNDINGS = 64
Function = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Subject:
    """A function to measure, its arguments as (shape, type), and the same for torch."""

    name: str
    function: Function
    arguments: tuple[tuple[tuple[int, ...], str], ...]
    in_torch: Callable[[Any], Function] | None = None
    flops: int = 0
    eps: float | None = None  # of the arithmetic, where it is not that of the result's type


def _norm(x: jax.Array) -> jax.Array:
    centred = x - x.mean(-1, keepdims=True)
    return centred * lax.rsqrt((centred * centred).mean(-1, keepdims=True) + 1e-5)


def _root_mean_square(x: jax.Array) -> jax.Array:
    return x * lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5)


def movement(rows: int, columns: int) -> Iterator[Subject]:
    """Functions whose time is that of reading and writing."""
    shape = (rows, columns)
    one, two = ((shape, "float32"),), ((shape, "float32"),) * 2
    yield Subject("chain", lambda x, y: jnp.tanh(x * 2 + y) * y, two,
                  lambda torch: lambda x, y: torch.tanh(x * 2 + y) * y)
    yield Subject("gelu_bf16", jax.nn.gelu, ((shape, "bfloat16"),),
                  lambda torch: lambda x: torch.nn.functional.gelu(x, approximate="tanh"))
    yield Subject("softmax", jax.nn.softmax, one, lambda torch: lambda x: torch.softmax(x, -1))
    yield Subject("layer_norm", _norm, one,
                  lambda torch: lambda x: torch.nn.functional.layer_norm(x, x.shape[-1:]))
    yield Subject("rms_norm", _root_mean_square, one, lambda torch: lambda x: x * torch.rsqrt(
        (x * x).mean(-1, keepdim=True) + 1e-5))
    yield Subject("sum_rows", lambda x: x.sum(1), one, lambda torch: lambda x: x.sum(1))
    yield Subject("sum_columns", lambda x: x.sum(0), one, lambda torch: lambda x: x.sum(0))
    yield Subject("sum_all", lambda x: x.sum(), one, lambda torch: lambda x: x.sum())
    yield Subject("argmax", lambda x: jnp.argmax(x, 1), one,
                  lambda torch: lambda x: torch.argmax(x, 1).to(torch.int32))
    yield Subject("softmax_long_rows", jax.nn.softmax, (((rows // 16, columns * 8), "float32"),),
                  lambda torch: lambda x: torch.softmax(x, -1))
    yield Subject("softmax_bf16", jax.nn.softmax, ((shape, "bfloat16"),),
                  lambda torch: lambda x: torch.softmax(x, -1))
    yield Subject("cumsum_rows", lambda x: jnp.cumsum(x, 1), one,
                  lambda torch: lambda x: torch.cumsum(x, 1))
    yield Subject("cumsum_columns", lambda x: jnp.cumsum(x, 0), one,
                  lambda torch: lambda x: torch.cumsum(x, 0))
    yield Subject("cumsum_all", lambda x: jnp.cumsum(jnp.abs(x)),
                  (((rows * columns // 16,), "float32"),),
                  lambda torch: lambda x: torch.cumsum(torch.abs(x), 0))
    yield Subject("cummax_rows", lambda x: lax.cummax(x, 1), one,
                  lambda torch: lambda x: torch.cummax(x, 1).values)
    yield Subject("transpose", lambda x: x.T + 1, one,
                  lambda torch: lambda x: (x.T + 1).contiguous())


def products(size: int, with_tf32: bool) -> Iterator[Subject]:
    """Matrix products of `size` and smaller."""
    kinds = [("bf16", "bfloat16", None, None), ("f32", "float32", "highest", None)]
    if with_tf32:  # XLA has it on GPUs only
        kinds.append(("tf32", "float32", lax.DotAlgorithmPreset.TF32_TF32_F32, 2.0**-11))
    for kind, dtype, precision, eps in kinds:
        product = functools.partial(jnp.dot, precision=precision)
        for n in (64, 128):
            yield Subject(f"plain_{n}_{kind}", product, (((n, n), dtype),) * 2, flops=2 * n**3,
                          eps=eps)
        for m, n, k in ((16, size, size), (size, size, size // 4), (size, size, size)):
            yield Subject(
                f"gelu_{m}x{n}x{k}_{kind}",
                lambda x, w, b, product=product: jax.nn.gelu(product(x, w) + b),
                (((m, k), dtype), ((k, n), dtype), ((n,), dtype)),
                lambda torch: lambda x, w, b: torch.nn.functional.gelu(
                    x @ w + b, approximate="tanh"), 2 * m * n * k, eps)
    yield Subject(f"long_64x64x{size * 16}_bf16", lambda x, w: jnp.tanh(x @ w),
                  (((64, size * 16), "bfloat16"), ((size * 16, 64), "bfloat16")),
                  flops=2 * 64 * 64 * size * 16)
    yield Subject("exp_96x128x128x64_bf16", lambda x, y: jnp.exp(
        jnp.einsum("bik,bjk->bij", x, y) * 0.125), (((96, 128, 64), "bfloat16"),) * 2,
        flops=2 * 96 * 128 * 128 * 64)


def compute(size: int) -> Iterator[Subject]:
    """Functions of the other templates."""
    images = ((8, size // 8, size // 8, 64), "float32")
    layout = ("NHWC", "HWIO", "NHWC")
    yield Subject("depthwise", lambda x, w: lax.conv_general_dilated(
        x, w, (1, 1), "SAME", dimension_numbers=layout, feature_group_count=64),
        (images, ((3, 3, 1, 64), "float32")))
    yield Subject("max_pool", lambda x: lax.reduce_window(
        x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME"), (images,))
    yield Subject("segment_sum", lambda x: jnp.zeros((size // 4, 64), x.dtype).at[
        jnp.arange(size * 8) % (size // 4)].add(x), (((size * 8, 64), "float32"),))
    yield Subject("gather", lambda x: x[(jnp.arange(size * 8) * 7919) % x.shape[0]] * 2,
                  (((size * 4, 64), "float32"),))
    yield Subject("rnn_1000_steps", _rnn, (((1000, 64), "float32"), ((64, 64), "float32")))
    yield Subject("heat_100_steps", lambda x: lax.fori_loop(
        0, 100, lambda i, c: c + 0.1 * (jnp.roll(c, 1) + jnp.roll(c, -1) - 2 * c), x),
        (((size,), "float32"),))


def _rnn(xs: jax.Array, w: jax.Array) -> jax.Array:
    def step(h: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        h = jnp.tanh(x + 0.1 * h * w[0])
        return h, h

    return lax.scan(step, jnp.zeros_like(xs[0]), xs)[1]


# Parameters that are tried besides those by analysis: of the first nest, where it has them.
CHOICES: tuple[dict[str, int], ...] = (
    {"grid": 1}, {"grid": 4}, {"grid": 8}, {"unroll": 1}, {"unroll": 4}, {"threads": 128},
    {"threads": 512}, {"team": 128}, {"team": 512}, {"buffers": 1}, {"depth": 128}, {"warps": 4},
    {"rows": 64, "columns": 64}, {"rows": 128, "columns": 64})


class Record:
    """What is known so far, written to a file whenever something is added."""

    def __init__(self, path: Path | None) -> None:
        self.path, self.found = path, {}

    def add(self, group: str, row: Any, is_list: bool = True) -> None:
        if is_list:
            self.found.setdefault(group, []).append(row)
            print(_line(group, row), file=sys.stderr, flush=True)
        else:
            self.found[group] = row
        if self.path is not None:
            self.path.write_text(json.dumps(self.found, indent=1) + "\n")

    def rows(self) -> list[Mapping[str, Any]]:
        return [row for group in ("movement", "compute", "products", "cases")
                for row in self.found.get(group, ())]


def _line(group: str, row: Mapping[str, Any]) -> str:
    numbers = " ".join(f"{key} {row[key]:.3g}" for key in (
        "ratio", "ours_us", "jax_us", "share_of_copy", "share_of_cublas", "torch_us", "gain")
        if isinstance(row.get(key), float))
    return f"{group} {row['name']}: {row.get('status', '')} {numbers} {row.get('message', '')}"


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 0 if all tests passed and no result was wrong."""
    options = _parser().parse_args(arguments)
    device = jax.devices()[0]
    is_gpu = device.platform == "gpu"
    if not is_gpu and not options.any_device:
        print(f"expected a GPU, JAX has {', '.join(map(str, jax.devices()))}", file=sys.stderr)
        return 1
    ends = time.monotonic() + options.seconds
    watchdog = threading.Timer(options.seconds + GIVEN_UP, _give_up)
    watchdog.daemon = True
    watchdog.start()
    record = Record(options.json)
    record.add("about", about(device), is_list=False)
    print(json.dumps(record.found["about"], indent=1), flush=True)
    if not options.cases:
        record.add("tests", run_tests(min(TEST_SECONDS, options.seconds / 2)), is_list=False)
        print(f"tests: {record.found['tests']['status']}", file=sys.stderr, flush=True)
    copy = copy_rate(1 << 28 if is_gpu else 1 << 22)
    record.add("copy_gb_s", copy, is_list=False)
    print(f"copy: {copy:.0f} GB/s", file=sys.stderr, flush=True)
    compile_ours = functools.partial(mlc_jit, choose="ours")
    if not options.cases:
        measure_subjects(record, compile_ours, copy, is_gpu, ends)
    measure_cases(record, compile_ours, options.cases, ends)
    record.add("by_template", by_template(record.rows()), is_list=False)
    watchdog.cancel()
    print(json.dumps(record.found, indent=1))
    failed = record.found.get("tests", {}).get("status", 0) != 0
    return int(failed or any(row["status"] == "wrong" for row in record.rows()))


def _give_up() -> None:
    print("something hangs: given up", file=sys.stderr, flush=True)
    os._exit(3)


def about(device: jax.Device) -> dict[str, Any]:
    """The machine and what is installed on it."""
    found: dict[str, Any] = {
        "device": getattr(device, "device_kind", str(device)), "devices": len(jax.devices()),
        "python": sys.version.split()[0], "nvrtc": nvrtc.why_not() or nvrtc.version(),
        "versions": {name: _version(name) for name in VERSIONS}}
    try:
        found["driver"] = subprocess.run(
            ["nvidia-smi", "--query-gpu=name,driver_version,memory.total,clocks.max.sm",
             "--format=csv,noheader"], capture_output=True, text=True, timeout=20).stdout.strip()
    except (OSError, subprocess.SubprocessError) as error:
        found["driver"] = str(error)
    return found


def run_tests(seconds: float) -> dict[str, Any]:
    """What became of the tests that need a GPU."""
    try:
        # Without the project's own options: those of a plugin may not be known here.
        tests = subprocess.run([sys.executable, "-m", "pytest", "-q", "-o",
                                "addopts=--import-mode=importlib", "-m", "cuda", *TESTS],
                               cwd=ROOT, capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired as error:
        return {"status": -1, "output": [f"not done after {error.timeout:.0f} s"]}
    output = (tests.stdout + tests.stderr).splitlines()
    # No tests, which is not an error where there is no GPU.
    return {"status": 0 if tests.returncode == 5 else tests.returncode, "output": output[-60:]}


def measure_subjects(record: Record, compile_ours: Callable[[Function], Any], copy: float,
                     is_gpu: bool, ends: float) -> None:
    """All of them, then other parameters for them, then torch."""
    shape, size = ((16_384, 4096), 4096) if is_gpu else ((512, 256), 128)
    subjects = [*(("movement", s) for s in movement(*shape)),
                *(("compute", s) for s in compute(size)),
                *(("products", s) for s in products(size, is_gpu))]
    for group, subject in subjects:
        if time.monotonic() < ends:
            record.add(group, measure(subject, compile_ours, copy))
    if not is_gpu:
        return
    half = (time.monotonic() + ends) / 2
    for _, subject in subjects:
        for row in choices(subject, compile_ours, half):
            record.add("choices", row)
    until = min(ends, time.monotonic() + TORCH_SECONDS)
    for _, subject in subjects:
        if subject.in_torch is not None and time.monotonic() < until:
            record.add("torch", {"name": subject.name, **_in_torch(subject)})


def measure_cases(record: Record, compile_ours: Callable[[Function], Any],
                  names: Sequence[str], ends: float) -> None:
    """The cases of the registry, or those that are named."""
    wanted = [BY_NAME[name] for name in names] if names else [
        case for case in CASES if case.group not in GROUPS_LEFT_OUT]
    with measuring(compile_ours):
        for case in wanted:
            if time.monotonic() > ends:
                record.add("stopped_before", case.name, is_list=False)
                return
            record.add("cases", asdict(run_case(case, compile_ours)))


def by_template(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The ratios of XLA's time to ours by the templates of what was measured: a cost model may
    take a kind whose lowest ratio is above 1, and should leave one whose highest is below."""
    found: dict[str, list[float]] = {}
    for row in rows:
        if row.get("templates") and row["status"] == "right":
            found.setdefault("+".join(sorted(set(row["templates"]))), []).append(row["ratio"])
    return {kind: {"count": len(ratios), "lowest": min(ratios), "highest": max(ratios),
                   "median": statistics.median(ratios)} for kind, ratios in sorted(found.items())}


def choices(subject: Subject, compile_ours: Callable[[Function], Any],
            ends: float) -> Iterator[dict[str, Any]]:
    """The subject's kernels with other parameters, each as a gain over those by analysis."""
    args = _arguments(subject)
    try:
        kernels = compile_ours(subject.function).kernels(*args)
        spaces = {k: schedule_program(k.kernel.program, k.target)[1][0].space for k in kernels}
    except Exception as error:  # the others still run
        yield {"name": subject.name, "status": "failed", "message": str(error)[:200]}
        return
    for choice in CHOICES:
        fitting = [k for k in kernels if choice.keys() <= spaces[k].keys()]
        if not fitting or time.monotonic() > ends:
            continue
        row = {"name": subject.name, **{f"with_{k}": v for k, v in choice.items()}}
        try:
            before = compile_ours(_copy(subject.function))
            jax.block_until_ready(before(*args))  # keeps what it has loaded
            for kernel in fitting:
                source = print_program(schedule_program(
                    kernel.kernel.program, kernel.target, {0: choice})[0], kernel.target)
                if source.scratch_bytes != kernel.source.scratch_bytes:
                    raise ValueError("it needs other scratch memory")
                runtime.publish(kernel.kernel.fingerprint, nvrtc.compile_source(
                    source, kernel.target).cubin, source.functions, source.plan)
            after = compile_ours(_copy(subject.function))
            complaint = _complaint(after(*args), before(*args), subject.eps)
            if complaint:
                yield {**row, "status": "wrong", "message": complaint}
                continue
            old_us, new_us = _interleaved([lambda b=before: b(*args), lambda a=after: a(*args)],
                                          jax.block_until_ready)
            yield {**row, "status": "right", "ours_us": new_us, "gain": old_us / new_us}
        except Exception as error:  # parameters that do not fit together, among others
            yield {**row, "status": "failed", "message": f"{type(error).__name__}: {error}"[:200]}
        finally:
            for kernel in fitting:
                runtime.publish(kernel.kernel.fingerprint, kernel.compiled.cubin,
                                kernel.source.functions, kernel.source.plan)


def _copy(function: Function) -> Function:
    """The same function under another identity: nothing compiled for it is taken again."""
    return lambda *args: function(*args)


def _arguments(subject: Subject) -> list[jax.Array]:
    rng = np.random.default_rng(0)
    return [jnp.asarray(rng.standard_normal(shape), dtype) for shape, dtype in subject.arguments]


def measure(subject: Subject, compile_ours: Callable[[Function], Any],
            copy_gb_s: float) -> Mapping[str, Any]:
    """One subject: whether it is right, its times, and what share of the machine they are."""
    row: dict[str, Any] = {"name": subject.name}
    try:
        args = _arguments(subject)
        by_jax, ours = jax.jit(subject.function), compile_ours(subject.function)
        expected, actual = by_jax(*args), ours(*args)
        report = ours.report(*args)
        row["coverage"] = report.coverage
        row["templates"] = [n.template for kernel in report.kernels for n in kernel.nests]
        complaint = _complaint(actual, expected, subject.eps)
        if complaint:
            return {**row, "status": "wrong", "message": complaint}
        jax_us, ours_us = _interleaved([lambda: by_jax(*args), lambda: ours(*args)],
                                       jax.block_until_ready)
    except Exception as error:  # whatever a compiler may raise: the others still run
        return {**row, "status": "failed", "message": f"{type(error).__name__}: {error}"[:500]}
    row |= {"status": "right", "jax_us": jax_us, "ours_us": ours_us, "ratio": jax_us / ours_us}
    if subject.flops:
        row |= {"ours_tflop_s": subject.flops / ours_us / 1e6, "share_of_cublas": jax_us / ours_us}
    else:
        moved = sum(leaf.nbytes for leaf in (*args, *jax.tree.leaves(actual)))
        row |= {"share_of_copy": moved / ours_us / 1e3 / copy_gb_s,
                "jax_share_of_copy": moved / jax_us / 1e3 / copy_gb_s}
    return row


def _complaint(actual: Any, expected: Any, eps_of_arithmetic: float | None) -> str:
    for one, other in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        if (one.dtype, one.shape) != (other.dtype, other.shape):
            return f"{one.dtype}{one.shape} instead of {other.dtype}{other.shape}"
        eps = float(jnp.finfo(other.dtype).eps) if jnp.issubdtype(other.dtype, jnp.floating) else 0
        eps = eps if eps_of_arithmetic is None else eps_of_arithmetic
        x, y = np.asarray(one, np.float64), np.asarray(other, np.float64)
        worst = float(np.max(np.abs(x - y), initial=0.0))
        if not worst <= ROUNDINGS * eps * max(1.0, float(np.max(np.abs(y), initial=0.0))):
            return f"results are {worst:.3g} apart"
    return ""


def _in_torch(subject: Subject) -> Mapping[str, Any]:
    """The time of torch.compile, which uses Triton, where that is installed."""
    if importlib.util.find_spec("torch") is None:
        return {"status": "not installed"}
    try:
        torch = importlib.import_module("torch")
        if not torch.cuda.is_available():
            return {"status": "without CUDA"}
        tensors = [torch.from_dlpack(a) for a in _arguments(subject)]
        compiled = torch.compile(subject.in_torch(torch))
        compiled(*tensors)
        torch_us, = _interleaved([lambda: compiled(*tensors)],
                                 lambda result: torch.cuda.synchronize())
    except Exception as error:  # torch, its compiler, or what they call
        return {"status": "failed", "message": f"{type(error).__name__}: {error}"[:200]}
    return {"status": "right", "torch_us": torch_us}


def _interleaved(calls: Sequence[Callable[[], Any]], wait: Callable[[Any], Any]) -> list[float]:
    """Microseconds of each call, by medians of rounds in which all take their turns."""
    times: list[list[float]] = [[] for _ in calls]
    for round_number in range(ROUNDS + 1):  # the first one warms up
        for call, taken in zip(calls, times, strict=True):
            start = time.perf_counter()
            for _ in range(QUEUED - 1):
                call()
            wait(call())
            if round_number:
                taken.append((time.perf_counter() - start) / QUEUED * 1e6)
    return [statistics.median(taken) for taken in times]


def copy_rate(size: int) -> float:
    """Gigabytes read and written in a second by a copy of `size` bytes that XLA makes."""
    x = jnp.zeros(size // 4, jnp.float32)
    copy = jax.jit(lambda x: x + 1)
    copy_us, = _interleaved([lambda: copy(x)], jax.block_until_ready)
    return 2 * size / copy_us / 1e3


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
