"""When the compiler is loaded, its files are looked at, and LLVM is warmed up: as soon as a
function is made that it may have to compile, so that first calls, which people wait for, need not.

Not so in a process that will find its programs kept (kept_programs.py), which needs nothing of it:
that is expected of whatever was started by the same command, in the same folder, as a process that
kept or found some. Where this is wrong, the compiler is loaded by the first call that asks for it.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from hlo_mlc.backends.cpu import cpu_backend
from hlo_mlc.runtime.notes import read_note, write_note
from hlo_mlc.runtime.sources import package_digest
from hlo_mlc.support.lazy_imports import load_within
from hlo_mlc.support.options import Options
from hlo_mlc.support.versions import VERSION

_COMPILER = (
    *("expr", "tensor", "graph", "ops", "frontend", "passes", "loops"),
    *("schedule", "templates", "partition", "codegen", "tuning"),
)
_MOST_COMMANDS = 256  # that are remembered: the newest


@functools.cache
def preload_compiler(options: Options) -> None:
    """Loads the compiler, once, unless this process is expected to find its programs, and hashes
    the sources, by which programs and kernels are kept.  What cannot be loaded is asked for again
    by the call that needs it, which tells of it.  LLVM is warmed up behind that, which nobody waits
    for: it hardly needs the interpreter.

    In a thread of its own: Optuna keeps the exceptions of its imports that fail, and these all
    frames around them, which would be the caller's, with the function that is made.
    """
    is_loaded = threading.Event()
    thread = threading.Thread(target=_load, args=(options, is_loaded.set), name="hlo_mlc loads")
    try:
        thread.start()
    except RuntimeError:  # there is none to be had, as while Python ends
        _load(options, is_loaded.set)
    else:
        is_loaded.wait()


def _load(options: Options, say_loaded: Callable[[], None]) -> None:
    is_needed = False
    try:
        with contextlib.suppress(Exception):
            is_needed = _command() not in _remembered(options.cache_dir)
            if is_needed:
                load_within(_COMPILER)
            package_digest(options.cache_dir)  # a look at each of 600 files: 5 to 8 ms
    finally:
        say_loaded()
    if is_needed:
        with contextlib.suppress(Exception):
            cpu_backend(options).warm_up()


@functools.cache
def remember_command(cache_dir: Path) -> None:
    """Has the next process of the command that started this one know that programs are kept; where
    the cache cannot be written, that was said of the programs."""
    known = _remembered(cache_dir)
    if _command() not in known and os.access(cache_dir, os.W_OK):
        write_note(_note(cache_dir), {"kept": [*known, _command()][-_MOST_COMMANDS:]})


def _remembered(cache_dir: Path) -> list[str]:
    commands = (read_note(_note(cache_dir)) or {}).get("kept")
    return commands if isinstance(commands, list) else []


def _note(cache_dir: Path) -> Path:
    return cache_dir / "commands.json"


@functools.cache
def _command() -> str:
    """What tells the command of this process from others."""
    try:
        folder = os.getcwd()
    except OSError:  # it is not there any more
        folder = ""
    identity = repr((VERSION, sys.orig_argv, folder))
    return hashlib.sha256(identity.encode()).hexdigest()
