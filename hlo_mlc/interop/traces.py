"""What a function was traced into, kept as long as it may be compiled in a second way: the user's
own code runs no second time for that."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from hlo_mlc.interop import compat
from hlo_mlc.interop.compat import Arguments

Result = Callable[[Sequence[Any]], Any]
"""What makes a function's result of those of its jaxpr."""


class Traces:
    """The latest trace of one function, if it is to be kept."""

    def __init__(self) -> None:
        self.are_kept = False
        self._latest: tuple[Any, Any, Result] | None = None
        self._are_all = False

    def find(self, given: Arguments) -> tuple[Any, Result] | None:
        """The closed jaxpr for such arguments, and what makes the result; None if the function is
        to be traced, as it is wherever JAX asks for that: what it gives may have changed.

        Raises: LookupError if there is none, and none may be made.
        """
        if not self._are_all:
            return None
        if self._latest is None or self._latest[0] != _kind(given):
            raise LookupError("it was traced for other arguments, or where more is known")
        return self._latest[1:]

    def keep(self, given: Arguments, closed_jaxpr: Any, result: Result) -> None:
        """Keeps one that belongs to no trace around it."""
        if self.are_kept and not any(
            isinstance(value, jax.core.Tracer) for value in closed_jaxpr.consts
        ):
            self._latest = _kind(given), closed_jaxpr, result

    def alone(self) -> Traces:
        """The same for what may only be compiled as it was traced, until that has an end."""
        traces = Traces()
        traces._latest, traces._are_all = self._latest, True
        return traces

    def end(self) -> None:
        """Keeps none any longer."""
        self._latest, self.are_kept, self._are_all = None, False, False


def _kind(given: Arguments) -> tuple[Any, ...]:
    """Equal where a function is the same to `jax.jit`, also to axes and settings around it."""
    return compat.context(), given.kind
