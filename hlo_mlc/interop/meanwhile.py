"""What is compiled while a program runs: at low priority, one thing at a time, and when nobody
waits for a first call of a function, as XLA compiles all programs with the same threads."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

from hlo_mlc.support.locks import process_lock
from hlo_mlc.support.quiet import Quiet
from hlo_mlc.support.turns import short_turns

first_calls = Quiet()
_one_at_a_time = process_lock()
_NICENESS = 10
# Since the last first call of a function. What takes XLA 10 s to compile held other first calls of
# 0.3 s up for 4 to 20 s.
_QUIET_S = 2.0
_TURN_S = 5e-4  # for which our compiler keeps the interpreter from the callers


def begin(name: str, work: Callable[..., None], *args: Any) -> None:
    """Begins work that calls do without, in a thread of its own, if there is one to be had."""
    with contextlib.suppress(RuntimeError):
        threading.Thread(target=work, args=args, name=name).start()


@contextlib.contextmanager
def meanwhile() -> Iterator[bool]:
    """In here it is the turn of a thread that was begun for it: True, or False where the program
    ends before that comes."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
    with _one_at_a_time:
        comes = first_calls.comes(_QUIET_S)
        with short_turns(_TURN_S):
            yield comes
