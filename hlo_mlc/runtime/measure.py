"""Running kernels on NumPy arrays without XLA, and comparing two ways to compute a thing."""

from __future__ import annotations

import ctypes
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import ml_dtypes
import numpy as np

from hlo_mlc.runtime import library
from hlo_mlc.runtime.variants import KernelCode
from hlo_mlc.support.errors import KernelFaultError, RuntimeLibraryError, UsageError

BUFFER_ALIGNMENT = 64
"""How XLA's CPU backend aligns buffers, in bytes."""

SHORTEST_MEASUREMENT_S = 2e-3
"""Below this, the clock and the scheduler of the system show in what calls are said to take."""

_CALIBRATION_CALLS = 5
_ONE_SIDE_S = 2e-4  # of one side of a round
_FEWEST_ROUNDS, _MOST_ROUNDS = 5, 301
_SMALL = 8  # more than integers have that are made up without a bound
_MADE_UP_PERIOD = (1 << 18) - 1  # no multiple of any row that hardware or tiles repeat with


def aligned_empty(shape: Sequence[int], dtype: np.typing.DTypeLike) -> np.ndarray:
    """An uninitialized row-major array that is aligned as XLA's are (NumPy's own often are not)."""
    dtype = np.dtype(dtype)
    size = math.prod(shape) * dtype.itemsize
    memory = np.empty(size + BUFFER_ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % BUFFER_ALIGNMENT
    return memory[start : start + size].view(dtype).reshape(shape)


def aligned(array: np.ndarray) -> np.ndarray:
    """A copy that is aligned so."""
    copy = aligned_empty(array.shape, array.dtype)
    copy[...] = array
    return copy


def made_up(
    shape: Sequence[int],
    dtype: np.typing.DTypeLike,
    rng: np.random.Generator,
    below: int | None = None,
) -> np.ndarray:
    """An aligned array of values that no program should choke on: normally distributed floats,
    non-negative integers (less than `below`; without it small ones, which are valid as indices into
    nearly everything), booleans of both kinds. Large arrays repeat themselves.
    """
    array = aligned_empty(shape, dtype)
    kind = array.dtype
    count = min(array.size, _MADE_UP_PERIOD)
    if kind == np.bool_:
        values = rng.random(count) < 0.5
    elif kind.name.startswith(("int", "uint")):
        most = _SMALL if below is None else max(below, 1)
        values = rng.integers(0, min(most, int(ml_dtypes.iinfo(kind).max) + 1), count)
    elif np.issubdtype(kind, np.complexfloating):
        values = rng.standard_normal(count) + 1j * rng.standard_normal(count)
    else:
        values = rng.standard_normal(count)
    array[...] = np.resize(values.astype(kind), shape)
    return array


def bind_kernel(
    code: KernelCode,
    arrays_in: Sequence[np.ndarray],
    arrays_out: Sequence[np.ndarray],
    threads: int = 1,
) -> Callable[[], None]:
    """A function that runs `code` on these arrays, with nothing left to prepare at each call.

    The caller is one of the `threads`.

    Raises: UsageError for an array that is not row-major, or a result that cannot be written. The
    function raises KernelFaultError if a kernel with checks finds a fault.
    """
    for number, array in enumerate([*arrays_in, *arrays_out]):
        if not array.flags.c_contiguous:
            raise UsageError(
                f"Kernels take row-major arrays; buffer {number} ({array.dtype}{array.shape}) has "
                f"strides {array.strides}: pass np.ascontiguousarray of it"
            )
    for number, array in enumerate(arrays_out):
        if not array.flags.writeable:
            raise UsageError(f"Result {number} ({array.dtype}{array.shape}) is read-only")
    if threads < 1:
        raise UsageError(f"A kernel runs on at least one thread, not {threads}")
    run = library.load().mlc_run
    buffers = [*arrays_in, *arrays_out]
    addresses = (ctypes.c_void_p * len(buffers))(*(array.ctypes.data for array in buffers))

    def call(keep_alive: object = (code, buffers)) -> None:
        done = run(code.entry, addresses, code.scratch_bytes, threads)
        if done < 0:
            raise RuntimeLibraryError(f"No memory for a scratch of {code.scratch_bytes} bytes")
        if not done:
            raise KernelFaultError(library.load().mlc_fault().decode())

    return call


@dataclass(frozen=True, slots=True)
class Timing:
    """A distribution of run times: its median, the distance between its quartiles, its minimum."""

    median_us: float
    spread_us: float
    best_us: float = 0.0

    def beside(self, other: Timing) -> Timing:
        """That of as many more runs, about."""
        return Timing(
            (self.median_us + other.median_us) / 2,
            max(self.spread_us, other.spread_us),
            min(self.best_us, other.best_us),
        )

    def per_call(self, calls: int) -> Timing:
        """What one call took, where each run was so many."""
        return Timing(self.median_us / calls, self.spread_us / calls, self.best_us / calls)


@dataclass(frozen=True, slots=True)
class PairedTimes:
    """Two things timed in turns. `speedup` is the median over the rounds of `a / b`: above 1, b is
    faster. A slow spell of the machine hits both sides of a round, so the ratio hardly moves.
    """

    a: Timing
    b: Timing
    speedup: float
    speedup_spread: float

    @classmethod
    def of(cls, times_a: list[float], times_b: list[float]) -> PairedTimes:
        """Of the microseconds that both sides took in each round."""
        ratios = [a / max(b, 1e-3) for a, b in zip(times_a, times_b, strict=True)]
        return cls(
            _timing(times_a),
            _timing(times_b),
            statistics.median(ratios),
            _quartile_distance(ratios),
        )

    @property
    def sure_speedup(self) -> float:
        """`speedup`, as far as the ratio of the shortest times bears it out; 1 where they do not
        agree on who is faster. Load from elsewhere hurts what runs on more threads the more, but
        leaves some rounds alone."""
        best = self.a.best_us / max(self.b.best_us, 1e-3)
        if self.speedup > 1:
            return max(1.0, min(self.speedup, best))
        return min(1.0, max(self.speedup, best))

    def crossed_with(self, other: PairedTimes) -> PairedTimes:
        """Both together, between which the sides have changed places: what a place is worth is in
        one ratio as often as it is not in the other."""
        return PairedTimes(
            self.a.beside(other.a),
            self.b.beside(other.b),
            math.sqrt(self.speedup * other.speedup),
            max(self.speedup_spread, other.speedup_spread),
        )

    def per_call(self, calls: int) -> PairedTimes:
        """What one call took, where each run was so many."""
        return replace(self, a=self.a.per_call(calls), b=self.b.per_call(calls))


def time_paired(
    run_a: Callable[[], object], run_b: Callable[[], object], rounds: int, warmup: int = 1
) -> PairedTimes:
    """Times `run_a` and `run_b` in turns, A B A B, after `warmup` untimed rounds.

    Each must have done all of its work when it returns (`jax.block_until_ready`).
    """
    if rounds < 1:
        raise UsageError(f"At least one round is needed, not {rounds}")
    for _ in range(warmup):
        run_a()
        run_b()
    times_a: list[float] = []
    times_b: list[float] = []
    clock = time.perf_counter
    for _ in range(rounds):
        start = clock()
        run_a()
        middle = clock()
        run_b()
        end = clock()
        times_a.append((middle - start) * 1e6)
        times_b.append((end - middle) * 1e6)
    return PairedTimes.of(times_a, times_b)


def time_in_turns(
    run_a: Callable[[], object],
    run_b: Callable[[], object],
    seconds: float,
    fewest_rounds: int = _FEWEST_ROUNDS,
) -> PairedTimes:
    """Times one call of each, in as many rounds as fit into `seconds`, or more. Short ones are
    called several times in a row, so that the clock and the scheduler do not show."""
    began = time.perf_counter()
    run_a()
    run_b()
    pair_s = max(time.perf_counter() - began, 1e-6)
    calls = max(1, round(2 * _ONE_SIDE_S / pair_s))
    rounds = min(max(int(seconds / (calls * pair_s)), fewest_rounds), _MOST_ROUNDS)
    return time_paired(repeated(run_a, calls), repeated(run_b, calls), rounds).per_call(calls)


def time_rounds(
    run_a: Callable[[], object], run_b: Callable[[], object], rounds: int
) -> PairedTimes:
    """Times one call of each in so many rounds, in each of which either side is called often enough
    to last `SHORTEST_MEASUREMENT_S`."""
    calls_a, calls_b = calls_to_measure(run_a), calls_to_measure(run_b)
    times = time_paired(repeated(run_a, calls_a), repeated(run_b, calls_b), rounds)
    ratio = calls_b / calls_a
    return PairedTimes(
        times.a.per_call(calls_a),
        times.b.per_call(calls_b),
        times.speedup * ratio,
        times.speedup_spread * ratio,
    )


def calls_to_measure(run: Callable[[], object]) -> int:
    """How many calls in a row last `SHORTEST_MEASUREMENT_S`."""
    samples = []
    for _ in range(_CALIBRATION_CALLS):
        start = time.perf_counter()
        run()
        samples.append(time.perf_counter() - start)
    return max(1, round(SHORTEST_MEASUREMENT_S / max(statistics.median(samples), 1e-7)))


def repeated(run: Callable[[], object], calls: int) -> Callable[[], None]:
    """So many calls of `run` in a row."""

    def many() -> None:
        for _ in range(calls):
            run()

    return many


def _timing(samples: list[float]) -> Timing:
    return Timing(statistics.median(samples), _quartile_distance(samples), min(samples))


def _quartile_distance(samples: list[float]) -> float:
    low, high = np.percentile(samples, [25, 75])
    return float(high - low)
