"""The copies of an unrolled loop's body side by side instead of one after the other.

A processor looks a few dozen instructions ahead.  With copies that are long chains of dependent
operations in a row it sees few chains at once and waits for their results; written in turns, one of
each, it always has as many to choose from as there are copies.  gelu of a million numbers takes 0.7
of the time.
"""

from __future__ import annotations

from collections.abc import Sequence, Set

from hlo_mlc.codegen.cpu.block import Instruction, Kind

# Shorter copies lie within what a processor looks ahead.
SHORTEST = 12
# Results take four cycles, and two operations begin in each.
ENOUGH = 8
# Registers for what all copies share.
SHARED = 4


def interleave(
    copies: Sequence[Sequence[Instruction]], registers: int, written: Set[int]
) -> list[Instruction]:
    """The instructions of all copies: in turns where they compute, and read buffers that none of
    them writes; in their order where they touch other memory.

    Each comes after those that define its operands.  As many copies take turns as find room in this
    number of vector registers, in groups that are as large as each other: a copy left over would
    wait for its own results.  `written`: the alias classes of what they write.
    """
    if len(copies) < 2 or min(map(len, copies)) < SHORTEST:
        return [one for copy in copies for one in copy]
    most = max(1, min(ENOUGH, (registers - SHARED) // max(1, _alive(copies[-1]))))
    abreast = -(-len(copies) // -(-len(copies) // most))
    merged: list[Instruction] = []
    for first in range(0, len(copies), abreast):
        merged += _in_turns(copies[first : first + abreast], written)
    return merged


def _alive(copy: Sequence[Instruction]) -> int:
    """The most vectors that are needed later at any place in a copy."""
    last_use = {
        operand: position for position, (*_, pieces) in enumerate(copy) for operand in pieces[1::2]
    }
    ends: dict[int, int] = {}
    alive = most = 0
    for position, (name, lanes, *_) in enumerate(copy):
        alive -= ends.pop(position, 0)
        last = last_use.get(name, position) if lanes else position
        if last > position:
            alive += 1
            ends[last] = ends.get(last, 0) + 1
            most = max(most, alive)
    return most


def _in_turns(copies: Sequence[Sequence[Instruction]], written: Set[int]) -> list[Instruction]:
    missing = {name for copy in copies for name, *_ in copy}
    rests = [iter(copy) for copy in copies]
    following = [next(rest) for rest in rests]
    merged: list[Instruction] = []
    total = sum(map(len, copies))
    while len(merged) < total:
        earlier_done = True  # all of the copies before
        for number, one in enumerate(following):
            if one is None:
                continue
            name, _, kind, pieces = one
            is_free = earlier_done or not (
                kind is Kind.READ or kind is Kind.WRITE or kind in written
            )
            if is_free and missing.isdisjoint(pieces[1::2]):
                merged.append(one)
                missing.discard(name)
                one = following[number] = next(rests[number], None)
            earlier_done = earlier_done and one is None
    return merged
