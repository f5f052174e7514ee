"""Notes on disk: written whole or not at all, and None where they cannot be read."""

from __future__ import annotations

from pathlib import Path

import pytest

from hlo_mlc.runtime.notes import read_note, write_note

NOTE = {"choose": "ours", "speedup": 1.5, "comparisons": [{"ours_us": 1.0}], "reasons": []}


def test_a_note_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "down" / "note.json"
    write_note(path, NOTE)
    assert read_note(path) == NOTE
    write_note(path, {})
    assert read_note(path) == {}
    assert [file.name for file in path.parent.iterdir()] == ["note.json"]


@pytest.mark.parametrize("content", [b"", b'{"choose": "ou', b"[1, 2]", b"\xff\xfe", b"7"])
def test_a_damaged_note_is_none(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "note.json"
    path.write_bytes(content)
    assert read_note(path) is None


def test_a_missing_note_is_none(tmp_path: Path) -> None:
    assert read_note(tmp_path / "note.json") is None


def test_a_note_that_cannot_be_written_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.warns(RuntimeWarning, match="cannot write in .*file ") as caught:
        write_note(tmp_path / "file" / "note.json", NOTE)
        write_note(tmp_path / "file" / "note.json", NOTE)
        write_note(tmp_path / "file" / "another.json", NOTE)
    assert len(caught) == 1
    (tmp_path / "note.json").mkdir()
    (tmp_path / "note.json" / "x").write_text("")
    with pytest.warns(RuntimeWarning, match="cannot write"):
        write_note(tmp_path / "note.json", NOTE)
    assert {file.name for file in tmp_path.iterdir()} == {"file", "note.json"}
