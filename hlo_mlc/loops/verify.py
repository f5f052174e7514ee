"""The rules of loop programs, checked: scopes, types, bounds, races, aliases."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

from hlo_mlc.expr import index
from hlo_mlc.expr.core import Buffer, Expr, Var, loads
from hlo_mlc.expr.dtypes import BOOL, INDEX
from hlo_mlc.loops.accesses import Survey, is_own_part
from hlo_mlc.loops.aliases import overwritten
from hlo_mlc.loops.bounds import unbounded
from hlo_mlc.loops.core import (
    MAX_LANES,
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
    bodies,
    folding,
    walk,
)
from hlo_mlc.loops.dependence import Memory, carried
from hlo_mlc.loops.guarding import Place
from hlo_mlc.loops.rewrite import constant_extent, expressions
from hlo_mlc.loops.signature import check_signature, surveyed
from hlo_mlc.loops.text import headline, trail
from hlo_mlc.support.errors import VerifyError


@dataclass(frozen=True, slots=True)
class Report:
    """What was neither proved nor refuted.

    `unbounded`: the places that may lie outside of their buffers; a guard makes them safe.
    `open`: races, and reads of what was overwritten.
    """

    unbounded: dict[Place, str]
    open: tuple[str, ...]


def verify(program: LoopProgram, survey: Survey | None = None) -> Report:
    """Check every rule of the loop IR; `survey` is that of the program, if somebody has it.

    Raises: VerifyError at the first statement that breaks one, with the statements around it.
    """
    survey = surveyed(program) if survey is None else survey
    visible = frozenset(check_signature(program, survey))
    checker = _Checker(program, Memory.of(program), survey)
    checker.body(program.body, _Scope(frozenset(), visible))
    outside, problems = unbounded(program, survey), checker.open
    problems += overwritten(program, survey)
    for report in map(verify, checker.called):
        outside |= report.unbounded
        problems += report.open
    return Report(outside, tuple(dict.fromkeys(problems)))


@dataclass(frozen=True, slots=True)
class _Scope:
    """What surrounds a statement."""

    variables: frozenset[Var]
    buffers: frozenset[Buffer]
    path: tuple[Stmt, ...] = ()
    loops: tuple[For, ...] = ()
    vector: For | None = None


@dataclass(slots=True)
class _Checker:
    """`open`: races that are not excluded; `called`: programs that are to be checked as well."""

    program: LoopProgram
    memory: Memory
    survey: Survey
    open: list[str] = field(default_factory=list)
    called: dict[LoopProgram, None] = field(default_factory=dict)

    def body(self, statements: tuple[Stmt, ...], scope: _Scope) -> None:
        """All statements of a list, and those inside of them."""
        for stmt in statements:
            self._expressions(stmt, scope)
            match stmt:
                case For():
                    self._for(stmt, scope)
                case Store():
                    self._store(stmt, scope)
                case Accumulate():
                    self._accumulate(stmt, scope)
                case Prefetch():
                    self._address(stmt, scope, stmt.buffer, stmt.indices)
                case Allocate():
                    self._allocate(stmt, scope)
                case If() | While():
                    self._condition(stmt, scope)
                case Call():
                    self._call(stmt, scope)
            self._inside(stmt, scope)

    def _inside(self, stmt: Stmt, scope: _Scope) -> None:
        nested = bodies(stmt)
        if not nested:
            return
        path, variables, buffers = (*scope.path, stmt), scope.variables, scope.buffers
        loops, vector = scope.loops, scope.vector
        if isinstance(stmt, For):
            variables, loops = variables | {stmt.var}, (*loops, stmt)
            vector = stmt if stmt.kind is LoopKind.VECTORIZE else vector
        elif isinstance(stmt, Allocate):
            buffers = buffers | {stmt.buffer}
        inner = _Scope(variables, buffers, path, loops, vector)
        for body in nested:
            self.body(body, inner)

    def _fail(self, stmt: Stmt, scope: _Scope, reason: str) -> VerifyError:
        return VerifyError(
            f"kernel {self.program.name}: {reason} in `{headline(stmt)}`",
            context=trail(scope.path, stmt),
        )

    def _expressions(self, stmt: Stmt, scope: _Scope) -> None:
        """Variables and buffers exist; loads are well formed and in bounds."""
        for e in expressions(stmt):
            if not e.free <= scope.variables:
                unbound = sorted(v.name for v in e.free - scope.variables)
                raise self._fail(stmt, scope, f"no loop around it defines {', '.join(unbound)}")
            for load in loads(e):
                self._place(stmt, scope, load.source, load.indices)

    def _place(self, stmt: Stmt, scope: _Scope, buffer: Buffer, indices: tuple[Expr, ...]) -> None:
        self._address(stmt, scope, buffer, indices)
        if buffer.scope == "thread":
            self._own_part(stmt, scope, buffer, indices)

    def _address(
        self, stmt: Stmt, scope: _Scope, buffer: Buffer, indices: tuple[Expr, ...]
    ) -> None:
        if buffer not in scope.buffers:
            raise self._fail(stmt, scope, f"{buffer!r} does not exist here")
        if len(indices) != len(buffer.shape) or any(i.dtype is not INDEX for i in indices):
            raise self._fail(
                stmt,
                scope,
                f"expected {len(buffer.shape)} indices of type index "
                f"for {buffer!r}, got {', '.join(f'{i}: {i.dtype}' for i in indices)}",
            )

    def _for(self, stmt: For, scope: _Scope) -> None:
        if stmt.extent.dtype is not INDEX or stmt.var.dtype is not INDEX:
            raise self._fail(stmt, scope, "expected a variable and an extent of type index")
        if any(s.var.name == stmt.var.name for s in scope.loops):
            raise self._fail(stmt, scope, f"a loop around it is called {stmt.var.name} too")
        constant = constant_extent(stmt)
        if stmt.var.extent is not None:
            _, most = index.bounds(stmt.extent)
            if constant is not None and constant > stmt.var.extent:
                raise self._fail(
                    stmt, scope, f"the variable is declared to stay below {stmt.var.extent}"
                )
            if most > stmt.var.extent:
                self.open.append(
                    f"{stmt.var.name} stays below {stmt.var.extent} in `{headline(stmt)}`"
                )
        if stmt.kind in (LoopKind.VECTORIZE, LoopKind.UNROLL, LoopKind.TENSOR) and constant is None:
            raise self._fail(stmt, scope, "expected a constant extent")
        self._uniform(stmt, stmt.extent, scope)
        if stmt.kind is LoopKind.VECTORIZE:
            if constant > MAX_LANES:
                raise self._fail(stmt, scope, f"expected at most {MAX_LANES} lanes")
            if scope.vector is not None:
                raise self._fail(stmt, scope, "a vector inside of a vector")
            self._independent(stmt, scope, reductions_are_free=True)
        if stmt.kind in (LoopKind.PARALLEL, LoopKind.BLOCK):
            self._tasks(stmt, scope)
        if stmt.kind is LoopKind.THREAD:
            self._threads(stmt, scope)
        if stmt.kind is LoopKind.TENSOR:
            self._together(stmt, scope)

    def _tasks(self, stmt: For, scope: _Scope) -> None:
        if any(
            s.kind in (LoopKind.PARALLEL, LoopKind.VECTORIZE, LoopKind.BLOCK, LoopKind.THREAD)
            for s in scope.loops
        ):
            raise self._fail(stmt, scope, "tasks inside of a task or a vector")
        private = {s.buffer for s in scope.path if isinstance(s, Allocate)}
        for access in self.survey.inside(stmt).touched if private else ():
            if access.buffer in private:
                raise self._fail(
                    access.stmt,
                    scope,
                    f"a task of {stmt.var.name} uses "
                    f"{access.buffer!r}, which is private to the code around it",
                )
        self._independent(stmt, scope, reductions_are_free=False)

    def _threads(self, stmt: For, scope: _Scope) -> None:
        around = [s.kind for s in scope.loops]
        if LoopKind.BLOCK not in around or LoopKind.VECTORIZE in around:
            raise self._fail(stmt, scope, "expected threads to be in a block, and in no vector")
        if stmt.var.extent is None:
            raise self._fail(stmt, scope, "expected a known bound of the number of threads")
        if LoopKind.THREAD in around and not isinstance(scope.path[-1], For):
            raise self._fail(stmt, scope, "expected threads directly inside of threads")
        if (
            any(isinstance(s, For) and s.kind is LoopKind.THREAD for s in walk(stmt.body))
            and len(stmt.body) > 1
        ):
            raise self._fail(stmt, scope, "some of its statements are for fewer threads")
        self._independent(stmt, scope, reductions_are_free=folding(stmt) is not None)

    def _together(self, stmt: For, scope: _Scope) -> None:
        """Statements that the lanes of a warp execute together are reached by all of them, equally
        often."""
        threads = {s.var for s in scope.loops if s.kind is LoopKind.THREAD}
        path = itertools.dropwhile(
            lambda s: not isinstance(s, For) or s.var not in threads, scope.path
        )
        own: set[Buffer] = set()
        for around in path:
            if isinstance(around, Allocate):
                own.add(around.buffer)
                continue
            decides = around.extent if isinstance(around, For) else around.condition
            if not threads.isdisjoint(decides.free) or any(
                load.source in own for load in loads(decides)
            ):
                raise self._fail(
                    stmt,
                    scope,
                    "lanes of a warp do not come to its product "
                    f"together: `{headline(around)}` depends on the thread",
                )

    def _by_a_thread(self, stmt: Stmt, scope: _Scope) -> None:
        """Inside a block that has threads, only a thread may store."""
        if _around_threads(scope):
            raise self._fail(stmt, scope, "no thread of the block is said to do this")

    def _own_part(
        self, stmt: Stmt, scope: _Scope, buffer: Buffer, indices: tuple[Expr, ...]
    ) -> None:
        """Of a buffer of scope "thread", each thread touches its own part."""
        threads = tuple(s.var for s in scope.loops if s.kind is LoopKind.THREAD)
        if not is_own_part(buffer, indices, threads):
            raise self._fail(stmt, scope, f"expected {buffer!r} to be indexed by the threads first")

    def _independent(self, stmt: For, scope: _Scope, reductions_are_free: bool) -> None:
        conflict = carried(
            stmt,
            self.memory,
            reductions_are_free=reductions_are_free,
            inside=self.survey.inside(stmt),
        )
        if conflict is None:
            return
        if conflict.certain:
            raise self._fail(stmt, scope, str(conflict))
        self.open.append(f"iterations of `{headline(stmt)}` are independent: {conflict}")

    def _store(self, stmt: Store, scope: _Scope) -> None:
        self._by_a_thread(stmt, scope)
        self._place(stmt, scope, stmt.buffer, stmt.indices)
        self._writable(stmt, scope, stmt.buffer)
        self._guard(stmt, scope)
        if stmt.value.dtype is not stmt.buffer.dtype:
            raise self._fail(
                stmt, scope, f"expected a value of type {stmt.buffer.dtype}, got {stmt.value.dtype}"
            )

    def _accumulate(self, stmt: Accumulate, scope: _Scope) -> None:
        self._by_a_thread(stmt, scope)
        for buffer in stmt.buffers:
            self._place(stmt, scope, buffer, stmt.indices)
            self._writable(stmt, scope, buffer)
        self._guard(stmt, scope)
        combiner = stmt.combiner
        wanted = [v.dtype for v in combiner.lhs]
        for what, given in (
            ("buffers", [b.dtype for b in stmt.buffers]),
            ("terms", [t.dtype for t in stmt.terms]),
            ("results of the combiner", [r.dtype for r in combiner.results]),
        ):
            if given != wanted:
                raise self._fail(stmt, scope, f"expected {what} of types {wanted}, got {given}")
        foreign = frozenset().union(*(r.free for r in combiner.results)) - {
            *combiner.lhs,
            *combiner.rhs,
        }
        if foreign:
            raise self._fail(
                stmt,
                scope,
                f"the combiner uses {', '.join(map(str, foreign))}, "
                "which are not its own variables",
            )

    def _call(self, stmt: Call, scope: _Scope) -> None:
        self.called[stmt.program] = None
        count = len(stmt.program.operands)
        for buffer in stmt.buffers:
            if buffer not in scope.buffers:
                raise self._fail(stmt, scope, f"{buffer!r} does not exist here")
        for n, result in enumerate(stmt.buffers[count:], count):
            self._writable(stmt, scope, result)
            for other in (*stmt.buffers[:n], *stmt.buffers[n + 1 :]):
                if self.memory.may_overlap(result, other):
                    raise self._fail(
                        stmt,
                        scope,
                        f"{result!r} and {other!r} share memory, of "
                        f"which {stmt.program.name} knows nothing",
                    )

    def _writable(self, stmt: Stmt, scope: _Scope, buffer: Buffer) -> None:
        if buffer.scope == "operand":
            raise self._fail(stmt, scope, f"{buffer.name} is an operand, which is never written")

    def _guard(self, stmt: Store | Accumulate, scope: _Scope) -> None:
        if stmt.guard is not None and stmt.guard.dtype is not BOOL:
            raise self._fail(
                stmt, scope, f"expected a guard of type {BOOL}, got {stmt.guard.dtype}"
            )

    def _allocate(self, stmt: Allocate, scope: _Scope) -> None:
        buffer = stmt.buffer
        wanted = ("shared", "thread") if _around_threads(scope) else ("stack", "register")
        if buffer.scope not in wanted:
            raise self._fail(stmt, scope, f"expected the scope {' or '.join(wanted)}")
        if any(b.name == buffer.name for b in scope.buffers):
            raise self._fail(stmt, scope, f"{buffer.name} exists already")

    def _condition(self, stmt: If | While, scope: _Scope) -> None:
        if stmt.condition.dtype is not BOOL:
            raise self._fail(
                stmt, scope, f"expected a condition of type {BOOL}, got {stmt.condition.dtype}"
            )
        if isinstance(stmt, While) and scope.vector is not None:
            raise self._fail(stmt, scope, "a while loop inside of a vector")
        self._uniform(stmt, stmt.condition, scope)

    def _uniform(self, stmt: Stmt, value: Expr, scope: _Scope) -> None:
        """Within a vector, control flow is the same for all lanes."""
        vector = scope.vector
        if vector is not None and (
            vector.var in value.free
            or any(load.source in _lane_buffers(scope) for load in loads(value))
        ):
            raise self._fail(stmt, scope, f"control flow depends on the lane {vector.var.name}")


def _around_threads(scope: _Scope) -> bool:
    """Whether this is inside a block that has threads, but not inside one of its threads."""
    block = next((s for s in scope.loops if s.kind is LoopKind.BLOCK), None)
    return (
        block is not None
        and all(s.kind is not LoopKind.THREAD for s in scope.loops)
        and any(isinstance(s, For) and s.kind is LoopKind.THREAD for s in walk(block.body))
    )


def _lane_buffers(scope: _Scope) -> set[Buffer]:
    """The buffers of which every lane has its own copy."""
    path = iter(scope.path)
    for stmt in path:
        if isinstance(stmt, For) and stmt.kind is LoopKind.VECTORIZE:
            return {s.buffer for s in path if isinstance(s, Allocate)}
    return set()
