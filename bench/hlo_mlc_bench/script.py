"""How the scripts of `scripts/` begin that take words, and no options, if anything."""

from __future__ import annotations

import sys


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
