"""Timing compiled functions against each other."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import jax

from hlo_mlc.runtime.measure import PairedTimes, calls_to_measure, time_rounds
from hlo_mlc_bench.case import Function

_PAUSE_S = 0.01


def compare(a: Function, b: Function, args: tuple[Any, ...], rounds: int) -> PairedTimes:
    """Times one call of `a` and of `b` on the same arguments, both compiled before.

    Every call is waited for.
    """
    return time_rounds(
        lambda: jax.block_until_ready(a(*args)), lambda: jax.block_until_ready(b(*args)), rounds
    )


def in_turns(runs: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    """The seconds of a call of each, one after the other in every round, often enough for the
    clock. Each waits for its own results.

    Between two of them is a pause, and a call that is not timed: threads that wait for work in a
    loop of their own, as PyTorch's do, would take a core from whoever comes next.
    """
    calls = {name: calls_to_measure(run) for name, run in runs.items()}
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
