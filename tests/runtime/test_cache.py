"""The object cache: what comes back, what is removed, and who may share a folder."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import tempfile
import warnings
from pathlib import Path

import pytest

from hlo_mlc.runtime.cache import ObjectCache, object_cache
from hlo_mlc.support.errors import CacheError, UsageError
from hlo_mlc.support.options import Options


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


def test_no_byte_can_change_unnoticed(cache):
    """Every byte of a file in turn, with one bit of it or all; and every length."""
    data = b"machine code"
    cache.put(key_of("a"), data)
    path = file_of(cache, key_of("a"))
    whole = path.read_bytes()
    damaged = [whole[:length] for length in range(len(whole))]
    for position, byte in enumerate(whole):
        for flip in (1 << position % 8, 0xFF):
            damaged.append(whole[:position] + bytes([byte ^ flip]) + whole[position + 1 :])
    for content in damaged:
        path.write_bytes(content)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert cache.get(key_of("a")) is None
    path.write_bytes(whole)
    assert cache.get(key_of("a")) == data


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


def test_what_other_processes_write_counts(tmp_path):
    """Two that know nothing of each other: neither has written as much as the limit."""
    one, other = (ObjectCache(tmp_path, limit_bytes=100_000) for _ in range(2))
    for number in range(80):
        writer = one if number % 2 else other
        writer.put(key_of(str(number)), bytes(2000))
        assert sum(entry.size_bytes for entry in one.entries()) <= 100_000 * (1 + 3 / 16)
    assert one.get(key_of("79")) is not None
    assert one.get(key_of("0")) is None


def test_an_object_above_the_limit_is_not_kept(tmp_path):
    cache = ObjectCache(tmp_path, limit_bytes=1000)
    cache.put(key_of("a"), bytes(2000))
    assert cache.entries() == []
    cache.put(key_of("b"), bytes(500))
    assert cache.get(key_of("b")) == bytes(500)


def test_what_killed_writers_left_is_removed(cache):
    cache.put(key_of("a"), b"object")
    abandoned = file_of(cache, key_of("a")).parent / ".writing-old"
    abandoned.write_bytes(b"half an obj")
    os.utime(abandoned, (0, 0))
    ObjectCache(cache.folder).put(key_of("b"), b"object")
    assert not abandoned.exists()
    assert len(cache.entries()) == 2


def test_a_folder_that_cannot_be_made_keeps_nothing(tmp_path):
    (tmp_path / "file").write_text("")
    cache = ObjectCache(tmp_path / "file" / "cache")
    with pytest.raises(CacheError, match=r"file/cache cannot be written.*Set HLO_MLC_CACHE"):
        cache.check_writable()
    assert cache.get(key_of("a")) is None
    with pytest.warns(RuntimeWarning, match=r"file/cache cannot be written") as caught:
        cache.put(key_of("a"), b"object")
        cache.put(key_of("b"), b"object")
    assert len(caught) == 1, "it is said once, not of every kernel"
    assert cache.get(key_of("a")) is None
    assert cache.entries() == []
    assert cache.verify() == []
    assert cache.clear() == 0


def test_a_folder_that_cannot_be_written_is_read(cache, monkeypatch):
    cache.put(key_of("a"), b"object of a")
    cache.put(key_of("b"), b"object of b")
    damaged = file_of(cache, key_of("b"))
    damaged.write_bytes(damaged.read_bytes()[:-1])

    def refuse(*_, **__):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    for module, name in (
        (tempfile, "TemporaryFile"),
        (tempfile, "mkstemp"),
        (os, "utime"),
        (Path, "unlink"),
    ):
        monkeypatch.setattr(module, name, refuse)
    frozen = ObjectCache(cache.folder)
    with pytest.raises(CacheError, match="Read-only file system"):
        frozen.check_writable()
    assert frozen.get(key_of("a")) == b"object of a"
    with pytest.warns(RuntimeWarning, match="damaged; cannot remove it"):
        assert frozen.get(key_of("b")) is None
    with pytest.warns(RuntimeWarning, match="Read-only file system"):
        frozen.put(key_of("c"), b"object of c")
    assert frozen.get(key_of("c")) is None


def test_a_write_that_fails_only_warns(cache):
    cache.put(key_of("a"), b"object")
    file_of(cache, key_of("a")).parent.rename(cache.folder / "moved")
    (cache.folder / key_of("a")[:2]).write_text("in the way")
    with pytest.warns(RuntimeWarning, match="cannot write"):
        cache.put(key_of("a"), b"object")


@pytest.mark.parametrize("written", [0, 1, 47, 48, 60])
@pytest.mark.parametrize("failing", ["write", "close"])
def test_a_full_disk_leaves_nothing_behind(cache, monkeypatch, written, failing):
    cache.put(key_of("a"), b"object of a")
    fdopen = os.fdopen

    class FullDisk:
        """A file on a disk that takes so many bytes and no more; some notice when closing."""

        def __init__(self, file):
            self.file, self.left = file, written

        def __enter__(self):
            return self

        def __exit__(self, *error):
            self.file.close()
            if error[0] is None:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        def write(self, data):
            self.file.write(data[: self.left])
            self.left = max(0, self.left - len(data))
            if failing == "write" and not self.left:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fdopen", lambda *args: FullDisk(fdopen(*args)))
    for key in (key_of("a"), key_of("b")):
        with pytest.warns(RuntimeWarning, match="No space left on device"):
            cache.put(key, b"another object")
    monkeypatch.undo()
    assert cache.get(key_of("a")) == b"object of a"
    assert cache.get(key_of("b")) is None
    assert list(cache.folder.glob("**/.writing-*")) == []


def test_a_folder_that_is_removed_is_made_again(cache):
    cache.put(key_of("a"), b"object of a")
    shutil.rmtree(cache.folder)
    assert cache.get(key_of("a")) is None
    assert cache.entries() == []
    cache.put(key_of("a"), b"again")
    assert cache.get(key_of("a")) == b"again"


def test_it_is_empty_until_somebody_puts_something_there(cache):
    other = ObjectCache(cache.folder)
    assert cache.is_empty()
    other.put(key_of("a"), b"object of a")
    assert not cache.is_empty()
    assert not ObjectCache(cache.folder).is_empty()
    assert ObjectCache(cache.folder / "absent" / "below").is_empty()


def test_options_name_one_cache_per_process(tmp_path):
    options = Options(cache_dir=tmp_path)
    assert object_cache(options) is object_cache(Options(cache_dir=tmp_path, debug=1))
    assert object_cache(options) is not object_cache(options.replace(cache_limit_mib=2))
    assert object_cache(options).folder == tmp_path / "objects"


@pytest.mark.parametrize("key", ["", "abc", "../../../etc/passwd", "A" * 64, "g" * 64])
def test_keys_that_are_no_hashes_are_refused(cache, key):
    with pytest.raises(UsageError, match="hexadecimal"):
        cache.get(key)
