"""Warnings, which point at the user's own line: the only place that makes any."""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib.util
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

R = TypeVar("R")

Line = tuple[str, int]
"""A file and a line of it."""

# Whose frames stand between a user's line and a warning of ours.
_PACKAGES = ("hlo_mlc", "jax", "jaxlib")


class MlcWarning(RuntimeWarning):
    """A warning of ours; one that the user has made an error is the user's, not a fault."""


_told: dict[str, dict[Any, Any]] = {}
"""What was told of each file, as Python keeps it in modules: no line is told a thing twice."""


def warn(message: str, line: Line | None = None) -> None:
    """A warning about a line of the user's: by default the one that called us."""
    file, number = line or users_line()
    warnings.warn_explicit(message, MlcWarning, file, number, registry=_told.setdefault(file, {}))


def from_users_line(call: Callable[[], R]) -> R:
    """What a call returns that is made as if by the user's line: functions of others warn of who
    called them by the number of calls in between, and would find ours there."""
    frame = _users_frame()
    line = ast.increment_lineno(ast.parse("call()", mode="eval"), frame.f_lineno - 1)
    code = compile(line, frame.f_code.co_filename, "eval")
    # With the module's own names, in which `warnings` looks for what was told before.
    return eval(code, frame.f_globals, {"call": call})


def work_for(line: Line) -> None:
    """From now on this thread, which no line of the user's began, works for this one."""
    _works_for.line = line


_works_for = threading.local()


def users_line() -> Line:
    """The innermost line that is being run and neither ours nor JAX's, or the one that this thread
    works for."""
    if (line := getattr(_works_for, "line", None)) is not None:
        return line
    frame = _users_frame()
    return frame.f_code.co_filename, frame.f_lineno


def _users_frame() -> FrameType:
    innermost = frame = sys._getframe(1)
    while not _is_users(frame):
        if frame.f_back is None:
            return innermost
        frame = frame.f_back
    return frame


def _is_users(frame: FrameType) -> bool:
    file = frame.f_code.co_filename
    is_typed_in = file.startswith("<") and frame.f_globals.get("__name__") == "__main__"
    return is_typed_in or not is_internal(file)


def is_internal(file: str) -> bool:
    """Whether a file is one of ours, of JAX's, or of what both use to call each other."""
    return file.startswith(_internal())


@functools.cache
def _internal() -> tuple[str, ...]:
    # Without an import: processes that only run kernels have no JAX.
    found = map(importlib.util.find_spec, _PACKAGES)
    folders = [
        f"{Path(folder)}/"
        for specification in found
        if specification is not None
        for folder in specification.submodule_search_locations or ()
    ]
    return (*folders, contextlib.__file__, functools.__file__, "<")
