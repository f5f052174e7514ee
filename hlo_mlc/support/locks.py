"""Locks of the whole process, which a forked child finds open, and what forks wait for."""

from __future__ import annotations

import os
import threading
from contextlib import AbstractContextManager


def process_lock() -> threading.Lock:
    """A lock that is free in a forked child, also where a thread that the child does not have held
    it in the parent."""
    lock = threading.Lock()
    os.register_at_fork(after_in_child=lock._at_fork_reinit)  # as the standard library's locks are
    return lock


def let_forks_wait(lock: AbstractContextManager) -> None:
    """Has forks wait until a reentrant lock of somebody else's is free, so that children find what
    it protects whole, and nobody who holds it."""

    def release() -> None:
        lock.__exit__(None, None, None)

    os.register_at_fork(before=lock.__enter__, after_in_parent=release, after_in_child=release)


class AwaitedByForks:
    """What any number of threads may be doing at once, as long as no fork is on its way: forks wait
    until it is done, so that children find what it works on whole."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside = 0
        release = self._changed.release
        os.register_at_fork(before=self._stop, after_in_parent=release, after_in_child=release)

    def __enter__(self) -> None:
        with self._changed:
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._inside -= 1
            self._changed.notify_all()

    def _stop(self) -> None:
        self._changed.acquire()
        self._changed.wait_for(lambda: not self._inside)
