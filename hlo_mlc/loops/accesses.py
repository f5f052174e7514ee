"""The places in a program where memory is touched, with what stands around each of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from hlo_mlc.expr import index
from hlo_mlc.expr.core import Buffer, Expr, Load, Var, loads
from hlo_mlc.loops.core import (
    Accumulate,
    Allocate,
    Call,
    For,
    If,
    LoopKind,
    LoopProgram,
    Stmt,
    Store,
    While,
    bodies,
    walk,
)
from hlo_mlc.loops.facts import Facts, learned, of_condition
from hlo_mlc.loops.rewrite import constant_extent, expressions, inlined
from hlo_mlc.loops.text import headline

SIDE_BY_SIDE = (LoopKind.PARALLEL, LoopKind.VECTORIZE, LoopKind.BLOCK, LoopKind.THREAD)
"""Loops no iteration of which waits for another."""

# The statements around something, and in which of their bodies it is.
Path = tuple[tuple[Stmt, int], ...]


@dataclass(frozen=True, slots=True, eq=False)
class Access:
    """One place in a program where `buffer[indices]` is touched; `home` says how far out the
    statement of its path is that allocates the buffer, -1 if none of them does."""

    stmt: Stmt
    buffer: Buffer
    indices: tuple[Expr, ...]
    writes: bool
    guards: tuple[Expr, ...] = ()
    path: Path = ()
    home: int = -1
    called: bool = False  # by a program that this one calls

    def __str__(self) -> str:
        return f"`{headline(self.stmt)}`"

    def at(self, indices: tuple[Expr, ...]) -> Access:
        """The same access, described by another path."""
        return Access(
            self.stmt,
            self.buffer,
            indices,
            self.writes,
            self.guards,
            self.path,
            self.home,
            self.called,
        )

    def within(self, depth: int) -> Access:
        """The same access, seen from inside of the outermost `depth` statements of its path."""
        return Access(
            self.stmt,
            self.buffer,
            self.indices,
            self.writes,
            self.guards,
            self.path[depth:],
            max(-1, self.home - depth),
            self.called,
        )

    def facts(self) -> Facts:
        """What the loops and branches of its path imply about variables where the access
        happens."""
        around = [fact for stmt, branch in self.path for fact in learned(stmt)[branch]]
        return (*around, *(fact for guard in self.guards for fact in of_condition(guard)))

    @property
    def is_reached(self) -> bool:
        """Whether the statement is executed for every point of the loops around it."""
        return is_always_entered(self.path)


def is_always_entered(path: Path) -> bool:
    """Whether the body of a statement is executed for every point of the loops around it."""
    return all(isinstance(s, Allocate) or (isinstance(s, For) and is_full(s)) for s, _ in path)


def is_full(loop: For) -> bool:
    """Whether the variable takes every value of its range, and the range is not empty."""
    return (
        loop.var.extent is not None
        and loop.var.extent > 0
        and constant_extent(loop) == loop.var.extent
    )


def accesses(statements: tuple[Stmt, ...], only: Buffer | None = None) -> list[Access]:
    """The accesses to buffers that exist outside `statements`, or to just one of these, in
    program order; those of programs that are called among them."""
    return [a for a in _Walk(True, None, only).over(statements).found if a.home < 0]


def all_accesses(statements: tuple[Stmt, ...]) -> list[Access]:
    """All accesses, those to buffers that exist only inside `statements` included."""
    return _Walk(True).over(statements).found


@dataclass(frozen=True, slots=True)
class Inside:
    """What happens in the bodies of a statement, which have `depth` statements around them: the
    accesses to buffers that exist outside of them, and which buffers are written, those that exist
    in there alone among them."""

    touched: list[Access]
    written: frozenset[Buffer]
    depth: int = 0

    @classmethod
    def of(cls, statements: tuple[Stmt, ...], only: Buffer | None = None) -> Inside:
        """What happens in statements, to one buffer or to all; what is around them is left out."""
        if only is None:
            return cls.at(_Walk(True).over(statements).found, 0)
        return cls(accesses(statements, only), frozenset(_written(statements)))

    @classmethod
    def at(cls, found: list[Access], depth: int) -> Inside:
        """What happens at these places, which are all there are at that depth."""
        return cls(
            [a for a in found if a.home < depth],
            frozenset(a.buffer for a in found if a.writes),
            depth,
        )


def _written(statements: tuple[Stmt, ...]) -> Iterator[Buffer]:
    """The buffers that statements write, and programs that they call."""
    for stmt in walk(statements):
        if isinstance(stmt, Store | Accumulate):
            yield from stmt.buffers
        elif isinstance(stmt, Call):
            yield from _written(inlined(stmt))


@dataclass(frozen=True, slots=True)
class Survey:
    """All accesses of a program, found in one walk, for whoever asks something about them.

    `spans`: the positions in `found` of what a statement does, and how deep it stands; of one that
    stands in several places, those of the last.
    """

    found: list[Access]
    spans: dict[Stmt, tuple[int, int, int]]

    @classmethod
    def of(cls, program: LoopProgram, *, called: bool = True) -> Survey:
        """The survey of a program, reads that a body repeats left out; only with `called` what the
        programs do that it calls outside of loops whose iterations are side by side, where nobody
        asks for it."""
        made = _Walk(called, frozenset(o for _, o in program.aliases)).over(program.body)
        return cls(made.found, made.spans)

    @property
    def own(self) -> Iterator[Access]:
        """The accesses of the program itself, not of those that it calls."""
        return (a for a in self.found if not a.called)

    def inside(self, stmt: Stmt) -> Inside:
        """What happens in the bodies of a statement."""
        begin, end, depth = self.spans[stmt]
        return Inside.at(self.found[begin:end], depth + 1)


@dataclass(slots=True)
class _Walk:
    """`overwritten`: the operands that results may overwrite, where repeated reads are left out;
    `only` a buffer to which accesses are taken, if not to all."""

    called: bool
    overwritten: frozenset[Buffer] | None = None
    only: Buffer | None = None
    found: list[Access] = field(default_factory=list)
    spans: dict[Stmt, tuple[int, int, int]] = field(default_factory=dict)

    def over(self, statements: tuple[Stmt, ...]) -> _Walk:
        """Takes all statements."""
        self._body(statements, (), {}, False)
        return self

    def _body(
        self, statements: tuple[Stmt, ...], path: Path, homes: dict[Buffer, int], called: bool
    ) -> None:
        read: set[tuple[Load, tuple[Expr, ...]]] = set()
        for stmt in statements:
            begin, depth = len(self.found), len(path)
            if isinstance(stmt, Call):
                if self.called or any(
                    isinstance(s, For) and s.kind in SIDE_BY_SIDE for s, _ in path
                ):
                    self._body(inlined(stmt), path, homes, True)
            else:
                self._own(stmt, path, homes, called, read)
                known = {**homes, stmt.buffer: depth} if isinstance(stmt, Allocate) else homes
                for branch, body in enumerate(bodies(stmt)):
                    self._body(body, (*path, (stmt, branch)), known, called)
            self.spans[stmt] = begin, len(self.found), depth

    def _once(self, buffer: Buffer) -> bool:
        """Whether equal reads of a body count once: no store to another buffer changes it."""
        return self.overwritten is not None and (
            buffer.scope in ("stack", "register")
            or (buffer.scope == "operand" and buffer not in self.overwritten)
        )

    def _own(
        self,
        stmt: Stmt,
        path: Path,
        homes: dict[Buffer, int],
        called: bool,
        read: set[tuple[Load, tuple[Expr, ...]]],
    ) -> None:
        """Takes a statement; `read` is what those before it in the same body have read.  Of that
        once is enough for proofs where no alias matters: what holds of the first read holds of
        those behind it, which find at least as much written.  Unrolled, a body reads elements
        dozens of times."""
        writes = isinstance(stmt, Store | Accumulate)
        written, guard = (stmt.buffers, stmt.guard) if writes else ((), None)
        guards = () if guard is None else (guard,)
        own_reads: set[tuple[Load, tuple[Expr, ...]]] = set()
        for e in expressions(stmt):
            outer = () if e is guard else guards
            for load in loads(e):
                if self.only is not None and load.source != self.only:
                    continue
                seen = read if self._once(load.source) else own_reads
                if (load, outer) not in seen:
                    seen.add((load, outer))
                    own = () if load.guard is None else (load.guard,)
                    self.found.append(
                        Access(
                            stmt,
                            load.source,
                            load.indices,
                            False,
                            (*outer, *own),
                            path,
                            homes.get(load.source, -1),
                            called,
                        )
                    )
        for buffer in written:
            if self.only is None or buffer == self.only:
                self.found.append(
                    Access(
                        stmt,
                        buffer,
                        stmt.indices,
                        True,
                        guards,
                        path,
                        homes.get(buffer, -1),
                        called,
                    )
                )


def frame(path: Path) -> tuple[tuple[Expr, ...], ...]:
    """What a path says about the variables of an access: their ranges, and conditions on them."""
    found: list[tuple[Expr, ...]] = []
    for stmt, branch in path:
        if isinstance(stmt, For):
            found.append((stmt.var, stmt.extent))
        elif isinstance(stmt, If | While):
            found.append((stmt.condition,) if branch == 0 else (stmt.condition, stmt.condition))
    return tuple(found)


def is_own_part(buffer: Buffer, indices: Sequence[Expr], threads: Sequence[Var]) -> bool:
    """Whether the first indices of a buffer are variables of loops over threads, all of them."""
    return 0 < len(threads) <= len(indices) and all(
        size == v.extent and (i is v or (size == 1 and i is index.constant(0)))
        for size, i, v in zip(buffer.shape, indices, threads, strict=False)
    )
