"""Python's collector of reference cycles, and when it had better wait."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def no_collection() -> Iterator[None]:
    """Nothing looks for cycles: there are hardly any in what a trace or a compilation makes, but a
    collection goes through all that JAX and its user's packages hold, which took up to a quarter
    of a first call.

    Python would begin one as soon as it may again, on all that is new and still there. That counts
    as old instead, and is looked at when all is: by Python's own measure, or `gc.collect()`.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        if not gc.get_freeze_count():  # or else what the user has frozen would thaw
            gc.freeze()
            gc.unfreeze()
        gc.enable()
