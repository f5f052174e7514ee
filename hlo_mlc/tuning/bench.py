"""Where candidates of a kernel run: on its operands, and in turns with each other."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from hlo_mlc.codegen.cuda.plan import Launch
from hlo_mlc.runtime.measure import PairedTimes, aligned, aligned_empty, bind_kernel, time_in_turns
from hlo_mlc.runtime.variants import load_object
from hlo_mlc.target.cpu import CpuTarget

UNTOUCHED = 0x5A
"""The byte that results consist of before a kernel writes them."""

_FEWEST_ROUNDS = 3  # of either half of a measurement


@dataclass(frozen=True, slots=True)
class CandidateSource:
    """A candidate before it is assembled; for GPUs with the launches of its functions."""

    text: str
    symbol: str
    scratch_bytes: int
    launches: tuple[Launch, ...] = ()

    @property
    def digest(self) -> str:
        """Equal for equal code."""
        content = f"{self.text}{self.launches}" if self.launches else self.text
        return hashlib.sha256(content.encode()).hexdigest()[:24]


class Candidate(Protocol):
    """A kernel that can be run."""

    def run(self) -> None:
        """Runs it once, to the end."""

    def results(self) -> list[np.ndarray]:
        """What its last run has written, until another one is loaded or run."""


class Bench(Protocol):
    """A machine with the operands of a kernel."""

    def load(self, source: CandidateSource, code: bytes) -> Candidate:
        """What was assembled of a candidate, ready to run.

        Raises: MlcError for code that the machine does not take.
        """

    def time(self, a: Candidate, b: Candidate, seconds: float) -> PairedTimes:
        """The times of one run of each, in turns."""


class CpuBench:
    """This machine's CPU."""

    def __init__(
        self, target: CpuTarget, operands: Sequence[np.ndarray], results: Sequence[np.ndarray]
    ) -> None:
        """`results` are arrays like those that a kernel computes."""
        self._target = target
        self._operands = list(map(aligned, operands))
        self._sides = [[aligned_empty(r.shape, r.dtype) for r in results] for _ in range(2)]

    def load(self, source: CandidateSource, code: bytes) -> Candidate:
        """An object file, mapped into this process."""
        entry = load_object(code, source.symbol, source.scratch_bytes)
        here, there = self._sides
        for array in here:
            array.reshape(-1).view(np.uint8)[...] = UNTOUCHED  # scalars have no other view
        bound = (
            bind_kernel(entry, self._operands, side, threads=self._target.cores)
            for side in (here, there)
        )
        return _OnCpu(*bound, here)

    def time(self, a: _OnCpu, b: _OnCpu, seconds: float) -> PairedTimes:
        """By the clock. Half of the time each writes where the other does else: what a place in
        memory may be worth to caches says nothing of a kernel."""
        crossed = time_in_turns(a.run, b.run_elsewhere, seconds / 2, _FEWEST_ROUNDS)
        return crossed.crossed_with(
            time_in_turns(a.run_elsewhere, b.run, seconds / 2, _FEWEST_ROUNDS)
        )


class _OnCpu:
    def __init__(
        self,
        run: Callable[[], None],
        run_elsewhere: Callable[[], None],
        results: Sequence[np.ndarray],
    ) -> None:
        """`results` are those that `run` writes."""
        self.run, self.run_elsewhere, self._results = run, run_elsewhere, results

    def results(self) -> list[np.ndarray]:
        return [array.copy() for array in self._results]
