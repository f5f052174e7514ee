"""Files that appear as a whole or not at all, whatever ends the process that writes them."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

TEMPORARY_PREFIX = ".writing-"
"""How the names of files begin that are not whole yet."""

PRIVATE, PUBLIC = 0o600, 0o644
"""What is only the user's own business, and what is handed on to others."""


def write_whole(path: Path, parts: Iterable[bytes | memoryview], mode: int = PRIVATE) -> None:
    """Writes a file, or puts the new one in the place of the old one; where that fails, the old
    one stays and nothing else is left behind.

    Raises: OSError.
    """
    descriptor, temporary = tempfile.mkstemp(prefix=TEMPORARY_PREFIX, dir=path.absolute().parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            for part in parts:
                file.write(part)
        os.chmod(temporary, mode)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
