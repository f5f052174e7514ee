"""What makes code, and what decides which, as hashes: a change in any of it makes other objects."""

from __future__ import annotations

import functools
import hashlib
import os
import time
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path

from hlo_mlc.runtime.notes import read_note, write_note
from hlo_mlc.support.lazy_imports import loaded_late
from hlo_mlc.support.versions import version

_GENERATORS = ("target", "expr", "tensor", "loops", "schedule", "templates", "codegen")
_IMPORTED_NS = time.time_ns()


def generators_digest(cache_dir: Path) -> str:
    """The hash of the sources that make code of kernels."""
    return _digests(cache_dir, loaded_late())[0]


def package_digest(cache_dir: Path) -> str:
    """The hash of all files of the package."""
    return _digests(cache_dir, loaded_late())[1]


@functools.cache
def _digests(cache_dir: Path, loaded: int) -> tuple[str, str]:
    """Both. Reading all of them takes a tenth of a small first call, so it is noted for files that
    nobody has touched since. Where somebody has since this process began, what runs may be older,
    or of two ages: it is nobody else's.  That is asked again when more is `loaded`."""
    package = os.path.dirname(os.path.dirname(__file__))
    files = dict(sorted(_files(package)))
    if any(status.st_ctime_ns > _IMPORTED_NS for status in files.values()):
        return uuid.uuid4().hex, uuid.uuid4().hex
    states = [
        (path, s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns) for path, s in files.items()
    ]
    state = hashlib.sha256(repr((version("llvmlite"), states)).encode()).hexdigest()
    place = hashlib.sha256(package.encode()).hexdigest()[:16]
    noted = read_note(path := cache_dir / f"sources-{place}.json") or {}
    if noted.get("state") == state:
        return str(noted.get("generators")), str(noted.get("package"))
    folders = tuple(os.path.join(package, folder, "") for folder in _GENERATORS)
    makers = [file for file in files if file.startswith(folders) and file.endswith(".py")]
    generators = _digest_of(package, makers, version("llvmlite"))
    found = generators, _digest_of(package, sorted(files.keys() - set(makers)), generators)
    if cache_dir.is_dir() and os.access(cache_dir, os.W_OK):  # or else the cache of objects says it
        write_note(
            path, {"state": state, **dict(zip(("generators", "package"), found, strict=True))}
        )
    return found


def _files(folder: str) -> Iterator[tuple[str, os.stat_result]]:
    """Without Path, which takes twice as long for each of 400 files as reading them."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_file():
                yield entry.path, entry.stat()
            elif entry.is_dir() and entry.name != "__pycache__":
                yield from _files(entry.path)


def _digest_of(package: str, paths: Iterable[str], beside: str) -> str:
    digest = hashlib.sha256(beside.encode())
    for path in paths:
        digest.update(f"\0{path[len(package) :]}\0".encode())
        descriptor = os.open(path, os.O_RDONLY)  # a file object takes as long again
        try:
            while part := os.read(descriptor, 1 << 20):
                digest.update(part)
        finally:
            os.close(descriptor)
    return digest.hexdigest()
