"""Schedule primitives that decide where values live: contract, expand, promote, hoist."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

from hlo_mlc.expr import build
from hlo_mlc.expr.core import Apply, Buffer, Expr, Load, Var, loads
from hlo_mlc.expr.dtypes import INDEX, DType, dtype, holds
from hlo_mlc.loops.core import (
    STACK_BYTES,
    Accumulate,
    Allocate,
    For,
    If,
    LoopKind,
    LoopProgram,
    Prefetch,
    Stmt,
    Store,
    While,
    bodies,
    walk,
)
from hlo_mlc.loops.dependence import Memory, accesses, carried, variables
from hlo_mlc.loops.equations import solve
from hlo_mlc.loops.rewrite import (
    Body,
    allocated,
    loads_of,
    paths,
    redirect,
    substitute,
    touched,
    transform,
    transform_lists,
    transform_loops,
    with_bodies,
    with_body,
)
from hlo_mlc.schedule.loops import changed, most_iterations, refuse, require_loops, rewrite_loops
from hlo_mlc.schedule.tiles import tile_around, unstable_in
from hlo_mlc.support.errors import ScheduleError

T = TypeVar("T")


def contract(program: LoopProgram, name: str) -> LoopProgram:
    """Keep of a scratch buffer only what one iteration of the loops around it needs.

        scratch a: 8x4xf32                 for i in 0..8:
        for i in 0..8:                       alloc a: 4xf32 stack:
          for j in 0..4:             ->        for j in 0..4:
            a[i, j] = x[i, j]                    a[j] = x[i, j]
          for n in 0..4:                       for n in 0..4:
            y[i, n] = a[i, n * -1 + 3]           y[i, n] = a[n * -1 + 3]

    The buffer moves as far inside as no iteration needs what another one left in it; a single
    element becomes a register.  Halide: storage folding; TVM: compact_buffer.
    """
    buffer = next((b for b, _ in program.scratch if b.name == name), None)
    if buffer is None:
        known = ", ".join(b.name for b, _ in program.scratch) or "none"
        raise ScheduleError(f"contract: no scratch buffer is called {name!r}; there are: {known}")
    for stmt in walk(program.body):
        if isinstance(stmt, Accumulate) and buffer in stmt.buffers and len(stmt.buffers) > 1:
            raise refuse("contract", stmt, f"updates other buffers together with {name}")
    memory = Memory.of(program)
    body = transform(
        program.body, lambda s: () if isinstance(s, Prefetch) and s.buffer == buffer else None
    )  # what lies behind it is elsewhere then
    body = _contract_in(body, buffer, memory, depth=0)
    scratch = tuple(item for item in program.scratch if item[0] is not buffer)
    return replace(program, body=body, scratch=scratch)


def _uses(stmt: Stmt, buffer: Buffer) -> bool:
    """Whether a statement, or one inside of it, reads or writes the buffer."""
    return any(buffer in touched(inner) for inner in walk((stmt,)))


def _contract_in(statements: Body, buffer: Buffer, memory: Memory, depth: int) -> Body:
    """Move the buffer into the statements that use it, or put it here."""
    users = [s for s in statements if _uses(s, buffer)]
    if len(users) > 1 and _apart(users, buffer):
        return tuple(
            part
            for s in statements
            for part in (_contract_in((s,), buffer, memory, depth) if s in users else (s,))
        )
    if len(users) == 1 and _may_enter(users[0], buffer, memory):
        user = users[0]
        inside = with_bodies(
            user,
            tuple(
                _contract_in(body, buffer, memory, depth + isinstance(user, For))
                if any(_uses(s, buffer) for s in body)
                else body
                for body in bodies(user)
            ),
        )
        return tuple(inside if s is user else s for s in statements)
    if depth == 0:
        reason = "is used by several statements outside of any common loop; fuse their loops first"
        if len(users) == 1:
            reason = "carries values between the iterations of the loop around its uses"
        raise refuse("contract", users[0], f": {buffer.name} {reason}")
    first, last = statements.index(users[0]), statements.index(users[-1])
    part = statements[first : last + 1]
    refuse_tasks("contract", part, buffer)
    tile = tile_around(buffer, accesses(part), part)
    small = Buffer(buffer.name, buffer.dtype, tile.shape, "stack" if tile.shape else "register")
    refuse_large("contract", users[0], small)
    held = Allocate(small, redirect(part, {buffer: small}, tile.place))
    return (*statements[:first], held, *statements[last + 1 :])


def refuse_tasks(primitive: str, statements: Body, buffer: Buffer) -> None:
    """Refuse to put a private buffer around tasks that would share it."""
    for stmt in walk(statements):
        if isinstance(stmt, For) and stmt.kind is LoopKind.PARALLEL and accesses(stmt.body, buffer):
            raise refuse(
                primitive,
                stmt,
                f"is parallel, and its tasks share {buffer.name}; keep "
                "private buffers inside of it",
            )


def _apart(users: list[Stmt], buffer: Buffer) -> bool:
    """Whether no two of these statements touch the same element."""
    groups = [accesses((s,), buffer) for s in users]
    computed = any(loads(i) for group in groups for a in group for i in a.indices)
    varying, unstable = variables(tuple(users)), unstable_in(tuple(users)) if computed else set()
    return all(
        solve(a, b, varying, unstable) is None
        for n, group in enumerate(groups)
        for other in groups[n + 1 :]
        for a in group
        for b in other
    )


def _may_enter(stmt: Stmt, buffer: Buffer, memory: Memory) -> bool:
    """Whether a private copy in each execution of the body of `stmt` would do."""
    match stmt:
        case Allocate():
            return True
        case If():
            return not any(load.source == buffer for load in loads(stmt.condition))
        case For():
            return carried(stmt, memory, only=buffer) is None
    return False


def expand(
    program: LoopProgram, name: str, scope: str, multiple: int = 1, place: str = "first"
) -> LoopProgram:
    """Give the private buffers of a loop's body an element for each iteration, and keep them all.

        for i in 0..6:                   alloc sum: 8xf32 register:
          alloc sum: f32 register:         for i in 0..6:
            sum[] = 0                        sum[i] = 0
            for k in 0..4:           ->      for k in 0..4:
              sum[] <- add x[k, i]             sum[i] <- add x[k, i]
            y[i] = sum[]                     y[i] = sum[i]

    `scope` ("register" or "stack") says where they are then; there is room for a whole `multiple`
    of elements (4 in the picture).  Arrays get the new dimension at a `place`, "first" or "last",
    where it becomes lanes.  Loops of that name without private buffers stay as they are.  The loop
    can be distributed afterwards.  Halide: store_in and align_storage; Exo: expand_dim; elsewhere
    scalar expansion.
    """
    if scope not in ("register", "stack") or multiple < 1:
        raise ScheduleError(
            f"expand: expected the scope register or stack, and a multiple of at "
            f"least 1, for {name!r}; got {scope!r} and {multiple}"
        )
    if place not in ("first", "last"):
        raise ScheduleError(f"expand: expected the place first or last for {name!r}, got {place!r}")

    def placed(others: tuple[T, ...], one: T) -> tuple[T, ...]:
        return (one, *others) if place == "first" else (*others, one)

    def grow(stmt: For) -> Body | None:
        private, body = taken_out(stmt.body)
        if not private:
            return None
        if stmt.kind not in (LoopKind.SERIAL, LoopKind.UNROLL):
            raise refuse("expand", stmt, "must be serial or unrolled")
        size = -(-most_iterations("expand", stmt) // multiple) * multiple
        if len({buffer.name for buffer in private}) < len(private):
            raise refuse("expand", stmt, "has several private buffers of one name")
        larger = {b: replace(b, shape=placed(b.shape, size), scope=scope) for b in private}
        for buffer in larger.values():
            refuse_large("expand", stmt, buffer)
        body = redirect(body, larger, lambda indices: placed(indices, stmt.var))
        return allocated(larger.values(), stmt.around(body))

    return changed(
        program,
        transform_loops(program.body, name, grow),
        "expand",
        name,
        "has no private buffers in its body",
    )


def promote(program: LoopProgram, name: str, begin: str = "there") -> LoopProgram:
    """Let a loop add up in a register what it adds to an element of a private buffer.

        s[i] = 0                       alloc s.k: f32 register:
        for k in 0..8:                   s.k[] = 0
          s[i] <- add x[k, i]    ->      for k in 0..8:
                                           s.k[] <- add x[k, i]
                                         s[i] = s.k[]

    It begins with what was there, which is not stored if it was right before.  What begins
    `neutral` is combined with what was there when the loop has ended: a sum of parts of many terms
    is off by less then.

        for o in 0..9:                 for o in 0..9:
          for k in 0..8:                 alloc s.k: f32 register:
            s[i] <- add x[o, k]            s.k[] = -0.0
                                 ->        for k in 0..8:
                                             s.k[] <- add x[o, k]
                                           s[i] <- add s.k[]

    Refused unless the loop, or the innermost one of a perfect nest, does nothing else, and where
    nothing is neutral.  TVM: cache_write; LLVM: scalar promotion.
    """
    require_loops(program, "promote", name)
    if begin not in ("there", "neutral"):
        raise ScheduleError(f"promote: expected it to begin there or neutral, got {begin!r}")

    def visit(statements: Body) -> Body:
        result: list[Stmt] = []
        for stmt in statements:
            if not isinstance(stmt, For) or stmt.var.name != name:
                result.append(stmt)
                continue
            update = _only_update(stmt)
            (buffer,) = update.buffers
            own, start = Buffer(f"{buffer.name}.{name}", buffer.dtype, (), "register"), None
            end: Stmt = Store(buffer, update.indices, Load(own, ()))
            before = result[-1] if result else None
            if begin == "neutral":
                if update.combiner.identity is None:
                    raise refuse("promote", stmt, "has no identity to begin with")
                (start,) = update.combiner.identity
                end = Accumulate((buffer,), update.indices, update.combiner, (Load(own, ()),))
            elif (
                isinstance(before, Store)
                and before.guard is None
                and (before.buffer, before.indices) == (buffer, update.indices)
            ):
                start = result.pop().value
            sums = transform(
                (stmt,),
                lambda s, own=own: (
                    (Accumulate((own,), (), s.combiner, s.terms, s.guard),)
                    if isinstance(s, Accumulate)
                    else None
                ),
            )
            result.append(
                Allocate(
                    own,
                    (
                        Store(own, (), Load(buffer, update.indices) if start is None else start),
                        *sums,
                        end,
                    ),
                )
            )
        return tuple(result)

    return with_body(program, transform_lists(program.body, visit))


def _only_update(stmt: For) -> Accumulate:
    """All that a nest does, to one element."""
    inner: Stmt = stmt
    axes = set()
    while isinstance(inner, For) and inner.kind is LoopKind.SERIAL and len(inner.body) == 1:
        axes.add(inner.var)
        inner = inner.body[0]
    if (
        not isinstance(inner, Accumulate)
        or len(inner.buffers) > 1
        or inner.buffers[0].scope not in ("register", "stack")
    ):
        raise refuse("promote", stmt, "must do nothing but update a private buffer")
    places = frozenset().union(*(i.free for i in inner.indices))
    if (
        not axes.isdisjoint(places)
        or any(map(loads, inner.indices))
        or any(read.source == inner.buffers[0] for read in loads_of(inner))
    ):
        raise refuse("promote", stmt, "must update one element of it, and not read it")
    return inner


def hoist(
    program: LoopProgram,
    name: str,
    inner: str,
    multiple: int = 1,
    kept: str = "value",
    *,
    checked: bool = True,
) -> LoopProgram:
    """Compute what updates in a loop combine, and is the same in all its iterations, before it.

        for i in 0..4:                         alloc i.h: 8xf32 stack:
          for j in 0..8:                         for i.h.j in 0..8:
            s[] <- add x[i, j] * exp(y[j])  ->     i.h[i.h.j] = exp(y[i.h.j])
                                                 for i in 0..4:
                                                   for j in 0..8:
                                                     s[] <- add x[i, j] * i.h[j]

    That is an operand of the operation that gives the term, here of the product, and the same in
    all iterations of the loop `inner`, too, which is inside of this one, or this one itself.  Of
    several it is the one that changes in the most loops; a constant stays where it is.  It has an
    element for each iteration of the loops in which it changes, in the order of these, with room
    for a whole `multiple` of elements: so a factor is packed as it is read.  With "source" `kept`,
    not "value", what is converted is converted afterwards; with a type such as "i16" it is that
    meanwhile.  Refused where an iteration writes what it is computed from, or may not need it, or
    the type may not hold it.  Halide: compute_at of what was inline; TVM:
    cache_read.
    """
    narrow = None
    if kept not in ("value", "source"):
        try:
            narrow = dtype(kept)
        except KeyError:
            raise ScheduleError(
                f"hoist: expected value, source or a type to be kept of {name!r}, got {kept!r}"
            ) from None
    if multiple < 1:
        raise ScheduleError(
            f"hoist: expected a multiple of at least 1 for {name!r}, got {multiple}"
        )
    require_loops(program, "hoist", inner)
    memory = Memory.of(program) if checked else None
    taken = {s.buffer.name for s in walk(program.body) if isinstance(s, Allocate)}
    found = False

    def before(stmt: For) -> Body | None:
        nonlocal found
        chosen = _same_operands(stmt, (name, inner))
        found = found or bool(chosen)
        chosen = {e: loops for e, loops in chosen.items() if loops}
        if not chosen:
            return None
        if len(chosen) > 1:
            raise refuse(
                "hoist",
                stmt,
                f"has updates that combine different things: {', '.join(map(str, chosen))}",
            )
        ((value, loops),) = chosen.items()
        if kept == "source" and isinstance(value, Apply) and value.op == "convert":
            (value,) = value.args
        if narrow is not None and not (
            isinstance(value, Apply)
            and value.op == "convert"
            and holds(value.dtype, narrow)
            and holds(narrow, value.args[0].dtype)
        ):
            raise refuse("hoist", stmt, f"combines {value}, which {narrow} may not hold")
        if memory is not None:
            _refuse_unstable(stmt, value, loops, memory)
        if f"{name}.h" in taken:
            raise refuse("hoist", stmt, f"is behind {name}.h already")
        return _computed_before(stmt, value, loops, multiple, narrow)

    result = rewrite_loops(program, "hoist", name, before)
    if not found:
        raise refuse(
            "hoist",
            require_loops(program, "hoist", name)[0],
            "changes all that its updates combine",
        )
    return result


def _same_operands(stmt: For, names: tuple[str, str]) -> dict[Expr, list[For]]:
    """What each update in the second of two loops combines, and is the same in all iterations of
    both, with the loops in which it changes."""
    chosen: dict[Expr, list[For]] = {}
    for path in paths((stmt,)):
        around = [s for s in path if isinstance(s, For)]
        same = {s.var for s in around if s.var.name in names}
        if isinstance(path[-1], Accumulate) and names[1] in (s.var.name for s in around):
            found = {
                e: [s for s in around if s.var in e.free]
                for e in _operands(path[-1])
                if e.free.isdisjoint(same)
            }
            if found:
                most = max(found, key=lambda e: len(found[e]))
                chosen[most] = found[most]
    return chosen


def _computed_before(
    stmt: For, value: Expr, loops: list[For], multiple: int, narrow: DType | None = None
) -> Body:
    """A loop behind others that compute a value for it, which it has in a `narrow` type."""
    sizes = [most_iterations("hoist", s) for s in loops]
    sizes[-1] = -(-sizes[-1] // multiple) * multiple
    kept = value if narrow is None else build.apply("convert", *value.args, dtype=narrow)
    buffer = Buffer(f"{stmt.var.name}.h", kept.dtype, tuple(sizes), "stack")
    refuse_large("hoist", stmt, buffer)
    place = tuple(s.var for s in loops)
    read: Expr = Load(buffer, place)
    if narrow is not None:
        read = build.apply("convert", read, dtype=value.dtype)
    body: Body = (
        For(
            stmt.var,
            stmt.extent,
            stmt.kind,
            transform(stmt.body, lambda s: _instead(s, value, read)),
        ),
    )
    refuse_tasks("hoist", body, buffer)
    fill = nest_like(loops, (Store(buffer, place, kept),), buffer.name)
    return (Allocate(buffer, (*fill, *body)),)


def nest_like(loops: Sequence[For], body: Body, name: str) -> Body:
    """Loops like these around a body, called `name` and as these."""
    for s in reversed(loops):
        own = Var(f"{name}.{s.var.name}", INDEX, s.var.extent)
        body = (For(own, s.extent, LoopKind.SERIAL, substitute(body, {s.var: own})),)
    return body


def _instead(stmt: Stmt, value: Expr, new: Expr) -> Body | None:
    """An update that combines something new in the place of a value."""
    if not isinstance(stmt, Accumulate) or value not in {
        *_operands(stmt),
        *(arg for e in _operands(stmt) if isinstance(e, Apply) for arg in e.args),
    }:
        return None
    terms = tuple(
        [build.transform(t, lambda node: new if node is value else None) for t in stmt.terms]
    )
    return (stmt.with_parts(stmt.buffers, stmt.indices, terms, stmt.guard),)


def _operands(update: Accumulate) -> Iterator[Expr]:
    """What the operations that give the terms of an update take."""
    for term in update.terms:
        if isinstance(term, Apply):
            yield from term.args


def _refuse_unstable(stmt: For, value: Expr, loops: list[For], memory: Memory) -> None:
    """Refuse a value that cannot be computed in front of a loop."""
    written = {a.buffer for a in accesses(stmt.body) if a.writes}
    private = {s.buffer for s in walk(stmt.body) if isinstance(s, Allocate)}
    for read in loads(value):
        if any(memory.may_overlap(read.source, b) for b in (*written, *private)):
            raise refuse("hoist", stmt, f"also writes {read.source.name}")
    varying = {stmt.var, *(s.var for s in walk(stmt.body) if isinstance(s, For))}
    for s in loops:
        if not s.extent.free.isdisjoint(varying) or loads(s.extent):
            raise refuse("hoist", s, "has an extent that may change meanwhile")
    for path in paths(stmt.body):
        if (
            isinstance(path[-1], Accumulate)
            and value in _operands(path[-1])
            and (path[-1].guard is not None or any(isinstance(s, If | While) for s in path))
        ):
            raise refuse("hoist", path[-1], "does not always happen")


def taken_out(body: Body) -> tuple[tuple[Buffer, ...], Body]:
    """The buffers that are allocated in a body outside of its loops and branches, and the body
    without that."""
    buffers: tuple[Buffer, ...] = ()
    rest: Body = ()
    for stmt in body:
        if isinstance(stmt, Allocate):
            inner, stmts = taken_out(stmt.body)
            buffers, rest = (*buffers, stmt.buffer, *inner), rest + stmts
        else:
            rest += (stmt,)
    return buffers, rest


def refuse_large(primitive: str, stmt: Stmt, buffer: Buffer) -> None:
    """Refuse a private buffer for which a thread's stack has no room."""
    if buffer.bytes > STACK_BYTES:
        raise refuse(
            primitive,
            stmt,
            f"needs {buffer.bytes} bytes of {buffer.name} at once; a "
            f"private buffer may have {STACK_BYTES}",
        )
