"""Versions of packages, which stay what they are as long as a process runs."""

from __future__ import annotations

import functools
import importlib.metadata
import sys

VERSION = "0.1.0"  # ours, as in pyproject.toml


@functools.cache
def version(package: str) -> str:
    """The version of an installed package; of ours also where it runs from its sources alone.

    Raises: importlib.metadata.PackageNotFoundError.
    """
    # What is loaded mostly says it; to find what was installed takes a millisecond. Modules that
    # compute it when they are asked warn that it is deprecated.
    told = getattr(sys.modules.get(package), "__dict__", {}).get("__version__")
    if isinstance(told, str):
        return told
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        if package != "hlo-mlc":
            raise
        return f"{VERSION}+source"
