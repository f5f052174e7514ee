"""Which commands are remembered as those whose programs are kept."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from hlo_mlc import preloading
from hlo_mlc.backends.cpu import CpuBackend
from hlo_mlc.support.options import Options


@pytest.fixture(autouse=True)
def of_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is done once for each process is done by every call."""
    for name in ("preload_compiler", "remember_command"):
        monkeypatch.setattr(preloading, name, getattr(preloading, name).__wrapped__)


@pytest.fixture(autouse=True)
def warmed_up(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What LLVM was warmed up for; whatever was begun has ended."""
    found: list[str] = []
    monkeypatch.setattr(CpuBackend, "warm_up", lambda backend: found.append(backend.target.name))
    yield found
    end_of_loading()


def end_of_loading() -> None:
    for thread in threading.enumerate():
        if thread.name == "hlo_mlc loads":
            thread.join()


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What was loaded ahead."""
    found: list[object] = []
    monkeypatch.setattr(preloading, "load_within", found.append)
    return found


def started_by(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preloading, "_command", lambda: command)


def test_a_command_that_kept_programs_loads_nothing_ahead(
    tmp_path: Path, loaded: list[object], warmed_up: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    options = Options(cache_dir=tmp_path, target="x86-64-v3")
    started_by("a", monkeypatch)
    preloading.remember_command(tmp_path)
    preloading.preload_compiler(options)
    end_of_loading()
    assert not loaded and not warmed_up
    started_by("b", monkeypatch)
    preloading.preload_compiler(options)
    end_of_loading()
    assert len(loaded) == 1 and warmed_up == ["x86-64-v3"]


def test_nobody_waits_for_llvm(
    tmp_path: Path, loaded: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on = threading.Event()
    monkeypatch.setattr(CpuBackend, "warm_up", lambda _: goes_on.wait(60))
    preloading.preload_compiler(Options(cache_dir=tmp_path))
    assert len(loaded) == 1 and any(t.name == "hlo_mlc loads" for t in threading.enumerate())
    goes_on.set()


def test_files_are_hashed_before_there_is_a_folder(
    tmp_path: Path, loaded: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed: list[Path] = []
    monkeypatch.setattr(preloading, "package_digest", hashed.append)
    preloading.preload_compiler(Options(cache_dir=tmp_path / "none"))
    assert hashed == [tmp_path / "none"]


def test_where_no_thread_starts_it_is_loaded_all_the_same(
    tmp_path: Path, loaded: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    preloading.preload_compiler(Options(cache_dir=tmp_path))
    assert len(loaded) == 1


def test_the_newest_commands_are_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preloading, "_MOST_COMMANDS", 3)
    for command in "abcabd":
        started_by(command, monkeypatch)
        preloading.remember_command(tmp_path)
    assert json.loads((tmp_path / "commands.json").read_text()) == {"kept": ["b", "c", "d"]}


@pytest.mark.parametrize("content", ["", "[]", '{"others": 1}', '{"kept": null}'])
def test_a_note_that_says_nothing_is_none(
    content: str, tmp_path: Path, loaded: list[object]
) -> None:
    (tmp_path / "commands.json").write_text(content)
    preloading.preload_compiler(Options(cache_dir=tmp_path))
    assert len(loaded) == 1


def test_a_folder_that_is_not_there_is_not_made_for_it(
    tmp_path: Path, loaded: list[object]
) -> None:
    preloading.preload_compiler(Options(cache_dir=tmp_path / "none"))
    preloading.remember_command(tmp_path / "none")
    assert len(loaded) == 1 and not (tmp_path / "none").exists()


def test_a_process_whose_folder_is_gone_has_a_command(
    tmp_path: Path, loaded: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    preloading._command.cache_clear()
    preloading.preload_compiler(Options(cache_dir=tmp_path))
    preloading.remember_command(tmp_path)
    preloading.preload_compiler(Options(cache_dir=tmp_path))
    preloading._command.cache_clear()
    assert len(loaded) == 1


def test_what_cannot_be_loaded_is_told_of_by_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def fail(packages: object) -> None:
        asked.append(packages)
        raise ImportError("no such package")

    monkeypatch.setattr(preloading, "load_within", fail)
    preloading.preload_compiler(Options(cache_dir=tmp_path))
    assert len(asked) == 1
