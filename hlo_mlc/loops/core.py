"""The loop IR: statements over buffers, made of scalar expressions.

Order, placement and parallelism are explicit here and nowhere above.  Everything is a frozen
value that prints (loops/text.py), runs in an interpreter (loops/interpret.py), is checked
(loops/verify.py), is rewritten by schedule primitives, and is printed as LLVM IR or CUDA C++.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hlo_mlc.expr.combiner import Combiner
from hlo_mlc.expr.core import Buffer, Expr, Var

# The widest vector loop: 64 lanes of one byte are a full AVX-512 register.
MAX_LANES = 64
# Bytes of private buffers that one function may have: threads of a pool have small stacks, of which
# others need their part, too.
STACK_BYTES = 256 * 1024


class LoopKind(enum.Enum):
    """How the iterations of a loop are executed."""

    SERIAL = "serial"
    PARALLEL = "parallel"  # independent tasks, in any order, possibly on several threads
    VECTORIZE = "vectorize"  # one vector, a lane an iteration; constant extent
    UNROLL = "unroll"  # written out; constant extent
    BLOCK = "block"  # independent tasks, each a block of threads of a GPU
    THREAD = "thread"  # the threads of a block, in any order; all are done before what follows
    TENSOR = "tensor"  # a lane's part of a small matrix product of a warp (loops/matrices.py)


@dataclass(frozen=True, slots=True, eq=False)
class For:
    """`for var in 0 .. extent`."""

    var: Var
    extent: Expr
    kind: LoopKind
    body: tuple[Stmt, ...]

    def around(self, body: tuple[Stmt, ...]) -> For:
        """The same loop of other statements."""
        return For(self.var, self.extent, self.kind, body)


@dataclass(frozen=True, slots=True, eq=False)
class Store:
    """`buffer[indices] = value`, skipped where `guard` is false."""

    buffer: Buffer
    indices: tuple[Expr, ...]
    value: Expr
    guard: Expr | None = None
    streaming: bool = False  # written once and not read again soon: may bypass the caches

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        return (self.buffer,)

    @property
    def terms(self) -> tuple[Expr, ...]:
        return (self.value,)

    def with_parts(
        self,
        buffers: Sequence[Buffer],
        indices: tuple[Expr, ...],
        terms: Sequence[Expr],
        guard: Expr | None,
    ) -> Store:
        """A store of the same kind."""
        return Store(buffers[0], indices, terms[0], guard, self.streaming)


@dataclass(frozen=True, slots=True, eq=False)
class Accumulate:
    """`buffers[indices] = combiner(buffers[indices], terms)`, all results taking effect at once.

    Where the indices do not depend on the variable of an enclosing VECTORIZE loop, the lanes are
    combined with each other first, by halves: lane l with lane l + width/2, and so on.
    """

    buffers: tuple[Buffer, ...]
    indices: tuple[Expr, ...]
    combiner: Combiner
    terms: tuple[Expr, ...]
    guard: Expr | None = None
    atomic: bool = False  # iterations side by side may update one element, in any order

    def with_parts(
        self,
        buffers: Sequence[Buffer],
        indices: tuple[Expr, ...],
        terms: Sequence[Expr],
        guard: Expr | None,
    ) -> Accumulate:
        """An update of the same kind."""
        return Accumulate(tuple(buffers), indices, self.combiner, tuple(terms), guard, self.atomic)


@dataclass(frozen=True, slots=True, eq=False)
class Prefetch:
    """Fetch the element `ahead` places behind `buffer[indices]` into the cache, because it is read
    soon.

    Neither of the two elements need exist. The statement affects nothing but time.
    """

    buffer: Buffer
    indices: tuple[Expr, ...]
    ahead: int


@dataclass(frozen=True, slots=True, eq=False)
class If:
    """A branch on a condition that is the same for all lanes of an enclosing vector loop."""

    condition: Expr
    then: tuple[Stmt, ...]
    otherwise: tuple[Stmt, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class While:
    """Repeat `body` as long as `condition`, evaluated before each iteration, holds."""

    condition: Expr
    body: tuple[Stmt, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Allocate:
    """`buffer` (scope "stack", "register", "shared" or "thread") exists, uninitialised, during
    `body`."""

    buffer: Buffer
    body: tuple[Stmt, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """Run another program on `buffers`, its operands and then its results.

    The program has no scratch, and its results may hold values already.  Nests that differ only
    in the buffers that they work on share one program: it is scheduled and compiled once.  So do
    those that read different rows of one: `places` are the first indices of what each operand is of
    its buffer, none of a whole one.
    """

    program: LoopProgram
    buffers: tuple[Buffer, ...]
    places: tuple[tuple[int, ...], ...] = ()

    @property
    def parts(self) -> Iterator[tuple[Buffer, tuple[int, ...]]]:
        """The buffers, and the first indices of what it works on of each."""
        return zip(self.buffers, itertools.chain(self.places, itertools.repeat(())), strict=False)


Stmt = For | Store | Accumulate | Prefetch | If | While | Allocate | Call


@dataclass(frozen=True, slots=True, eq=False)
class LoopProgram:
    """One kernel: buffers in the order of its calling convention, and what it does.

    `scratch` buffers live in one arena at the given byte offsets (multiples of 64); those whose
    lifetimes do not overlap may share bytes.  `aliases` are (result, operand) pairs that may be
    the same memory.  Operands are never written, results are written before they are read.
    """

    name: str
    operands: tuple[Buffer, ...]
    results: tuple[Buffer, ...]
    body: tuple[Stmt, ...]
    scratch: tuple[tuple[Buffer, int], ...] = ()
    aliases: tuple[tuple[Buffer, Buffer], ...] = ()

    @property
    def scratch_bytes(self) -> int:
        """Size of the arena, a multiple of 64."""
        return max((offset + -(-b.bytes // 64) * 64 for b, offset in self.scratch), default=0)


def folding(loop: For) -> Accumulate | None:
    """The update of one element by all threads of a loop, if that is all that the loop does.

    As in a vector, the threads' terms are combined with each other first, by halves.
    """
    if loop.kind is LoopKind.THREAD and len(loop.body) == 1:
        update = loop.body[0]
        if isinstance(update, Accumulate) and all(loop.var not in i.free for i in update.indices):
            return update
    return None


LEAVES = frozenset((Store, Accumulate, Prefetch, Call))
"""Statements that hold no others."""


def bodies(stmt: Stmt) -> tuple[tuple[Stmt, ...], ...]:
    """The statement lists nested directly in `stmt`."""
    kind = type(stmt)
    if kind in LEAVES:
        return ()
    return (stmt.then, stmt.otherwise) if kind is If else (stmt.body,)


def walk(statements: tuple[Stmt, ...]) -> Iterator[Stmt]:
    """All statements, outer before inner, in program order."""
    stack = list(reversed(statements))
    while stack:
        stmt = stack.pop()
        yield stmt
        kind = type(stmt)
        if kind is If:
            stack.extend(reversed(stmt.otherwise))
            stack.extend(reversed(stmt.then))
        elif kind not in LEAVES:
            stack.extend(reversed(stmt.body))
