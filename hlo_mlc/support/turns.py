"""How often threads of Python take turns: more often while one of ours is at work."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

from hlo_mlc.support.locks import process_lock

_lock = process_lock()
_asked: list[float] = []
_usual = [0.0]  # what it is while nobody asks


@contextlib.contextmanager
def short_turns(seconds: float) -> Iterator[None]:
    """In here, a thread gets the interpreter after so many seconds of another's at most; Python's
    own 5 ms are for who asks for less. Any number of threads may ask at once."""
    with _lock:
        if not _asked:
            _usual[0] = sys.getswitchinterval()
        _asked.append(seconds)
        sys.setswitchinterval(min(*_asked, _usual[0]))
    try:
        yield
    finally:
        with _lock:
            _asked.remove(seconds)
            sys.setswitchinterval(min((*_asked, _usual[0])))
