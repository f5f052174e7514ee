"""Files that appear as a whole or not at all, whatever ends the process that writes them."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

from hlo_mlc.support.errors import UsageError

TEMPORARY_PREFIX = ".writing-"
"""How the names of files begin that are not whole yet."""

JOURNAL = Path("studies", "journal.log")
"""Where the studies of tuning are, below the cache folder."""

PRIVATE, PUBLIC = 0o600, 0o644
"""What is only the user's own business, and what is handed on to others."""


def path_of(given: object) -> Path:
    """The path that a user gave.

    Raises: UsageError for what is none.
    """
    if not isinstance(given, str | os.PathLike):
        raise UsageError(f"expected the path of a file, got {type(given).__name__}")
    path = Path(given)
    if "\0" in str(path):  # where the system's names end
        raise UsageError(f"expected the path of a file, got {str(path)!r}, with a zero byte in it")
    return path


def writable(path: str | os.PathLike[str], what: str) -> Path:
    """A path that a user gave to write `what` to, of which it shows early if that cannot be.

    Raises: UsageError.
    """
    file = path_of(path)
    folder = file.absolute().parent
    try:
        is_folder, has_folder = file.is_dir(), folder.is_dir()
    except OSError as error:  # a name that is too long, say
        raise _unwritable(file, what, error.strerror or str(error)) from error
    if is_folder:
        raise _unwritable(file, what, "it is a folder")
    if not has_folder:
        raise _unwritable(file, what, f"there is no folder {str(file.parent)!r}")
    if not os.access(folder, os.W_OK):
        raise _unwritable(file, what, f"nothing may be written into {str(file.parent)!r}")
    return file


def write_for_others(file: Path, content: bytes, what: str) -> None:
    """Writes what a user asked for.

    Raises: UsageError.
    """
    try:
        write_whole(file, [content], PUBLIC)
    except OSError as error:
        raise _unwritable(file, what, error.strerror or str(error)) from error


def _unwritable(file: Path, what: str, why: str) -> UsageError:
    return UsageError(f"Cannot write {what} to {str(file)!r}: {why}")


def write_whole(path: Path, parts: Iterable[bytes | memoryview], mode: int = PRIVATE) -> None:
    """Writes a file, or puts the new one in the place of the old one; where that fails, the old
    one stays and nothing else is left behind.  Into what is there and is no file, as a pipe or a
    device, it is written.

    Raises: OSError.
    """
    if path.exists() and not path.is_file():
        with path.open("wb") as stream:
            stream.writelines(parts)
        return
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
