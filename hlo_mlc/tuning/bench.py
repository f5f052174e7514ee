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
    """A kernel that can be run, with memory of its own for results."""

    def run(self) -> None:
        """Runs it once, to the end."""

    def results(self) -> list[np.ndarray]:
        """What its last run has written."""


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
        self._target, self._like = target, results
        self._operands = list(map(aligned, operands))

    def load(self, source: CandidateSource, code: bytes) -> Candidate:
        """An object file, mapped into this process."""
        entry = load_object(code, source.symbol, source.scratch_bytes)
        results = [aligned_empty(array.shape, array.dtype) for array in self._like]
        for array in results:
            array.reshape(-1).view(np.uint8)[...] = UNTOUCHED  # scalars have no other view
        return _OnCpu(
            bind_kernel(entry, self._operands, results, threads=self._target.cores), results
        )

    def time(self, a: Candidate, b: Candidate, seconds: float) -> PairedTimes:
        """By the clock."""
        return time_in_turns(a.run, b.run, seconds)


class _OnCpu:
    def __init__(self, run: Callable[[], None], results: list[np.ndarray]) -> None:
        self.run, self._results = run, results

    def results(self) -> list[np.ndarray]:
        return self._results
