"""Results in the memory of operands: every element is read before it is overwritten."""

from __future__ import annotations

from collections.abc import Iterator

from hlo_mlc.expr.core import Buffer
from hlo_mlc.loops.accesses import SIDE_BY_SIDE, Access, Inside, Survey
from hlo_mlc.loops.core import Accumulate, For, If, LoopProgram, While
from hlo_mlc.loops.dependence import Memory, carried, variables
from hlo_mlc.loops.equations import solve
from hlo_mlc.loops.regions import disjoint
from hlo_mlc.loops.touching import reached


def overwritten(program: LoopProgram, survey: Survey) -> Iterator[str]:
    """The reads of operands that may come after the element was overwritten."""
    if not program.aliases:
        return
    memory = Memory.of(program)
    shared = {buffer for pair in program.aliases for buffer in pair}
    places = [a for a in survey.found if a.buffer in shared]
    written = frozenset(a.buffer for a in survey.found if a.writes)
    verdicts: dict[tuple, bool] = {}
    for result, operand in program.aliases:
        if not memory.comparable(result, operand):
            yield f"{operand!r} and {result!r} have the same memory, but not the same layout"
            continue
        writes = [(n, a) for n, a in enumerate(places) if a.writes and a.buffer == result]
        reads = [(n, a) for n, a in enumerate(places) if not a.writes and a.buffer == operand]
        for n, write in writes:
            for m, read in reads:
                key = _circumstances(write), _circumstances(read), n < m, write.stmt is read.stmt
                if key not in verdicts:
                    verdicts[key] = _comes_after(write, read, n < m, memory, written)
                if verdicts[key]:
                    yield (
                        f"{operand!r}, whose memory {result!r} takes over, is read before it is "
                        f"overwritten: {read} may come after {write}"
                    )
                    return


def _circumstances(access: Access) -> tuple:
    """Everything that the place of an access, and its effect, depend on: several results that
    overwrite operands usually differ in their buffers alone."""
    stmt = access.stmt if isinstance(access.stmt, Accumulate) else None
    return access.path, access.indices, access.guards, access.buffer.shape, access.called, stmt


def _comes_after(
    write: Access, read: Access, textually: bool, memory: Memory, written: frozenset[Buffer]
) -> bool:
    """Whether an element may be read by `read` after `write` has overwritten it; `written` are the
    buffers whose elements may change in between."""
    common = 0
    while common < min(len(write.path), len(read.path)) and write.path[common] == read.path[common]:
        common += 1
    for n, (stmt, _) in enumerate(write.path[:common]):
        if isinstance(stmt, While):
            return True
        # That iterations side by side are independent is asked anyway.
        if (
            isinstance(stmt, For)
            and stmt.kind not in SIDE_BY_SIDE
            and carried(stmt, memory, inside=Inside([write, read], written, n + 1)) is not None
        ):
            return True
    if not textually or write.stmt is read.stmt:
        return False
    next_to = [path[common][0] for path in (write.path, read.path) if len(path) > common]
    if len(next_to) == 2 and next_to[0] is next_to[1] and isinstance(next_to[0], If):
        return False  # one of the branches is taken
    inside = variables(tuple(next_to))
    return solve(write, read, inside, written) is not None and not _are_apart(write, read)


def _are_apart(write: Access, read: Access) -> bool:
    """Whether the accesses never touch the same element, found by enumerating the values of
    variables."""
    first, second = reached(write), reached(read)
    return first is not None and second is not None and disjoint(first, second, write.buffer.shape)
