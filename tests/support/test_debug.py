"""Debug output: levels are cumulative, lines go to stderr in one piece."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hlo_mlc.support.debug import Level, say
from hlo_mlc.support.options import MAX_DEBUG


@pytest.mark.parametrize("debug", range(MAX_DEBUG + 1))
def test_each_level_shows_those_below(debug: int, capsys: pytest.CaptureFixture) -> None:
    for level in Level:
        say(level, debug, [f"{level.name} one", f"{level.name} two"])
    captured = capsys.readouterr()
    shown = [
        f"hlo_mlc: {level.name} {n}" for level in Level if level <= debug for n in ("one", "two")
    ]
    assert captured.err.splitlines() == shown
    assert not captured.out


def test_lines_that_nobody_sees_are_not_made() -> None:
    def lines() -> Iterator[str]:
        pytest.fail("nobody reads this")
        yield ""

    say(Level.LOOPS, Level.REASONS, lines())


def test_every_level_can_be_asked_for() -> None:
    assert max(Level) == MAX_DEBUG
