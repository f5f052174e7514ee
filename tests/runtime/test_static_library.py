"""Static libraries, as the system's own tools read them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from hlo_mlc.runtime.static_library import Member, static_library

MEMBERS = [
    Member("first.o", "one", b"odd"),
    Member("second_long.o", "two", b"even"),
    Member("third.o", "three", b""),
]


def test_parts_are_where_the_index_says() -> None:
    content = static_library(MEMBERS)
    assert content.startswith(b"!<arch>\n/ ")
    index = content[68:]
    assert int.from_bytes(index[:4], "big") == 3
    names = index[16:].split(b"\0")[:3]
    for n, (member, name) in enumerate(zip(MEMBERS, names, strict=True)):
        offset = int.from_bytes(index[4 + 4 * n : 8 + 4 * n], "big")
        assert name == member.symbol.encode() and offset % 2 == 0
        assert content[offset : offset + 16].rstrip() == f"{member.name}/".encode()
        assert content[offset + 60 : offset + 60 + len(member.code)] == member.code


def test_equal_parts_give_equal_libraries() -> None:
    assert static_library(MEMBERS) == static_library(list(MEMBERS))


@pytest.mark.skipif(shutil.which("ar") is None, reason="there is no ar")
def test_ar_takes_it_apart(tmp_path: Path) -> None:
    (tmp_path / "x.a").write_bytes(static_library(MEMBERS))
    listed = subprocess.run(["ar", "t", "x.a"], cwd=tmp_path, check=True, capture_output=True)
    assert listed.stdout.decode().split() == [member.name for member in MEMBERS]
    subprocess.run(["ar", "x", "x.a"], cwd=tmp_path, check=True)
    assert [(tmp_path / m.name).read_bytes() for m in MEMBERS] == [m.code for m in MEMBERS]
