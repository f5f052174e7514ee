"""What one hour with a GPU is for: runs the GPU tests, then benchmarks against jax.jit.

Usage: python scripts/gpu_check.py [--seconds 400] [--json results.json] [--cases NAME …]

Correctness first: a case whose results are wrong is not timed. Then, in this order:

  movement   what memory bounds, as a share of a measured copy; torch.compile where that is there
  products   matrix products with and without something around, as a share of cuBLAS (jax.jit);
             f32 in full precision on both sides, and as tf32 on both
  cases      those of the benchmark registry

Runs are interleaved (A B A B), ratios are those of the other's time to ours. Prints JSON, with
versions and the device; it begins nothing new when the time is over. Needs pytest, but nothing from
the network. On a machine without a GPU it says so and ends with status 1; `--any-device` measures
what there is, on small arrays.
"""

from __future__ import annotations

import argparse
import functools
import importlib.metadata
import importlib.util
import json
import statistics
import subprocess
import sys
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
    yield Subject("exp_96x128x128x64_bf16", lambda x, y: jnp.exp(
        jnp.einsum("bik,bjk->bij", x, y) * 0.125), (((96, 128, 64), "bfloat16"),) * 2,
        flops=2 * 96 * 128 * 128 * 64)


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 0 if all tests passed and no result was wrong."""
    options = _parser().parse_args(arguments)
    device = jax.devices()[0]
    is_gpu = device.platform == "gpu"
    if not is_gpu and not options.any_device:
        print(f"expected a GPU, JAX has {', '.join(map(str, jax.devices()))}", file=sys.stderr)
        return 1
    ends = time.monotonic() + options.seconds
    tests = subprocess.run([sys.executable, "-m", "pytest", "-q", "-m", "cuda", *TESTS], cwd=ROOT,
                           capture_output=True, text=True)
    copy = copy_rate(1 << 28 if is_gpu else 1 << 22)
    shape, size = ((16_384, 4096), 4096) if is_gpu else ((512, 256), 128)
    found: dict[str, Any] = {
        "device": getattr(device, "device_kind", str(device)),
        "versions": {name: _version(name) for name in VERSIONS},
        "tests": {"status": tests.returncode, "output": tests.stdout.splitlines()[-20:]},
        "copy_gb_s": copy, "movement": [], "products": [], "cases": [],
    }
    compile_ours = functools.partial(mlc_jit, choose="ours")
    if not options.cases:
        for group, subjects in (("movement", movement(*shape)),
                                ("products", products(size, is_gpu))):
            for subject in subjects:
                if time.monotonic() > ends:
                    break
                found[group].append(measure(subject, compile_ours, copy, is_gpu))
    wanted = [BY_NAME[name] for name in options.cases] if options.cases else [
        case for case in CASES if case.group not in GROUPS_LEFT_OUT]
    with measuring(compile_ours):
        for case in wanted:
            if time.monotonic() > ends:
                found["stopped_before"] = case.name
                break
            found["cases"].append(asdict(run_case(case, compile_ours)))
    text = json.dumps(found, indent=1)
    print(text)
    if options.json is not None:
        options.json.write_text(text + "\n")
    rows = [row for group in ("movement", "products", "cases") for row in found[group]]
    return int(tests.returncode != 0 or any(row["status"] == "wrong" for row in rows))


def measure(subject: Subject, compile_ours: Callable[[Function], Any], copy_gb_s: float,
            with_torch: bool) -> Mapping[str, Any]:
    """One subject: whether it is right, its times, and what share of the machine they are."""
    row: dict[str, Any] = {"name": subject.name}
    rng = np.random.default_rng(0)
    args = [jnp.asarray(rng.standard_normal(shape), dtype) for shape, dtype in subject.arguments]
    try:
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
    if with_torch and subject.in_torch is not None:
        row |= _in_torch(subject, args)
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


def _in_torch(subject: Subject, args: Sequence[jax.Array]) -> Mapping[str, Any]:
    """The time of torch.compile, which uses Triton, where that is installed."""
    if importlib.util.find_spec("torch") is None:
        return {}
    try:
        torch = importlib.import_module("torch")
        if not torch.cuda.is_available():
            return {}
        tensors = [torch.from_dlpack(a) for a in args]
        compiled = torch.compile(subject.in_torch(torch))
        compiled(*tensors)
        torch_us, = _interleaved([lambda: compiled(*tensors)],
                                 lambda result: torch.cuda.synchronize())
    except Exception as error:  # torch, its compiler, or what they call
        return {"torch_message": f"{type(error).__name__}: {error}"[:200]}
    return {"torch_us": torch_us}


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
