"""Which is faster, a program with our kernels or XLA's alone, settled on the caller's own calls.

What is predicted is run at once. Where that is not clear-cut, another way is compiled in a thread
of low priority, without the user's code being traced again: XLA's own program, or one with all that
we can compile, whichever is more likely to be faster. Then calls go to either side in turns
and are timed, until it is clear, and from there on to the faster one alone, which is remembered on
disk. No call waits for that: results are watched, not waited for, and nothing is compiled while
somebody waits for another function's first call, as XLA compiles all programs with the same
threads. Both sides are right, but not to the last bit the same.
"""

from __future__ import annotations

import contextlib
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from pathlib import Path
from typing import Any, Protocol

import jax

from hlo_mlc.backends.base import PromisedKernel
from hlo_mlc.interop import compat
from hlo_mlc.interop.choices import Choice, recorded, remember
from hlo_mlc.interop.function import TracedFunction
from hlo_mlc.interop.meanwhile import first_calls, meanwhile
from hlo_mlc.interop.staged import Staged, use_from_now_on
from hlo_mlc.report import Comparison, Report
from hlo_mlc.support.debug import Level, say

Jit = Callable[..., Any]

XLA, OURS, AUTO = "xla", "ours", "auto"  # XLA's program, all that we can compile, what is predicted

# Standard deviations between what is predicted of two sides, from which on the slower one is not
# looked at: it is the faster one in one program of a hundred.  Of 1,037 programs of the bench and
# of others 590 are nearer, and so were all 52 rows in which XLA has been seen to be faster.
_CLEAR = 2.33
_WORTH_COMPILING_US = 20.0  # by XLA: our compiler takes longer than so little is ever worth
_FIRST_TIMED = 3  # what is called less often is not worth compiling twice
_WORTH_IT = 0.97  # the other side takes over if it needs less than this share of the time
_FEW, _MANY = 3, 12  # pairs of calls: enough where the sides differ much, and in any case
_MUCH = 1.15


class Owner(Protocol):
    """What people call."""

    def call_from_now_on(self, compiled: Jit, function: TracedFunction) -> None: ...


class _Stage(Enum):
    COUNTING = auto()
    COMPILING = auto()
    TIMING = auto()
    SETTLED = auto()


@dataclass(slots=True)
class Side:
    """One way to compute the function, and the seconds that calls have taken."""

    jit: Jit
    staged: Staged
    seconds: list[float] = field(default_factory=list)

    @property
    def function(self) -> TracedFunction:
        return self.staged.function


class Settling:
    """Called in place of a `jax.jit` object until it is settled what to run.

    `alternative` makes the other side, "xla" or "ours", of the program that a path stands for;
    `owner` is told what to call when that is known. Nothing that fails here reaches a caller.
    """

    owner: Callable[[], Owner | None]

    def __init__(self, jit: Jit, staged: Staged, alternative: Callable[[Path, str], Side]) -> None:
        self._present = Side(jit, staged)
        self._other: Side | None = None
        self._asked = XLA  # what the other side is
        self._alternative = alternative
        self._stage = _Stage.COUNTING
        self._calls = 0
        self._busy = threading.Lock()  # held by a call that is looked at
        self._kind: _Kind | None = None
        self._report: Report | None = None
        self._watched: jax.Array | None = None
        staged.traces.are_kept = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._present.jit, name)

    def __repr__(self) -> str:
        return repr(self._present.jit)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        if (
            self._stage in (_Stage.SETTLED, _Stage.COMPILING)
            or not compat.is_computing()
            or not self._busy.acquire(blocking=False)
        ):
            return self._present.jit(*args, **kwargs)
        try:
            if self._stage is _Stage.TIMING and self._watched is None:
                return self._timed(args, kwargs)
            with contextlib.nullcontext() if self._calls else first_calls.disturbed():
                results = self._present.jit(*args, **kwargs)
            if self._stage is _Stage.COUNTING:
                with self._contained():
                    self._count(args, kwargs)
            return results
        finally:
            self._busy.release()

    def _count(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Begins to settle it when there were some calls, unless there is nothing to settle."""
        self._calls += 1
        self._report = self._present.function.ledger.latest
        if self._is_broken():
            anew = self._alternative(self._report.settled_at, "auto")
            anew.function.faults.are_told = True  # with what shows them again
            described = jax.tree.map(compat.described, (args, dict(kwargs)))
            anew.jit.lower(*described[0], **described[1])
            self._replace(anew)
            self._end()
        elif not self._is_open():
            self._end()
        elif self._calls >= _FIRST_TIMED:
            self._kind = _Kind.of(args, kwargs)
            described = jax.tree.map(compat.described, (args, dict(kwargs)))
            self._stage = _Stage.COMPILING
            threading.Thread(target=self._compile, args=described, name="hlo_mlc settles").start()

    def _is_broken(self) -> bool:
        """Whether a promised kernel turned out not to be; the call itself waits for that."""
        report = self._report
        return (
            report is not None
            and report.settled_at is not None
            and any(
                isinstance(k.kept, PromisedKernel) and not k.kept.wait() for k in report.kernels
            )
        )

    def _is_open(self) -> bool:
        """Whether there are two sides to one program, of which either may be the faster."""
        report = self._report
        asked = None if report is None or report.settled_at is None else other_side(report)
        if asked is None:
            return False
        self._asked = asked
        return len(self._present.function.ledger) == 1 and jax.device_count() == 1

    def _compile(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Compiles the other side; runs in a thread of its own."""
        with self._contained():
            with meanwhile() as it_is_time:
                if not it_is_time:
                    return
                other = self._alternative(self._report.settled_at, self._asked)
                other.jit.lower(*args, **kwargs).compile()
            # Threads begin without any context.
            if self._is_asked_for(other) and self._kind.context == compat.context():
                self._other, self._stage = other, _Stage.TIMING
            else:
                self._end()

    def _is_asked_for(self, other: Side) -> bool:
        """Whether it is one program, and another one than is run now."""
        ledger, present = other.function.ledger, {kernel.id for kernel in self._report.kernels}
        kernels = {kernel.id for kernel in ledger.latest.kernels} if len(ledger) == 1 else present
        return kernels != present and (self._asked == OURS) == bool(kernels)

    def _timed(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """A call of either side in turns; as before, and not timed, where it is of another kind."""
        side = None
        with self._contained():
            if _Kind.of(args, kwargs) == self._kind:
                side = min((self._other, self._present), key=lambda side: len(side.seconds))
        if side is None:
            return self._present.jit(*args, **kwargs)
        waits_for = [leaf for leaf in jax.tree.leaves((args, kwargs)) if _is_pending(leaf)]
        began = time.perf_counter()
        try:
            results = side.jit(*args, **kwargs)
        except Exception as error:
            if side is self._present or any(map(_is_gone, jax.tree.leaves((args, kwargs)))):
                raise
            with self._contained():
                raise error
            return self._present.jit(*args, **kwargs)
        with self._contained():
            self._look_at(side, results, began, waits_for)
        return results

    def _look_at(self, side: Side, results: Any, began: float, waits_for: list[jax.Array]) -> None:
        arrays = [leaf for leaf in jax.tree.leaves(results) if isinstance(leaf, jax.Array)]
        smallest = min(arrays, key=lambda array: array.nbytes)
        if smallest.is_ready():
            self._note(side, time.perf_counter() - began)
        else:
            self._watched = smallest
            threading.Thread(
                target=self._watch, args=(side, smallest, began, waits_for), name="hlo_mlc watches"
            ).start()

    def _watch(
        self, side: Side, result: jax.Array, began: float, waits_for: list[jax.Array]
    ) -> None:
        """Notes what passes between the last argument and a result; runs in a thread of its own."""
        ended = None
        with contextlib.suppress(Exception):  # given away to another call, or the caller's to see
            if waits_for:
                jax.block_until_ready(waits_for)
                began = time.perf_counter()
            result.block_until_ready()
            ended = time.perf_counter()
        with self._busy, self._contained():
            self._watched = None
            if ended is not None and self._stage is _Stage.TIMING:
                self._note(side, ended - began)

    def _note(self, side: Side, seconds: float) -> None:
        side.seconds.append(seconds)
        present, other = (side.seconds[1:] for side in (self._present, self._other))
        if len(present) != len(other) or len(present) < _FEW:  # the first, left out, warms up
            return
        # Of neighbours, so that what happens to the machine meanwhile happens to both.
        ratio = statistics.median(o / p for o, p in zip(other, present, strict=True))
        ratios = (ratio, min(other) / min(present))
        if min(ratios) > _MUCH or max(ratios) < 1 / _MUCH or len(present) >= _MANY:
            self._settle(*(statistics.median(seconds) * 1e6 for seconds in (present, other)), ratio)

    def _settle(self, present_us: float, other_us: float, ratio: float) -> None:
        is_other = ratio < _WORTH_IT
        present = AUTO if self._report.kernels else XLA
        if self._asked == XLA:
            found = Comparison(present, present_us, other_us, ratio)
        else:
            found = Comparison(OURS, other_us, present_us, 1 / ratio, present)
        winner = self._asked if is_other else present
        self._say(f'{found}; choose="{winner}" from now on')
        kernels = {
            k.id
            for side in (self._present, self._other)
            for k in side.function.ledger.latest.kernels
        }
        if is_other:
            self._replace(self._other)
        self._present.function.ledger.settle(found)
        path, options = self._report.settled_at, self._present.function.options
        self._end()
        remember(path, Choice(winner, (found,)), recorded(kernels, options))

    def _replace(self, side: Side) -> None:
        """Calls go to another side from now on."""
        self._present.staged.traces.end()
        self._present = side
        self._present.function.faults.are_told = True
        use_from_now_on(self._present.staged)

    def _end(self) -> None:
        """No call is looked at any longer."""
        self._stage = _Stage.SETTLED
        self._other = self._kind = self._report = None
        self._present.staged.traces.end()
        owner = self.owner()
        if owner is not None:
            owner.call_from_now_on(self._present.jit, self._present.function)

    @contextlib.contextmanager
    def _contained(self) -> Iterator[None]:
        """What fails in it ends the comparison, and nothing else."""
        try:
            yield
        except Exception as error:
            self._say(f"is no longer compared with XLA: {error}")
            self._end()

    def _say(self, line: str) -> None:
        function = self._present.function
        say(Level.FUNCTIONS, function.options.debug, [f"{function.name}: {line}"])


def other_side(report: Report) -> str | None:
    """What may be faster than what is run, by what was predicted: XLA's own program or all that we
    can compile, whichever is more likely; None where neither is, or where somebody has looked or
    better did not."""
    if report.comparisons or any(kernel.fault for kernel in report.kernels):
        return None
    behind: dict[str, float] = {}  # by how many standard deviations
    if report.kernels:  # what is left to XLA in any case says nothing
        taken = report.taken if report.rejected else report.predicted or report.taken
        behind[XLA] = 0.0 if taken is None else taken.lead
    least_us = max(_WORTH_COMPILING_US, (1 - _WORTH_IT) * (report.ours_us + report.left_us))
    if report.rejected is not None and report.rejected.xla_us >= least_us:
        behind[OURS] = -report.rejected.lead
    side = min(behind, key=behind.__getitem__, default=None)
    return None if side is None or behind[side] > _CLEAR else side


def _is_gone(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and leaf.is_deleted()


def _is_pending(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and not leaf.is_deleted() and not leaf.is_ready()


@dataclass(frozen=True, slots=True)
class _Kind:
    """What a call has in common with those that run the same program."""

    context: Any
    tree: Any
    leaves: tuple[Any, ...]

    @classmethod
    def of(cls, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> _Kind:
        leaves, tree = jax.tree.flatten((args, kwargs))
        return cls(compat.context(), tree, tuple(map(_kind_of, leaves)))


def _kind_of(leaf: Any) -> Any:
    if isinstance(leaf, jax.Array):
        return leaf.shape, leaf.dtype, leaf.weak_type, leaf.sharding, leaf.committed
    if hasattr(leaf, "shape") and hasattr(leaf, "dtype"):
        return type(leaf), leaf.shape, leaf.dtype
    return type(leaf), leaf  # it may be static
