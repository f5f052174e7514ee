"""What is made behind calls."""

from __future__ import annotations

import threading

from hlo_mlc.interop.by_shapes import PREPARING


def wait_for_kernels() -> None:
    """Until the kernels are there that other numbers of rows need."""
    for thread in threading.enumerate():
        if thread.name == PREPARING:
            thread.join()
