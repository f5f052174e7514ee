"""The copies of an unrolled loop's body side by side instead of one after the other.

A processor looks a few dozen instructions ahead.  With copies that are long chains of dependent
operations in a row it sees few chains at once and waits for their results; written in turns, one of
each, it always has as many to choose from as there are copies.  gelu of a million numbers takes 0.7
of the time; with branches around rare cases that are taken as one, normal numbers drawn at random
take 0.46, and sines of what is computed from other functions 0.63 to 0.9.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import NamedTuple

from hlo_mlc.codegen.cpu.block import Instruction, Kind

# Shorter copies lie within what a processor looks ahead.
SHORTEST = 12
# Shorter ones branch apart: what is rare for one would be computed for all of them, and sines, of
# which one in a hundred was huge, took twice as long.
BRANCHING = 32
# Results take four cycles, and two operations begin in each.
ENOUGH = 8
# Registers for what all copies share.
SHARED = 4


class _Phase(NamedTuple):
    """A part of a copy: what is done in any case, and the branch around a rare case behind it."""

    usual: Sequence[Instruction]
    branch: Sequence[Instruction] = ()
    joined: Sequence[Instruction] = ()  # what has a value in either case


def interleave(
    copies: Sequence[Sequence[Instruction]], registers: int, written: Set[int], label: str
) -> list[Instruction]:
    """The instructions of all copies: in turns where they compute, and read buffers that none of
    them writes; in their order where they touch other memory.

    Each comes after those that define its operands.  As many copies take turns as find room in this
    number of vector registers, in groups that are as large as each other: a copy left over would
    wait for its own results.  Where each branches around what is rare, they do so at once if none
    of them has such a case.  `written`: the alias classes of what they write; `label`: of the
    basic block that they begin in.
    """
    plain = [one for copy in copies for one in copy]
    if len(copies) < 2 or min(map(len, copies)) < SHORTEST:
        return plain
    phases = [_phases(copy, written) for copy in copies]
    if not all(phases) or len(set(map(len, phases))) > 1:
        return plain
    last = [one for phase in phases[-1] for one in (*phase.usual, *phase.joined)]
    if len(phases[-1]) > 1 and len(last) < BRANCHING:
        return plain
    most = max(1, min(ENOUGH, (registers - SHARED) // max(1, _alive(last))))
    abreast = -(-len(copies) // -(-len(copies) // most))
    merged: list[Instruction] = []
    for first in range(0, len(copies), abreast):
        for together in zip(*phases[first : first + abreast], strict=True):
            merged += _in_turns([phase.usual for phase in together], written)
            if together[0].branch:
                merged += _as_one(together, label)
                label = _label(together[-1].branch[-1])
    return merged if len(phases[0]) == 1 or _is_in_order(merged) else plain


def _phases(copy: Sequence[Instruction], written: Set[int]) -> list[_Phase]:
    """A copy cut behind each of its branches around rare cases; nothing where it has others, or
    touches memory that is written before the last."""
    phases, begin = [], 0
    while True:
        branch = next((k for k in range(begin, len(copy)) if copy[k][2] is Kind.CONTROL), None)
        if branch is None:
            return [*phases, _Phase(copy[begin:])]
        pieces = copy[branch][3]
        end = next(
            (
                k + 1
                for k in range(branch, len(copy))
                if len(pieces) > 5 and copy[k][2] is Kind.LABEL and copy[k][3][1] == pieces[5]
            ),
            len(copy),
        )
        behind = end
        while behind < len(copy) and copy[behind][3][0].startswith("phi "):
            behind += 1
        if behind == end or any(_is_ordered(one, written) for one in copy[begin:end]):
            return []
        phases.append(_Phase(copy[begin:branch], copy[branch:end], copy[end:behind]))
        begin = behind


def _as_one(phases: Sequence[_Phase], label: str) -> list[Instruction]:
    """The branches of several copies, behind a block, as one around the rare cases of them all."""
    merged: list[Instruction] = []
    # One that is the same in all lanes may be so in all copies, and around several rare cases.
    conditions = {phase.branch[0][3][1]: _label(phase.branch[1]) for phase in phases}
    taken, *others = conditions
    for own in others:
        name = f"%{conditions[own]}.any"
        merged.append((name, 0, Kind.COMPUTE, ("or i1 ", taken, ", ", own)))
        taken = name
    done = phases[-1].branch[-1]
    _, lanes, kind, pieces = phases[0].branch[0]
    pieces = (pieces[0], taken, *pieces[2:5], _label(done), *pieces[6:])
    merged.append((None, lanes, kind, pieces))
    following = [*(phase.branch[1] for phase in phases[1:]), done]
    for phase, then in zip(phases, following, strict=True):
        *rare, (name, lanes, kind, pieces), _ = phase.branch[1:]
        merged += [*rare, (name, lanes, kind, (pieces[0], _label(then), *pieces[2:]))]
    merged.append(done)
    end = phases[-1].joined[0][3][7]
    for phase in phases:
        for name, lanes, kind, pieces in phase.joined:
            merged.append((name, lanes, kind, (*pieces[:3], label, *pieces[4:7], end, pieces[8])))
    return merged


def _label(start: Instruction) -> str:
    return start[3][1]


def _is_in_order(instructions: Sequence[Instruction]) -> bool:
    """Whether every instruction comes after those that define its operands."""
    missing = {name for name, *_ in instructions}
    for name, _, _, pieces in instructions:
        if not missing.isdisjoint(pieces[1::2]):
            return False
        missing.discard(name)
    return True


def _is_ordered(one: Instruction, written: Set[int]) -> bool:
    """Whether it accesses memory that others may write."""
    kind = one[2]
    return kind is Kind.READ or kind is Kind.WRITE or kind in written


def _alive(copy: Sequence[Instruction]) -> int:
    """The largest number of vectors that are live at the same time in a copy."""
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
    following = [next(rest, None) for rest in rests]
    merged: list[Instruction] = []
    total = sum(map(len, copies))
    while len(merged) < total:
        earlier_done = True  # all of the copies before
        for number, one in enumerate(following):
            if one is None:
                continue
            name, _, _, pieces = one
            is_free = earlier_done or not _is_ordered(one, written)
            if is_free and missing.isdisjoint(pieces[1::2]):
                merged.append(one)
                missing.discard(name)
                one = following[number] = next(rests[number], None)
            earlier_done = earlier_done and one is None
    return merged
