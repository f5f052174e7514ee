"""Words for people: numbers with their nouns and units, long lines, tables."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

WIDTH = 80  # columns: what a terminal has unless it is made wider


def counted(count: int, noun: str) -> str:
    """`1 kernel`, `2 kernels`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def byte_size(count: float) -> str:
    """A number of bytes in the unit that suits it."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"


def wrapped(text: str, indent: str = "  ", hanging: str | None = None) -> list[str]:
    """A text that may be long as lines that a terminal does not fold, with what the first and what
    others begin with."""
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=indent,
        subsequent_indent=f"{indent}  " if hanging is None else hanging,
        break_long_words=False,
        break_on_hyphens=False,
    )


def table_lines(rows: Sequence[Sequence[str]], words: int = 0) -> list[str]:
    """Rows with the first column and so many of the last to the left, and the others to the
    right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    last = len(widths) - words
    return [
        "  ".join(
            cell.rjust(width) if 0 < n < last else cell.ljust(width)
            for n, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
