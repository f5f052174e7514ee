"""Writes docs/schedules.md: the primitives that schedules are made of, as their docstrings say.

Usage: python scripts/schedules.py
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path

from hlo_mlc.schedule.core import PRIMITIVES

PAGE = Path(__file__).resolve().parent.parent / "docs" / "schedules.md"


def page() -> str:
    """The whole page."""
    return "\n".join([_HEAD, *_sections()])


def _sections() -> Iterator[str]:
    for name, primitive in PRIMITIVES.items():
        given = [str(p).partition(":")[0] + (f"={p.default!r}" if p.default is not p.empty else "")
                 for p in inspect.signature(primitive).parameters.values()
                 if p.kind is p.POSITIONAL_OR_KEYWORD][1:]
        yield f"## {name}({', '.join(given)})\n\n{inspect.getdoc(primitive)}\n"


_HEAD = """\
# The vocabulary of schedules

Written by `scripts/schedules.py` from the primitives of `hlo_mlc/schedule/`; a test holds it to
that.

A schedule starts from naive loops (`loops/lower.py`) and rewrites them step by step. Each primitive
computes the same before and after, or refuses with a reason. A name addresses every loop of that
name, so that copies are rewritten together. `HLO_MLC_DUMP=folder` writes the loops after every step
(`50-….schedule.txt`), for the templates that are schedules.
"""


if __name__ == "__main__":
    PAGE.write_text(page())
