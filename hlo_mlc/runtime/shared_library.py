"""Shared libraries: object files linked by the system's own linker."""

from __future__ import annotations

import platform
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from hlo_mlc.runtime.static_library import Member, static_library
from hlo_mlc.support.errors import RuntimeLibraryError, UsageError


def shared_library(name: str, entry: bytes, members: Sequence[Member], architecture: str) -> bytes:
    """A library that exports what the object file `entry` defines; of the members, which it calls,
    nothing is seen from outside.

    Raises: UsageError without a linker for the architecture, RuntimeLibraryError where it fails.
    """
    compiler = _compiler(architecture)
    with tempfile.TemporaryDirectory(prefix="hlo_mlc_") as folder:
        objects, kernels, library = (Path(folder) / n for n in ("entry.o", "kernels.a", name))
        objects.write_bytes(entry)
        kernels.write_bytes(static_library(members))
        ran = subprocess.run(
            [compiler, "-shared", "-o", library, objects, kernels, f"-Wl,-soname,{name}",
             "-Wl,--exclude-libs,ALL", "-Wl,-z,noexecstack", "-Wl,-z,text"],
            capture_output=True, text=True)
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
    raise UsageError(f"A shared library takes a linker for {architecture}: install {names[-1]}, or "
                     "export a static library (a path that ends in .a)")
