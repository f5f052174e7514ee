"""How scripts begin: their words, their help, and what they do not take."""

from __future__ import annotations

import sys

import pytest

from hlo_mlc.support.errors import UsageError
from hlo_mlc_bench.script import arguments, errors_in_one_line


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch):
    return lambda *words: monkeypatch.setattr(sys, "argv", ["scripts/some.py", *words])


def test_words_are_what_a_script_is_called_with(called) -> None:
    called("one", "two")
    assert arguments("about") == arguments("about", most=2) == ["one", "two"]


@pytest.mark.parametrize("word", ["-h", "--help"])
def test_help_is_what_a_script_is_about(called, capsys: pytest.CaptureFixture[str], word) -> None:
    called("one", word)
    with pytest.raises(SystemExit) as ended:
        arguments("\nWrites a page.\n")
    assert ended.value.code is None and capsys.readouterr().out == "Writes a page.\n"


def test_more_words_are_refused(called) -> None:
    called("one", "two")
    with pytest.raises(SystemExit, match="expected no 'two'"):
        arguments("about", most=1)


def test_what_is_wrong_with_what_it_is_given_is_one_line(called) -> None:
    called("gone.json")
    with (
        pytest.raises(SystemExit, match=r"scripts/some.py: There is no gone.json"),
        errors_in_one_line(),
    ):
        raise UsageError("There is no gone.json")
