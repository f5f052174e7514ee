"""Python's stack, and what it costs to reach the end of a piece of it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

# Pieces have a power of two of slots.  A frame of just over half of one leaves the rest of it to
# what is called: 15,000 slots, or about 500 calls inside each other.
_SLOTS = (1 << 14) + 500


def on_one_stack(function: Callable[P, R]) -> Callable[P, R]:
    """`function`, with all that it calls in one piece of Python's stack.

    Python takes its stack from the system in pieces of 16 KiB and gives an empty piece back at
    once.  A loop that happens to run just below the end of one does both with each call that it
    makes, 8 us each time: that was up to a third of a compilation.  For a frame that needs more, a
    larger piece is taken.

    Source: CPython issue 142183, mended in the releases from March 2026 on.
    """
    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        return function(*args, **kwargs)

    call.__code__ = call.__code__.replace(co_stacksize=_SLOTS)
    return call
