"""Locks of the whole process, which a forked child finds open."""

from __future__ import annotations

import os
import threading


def process_lock() -> threading.Lock:
    """A lock that is free in a forked child, also where a thread that the child does not have held
    it in the parent."""
    lock = threading.Lock()
    os.register_at_fork(after_in_child=lock._at_fork_reinit)  # as the standard library's locks are
    return lock
