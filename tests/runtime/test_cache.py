"""The object cache: what comes back, what is removed, and who may share a folder."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from hlo_mlc.runtime.cache import ObjectCache
from hlo_mlc.support.errors import CacheError, UsageError


def key_of(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()


def file_of(cache: ObjectCache, key: str) -> Path:
    (path,) = [path for path in cache.folder.glob("*/*") if path.parent.name + path.name == key]
    return path


@pytest.fixture
def cache(tmp_path):
    return ObjectCache(tmp_path / "deep" / "cache")


def test_what_was_put_comes_back(cache):
    data = bytes(range(256)) * 100
    assert cache.get(key_of("a")) is None
    cache.put(key_of("a"), data)
    cache.put(key_of("empty"), b"")
    assert cache.get(key_of("a")) == data
    assert cache.get(key_of("empty")) == b""
    assert ObjectCache(cache.folder).get(key_of("a")) == data
    cache.put(key_of("a"), b"other")
    assert cache.get(key_of("a")) == b"other"


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: b"",
        lambda content: content[:20],
        lambda content: content[:-1],
        lambda content: content + b"x",
        lambda content: content[:-1] + bytes([content[-1] ^ 1]),
        lambda content: b"X" + content[1:],
        lambda content: content[:20] + bytes([content[20] ^ 1]) + content[21:],
    ],
    ids=["empty", "header cut", "cut", "longer", "bit in data", "magic", "bit in digest"],
)
def test_a_damaged_entry_is_removed_with_one_warning(cache, damage):
    cache.put(key_of("a"), b"some object")
    path = file_of(cache, key_of("a"))
    path.write_bytes(damage(path.read_bytes()))
    with pytest.warns(RuntimeWarning, match="damaged") as caught:
        assert cache.get(key_of("a")) is None
    assert len(caught) == 1
    assert not path.exists()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert cache.get(key_of("a")) is None
        cache.put(key_of("a"), b"again")
        assert cache.get(key_of("a")) == b"again"


def test_an_entry_under_the_name_of_another_is_damaged(cache):
    cache.put(key_of("a"), b"object of a")
    cache.put(key_of("b"), b"object of b")
    file_of(cache, key_of("a")).replace(file_of(cache, key_of("b")))
    with pytest.warns(RuntimeWarning, match="damaged"):
        assert cache.get(key_of("b")) is None


def test_entries_verify_and_clear(cache):
    for name in "abc":
        cache.put(key_of(name), name.encode())
    path = file_of(cache, key_of("b"))
    path.write_bytes(path.read_bytes()[:-1])
    (cache.folder / "notes.txt").write_text("not ours")
    assert {entry.key for entry in cache.entries()} == {key_of(name) for name in "abc"}
    assert cache.verify() == [key_of("b")]
    assert cache.verify() == []
    assert {entry.key for entry in cache.entries()} == {key_of("a"), key_of("c")}
    assert cache.clear() == 2
    assert cache.entries() == []
    assert cache.get(key_of("a")) is None


def test_the_least_recently_used_go_first(tmp_path):
    cache = ObjectCache(tmp_path, limit_bytes=10_000)
    for age, name in enumerate("abcd"):
        cache.put(key_of(name), bytes(2000))
        os.utime(file_of(cache, key_of(name)), (1000 + age, 1000 + age))
    assert cache.get(key_of("a")) is not None  # used: now the youngest
    cache.put(key_of("e"), bytes(2000))
    assert {entry.key for entry in cache.entries()} == {key_of(name) for name in "acde"}
    assert sum(entry.size_bytes for entry in cache.entries()) <= 10_000


def test_what_killed_writers_left_is_removed(cache):
    cache.put(key_of("a"), b"object")
    abandoned = file_of(cache, key_of("a")).parent / ".writing-old"
    abandoned.write_bytes(b"half an obj")
    os.utime(abandoned, (0, 0))
    ObjectCache(cache.folder).put(key_of("b"), b"object")
    assert not abandoned.exists()
    assert len(cache.entries()) == 2


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CacheError, match=r"file/cache cannot be written.*Set HLO_MLC_CACHE"):
        ObjectCache(tmp_path / "file" / "cache")


def test_a_write_that_fails_only_warns(cache):
    cache.put(key_of("a"), b"object")
    file_of(cache, key_of("a")).parent.rename(cache.folder / "moved")
    (cache.folder / key_of("a")[:2]).write_text("in the way")
    with pytest.warns(RuntimeWarning, match="cannot write"):
        cache.put(key_of("a"), b"object")


@pytest.mark.parametrize("key", ["", "abc", "../../../etc/passwd", "A" * 64, "g" * 64])
def test_keys_that_are_no_hashes_are_refused(cache, key):
    with pytest.raises(UsageError, match="hexadecimal"):
        cache.get(key)


WRITER = """
import sys, warnings
from pathlib import Path
sys.path.insert(0, sys.argv[3])
from hlo_mlc.runtime.cache import ObjectCache
warnings.simplefilter("error")
cache = ObjectCache(sys.argv[1], limit_bytes=200_000)
for round in range(60):
    for number in range(12):
        key = f"{number:064x}"
        data = cache.get(key)
        assert data is None or (len(data) > 20_000 and len(set(data)) == 1), "torn entry"
        cache.put(key, bytes([int(sys.argv[2])]) * (20_001 + round))
"""


def test_concurrent_processes(tmp_path):
    root = str(Path(__file__).parents[2])
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path), str(number), root],
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(2)
    ]
    errors = [writer.communicate()[1] for writer in writers]
    assert [writer.returncode for writer in writers] == [0, 0], errors
    assert ObjectCache(tmp_path).verify() == []
    assert list(tmp_path.glob("**/.writing-*")) == []
