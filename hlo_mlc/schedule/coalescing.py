"""The schedule primitive that makes one buffer of two: coalesce."""

from __future__ import annotations

from dataclasses import dataclass

from hlo_mlc.expr import build, index
from hlo_mlc.expr.core import Buffer, Expr, Load, Var, loads
from hlo_mlc.loops.core import Accumulate, Allocate, Call, For, LoopProgram, Stmt, Store, walk
from hlo_mlc.loops.dependence import Memory, accesses, variables
from hlo_mlc.loops.equations import solve
from hlo_mlc.loops.rewrite import Body, constant_extent, redirect, transform, with_body
from hlo_mlc.schedule.loops import refuse
from hlo_mlc.schedule.storage import taken_out
from hlo_mlc.support.errors import ScheduleError


def coalesce(program: LoopProgram, name: str, *, checked: bool = True) -> LoopProgram:
    """Let a private buffer be the part of another one that it becomes in the end.

        alloc a: 8xf32 stack:            for i in 0..8:
          for i in 0..8:                   y[p, i] = x[i] * 2
            a[i] = x[i] * 2        ->
          for j in 0..8:
            y[p, j] = a[j]

    So `cache_write` is undone.  Refused unless a nest copies all of it, each element to a place of
    its own, behind all else that is done with it, and nothing else touches these places meanwhile.
    Elsewhere copy coalescing.
    """
    memory = Memory.of(program) if checked else None
    private = {s.buffer.name for s in walk(program.body) if isinstance(s, Allocate)}
    if name not in private:
        raise ScheduleError(
            f"coalesce: no private buffer is called {name!r}; there are: "
            f"{', '.join(sorted(private)) or 'none'}"
        )

    def visit(stmt: Stmt) -> Body | None:
        return (
            _merged(stmt, memory)
            if isinstance(stmt, Allocate) and stmt.buffer.name == name
            else None
        )

    return with_body(program, transform(program.body, visit))


@dataclass(frozen=True, slots=True)
class _Copy:
    """Loops that store a whole buffer elsewhere, and for each of its elements the place there."""

    nest: Stmt
    store: Store
    at: tuple[Expr, ...]  # in the buffer

    def place(self, indices: tuple[Expr, ...]) -> tuple[Expr, ...]:
        where = {v: i for v, i in zip(self.at, indices, strict=True) if isinstance(v, Var)}
        return tuple(build.substitute(i, where) for i in self.store.indices)


def _merged(held: Allocate, memory: Memory | None) -> Body:
    """What is done while a buffer exists, without it."""
    buffer, (private, statements) = held.buffer, taken_out(held.body)
    copies = [(n, c) for n, s in enumerate(statements) if (c := _copied(s, buffer)) is not None]
    if not copies:
        raise refuse("coalesce", held, "is not copied as a whole by a nest that does nothing else")
    last, copy = copies[-1]
    own = {s.var for s in walk((copy.nest,)) if isinstance(s, For)}
    outside = {v for i in copy.store.indices for v in i.free} - own
    if not outside.isdisjoint(variables(held.body)):
        raise refuse("coalesce", copy.nest, "copies to a place that is chosen meanwhile")
    if copy.store.buffer in private:
        raise refuse("coalesce", copy.nest, "copies to a buffer that is not always there")
    if any(
        buffer in s.buffers and (isinstance(s, Call) or len(s.buffers) > 1)
        for s in walk(held.body)
        if isinstance(s, Accumulate | Call)
    ):
        raise refuse("coalesce", held, "is updated together with other buffers")
    if memory is not None:
        _check_places(statements, last, copy, buffer, memory)
    body = transform(held.body, lambda s: () if s is copy.nest else None)
    return redirect(body, {buffer: copy.store.buffer}, copy.place)


def _copied(stmt: Stmt, buffer: Buffer) -> _Copy | None:
    """A nest that does nothing but copy each element of a buffer."""
    inner, extents = stmt, dict[Expr, int | None]()
    while isinstance(inner, For) and len(inner.body) == 1:
        extents[inner.var] = constant_extent(inner)
        inner = inner.body[0]
    if (
        not isinstance(inner, Store)
        or not isinstance(inner.value, Load)
        or inner.value.source != buffer
        or inner.buffer.dtype is not buffer.dtype
        or (inner.guard, inner.value.guard) != (None, None)
    ):
        return None
    at = inner.value.indices
    whole = all(
        size == extents.pop(i, 1 if i is index.constant(0) else None)
        for i, size in zip(at, buffer.shape, strict=True)
    )
    return _Copy(stmt, inner, at) if whole and not extents else None


def _check_places(statements: Body, last: int, copy: _Copy, buffer: Buffer, memory: Memory) -> None:
    """Refuse a copy that does not come last, and places that anything else touches."""
    (goal,) = (a for a in accesses((copy.nest,)) if a.writes)
    others = [a for s in statements if s is not copy.nest for a in accesses((s,))]
    varying = variables(statements)
    unstable = {a.buffer for a in (goal, *others) if a.writes}
    if any(read.source in unstable for i in goal.indices for read in loads(i)):
        raise refuse("coalesce", copy.nest, "copies to a place that is chosen meanwhile")
    if any(a.buffer == buffer for s in statements[last + 1 :] for a in accesses((s,))):
        raise refuse("coalesce", copy.nest, f"is not the last to use {buffer.name}")
    own = {s.var for s in walk((copy.nest,)) if isinstance(s, For)}
    settled = solve(goal, goal, own, unstable)
    if settled is not None and not own <= settled:
        raise refuse("coalesce", copy.nest, "may copy several elements to one place")
    for other in others:
        if memory.may_overlap(other.buffer, copy.store.buffer) and not (
            memory.comparable(other.buffer, copy.store.buffer)
            and solve(goal, other, varying, unstable) is None
        ):
            raise refuse("coalesce", copy.nest, f"copies to where {other} is")
