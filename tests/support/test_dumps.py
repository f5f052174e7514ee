"""The dump folder: what is in its files and its index, and folders that cannot be written."""

from __future__ import annotations

from pathlib import Path

import pytest

from hlo_mlc.support.dumps import Recorder
from hlo_mlc.support.errors import ConfigurationError


def index_of(folder: Path) -> list[list[str]]:
    return [line.split() for line in (folder / "index.txt").read_text().splitlines()]


def test_files_and_an_index_with_times_and_what_changed(tmp_path: Path) -> None:
    with Recorder.open(tmp_path, "f") as record:
        record.stage("import", "10-graph.txt", lambda: "a", of="graph")
        record.stage("simplify", "20-graph.txt", lambda: "a", of="graph")
        record.stage("fold", "21-graph.txt", lambda: "b", of="graph")
        record.stage("plan", "30-plan.txt", lambda: "b")
    assert (record.folder / "21-graph.txt").read_text() == "b"
    index = index_of(record.folder)
    assert [line[0] for line in index] == ["import", "simplify", "fold", "plan"]
    assert all(float(line[1]) >= 0 and line[2] == "ms" for line in index)
    assert [line[3:] for line in index] == [[], ["unchanged"], [], []]


def test_the_index_is_there_when_a_stage_fails(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), Recorder.open(tmp_path, "f") as record:
        record.stage("import", "10-graph.txt", lambda: "a")
        raise ZeroDivisionError("no such thing")
    assert index_of(record.folder)[-1][:3] == ["failed", "with", "ZeroDivisionError:"]


def test_every_compilation_has_its_folder(tmp_path: Path) -> None:
    folders = {Recorder.open(tmp_path, name).folder for name in ("f", "f", "a b/../c", "")}
    assert len(folders) == 4
    assert {folder.parent for folder in folders} == {tmp_path}


def test_without_a_folder_nothing_is_made_up() -> None:
    with Recorder.open(None, "f") as record:
        record.stage("import", "10-graph.txt", lambda: pytest.fail("nobody reads this"))
    assert [stage.name for stage in record.stages] == ["import"]


def test_times_of_one_kind_are_added_up() -> None:
    record = Recorder.open(None, "f")
    for name in ("import", "print k_1", "print k_2"):
        record.stage(name, "", str)
    assert list(record.seconds_by_stage()) == ["import", "print"]
    assert record.seconds_by_stage()["print"] == sum(s.seconds for s in record.stages[1:])


@pytest.mark.parametrize("name", ["file", "file/below", "link"])
def test_a_folder_that_cannot_be_made(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere" / "at all")
    with pytest.raises(ConfigurationError, match=r"dump folder .* cannot be written.*HLO_MLC_DUMP"):
        Recorder.open(tmp_path / name, "f")


def test_a_folder_that_goes_away(tmp_path: Path) -> None:
    record = Recorder.open(tmp_path / "dump", "f")
    record.folder.rmdir()
    with pytest.raises(ConfigurationError, match="cannot be written"):
        record.stage("import", "10-graph.txt", lambda: "a")


def test_a_file_is_attached_to_the_stage_under_way(tmp_path: Path) -> None:
    with Recorder.open(tmp_path, "f") as record:
        record.attach("50-steps.txt", lambda: "naive")
        record.stage("schedule", "60-loops.txt", lambda: "loops")
    assert (record.folder / "50-steps.txt").read_text() == "naive"
    assert [stage.name for stage in record.stages] == ["schedule"]
    Recorder.open(None, "f").attach("50-steps.txt", lambda: pytest.fail("nobody reads this"))
