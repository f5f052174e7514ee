"""Bytes with a description of what they are in front of them."""

from __future__ import annotations

import json
import struct
from typing import Any

_LENGTH = struct.Struct("<Q")  # of the description


def described(about: object, content: bytes = b"") -> bytes:
    """A description, which JSON can hold, and some bytes behind it."""
    text = json.dumps(about).encode()
    return b"".join((_LENGTH.pack(len(text)), text, content))


def taken_apart(data: bytes | memoryview, begin: int = 0) -> tuple[Any, int]:
    """The description that begins there, and where it ends."""
    (length,) = _LENGTH.unpack_from(data, begin)
    begin += _LENGTH.size
    return json.loads(bytes(data[begin : begin + length])), begin + length
