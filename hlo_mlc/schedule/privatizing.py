"""privatize: one fold as many, each by an iteration of a loop, and combined by halves."""

from __future__ import annotations

from hlo_mlc.expr import build, index
from hlo_mlc.expr.core import Buffer, Expr, Load, loads
from hlo_mlc.loops.core import (
    Accumulate,
    For,
    If,
    LoopKind,
    LoopProgram,
    Stmt,
    Store,
    bodies,
)
from hlo_mlc.loops.dependence import accesses
from hlo_mlc.loops.rewrite import (
    Body,
    allocated,
    expressions,
    loop,
    redirect,
    transform,
    with_bodies,
    with_body,
)
from hlo_mlc.schedule.loops import refuse, require_constant, require_kind, require_loops
from hlo_mlc.schedule.storage import refuse_large, taken_out
from hlo_mlc.tensor.combine import merging


def privatize(program: LoopProgram, name: str) -> LoopProgram:
    """Let each iteration of a loop, which goes outside, fold terms of its own; what they come to is
    combined by halves.

        alloc s: f32 register:              alloc s.w: 4xf32 stack:
          s[] = y[]                           for w in 0..4:
          for k in 0..9:                        alloc s: f32 register:
            for w in 0..4:                        s[] = y[] if w == 0 else -0.0
              s[] <- add x[k, w]     ->           for k in 0..9:
          y[] = s[]                                 s[] <- add x[k, w]
                                                  s.w[w] = s[]
                                              for w.2 in 0..2:
                                                s.w[w.2] <- add s.w[w.2 + 2]
                                              for w.1 in 0..1:
                                                s.w[w.1] <- add s.w[w.1 + 1]
                                              y[] = s.w[0]

    Refused unless the nest around the loop does nothing but fold into scalars, right behind what
    these begin with, and terms may be taken in any order or their positions tell which comes first.
    Halide and TVM: rfactor; OpenMP: reduction.
    """
    found = False

    def visit(stmt: Stmt) -> Body | None:
        nonlocal found
        private, rest = taken_out((stmt,))
        for place, fold in enumerate(rest if private else ()):
            *nest, update = _perfect(fold)
            own = next((s for s in nest if isinstance(s, For) and s.var.name == name), None)
            if own is None or not isinstance(update, Accumulate) \
                    or not {*private}.issuperset(update.buffers):
                continue
            found = True
            before, start = rest[:place], rest[max(0, place - len(update.buffers)):place]
            before = before[:len(before) - len(start)]
            if any(accesses(before, b) for b in update.buffers):
                raise refuse("privatize", own, f"is not all that {update.buffers[0].name} is for")
            partial, folded = _by_each(own, nest, update, _begun(own, update, start))
            behind = redirect(rest[place + 1:], partial, lambda _: (index.constant(0),))
            kept = tuple(b for b in private if b not in partial)
            return allocated(kept, (*before, *allocated(partial.values(), (
                *folded, *transform(behind, visit)))))
        return None

    body = transform(program.body, visit)
    if not found:
        raise refuse("privatize", require_loops(program, "privatize", name)[0],
                     "is in no nest that does nothing but update private buffers")
    return with_body(program, body)


def _perfect(stmt: Stmt) -> list[Stmt]:
    """A statement, and what is the only one in it, and so on."""
    path = [stmt]
    while isinstance(path[-1], For | If) and len(
            inner := [s for body in bodies(path[-1]) for s in body]) == 1:
        path += inner
    return path


def _begun(own: For, update: Accumulate, before: Body) -> dict[Buffer, Expr]:
    """What buffers hold before an update of them, by the stores right before it."""
    starts = {s.buffer: s.value for s in before if isinstance(s, Store) and s.guard is None}
    if starts.keys() != {*update.buffers} or any(b.shape for b in starts):
        raise refuse("privatize", own, "must fold into scalars, right behind the stores that these "
                     "begin with")
    return starts


def _by_each(own: For, nest: list[Stmt], update: Accumulate, starts: dict[Buffer, Expr]
             ) -> tuple[dict[Buffer, Buffer], Body]:
    """Buffers for what each iteration of a loop in a nest has folded, and loops that fold, and
    combine it all into what the first iteration has."""
    for s in nest:
        if isinstance(s, For):
            require_kind("privatize", s, LoopKind.SERIAL, LoopKind.UNROLL)
    if any(read.source in starts for s in (*nest, update) for e in expressions(s)
           for read in loads(e)):
        raise refuse("privatize", update, "reads what it updates")
    neutral = update.combiner.identity
    merged = merging(update.combiner, update.terms, [s.var for s in nest if isinstance(s, For)])
    if neutral is None or merged is None:
        raise refuse("privatize", update, "takes terms in order, or has no identity to begin with")
    each, name, count = own.var, own.var.name, require_constant("privatize", own)
    partial = {b: Buffer(f"{b.name}.{name}", b.dtype, (count,), "stack") for b in update.buffers}
    for buffer in partial.values():
        refuse_large("privatize", own, buffer)
    is_first = index.compare("eq", each, index.constant(0))
    fold: Body = (update,)
    for s in reversed(nest):
        if s is not own:
            fold = (with_bodies(s, tuple(fold if body else () for body in bodies(s))),)
    begin = tuple(Store(b, (), build.apply("select", is_first, starts[b], e))
                  for b, e in zip(partial, neutral, strict=True))
    keep = tuple(Store(p, (each,), Load(b, ())) for b, p in partial.items())
    loops: Body = (For(each, own.extent, own.kind, allocated(partial, (*begin, *fold, *keep))),)

    def joined(n: Expr, half: int) -> Body:
        other = (index.add(n, index.constant(half)),)
        return (Accumulate(tuple(partial.values()), (n,), merged,
                           tuple(Load(p, other) for p in partial.values())),)

    while count > 1:
        half = (count + 1) // 2
        loops += (loop(f"{name}.{half}", count - half, LoopKind.SERIAL,
                       lambda n, half=half: joined(n, half)),)
        count = half
    return partial, loops
