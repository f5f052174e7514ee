"""Whether somebody waits for a program to be compiled: what can wait stays out of the way."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator

from hlo_mlc.support.locks import process_lock

_POLL_S = 0.05


class Quiet:
    """How long nobody has waited for something."""

    def __init__(self) -> None:
        self._lock = process_lock()
        self._forget()
        os.register_at_fork(after_in_child=self._forget)

    @contextlib.contextmanager
    def disturbed(self) -> Iterator[None]:
        """In here, somebody waits."""
        with self._lock:
            self._waiting += 1
        try:
            yield
        finally:
            with self._lock:
                self._waiting -= 1
                self._since = time.monotonic()

    def comes(self, seconds: float) -> bool:
        """Waits until nobody has waited for so long; False where the program ends before."""
        while self._waiting or time.monotonic() - self._since < seconds:
            if not threading.main_thread().is_alive():
                return False
            time.sleep(_POLL_S)
        return True

    def _forget(self) -> None:
        self._waiting, self._since = 0, float("-inf")
