"""Writing the statements of one block of threads."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from hlo_mlc.codegen.cuda import types
from hlo_mlc.codegen.cuda.barriers import Barriers, Wait
from hlo_mlc.codegen.cuda.spelling import Binding, infix, operand
from hlo_mlc.codegen.cuda.values import (
    Lines,
    Memory,
    Place,
    Values,
    identifier,
    offset,
)
from hlo_mlc.expr import index
from hlo_mlc.expr.core import Buffer, Expr, Var, loads
from hlo_mlc.expr.dtypes import DType
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
from hlo_mlc.loops.dependence import accesses
from hlo_mlc.loops.rewrite import constant_extent, expressions, substitute
from hlo_mlc.loops.text import headline
from hlo_mlc.support.errors import CodegenError
from hlo_mlc.target.cuda import VECTOR_BYTES, WARP

_FULL_WARP = "0xffffffffu"
_BARRIERS = {Wait.WARP: "__syncwarp();", Wait.BLOCK: "__syncthreads();"}


class BlockWriter:
    """The body of a kernel function: what one block of `threads` threads does."""

    def __init__(self, memory: Memory, barriers: Barriers, threads: int) -> None:
        self.memory, self.barriers, self.threads = memory, barriers, threads
        self.header = Lines()  # declarations at the start of the function
        self.lines = Lines()
        self.shared_bytes = 0
        self._variables: dict[Var, str] = {}
        self._positions: dict[tuple[int, int, bool], str] = {}
        self._in_threads = False

    def bind(self, var: Var, text: str) -> None:
        """Say what a variable is called here."""
        self._variables[var] = text

    def write(self, statements: tuple[Stmt, ...]) -> None:
        """All statements, one after the other."""
        for stmt in statements:
            match stmt:
                case For() if stmt.kind is LoopKind.THREAD:
                    self._threads(stmt)
                case For() if stmt.kind is LoopKind.VECTORIZE:
                    self._vector(stmt)
                case For():
                    self._for(stmt)
                case While():
                    self._while(stmt)
                case If():
                    self._if(stmt)
                case Allocate():
                    self._allocate(stmt)
                case Store():
                    self._store(stmt)
                case Accumulate():
                    self._accumulate(stmt)
                case _:
                    raise CodegenError(f"Expected a statement that a block of threads can do, got "
                                       f"`{headline(stmt)}`")

    # Expressions

    def _values(self, given: Mapping[Expr, str] | None = None) -> Values:
        return Values(self.memory, self.lines, self._variables, given)

    @contextmanager
    def _braces(self, head: str) -> Iterator[None]:
        self.lines.emit(f"{head} {{")
        self.lines.depth += 1
        yield
        self.lines.depth -= 1
        self.lines.emit("}")

    # Threads

    def _threads(self, stmt: For) -> None:
        """A nest of loops over threads, with a barrier before it where one is needed."""
        nest = [stmt]
        while isinstance(nest[-1].body[0], For) and nest[-1].body[0].kind is LoopKind.THREAD:
            nest.append(nest[-1].body[0])
        self._wait(self.barriers.before((stmt,)))
        size = math.prod(s.var.extent for s in nest)
        conditions, stride = [], size
        for loop in nest:
            stride //= loop.var.extent
            if loop.var.extent == 1 and (loop is not stmt or size == self.threads):
                continue
            text = self._position(loop.var, stride, outermost=loop is stmt)
            self.bind(loop.var, text)
            full = constant_extent(loop) == loop.var.extent
            if not full or (loop is stmt and size < self.threads):
                extent, = self._values().write(loop.extent)
                conditions.append(infix(text, "<", extent))
        single = {s.var: index.constant(0) for s in nest if s.var.extent == 1}
        body = substitute(nest[-1].body, single)
        update = folding(nest[-1])
        self._in_threads = True
        if update is not None:
            self._fold(body[0], nest[-1].var, conditions)
        else:
            with self._where(conditions):
                self.write(body)
        self._in_threads = False

    @contextmanager
    def _where(self, conditions: list[str]) -> Iterator[None]:
        """Code for the threads that fulfil all conditions."""
        if not conditions:
            yield
            return
        with self._braces(f"if ({' && '.join(conditions)})"):
            yield

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
            self.lines.emit(_BARRIERS[wait])

    def _fold(self, update: Accumulate, var: Var, conditions: list[str]) -> None:
        """Threads' terms combined within their warp by halves, and then with the element."""
        width = var.extent
        combiner = update.combiner
        if width > WARP or width & (width - 1) or combiner.identity is None \
                or update.guard is not None:
            raise CodegenError(f"Expected up to {WARP} threads, a power of two, and a combiner "
                               f"with an identity, in `{headline(update)}`")
        names = []
        for neutral in combiner.identity:
            names.append(self.lines.temporary())
            self.lines.emit(f"{types.element_type(neutral.dtype)} {names[-1]} = "
                            f"{types.literal(neutral)};")
        with self._where(conditions):
            for name, text in zip(names, self._values().write(*update.terms), strict=True):
                self.lines.emit(f"{name} = {text};")
        distance = width // 2
        dtypes = [v.dtype for v in combiner.lhs]
        while distance:
            others = []
            for name, dtype in zip(names, dtypes, strict=True):
                others.append(self.lines.temporary())
                self.lines.emit(f"const {types.element_type(dtype)} {others[-1]} = "
                                f"{_shuffled(name, dtype, distance, width)};")
            self._combine(update, names, others, names)
            distance //= 2
        if width > 1:
            conditions = [*conditions, f"{self._variables[var]} == 0"]
        with self._where(conditions):
            targets = [self._values().element(b, update.indices) for b in update.buffers]
            self._combine(update, targets, names, targets)

    # Control

    def _for(self, stmt: For) -> None:
        uniform = not self._in_threads
        if stmt.kind not in (LoopKind.SERIAL, LoopKind.UNROLL):
            raise CodegenError(f"Expected a loop that a block can run, got `{headline(stmt)}`")
        if uniform:
            self._wait(self.barriers.before((), expressions(stmt)))
        extent, = self._values().write(stmt.extent)
        name = self.lines.fresh(identifier(stmt.var.name))
        kind = types.index_type(stmt.var)
        self.bind(stmt.var, name)
        if stmt.kind is LoopKind.UNROLL:
            self.lines.emit("#pragma unroll")
        with self._braces(f"for ({kind} {name} = 0; {name} < {operand(extent)}; ++{name})"):
            self._body(stmt.body, uniform)

    def _while(self, stmt: While) -> None:
        uniform = not self._in_threads
        if uniform:
            self._wait(self.barriers.before((), (stmt.condition,)))
        with self._braces("while (true)"):
            condition, = self._values().write(stmt.condition)
            self.lines.emit(f"if (!{operand(condition, Binding.ATOM)}) break;")
            if self._body(stmt.body, uniform, (stmt.condition,)):
                self._wait(Wait.BLOCK)  # before the condition is looked at again

    def _body(self, body: tuple[Stmt, ...], uniform: bool,
              conditions: tuple[Expr, ...] = ()) -> bool:
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
        condition, = self._values().write(stmt.condition)
        before = self.barriers.pending
        with self._braces(f"if ({condition})"):
            self.write(stmt.then)
        after = self.barriers.pending
        if stmt.otherwise:
            self.barriers.pending = before
            with self._braces("else"):
                self.write(stmt.otherwise)
        self.barriers.pending += after + before

    def _allocate(self, stmt: Allocate) -> None:
        buffer = stmt.buffer
        owned = _thread_axes(stmt) if buffer.scope == "thread" else 0
        size = math.prod(buffer.shape[owned:])
        name = self.lines.fresh(identifier(buffer.name))
        kind = types.element_type(buffer.dtype)
        is_scalar = size == 1 and buffer.scope != "shared"
        declared = f"{kind} {name}" if is_scalar else f"{kind} {name}[{size}]"
        if buffer.scope == "shared":
            self.shared_bytes += size * buffer.dtype.bytes
            alignment = min(VECTOR_BYTES, buffer.dtype.bytes * (size & -size))
            declared = f"alignas({max(alignment, buffer.dtype.bytes)}) __shared__ {declared}"
        self.lines.emit(f"{declared};")
        self.memory.places[buffer] = Place(name, is_scalar, owned)
        self.write(stmt.body)
        del self.memory.places[buffer]

    # Statements

    @contextmanager
    def _guarded(self, guard: Expr | None) -> Iterator[None]:
        if guard is None:
            yield
            return
        condition, = self._values().write(guard)
        with self._braces(f"if ({condition})"):
            yield

    def _store(self, stmt: Store) -> None:
        with self._guarded(stmt.guard):
            values = self._values()
            value, = values.write(stmt.value)
            self.lines.emit(f"{values.element(stmt.buffer, stmt.indices)} = {value};")

    def _accumulate(self, stmt: Accumulate) -> None:
        with self._guarded(stmt.guard):
            self._update(stmt, self._values())

    def _update(self, stmt: Accumulate, values: Values) -> None:
        terms = values.write(*stmt.terms)
        targets = [values.element(b, stmt.indices) for b in stmt.buffers]
        if not stmt.combiner.name:  # a combiner may use its operands several times
            for position, (term, var) in enumerate(zip(terms, stmt.combiner.rhs, strict=True)):
                terms[position] = self.lines.temporary()
                self.lines.emit(f"const {types.element_type(var.dtype)} {terms[position]} = "
                                f"{term};")
        self._combine(stmt, targets, terms, targets)

    def _combine(self, stmt: Accumulate, lhs: list[str], rhs: list[str],
                 targets: list[str]) -> None:
        """targets = combiner(lhs, rhs)"""
        combiner = stmt.combiner
        operands = dict(zip((*combiner.lhs, *combiner.rhs), (*lhs, *rhs), strict=True))
        results = Values(self.memory, self.lines, operands).write(*combiner.results)
        if len(results) > 1:
            for position, var in enumerate(combiner.lhs):
                name = self.lines.temporary()
                self.lines.emit(f"const {types.element_type(var.dtype)} {name} = "
                                f"{results[position]};")
                results[position] = name
        for target, result in zip(targets, results, strict=True):
            self.lines.emit(f"{target} = {result};")

    # Vectors

    def _vector(self, stmt: For) -> None:
        """What lies side by side is loaded and stored at once; each lane computes its part."""
        width = constant_extent(stmt)
        for group in self._lockstep(stmt):
            given: dict[Expr, str] = {}
            for inner in group:
                given.update(self._load_vectors(inner, stmt.var, width, given))
            whole = {s: self.lines.temporary() for s in group if isinstance(s, Store)
                     and s.guard is None
                     and self._is_vector(s.buffer, s.indices, stmt.var, width)}
            for inner, result in whole.items():
                kind = types.element_type(inner.buffer.dtype)
                self.lines.emit(f"Vector<{kind}, {width}> {result};")
            name = self.lines.fresh(identifier(stmt.var.name))
            self.bind(stmt.var, name)
            self.lines.emit("#pragma unroll")
            with self._braces(f"for (int {name} = 0; {name} < {width}; ++{name})"):
                values = self._values({e: f"{t}.at[{name}]" for e, t in given.items()})
                for inner in group:
                    with self._guarded(inner.guard):
                        self._lane(inner, values, whole.get(inner), name)
            for inner, result in whole.items():
                address = self._address(inner.buffer, inner.indices, stmt.var)
                self.lines.emit(f"mlc_store<{width}>({address}, {result});")

    def _lockstep(self, stmt: For) -> Iterator[list[Store | Accumulate]]:
        """The statements of a vector, in groups of which a lane may do all before the next lane
        does any: none touches what another one writes."""
        group: list[Store | Accumulate] = []
        written: list[Buffer] = []
        for inner in stmt.body:
            if not isinstance(inner, Store | Accumulate):
                raise CodegenError(f"Expected stores and updates in a vector, got "
                                   f"`{headline(inner)}`")
            touched = accesses((inner,))
            meets = any(self.barriers.memory.may_overlap(a.buffer, b)
                        for a in touched for b in written)
            if group and (meets or inner.guard is not None):
                yield group
                group, written = [], []
            group.append(inner)
            written += [a.buffer for a in touched if a.writes]
        yield group

    def _lane(self, stmt: Store | Accumulate, values: Values, result: str | None,
              lane: str) -> None:
        """One lane's part of a statement; `result` is the vector that a store of all fills."""
        if isinstance(stmt, Accumulate):
            self._update(stmt, values)
            return
        value, = values.write(stmt.value)
        target = values.element(stmt.buffer, stmt.indices) if result is None \
            else f"{result}.at[{lane}]"
        self.lines.emit(f"{target} = {value};")

    def _load_vectors(self, stmt: Store | Accumulate, var: Var, width: int,
                      known: Mapping[Expr, str]) -> dict[Expr, str]:
        """The loads of a statement that whole vectors serve, and the vectors' names."""
        found: dict[Expr, str] = {}
        values = (stmt.value,) if isinstance(stmt, Store) else stmt.terms
        for load in dict.fromkeys(load for e in values for load in loads(self.memory.legalized(e))):
            if load not in known and load.guard is None \
                    and self._is_vector(load.source, load.indices, var, width):
                found[load] = self.lines.temporary()
                address = self._address(load.source, load.indices, var)
                self.lines.emit(f"const auto {found[load]} = mlc_load<{width}>({address});")
        return found

    def _is_vector(self, buffer: Buffer, indices: tuple[Expr, ...], var: Var, width: int) -> bool:
        """Whether the lanes' elements are one aligned vector in memory that has addresses."""
        size = buffer.dtype.bytes * width
        if size > VECTOR_BYTES or size & (size - 1) or buffer.scope in (
                "register", "stack", "thread"):
            return False
        position = offset(buffer, self.memory.places[buffer], indices)
        if index.coefficient(position, var) != 1 \
                or loads(position):
            return False
        terms, constant = index.affine(position)
        return constant % width == 0 and all(c % width == 0 for a, c in terms.items()
                                             if a is not var)

    def _address(self, buffer: Buffer, indices: tuple[Expr, ...], var: Var) -> str:
        """The address of the first lane's element."""
        place = self.memory.places[buffer]
        position = index.subtract(offset(buffer, place, indices), var)
        if position is index.constant(0):
            return place.name
        text, = self._values().write(position)
        return infix(place.name, "+", text)


def _thread_axes(stmt: Allocate) -> int:
    """How many first axes of a buffer of scope "thread" are those of the threads."""
    for inner in walk(stmt.body):
        if isinstance(inner, For) and inner.kind is LoopKind.THREAD:
            count, nest = 1, inner
            while isinstance(nest.body[0], For) and nest.body[0].kind is LoopKind.THREAD:
                count, nest = count + 1, nest.body[0]
            return count
    raise CodegenError(f"Expected threads to use {stmt.buffer!r}, but there are none")


def _shuffled(name: str, dtype: DType, distance: int, width: int) -> str:
    """The value of the thread that many places further on."""
    kind = types.element_type(dtype)
    if dtype.bits < 32:
        return f"({kind})__shfl_down_sync({_FULL_WARP}, (int){name}, {distance}, {width})"
    return f"__shfl_down_sync({_FULL_WARP}, {name}, {distance}, {width})"
