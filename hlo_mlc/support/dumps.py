"""What the compiler did, stage by stage, as files for a person to read."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from hlo_mlc.support.errors import ConfigurationError

_runs = itertools.count()


@dataclass(frozen=True, slots=True)
class StageTime:
    """Duration of one stage and whether it changed anything."""

    name: str
    seconds: float
    changed: bool


@dataclass(slots=True)
class Recorder:
    """Times the stages of one compilation and, with a folder, writes what each produced.

    Files are numbered in the order of the stages (`10-graph.txt`, …, `90-softmax@nn.py-6.s`);
    `index.txt` lists them with times and says "unchanged" where a stage changed nothing. To be
    used as a context, which ends with the index, also where a stage fails.

    Raises: ConfigurationError where the folder cannot be written.
    """

    folder: Path | None
    stages: list[StageTime] = field(default_factory=list)
    _last: dict[str, str] = field(default_factory=dict)
    _start: float = field(default_factory=time.perf_counter)

    @classmethod
    def open(cls, dump_dir: Path | None, name: str) -> Recorder:
        """A recorder that writes to a new folder below `dump_dir`, or nothing if that is None."""
        if dump_dir is None:
            return cls(None)
        safe = file_name(name)
        while True:
            folder = dump_dir / f"{next(_runs):03d}-{safe}"
            try:
                folder.mkdir(parents=True)
                return cls(folder)
            except FileExistsError as error:
                if not dump_dir.is_dir():  # a file stands there, or on the way there
                    raise _unwritable(dump_dir, error) from error
            except OSError as error:
                raise _unwritable(dump_dir, error) from error

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        lines = [
            f"{s.name:44} {s.seconds * 1e3:9.2f} ms{'' if s.changed else '  unchanged'}"
            for s in self.stages
        ]
        if error is not None:
            lines.append(f"failed with {type(error).__name__}: {error}")
        if self.folder is not None:
            self._write("index.txt", "\n".join(lines) + "\n")

    def stage(self, name: str, file: str, content: Callable[[], str], of: str = "") -> None:
        """End a stage: `content()` is written to `file`; it changed nothing if equal to the last
        content with the same `of`."""
        seconds = time.perf_counter() - self._start
        changed = True
        if self.folder is not None:
            text = content()
            if of:
                changed = self._last.get(of) != text
                self._last[of] = text
            self._write(file, text)
        self.stages.append(StageTime(name, seconds, changed))
        self._start = time.perf_counter()

    def attach(self, file: str, content: Callable[[], str]) -> None:
        """Writes one file more for the stage that is under way, without counting the time."""
        if self.folder is not None:
            start = time.perf_counter()
            self._write(file, content())
            self._start += time.perf_counter() - start

    def seconds_by_stage(self) -> dict[str, float]:
        """The time of every stage, those of one kind added up ("print k_1", "print k_2")."""
        total: dict[str, float] = {}
        for stage in self.stages:
            kind = stage.name.partition(" ")[0]
            total[kind] = total.get(kind, 0.0) + stage.seconds
        return total

    def _write(self, file: str, text: str) -> None:
        assert self.folder is not None
        try:
            (self.folder / file).write_text(text, "utf-8")
        except OSError as error:
            raise _unwritable(self.folder, error) from error


def file_name(name: str) -> str:
    """The name of a function or a kernel as a part of a file's: `softmax@model.py-6`."""
    safe = "".join(c if c.isalnum() or c in "-_@.+#" else "-" for c in name)
    return safe.lstrip(".") or "module"


def _unwritable(folder: Path, error: OSError) -> ConfigurationError:
    return ConfigurationError(
        f"The dump folder {folder} cannot be written: {error.strerror or error}. "
        f"Set HLO_MLC_DUMP to a folder that can, or to nothing"
    )
