"""Small facts kept on disk as JSON: what was measured once and need not be measured again.

A note is complete at any instant, whoever writes it at the same time; one that is missing or
damaged reads as None, and costs no more than finding out again.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from hlo_mlc.runtime.files import write_whole
from hlo_mlc.support.errors import CacheError
from hlo_mlc.support.warning import warn

Note = Mapping[str, Any]
"""What JSON can hold, by name."""


def read_note(path: Path) -> Note | None:
    """What was written at `path`; None if there is nothing that can be read."""
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def note_paths(folder: Path, kind: str = "") -> list[Path]:
    """The notes in a folder whose names begin with `kind`."""
    return sorted(folder.glob(f"{kind}*.json"))


def forget_notes(paths: Iterable[Path]) -> int:
    """Removes notes; returns how many there were.

    Raises: CacheError for one that cannot be removed.
    """
    count = 0
    for path in paths:
        try:
            path.unlink()
        except FileNotFoundError:
            continue
        except OSError as error:
            raise CacheError(f"{path} cannot be removed: {error.strerror or error}") from error
        count += 1
    return count


def write_note(path: Path, content: Note) -> None:
    """Keeps `content` at `path`; only warns if it cannot."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_whole(path, [f"{json.dumps(content, indent=1)}\n".encode()])
    except OSError as error:
        _say_unwritable(path.parent, error.strerror or str(error))


@functools.cache
def _say_unwritable(folder: Path, reason: str) -> None:
    """Says it once of a folder: there are several notes, and some are written by everything that is
    compiled."""
    warn(
        f"hlo_mlc cannot write in {folder} ({reason}); what is to be kept there is found out again "
        "by each process"
    )
