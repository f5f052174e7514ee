"""The layout of a kernel's arena: the offset of every buffer that lives between its steps."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Mapping, Sequence

from hlo_mlc.expr.core import Buffer
from hlo_mlc.loops.core import Stmt, walk
from hlo_mlc.loops.rewrite import touched
from hlo_mlc.loops.signature import aligned
from hlo_mlc.tensor.core import Step, TensorProgram

# Of the elements that loops write out one by one: they are some hundred at most.
_FEW_BYTES = 4096

_Lifetime = tuple[Buffer, int, int]  # the first and the last step


def plan_arena(
    program: TensorProgram,
    parts: Sequence[tuple[Step, tuple[Stmt, ...]]],
    extra: Mapping[Step, Sequence[Buffer]],
) -> tuple[tuple[Buffer, int], ...]:
    """Byte offsets such that buffers alive at the same time do not overlap.

    A buffer lives from the first to the last top-level step that touches it. Those of a few
    elements take turns in places of their own: were they to overlap others here and there, all
    these would count as one memory, of which nothing is known any more when any of it is stored.
    """
    if not program.temporaries and not any(extra.values()):
        return ()
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for n, (_, statements) in enumerate(parts):
        for name in scratch_names(statements):
            first.setdefault(name, n)
            last[name] = n
    lifetimes = [(b, first[b.name], last[b.name]) for b in program.temporaries if b.name in first]
    lifetimes += [(b, n, n) for n, (step, _) in enumerate(parts) for b in extra.get(step, ())]
    few, many = [], []
    for one in sorted(lifetimes, key=lambda entry: (entry[1], -entry[0].bytes)):
        (few if one[0].bytes <= _FEW_BYTES else many).append(one)
    places, size = _taking_turns(few)
    return (*places, *_first_fit(many, size))


def _taking_turns(lifetimes: Iterable[_Lifetime]) -> tuple[list[tuple[Buffer, int]], int]:
    """Offsets of small buffers, each of which gets a place of its own or one that an earlier buffer
    has left; and where the places end."""
    places: list[list[int]] = []  # [offset, bytes, last step]
    arena, size = [], 0
    for buffer, begin, end in lifetimes:
        wanted = aligned(buffer.bytes)
        free = [p for p in places if p[1] >= wanted and p[2] < begin]
        place = min(free, key=lambda p: p[1], default=None)
        if place is None:
            place = [size, wanted, end]
            places.append(place)
            size += wanted
        place[2] = end
        arena.append((buffer, place[0]))
    return arena, size


def _first_fit(lifetimes: Iterable[_Lifetime], beginning: int) -> tuple[tuple[Buffer, int], ...]:
    """Offsets of buffers from `beginning` on, each the lowest that is free during its lifetime."""
    alive: list[tuple[int, int, int]] = []  # (offset, end, last step), by offset
    arena: list[tuple[Buffer, int]] = []
    for buffer, begin, end in lifetimes:
        alive = [other for other in alive if other[2] >= begin]
        size = aligned(buffer.bytes)
        offset = beginning
        for start, stop, _ in alive:
            if offset + size <= start:
                break
            offset = max(offset, stop)
        bisect.insort(alive, (offset, offset + size, end))
        arena.append((buffer, offset))
    return tuple(arena)


def scratch_names(statements: tuple[Stmt, ...]) -> set[str]:
    """Names of the scratch buffers that are touched (allocated ones are not in the arena)."""
    return {b.name for s in walk(statements) for b in touched(s) if b.scope == "scratch"}
