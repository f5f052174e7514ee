"""Schedule primitives for single statements: add_unit_loop, add_loops, begin_inside, inline,
replicate."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from hlo_mlc.expr import build, index
from hlo_mlc.expr.core import Buffer, Const, Expr, Load, Var, loads
from hlo_mlc.expr.dtypes import INDEX
from hlo_mlc.loops.core import (
    Accumulate,
    Allocate,
    Call,
    For,
    LoopKind,
    LoopProgram,
    Prefetch,
    Stmt,
    Store,
    walk,
)
from hlo_mlc.loops.dependence import Memory, accesses
from hlo_mlc.loops.rewrite import (
    Body,
    allocated,
    constant_extent,
    guarded,
    loads_of,
    loop_names,
    map_expressions,
    paths,
    serial,
    touched,
    transform,
    transform_lists,
    with_bodies,
    with_body,
)
from hlo_mlc.schedule.loops import changed, refuse, require_kind, require_loops, rewrite_loops
from hlo_mlc.schedule.storage import refuse_large, taken_out
from hlo_mlc.support.errors import ScheduleError
from hlo_mlc.tensor.guards import conjuncts


def add_unit_loop(program: LoopProgram, name: str) -> LoopProgram:
    """Put all that a kernel does into a loop of one iteration.

        y[] = x[]       ->     for i in 0..1:
                                 y[] = x[]

    So one task or one thread does it.  TVM: add_unit_loop.
    """
    if name in loop_names(program.body):
        raise ScheduleError(f"add_unit_loop: a loop is called {name!r} already")
    return with_body(program, (serial(name, 1, lambda _: program.body),))


def add_loops(
    program: LoopProgram, names: tuple[str, ...], extents: tuple[int, ...], at: str
) -> LoopProgram:
    """Let the first iteration of new loops do what is done in a loop outside of those in it.

        for i in 0..4:                      for i in 0..4:
          s[] = x[i, 0]                       for w in 0..8:
          for k in 0..9:                        for l in 0..32:
            s[] <- max x[i, k]      ->            s[] = x[i, 0] where w == 0 and l == 0
          y[i] = s[]                          for k in 0..9:
                                                s[] <- max x[i, k]
                                              for w in 0..8:
                                                for l in 0..32:
                                                  y[i] = s[] where w == 0 and l == 0

    The names may be those of other loops, and extents should be theirs then: so all that a block
    does is done by threads, bound by one name.  Exo: add_loop with a guard.
    """
    if not names or len(names) != len(extents) or min(extents) < 1 or len({*names}) < len(names):
        raise ScheduleError(
            f"add_loops: expected names and positive extents of some loops, got "
            f"{', '.join(names)} and {', '.join(map(str, extents))}"
        )
    new = [Var(n, INDEX, extent) for n, extent in zip(names, extents, strict=True)]
    first = build.all_of(*(index.compare("eq", v, 0) for v in new))
    found = False

    def nest(run: Body) -> Body:
        nonlocal found
        found = True
        body = tuple(kept for s in run if (kept := guarded(s, first)) is not None)
        for v in reversed(new):
            body = (For(v, index.constant(v.extent), LoopKind.SERIAL, body),)
        return body

    def within(statements: Body) -> Body:
        result: Body = ()
        for is_run, group in itertools.groupby(
            statements, lambda s: isinstance(s, Store | Accumulate)
        ):
            run = tuple(group)
            result += nest(run) if is_run else tuple(map(opened, run))
        return result

    def opened(stmt: Stmt) -> Stmt:
        if isinstance(stmt, Call | Prefetch):
            raise refuse("add_loops", stmt, "cannot be left out of some iterations")
        return with_bodies(stmt, (within(stmt.body),)) if isinstance(stmt, Allocate) else stmt

    for path in paths(program.body):
        around = [s.var.name for s in path if isinstance(s, For)]
        if around[-1:] == [at] and not {*names}.isdisjoint(around):
            raise refuse("add_loops", path[-1], f"is in a loop called {', '.join(names)}")
    result = rewrite_loops(program, "add_loops", at, lambda stmt: (stmt.around(within(stmt.body)),))
    if not found:
        raise refuse(
            "add_loops",
            require_loops(program, "add_loops", at)[0],
            "does nothing outside of the loops in it",
        )
    return result


def begin_inside(program: LoopProgram, name: str) -> LoopProgram:
    """Let the first iteration of a loop store what folds begin with, right before it.

        s[] = 0                          for w in 0..4:
        for w in 0..4:             ->      s[] = 0 where w == 0
          for k in 0..8:                   for k in 0..8:
            t[w] <- add x[k, w]              t[w] <- add x[k, w]
        for w in 0..4:                   for w in 0..4:
          s[] <- add t[w]                  s[] <- add t[w]

    That is, to private buffers that are updated anywhere, and behind constants that the loop itself
    begins with.  Loops with nothing like that before them stay as they are.  TVM: the init of a
    block, which decompose_reduction takes out of its loops.
    """
    updated = {b for s in walk(program.body) if isinstance(s, Accumulate) for b in s.buffers}

    def visit(statements: Body) -> Body:
        result: list[Stmt] = []
        for stmt in statements:
            if not _begins_with(stmt, name):
                result.append(stmt)
                continue
            begun: list[Store] = []
            while (
                result
                and isinstance(result[-1], Store)
                and result[-1].buffer in updated
                and result[-1].buffer.scope in ("register", "stack")
            ):
                begun.insert(0, result.pop())
            result.append(_beginning(stmt, begun) if begun else stmt)
        return tuple(result) if len(result) < len(statements) else statements

    return changed(
        program,
        transform_lists(program.body, visit),
        "begin_inside",
        name,
        "has nothing before it that folds begin with",
    )


def _begins_with(stmt: Stmt, name: str) -> bool:
    """Whether the first thing that is done is the loop of a name."""
    while isinstance(stmt, Allocate):
        stmt = stmt.body[0]
    return isinstance(stmt, For) and stmt.var.name == name


def _beginning(stmt: For | Allocate, begun: list[Store]) -> For | Allocate:
    """A loop in whose first iteration something is stored before all else."""
    if isinstance(stmt, Allocate):
        first, *rest = stmt.body
        return Allocate(stmt.buffer, (_beginning(first, begun), *rest))
    require_kind("begin_inside", stmt, LoopKind.SERIAL, LoopKind.UNROLL)
    if index.bounds(stmt.extent)[0] < 1 or loads(stmt.extent):
        raise refuse("begin_inside", stmt, "may have no iteration")
    first = index.compare("eq", stmt.var, 0)
    stores = tuple(kept for s in begun if (kept := guarded(s, first)) is not None)
    used = {b for s in begun for b in touched(s)}
    own = sum(1 for _ in itertools.takewhile(lambda s: _stores_constants(s, used), stmt.body))
    return stmt.around((*stmt.body[:own], *stores, *stmt.body[own:]))


def _stores_constants(stmt: Stmt, others: set[Buffer]) -> bool:
    """Whether that is all that is done, and not to some buffers."""
    if isinstance(stmt, For):
        return all(_stores_constants(s, others) for s in stmt.body)
    return (
        isinstance(stmt, Store)
        and stmt.buffer not in others
        and isinstance(stmt.value, Const)
        and not any(loads(i) for i in stmt.indices)
        and stmt.guard is None
    )


def inline(program: LoopProgram, name: str) -> LoopProgram:
    """Compute a private value where it is used.

        alloc m: f32 register:           for j in 0..8:
          m[] = s[] * 2            ->      y[j] = x[j] - s[] * 2
          for j in 0..8:
            y[j] = x[j] - m[]

    What it is computed from lives as long as it did.  Refused unless it is stored once, before all
    that reads it, and nothing of what it is computed from is written behind that.  Halide and TVM:
    compute_inline.
    """
    memory = Memory.of(program)

    def inlined(held: Allocate) -> Body:
        private, statements = taken_out(held.body)
        place = next(
            (
                n
                for n, s in enumerate(statements)
                if isinstance(s, Store) and s.buffer == held.buffer
            ),
            None,
        )
        if place is None or held.buffer.shape or statements[place].guard is not None:
            raise refuse(
                "inline",
                held,
                "is no single value that is stored for certain, beside what reads it",
            )
        store, behind = statements[place], statements[place + 1 :]
        if any(accesses(statements[:place], held.buffer)) or any(
            a.writes for a in accesses(behind, held.buffer)
        ):
            raise refuse("inline", held, "is not stored once, before all that reads it")
        sources = {read.source for read in loads(store.value)}
        written = next(
            (
                a
                for a in accesses(behind)
                if a.writes and any(memory.may_overlap(a.buffer, b) for b in sources)
            ),
            None,
        )
        if written is not None:
            raise refuse("inline", held, f"is computed from what is written behind it: {written}")
        return allocated(
            private, (*statements[:place], *_with_value(behind, held.buffer, store.value))
        )

    return _of_private(program, "inline", name, inlined)


def _with_value(statements: Body, buffer: Buffer, value: Expr) -> Body:
    """Statements that have a value instead of what they read of a buffer."""

    def swap(node: Expr) -> Expr | None:
        if not isinstance(node, Load) or node.source != buffer:
            return None
        if node.guard is None:
            return value
        return build.apply("select", node.guard, value, node.default)

    return _with_loads(statements, buffer, swap)


def _with_loads(statements: Body, buffer: Buffer, swap: Callable[[Expr], Expr | None]) -> Body:
    """Statements that have something instead of what they read of a buffer."""
    memo: dict[Expr, Expr] = {}

    def rule(e: Expr) -> Expr:
        read = any(load.source == buffer for load in loads(e))
        return build.transform(e, swap, memo) if read else e

    return map_expressions(statements, rule)


def replicate(program: LoopProgram, name: str, loops: tuple[str, ...]) -> LoopProgram:
    """Let each iteration of some loops have a private value for itself, which the first one has
    computed for all.

        alloc m: f32 register:                   alloc m: 32xf32 stack:
          for l in 0..32:                          for l in 0..32:
            m[] = sqrt(s[]) where l == 0   ->        m[l] = sqrt(s[])
          for l in 0..32:                          for l in 0..32:
            y[l] = x[l] / m[]                        y[l] = x[l] / m[l]

    So threads need not wait for one of them.  Refused unless it is stored once, in the first
    iteration of all these loops, read in others of these names and no larger extents, behind it
    where in the same, and nothing there writes what it is computed from.  TVM: compute_at.
    """
    memory = Memory.of(program)

    def replicated(held: Allocate) -> Body:
        buffer = held.buffer
        stores = [
            path
            for path in paths(held.body)
            if isinstance(path[-1], Store | Accumulate) and buffer in path[-1].buffers
        ]
        if len(stores) != 1 or not isinstance(stores[0][-1], Store):
            raise refuse("replicate", held, "is not stored once")
        around = _loops_of(stores[0], loops)
        store = stores[0][-1]
        if around is None:
            raise refuse("replicate", store, f"is not in loops called {', '.join(loops)}")
        _check_replicated(held, store, around, memory)
        sizes = tuple(s.var.extent for s in around)
        larger = Buffer(buffer.name, buffer.dtype, (*buffer.shape, *sizes), "stack")
        refuse_large("replicate", held, larger)

        def visit(stmt: Stmt) -> Body | None:
            if stmt is store:
                return (Store(larger, (*stmt.indices, *(s.var for s in around)), stmt.value),)
            return None

        body = transform(held.body, visit)
        return (Allocate(larger, _reading_own(body, buffer, larger, loops, {})),)

    return _of_private(program, "replicate", name, replicated)


def _loops_of(path: tuple[Stmt, ...], names: tuple[str, ...]) -> list[For] | None:
    """Those loops of a path that have these names, in their order; None where one is missing."""
    known = {s.var.name: s for s in path if isinstance(s, For)}
    return [known[n] for n in names] if known.keys() >= {*names} else None


def _check_replicated(held: Allocate, store: Store, around: list[For], memory: Memory) -> None:
    first = {index.compare("eq", s.var, 0) for s in around} - {build.TRUE}
    if {*conjuncts(store.guard or build.TRUE)} - {build.TRUE} != first:
        raise refuse("replicate", store, "is not what the first iteration of these loops does")
    varying = {s.var for s in around}
    if any(not e.free.isdisjoint(varying) for e in (*store.indices, store.value)):
        raise refuse("replicate", store, "depends on the iteration")
    if any(constant_extent(s) != s.var.extent for s in around):
        raise refuse("replicate", store, "is in loops of unknown extents")
    outermost = next(s for s in walk(held.body) if s in around)
    sources = {read.source for e in (*store.indices, store.value) for read in loads(e)}
    before = True
    for a in accesses((outermost,)):
        before = before and a.stmt is not store
        if a.buffer == held.buffer and before:
            raise refuse("replicate", store, f"is read before: {a}")
        if (
            a.writes
            and a.stmt is not store
            and any(memory.may_overlap(a.buffer, b) for b in sources)
        ):
            raise refuse("replicate", store, f"is computed from what is written beside it: {a}")


def _reading_own(
    statements: Body, buffer: Buffer, larger: Buffer, names: tuple[str, ...], known: dict[str, Var]
) -> Body:
    """Statements in loops over some variables that read the part of their iteration."""
    sizes = dict(zip(names, larger.shape[len(buffer.shape) :], strict=True))
    fits = known.keys() == {*names} and all(
        v.extent is not None and v.extent <= sizes[n] for n, v in known.items()
    )

    def read(node: Expr) -> Expr | None:
        if not isinstance(node, Load) or node.source != buffer:
            return None
        return build.load(
            larger, (*node.indices, *(known[n] for n in names)), node.guard, node.default
        )

    def visit(stmt: Stmt) -> Body | None:
        if not fits and any(r.source == buffer for r in loads_of(stmt)):
            raise refuse(
                "replicate", stmt, f"reads {buffer.name} in no such loops as those that compute it"
            )
        if isinstance(stmt, For) and stmt.var.name in names:
            return (
                For(
                    stmt.var,
                    stmt.extent,
                    stmt.kind,
                    _reading_own(
                        stmt.body, buffer, larger, names, {**known, stmt.var.name: stmt.var}
                    ),
                ),
            )
        return None

    result = transform(statements, visit)
    return _with_loads(result, buffer, read) if fits else result


def _of_private(
    program: LoopProgram, primitive: str, name: str, rewrite: Callable[[Allocate], Body]
) -> LoopProgram:
    """What becomes of the scopes of all private buffers of a name."""
    body = transform(
        program.body,
        lambda s: rewrite(s) if isinstance(s, Allocate) and s.buffer.name == name else None,
    )
    if body is program.body:
        known = (
            ", ".join(
                sorted({s.buffer.name for s in walk(program.body) if isinstance(s, Allocate)})
            )
            or "none"
        )
        raise ScheduleError(
            f"{primitive}: no private buffer is called {name!r}; there are: {known}"
        )
    return with_body(program, body)
