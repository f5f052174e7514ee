"""Where the threads of a block have to wait for each other.

The loops over threads of a block are done one after the other.  On the machine, threads go on to
the next loop at once, which is right unless it touches what other threads touch in an earlier one:
then a barrier stands between them.  Where only threads of one warp meet, the warp alone waits.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from hlo_mlc.expr.core import Buffer, Expr, Var, loads
from hlo_mlc.loops.accesses import all_accesses
from hlo_mlc.loops.core import For, LoopKind, Stmt
from hlo_mlc.loops.dependence import Memory
from hlo_mlc.target.cuda import WARP


class Wait(enum.IntEnum):
    """Who waits."""

    NOBODY = 0
    WARP = 1
    BLOCK = 2


@dataclass(frozen=True, slots=True)
class _Touched:
    """One buffer: written or only read, and by which of its indices the warp is told."""

    buffer: Buffer
    writes: bool
    rows: frozenset[tuple[int, int]]  # (dimension, threads that share this index)


@dataclass(frozen=True, slots=True)
class Pending:
    """Accesses that other threads may still be about to make."""

    touched: tuple[_Touched, ...]
    warp_waited: bool = False


@dataclass(slots=True)
class Barriers:
    """What was touched since all threads last met."""

    memory: Memory
    whole_warps: bool = True  # or else nobody waits for a warp, some of whose threads are not there
    pending: tuple[Pending, ...] = ()

    def before(self, statements: tuple[Stmt, ...], conditions: tuple[Expr, ...] = ()) -> Wait:
        """Who has to wait before threads run these statements, or all evaluate conditions."""
        new = _touched(statements) + _read(conditions)
        wait = max((self._between(p, new) for p in self.pending), default=Wait.NOBODY)
        if wait is Wait.WARP and not self.whole_warps:
            wait = Wait.BLOCK
        if wait is Wait.BLOCK:
            self.pending = ()
        elif wait is Wait.WARP:
            self.pending = tuple(Pending(p.touched, True) for p in self.pending)
        if new:
            self.pending += (Pending(new),)
        return wait

    def repeat(self, body: tuple[Stmt, ...], conditions: tuple[Expr, ...]) -> bool:
        """Whether all have to wait between two rounds of a loop; then nothing is pending."""
        new = _touched(body) + _read(conditions)
        if self._between(Pending(new), new) is not Wait.NOBODY:
            self.pending = ()
            return True
        self.pending += (Pending(new),)
        return False

    def read(self, conditions: tuple[Expr, ...]) -> None:
        """All threads have evaluated conditions."""
        self.pending += (Pending(_read(conditions)),)

    def _between(self, before: Pending, after: tuple[_Touched, ...]) -> Wait:
        wait = Wait.NOBODY
        for a in before.touched:
            for b in after:
                if not (a.writes or b.writes) or not self.memory.may_overlap(a.buffer, b.buffer):
                    continue
                if a.buffer != b.buffer or not a.rows & b.rows:
                    return Wait.BLOCK
                wait = Wait.WARP
        return Wait.NOBODY if before.warp_waited else wait


def _touched(statements: tuple[Stmt, ...]) -> tuple[_Touched, ...]:
    """What threads share of all that statements touch; memory that they share is the same in every
    round of a loop, also where it is allocated in it."""
    found = []
    for access in all_accesses(statements):
        if access.buffer.scope in ("thread", "register", "stack"):
            continue
        threads = [
            s.var for s, _ in access.path if isinstance(s, For) and s.kind is LoopKind.THREAD
        ]
        found.append(_Touched(access.buffer, access.writes, _rows(access.indices, threads)))
    return tuple(dict.fromkeys(found))


def _rows(indices: tuple[Expr, ...], threads: list[Var]) -> frozenset[tuple[int, int]]:
    """The indices that are the outermost thread variable, if it stands for a part of a warp."""
    if not threads:
        return frozenset()
    size = 1
    for var in threads[1:]:
        size *= var.extent
    if WARP % size:
        return frozenset()
    return frozenset((d, size) for d, i in enumerate(indices) if i is threads[0])


def _read(conditions: tuple[Expr, ...]) -> tuple[_Touched, ...]:
    return tuple(_Touched(load.source, False, frozenset()) for e in conditions for load in loads(e))
