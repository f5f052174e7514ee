"""Python's stack: what it costs to reach the end of a piece of it, and how deep calls may go."""

from __future__ import annotations

import contextlib
import functools
import resource
import sys
import threading
from collections.abc import Callable, Iterator
from typing import ParamSpec, TypeVar

from hlo_mlc.support.locks import process_lock

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


# Tracing a function inside another one takes 20 calls of Python's, and 10 KiB of the thread's own
# stack, since JAX goes through C++: room for 250 functions inside each other.
_MOST_CALLS, _BYTES_FOR_CALL = 6_000, 1024
_THREAD_STACK = 2 << 20  # what glibc gives a thread where the limit is "unlimited"

_deep_lock = process_lock()
_deep_users = 0
_usual_limit = 0


@contextlib.contextmanager
def deep_calls() -> Iterator[None]:
    """More calls inside each other than Python allows by default, as far as the stack has room.

    JAX traces what is called inside a function by calls inside each other: with ours in between,
    Python's 1,000 ended at 50 functions of this kind.
    """
    global _deep_users, _usual_limit
    deepest = min(_MOST_CALLS, _stack_bytes() // _BYTES_FOR_CALL)
    with _deep_lock:
        if _deep_users == 0:
            _usual_limit = sys.getrecursionlimit()
            sys.setrecursionlimit(max(_usual_limit, deepest))
        _deep_users += 1
    try:
        yield
    finally:
        with _deep_lock:
            _deep_users -= 1
            # Other threads may be deep in calls; who set another limit meanwhile wants that one.
            if _deep_users == 0 and sys.getrecursionlimit() == max(_usual_limit, deepest):
                with contextlib.suppress(RecursionError):
                    sys.setrecursionlimit(_usual_limit)


def _stack_bytes() -> int:
    """What this thread's stack has for sure."""
    limit = resource.getrlimit(resource.RLIMIT_STACK)[0]
    usual = _THREAD_STACK if limit == resource.RLIM_INFINITY else limit
    return min(usual, threading.stack_size() or usual)
