"""Warnings, which point at the user's own line: the only place that makes any."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import sys
import warnings
from pathlib import Path
from types import FrameType

Line = tuple[str, int]
"""A file and a line of it."""

# Whose frames stand between a user's line and a warning of ours.
_PACKAGES = ("hlo_mlc", "jax", "jaxlib")


class MlcWarning(RuntimeWarning):
    """A warning of ours; one that the user has made an error is the user's, not a fault."""


def warn(message: str, line: Line | None = None) -> None:
    """A warning about a line of the user's: by default the one that called us."""
    file, number = line or users_line()
    warnings.warn_explicit(message, MlcWarning, file, number)


def users_line() -> Line:
    """The innermost line that is being run and neither ours nor JAX's."""
    frame: FrameType | None = sys._getframe()
    line = frame.f_code.co_filename, frame.f_lineno
    while frame is not None:
        if not is_internal(frame.f_code.co_filename):
            return frame.f_code.co_filename, frame.f_lineno
        frame = frame.f_back
    return line


def is_internal(file: str) -> bool:
    """Whether a file is one of ours, of JAX's, or of what both use to call each other."""
    return file.startswith(_internal())


@functools.cache
def _internal() -> tuple[str, ...]:
    # Without an import: processes that only run kernels have no JAX.
    found = map(importlib.util.find_spec, _PACKAGES)
    folders = [f"{Path(folder)}/" for specification in found if specification is not None
               for folder in specification.submodule_search_locations or ()]
    return (*folders, contextlib.__file__, functools.__file__, "<")
