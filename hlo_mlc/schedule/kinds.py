"""Schedule primitives that say what the iterations of a loop are: copies, lanes, tasks, or threads,
whose updates may meet."""

from __future__ import annotations

from dataclasses import replace

from hlo_mlc.expr import index
from hlo_mlc.expr.core import Load
from hlo_mlc.loops.accesses import Access, all_accesses, is_own_part
from hlo_mlc.loops.core import (
    MAX_LANES,
    Accumulate,
    Allocate,
    For,
    If,
    LoopKind,
    LoopProgram,
    Stmt,
    Store,
    While,
    folding,
    walk,
)
from hlo_mlc.loops.dependence import Memory, accesses, carried, commutes
from hlo_mlc.loops.matrices import parts
from hlo_mlc.loops.rewrite import (
    Body,
    expressions,
    paths,
    redirect,
    substitute,
    transform,
    transform_loops,
    with_body,
)
from hlo_mlc.loops.text import headline
from hlo_mlc.schedule.loops import (
    changed,
    refuse,
    refuse_inside,
    require_constant,
    require_kind,
    require_loops,
    rewrite_loops,
)
from hlo_mlc.support.errors import ScheduleError
from hlo_mlc.tensor.combine import update_of


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
        require_kind("write_out", stmt, LoopKind.SERIAL)
        return tuple(
            s
            for n in range(require_constant("write_out", stmt))
            for s in substitute(stmt.body, {stmt.var: index.constant(n)})
        )

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
            raise refuse(
                "vectorize",
                stmt,
                f"has more than {MAX_LANES} iterations; split it by the number of lanes first",
            )
        private = {s.buffer for s in walk(stmt.body) if isinstance(s, Allocate)}
        for inner in walk(stmt.body):
            if isinstance(inner, While) or (
                isinstance(inner, For) and inner.kind in (LoopKind.PARALLEL, LoopKind.VECTORIZE)
            ):
                raise refuse(
                    "vectorize",
                    stmt,
                    f"holds `{headline(inner)}`, which cannot run within a vector",
                )
            if (
                isinstance(inner, Accumulate)
                and not commutes(inner)
                and all(stmt.var not in i.free for i in inner.indices)
                and private.isdisjoint(inner.buffers)
            ):
                raise refuse(
                    "vectorize",
                    stmt,
                    "would change the order of terms, and the combiner "
                    f"of `{headline(inner)}` does not commute; rfactor first",
                )
            if isinstance(inner, For | If) and stmt.var in expressions(inner)[0].free:
                raise refuse(
                    "vectorize",
                    stmt,
                    f"decides how `{headline(inner)}` goes on, but "
                    "the lanes of a vector go the same way",
                )
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
                raise refuse(
                    "parallel",
                    stmt,
                    f"holds `{headline(inner)}`, which is parallel "
                    "already; fuse the two loops instead",
                )
    refuse_inside(program, "parallel", name, LoopKind.PARALLEL, LoopKind.VECTORIZE)
    _check_private(program, "parallel", name)
    return _mark(program, "parallel", name, LoopKind.PARALLEL)


def bind(
    program: LoopProgram, names: str | tuple[str, ...], to: str, *, checked: bool = True
) -> LoopProgram:
    """Run the iterations of a loop as the blocks of a GPU's grid, or as the threads of a block.

        for i.o in 0..8:             for i.o in 0..8 block:
          for i.i in 0..256:   ->      for i.i in 0..256 thread:
            y[i.o, i.i] = …              y[i.o, i.i] = …

    `to` is "block" or "thread"; blocks are bound before the threads in them, and both after all
    other rewrites.  Private buffers around threads are shared by them:

        alloc a: 8xf32 stack:                     alloc a: 8xf32 shared:
          for i in 0..8: a[i] = x[b, i]     ->      for i in 0..8 thread: a[i] = x[b, i]
          for j in 0..8: y[b, j] = a[7 - j]         for j in 0..8 thread: y[b, j] = a[7 - j]

    Such loops, one behind the other, are bound at once, by all of their names: they wait for each
    other.  Where each thread has a part of a buffer for itself, that stays its own.  Threads that
    do nothing but update one element combine their terms by halves first.  Refused unless it is
    proved that no iteration writes what another one reads or writes, but for that.
    Halide: gpu_blocks, gpu_threads; TVM: bind.
    """
    names = (names,) if isinstance(names, str) else names
    kind = {"block": LoopKind.BLOCK, "thread": LoopKind.THREAD}.get(to)
    if kind is None:
        raise ScheduleError(
            f'bind: expected "block" or "thread" for {", ".join(names)}, got {to!r}'
        )
    if not checked:
        for name in names:
            require_loops(program, "bind", name)
        return _with_shared(with_body(program, _bound(program.body, frozenset(names), kind)))
    for name in names:
        _check_bound(program, name, kind)
        program = _mark(program, "bind", name, kind)
    program = _with_shared(program)
    _check_all_by_threads(program)
    return program


def _bound(statements: Body, names: frozenset[str], kind: LoopKind) -> Body:
    """Statements with the loops of some names done side by side."""
    return transform(
        statements,
        lambda s: (
            (For(s.var, s.extent, kind, _bound(s.body, names, kind)),)
            if type(s) is For and s.var.name in names
            else None
        ),
    )


def tensorize(program: LoopProgram, name: str) -> LoopProgram:
    """Let an instruction of a GPU's tensor cores do what loops say of one lane.

        for e in 0..4:                              for e in 0..4 tensor:
          for k in 0..16:                     ->      for k in 0..16:
            s[e] <- add f32(a[…]) * f32(b[…])           s[e] <- add f32(a[…]) * f32(b[…])

    Loops of that name that are no such product (`loops/matrices.py`) stay as they are.  TVM:
    tensorize.
    """

    def mark(stmt: For) -> Body | None:
        if parts(stmt) is None:
            return None
        require_kind("tensorize", stmt, LoopKind.SERIAL)
        return (For(stmt.var, stmt.extent, LoopKind.TENSOR, stmt.body),)

    return changed(
        program,
        transform_loops(program.body, name, mark),
        "tensorize",
        name,
        "is not what an instruction does",
    )


def atomic(program: LoopProgram, name: str) -> LoopProgram:
    """Let updates of a buffer be such that nothing comes between, so that iterations side by side
    may update one element.

        y[p[i]] = y[p[i]] + x[i]      ->      y[p[i]] <- add x[i] atomic

    An update combines the element there with something by an op of which any order gives one
    result, up to rounding; what else is stored to the buffer stays as it is.  Halide: atomic.
    """

    def visit(stmt: Stmt) -> Body | None:
        if not isinstance(stmt, Store) or stmt.buffer.name != name:
            return None
        update = update_of(stmt.value, Load(stmt.buffer, stmt.indices))
        if update is None:
            return None
        combiner, term = update
        return (Accumulate((stmt.buffer,), stmt.indices, combiner, (term,), stmt.guard, True),)

    body = transform(program.body, visit)
    if body is program.body:
        raise ScheduleError(
            f"atomic: no store to a buffer called {name!r} updates its element by "
            "an op of which order does not matter"
        )
    return with_body(program, body)


def _check_bound(program: LoopProgram, name: str, kind: LoopKind) -> None:
    """Refuse loops that cannot be bound where they are."""
    refuse_inside(program, "bind", name, LoopKind.PARALLEL, LoopKind.VECTORIZE)
    if kind is LoopKind.BLOCK:
        refuse_inside(program, "bind", name, LoopKind.BLOCK, LoopKind.THREAD)
        _check_private(program, "bind", name)
    for *above, stmt in paths(program.body):
        if (
            isinstance(stmt, For)
            and stmt.var.name == name
            and kind is LoopKind.THREAD
            and not any(isinstance(s, For) and s.kind is LoopKind.BLOCK for s in above)
        ):
            raise refuse("bind", stmt, "is in no block; bind a loop around it to blocks first")
    for stmt in require_loops(program, "bind", name):
        for inner in walk(stmt.body):
            if isinstance(inner, For) and (
                inner.kind in (LoopKind.PARALLEL, LoopKind.BLOCK)
                or (kind is LoopKind.BLOCK and _is_threads(inner))
            ):
                raise refuse("bind", stmt, f"holds `{headline(inner)}`")


def _with_shared(program: LoopProgram) -> LoopProgram:
    """Private buffers that exist around loops over threads are shared by these, unless each thread
    has its own part."""
    around = {
        s.buffer
        for *above, threads in paths(program.body)
        if _is_threads(threads) and not any(map(_is_threads, above))
        for s in above
        if isinstance(s, Allocate) and s.buffer.scope in ("stack", "register", "shared")
    }
    if not around:
        return program
    shared = {
        a.buffer for a in all_accesses(program.body) if a.buffer in around and not _is_in_parts(a)
    }
    return with_body(
        program,
        redirect(
            program.body,
            {b: replace(b, scope="shared" if b in shared else "thread") for b in around},
        ),
    )


def _is_in_parts(access: Access) -> bool:
    """Whether the first indices of a buffer are the threads' own where it is used."""
    threads = [s.var for s, _ in access.path if _is_threads(s)]
    return (
        bool(threads)
        and access.buffer.shape[:1] == (threads[0].extent,)
        and is_own_part(access.buffer, access.indices, threads)
    )


def _check_all_by_threads(program: LoopProgram) -> None:
    """Refuse blocks of which some statements are for the threads and some for nobody."""
    for block in walk(program.body):
        if (
            not isinstance(block, For)
            or block.kind is not LoopKind.BLOCK
            or not any(_is_threads(s) for s in walk(block.body))
        ):
            continue
        for *above, stmt in paths(block.body):
            inside = any(_is_threads(s) for s in above)
            if isinstance(stmt, Store | Accumulate) and not inside:
                raise refuse("bind", block, f"would hold `{headline(stmt)}` beside its threads")
            if (
                inside
                and _is_threads(stmt)
                and not (_is_threads(above[-1]) and len(above[-1].body) == 1)
            ):
                raise refuse("bind", stmt, "is not all that the threads around it do")


def _is_threads(stmt: Stmt) -> bool:
    return isinstance(stmt, For) and stmt.kind is LoopKind.THREAD


def _check_private(program: LoopProgram, primitive: str, name: str) -> None:
    """Refuse tasks that use a stack or register buffer from outside."""
    for *above, stmt in paths(program.body):
        if not isinstance(stmt, For) or stmt.var.name != name:
            continue
        private = {s.buffer for s in above if isinstance(s, Allocate)}
        for access in accesses(stmt.body):
            if access.buffer in private:
                raise refuse(
                    primitive,
                    stmt,
                    f"uses {access.buffer.name}, which is private to the task around it",
                )


def _mark(
    program: LoopProgram, primitive: str, name: str, kind: LoopKind, checked: bool = True
) -> LoopProgram:
    memory = Memory.of(program) if checked else None

    def mark(stmt: For) -> Body:
        require_kind(primitive, stmt, LoopKind.SERIAL)
        if kind is LoopKind.UNROLL:
            require_constant(primitive, stmt)
        marked = For(stmt.var, stmt.extent, kind, stmt.body)
        if memory is not None and kind is not LoopKind.UNROLL:
            update = folding(marked)
            conflict = carried(
                stmt,
                memory,
                reductions_are_free=kind is LoopKind.VECTORIZE
                or (update is not None and commutes(update)),
            )
            if conflict is not None:
                raise refuse(primitive, stmt, f"has dependent iterations: {conflict}")
        return (marked,)

    return rewrite_loops(program, primitive, name, mark)
