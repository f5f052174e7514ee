"""Threads take their usual turns again when nobody asks for shorter ones."""

from __future__ import annotations

import sys

from hlo_mlc.support.turns import short_turns


def test_the_shortest_turn_counts_whoever_ends_first() -> None:
    usual = sys.getswitchinterval()
    first, second = short_turns(usual / 2), short_turns(usual / 8)
    first.__enter__()
    second.__enter__()
    assert round(sys.getswitchinterval() / usual, 2) == 0.12
    first.__exit__(None, None, None)
    assert round(sys.getswitchinterval() / usual, 2) == 0.12
    second.__exit__(None, None, None)
    assert sys.getswitchinterval() == usual
    with short_turns(usual * 2):
        assert sys.getswitchinterval() == usual
