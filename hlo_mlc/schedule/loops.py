"""Schedule primitives that reshape and reorder loops, and what all primitives ask of loops.

Each takes a program and gives a program that computes the same.  A name addresses every loop
over a variable of that name, so copies made by peeling are rewritten together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from hlo_mlc.expr import build, index
from hlo_mlc.expr.core import Apply, Buffer, Expr, Var, loads
from hlo_mlc.expr.dtypes import INDEX
from hlo_mlc.loops.core import (
    Accumulate,
    Call,
    For,
    If,
    LoopKind,
    LoopProgram,
    Stmt,
    Store,
    While,
    walk,
)
from hlo_mlc.loops.dependence import (
    Access,
    Memory,
    accesses,
    carried,
    pairs,
    same_reduction,
    variables,
)
from hlo_mlc.loops.equations import settle
from hlo_mlc.loops.rewrite import (
    Body,
    constant_extent,
    expressions,
    guarded,
    loop,
    loop_names,
    loops_named,
    paths,
    substitute,
    transform,
    when,
    with_body,
)
from hlo_mlc.loops.text import body_text, headline
from hlo_mlc.support.errors import ScheduleError
from hlo_mlc.tensor.combine import merging
from hlo_mlc.tensor.guards import conjuncts

TAILS = ("peel", "shorten", "lengthen", "guard", "repeat", "shift")
"""What `split` does with what is left over."""


def require_loops(program: LoopProgram, primitive: str, name: str) -> tuple[For, ...]:
    """Every loop called `name`.

    Raises: ScheduleError where there is none.
    """
    found = loops_named(program.body, name)
    if not found:
        raise _unknown(program, primitive, name)
    return found


def rewrite_loops(program: LoopProgram, primitive: str, name: str,
                  rewrite: Callable[[For], Body | None]) -> LoopProgram:
    """What `rewrite` makes of every loop called `name`; None: the loop, with what is inside of it
    rewritten.

    Raises: ScheduleError where there is none.
    """
    found = False

    def visit(stmt: Stmt) -> Body | None:
        nonlocal found
        if type(stmt) is not For or stmt.var.name != name:
            return None
        found = True
        return rewrite(stmt)

    body = transform(program.body, visit)
    if not found:
        raise _unknown(program, primitive, name)
    return with_body(program, body)


def _unknown(program: LoopProgram, primitive: str, name: str) -> ScheduleError:
    known = ", ".join(loop_names(program.body)) or "none"
    return ScheduleError(f"{primitive}: no loop is called {name!r}; the loops are: {known}")


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


def split(program: LoopProgram, name: str, factor: int, tail: str = "peel", *,
          checked: bool = True) -> LoopProgram:
    """Cut a loop into blocks of `factor` iterations; what is left over is a loop of its own.

        for i in 0..10:              for i.o in 0..2:
          y[i] = x[i]         ->       for i.i in 0..4:
                                         y[i.i + i.o * 4] = x[i.i + i.o * 4]
                                     for i.t in 0..2:
                                       y[i.t + 8] = x[i.t + 8]

    So it is with the `tail` "peel".  With "shorten" the last block has fewer iterations: there is
    one copy of the body, and tasks are of nearly equal size.

        for i in 0..10:              for i.o in 0..3:
          y[i] = x[i]         ->       for i.i in 0..min(4, i.o * -4 + 10):
                                         y[i.i + i.o * 4] = x[i.i + i.o * 4]

    With "lengthen" it has more iterations: what is left over is no block of its own.

        for i in 0..10:              for i.o in 0..2:
          y[i] = x[i]         ->       for i.i in 0..floordiv(i.o + 1, 2) * 2 + 4:
                                         y[i.i + i.o * 4] = x[i.i + i.o * 4]

    With "guard" all blocks have as many iterations, some of which do nothing in the last one.

        for i in 0..10:              for i.o in 0..3:
          y[i] = x[i]         ->       for i.i in 0..4:
                                         if (i.i + i.o * 4) < 10:
                                           y[i.i + i.o * 4] = x[i.i + i.o * 4]

    With "repeat" it begins early, and does again what the block before it did.  Refused unless
    iterations are independent, and read nothing of what they write but what they have stored.

        for i in 0..10:              for i.o in 0..3:
          y[i] = x[i]         ->       for i.i in 0..4:
                                         y[i.i + min(i.o * 4, 6)] = x[i.i + min(i.o * 4, 6)]

    With "shift" it begins early, too, but only private buffers are filled again: elsewhere guards
    let nothing happen twice, until `specialize` makes them unnecessary.

        for i in 0..10:              for i.o in 0..3:
          y[i] = x[i]         ->       for i.i in 0..4:
                                         y[i.i + min(i.o * 4, 6)] = x[i.i + min(i.o * 4, 6)]
                                           where (i.i + min(i.o * 4, 6)) >= (i.o * 4)

    A parallel loop stays parallel on the outside, and does nothing twice.  Halide: split with a
    specialised tail, with GuardWithIf around the whole block, GuardWithIf, ShiftInwards and
    PredicateStores; TVM: split and loop partition.
    """
    if factor < 1:
        raise ScheduleError(f"split: the factor of {name!r} must be at least 1, got {factor}")
    if tail not in TAILS:
        raise ScheduleError(f"split: expected a tail of {name!r} out of {', '.join(TAILS)}; got "
                            f"{tail!r}")
    early = tail in ("repeat", "shift")

    def cut(stmt: For) -> Body:
        require_kind("split", stmt, LoopKind.SERIAL, *(() if early else (LoopKind.PARALLEL,)))
        if tail == "peel":
            return _peeled(stmt, factor)
        if tail == "repeat" and checked:
            _check_repeatable(stmt, Memory.of(program))
        if tail == "shorten":
            return _shortened(stmt, factor)
        if tail == "lengthen":
            return _lengthened(stmt, factor)
        if tail == "guard":
            return _left_out(stmt, factor)
        extent = require_constant("split", stmt)
        size = min(factor, extent)
        count = -(-extent // size)

        def block(o: Var) -> Body:
            start = index.multiply(o if count > 1 else index.constant(0), index.constant(size))
            inside = stmt if tail == "repeat" else _only_from(stmt, start)
            return _block(inside, index.minimum(start, index.constant(extent - size)), size)

        return (loop(f"{stmt.var.name}.o", count, stmt.kind, block),)

    return rewrite_loops(program, "split", name, cut)


def _peeled(stmt: For, factor: int) -> Body:
    blocks, rest = index.floordiv(stmt.extent, factor), index.floormod(stmt.extent, factor)
    size = index.constant(factor)
    result: Body = ()
    if index.bounds(blocks)[1] > 0:
        result += (loop(f"{stmt.var.name}.o", blocks, stmt.kind,
                        lambda o: _block(stmt, index.multiply(o, size), size)),)
    if index.bounds(rest)[1] > 0:
        result += _block(stmt, index.multiply(blocks, size), rest, "t")
    return result


def _shortened(stmt: For, factor: int) -> Body:
    size = index.constant(factor)

    def block(o: Var) -> Body:
        start = index.multiply(index.constant(0) if o.extent == 1 else o, size)
        return _block(stmt, start, index.minimum(size, index.subtract(stmt.extent, start)))

    return (loop(f"{stmt.var.name}.o", _blocks(stmt, factor), stmt.kind, block),)


def _blocks(stmt: For, factor: int) -> Expr:
    """How many blocks of so many iterations there are, with one that is not full."""
    return index.floordiv(index.add(stmt.extent, index.constant(factor - 1)), factor)


def _lengthened(stmt: For, factor: int) -> Body:
    size, extent = index.constant(factor), require_constant("split", stmt)
    count = max(1, extent // factor)
    more = index.constant(extent - count * factor)

    def block(o: Var) -> Body:
        number = index.constant(0) if count == 1 else o
        is_last = index.floordiv(index.add(number, index.constant(1)), count)
        return _block(stmt, index.multiply(number, size),
                      index.add(size, index.multiply(is_last, more)))

    return (loop(f"{stmt.var.name}.o", count, stmt.kind, block),)


def _left_out(stmt: For, factor: int) -> Body:
    """Blocks of one size, in which what is behind the last iteration is left out."""
    size = index.constant(factor)

    def one(o: Var, i: Var) -> Body:
        position = index.add(index.multiply(o, size), i)
        return when(index.compare("lt", position, stmt.extent),
                     substitute(stmt.body, {stmt.var: position}))

    name = stmt.var.name
    return (loop(f"{name}.o", _blocks(stmt, factor), stmt.kind, lambda o: (
        loop(f"{name}.i", factor, LoopKind.SERIAL, lambda i: one(o, i)),)),)


def _block(stmt: For, start: Expr, size: Expr | int, suffix: str = "i") -> Body:
    """`size` iterations from `start` on."""
    return (loop(f"{stmt.var.name}.{suffix}", size, LoopKind.SERIAL,
                 lambda i: substitute(stmt.body, {stmt.var: index.add(start, i)})),)


def _only_from(stmt: For, start: Expr) -> For:
    """A loop that changes nothing but its private buffers in the iterations before `start`."""
    shared = {a.stmt for a in accesses(stmt.body) if a.writes}

    def visit(inner: Stmt) -> Body | None:
        if isinstance(inner, While | Call):
            raise refuse("split", inner, "cannot be left out of some iterations")
        if inner in shared and isinstance(inner, Store | Accumulate):
            own = guarded(inner, index.compare("ge", stmt.var, start))
            return () if own is None else (own,)
        return None

    return For(stmt.var, stmt.extent, stmt.kind, transform(stmt.body, visit))


def _check_repeatable(stmt: For, memory: Memory) -> None:
    """Refuse a loop of which an iteration, done again, might give something else."""
    conflict = carried(stmt, memory)
    if conflict is not None:
        raise refuse("split", stmt, f"has dependent iterations: {conflict}")
    touched, stored = accesses(stmt.body), []
    written = {a.buffer for a in touched if a.writes}
    for a in touched:
        if isinstance(a.stmt, Store) and a.writes:
            if not a.guards and not any(map(loads, a.indices)):
                stored.append(a)
        elif any(memory.may_overlap(a.buffer, b) for b in written) and not any(
                s.buffer == a.buffer and s.indices == a.indices
                and s.path == a.path[:len(s.path)] for s in stored):
            raise refuse("split", stmt, f"may not do an iteration again: {a} reads what this "
                         "overwrites")


def specialize(program: LoopProgram, name: str, at: str) -> LoopProgram:
    """Give a loop a copy for the last iteration of the loop `at` around it, and take from each
    copy what does not happen there.

        for i.o in 0..3:                                    for i.o in 0..3:
          for i.i in 0..min(4, i.o * -4 + 10):    ->          if i.o < 2:
            y[i.i + i.o * 4] = x[i.i + i.o * 4]                 for i.i in 0..4:
                                                                  y[i.i + i.o * 4] = x[…]
                                                              else:
                                                                for i.i in 0..2:
                                                                  y[i.i + 8] = x[i.i + 8]

    So are extents constant, and iterations that guards exclude no part of the loop.  Where there is
    nothing to take away, there is no copy.  Halide: specialize; TVM: loop partition.
    """
    found = False

    def visit(outer: For) -> Body:
        last = index.constant(require_constant("specialize", outer) - 1)
        before = Var(outer.var.name, outer.var.dtype, last.value)

        def copies(stmt: Stmt) -> Body | None:
            nonlocal found
            if not isinstance(stmt, For) or stmt.var.name != name:
                return None
            found = True
            full = substitute(substitute((stmt,), {outer.var: before}), {before: outer.var})
            if last.value <= 0 or _all_expressions(full) == _all_expressions((stmt,)):
                return (stmt,)
            rest = substitute((stmt,), {outer.var: last})
            then, otherwise = (tuple([narrow for s in copy for narrow in _narrowed(_taken(s))])
                               for copy in (full, rest))
            return (If(index.compare("lt", outer.var, last), then, otherwise),)

        return (For(outer.var, outer.extent, outer.kind, transform(outer.body, copies)),)

    result = rewrite_loops(program, "specialize", at, visit)
    if not found:
        raise refuse("specialize", require_loops(program, "specialize", at)[0],
                     f"holds no loop called {name}")
    return result


def _narrowed(statements: Body) -> Body:
    """Loops that have fewer iterations than before over variables that are known to stay below."""
    def visit(stmt: Stmt) -> Body | None:
        if not isinstance(stmt, For) or stmt.var.extent is None \
                or index.bounds(stmt.extent)[1] >= stmt.var.extent:
            return None
        return (loop(stmt.var.name, stmt.extent, stmt.kind, lambda i: _narrowed(
            substitute(stmt.body, {stmt.var: i}))),)

    return transform(statements, visit)


def _all_expressions(statements: Body) -> list[Expr]:
    return [e for s in walk(statements) for e in expressions(s)]


def _taken(stmt: For) -> Body:
    """A loop from the first iteration on in which it changes something that others see."""
    def first(guards: Iterable[Expr]) -> int:
        starts = [-offset for guard in guards for part in conjuncts(guard)
                  if isinstance(part, Apply) and part.op == "ge" and part.args[0].dtype is INDEX
                  for terms, offset in [index.affine(index.subtract(*part.args))]
                  if terms == {stmt.var: 1}]
        return max(starts, default=0)

    idle = max(0, min((first(a.guards) for a in accesses(stmt.body) if a.writes), default=0))
    left = index.subtract(stmt.extent, index.constant(idle))
    return (loop(stmt.var.name, left, stmt.kind, lambda i: substitute(
        stmt.body, {stmt.var: index.add(i, index.constant(idle))})),)


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
        total = index.multiply(stmt.extent, within.extent)
        kind = stmt.kind if stmt.kind is within.kind else LoopKind.SERIAL
        return (loop(name, total, kind, lambda both: substitute(within.body, {
            stmt.var: index.floordiv(both, size), within.var: index.floormod(both, size)})),)

    return rewrite_loops(program, "fuse", outer, join)


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

    Loops of the nest that are not named keep their places.  Refused where one element is touched
    (and written) by iterations that differ in more than one of these loops, and these change
    places, unless by one declared reduction that commutes, or by one store, which puts the same
    there each time.  Halide and TVM: reorder.
    """
    if len(set(names)) < max(2, len(names)):
        raise ScheduleError(f"reorder: expected the names of two or more different loops, got "
                            f"{', '.join(names)}")
    for name in names:
        require_loops(program, "reorder", name)
    memory = Memory.of(program) if checked else None
    moved = 0

    def visit(stmt: Stmt) -> Body | None:
        nonlocal moved
        if not isinstance(stmt, For) or stmt.var.name not in names:
            return None
        band = _band(stmt, set(names))
        if band is None:
            return None
        moved += 1
        loops = {s.var.name: s for s in band}
        wanted = iter(names)
        order = [loops[next(wanted)] if s.var.name in names else s for s in band]
        if memory is not None:
            _check_permutable(band, order, memory)
        body = band[-1].body
        for position in reversed(range(len(order))):
            current = order[position]
            inside = {s.var for s in order[position + 1:]}
            if not current.extent.free.isdisjoint(inside):
                raise refuse("reorder", current, "has an extent that depends on a loop which "
                             "would move inside it")
            body = (For(current.var, current.extent, current.kind, body),)
        return body

    result = transform(program.body, visit)
    if not moved:
        outermost = require_loops(program, "reorder", names[0])[0]
        raise refuse("reorder", outermost, f"and {', '.join(names[1:])} are not perfectly nested; "
                     "distribute the loops between them first")
    return with_body(program, result)


def _band(outermost: For, names: set[str]) -> list[For] | None:
    """The perfect nest from `outermost` to the last of `names`; None where it is not perfect."""
    band, missing = [outermost], names - {outermost.var.name}
    while missing:
        inner = only_loop(band[-1])
        if inner is None:
            return None
        band.append(inner)
        missing = missing - {inner.var.name}
    return band


def commutes(stmt: Accumulate) -> bool:
    """Whether the order of terms does not matter to an update."""
    return merging(stmt.combiner, stmt.terms, ()) is stmt.combiner


def _check_permutable(band: list[For], order: list[For], memory: Memory) -> None:
    for stmt in band:
        if stmt.kind is LoopKind.VECTORIZE:
            raise refuse("reorder", stmt, "is a vector; reorder before vectorize")
    touched = accesses(band[-1].body)
    written = [a for a in touched if a.writes]
    varying, unstable = variables((band[0],)), {a.buffer for a in written}
    for a, b in pairs(memory, written, touched):
        if same_reduction(a, b) and commutes(a.stmt):
            continue
        settled = settle(a, b, varying, unstable) if memory.comparable(a.buffer, b.buffer) \
            else set()
        # Instances that agree in all other loops keep their order where these keep theirs.
        before, after = ([s.var.name for s in loops if s.var not in (settled or ())]
                         for loops in (band, order))
        if settled is not None and before != after and not _stores_the_same(
                a, b, varying - settled, [w.buffer for w in written], memory):
            raise refuse("reorder", band[0], f"would change the order in which {a} and {b} touch "
                         f"{a.buffer.name}: nothing ties the iterations of "
                         f"{', '.join(sorted(before))} together")


def _stores_the_same(a: Access, b: Access, varying: set[Var], written: list[Buffer], memory: Memory
                     ) -> bool:
    """Whether one store touches an element twice, and what it stores depends on nothing that is
    written, and on variables only as far as the element does."""
    store = a.stmt
    if store is not b.stmt or not isinstance(store, Store) or not (a.writes and b.writes) or any(
            memory.may_overlap(read.source, w) for read in loads(store.value) for w in written):
        return False
    value = store.value
    for number, i in enumerate(store.indices):
        own = next((v for v, factor in index.affine(i)[0].items()
                    if isinstance(v, Var) and factor == 1), None)
        if own is not None and not i.free.isdisjoint(varying):
            others = index.subtract(own, i)
            value = build.substitute(value, {own: index.add(Var(f"place{number}", INDEX), others)})
    return value.free.isdisjoint(varying)
