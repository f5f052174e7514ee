"""Writing the statements of one function of C.

The lanes of a vector do a statement together before they come to the next one: each statement is a
loop over them, which compilers make instructions of.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from hlo_mlc.codegen.c.dialect import C
from hlo_mlc.codegen.clike.dialect import Dialect, index_type
from hlo_mlc.codegen.clike.values import Lines, Memory, Place, identifier
from hlo_mlc.codegen.clike.writer import Writer
from hlo_mlc.expr import index
from hlo_mlc.expr.core import Buffer, Expr, Load, Var, loads
from hlo_mlc.loops import dependence
from hlo_mlc.loops.core import (
    Accumulate,
    Allocate,
    Call,
    For,
    If,
    LoopKind,
    LoopProgram,
    Prefetch,
    Stmt,
    Store,
    While,
    walk,
)
from hlo_mlc.loops.rewrite import constant_extent, expressions, touched
from hlo_mlc.loops.text import headline
from hlo_mlc.support.errors import CodegenError

CONTEXT = "context"  # the parameter that runs tasks
_LANE = "lane"


class FunctionWriter(Writer):
    """The body of one function; `functions` are those before it, which it calls."""

    def __init__(
        self, memory: Memory, overlaps: dependence.Memory, name: str, functions: Functions
    ) -> None:
        super().__init__(memory)
        self.overlaps, self.name, self.functions = overlaps, name, functions
        self.arrays = Lines()
        self.lines.fresh(CONTEXT)
        self._vector: For | None = None  # that the statement at hand is in
        self._own: set[Buffer] = set()  # of which each of its lanes has one

    def text(self) -> list[str]:
        """All lines."""
        return [*self.arrays.text, *self.lines.text]

    def write(self, statements: Sequence[Stmt]) -> None:
        """All statements, one after the other."""
        for stmt in statements:
            match stmt:
                case For() if stmt.kind is LoopKind.VECTORIZE:
                    self._lanes(stmt)
                case For() if stmt.kind is LoopKind.PARALLEL:
                    self._tasks(stmt)
                case For() if stmt.kind in (LoopKind.SERIAL, LoopKind.UNROLL):
                    with self.iterations(stmt):
                        self.write(stmt.body)
                case While():
                    with self.rounds(stmt.condition):
                        self.write(stmt.body)
                case If():
                    self._if(stmt)
                case Allocate():
                    self._allocate(stmt)
                case Call():
                    self._call(stmt)
                case Store() if self._vector is not None:
                    self._update_lanes(stmt)
                case Store():
                    self.store(stmt)
                case Accumulate() if not stmt.atomic:
                    self._accumulate(stmt)
                case Prefetch():
                    pass  # places that need not exist: C has no words for them
                case _:
                    raise CodegenError(
                        f"Expected a statement that C has words for, got `{headline(stmt)}`"
                    )

    # Control

    def _if(self, stmt: If) -> None:
        with self.guarded(stmt.condition):
            self.write(stmt.then)
        if stmt.otherwise:
            with self.braces("else"):
                self.write(stmt.otherwise)

    def _allocate(self, stmt: Allocate) -> None:
        buffer = stmt.buffer
        size = math.prod(buffer.shape)
        name = self.lines.fresh(identifier(buffer.name))
        kind = C.element_type(buffer.dtype)
        if self._vector is not None:
            self._own.add(buffer)
            self._array(f"{kind} {name}[{constant_extent(self._vector)}][{size}]")
            self.memory.places[buffer] = Place(f"{name}[{_LANE}]")
        else:
            if size == 1:
                self.lines.emit(f"{kind} {name};")
            else:
                self._array(f"{kind} {name}[{size}]")
            self.memory.places[buffer] = Place(name, is_scalar=size == 1)
        self.write(stmt.body)
        del self.memory.places[buffer]
        self._own.discard(buffer)

    def _array(self, declared: str) -> None:
        """All arrays stand at the head of their function: GCC has those of two blocks share memory
        while one of them is in use (seen in 12.2 with -O2; not with -fstack-reuse=none)."""
        self.arrays.emit(f"{declared};")

    # Lanes

    def _lanes(self, stmt: For) -> None:
        self._vector = stmt
        self.bind(stmt.var, _LANE)
        self.write(stmt.body)
        self._vector = None

    @contextmanager
    def _each_lane(self) -> Iterator[None]:
        width = constant_extent(self._vector)
        with self.braces(f"for (int {_LANE} = 0; {_LANE} < {width}; ++{_LANE})"):
            yield

    def _update_lanes(self, stmt: Store | Accumulate) -> None:
        """A statement of which every lane has an element; all lanes read before any of them
        writes."""
        values = stmt.terms
        kept = [e for e in values if self._reads_neighbours(stmt, e)]
        if kept:
            names = [self.lines.temporary() for _ in kept]
            for name, e in zip(names, kept, strict=True):
                width = constant_extent(self._vector)
                self._array(f"{C.element_type(e.dtype)} {name}[{width}]")
            with self._each_lane(), self.guarded(stmt.guard):
                for name, text in zip(names, self.values().write(*kept), strict=True):
                    self.lines.emit(f"{name}[{_LANE}] = {text};")
            for name, e in zip(names, kept, strict=True):
                self.variables[held := Var(f"{name} of all lanes", e.dtype)] = f"{name}[{_LANE}]"
                values = tuple(held if v is e else v for v in values)
            stmt = stmt.with_parts(stmt.buffers, stmt.indices, values, stmt.guard)
        with self._each_lane():
            (self.store if isinstance(stmt, Store) else self.accumulate)(stmt)

    def _reads_neighbours(self, stmt: Store | Accumulate, value: Expr) -> bool:
        """Whether a lane may read what another one writes."""

        def clashes(load: Load) -> bool:
            if load.source in self._own or (
                load.source in stmt.buffers
                and (load.indices == stmt.indices or self._are_apart(load.indices, stmt.indices))
            ):
                return False
            return any(self.overlaps.may_overlap(load.source, b) for b in stmt.buffers)

        return any(map(clashes, loads(value)))

    def _are_apart(self, first: Sequence[Expr], second: Sequence[Expr]) -> bool:
        """Whether two places differ along an axis that the lanes have in common."""
        lane = self._vector.var
        return any(
            index.bounds(a - b)[0] > 0 or index.bounds(a - b)[1] < 0
            for a, b in zip(first, second, strict=True)
            if lane not in a.free and lane not in b.free
        )

    # Updates

    def _accumulate(self, stmt: Accumulate) -> None:
        vector = self._vector
        if vector is None:
            self.accumulate(stmt)
        elif stmt.buffers[0] in self._own or not dependence.lane_invariant(stmt, vector.var):
            self._update_lanes(stmt)
        else:
            self._fold(stmt)

    def _fold(self, stmt: Accumulate) -> None:
        """All lanes' terms combined by halves, and then with the element; lanes whose guard does
        not hold take no part."""
        width = constant_extent(self._vector)
        terms = [self.lines.temporary() for _ in stmt.terms]
        for name, term in zip(terms, stmt.terms, strict=True):
            self._array(f"{C.element_type(term.dtype)} {name}[{width}]")
        live = None
        if stmt.guard is not None:
            live = self.lines.temporary()
            self._array(f"bool {live}[{width}]")
        with self._each_lane():
            if stmt.guard is not None:
                (condition,) = self.values().write(stmt.guard)
                self.lines.emit(f"{live}[{_LANE}] = {condition};")
            with self.where(f"{live}[{_LANE}]" if live else ""):
                for name, text in zip(terms, self.values().write(*stmt.terms), strict=True):
                    self.lines.emit(f"{name}[{_LANE}] = {text};")
        remaining = width
        while remaining > 1:
            half = 1 << (remaining - 1).bit_length() - 1
            with self.braces(f"for (int {_LANE} = 0; {_LANE} < {remaining - half}; ++{_LANE})"):
                low = [f"{name}[{_LANE}]" for name in terms]
                high = [f"{name}[{_LANE} + {half}]" for name in terms]
                self._join(stmt, low, high, live, half)
            remaining = half
        with self.where(f"{live}[0]" if live else ""):
            targets = [self.values().element(b, stmt.indices) for b in stmt.buffers]
            self.combine(stmt, targets, [f"{name}[0]" for name in terms], targets)

    def _join(
        self, stmt: Accumulate, low: Sequence[str], high: Sequence[str], live: str | None, half: int
    ) -> None:
        if live is None:
            self.combine(stmt, low, high, low)
            return
        with self.braces(f"if ({live}[{_LANE}] && {live}[{_LANE} + {half}])"):
            self.combine(stmt, low, high, low)
        with self.braces(f"else if ({live}[{_LANE} + {half}])"):
            for to, source in zip(low, high, strict=True):
                self.lines.emit(f"{to} = {source};")
            self.lines.emit(f"{live}[{_LANE}] = true;")

    # Functions

    def _call(self, stmt: Call) -> None:
        name = self.functions.called(stmt.program, self.dialect)
        arguments = ", ".join(
            self._pointer(buffer, buffer.offset_of(part)) for buffer, part in stmt.parts
        )
        self.lines.emit(f"{name}({CONTEXT}, {arguments});")

    def _pointer(self, buffer: Buffer, offset: int = 0) -> str:
        place = self.memory.places[buffer]
        pointer = f"&{place.name}" if place.is_scalar else place.name
        return f"{pointer} + {offset}" if offset else pointer

    def _tasks(self, stmt: For) -> None:
        """A loop whose iterations are tasks: a function of its own, which finds what it needs of
        this one in a structure."""
        (extent,) = self.values().write(stmt.extent)
        task = FunctionWriter(
            Memory({}, self.dialect),
            self.overlaps,
            self.functions.fresh(f"{self.name}_{identifier(stmt.var.name)}"),
            self.functions,
        )
        own, closure, number = map(task.lines.fresh, ("own", "closure", "task"))
        fields, packed = [f"MlcContext* {CONTEXT}"], [CONTEXT]
        given = [b for b in touched_by(stmt.body) if b in self.memory.places]
        for buffer, kind, declared in task.declare(given):
            name = task.memory.places[buffer].name
            fields.append(f"{kind} {name}")
            packed.append(self._pointer(buffer))
            task.lines.emit(f"{kind} {declared} = {own}->{name};")
        for var in self.variables:
            if var in _free(stmt.body):
                name = task.lines.fresh(identifier(var.name))
                task.bind(var, name)
                fields.append(f"{index_type(var)} {name}")
                packed.append(self.variables[var])
                task.lines.emit(f"const {index_type(var)} {name} = {own}->{name};")
        if takes_context(stmt.body):
            task.lines.emit(f"MlcContext* {CONTEXT} = {own}->{CONTEXT};")
        kind, name = index_type(stmt.var), task.lines.fresh(identifier(stmt.var.name))
        task.bind(stmt.var, name)
        task.lines.emit(f"const {kind} {name} = ({kind}){number};")
        task.write(stmt.body)
        structure = "".join(f"  {field};\n" for field in fields)
        self.functions.texts.append(
            "\n".join(
                (
                    f"struct {task.name} {{\n{structure}}};\n",
                    f"static void {task.name}(void* {closure}, int64_t {number}) {{",
                    f"  const struct {task.name}* {own} = {closure};",
                    *task.text(),
                    "}\n",
                )
            )
        )
        shared = self.lines.temporary()
        self.lines.emit(f"struct {task.name} {shared} = {{{', '.join(packed)}}};")
        self.lines.emit(f"{CONTEXT}->parallel_for({CONTEXT}, {task.name}, &{shared}, {extent});")

    def declare(self, buffers: Sequence[Buffer]) -> Iterator[tuple[Buffer, str, str]]:
        """Gives each buffer a pointer, and says its type and how it is declared."""
        for buffer in buffers:
            name = self.lines.fresh(identifier(buffer.name))
            self.memory.places[buffer] = Place(name)
            alone = not any(self.overlaps.may_overlap(buffer, b) for b in buffers if b != buffer)
            constant = "const " if buffer.scope == "operand" else ""
            yield (
                buffer,
                f"{constant}{C.element_type(buffer.dtype)}*",
                f"{'restrict ' if alone else ''}{name}",
            )


class Functions:
    """The functions in front of a kernel, which it and they call."""

    def __init__(self, kernel: str) -> None:
        self.kernel = kernel
        self.texts: list[str] = []
        self._counts: dict[str, int] = {}
        self._called: dict[LoopProgram, str] = {}

    def fresh(self, name: str) -> str:
        """`name`, with a number if that was given out before."""
        count = self._counts[name] = self._counts.get(name, 0) + 1
        return name if count == 1 else f"{name}_{count}"

    def called(self, program: LoopProgram, dialect: Dialect) -> str:
        """The name of the function that computes what several places share."""
        name = self._called.get(program)
        if name is None:
            name = self._called[program] = self.fresh(f"{self.kernel}_{identifier(program.name)}")
            writer = FunctionWriter(Memory({}, dialect), dependence.Memory.of(program), name, self)
            parameters = [
                f"{kind} {declared}"
                for _, kind, declared in writer.declare((*program.operands, *program.results))
            ]
            writer.write(program.body)
            unused = () if takes_context(program.body) else (f"  (void){CONTEXT};",)
            self.texts.append(
                "\n".join(
                    (
                        f"static void {name}(MlcContext* {CONTEXT}, {', '.join(parameters)}) {{",
                        *unused,
                        *writer.text(),
                        "}\n",
                    )
                )
            )
        return name


def touched_by(statements: tuple[Stmt, ...]) -> tuple[Buffer, ...]:
    """The buffers that statements read and write."""
    own = (s for s in walk(statements) if not isinstance(s, Prefetch))
    return tuple(dict.fromkeys(b for s in own for b in touched(s)))


def takes_context(statements: tuple[Stmt, ...]) -> bool:
    """Whether any of them needs what runs tasks."""
    return any(
        isinstance(s, Call) or (isinstance(s, For) and s.kind is LoopKind.PARALLEL)
        for s in walk(statements)
    )


def _free(statements: tuple[Stmt, ...]) -> set[Var]:
    """The variables that statements use."""
    return {var for stmt in walk(statements) for e in expressions(stmt) for var in e.free}
