"""Schedule primitives that reshape and reorder loops, and what all primitives ask of loops.

Each takes a program and gives a program that computes the same.  A name addresses every loop
over a variable of that name, so copies made by peeling are rewritten together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from hlo_mlc.expr import build, index
from hlo_mlc.expr.core import Apply, Buffer, Expr, Load, Var, loads
from hlo_mlc.expr.core import walk as walk_expressions
from hlo_mlc.expr.dtypes import INDEX
from hlo_mlc.loops.core import Accumulate, For, If, LoopKind, LoopProgram, Stmt, Store, walk
from hlo_mlc.loops.dependence import Access, Memory, accesses, meetings, variables
from hlo_mlc.loops.rewrite import (
    Body,
    constant_extent,
    expressions,
    loop,
    loop_names,
    loops_named,
    map_expressions,
    paths,
    substitute,
    transform,
    transform_loops,
    when,
    with_body,
)
from hlo_mlc.loops.text import body_text, headline
from hlo_mlc.support.errors import ScheduleError


def require_loops(program: LoopProgram, primitive: str, name: str) -> tuple[For, ...]:
    """Every loop called `name`.

    Raises: ScheduleError where there is none.
    """
    found = loops_named(program.body, name)
    if not found:
        known = ", ".join(loop_names(program.body)) or "none"
        raise ScheduleError(f"{primitive}: no loop is called {name!r}; the loops are: {known}")
    return found


def rewrite_loops(
    program: LoopProgram, primitive: str, name: str, rewrite: Callable[[For], Body | None]
) -> LoopProgram:
    """What `rewrite` makes of every loop called `name`; None: the loop, with what is inside of it
    rewritten.

    Raises: ScheduleError where there is none.
    """
    body = transform_loops(program.body, name, rewrite)
    if body is program.body:
        require_loops(program, primitive, name)
    return with_body(program, body)


def changed(
    program: LoopProgram, body: Body, primitive: str, name: str, reason: str
) -> LoopProgram:
    """The program with a body that was rewritten from its own.

    Raises: ScheduleError where that is its own still, for this reason if there is such a loop.
    """
    if body is program.body:
        raise refuse(primitive, require_loops(program, primitive, name)[0], reason)
    return with_body(program, body)


def refuse(primitive: str, stmt: Stmt, reason: str) -> ScheduleError:
    """The error that a primitive raises about one statement."""
    return ScheduleError(f"{primitive}: {headline(stmt)} {reason}", context=body_text((stmt,)))


def require_constant(primitive: str, stmt: For) -> int:
    """The extent of a loop that must have a constant one."""
    extent = constant_extent(stmt)
    if extent is None:
        raise refuse(primitive, stmt, "needs a constant extent; split it by a constant first")
    return extent


def most_iterations(primitive: str, stmt: For) -> int:
    """The largest number of iterations that a loop can have."""
    if stmt.var.extent is None:
        raise refuse(primitive, stmt, "needs a bounded extent; split it by a constant first")
    return stmt.var.extent


def require_kind(primitive: str, stmt: For, *kinds: LoopKind) -> None:
    """Refuses a loop of another kind."""
    if stmt.kind not in kinds:
        allowed = " or ".join(k.value for k in kinds)
        raise refuse(primitive, stmt, f"must be {allowed}")


def refuse_inside(program: LoopProgram, primitive: str, name: str, *kinds: LoopKind) -> None:
    """Refuse a primitive on a loop that is inside one of a kind it cannot be inside of."""
    for *above, stmt in paths(program.body):
        if isinstance(stmt, For) and stmt.var.name == name:
            for outer in above:
                if isinstance(outer, For) and outer.kind in kinds:
                    raise refuse(primitive, stmt, f"is inside `{headline(outer)}`")


def fuse(program: LoopProgram, outer: str, inner: str) -> LoopProgram:
    """Make one loop of two perfectly nested ones.

        for i in 0..4:                   for i.j in 0..32:
          for j in 0..8:         ->        y[floordiv(i.j, 8), floormod(i.j, 8)] = x[i.j]
            y[i, j] = x[i * 8 + j]

    Halide and TVM: fuse.
    """
    require_loops(program, "fuse", inner)
    name = f"{outer}.{inner}"

    def join(stmt: For) -> Body:
        within = only_loop(stmt)
        if within is None or within.var.name != inner:
            raise refuse("fuse", stmt, f"must hold the loop {inner} and nothing else")
        for part in (stmt, within):
            require_kind("fuse", part, LoopKind.SERIAL, LoopKind.PARALLEL)
        size = require_constant("fuse", within)
        total = stmt.extent * within.extent
        kind = stmt.kind if stmt.kind is within.kind else LoopKind.SERIAL
        return (
            loop(
                name,
                total,
                kind,
                lambda both: substitute(
                    within.body, {stmt.var: both // size, within.var: both % size}
                ),
            ),
        )

    return rewrite_loops(program, "fuse", outer, join)


def unswitch(program: LoopProgram, name: str) -> LoopProgram:
    """Ask before a loop what is asked in all its iterations, and has one answer.

        for i in 0..4:                    if n < 7:
          y[i] = x[i] if n < 7    ->        for i in 0..4:
            else 0                            y[i] = x[i]
                                          else:
                                            for i in 0..4:
                                              y[i] = 0

    That is the condition of a branch, of a store, of a load, or of a choice of values.  Loops that
    ask no such thing stay as they are, also where lanes of a vector around them disagree about it.
    LLVM: loop unswitching.
    """
    lanes = lane_variables(program)

    def ask(stmt: For) -> Body | None:
        varying = variables((stmt,)) | lanes
        condition = next(
            (c for c in _conditions(stmt.body) if c.free.isdisjoint(varying) and not loads(c)), None
        )
        if condition is None:
            return None
        return (
            If(
                condition,
                *(_settled(stmt, condition, answer) for answer in (build.TRUE, build.FALSE)),
            ),
        )

    return changed(
        program,
        transform_loops(program.body, name, ask),
        "unswitch",
        name,
        "asks nothing that is the same in all its iterations",
    )


def lane_variables(program: LoopProgram) -> frozenset[Var]:
    """What counts lanes of vectors, which take the same side of a branch."""
    return frozenset(
        s.var for s in walk(program.body) if isinstance(s, For) and s.kind is LoopKind.VECTORIZE
    )


def _conditions(statements: Body) -> Iterator[Expr]:
    """All that statements ask."""
    for stmt in walk(statements):
        if isinstance(stmt, If):
            yield stmt.condition
        elif isinstance(stmt, Store | Accumulate) and stmt.guard is not None:
            yield stmt.guard
        for node in walk_expressions(*expressions(stmt)):
            if isinstance(node, Load) and node.guard is not None:
                yield node.guard
            elif isinstance(node, Apply) and node.op == "select":
                yield node.args[0]


def _settled(stmt: For, condition: Expr, answer: Expr) -> Body:
    """A loop in which the answer to a condition is known; nothing if it does nothing then."""
    memo: dict[Expr, Expr] = {}
    return map_expressions(
        (stmt,),
        lambda e: build.transform(e, lambda node: answer if node is condition else None, memo),
    )


def only_loop(stmt: For) -> For | None:
    """The loop that is all there is in the body of `stmt`."""
    if len(stmt.body) == 1 and isinstance(stmt.body[0], For):
        return stmt.body[0]
    return None


def reorder(program: LoopProgram, names: tuple[str, ...], *, checked: bool = True) -> LoopProgram:
    """Put perfectly nested loops into the order `names`, outermost first.

        for i in 0..4:               for j in 0..8:
          for j in 0..8:       ->      for i in 0..4:
            y[i, j] = x[j, i]            y[i, j] = x[j, i]

    Loops of the nest that are not named keep their places; guards between them, as `split` leaves
    some, go inside of all.  Refused where one element is touched
    (and written) by iterations that differ in more than one of these loops, and these change
    places, unless by one declared reduction that commutes, or by one store, which puts the same
    there each time.  Halide and TVM: reorder.
    """
    if len(set(names)) < max(2, len(names)):
        raise ScheduleError(
            f"reorder: expected the names of two or more different loops, got {', '.join(names)}"
        )
    for name in names:
        require_loops(program, "reorder", name)
    memory = Memory.of(program) if checked else None

    def visit(stmt: Stmt) -> Body | None:
        if not isinstance(stmt, For) or stmt.var.name not in names:
            return None
        found = band_of(stmt, set(names))
        if found is None:
            return None
        band, guard = found
        loops = {s.var.name: s for s in band}
        wanted = iter(names)
        order = [loops[next(wanted)] if s.var.name in names else s for s in band]
        if memory is not None:
            check_permutable(band, order, memory)
        body = when(guard, unguarded(band[-1].body)[1])
        for position in reversed(range(len(order))):
            current = order[position]
            inside = {s.var for s in order[position + 1 :]}
            if not current.extent.free.isdisjoint(inside):
                raise refuse(
                    "reorder",
                    current,
                    "has an extent that depends on a loop which would move inside it",
                )
            body = (current.around(body),)
        return body

    return changed(
        program,
        transform(program.body, visit),
        "reorder",
        names[0],
        f"and {', '.join(names[1:])} are not perfectly nested; distribute the loops "
        "between them first",
    )


def band_of(outermost: For, names: set[str]) -> tuple[list[For], Expr] | None:
    """The perfect nest from `outermost` to the last of `names`, and all conditions between its
    loops and in the last one; None where it is not perfect."""
    band, missing = [outermost], names - {outermost.var.name}
    guard, body = unguarded(outermost.body)
    while missing:
        if len(body) != 1 or not isinstance(body[0], For):
            return None
        band.append(body[0])
        missing = missing - {body[0].var.name}
        inside, body = unguarded(body[0].body)
        guard = build.all_of(guard, inside)
    return band, guard


def unguarded(body: Body) -> tuple[Expr, Body]:
    """The condition under which a body does anything, as far as no store decides about it, and
    what it does then."""
    guard = build.TRUE
    while (
        len(body) == 1
        and isinstance(body[0], If)
        and not body[0].otherwise
        and not loads(body[0].condition)
    ):
        guard = build.all_of(guard, body[0].condition)
        body = body[0].then
    return guard, body


def rename(program: LoopProgram, name: str, inner: str, to: str) -> LoopProgram:
    """Give a loop that holds another one a name of its own, so that it is rewritten by itself.

        for i in 0..4:               for i in 0..4:
          a[i] = x[i]                  a[i] = x[i]
        for i in 0..4:         ->    for i.e in 0..4:
          for j in 0..8:               for j in 0..8:
            y[i, j] = a[i]               y[i.e, j] = a[i.e]

    Without an `inner` loop, all loops of that name have another one, be it that of others which
    they are not inside of, and hold none of: these are rewritten together from then on.  Halide:
    rename.
    """
    if inner:
        require_loops(program, "rename", inner)
        if loops_named(program.body, to):
            raise ScheduleError(
                f"rename: expected a name for {name!r} that no loop has, got {to!r}"
            )

    def renamed(stmt: For) -> Body | None:
        if inner and not loops_named(stmt.body, inner):
            return None
        own = Var(to, stmt.var.dtype, stmt.var.extent)
        return (For(own, stmt.extent, stmt.kind, substitute(stmt.body, {stmt.var: own})),)

    result = changed(
        program,
        transform_loops(program.body, name, renamed),
        "rename",
        name,
        f"holds no loop called {inner}",
    )
    for outer in loops_named(result.body, to) if loops_named(program.body, to) else ():
        if loops_named(outer.body, to):
            raise refuse("rename", outer, "would hold another loop of that name")
    return result


def check_permutable(
    band: list[For], order: list[For], memory: Memory, primitive: str = "reorder"
) -> None:
    """Refuse to put perfectly nested loops into another order where that changes anything."""
    for stmt in band:
        if stmt.kind is LoopKind.VECTORIZE:
            raise refuse(primitive, stmt, f"is a vector; {primitive} before vectorize")
    touched = accesses(band[-1].body)
    written = [a for a in touched if a.writes]
    varying = variables((band[0],))
    for a, b, agree in meetings(memory, written, touched, varying):
        # Instances that agree in all other loops keep their order where these keep theirs.
        before, after = (
            [s.var.name for s in loops if s.var not in agree] for loops in (band, order)
        )
        if before != after and not _stores_the_same(
            a, b, varying - agree, [w.buffer for w in written], memory
        ):
            raise refuse(
                primitive,
                band[0],
                f"would change the order in which {a} and {b} touch "
                f"{a.buffer.name}: nothing ties the iterations of "
                f"{', '.join(sorted(before))} together",
            )


def _stores_the_same(
    a: Access, b: Access, varying: set[Var], written: list[Buffer], memory: Memory
) -> bool:
    """Whether one store touches an element twice, and what it stores depends on nothing that is
    written, and on variables only as far as the element does."""
    store = a.stmt
    if (
        store is not b.stmt
        or not isinstance(store, Store)
        or not (a.writes and b.writes)
        or any(memory.may_overlap(read.source, w) for read in loads(store.value) for w in written)
    ):
        return False
    value = store.value
    for number, i in enumerate(store.indices):
        own = next(
            (v for v, factor in index.affine(i)[0].items() if isinstance(v, Var) and factor == 1),
            None,
        )
        if own is not None and not i.free.isdisjoint(varying):
            others = own - i
            value = build.substitute(value, {own: Var(f"place{number}", INDEX) + others})
    return value.free.isdisjoint(varying)
