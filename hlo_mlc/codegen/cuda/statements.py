"""Writing the statements of one block of threads."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable

from hlo_mlc.codegen.clike.spelling import Binding, infix, operand
from hlo_mlc.codegen.clike.values import Memory, Place, identifier
from hlo_mlc.codegen.cuda.atomics import write_atomic
from hlo_mlc.codegen.cuda.barriers import Barriers, Wait
from hlo_mlc.codegen.cuda.dialect import CUDA
from hlo_mlc.codegen.cuda.matrices import write_products
from hlo_mlc.codegen.cuda.pairs import has_pairs, load_pairs, write_points
from hlo_mlc.codegen.cuda.vectors import lockstep, write_vector
from hlo_mlc.codegen.cuda.writer import Writer
from hlo_mlc.expr import index
from hlo_mlc.expr.core import Buffer, Expr, Var
from hlo_mlc.expr.dtypes import DType
from hlo_mlc.loops.accesses import accesses, is_full
from hlo_mlc.loops.core import (
    Accumulate,
    Allocate,
    For,
    If,
    LoopKind,
    Stmt,
    Store,
    While,
    folding,
    walk,
)
from hlo_mlc.loops.rewrite import expressions, substitute
from hlo_mlc.loops.text import headline
from hlo_mlc.support.errors import CodegenError
from hlo_mlc.target.cuda import VECTOR_BYTES, WARP

_FULL_WARP = "0xffffffffu"
_BARRIERS = {Wait.WARP: "__syncwarp();", Wait.BLOCK: "__syncthreads();"}


class BlockWriter(Writer):
    """The body of a kernel function: what one block of `threads` threads does.

    Shared memory is declared, or lies in what `shared` names.
    """

    def __init__(
        self, memory: Memory, barriers: Barriers, threads: int, shared: str | None = None
    ) -> None:
        super().__init__(memory, barriers, threads)
        self._shared, self._shared_bytes = shared, 0
        self._positions: dict[tuple[int, int, bool], str] = {}
        self._in_threads = False
        self._lane: Var | None = None  # of the threads around
        self._arrivals: dict[int, str] = {}  # what copies need, by the line of a barrier

    def text(self) -> list[str]:
        """All lines.  A thread's copies have arrived when it meets others: at every barrier, since
        one that stands before a copy in a loop comes after it too."""
        lines = [*self.header.text]
        for number, line in enumerate(self.lines.text):
            if self.copies and number in self._arrivals:
                lines.append(self._arrivals[number])
            lines.append(line)
        return lines

    def write(self, statements: tuple[Stmt, ...]) -> None:
        """All statements, one after the other."""
        for is_product, group in itertools.groupby(statements, _is_product):
            if is_product:
                write_products(self, tuple(group), self._lane)
                continue
            self._each(group)

    def _each(self, statements: Iterable[Stmt]) -> None:
        for is_store, group in itertools.groupby(statements, lambda s: isinstance(s, Store)):
            if is_store:
                self._stores(tuple(group))
                continue
            self._others(group)

    def _stores(self, statements: tuple[Store, ...]) -> None:
        groups = lockstep(self, statements) if has_pairs(self, statements) else [statements]
        for group in groups:
            if has_pairs(self, group):
                with self.guarded(group[0].guard):
                    write_points(self, group)
                continue
            for stmt in group:
                self.store(stmt)

    def _others(self, statements: Iterable[Stmt]) -> None:
        for stmt in statements:
            match stmt:
                case For() if stmt.kind is LoopKind.THREAD:
                    self._threads(stmt)
                case For() if stmt.kind is LoopKind.VECTORIZE:
                    write_vector(self, stmt)
                case For():
                    self._for(stmt)
                case While():
                    self._while(stmt)
                case If():
                    self._if(stmt)
                case Allocate():
                    self._allocate(stmt)
                case Accumulate() if stmt.atomic:
                    write_atomic(self, stmt)
                case Accumulate():
                    self.accumulate(stmt)
                case _:
                    raise CodegenError(
                        f"Expected a statement that a block of threads can do, got "
                        f"`{headline(stmt)}`"
                    )

    # Threads

    def _threads(self, stmt: For) -> None:
        """A nest of loops over threads, with a barrier before it where one is needed."""
        nest = thread_nest(stmt)
        self._wait(self.barriers.before((stmt,)))
        size = math.prod(s.var.extent for s in nest)
        conditions, stride = [], size
        for loop in nest:
            stride //= loop.var.extent
            is_partial = not is_full(loop) or (loop is stmt and size < self.threads)
            if loop.var.extent == 1 and not is_partial:
                continue
            text = self._position(loop.var, stride, outermost=loop is stmt)
            self.bind(loop.var, text)
            if is_partial:
                (extent,) = self.values().write(loop.extent)
                conditions.append(infix(text, "<", extent))
        single = {s.var: index.constant(0) for s in nest if s.var.extent == 1}
        body = substitute(nest[-1].body, single)
        update = folding(nest[-1])
        self._in_threads = True
        self._lane = nest[-1].var if is_full(nest[-1]) else None
        self.filled = _filled(body)
        if update is not None:
            self._fold(body[0], nest[-1].var, conditions)
        else:
            with self.where(" && ".join(conditions)):
                self.write(body)
        self._in_threads, self._lane = False, None

    def _position(self, var: Var, stride: int, outermost: bool) -> str:
        """The number of a thread along one loop of a nest."""
        key = stride, var.extent, outermost
        known = self._positions.get(key)
        if known is None:
            known = self._positions[key] = self.lines.fresh(identifier(var.name))
            text = "threadIdx.x" if stride == 1 else f"threadIdx.x / {stride}"
            if not outermost:
                text = f"{text} % {var.extent}"
            self.header.emit(f"const int {known} = {text};")
        return known

    def _wait(self, wait: Wait) -> None:
        if wait is not Wait.NOBODY:
            self._arrivals[len(self.lines.text)] = self.lines.indented("mlc_wait_for_copies();")
            self.lines.emit(_BARRIERS[wait])

    def _fold(self, update: Accumulate, var: Var, conditions: list[str]) -> None:
        """Threads' terms combined within their warp by halves, and then with the element."""
        width = var.extent
        combiner = update.combiner
        if (
            width > WARP
            or width & (width - 1)
            or combiner.identity is None
            or (update.guard is not None and var in update.guard.free)
        ):
            raise CodegenError(
                f"Expected up to {WARP} threads, a power of two, all under one "
                f"condition, and a combiner with an identity, in "
                f"`{headline(update)}`"
            )
        if update.guard is not None:
            (guard,) = self.values().write(update.guard)
            conditions = [*conditions, guard if not conditions else operand(guard, Binding.ATOM)]
        names = []
        for neutral in combiner.identity:
            names.append(self.lines.temporary())
            self.lines.emit(
                f"{CUDA.element_type(neutral.dtype)} {names[-1]} = {CUDA.literal(neutral)};"
            )
        with self.where(" && ".join(conditions)):
            for name, text in zip(names, self.values().write(*update.terms), strict=True):
                self.lines.emit(f"{name} = {text};")
        distance = width // 2
        dtypes = [v.dtype for v in combiner.lhs]
        while distance:
            others = [
                self.lines.named(CUDA.element_type(dtype), _shuffled(name, dtype, distance, width))
                for name, dtype in zip(names, dtypes, strict=True)
            ]
            self.combine(update, names, others, names)
            distance //= 2
        if width > 1:
            conditions = [*conditions, f"{self.variables[var]} == 0"]
        with self.where(" && ".join(conditions)):
            targets = [self.values().element(b, update.indices) for b in update.buffers]
            self.combine(update, targets, names, targets)

    def accumulate(self, stmt: Accumulate) -> None:
        with self.guarded(stmt.guard):
            values = self.values()
            load_pairs(self, values, stmt.terms)
            self.update(stmt, values)

    # Control

    def _for(self, stmt: For) -> None:
        uniform = not self._in_threads
        if stmt.kind not in (LoopKind.SERIAL, LoopKind.UNROLL):
            raise CodegenError(f"Expected a loop that a block can run, got `{headline(stmt)}`")
        if uniform:
            self._wait(self.barriers.before((), expressions(stmt)))
        with self.iterations(stmt, "#pragma unroll" if stmt.kind is LoopKind.UNROLL else ""):
            self._body(stmt.body, uniform)

    def _while(self, stmt: While) -> None:
        uniform = not self._in_threads
        if uniform:
            self._wait(self.barriers.before((), (stmt.condition,)))
        with self.rounds(stmt.condition):
            if self._body(stmt.body, uniform, (stmt.condition,)):
                self._wait(Wait.BLOCK)  # before the condition is looked at again

    def _body(
        self, body: tuple[Stmt, ...], uniform: bool, conditions: tuple[Expr, ...] = ()
    ) -> bool:
        """The body of a loop, which all threads of a block go through together if `uniform`.

        Says whether they wait for each other in every round: before anything of it is done, for
        what the round before it did, and for conditions that were read.
        """
        before = self.barriers.pending
        waits = uniform and self.barriers.repeat(body, conditions)
        if waits:
            self._wait(Wait.BLOCK)
        self.write(body)
        self.barriers.pending += before  # there may be no round at all
        if conditions and uniform:
            self.barriers.read(conditions)
        return waits

    def _if(self, stmt: If) -> None:
        if not self._in_threads:
            self._wait(self.barriers.before((), (stmt.condition,)))
        (condition,) = self.values().write(stmt.condition)
        before = self.barriers.pending
        with self.braces(f"if ({condition})"):
            self.write(stmt.then)
        after = self.barriers.pending
        if stmt.otherwise:
            self.barriers.pending = before
            with self.braces("else"):
                self.write(stmt.otherwise)
        self.barriers.pending += after + before

    def _allocate(self, stmt: Allocate) -> None:
        buffer = stmt.buffer
        owned = _thread_axes(stmt) if buffer.scope == "thread" else 0
        size = math.prod(buffer.shape[owned:])
        name = self.lines.fresh(identifier(buffer.name))
        kind = CUDA.element_type(buffer.dtype)
        is_scalar = size == 1 and buffer.scope != "shared"
        declared = f"{kind} {name}" if is_scalar else f"{kind} {name}[{size}]"
        if buffer.scope == "shared" and self._shared is not None:
            start = infix(self._shared, "+", str(self._shared_bytes))
            declared = f"{kind}* {name} = reinterpret_cast<{kind}*>({start})"
            self._shared_bytes += shared_size(buffer)
        elif buffer.scope == "shared":
            alignment = min(VECTOR_BYTES, buffer.dtype.bytes * (size & -size))
            declared = f"alignas({max(alignment, buffer.dtype.bytes)}) __shared__ {declared}"
        self.lines.emit(f"{declared};")
        self.memory.places[buffer] = Place(name, is_scalar, owned)
        self.write(stmt.body)
        del self.memory.places[buffer]


def shared_size(buffer: Buffer) -> int:
    """Bytes of a buffer in shared memory, where each begins at a vector."""
    return -(-buffer.bytes // VECTOR_BYTES) * VECTOR_BYTES


def _is_product(stmt: Stmt) -> bool:
    return isinstance(stmt, For) and stmt.kind is LoopKind.TENSOR


def _filled(statements: tuple[Stmt, ...]) -> frozenset[Buffer]:
    """Shared memory that statements write and do not read."""
    touched = accesses(statements)
    return frozenset(a.buffer for a in touched if a.buffer.scope == "shared" and a.writes) - {
        a.buffer for a in touched if not a.writes or isinstance(a.stmt, Accumulate)
    }


def thread_nest(outermost: For) -> list[For]:
    """A loop over threads and those that are directly inside of it."""
    nest = [outermost]
    while isinstance(nest[-1].body[0], For) and nest[-1].body[0].kind is LoopKind.THREAD:
        nest.append(nest[-1].body[0])
    return nest


def _thread_axes(stmt: Allocate) -> int:
    """How many first axes of a buffer of scope "thread" are those of the threads."""
    for inner in walk(stmt.body):
        if isinstance(inner, For) and inner.kind is LoopKind.THREAD:
            return len(thread_nest(inner))
    raise CodegenError(f"Expected threads to use {stmt.buffer!r}, but there are none")


def _shuffled(name: str, dtype: DType, distance: int, width: int) -> str:
    """The value of the thread that many places further on."""
    kind = CUDA.element_type(dtype)
    if dtype.bits < 32:
        return f"({kind})__shfl_down_sync({_FULL_WARP}, (int){name}, {distance}, {width})"
    return f"__shfl_down_sync({_FULL_WARP}, {name}, {distance}, {width})"
