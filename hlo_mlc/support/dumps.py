"""What the compiler did, stage by stage, as files for a person to read."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

_runs = itertools.count()


@dataclass(slots=True)
class StageTime:
    """Duration of one stage and whether it changed anything."""

    name: str
    seconds: float
    changed: bool


@dataclass(slots=True)
class Recorder:
    """Times the stages of one compilation and, with a folder, writes what each produced.

    Files are numbered in the order of the stages (`10-graph.txt`, …, `90-k_….ll`); `index.txt`
    lists them with times and says "unchanged" where a stage changed nothing.
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
        safe = "".join(c if c.isalnum() or c in "-_" else "_" for c in name) or "module"
        while True:
            folder = dump_dir / f"{next(_runs):03d}-{safe}"
            try:
                folder.mkdir(parents=True)
                return cls(folder)
            except FileExistsError:
                continue

    def stage(self, name: str, file: str, content: Callable[[], str], of: str = "") -> None:
        """End a stage: `content()` is written to `file`; it changed nothing if equal to the last
        content with the same `of`."""
        seconds = time.perf_counter() - self._start
        changed = True
        if self.folder is not None:
            text = content()
            changed = not of or self._last.get(of) != text
            self._last[of] = text
            (self.folder / file).write_text(text)
        self.stages.append(StageTime(name, seconds, changed))
        self._start = time.perf_counter()

    def close(self) -> None:
        """Write the index."""
        if self.folder is None:
            return
        lines = [f"{s.name:32} {s.seconds * 1e3:9.2f} ms{'' if s.changed else '  unchanged'}"
                 for s in self.stages]
        (self.folder / "index.txt").write_text("\n".join(lines) + "\n")
