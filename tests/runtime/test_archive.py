"""Files of several parts: whole, or an error that says what is wrong."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from hlo_mlc.runtime.archive import MAGIC, Archive, is_archive, read_archive, write_archive
from hlo_mlc.support.errors import ArchiveError, UsageError

ARCHIVE = Archive({"a": [1, "b", None]}, {"x": b"123", "y": b"", "z": bytes(100)})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "file"


def test_round_trip(path: Path) -> None:
    size = write_archive(path, ARCHIVE)
    assert path.stat().st_size == size and is_archive(path)
    found = read_archive(path)
    assert found.description == ARCHIVE.description
    assert {n: bytes(b) for n, b in found.blocks.items()} == ARCHIVE.blocks
    assert [p.name for p in path.parent.iterdir()] == ["file"]


def test_every_bit(path: Path) -> None:
    write_archive(path, ARCHIVE)
    content = path.read_bytes()
    for position in range(len(content)):
        for bit in (1, 128):
            path.write_bytes(
                content[:position] + bytes([content[position] ^ bit]) + content[position + 1 :]
            )
            with pytest.raises(ArchiveError):
                read_archive(path)


def test_every_length(path: Path) -> None:
    write_archive(path, ARCHIVE)
    content = path.read_bytes()
    for size in range(len(content)):
        path.write_bytes(content[:size])
        with pytest.raises(ArchiveError):
            read_archive(path)
    path.write_bytes(content + b"\0")
    with pytest.raises(ArchiveError):
        read_archive(path)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xff" * 8,
        (3).to_bytes(8, "little") + b"[] ",
        (2).to_bytes(8, "little") + b"{}",
        (1 << 63).to_bytes(8, "little") + b"{}",
        b'\x3f\0\0\0\0\0\0\0{"blocks": {"x": [0, 999]}, "description": {"entries": 1}}  ',
    ],
)
def test_a_right_digest_of_nonsense(path: Path, body: bytes) -> None:
    path.write_bytes(MAGIC + hashlib.sha256(body).digest() + body)
    with pytest.raises(ArchiveError, match="is malformed"):
        read_archive(path)


def test_other_files(path: Path) -> None:
    assert not is_archive(path) and not is_archive(path.parent)
    with pytest.raises(UsageError, match="Cannot read"):
        read_archive(path)
    path.write_text("text")
    with pytest.raises(ArchiveError, match="no file of exported functions"):
        read_archive(path)
    with pytest.raises(UsageError, match="Cannot write"):
        write_archive(path.parent / "no" / "file", ARCHIVE)
