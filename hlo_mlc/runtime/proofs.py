"""How many kernels were proved, guarded and refused: kept next to the cache, for `doctor`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from hlo_mlc.runtime.notes import read_note, write_note

OUTCOMES = ("proved", "guarded", "refused")


def proofs_path(folder: Path | str) -> Path:
    """Where the counts are kept."""
    return Path(folder) / "proofs.json"


def proof_counts(folder: Path | str, generators: str) -> Counter[str]:
    """What became of the kernels that were proved since the `generators` of code, named by their
    hash, are what they are; of kernels from the cache, when they were put there."""
    note = read_note(proofs_path(folder)) or {}
    counts = note.get("counts") if note.get("generators") == generators else None
    known = counts if isinstance(counts, dict) else {}
    return Counter(
        {outcome: count for outcome in OUTCOMES if isinstance(count := known.get(outcome, 0), int)}
    )


def add_proofs(folder: Path | str, generators: str, fresh: Mapping[str, int]) -> None:
    """Adds to the counts; where two processes do at the same instant, one of them is lost."""
    if any(fresh.values()):
        counts = proof_counts(folder, generators)
        counts.update(fresh)
        write_note(proofs_path(folder), {"generators": generators, "counts": dict(counts)})
