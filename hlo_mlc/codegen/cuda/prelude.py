"""The device functions that a kernel needs, out of prelude.cuh."""

from __future__ import annotations

import functools
import re
from pathlib import Path

_DEFINED = re.compile(
    r"^struct alignas\(.*\) (\w+) \{$|^__device__ inline .*?\b(mlc_\w+)\(", re.MULTILINE
)
_NAME = re.compile(r"\bmlc_\w+|\bVector\b")


@functools.cache
def _chunks() -> dict[str, frozenset[str]]:
    """Each piece of the file, in its order, and the names that it defines."""
    text = (Path(__file__).parent / "prelude.cuh").read_text()
    pieces = [piece.strip() for piece in text.split("\n\n")[1:]]  # the first describes the file
    return {piece: frozenset(m[1] or m[2] for m in _DEFINED.finditer(piece)) for piece in pieces}


def needed_by(code: str) -> str:
    """The definitions of all names of the prelude that `code` uses; no piece uses another."""
    used = set(_NAME.findall(code))
    return "".join(f"{piece}\n\n" for piece, names in _chunks().items() if names & used)
