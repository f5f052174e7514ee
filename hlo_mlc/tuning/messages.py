"""What the tuner and its worker processes say to each other."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hlo_mlc.runtime.records import Schedules
from hlo_mlc.target import Target
from hlo_mlc.tensor.core import TensorProgram
from hlo_mlc.tuning.bench import CandidateSource
from hlo_mlc.tuning.generator import Generator


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """A kernel to tune: what to run it on, and what it has to compute from that."""

    program: TensorProgram
    target: Target
    generator: Generator
    operands: tuple[np.ndarray, ...]
    expected: tuple[np.ndarray, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Kernel:
    """What candidates are made of."""

    program: TensorProgram
    target: Target
    generator: Generator


@dataclass(frozen=True, slots=True)
class Load:
    """Says which kernel questions are about from now on, as a packed `Kernel`; has no answer."""

    packed: bytes


@dataclass(frozen=True, slots=True, eq=False)
class Begin:
    """Asks for the default schedule to be built, checked and timed, to which others are compared
    then; the answer is `Ready` or `Failed`."""

    operands: tuple[np.ndarray, ...]
    expected: tuple[np.ndarray, ...]


@dataclass(frozen=True, slots=True)
class Build:
    """Asks for the code with these schedules, which is made unless its digest is `known`; the
    answer is `Built` or `Failed`."""

    schedules: Schedules
    known: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Describe:
    """Asks what the loops with these schedules are like: for a `Description`, or `Failed`."""

    schedules: Schedules


@dataclass(frozen=True, slots=True)
class Measure:
    """Asks for the time of what was built; the answer is `Timed` or `Failed`."""

    source: CandidateSource
    code: bytes
    seconds: float


Request = Load | Begin | Describe | Build | Measure
"""What a worker is told."""


@dataclass(frozen=True, slots=True)
class Ready:
    """The worker has built, checked and timed the default schedule."""

    default_us: float


@dataclass(frozen=True, slots=True)
class Built:
    """A candidate before and after it is assembled; its `code` is empty where it was known."""

    source: CandidateSource
    code: bytes

    @property
    def digest(self) -> str:
        """Equal for equal code."""
        return self.source.digest


@dataclass(frozen=True, slots=True)
class Timed:
    """A candidate computes what it should, and is `speedup` times as fast as the default that ran
    in turns with it. `noise` is the default's median time / its shortest: far above 1 where others
    use the machine, too."""

    default_us: float
    us: float
    speedup: float
    noise: float = 1.0


@dataclass(frozen=True, slots=True)
class Failed:
    """A candidate cannot be built, or computes something else; or the worker died of it."""

    reason: str


Outcome = Timed | Failed
"""What comes of a candidate."""
