"""Words for people: numbers with their nouns and units, long lines, tables, places in files."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from pathlib import PurePath

WIDTH = 80  # columns: what a terminal has unless it is made wider

_LINE = re.compile(r"(\S.*?):(\d+)(?: |$)")
_CELL = re.compile(r"<ipython-input-(\d+)-\w+>")


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


def duration(us: float) -> str:
    """A time in the unit that suits it: `5.4 us`, `2.60 ms`, `160 ms`."""
    if us < 999.5:
        return f"{us:.1f} us" if us < 99.95 else f"{us:.0f} us"
    amount, unit = (us / 1e3, "ms") if us < 999_500 else (us / 1e6, "s")
    digits = 2 if amount < 9.995 else 1 if amount < 99.95 else 0
    return f"{amount:.{digits}f} {unit}"


def three_digits(value: float) -> str:
    """A positive number as `0.0971`, `2.60`, `115`, `1234`."""
    return f"{value:.0f}" if value >= 999.5 else f"{value:#.3g}".rstrip(".")


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


def named_at(what: str, line: str) -> str:
    """What it is, and where it comes from, if that is known."""
    return f"{what}@{line}" if line else what


def short_line(location: str) -> str:
    """`model.py:6` of "/home/me/model.py:6 jit(f)/exp", `In[3]:6` of what was typed into IPython;
    "" where no line is known."""
    found = _LINE.match(location)
    if found is None:
        return ""
    file = _CELL.sub(r"In[\1]", PurePath(found[1]).name)
    return f"{file}:{found[2]}"
