"""What `prove.py` has shown of a kernel before it runs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Proof:
    """That a kernel stays in bounds, has no races and writes its results: `guarded` are accesses
    that are checked at run time, because nothing else says that they are in bounds."""

    guarded: tuple[str, ...] = ()

    def __str__(self) -> str:
        if not self.guarded:
            return "proved: in bounds, free of races, written as a whole"
        return f"proved but for what is checked at run time: {'; '.join(self.guarded)}"
