"""Static libraries: object files in one archive that linkers read, written without any tool."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

_MAGIC = b"!<arch>\n"
_WORD = struct.Struct(">I")


@dataclass(frozen=True, slots=True)
class Member:
    """An object file, and the symbol that it is looked up by."""

    name: str  # at most 15 characters
    symbol: str
    code: bytes


def static_library(members: Sequence[Member]) -> bytes:
    """The archive, with the index of symbols that linkers want first.

    Source: System V and GNU variants of ar(5).
    """
    names = b"".join(member.symbol.encode() + b"\0" for member in members)
    index_size = _WORD.size * (1 + len(members)) + len(names)
    offset = len(_MAGIC) + len(_entry("/", bytes(index_size)))
    places, bodies = [], []
    for member in members:
        places.append(_WORD.pack(offset))
        bodies.append(_entry(f"{member.name}/", member.code))
        offset += len(bodies[-1])
    index = _WORD.pack(len(members)) + b"".join(places) + names
    return _MAGIC + _entry("/", index) + b"".join(bodies)


def _entry(name: str, content: bytes) -> bytes:
    """A header of 60 characters (no time and no owner: equal parts give equal archives), and the
    content, padded to an even length."""
    assert len(name) <= 16, name
    header = f"{name:<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{len(content):<10}`\n".encode()
    return header + content + b"\n" * (len(content) % 2)
