"""What was found, in a folder: one line of JSON for each judged program, one file for each fault.

A line is written whole and at once, so what is known survives whatever kills the process; a torn
last line is passed over.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

JUDGED = "judged.jsonl"


@dataclass(frozen=True, slots=True)
class Setting:
    """What programs are judged under: counts of equal settings add up."""

    kernel: str
    choose: str
    target: str
    python: str
    jax: str

    def __str__(self) -> str:
        return f"{self.choose} on {self.target}, Python {self.python}, JAX {self.jax}"


@dataclass(frozen=True, slots=True)
class Entry:
    """One judged program: `number` counts within a seed."""

    setting: Setting
    seed: int
    number: int
    kind: str
    mode: str
    undetermined: int = 0
    elements: int = 0
    detail: str = ""


class Ledger:
    """The entries of all runs, and the faults with what reproduces them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def add(self, entry: Entry) -> None:
        line = (json.dumps(asdict(entry)) + "\n").encode()
        descriptor = os.open(self.folder / JUDGED, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(descriptor, line)
        finally:
            os.close(descriptor)

    def entries(self) -> Iterator[Entry]:
        try:
            lines = (self.folder / JUDGED).read_text(errors="replace").splitlines()
        except FileNotFoundError:
            return
        for line in lines:
            try:
                fields = json.loads(line)
                yield Entry(**fields | {"setting": Setting(**fields["setting"])})
            except (ValueError, TypeError, KeyError):
                continue

    def done(self, setting: Setting, seed: int) -> set[int]:
        """The numbers of a seed's programs that have been judged."""
        return {e.number for e in self.entries() if (e.setting, e.seed) == (setting, seed)}

    def totals(self) -> dict[Setting, Counter[str]]:
        """How many different programs came to what, for each setting."""
        last = {(e.setting, e.seed, e.number): e.kind for e in self.entries()}
        found: dict[Setting, Counter[str]] = {}
        for (setting, _, _), kind in last.items():
            found.setdefault(setting, Counter())[kind] += 1
        return found

    def keep(self, name: str, text: str) -> Path:
        """Write down a fault as a script."""
        path = self.folder / f"{name}.py"
        path.write_text(text)
        return path
