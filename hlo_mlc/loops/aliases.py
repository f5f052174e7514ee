"""Results in the memory of operands: every element is read before it is overwritten."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hlo_mlc.loops.core import For, If, LoopKind, LoopProgram, While
from hlo_mlc.loops.dependence import Access, Memory, accesses, carried, variables
from hlo_mlc.loops.equations import settle
from hlo_mlc.loops.regions import Points, Unknown, apart, merged_axes

# In these no iteration waits for another: that they are independent is asked anyway.
_SIDE_BY_SIDE = (LoopKind.PARALLEL, LoopKind.VECTORIZE, LoopKind.BLOCK, LoopKind.THREAD)


def overwritten(program: LoopProgram) -> Iterator[str]:
    """The reads of operands that may come after the element was overwritten."""
    if not program.aliases:
        return
    memory = Memory.of(program)
    shared = {buffer for pair in program.aliases for buffer in pair}
    touched = [a for a in accesses(program.body) if a.buffer in shared]
    for result, operand in program.aliases:
        if not memory.comparable(result, operand):
            yield f"{operand!r} and {result!r} have the same memory, but not the same layout"
            continue
        writes = [(n, a) for n, a in enumerate(touched) if a.writes and a.buffer == result]
        reads = [(n, a) for n, a in enumerate(touched) if not a.writes and a.buffer == operand]
        for n, write in writes:
            for m, read in reads:
                if _comes_after(write, read, n < m, memory):
                    yield (f"{operand!r}, whose memory {result!r} takes over, is read before it is "
                           f"overwritten: {read} may come after {write}")
                    return


def _comes_after(write: Access, read: Access, textually: bool, memory: Memory) -> bool:
    """Whether an element may be read by `read` after `write` has overwritten it."""
    common = 0
    while common < min(len(write.path), len(read.path)) \
            and write.path[common] == read.path[common]:
        common += 1
    for n, (stmt, _) in enumerate(write.path[:common]):
        if isinstance(stmt, While):
            return True
        if isinstance(stmt, For) and stmt.kind not in _SIDE_BY_SIDE and carried(
                stmt, memory, among=[write.within(n + 1), read.within(n + 1)]) is not None:
            return True
    if not textually or write.stmt is read.stmt:
        return False
    next_to = [path[common][0] for path in (write.path, read.path) if len(path) > common]
    if len(next_to) == 2 and next_to[0] is next_to[1] and isinstance(next_to[0], If):
        return False  # one of the branches is taken
    inside = variables(tuple(next_to))
    return settle(write, read, inside, set()) is not None and not _elsewhere(write, read)


def _elsewhere(write: Access, read: Access) -> bool:
    """Whether the two touch different parts of the memory, by the bounds of loops and guards."""
    if not all(isinstance(d, int) for d in write.buffer.shape):
        return False
    _, places = merged_axes(write.buffer.shape, (write.indices, read.indices))
    parts = []
    try:
        for owner, (access, place) in enumerate(zip((write, read), places, strict=True)):
            extents = {s.var: s.extent for s, _ in access.path if isinstance(s, For)}
            parts.append(Points({}, extents).boxes(place, access.facts(), np.full(1, owner)))
    except Unknown:
        return False
    return apart(parts)
