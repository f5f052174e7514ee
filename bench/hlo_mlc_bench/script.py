"""How the scripts of `scripts/` begin that take words, and no options, if anything."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

from hlo_mlc.support.errors import MlcError


def arguments(about: str, most: int | None = None) -> list[str]:
    """The words behind a script's name, at `most` so many; with `--help` the script says what it is
    `about`, its docstring, and ends.

    Raises: SystemExit in that case, and for more words.
    """
    words = sys.argv[1:]
    if {"-h", "--help"} & set(words):
        print(about.strip())
        raise SystemExit
    if most is not None and len(words) > most:
        raise SystemExit(f"{sys.argv[0]}: expected no {words[most]!r} (--help says more)")
    return words


@contextlib.contextmanager
def errors_in_one_line() -> Iterator[None]:
    """Within it, an error of ours ends the script with what it says and no traceback.

    Raises: SystemExit.
    """
    try:
        yield
    except MlcError as error:
        raise SystemExit(f"{sys.argv[0]}: {error}") from error
