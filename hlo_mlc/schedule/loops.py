"""Schedule primitives that reshape and reorder loops.

Each takes a program and gives a program that computes the same.  A name addresses every loop
over a variable of that name, so copies made by peeling are rewritten together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from hlo_mlc.expr import index
from hlo_mlc.expr.core import Apply, Expr, Var, loads
from hlo_mlc.expr.dtypes import INDEX
from hlo_mlc.loops.core import (
    MAX_LANES,
    Accumulate,
    Allocate,
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
    with_body,
)
from hlo_mlc.loops.text import body_text, headline
from hlo_mlc.support.errors import ScheduleError
from hlo_mlc.tensor.combine import merging
from hlo_mlc.tensor.guards import conjuncts


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


def _require_kind(primitive: str, stmt: For, *kinds: LoopKind) -> None:
    if stmt.kind not in kinds:
        allowed = " or ".join(k.value for k in kinds)
        raise refuse(primitive, stmt, f"must be {allowed}")


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
    specialised tail, with GuardWithIf around the whole block, ShiftInwards and PredicateStores;
    TVM: split and loop partition.
    """
    if factor < 1:
        raise ScheduleError(f"split: the factor of {name!r} must be at least 1, got {factor}")
    if tail not in ("peel", "shorten", "repeat", "shift"):
        raise ScheduleError(f"split: expected a tail of {name!r} out of peel, shorten, repeat, "
                            f"shift; got {tail!r}")
    early = tail in ("repeat", "shift")

    def cut(stmt: For) -> Body:
        _require_kind("split", stmt, LoopKind.SERIAL, *(() if early else (LoopKind.PARALLEL,)))
        if tail == "peel":
            return _peeled(stmt, factor)
        if tail == "repeat" and checked:
            _check_repeatable(stmt, Memory.of(program))
        if tail == "shorten":
            return _shortened(stmt, factor)
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
    count = index.floordiv(index.add(stmt.extent, index.constant(factor - 1)), factor)

    def block(o: Var) -> Body:
        start = index.multiply(index.constant(0) if o.extent == 1 else o, size)
        return _block(stmt, start, index.minimum(size, index.subtract(stmt.extent, start)))

    return (loop(f"{stmt.var.name}.o", count, stmt.kind, block),)


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
            return (If(index.compare("lt", outer.var, last), _narrowed(_taken(*full)),
                       _narrowed(_taken(*rest))),)

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
            _require_kind("fuse", part, LoopKind.SERIAL, LoopKind.PARALLEL)
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
    places, unless by one declared reduction that commutes.  Halide and TVM: reorder.
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


def _commutes(stmt: Accumulate) -> bool:
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
        if same_reduction(a, b) and _commutes(a.stmt):
            continue
        settled = settle(a, b, varying, unstable) if memory.comparable(a.buffer, b.buffer) \
            else set()
        # Instances that agree in all other loops keep their order where these keep theirs.
        before, after = ([s.var.name for s in loops if s.var not in (settled or ())]
                         for loops in (band, order))
        if settled is not None and before != after:
            raise refuse("reorder", band[0], f"would change the order in which {a} and {b} touch "
                         f"{a.buffer.name}: nothing ties the iterations of "
                         f"{', '.join(sorted(before))} together")


def unroll(program: LoopProgram, name: str) -> LoopProgram:
    """Write the iterations of a loop out.

        for i in 0..4:        ->     for i in 0..4 unroll:
          y[i] = x[i]                  y[i] = x[i]

    Halide and TVM: unroll.
    """
    return _mark(program, "unroll", name, LoopKind.UNROLL)


def write_out(program: LoopProgram, name: str) -> LoopProgram:
    """Put the iterations of a loop one after the other, with numbers in the place of its variable.

        for i in 0..2:        ->     y[0] = x[0]
          y[i] = x[i]                y[1] = x[1]

    What `unroll` leaves to the printer, which may write copies of loops side by side, is done at
    once: guards that hold in some iterations disappear there.  Exo: unroll_loop.
    """
    def iterations(stmt: For) -> Body:
        _require_kind("write_out", stmt, LoopKind.SERIAL)
        return tuple(s for n in range(require_constant("write_out", stmt))
                     for s in substitute(stmt.body, {stmt.var: index.constant(n)}))

    return rewrite_loops(program, "write_out", name, iterations)


def vectorize(program: LoopProgram, name: str, *, checked: bool = True) -> LoopProgram:
    """Execute all iterations of a loop at once, one to a lane.

        for i in 0..8:        ->     for i in 0..8 vectorize:
          y[i] = x[i]                  y[i] = x[i]

    The extent must be a constant of at most 64.  Refused where iterations touch each other's
    elements; an Accumulate into one element is combined over the lanes, in any order, so that its
    combiner has to commute.  Halide and TVM: vectorize.
    """
    if not checked:
        return _mark(program, "vectorize", name, LoopKind.VECTORIZE, checked)
    refuse_inside(program, "vectorize", name, LoopKind.VECTORIZE)
    for stmt in require_loops(program, "vectorize", name):
        if require_constant("vectorize", stmt) > MAX_LANES:
            raise refuse("vectorize", stmt, f"has more than {MAX_LANES} iterations; split it by "
                         "the number of lanes first")
        private = {s.buffer for s in walk(stmt.body) if isinstance(s, Allocate)}
        for inner in walk(stmt.body):
            if isinstance(inner, While) or (isinstance(inner, For) and inner.kind in (
                    LoopKind.PARALLEL, LoopKind.VECTORIZE)):
                raise refuse("vectorize", stmt, f"holds `{headline(inner)}`, which cannot run "
                             "within a vector")
            if isinstance(inner, Accumulate) and not _commutes(inner) \
                    and all(stmt.var not in i.free for i in inner.indices) \
                    and private.isdisjoint(inner.buffers):
                raise refuse("vectorize", stmt, "would change the order of terms, and the combiner "
                             f"of `{headline(inner)}` does not commute; rfactor first")
            if isinstance(inner, For | If) and stmt.var in expressions(inner)[0].free:
                raise refuse("vectorize", stmt, f"decides how `{headline(inner)}` goes on, but "
                             "the lanes of a vector go the same way")
    return _mark(program, "vectorize", name, LoopKind.VECTORIZE)


def parallel(program: LoopProgram, name: str, *, checked: bool = True) -> LoopProgram:
    """Run the iterations of a loop as independent tasks.

        for i in 0..8:        ->     for i in 0..8 parallel:
          y[i] = x[i]                  y[i] = x[i]

    Refused unless it is proved that no iteration writes what another one reads or writes.
    Halide and TVM: parallel.
    """
    if not checked:
        return _mark(program, "parallel", name, LoopKind.PARALLEL, checked)
    for stmt in require_loops(program, "parallel", name):
        for inner in walk(stmt.body):
            if isinstance(inner, For) and inner.kind is LoopKind.PARALLEL:
                raise refuse("parallel", stmt, f"holds `{headline(inner)}`, which is parallel "
                             "already; fuse the two loops instead")
    refuse_inside(program, "parallel", name, LoopKind.PARALLEL, LoopKind.VECTORIZE)
    _check_private(program, "parallel", name)
    return _mark(program, "parallel", name, LoopKind.PARALLEL)


def bind(program: LoopProgram, name: str, to: str) -> LoopProgram:
    """Run the iterations of a loop as the blocks of a GPU's grid, or as the threads of a block.

        for i.o in 0..8:             for i.o in 0..8 block:
          for i.i in 0..256:   ->      for i.i in 0..256 thread:
            y[i.o, i.i] = …              y[i.o, i.i] = …

    `to` is "block" or "thread"; blocks are bound before the threads in them, and both after all
    other rewrites.  Refused unless it is proved that no iteration writes what another one reads or
    writes.  Halide: gpu_blocks, gpu_threads; TVM: bind.
    """
    kind = {"block": LoopKind.BLOCK, "thread": LoopKind.THREAD}.get(to)
    if kind is None:
        raise ScheduleError(f'bind: expected "block" or "thread" for {name!r}, got {to!r}')
    outer = (LoopKind.PARALLEL, LoopKind.VECTORIZE, LoopKind.THREAD)
    refuse_inside(program, "bind", name, *outer, *((kind,) if kind is LoopKind.BLOCK else ()))
    for *above, stmt in paths(program.body):
        if isinstance(stmt, For) and stmt.var.name == name and kind is LoopKind.THREAD \
                and not any(isinstance(s, For) and s.kind is LoopKind.BLOCK for s in above):
            raise refuse("bind", stmt, "is in no block; bind a loop around it to blocks first")
    for stmt in require_loops(program, "bind", name):
        for inner in walk(stmt.body):
            if isinstance(inner, For) and (inner.kind in (LoopKind.PARALLEL, LoopKind.BLOCK)
                                           or (kind is LoopKind.BLOCK and _is_threads(inner))):
                raise refuse("bind", stmt, f"holds `{headline(inner)}`")
    _check_private(program, "bind", name)
    result = _mark(program, "bind", name, kind)
    _check_all_by_threads(result)
    return result


def _check_all_by_threads(program: LoopProgram) -> None:
    """Refuse blocks of which some statements are for the threads and some for nobody."""
    for block in walk(program.body):
        if not isinstance(block, For) or block.kind is not LoopKind.BLOCK \
                or not any(_is_threads(s) for s in walk(block.body)):
            continue
        for *above, stmt in paths(block.body):
            inside = any(_is_threads(s) for s in above)
            if isinstance(stmt, Store | Accumulate | Allocate) and not inside:
                raise refuse("bind", block, f"would hold `{headline(stmt)}` beside its threads")
            if inside and _is_threads(stmt) and not (_is_threads(above[-1])
                                                     and len(above[-1].body) == 1):
                raise refuse("bind", stmt, "is not all that the threads around it do")


def _is_threads(stmt: Stmt) -> bool:
    return isinstance(stmt, For) and stmt.kind is LoopKind.THREAD


def refuse_inside(program: LoopProgram, primitive: str, name: str, *kinds: LoopKind) -> None:
    """Refuse a primitive on a loop that is inside one of a kind it cannot be inside of."""
    for *above, stmt in paths(program.body):
        if isinstance(stmt, For) and stmt.var.name == name:
            for outer in above:
                if isinstance(outer, For) and outer.kind in kinds:
                    raise refuse(primitive, stmt, f"is inside `{headline(outer)}`")


def _check_private(program: LoopProgram, primitive: str, name: str) -> None:
    """Refuse tasks that use a stack or register buffer from outside."""
    for *above, stmt in paths(program.body):
        if not isinstance(stmt, For) or stmt.var.name != name:
            continue
        private = {s.buffer for s in above if isinstance(s, Allocate)}
        for access in accesses(stmt.body):
            if access.buffer in private:
                raise refuse(primitive, stmt, f"uses {access.buffer.name}, which is private to "
                             "the task around it")


def _mark(program: LoopProgram, primitive: str, name: str, kind: LoopKind,
          checked: bool = True) -> LoopProgram:
    memory = Memory.of(program) if checked else None

    def mark(stmt: For) -> Body:
        _require_kind(primitive, stmt, LoopKind.SERIAL)
        if kind is LoopKind.UNROLL:
            require_constant(primitive, stmt)
        elif memory is not None:
            conflict = carried(stmt, memory,
                               reductions_are_free=kind is LoopKind.VECTORIZE)
            if conflict is not None:
                raise refuse(primitive, stmt, f"has dependent iterations: {conflict}")
        return (For(stmt.var, stmt.extent, kind, stmt.body),)

    return rewrite_loops(program, primitive, name, mark)
