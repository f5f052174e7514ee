"""Files of several parts: a description in JSON, and named blocks of bytes.

    magic, SHA-256 of all that follows | length of the description | description | blocks

The digest tells damage apart from the file that was written, not friend from foe: whoever can write
a file can write its digest.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hlo_mlc.runtime.files import PUBLIC, write_whole
from hlo_mlc.support.described import described, taken_apart
from hlo_mlc.support.errors import ArchiveError, UsageError

MAGIC = b"HLOMLCX\x01"
FORMAT = 1
"""The version of the description of exported functions (interop/export.py): here, since to load a
file takes no compiler."""

_DIGEST_BYTES = 32
_ALIGNMENT = 64  # of blocks, so that arrays in them can be used where they lie
_START = len(MAGIC) + _DIGEST_BYTES


@dataclass(frozen=True, slots=True)
class Archive:
    """What a file holds."""

    description: Mapping[str, Any]  # what JSON can hold
    blocks: Mapping[str, bytes | memoryview]


def is_archive(path: Path) -> bool:
    """Whether a file says that it is one."""
    try:
        with open(path, "rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def write_archive(path: Path, archive: Archive) -> int:
    """Writes a file, which is there as a whole or not at all; returns its size in bytes.

    Raises: UsageError where it cannot be written.
    """
    places, offset = {}, 0
    for name, block in archive.blocks.items():
        places[name] = (offset, len(block))
        offset += -(-len(block) // _ALIGNMENT) * _ALIGNMENT
    head = described({"blocks": places, "description": archive.description})
    parts = [head, bytes(-(_START + len(head)) % _ALIGNMENT)]
    for block in archive.blocks.values():
        parts += [block, bytes(-len(block) % _ALIGNMENT)]
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    try:
        write_whole(path, [MAGIC, digest.digest(), *parts], PUBLIC)
    except OSError as error:
        raise UsageError(f"Cannot write {path}: {error.strerror or error}") from error
    return _START + sum(map(len, parts))


def read_archive(path: Path) -> Archive:
    """What a file holds, checked.

    Raises: ArchiveError for a file that is not whole or not one of these, UsageError for one that
    cannot be read.
    """
    try:
        data = memoryview(path.read_bytes())
    except OSError as error:
        raise UsageError(f"Cannot read {path}: {error.strerror or error}") from error
    if bytes(data[: len(MAGIC)]) != MAGIC:
        raise ArchiveError(
            f"{path} is no file of exported functions, or was written by another version of hlo_mlc"
        )
    rest = data[_START:]
    if hashlib.sha256(rest).digest() != data[len(MAGIC) : _START]:
        raise ArchiveError(
            f"{path} is damaged: its digest does not match. Export it again, or copy it again"
        )
    try:
        content, end = taken_apart(rest)
        first = _START + end
        first += -first % _ALIGNMENT
        blocks = {}
        for name, (offset, size) in content["blocks"].items():
            blocks[name] = data[first + offset : first + offset + size]
            if offset < 0 or len(blocks[name]) != size:
                raise ValueError(f"block {name!r} lies outside of the file")
        return Archive(content["description"], blocks)
    except (ValueError, KeyError, TypeError, AttributeError, struct.error) as error:
        raise ArchiveError(f"{path} is malformed: {error}") from error
