"""Timing compiled functions against each other."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax

from hlo_mlc.runtime.measure import PairedTimes, calls_to_measure, time_rounds
from hlo_mlc_bench.case import Function

_PAUSE_S = 0.01
# Of calls that are not timed before those in a row are: exp of a million took 146 us in the second
# call after a pause, 92 in the third, 72 in the fourth, and 49 from some ten on.
_AWAKE_S = 0.005


def compare(a: Function, b: Function, args: tuple[Any, ...], rounds: int) -> PairedTimes:
    """Times one call of `a` and of `b` on the same arguments, both compiled before.

    Every call is waited for.
    """
    return time_rounds(
        lambda: jax.block_until_ready(a(*args)), lambda: jax.block_until_ready(b(*args)), rounds
    )


@dataclass(frozen=True, slots=True)
class Paces:
    """Seconds of a call in each round: of one among many in a row, and of the first after a pause,
    when threads sleep, the clock may be low, and the caches have what others left there."""

    in_a_row: list[float] = field(default_factory=list)
    after_pause: list[float] = field(default_factory=list)


def in_turns(runs: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, Paces]:
    """Times the calls of each, one after the other in every round. Each waits for its own results.

    In front of each is a pause: threads that wait for work in a loop of their own, as PyTorch's do,
    would take a core from whoever comes next.
    """
    calls = {name: calls_to_measure(run) for name, run in runs.items()}
    paces = {name: Paces() for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            time.sleep(_PAUSE_S)
            paces[name].after_pause.append(_seconds(run))
            awake = time.perf_counter() + _AWAKE_S
            while time.perf_counter() < awake:
                run()
            paces[name].in_a_row.append(_seconds(run, calls[name]) / calls[name])
    return paces


def _seconds(run: Callable[[], Any], calls: int = 1) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        run()
    return time.perf_counter() - start
