"""Runs a case: correctness first, then paired timing, then a look at what runs in our kernels."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import jax
import jax.numpy as jnp

from hlo_mlc.backends.cpu import cpu_backend
from hlo_mlc.interop.comparing import first_call_s, memory_bytes
from hlo_mlc.report import Report
from hlo_mlc.runtime import variants
from hlo_mlc.support.options import Options
from hlo_mlc_bench import check, timing
from hlo_mlc_bench.case import Case, Function
from hlo_mlc_bench.results import Row

DEFAULT_ROUNDS = 15
_PROFILED_CALLS = 20
_WARM_UP_S = 1.0
_LAPACK_THREADS = "OPENBLAS_NUM_THREADS"

Compile = Callable[[Function], Any]
"""Like `jax.jit`; what comes back also has a method `report(*args)`."""


@dataclass(frozen=True, slots=True)
class Inspection:
    """A look inside: the calls of our kernels, their share of the ops and of the run time, and
    what the cost model expected of both sides, in milliseconds, if it did."""

    clusters: int
    coverage: float
    share: float
    predicted_jax_ms: float | None
    predicted_ours_ms: float | None


@contextlib.contextmanager
def measuring(compile_ours: Compile) -> Iterator[None]:
    """Within it, this process is fit for measuring: warm, except for a cache that starts empty.
    What is predicted is measured as it is, not settled by the calls that measure it."""
    with tempfile.TemporaryDirectory(prefix="hlo-mlc-bench-") as folder:
        previous = {
            name: os.environ.get(name)
            for name in ("HLO_MLC_CACHE", "HLO_MLC_SETTLE", _LAPACK_THREADS)
        }
        os.environ["HLO_MLC_CACHE"], os.environ["HLO_MLC_SETTLE"] = folder, "0"
        # With two threads, the time of a LAPACK call varies by 100x with the load of the machine.
        os.environ.setdefault(_LAPACK_THREADS, "1")
        try:
            _warm_up(compile_ours)
            yield
        finally:
            for name, value in previous.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value


def run_case(case: Case, compile_ours: Compile, rounds: int = DEFAULT_ROUNDS) -> Row:
    """Measures one case; what goes wrong in it is in the row, not raised.

    Every other case of the process shares what stays compiled, so run each only once.
    """
    try:
        with case.in_its_mode():
            return _measure(case, compile_ours, rounds)
    except Exception as error:  # whatever a compiler may raise: the other cases still run
        lines = str(error).splitlines() or [""]
        return _row(case, status="failed", message=f"{type(error).__name__}: {lines[0]}")


def _measure(case: Case, compile_ours: Compile, rounds: int) -> Row:
    function, args = case.make()
    # Both compilers find the traces of the JAX functions called inside: else the second gains.
    jax.make_jaxpr(function)(*args)
    # Functions of their own, so that neither finds the other's trace.
    by_jax, ours = jax.jit(case.make()[0]), compile_ours(case.make()[0])
    first_calls = {
        "jax_first_call_s": first_call_s(by_jax, args),
        "ours_first_call_s": first_call_s(ours, args),
    }
    errors, complaint = _check(case, function, by_jax(*args), ours(*args), args)
    if complaint:
        return _row(case, status="wrong", message=complaint, **errors, **first_calls)
    times = timing.compare(by_jax, ours, args, rounds)
    report = ours.report(*args)
    inspection = _inspect(ours, args, report)
    return _row(
        case,
        status="right",
        jax_ms=times.a.median_us / 1e3,
        jax_spread_ms=times.a.spread_us / 1e3,
        ours_ms=times.b.median_us / 1e3,
        ours_spread_ms=times.b.spread_us / 1e3,
        ratio=times.speedup,
        ratio_spread=times.speedup_spread,
        jax_memory_bytes=memory_bytes(by_jax, args, {}),
        ours_memory_bytes=memory_bytes(ours, args, {}, report),
        **asdict(inspection),
        **errors,
        **first_calls,
    )


def _check(
    case: Case, function: Function, by_jax: Any, ours: Any, args: tuple[Any, ...]
) -> tuple[dict[str, float], str]:
    """The errors of both results, and what is wrong with ours ("" if nothing is)."""
    if not check.same_types(ours, by_jax):
        return {}, f"results have types {_types(ours)}, those of jax.jit {_types(by_jax)}"
    expected = check.reference(function, args, xla_errs=case.xla_errs)
    jax_error, ours_error = check.error(by_jax, expected), check.error(ours, expected)
    allowed = check.bound(case, jax_error)
    errors = {"jax_error": jax_error, "ours_error": ours_error, "allowed_error": allowed}
    if ours_error <= allowed:
        return errors, ""
    return errors, f"error {ours_error:.2g} is above {allowed:.2g} (jax.jit: {jax_error:.2g})"


def _inspect(compiled: Any, args: tuple[Any, ...], report: Report) -> Inspection:
    predicted = report.predicted
    expected = (
        (None, None)
        if predicted is None or predicted.guesses_trips
        else (predicted.xla_us / 1e3, predicted.ours_us / 1e3)
    )
    variant = cpu_backend(Options.from_environment()).variant
    ids = {kernel.id + variant for kernel in report.kernels}
    if not ids:
        return Inspection(0, report.coverage, 0.0, *expected)
    variants.reset_profile()
    variants.enable_profiling()
    try:
        start = time.perf_counter_ns()
        for _ in range(_PROFILED_CALLS):
            jax.block_until_ready(compiled(*args))
        total_ns = time.perf_counter_ns() - start
    finally:
        variants.enable_profiling(False)
    profiles = [variants.read_profile(kernel_id) for kernel_id in ids]
    ours_ns = sum(profile.total_ns for profile in profiles if profile)
    # Kernels that run at the same time may add up to more than the time that passed.
    clusters = sum(kernel.uses for kernel in report.kernels)
    return Inspection(clusters, report.coverage, min(ours_ns / total_ns, 1.0), *expected)


def _warm_up(compile_ours: Compile) -> None:
    """Both compilers begin, and so do the cores: virtual machines may run all threads of a process
    that has just begun on one of them."""
    x = jnp.linspace(0.0, 1.0, 4096)
    for compile_function in (jax.jit, compile_ours):
        jax.block_until_ready(compile_function(lambda x: jnp.cbrt(x) + jnp.flip(x))(x))
    product, square = jax.jit(jnp.dot), jnp.ones((1024, 1024))
    begun = time.monotonic()
    while time.monotonic() - begun < _WARM_UP_S:
        jax.block_until_ready(product(square, square))


def _row(case: Case, **measured: Any) -> Row:
    return Row(name=case.name, group=case.group, figure=case.figure, **measured)


def _types(results: Any) -> str:
    return ", ".join(f"{leaf.dtype}{list(leaf.shape)}" for leaf in jax.tree.leaves(results))
