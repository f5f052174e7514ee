"""Counts of proofs: they add up, start anew with other generators, and survive bad files."""

from __future__ import annotations

from pathlib import Path

import pytest

from hlo_mlc.runtime.proofs import OUTCOMES, add_proofs, proof_counts, proofs_path


def test_counts_add_up(tmp_path: Path) -> None:
    assert not proof_counts(tmp_path, "now").total()
    add_proofs(tmp_path, "now", {"proved": 3, "guarded": 1})
    add_proofs(tmp_path, "now", {"proved": 2, "refused": 1})
    assert dict(proof_counts(tmp_path, "now")) == {"proved": 5, "guarded": 1, "refused": 1}


def test_what_other_generators_made_does_not_count(tmp_path: Path) -> None:
    add_proofs(tmp_path, "before", {"proved": 3})
    assert not proof_counts(tmp_path, "now").total()
    add_proofs(tmp_path, "now", {"guarded": 1})
    assert dict(proof_counts(tmp_path, "now")) == {"proved": 0, "guarded": 1, "refused": 0}
    assert not proof_counts(tmp_path, "before").total()


def test_nothing_new_writes_nothing(tmp_path: Path) -> None:
    add_proofs(tmp_path, "now", dict.fromkeys(OUTCOMES, 0))
    assert not proofs_path(tmp_path).exists()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{",
        '{"generators": "now"}',
        '{"generators": "now", "counts": 3}',
        '{"generators": "now", "counts": {"proved": "many", "other": 4}}',
    ],
)
def test_a_damaged_file_counts_nothing(tmp_path: Path, text: str) -> None:
    proofs_path(tmp_path).write_text(text)
    assert not proof_counts(tmp_path, "now").total()
    add_proofs(tmp_path, "now", {"proved": 1})
    assert proof_counts(tmp_path, "now")["proved"] == 1
