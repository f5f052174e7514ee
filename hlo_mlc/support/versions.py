"""Versions of packages, which stay what they are as long as a process runs."""

from __future__ import annotations

import functools
import importlib.metadata


@functools.cache
def version(package: str) -> str:
    """The version of an installed package.

    Raises: importlib.metadata.PackageNotFoundError.
    """
    return importlib.metadata.version(package)
