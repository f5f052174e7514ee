"""Timing two compiled functions against each other, and what the first call of each costs."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax

from hlo_mlc.runtime.measure import PairedTimes, Timing, time_paired
from hlo_mlc_bench.case import Function

SHORTEST_MEASUREMENT_S = 2e-3
"""Below this, the clock and the scheduler of the system show in a measurement."""

_CALIBRATION_CALLS = 5
_PAUSE_S = 0.01


def first_call_s(compiled: Function, args: tuple[Any, ...]) -> float:
    """Seconds from the call to the finished result, tracing and compiling included."""
    start = time.perf_counter()
    jax.block_until_ready(compiled(*args))
    return time.perf_counter() - start


def compare(a: Function, b: Function, args: tuple[Any, ...], rounds: int) -> PairedTimes:
    """Times one call of `a` and of `b` on the same arguments, both compiled before.

    Every call is waited for. A round runs each side often enough to last
    `SHORTEST_MEASUREMENT_S`.
    """
    calls_a, calls_b = _calls_per_measurement(a, args), _calls_per_measurement(b, args)
    times = time_paired(_repeated(a, args, calls_a), _repeated(b, args, calls_b), rounds)
    ratio = calls_b / calls_a
    return PairedTimes(
        _divided(times.a, calls_a),
        _divided(times.b, calls_b),
        times.speedup * ratio,
        times.speedup_spread * ratio,
    )


def in_turns(runs: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    """The seconds of a call of each, one after the other in every round, often enough to last
    `SHORTEST_MEASUREMENT_S`. Each waits for its own results.

    Between two of them is a pause, and a call that is not timed: threads that wait for work in a
    loop of their own, as PyTorch's do, would take a core from whoever comes next.
    """
    calls = {name: _calls_to_measure(run) for name, run in runs.items()}
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            time.sleep(_PAUSE_S)
            run()
            start = time.perf_counter()
            for _ in range(calls[name]):
                run()
            seconds[name].append((time.perf_counter() - start) / calls[name])
    return seconds


def _calls_per_measurement(function: Function, args: tuple[Any, ...]) -> int:
    return _calls_to_measure(_repeated(function, args, 1))


def _calls_to_measure(run: Callable[[], Any]) -> int:
    samples = []
    for _ in range(_CALIBRATION_CALLS):
        start = time.perf_counter()
        run()
        samples.append(time.perf_counter() - start)
    return max(1, round(SHORTEST_MEASUREMENT_S / max(statistics.median(samples), 1e-7)))


def _repeated(function: Function, args: tuple[Any, ...], calls: int) -> Callable[[], None]:
    def run() -> None:
        for _ in range(calls):
            jax.block_until_ready(function(*args))

    return run


def _divided(timing: Timing, calls: int) -> Timing:
    return Timing(timing.median_us / calls, timing.spread_us / calls)
