"""Shared libraries: an object file linked by the system's own linker."""

from __future__ import annotations

import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

from hlo_mlc.support.errors import RuntimeLibraryError, UsageError


def shared_library(name: str, code: bytes, architecture: str) -> bytes:
    """A library of one object file.

    Raises: UsageError without a linker for the architecture, RuntimeLibraryError where it fails.
    """
    compiler = _compiler(architecture)
    with tempfile.TemporaryDirectory(prefix="hlo_mlc_") as folder:
        objects, library = (Path(folder) / n for n in ("code.o", name))
        objects.write_bytes(code)
        ran = subprocess.run(
            [
                compiler,
                "-shared",
                "-o",
                library,
                objects,
                f"-Wl,-soname,{name}",
                "-Wl,-z,noexecstack",
                "-Wl,-z,text",
            ],
            capture_output=True,
            text=True,
        )
        if ran.returncode:
            last = (ran.stderr.strip().splitlines() or ["no reason given"])[-1]
            raise RuntimeLibraryError(f"{compiler} cannot link {name}: {last}")
        return library.read_bytes()


def _compiler(architecture: str) -> str:
    """A compiler that calls the linker for this architecture."""
    names = [f"{architecture}-linux-gnu-gcc"]
    if architecture == platform.machine():
        names = ["cc", "gcc", "clang", *names]
    for name in names:
        found = shutil.which(name)
        if found:
            return found
    raise UsageError(
        f"A shared library takes a linker for {architecture}: install {names[-1]}, or "
        "export a static library (a path that ends in .a)"
    )
