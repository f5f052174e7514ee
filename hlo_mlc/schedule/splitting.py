"""Schedule primitives that cut loops into blocks, and tell the last block from the others: split,
specialize."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

from hlo_mlc.expr import index
from hlo_mlc.expr.core import Apply, Buffer, Expr, Var, loads
from hlo_mlc.expr.dtypes import INDEX
from hlo_mlc.loops.core import (
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
from hlo_mlc.loops.dependence import Memory, accesses, carried
from hlo_mlc.loops.rewrite import (
    Body,
    expressions,
    guarded,
    loads_of,
    loop,
    serial,
    substitute,
    transform,
    when,
)
from hlo_mlc.schedule.loops import (
    refuse,
    require_constant,
    require_kind,
    require_loops,
    rewrite_loops,
)
from hlo_mlc.support.errors import ScheduleError
from hlo_mlc.tensor.guards import conjuncts


def split(
    program: LoopProgram, name: str, factor: int, tail: str = "peel", *, checked: bool = True
) -> LoopProgram:
    """Cut a loop into blocks of `factor` iterations; what is left over is a loop of its own.

        for i in 0..10:              for i.o in 0..2:
          y[i] = x[i]         ->       for i.i in 0..4:
                                         y[i.i + i.o * 4] = x[i.i + i.o * 4]
                                     for i.t in 0..2:
                                       y[i.t + 8] = x[i.t + 8]

    So it is with the `tail` "peel".  With "early" it is a whole block, which begins early, and does
    again what the one before it did.  Refused unless iterations are independent, and read nothing
    of what they write but what they have stored.

        for i in 0..10:              for i.o in 0..2:
          y[i] = x[i]         ->       for i.i in 0..4:
                                         y[i.i + i.o * 4] = x[i.i + i.o * 4]
                                     for i.t in 0..4:
                                       y[i.t + 6] = x[i.t + 6]

    With "shorten" the last block has fewer iterations: there is
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

    With "mask" private buffers begin with something in these, too: what stands around the loops of
    a fold stays free of branches.

        for i in 0..10:                  for i.o in 0..3:
          alloc s: f32 register:           for i.i in 0..4:
            s[] = 0                          alloc s: f32 register:
            s[] <- add x[i]        ->          s[] = 0
            y[i] = s[]                         s[] <- add x[…] where (i.i + i.o * 4) < 10
                                               y[…] = s[] where (i.i + i.o * 4) < 10

    With "repeat" it begins early as well, in the same loop, and is refused where "early" is.

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
    specialised tail, with the same and ShiftInwards, with GuardWithIf around the whole block,
    GuardWithIf, Predicate, ShiftInwards and PredicateStores; TVM: split and loop partition.
    """
    if factor < 1:
        raise ScheduleError(f"split: the factor of {name!r} must be at least 1, got {factor}")
    if tail not in TAILS:
        raise ScheduleError(
            f"split: expected a tail of {name!r} out of {', '.join(TAILS)}; got {tail!r}"
        )
    kinds = [LoopKind.SERIAL] if tail in _BEGINNING_EARLY else [LoopKind.SERIAL, LoopKind.PARALLEL]

    def cut(stmt: For) -> Body:
        require_kind("split", stmt, *kinds)
        if tail in _DOING_AGAIN and checked:
            _check_repeatable(stmt, Memory.of(program))
        return _CUT[tail](stmt, factor)

    return rewrite_loops(program, "split", name, cut)


def _peeled(stmt: For, factor: int) -> Body:
    blocks, rest = stmt.extent // factor, stmt.extent % factor
    size = index.constant(factor)
    result: Body = ()
    if index.bounds(blocks)[1] > 0:
        result += (
            loop(f"{stmt.var.name}.o", blocks, stmt.kind, lambda o: _block(stmt, o * size, size)),
        )
    if index.bounds(rest)[1] > 0:
        result += _block(stmt, blocks * size, rest, "t")
    return result


def _with_whole_tail(stmt: For, factor: int) -> Body:
    extent = require_constant("split", stmt)
    if extent % factor == 0 or extent < factor:
        return _peeled(stmt, factor)
    whole = For(stmt.var, index.constant(extent - extent % factor), stmt.kind, stmt.body)
    return (*_peeled(whole, factor), *_block(stmt, index.constant(extent - factor), factor, "t"))


def _shortened(stmt: For, factor: int) -> Body:
    def block(o: Var) -> Body:
        start = _start(o, factor)
        return _block(stmt, start, index.minimum(factor, stmt.extent - start))

    return (loop(f"{stmt.var.name}.o", _blocks(stmt, factor), stmt.kind, block),)


def _start(o: Var, size: int) -> Expr:
    """The first iteration of a block of so many."""
    return _number(o) * size


def _number(o: Var) -> Expr:
    """That of a block, which is known where there is one."""
    return index.constant(0) if o.extent == 1 else o


def _blocks(stmt: For, factor: int) -> Expr:
    """How many blocks of so many iterations there are, with one that is not full."""
    return (stmt.extent + (factor - 1)) // factor


def _lengthened(stmt: For, factor: int) -> Body:
    extent = require_constant("split", stmt)
    count = max(1, extent // factor)
    more = index.constant(extent - count * factor)

    def block(o: Var) -> Body:
        is_last = (_number(o) + 1) // count
        return _block(stmt, _start(o, factor), factor + is_last * more)

    return (loop(f"{stmt.var.name}.o", count, stmt.kind, block),)


def _left_out(stmt: For, factor: int) -> Body:
    """Blocks of one size, in which what is behind the last iteration is left out."""
    return _in_whole_blocks(
        stmt,
        factor,
        lambda position: when(
            index.compare("lt", position, stmt.extent), substitute(stmt.body, {stmt.var: position})
        ),
    )


def _in_whole_blocks(stmt: For, factor: int, body: Callable[[Expr], Body]) -> Body:
    """Blocks of one size; `body` is that of a position, which may be behind the last one."""
    name = stmt.var.name
    whole = loop(
        f"{name}.o",
        _blocks(stmt, factor),
        stmt.kind,
        lambda o: serial(f"{name}.i", factor, lambda i: body(_start(o, factor) + i)),
    )
    longer = next(
        (
            s
            for s in walk(whole.body)
            if isinstance(s, For)
            and s.var.extent is not None
            and index.bounds(s.extent)[1] > s.var.extent
        ),
        None,
    )
    if longer is not None:
        raise refuse("split", longer, f"would be longer behind the last iteration of {name}")
    return (whole,)


def _masked(stmt: For, factor: int) -> Body:
    """Blocks of one size; behind the last iteration nothing happens to what others see, and private
    buffers get what they begin with."""
    private = {s.buffer for s in walk(stmt.body) if isinstance(s, Allocate)}

    def body(position: Expr) -> Body:
        exists = index.compare("lt", position, stmt.extent)

        def visit(inner: Stmt) -> Body | None:
            if isinstance(inner, While | Call):
                raise refuse("split", inner, "cannot be left out of some iterations")
            if isinstance(inner, If | For):
                (asked,) = expressions(inner)
                return when(exists, (inner,)) if loads(asked) else None
            if not isinstance(inner, Store | Accumulate) or _begins(inner, private, position):
                return None
            return tuple(filter(None, (guarded(inner, exists),)))

        return transform(substitute(stmt.body, {stmt.var: position}), visit)

    return _in_whole_blocks(stmt, factor, body)


def _begins(stmt: Store | Accumulate, private: set[Buffer], position: Expr) -> bool:
    """Whether a statement gives a private buffer something that is there at any position."""
    return (
        isinstance(stmt, Store)
        and stmt.buffer in private
        and all(i.free.isdisjoint(position.free) for i in stmt.indices)
        and all(read.free.isdisjoint(position.free) for read in loads_of(stmt))
    )


def _repeated(stmt: For, factor: int) -> Body:
    """Blocks of one size, the last of which begins early."""
    return _in_early_blocks(stmt, factor, lambda start: stmt)


def _shifted(stmt: For, factor: int) -> Body:
    """The same, where only private buffers are filled again."""
    return _in_early_blocks(stmt, factor, lambda start: _only_from(stmt, start))


def _in_early_blocks(stmt: For, factor: int, inside: Callable[[Expr], For]) -> Body:
    """Blocks of one size, none of which goes beyond the last iteration; `inside` is the loop for a
    block that would begin at a position."""
    extent = require_constant("split", stmt)
    size = min(factor, extent)

    def block(o: Var) -> Body:
        start = _start(o, size)
        return _block(inside(start), index.minimum(start, extent - size), size)

    return (loop(f"{stmt.var.name}.o", -(-extent // size), stmt.kind, block),)


def _block(stmt: For, start: Expr, size: Expr | int, suffix: str = "i") -> Body:
    """`size` iterations from `start` on."""
    return (
        serial(
            f"{stmt.var.name}.{suffix}",
            size,
            lambda i: substitute(stmt.body, {stmt.var: start + i}),
        ),
    )


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

    return stmt.around(transform(stmt.body, visit))


_CUT: Mapping[str, Callable[[For, int], Body]] = MappingProxyType(
    {
        "peel": _peeled,
        "early": _with_whole_tail,
        "shorten": _shortened,
        "lengthen": _lengthened,
        "guard": _left_out,
        "mask": _masked,
        "repeat": _repeated,
        "shift": _shifted,
    }
)

TAILS = tuple(_CUT)
"""What `split` does with what is left over."""

_DOING_AGAIN = ("early", "repeat")  # what iterations have done
_BEGINNING_EARLY = (*_DOING_AGAIN, "shift")


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
            s.buffer == a.buffer and s.indices == a.indices and s.path == a.path[: len(s.path)]
            for s in stored
        ):
            raise refuse(
                "split", stmt, f"may not do an iteration again: {a} reads what this overwrites"
            )


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
        if outer.kind is LoopKind.VECTORIZE:
            raise refuse("specialize", outer, "is a vector, all of whose lanes go the same way")
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
            then, otherwise = (
                tuple([narrow for s in copy for narrow in _narrowed(_taken(s))])
                for copy in (full, rest)
            )
            return (If(index.compare("lt", outer.var, last), then, otherwise),)

        return (outer.around(transform(outer.body, copies)),)

    result = rewrite_loops(program, "specialize", at, visit)
    if not found:
        raise refuse(
            "specialize",
            require_loops(program, "specialize", at)[0],
            f"holds no loop called {name}",
        )
    return result


def _narrowed(statements: Body) -> Body:
    """Loops that have fewer iterations than before over variables that are known to stay below."""

    def visit(stmt: Stmt) -> Body | None:
        if (
            not isinstance(stmt, For)
            or stmt.var.extent is None
            or index.bounds(stmt.extent)[1] >= stmt.var.extent
        ):
            return None
        return (
            loop(
                stmt.var.name,
                stmt.extent,
                stmt.kind,
                lambda i: _narrowed(substitute(stmt.body, {stmt.var: i})),
            ),
        )

    return transform(statements, visit)


def _all_expressions(statements: Body) -> list[Expr]:
    return [e for s in walk(statements) for e in expressions(s)]


def _taken(stmt: For) -> Body:
    """A loop from the first iteration on in which it changes something that others see."""

    def first(guards: Iterable[Expr]) -> int:
        starts = [
            -offset
            for guard in guards
            for part in conjuncts(guard)
            if isinstance(part, Apply) and part.op == "ge" and part.args[0].dtype is INDEX
            for terms, offset in [index.affine(index.subtract(*part.args))]
            if terms == {stmt.var: 1}
        ]
        return max(starts, default=0)

    idle = max(0, min((first(a.guards) for a in accesses(stmt.body) if a.writes), default=0))
    left = stmt.extent - idle
    return (
        loop(stmt.var.name, left, stmt.kind, lambda i: substitute(stmt.body, {stmt.var: i + idle})),
    )
