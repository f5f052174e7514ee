"""Rewriting loop programs: substitution, replacing loops, and finding things by name.

Statements that a rewrite does not touch come back as the same objects.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

from hlo_mlc.expr import build, index
from hlo_mlc.expr.core import Buffer, Const, Expr, Load, Var, loads
from hlo_mlc.expr.dtypes import INDEX
from hlo_mlc.loops.core import (
    LEAVES,
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
)

Body = tuple[Stmt, ...]
Steps = Stmt | Sequence["Steps"]  # a statement, or several, in as many lists as it takes


def with_bodies(stmt: Stmt, new: tuple[Body, ...]) -> Stmt:
    """`stmt` around other statement lists, given in the order of `loops.core.bodies`."""
    return stmt if bodies(stmt) == new else _holding(stmt, new)  # statements compare by identity


def _holding(stmt: Stmt, new: tuple[Body, ...]) -> Stmt:
    if isinstance(stmt, For):
        return stmt.around(new[0])
    if isinstance(stmt, Allocate):
        return Allocate(stmt.buffer, new[0])
    if isinstance(stmt, If):
        return If(stmt.condition, new[0], new[1])
    return While(stmt.condition, new[0]) if isinstance(stmt, While) else stmt


def expressions(stmt: Stmt) -> tuple[Expr, ...]:
    """The expressions that `stmt` itself evaluates, those of nested statements excluded."""
    match stmt:
        case For():
            return (stmt.extent,)
        case Store() | Accumulate():
            guard = () if stmt.guard is None else (stmt.guard,)
            return (*stmt.indices, *stmt.terms, *guard)
        case Prefetch():
            return stmt.indices
        case If() | While():
            return (stmt.condition,)
    return ()


def loads_of(stmt: Stmt) -> Iterator[Load]:
    """What `stmt` itself reads."""
    return (load for e in expressions(stmt) for load in loads(e))


def touched(stmt: Stmt) -> Iterator[Buffer]:
    """The buffers that `stmt` itself reads, writes, or passes to another program."""
    if isinstance(stmt, Store | Accumulate | Call):
        yield from stmt.buffers
    for load in loads_of(stmt):
        yield load.source


def map_expressions(statements: Body, rule: Callable[[Expr], Expr]) -> Body:
    """`rule` applied to every expression; what a guard or a branch never lets happen disappears."""
    result: list[Stmt] = []
    for stmt in statements:
        if isinstance(stmt, If):
            result += _map_branches(stmt, rule)
            continue
        new = _map_one(stmt, rule)
        if new is not None:
            result.append(new)
    return _same(statements, result)


def _map_branches(stmt: If, rule: Callable[[Expr], Expr]) -> Body:
    condition = rule(stmt.condition)
    if condition is build.TRUE or condition is build.FALSE:
        return map_expressions(stmt.then if condition is build.TRUE else stmt.otherwise, rule)
    then, otherwise = map_expressions(stmt.then, rule), map_expressions(stmt.otherwise, rule)
    if condition is stmt.condition and (then, otherwise) == bodies(stmt):
        return (stmt,)
    return (If(condition, then, otherwise),) if then or otherwise else ()


def _map_one(stmt: Stmt, rule: Callable[[Expr], Expr]) -> Stmt | None:
    match stmt:
        case For():
            extent, body = rule(stmt.extent), map_expressions(stmt.body, rule)
            if extent is stmt.extent and body is stmt.body:
                return stmt
            if stmt.body and not body:
                return None
            return For(stmt.var, extent, stmt.kind, body)
        case Store() | Accumulate():
            indices, terms = tuple(map(rule, stmt.indices)), tuple(map(rule, stmt.terms))
            guard = None if stmt.guard is None else rule(stmt.guard)
            if indices == stmt.indices and terms == stmt.terms and guard is stmt.guard:
                return stmt
            return guarded(stmt.with_parts(stmt.buffers, indices, terms, None), guard)
        case Prefetch():
            indices = tuple(map(rule, stmt.indices))
            return stmt if indices == stmt.indices else Prefetch(stmt.buffer, indices, stmt.ahead)
        case Allocate():
            return with_bodies(stmt, (map_expressions(stmt.body, rule),))
        case While():
            condition, body = rule(stmt.condition), map_expressions(stmt.body, rule)
            if condition is stmt.condition and body is stmt.body:
                return stmt
            return While(condition, body)
    raise TypeError(f"not a statement: {stmt!r}")


def guarded(stmt: Store | Accumulate, guard: Expr | None) -> Store | Accumulate | None:
    """`stmt`, executed only where `guard` holds too; None where that is never the case."""
    if guard is None or guard is build.TRUE:
        return stmt
    if guard is build.FALSE:
        return None
    both = guard if stmt.guard is None else build.apply("and", stmt.guard, guard)
    if both is build.FALSE:
        return None
    return stmt.with_parts(stmt.buffers, stmt.indices, stmt.terms, both)


def substitute(statements: Body, mapping: Mapping[Var, Expr]) -> Body:
    """Replace variables by expressions, everywhere."""
    done, variables = _substituted(tuple(mapping.items())), frozenset(mapping)

    def rule(e: Expr) -> Expr:
        known = done.get(e)
        return build.replaced(e, variables, done) if known is None else known

    return map_expressions(statements, rule)


@functools.lru_cache(maxsize=2)  # copies of loops are rewritten in the same way, one by one
def _substituted(mapping: tuple[tuple[Var, Expr], ...]) -> dict[Expr, Expr]:
    """Expressions after a substitution."""
    return dict(mapping)


def redirect(
    statements: Body,
    buffers: Mapping[Buffer, Buffer],
    place: Callable[[tuple[Expr, ...]], tuple[Expr, ...]] | None = None,
) -> Body:
    """Let every access `old[i]` be `buffers[old][place(i)]`; without a `place` other buffers stand
    for some, with all that is said of these."""
    memo: dict[Expr, Expr] = {}

    def swap(node: Expr) -> Expr | None:
        if isinstance(node, Load) and node.source in buffers:
            indices = node.indices if place is None else place(node.indices)
            return build.load(buffers[node.source], indices, node.guard, node.default)
        return None

    def rule(e: Expr) -> Expr:
        read = any(load.source in buffers for load in loads(e))
        return build.transform(e, swap, memo) if read else e

    return _redirected(map_expressions(statements, rule), buffers, place)


def _redirected(
    statements: Body,
    buffers: Mapping[Buffer, Buffer],
    place: Callable[[tuple[Expr, ...]], tuple[Expr, ...]] | None,
) -> Body:
    """What they write, and ask for ahead, elsewhere."""

    def visit(stmt: Stmt) -> Body | None:
        match stmt:
            case Store() | Accumulate() if not buffers.keys().isdisjoint(stmt.buffers):
                assert place is None or buffers.keys() >= {*stmt.buffers}, "they share indices"
                new = [buffers.get(b, b) for b in stmt.buffers]
                indices = stmt.indices if place is None else place(stmt.indices)
                return (stmt.with_parts(new, indices, stmt.terms, stmt.guard),)
            case Prefetch() if stmt.buffer in buffers:
                # Where it has moved, what lies behind it is elsewhere now.
                return (
                    (Prefetch(buffers[stmt.buffer], stmt.indices, stmt.ahead),)
                    if place is None
                    else ()
                )
            case Allocate() if stmt.buffer in buffers:
                return (Allocate(buffers[stmt.buffer], _redirected(stmt.body, buffers, place)),)
        return None

    return transform(statements, visit)


def transform(statements: Body, visit: Callable[[Stmt], Body | None]) -> Body:
    """Replace statements, outermost first: where `visit` returns statements they are taken as
    they are; where it returns None the search goes on inside."""
    result: list[Stmt] | None = None
    for position, stmt in enumerate(statements):
        replacement = visit(stmt)
        if replacement is None:
            new = stmt if type(stmt) in LEAVES else _transformed(stmt, visit)
            if new is stmt:
                if result is not None:
                    result.append(stmt)
                continue
            replacement = (new,)
        if result is None:
            result = list(statements[:position])
        result += replacement
    return statements if result is None else tuple(result)


def _transformed(stmt: Stmt, visit: Callable[[Stmt], Body | None]) -> Stmt:
    """A statement with what is inside of it replaced."""
    if type(stmt) is If:
        new = transform(stmt.then, visit), transform(stmt.otherwise, visit)
    else:
        new = (transform(stmt.body, visit),)
    return with_bodies(stmt, new)


def transform_loops(statements: Body, name: str, rewrite: Callable[[For], Body | None]) -> Body:
    """The same for the loops over variables of that name."""
    return transform(
        statements,
        lambda stmt: rewrite(stmt) if type(stmt) is For and stmt.var.name == name else None,
    )


def transform_lists(statements: Body, visit: Callable[[Body], Body]) -> Body:
    """Rewrite every statement list, innermost first."""
    result = [
        with_bodies(s, tuple(transform_lists(body, visit) for body in bodies(s)))
        for s in statements
    ]
    return visit(_same(statements, result))


def _same(old: Body, new: list[Stmt]) -> Body:
    body = tuple(new)
    return old if old == body else body


def allocated(buffers: Iterable[Buffer], body: Steps) -> Body:
    """`body`, during which `buffers` exist, the first of them outermost."""
    body = flat(body)
    for buffer in reversed(tuple(buffers)):
        body = (Allocate(buffer, body),)
    return body


def flat(steps: Steps) -> Body:
    """The statements of nested lists, as one list."""
    if not isinstance(steps, tuple | list):
        return (steps,)
    return tuple([stmt for step in steps for stmt in flat(step)])


def on_one_thread(statements: Body) -> Body:
    """The statements with parallel loops made serial."""
    return transform(
        statements,
        lambda s: (
            (For(s.var, s.extent, LoopKind.SERIAL, on_one_thread(s.body)),)
            if isinstance(s, For) and s.kind is LoopKind.PARALLEL
            else None
        ),
    )


def inline_calls(statements: Body) -> Body:
    """The statements with calls replaced by the bodies of the called programs."""
    return transform(statements, lambda s: inlined(s) if isinstance(s, Call) else None)


def inlined(call: Call) -> Body:
    """The body of the called program, on the buffers of the call."""
    own = (*call.program.operands, *call.program.results)
    given = list(zip(own, call.parts, strict=True))
    body = inline_calls(call.program.body)
    for buffer, (whole, place) in given:
        if place:
            body = redirect(body, {buffer: whole}, functools.partial(_within, place))
    return redirect(body, {buffer: whole for buffer, (whole, place) in given if not place})


def _within(place: tuple[int, ...], indices: tuple[Expr, ...]) -> tuple[Expr, ...]:
    return (*map(index.constant, place), *indices)


def with_body(program: LoopProgram, body: Body) -> LoopProgram:
    """`program` with another body."""
    return LoopProgram(
        program.name, program.operands, program.results, body, program.scratch, program.aliases
    )


@functools.lru_cache(maxsize=2)  # of what is being rewritten
def _by_name(statements: Body) -> Mapping[str, tuple[For, ...]]:
    found: dict[str, list[For]] = {}
    _gather(statements, found)
    return MappingProxyType({name: tuple(loops) for name, loops in found.items()})


def _gather(statements: Body, found: dict[str, list[For]]) -> None:
    for s in statements:
        kind = type(s)
        if kind is If:
            _gather(s.then, found)
            _gather(s.otherwise, found)
        elif kind not in LEAVES:
            if kind is For:
                found.setdefault(s.var.name, []).append(s)
            _gather(s.body, found)


def loops_named(statements: Body, name: str) -> tuple[For, ...]:
    """Every loop over a variable called `name`."""
    return _by_name(statements).get(name, ())


def loop_names(statements: Body) -> tuple[str, ...]:
    """The names of all loops, outer before inner, each once."""
    return tuple(_by_name(statements))


def loop(name: str, extent: Expr | int, kind: LoopKind, body: Callable[[Var], Steps]) -> For:
    """A loop over a new variable, whose range follows from that of `extent`."""
    size = index.constant(extent) if isinstance(extent, int) else extent
    _, largest = index.bounds(size)
    var = Var(name, INDEX, None if largest == index.INFINITY else max(0, int(largest)))
    return For(var, size, kind, flat(body(var)))


def serial(name: str, extent: Expr | int, body: Callable[[Var], Steps]) -> For:
    """A loop over a new variable, one iteration after the other."""
    return loop(name, extent, LoopKind.SERIAL, body)


def vectorized(name: str, extent: Expr | int, body: Callable[[Var], Steps]) -> For:
    """A loop over a new variable, all of whose iterations are lanes of a vector."""
    return loop(name, extent, LoopKind.VECTORIZE, body)


def unrolled(name: str, extent: Expr | int, body: Callable[[Var], Steps]) -> For:
    """A loop over a new variable that is written out."""
    return loop(name, extent, LoopKind.UNROLL, body)


def when(condition: Expr, body: Steps) -> Body:
    """`body`, if the condition holds."""
    if condition is build.FALSE:
        return ()
    return flat(body) if condition is build.TRUE else (If(condition, flat(body)),)


def constant_extent(stmt: For) -> int | None:
    """The number of iterations where it is known."""
    return stmt.extent.value if isinstance(stmt.extent, Const) else None


def paths(statements: Body) -> Iterator[tuple[Stmt, ...]]:
    """For every statement in program order: its ancestors, outermost first, then itself."""
    stack: list[tuple[Stmt, ...]] = [(s,) for s in reversed(statements)]
    while stack:
        path = stack.pop()
        yield path
        if type(path[-1]) not in LEAVES:
            for body in reversed(bodies(path[-1])):
                stack.extend([(*path, s) for s in reversed(body)])
