"""Writes docs/schedules.md: the primitives that schedules are made of, as their docstrings say,
behind what is in schedules.md.in.

Usage: python scripts/schedules.py
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path

from hlo_mlc.schedule.core import PRIMITIVES

HEAD = Path(__file__).resolve().with_name("schedules.md.in")
PAGE = HEAD.parent.parent / "docs" / "schedules.md"


def page() -> str:
    """The whole page."""
    return "\n".join([HEAD.read_text(), *_sections()])


def _sections() -> Iterator[str]:
    for name, primitive in PRIMITIVES.items():
        given = [str(p).partition(":")[0] + (f"={p.default!r}" if p.default is not p.empty else "")
                 for p in inspect.signature(primitive).parameters.values()
                 if p.kind is p.POSITIONAL_OR_KEYWORD][1:]
        yield f"## {name}({', '.join(given)})\n\n{inspect.getdoc(primitive)}\n"


if __name__ == "__main__":
    PAGE.write_text(page())
