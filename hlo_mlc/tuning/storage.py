"""Where studies are kept: one Optuna journal, which survives what may happen to it, or a database.

Of the journal every operation is a line of JSON. A process that is killed while it writes leaves
half a line, after which Optuna would read no further; opening the journal repairs that. A database
is what a team shares: whoever has a trial there says so now and then, and where nobody does, others
take it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import sqlalchemy
from optuna.storages import (
    BaseStorage,
    JournalStorage,
    RDBStorage,
    RetryHeartbeatStaleTrialCallback,
)
from optuna.storages.journal import JournalFileBackend

from hlo_mlc.runtime.files import JOURNAL, write_whole
from hlo_mlc.support.errors import CacheError, UsageError
from hlo_mlc.support.options import Options
from hlo_mlc.support.warning import warn
from hlo_mlc.tuning.study import quiet

HEARTBEAT_S = 10
"""How often a process says that it still has a trial. Trials take a second as a rule."""

GRACE_S = 3 * HEARTBEAT_S
"""After which nobody has it."""

_BACKGROUND = re.compile(r"\(Background on this error at: \S+\)")  # of SQLAlchemy's documents
_WAIT_S = 60.0  # for a file of SQLite that others write to


def open_database(url: str) -> RDBStorage:
    """The studies in a database that Optuna knows: PostgreSQL, MySQL or SQLite.

    Raises: UsageError where there is none, or the driver for it is missing.
    """
    engine = {"connect_args": {"timeout": _WAIT_S}} if url.startswith("sqlite") else {}
    try:
        with quiet():
            storage = RDBStorage(
                url,
                engine_kwargs=engine,
                heartbeat_interval=HEARTBEAT_S,
                grace_period=GRACE_S,
                heartbeat_stale_trial_callback=RetryHeartbeatStaleTrialCallback(),
            )
    except Exception as error:  # of SQLAlchemy, or of any of its drivers
        reason = " ".join(_BACKGROUND.sub("", str(error)).split()).rstrip(".?")
        raise UsageError(
            f"The studies in {shown(url)} cannot be opened: {type(error).__name__}: "
            f"{reason}. Give the URL of a database that can be reached and exists, as "
            "postgresql://USER@HOST/NAME, mysql://USER@HOST/NAME or sqlite:///FILE "
            "(drivers: pip install 'hlo-mlc[team]')"
        ) from error
    if url.startswith("sqlite"):
        _one_at_a_time(storage.engine)
    weakref.finalize(storage, storage.engine.dispose)  # of connections
    return storage


def _one_at_a_time(engine: sqlalchemy.Engine) -> None:
    """What reads before it writes has the file to itself from its first reading on: SQLite ignores
    the locks on rows that Optuna asks for, and two processes would take the same trial.

    Source: docs.sqlalchemy.org, SQLite, "Serializable isolation / Savepoints / Transactional DDL".
    """

    def begin(connection: sqlalchemy.Connection) -> None:
        connection.connection.dbapi_connection.isolation_level = None  # Python begins none itself
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    sqlalchemy.event.listen(engine, "begin", begin)


def shown(where: Path | str) -> str:
    """Where studies are, without a password."""
    scheme, separator, place = str(where).rpartition("://")
    return f"{scheme}{separator}{place.rpartition('@')[2] if separator else place}"


def open_studies(where: Path | str) -> BaseStorage:
    """The studies in a journal, or in the database with this URL.

    Raises: CacheError or UsageError where they cannot be had.
    """
    return open_storage(where) if isinstance(where, Path) else open_database(where)


def journal_path(options: Options) -> Path:
    """The journal that these options ask for."""
    return options.cache_dir / JOURNAL


def open_storage(path: Path) -> JournalStorage:
    """The studies in a journal, which is made if there is none and repaired if it is damaged.

    Raises: CacheError when it cannot be read or written.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _locked(path):
            _repair(path)
        try:
            return _open(path)
        except Exception as error:  # whole lines that make no sense together
            aside = _aside(path)
            path.replace(aside)
            _warn(
                f"{path} cannot be replayed ({type(error).__name__}: {error}); it is set aside "
                f"as {aside.name}, and studies begin anew"
            )
            return _open(path)
    except OSError as error:
        raise CacheError(
            f"The studies in {path} cannot be opened: {error.strerror or error}. Set "
            "HLO_MLC_CACHE to a folder that can be written"
        ) from error


def _open(path: Path) -> JournalStorage:
    return JournalStorage(_Journal(path))


class _Journal(JournalFileBackend):
    """Optuna's journal; a write that fails, as on a full disk, leaves nothing of it behind."""

    def __init__(self, path: Path) -> None:
        super().__init__(str(path), _Lock(path))
        self._path = path

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Raises: CacheError."""
        try:
            super().append_logs(logs)
        except OSError as error:
            with contextlib.suppress(OSError), _locked(self._path):
                _repair(self._path)
            raise CacheError(
                f"The studies in {self._path} cannot be written: {error.strerror or error}. What "
                "was measured before is kept: make room, or set HLO_MLC_CACHE to another folder, "
                "and tune again"
            ) from error


class _Lock:
    """Optuna's own locks are files that a killed process leaves behind for half a minute; the
    system takes this one back at once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._held: contextlib.ExitStack | None = None

    def acquire(self) -> bool:
        held = contextlib.ExitStack()
        held.enter_context(_locked(self._path))
        self._held = held
        return True

    def release(self) -> None:
        held, self._held = self._held, None
        held.close()


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with open(path.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _repair(path: Path) -> None:
    """Leaves only whole lines in the journal."""
    if not path.exists():
        return
    content = path.read_bytes()
    lines = content.splitlines(keepends=True)
    whole = [line for line in lines if _is_whole(line)]
    if len(whole) == len(lines):
        return
    if whole == lines[:-1]:
        # Cut off in place: others that have the journal open never got past the last whole line.
        os.truncate(path, sum(map(len, whole)))
        return
    aside = _aside(path)
    shutil.copyfile(path, aside)
    write_whole(path, whole)
    _warn(
        f"{path} was damaged in {len(lines) - len(whole)} lines, which are left out; "
        f"as it was, it is {aside.name}"
    )


def _is_whole(line: bytes) -> bool:
    try:
        return line.endswith(b"\n") and isinstance(json.loads(line), dict)
    except ValueError:
        return False


def _aside(path: Path) -> Path:
    for number in range(1, 1000):
        aside = path.with_suffix(f".damaged-{number}")
        if not aside.exists():
            return aside
    return path.with_suffix(".damaged")


def _warn(message: str) -> None:
    warn(f"hlo_mlc studies: {message}")
