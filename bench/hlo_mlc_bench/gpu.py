"""Measuring on a GPU: our kernels against those of jax.jit and of torch.compile, and tuned.

Correctness first: what is wrong is not timed.  What fails is in its row, and the rest goes on.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hlo_mlc.runtime.records import schedules_text
from hlo_mlc_bench.gpu_subjects import Function, Subject

# Calls that are queued before the last one is waited for: dispatch hides behind them.
QUEUED = 20
ROUNDS = 9
# Errors allowed, in rounding steps of the result's type relative to its largest value: sums of
# thousands of terms in another order.
ROUNDINGS = 64
TRIALS = 16  # of each kernel that is tuned: a few seconds


def tuned(subject: Subject, compile_ours: Callable[[Function], Any]) -> Iterator[dict[str, Any]]:
    """The subject's kernels after a few trials of each: how many times as fast they are as by
    analysis, and by which schedule.  Nothing of it is remembered."""
    with tempfile.TemporaryDirectory() as folder, _cache_in(folder):
        try:
            report = compile_ours(_copy(subject.function)).tune(*_arguments(subject), trials=TRIALS)
        except Exception as error:  # the others still run
            yield {
                "name": subject.name,
                "status": "failed",
                "message": f"{type(error).__name__}: {error}"[:200],
            }
            return
    for kernel in report.kernels:
        row = {"name": subject.name, "kernel": kernel.name}
        if kernel.record is None:
            yield {**row, "status": "failed", "message": kernel.reason[:200]}
            continue
        measured = kernel.record.measured
        yield {
            **row,
            "status": "right",
            "ours_us": measured.ours_us,
            "gain": measured.speedup,
            "ratio": measured.xla_ratio,
            "tried": kernel.tried,
            "failed": kernel.failed,
            "schedules": schedules_text(kernel.record.schedules),
        }


@contextlib.contextmanager
def _cache_in(folder: str) -> Iterator[None]:
    before = os.environ.get("HLO_MLC_CACHE")
    os.environ["HLO_MLC_CACHE"] = folder
    try:
        yield
    finally:
        del os.environ["HLO_MLC_CACHE"]
        if before is not None:
            os.environ["HLO_MLC_CACHE"] = before


def _copy(function: Function) -> Function:
    """The same function under another identity: nothing compiled for it is taken again."""
    return lambda *args: function(*args)


def _arguments(subject: Subject) -> list[jax.Array]:
    rng = np.random.default_rng(0)
    return [jnp.asarray(rng.standard_normal(shape), dtype) for shape, dtype in subject.arguments]


def measure(
    subject: Subject, compile_ours: Callable[[Function], Any], copy_gb_s: float
) -> Mapping[str, Any]:
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
        jax_us, ours_us = _interleaved(
            [lambda: by_jax(*args), lambda: ours(*args)], jax.block_until_ready
        )
    except Exception as error:  # whatever a compiler may raise: the others still run
        return {**row, "status": "failed", "message": f"{type(error).__name__}: {error}"[:500]}
    row |= {"status": "right", "jax_us": jax_us, "ours_us": ours_us, "ratio": jax_us / ours_us}
    if subject.flops:
        row |= {"ours_tflop_s": subject.flops / ours_us / 1e6, "share_of_cublas": jax_us / ours_us}
    else:
        moved = sum(leaf.nbytes for leaf in (*args, *jax.tree.leaves(actual)))
        row |= {
            "share_of_copy": moved / ours_us / 1e3 / copy_gb_s,
            "jax_share_of_copy": moved / jax_us / 1e3 / copy_gb_s,
        }
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


def in_torch(subject: Subject) -> Mapping[str, Any]:
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
        (torch_us,) = _interleaved(
            [lambda: compiled(*tensors)], lambda result: torch.cuda.synchronize()
        )
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
    (copy_us,) = _interleaved([lambda: copy(x)], jax.block_until_ready)
    return 2 * size / copy_us / 1e3
