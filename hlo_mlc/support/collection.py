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

    Python begins one as soon as it may again, on all that is new and still there: around a
    function, as a decorator, that is what the function returns, without what it needed for that.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
