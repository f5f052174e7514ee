"""A cache of compiled objects on disk that survives crashes, damage and concurrent processes."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import re
import struct
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hlo_mlc.runtime.files import TEMPORARY_PREFIX, write_whole
from hlo_mlc.support.errors import CacheError, UsageError
from hlo_mlc.support.options import Options
from hlo_mlc.support.warning import warn

DEFAULT_LIMIT_BYTES = 1 << 30

_MAGIC = b"HLOMLC\x00\x01"
_HEADER = struct.Struct("<8sQ32s")  # magic, length of the data, SHA-256 of key and data
_KEY = re.compile(r"[0-9a-f]{16,128}")
# A writer needs milliseconds: what is this old was left behind by one that was killed.
_TEMPORARY_LIFETIME_S = 3600
# Evicting down to less than the limit lets many entries come before the next eviction.
_KEPT_SHARE = 0.9
# A process knows what it wrote itself, and looks at what others did after this share of the limit.
_UNSEEN_SHARE = 1 / 16


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """One cached object: its key, its size on disk, and when it was last written or read."""

    key: str
    size_bytes: int
    used_at: float


class ObjectCache:
    """Objects by key (the lower-case hexadecimal hash of what they were made from) in a folder.

    A file appears under its name only when it is complete, and is checked when it is read; a
    damaged one is removed and counts as absent. When the files take more than `limit_bytes`, those
    that were used least recently go. Any number of threads and processes may share a folder.

    A folder that cannot be created or written is a warning: what can be read there is read, and
    nothing is kept.
    """

    def __init__(self, folder: Path | str, limit_bytes: int = DEFAULT_LIMIT_BYTES) -> None:
        self._folder = Path(folder)
        self._limit_bytes = limit_bytes
        self._lock = threading.Lock()
        self._size_bytes = 0  # when the folder was last looked at, and what was written since
        self._unseen_bytes: int | None = None  # written since; None before the first look
        self._problem, self._is_told = "", False
        self._is_empty = True  # when it was last looked at
        try:
            # Objects are code that will be run: nobody else may put any here.
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with tempfile.TemporaryFile(prefix=TEMPORARY_PREFIX, dir=self._folder):
                pass
        except OSError as error:
            self._problem = (
                f"The cache folder {self._folder} cannot be written: {error.strerror or error}. "
                f"Set HLO_MLC_CACHE to a folder that can."
            )

    @property
    def folder(self) -> Path:
        """Where the objects lie."""
        return self._folder

    def check_writable(self) -> None:
        """Makes sure that the folder could be written when it was opened.

        Raises: CacheError when it could not.
        """
        if self._problem:
            raise CacheError(self._problem)

    def get(self, key: str) -> bytes | None:
        """The object that was put under `key`, or None if it is absent or damaged."""
        path = self._path(key)
        try:
            content = path.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            self._warn(f"cannot read {path} ({error}); compiling again")
            return None
        data = _unpack(key, content)
        if data is None:
            done = "removed it" if _remove(path) else "cannot remove it"
            self._warn(f"{path} is damaged; {done}, compiling again")
            return None
        with contextlib.suppress(OSError):
            os.utime(path)
        return data

    def is_empty(self) -> bool:
        """Whether no object has been put here yet: nobody needs a key then to ask for one."""
        if self._is_empty:
            with contextlib.suppress(OSError):
                self._is_empty = next(self._files(), None) is None
        return self._is_empty

    def beginning(self, key: str, size: int) -> bytes:
        """The first bytes of an object, unchecked, for whoever only wants to show what it is: it
        does not count as used. Empty where there is none."""
        with contextlib.suppress(OSError), self._path(key).open("rb") as file:
            file.seek(_HEADER.size)
            return file.read(size)
        return b""

    def put(self, key: str, data: bytes) -> None:
        """Keeps `data` under `key`; only warns if it cannot, since a cache is no condition."""
        path = self._path(key)
        if self._problem:
            if not self._is_told:  # or each line that has something compiled would be
                self._is_told = True
                self._warn(f"{self._problem} Until then each process compiles its kernels again.")
            return
        header = _HEADER.pack(_MAGIC, len(data), _digest(key, data))
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_whole(path, [header, data])
        except OSError as error:
            # Without the file's name, so that Python shows one warning and not one for each kernel.
            self._warn(
                f"cannot write in {self._folder} ({error.strerror or error}); going on without"
            )
            return
        self._account(len(header) + len(data))

    def entries(self) -> list[CacheEntry]:
        """Every object in the folder, the least recently used first."""
        found = []
        if not self._folder.is_dir():
            return found
        for path in self._files():
            with contextlib.suppress(FileNotFoundError):
                status = path.stat()
                key = path.parent.name + path.name
                found.append(CacheEntry(key, status.st_size, status.st_mtime))
        return sorted(found, key=lambda entry: (entry.used_at, entry.key))

    def verify(self) -> list[str]:
        """Checks every object and removes the damaged ones; returns their keys."""
        damaged = []
        for entry in self.entries():
            path = self._path(entry.key)
            with contextlib.suppress(FileNotFoundError):
                if _unpack(entry.key, path.read_bytes()) is None:
                    damaged.append(entry.key)
                    _remove(path)
        return damaged

    def clear(self) -> int:
        """Removes every object; returns how many there were."""
        with self._lock:
            self._unseen_bytes = None
        return sum(_remove(self._path(entry.key)) for entry in self.entries())

    def _path(self, key: str) -> Path:
        if not _KEY.fullmatch(key):
            raise UsageError(
                f"A cache key is a lower-case hexadecimal hash of 16 to 128 digits, not {key!r}"
            )
        return self._folder / key[:2] / key[2:]

    def _files(self) -> Iterator[Path]:
        for folder in self._folder.iterdir():
            if len(folder.name) != 2 or not folder.is_dir():
                continue
            for path in folder.iterdir():
                if _KEY.fullmatch(folder.name + path.name):
                    yield path

    def _account(self, written_bytes: int) -> None:
        """Adds to the known size, and makes room when that passes the limit."""
        with self._lock:
            if self._unseen_bytes is not None:
                self._size_bytes += written_bytes
                self._unseen_bytes += written_bytes
                seen = self._unseen_bytes <= self._limit_bytes * _UNSEEN_SHARE
                if seen and self._size_bytes <= self._limit_bytes:
                    return
            entries = self.entries()
            size = sum(entry.size_bytes for entry in entries)
            if size > self._limit_bytes:
                for entry in entries:
                    _remove(self._path(entry.key))
                    size -= entry.size_bytes
                    if size <= self._limit_bytes * _KEPT_SHARE:
                        break
            self._size_bytes, self._unseen_bytes = size, 0
            self._remove_abandoned()

    def _remove_abandoned(self) -> None:
        deadline = time.time() - _TEMPORARY_LIFETIME_S
        for path in self._folder.glob(f"??/{TEMPORARY_PREFIX}*"):
            with contextlib.suppress(OSError):
                if path.stat().st_mtime < deadline:
                    path.unlink()

    def _warn(self, message: str) -> None:
        warn(f"hlo_mlc cache: {message}")


def object_cache(options: Options) -> ObjectCache:
    """The cache of compiled kernels that these options ask for: one per folder and process, so that
    not every compilation has to look at the whole folder."""
    return _opened(options.cache_dir / "objects", options.cache_limit_mib << 20)


_opened = functools.cache(ObjectCache)


def _digest(key: str, data: bytes) -> bytes:
    digest = hashlib.sha256(key.encode() + b"\0")
    digest.update(data)
    return digest.digest()


def _unpack(key: str, content: bytes) -> bytes | None:
    """The data of a cache file, or None if anything about it is wrong."""
    if len(content) < _HEADER.size:
        return None
    magic, length, digest = _HEADER.unpack_from(content)
    data = content[_HEADER.size :]
    if magic != _MAGIC or length != len(data) or digest != _digest(key, data):
        return None
    return data


def _remove(path: Path) -> bool:
    try:
        path.unlink()
    except OSError:
        return False
    return True
