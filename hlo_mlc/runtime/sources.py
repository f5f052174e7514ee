"""What makes code, as a hash: a change in any of it makes other objects."""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

from hlo_mlc.runtime.notes import read_note, write_note
from hlo_mlc.support.versions import version

_GENERATORS = ("target", "expr", "tensor", "loops", "schedule", "templates", "codegen")


@functools.cache
def generators_digest(cache_dir: Path) -> str:
    """The hash of the sources that make code. Reading all of them takes a tenth of a small first
    call, so it is noted for files that nobody has touched since."""
    package, paths = os.path.dirname(os.path.dirname(__file__)), []
    # Without Path, which takes twice as long for each of 160 files as reading them.
    for folder in _GENERATORS:
        for where, folders, names in os.walk(os.path.join(package, folder)):
            folders.sort()
            paths += [os.path.join(where, name) for name in sorted(names) if name.endswith(".py")]
    states = [
        (path, s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns)
        for path, s in zip(paths, map(os.stat, paths), strict=True)
    ]
    state = hashlib.sha256(repr((version("llvmlite"), states)).encode()).hexdigest()
    place = hashlib.sha256(package.encode()).hexdigest()[:16]
    noted = read_note(path := cache_dir / f"sources-{place}.json") or {}
    if noted.get("state") == state:
        return str(noted.get("digest"))
    digest = _digest_of(package, paths)
    if os.access(cache_dir, os.W_OK):  # or else the cache of objects says it
        write_note(path, {"state": state, "digest": digest})
    return digest


def _digest_of(package: str, paths: Iterable[str]) -> str:
    digest = hashlib.sha256(version("llvmlite").encode())
    for path in paths:
        digest.update(f"\0{path[len(package) :]}\0".encode())
        with open(path, "rb", buffering=0) as source:
            digest.update(source.read())
    return digest.hexdigest()
