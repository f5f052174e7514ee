"""Writes docs/schedules.md: the primitives that schedules are made of, as their docstrings say,
behind what is in schedules.md.in.

Usage: python scripts/schedules.py
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path

from hlo_mlc.schedule.core import PRIMITIVES
from hlo_mlc_bench.script import arguments

HEAD = Path(__file__).resolve().with_name("schedules.md.in")
PAGE = HEAD.parent.parent / "docs" / "schedules.md"


def page() -> str:
    """The whole page."""
    index = ", ".join(f"[{name}](#{_anchor(_heading(name))})" for name in PRIMITIVES)
    return "\n".join([HEAD.read_text().replace("@PRIMITIVES@", f"{index}."), *_sections()])


def _heading(name: str) -> str:
    """How a primitive is called."""
    given = [
        str(p).partition(":")[0] + (f"={p.default!r}" if p.default is not p.empty else "")
        for p in inspect.signature(PRIMITIVES[name]).parameters.values()
        if p.kind is p.POSITIONAL_OR_KEYWORD
    ][1:]
    return f"{name}({', '.join(given)})"


def _anchor(heading: str) -> str:
    """What links to a heading say, as GitHub makes it."""
    return re.sub(r"[^\w -]", "", heading).replace(" ", "-").lower()


def _sections() -> Iterator[str]:
    for name, primitive in PRIMITIVES.items():
        yield f"## {_heading(name)}\n\n{inspect.getdoc(primitive)}\n"


if __name__ == "__main__":
    arguments(__doc__, most=0)
    PAGE.write_text(page())
