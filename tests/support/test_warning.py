"""Warnings are about the user's line, wherever that stands and whoever gives them."""

from __future__ import annotations

import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hlo_mlc.support.warning import MlcWarning, from_users_line, warn, work_for

PROGRAM = """
from hlo_mlc.support.warning import warn
def warns():
    warn("a message")
warns()
"""


@pytest.mark.parametrize("how", ["in a file", "given with -c", "typed in"])
def test_the_line_is_found(how: str, tmp_path: Path) -> None:
    file = tmp_path / "script.py"
    file.write_text(PROGRAM)
    arguments, shown = {
        "in a file": ([file], file),
        "given with -c": (["-c", PROGRAM], "<string>"),
        "typed in": (["-"], "<stdin>"),
    }[how]
    ran = subprocess.run(
        [sys.executable, "-P", *arguments],
        input=PROGRAM,
        text=True,
        capture_output=True,
        check=True,
    )
    assert f"{shown}:4: MlcWarning: a message" in ran.stderr


def test_warnings_of_others_are_given_once_for_each_line() -> None:
    def of_others() -> int:
        warnings.warn("theirs", stacklevel=2)
        return 7

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(3):
            assert from_users_line(of_others) == 7
        assert from_users_line(of_others) == 7
    first, second = caught
    assert first.filename == second.filename == __file__ and second.lineno == first.lineno + 1


def test_errors_of_others_pass() -> None:
    with pytest.raises(ZeroDivisionError):
        from_users_line(lambda: 1 // 0)


def test_ours_is_one_of_its_own() -> None:
    with pytest.warns(MlcWarning, match="a message") as caught:
        warn("a message")
    assert caught[0].filename == __file__


def test_a_line_is_told_a_thing_once() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(2):
            warn("told once")
        warn("told once")
    assert len(caught) == 2


def test_threads_work_for_a_line() -> None:
    with (
        ThreadPoolExecutor(1, initializer=work_for, initargs=(("model.py", 7),)) as pool,
        pytest.warns(MlcWarning, match="of a thread") as caught,
    ):
        pool.submit(warn, "of a thread").result()
    assert (caught[0].filename, caught[0].lineno) == ("model.py", 7)
