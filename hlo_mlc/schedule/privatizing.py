"""Schedule primitives that make one fold many, by iterations of a loop: privatize, fold_apart."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hlo_mlc.expr import build, index
from hlo_mlc.expr.combiner import Combiner
from hlo_mlc.expr.core import Buffer, Expr, Load, loads, loads_in
from hlo_mlc.loops.core import (
    Accumulate,
    Allocate,
    For,
    If,
    LoopKind,
    LoopProgram,
    Stmt,
    Store,
    bodies,
    walk,
)
from hlo_mlc.loops.dependence import Memory, accesses, variables
from hlo_mlc.loops.rewrite import (
    Body,
    allocated,
    constant_extent,
    loads_of,
    paths,
    redirect,
    serial,
    transform,
    with_bodies,
)
from hlo_mlc.schedule.loops import (
    changed,
    check_permutable,
    only_loop,
    refuse,
    require_constant,
    require_kind,
    require_loops,
)
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

    def visit(stmt: Stmt) -> Body | None:
        private, rest = taken_out((stmt,))
        for place, fold in enumerate(rest if private else ()):
            *nest, update = _perfect(fold)
            own = next((s for s in nest if isinstance(s, For) and s.var.name == name), None)
            if (
                own is None
                or not isinstance(update, Accumulate)
                or not {*private}.issuperset(update.buffers)
            ):
                continue
            before, start = rest[:place], rest[max(0, place - len(update.buffers)) : place]
            before = before[: len(before) - len(start)]
            if any(accesses(before, b) for b in update.buffers):
                raise refuse("privatize", own, f"is not all that {update.buffers[0].name} is for")
            partial, folded = _by_each(own, nest, update, _begun(own, update, start))
            behind = redirect(rest[place + 1 :], partial, lambda _: (index.constant(0),))
            kept = tuple(b for b in private if b not in partial)
            return allocated(
                kept, (*before, *allocated(partial.values(), (*folded, *transform(behind, visit))))
            )
        return None

    return changed(
        program,
        transform(program.body, visit),
        "privatize",
        name,
        "is in no nest that does nothing but update private buffers",
    )


def _perfect(stmt: Stmt) -> list[Stmt]:
    """A statement, and what is the only one in it, and so on."""
    path = [stmt]
    while (
        isinstance(path[-1], For | If)
        and len(inner := [s for body in bodies(path[-1]) for s in body]) == 1
    ):
        path += inner
    return path


def _begun(own: For, update: Accumulate, before: Body) -> dict[Buffer, Expr]:
    """What buffers hold before an update of them, by the stores right before it."""
    starts = {s.buffer: s.value for s in before if isinstance(s, Store) and s.guard is None}
    if starts.keys() != {*update.buffers} or any(b.shape for b in starts):
        raise refuse(
            "privatize",
            own,
            "must fold into scalars, right behind the stores that these begin with",
        )
    return starts


def _by_each(
    own: For, nest: list[Stmt], update: Accumulate, starts: dict[Buffer, Expr]
) -> tuple[dict[Buffer, Buffer], Body]:
    """Buffers for what each iteration of a loop in a nest has folded, and loops that fold, and
    combine it all into what the first iteration has."""
    for s in nest:
        if isinstance(s, For):
            require_kind("privatize", s, LoopKind.SERIAL, LoopKind.UNROLL)
    if any(read.source in starts for s in (*nest, update) for read in loads_of(s)):
        raise refuse("privatize", update, "reads what it updates")
    neutral = update.combiner.identity
    merged = merging(update.combiner, update.terms, [s.var for s in nest if isinstance(s, For)])
    if neutral is None or merged is None:
        raise refuse("privatize", update, "takes terms in order, or has no identity to begin with")
    each, name, count = own.var, own.var.name, require_constant("privatize", own)
    partial = {b: Buffer(f"{b.name}.{name}", b.dtype, (count,), "stack") for b in update.buffers}
    for buffer in partial.values():
        refuse_large("privatize", own, buffer)
    is_first = index.compare("eq", each, 0)
    fold: Body = (update,)
    for s in reversed(nest):
        if s is not own:
            fold = (with_bodies(s, tuple(fold if body else () for body in bodies(s))),)
    begin = tuple(
        Store(b, (), build.apply("select", is_first, starts[b], e))
        for b, e in zip(partial, neutral, strict=True)
    )
    keep = tuple(Store(p, (each,), Load(b, ())) for b, p in partial.items())
    loops: Body = (For(each, own.extent, own.kind, allocated(partial, (*begin, *fold, *keep))),)

    return partial, (*loops, *_by_halves(name, count, partial, merged, lambda n: (n,)))


def _by_halves(
    name: str,
    count: int,
    partial: Mapping[Buffer, Buffer],
    merged: Combiner,
    place: Callable[[Expr], tuple[Expr, ...]],
) -> Body:
    """Loops that combine so many parts into the first of them."""
    parts, result = tuple(partial.values()), ()

    def joined(n: Expr, half: int) -> Body:
        other = place(n + half)
        return (Accumulate(parts, place(n), merged, tuple(Load(p, other) for p in parts)),)

    while count > 1:
        half = (count + 1) // 2
        result += (serial(f"{name}.{half}", count - half, lambda n, half=half: joined(n, half)),)
        count = half
    return result


def fold_apart(
    program: LoopProgram, name: str, lanes: str = "", *, checked: bool = True
) -> LoopProgram:
    """Let each iteration of a loop, which goes outside, fold terms of its own; another loop of that
    name combines what they come to with what was there.

        alloc s: f32 register:              alloc s: f32 register:
          s[] = y[]                           s[] = y[]
          for k in 0..9:                      alloc s.w: 4x2xf32 stack:
            for w in 0..4:                      for w in 0..4:
              for v in 0..2:                      for v in 0..2:
                s[] <- add x[k, w, v]               s.w[w, v] = -0.0
          y[] = s[]                      ->       for k in 0..9:
                                                    for v in 0..2:
                                                      s.w[w, v] <- add x[k, w, v]
                                                  for v.1 in 0..1:
                                                    s.w[w, v.1] <- add s.w[w, v.1 + 1]
                                                for w in 0..4:
                                                  s[] <- add s.w[w, 0]
                                              y[] = s[]

    A loop of `lanes` that is inside (v) stays there, and each of its iterations has a part as well;
    these are combined by halves.  What else is done in the nest is done as before.  Refused where
    `reorder` is, where the nest does more with what it folds into, and unless terms may be taken in
    any order or their positions tell which comes first.  Halide and TVM: rfactor.
    """
    require_loops(program, "fold_apart", name)
    if lanes:
        require_loops(program, "fold_apart", lanes)
    memory = Memory.of(program) if checked else None
    taken = {s.buffer.name for s in walk(program.body) if isinstance(s, Allocate)}
    joins: list[Stmt] = []

    def visit(stmt: Stmt) -> Body | None:
        band = _down_to(stmt, name)
        if band is None:
            return None
        updates, inner = _updates(band[-1]), variables((stmt,))
        if not updates or any(not i.free.isdisjoint(inner) for u in updates for i in u.indices):
            return None
        if any(_joins(u, name) for u in updates):
            joins.append(stmt)
            return None
        return _folded_apart(band, updates, lanes, memory, taken)

    body = transform(program.body, visit)
    if joins and body is program.body:
        raise refuse("fold_apart", joins[0], "is apart already")
    return changed(
        program, body, "fold_apart", name, "is in no nest that folds its terms into one element"
    )


def _part(buffer: Buffer, name: str) -> str:
    """What the parts of a buffer are called, and others begin with: a nest that folds into one that
    another nest folds into has parts of its own."""
    return f"{buffer.name}.{name}"


def _fresh(name: str, taken: set[str]) -> str:
    """A name that nothing has, which is taken by now."""
    names = (name, *(f"{name}.{number}" for number in range(1, len(taken) + 1)))
    taken.add(fresh := next(n for n in names if n not in taken))
    return fresh


def _joins(update: Accumulate, name: str) -> bool:
    """Whether an update takes parts together that are apart already."""
    return any(
        f"{load.source.name}.".startswith(f"{_part(buffer, name)}.")
        for buffer in update.buffers
        for load in loads_in(*update.terms)
    )


def _down_to(stmt: Stmt, name: str) -> list[For] | None:
    """Perfectly nested loops from this one to that of a name."""
    if not isinstance(stmt, For):
        return None
    band = [stmt]
    while band[-1].var.name != name:
        inner = only_loop(band[-1])
        if inner is None:
            return None
        band.append(inner)
    return band


def _updates(own: For) -> list[Accumulate]:
    """What a loop folds into buffers that exist outside of it."""
    inside = {s.buffer for s in walk(own.body) if isinstance(s, Allocate)}
    return [s for s in walk(own.body) if isinstance(s, Accumulate) and inside.isdisjoint(s.buffers)]


def _folded_apart(
    band: list[For], updates: list[Accumulate], lanes: str, memory: Memory | None, taken: set[str]
) -> Body:
    """`taken`: names of buffers."""
    own, name = band[-1], band[-1].var.name
    for s in band:
        require_kind("fold_apart", s, LoopKind.SERIAL, LoopKind.UNROLL)
    count, around = require_constant("fold_apart", own), _around(own, updates)
    if memory is not None:
        _check_all_that_they_are_for(own, updates)
    apart: dict[Accumulate, _Apart] = {}
    for update in updates:
        own_lanes = next((s for s in around[update] if s.var.name == lanes), None)
        if lanes and own_lanes is None:
            raise refuse("fold_apart", update, f"is in no loop called {lanes}")
        merged = merging(
            update.combiner,
            update.terms,
            [s.var for s in (*band, *around[update]) if constant_extent(s) != 1],
        )
        if update.combiner.identity is None or merged is None:
            raise refuse(
                "fold_apart", update, "takes terms in order, or has no identity to begin with"
            )
        size = () if own_lanes is None else (require_constant("fold_apart", own_lanes),)
        parts = {
            b: Buffer(_fresh(_part(b, name), taken), b.dtype, (count, *size), "stack")
            for b in update.buffers
        }
        for buffer in parts.values():
            refuse_large("fold_apart", own, buffer)
        apart[update] = _Apart(update, own, own_lanes, merged, parts)
    inner = transform(own.body, lambda s: apart[s].fold() if s in apart else None)
    if memory is not None and len(band) > 1:
        _check_moved(band, inner, memory)
    for s in reversed(band[:-1]):
        inner = (s.around(inner),)
    each = tuple(apart.values())
    body = (*(s for a in each for s in a.start()), *inner, *(s for a in each for s in a.join()))
    return allocated(
        (p for a in each for p in a.parts.values()),
        (own.around(body), own.around(tuple(a.finish() for a in each))),
    )


def _around(own: For, updates: list[Accumulate]) -> dict[Stmt, list[For]]:
    """The loops inside of one that are around updates."""
    return {
        path[-1]: [s for s in path if isinstance(s, For)]
        for path in paths(own.body)
        if path[-1] in updates
    }


def _check_all_that_they_are_for(own: For, updates: list[Accumulate]) -> None:
    """Refuse buffers that a loop does more with than to update one element of each, once."""
    buffers = [b for u in updates for b in u.buffers]
    if len({*buffers}) < len(buffers):
        raise refuse("fold_apart", own, "updates one buffer in several statements")
    for update in updates:
        if update.atomic or any(b.scope not in ("register", "stack") for b in update.buffers):
            raise refuse("fold_apart", update, "must update private buffers")
        if any(map(loads, update.indices)):
            raise refuse("fold_apart", update, "updates a place that is read")
    other = next(
        (
            a
            for b in buffers
            for a in accesses(own.body, b)
            if a.stmt not in updates or (not a.writes)
        ),
        None,
    )
    if other is not None:
        raise refuse("fold_apart", own, f"is not all that {other.buffer.name} is for: {other}")


def _check_moved(band: list[For], inner: Body, memory: Memory) -> None:
    """Refuse to put the last of some loops outside of the others where that changes anything."""
    nest: list[For] = []
    for s in reversed(band):
        nest.insert(0, s.around(inner))
        inner = (nest[0],)
    check_permutable(nest, [nest[-1], *nest[:-1]], memory, "fold_apart")


@dataclass(frozen=True, slots=True, eq=False)
class _Apart:
    """What iterations of a loop, and of one over lanes in it, have of a fold."""

    update: Accumulate
    own: For
    lanes: For | None
    merged: Combiner
    parts: dict[Buffer, Buffer]

    def place(self, lane: Expr) -> tuple[Expr, ...]:
        return (self.own.var,) if self.lanes is None else (self.own.var, lane)

    def _lanes(self, body: Body) -> Body:
        """`body` for each lane."""
        s = self.lanes
        return body if s is None else (For(s.var, s.extent, LoopKind.SERIAL, body),)

    @property
    def _lane(self) -> Expr:
        return index.constant(0) if self.lanes is None else self.lanes.var

    def start(self) -> Body:
        """Neutral elements."""
        return self._lanes(
            tuple(
                Store(p, self.place(self._lane), e)
                for p, e in zip(self.parts.values(), self.update.combiner.identity, strict=True)
            )
        )

    def fold(self) -> Body:
        """A term taken into its part."""
        u = self.update
        return (
            Accumulate(
                tuple(self.parts.values()), self.place(self._lane), u.combiner, u.terms, u.guard
            ),
        )

    def join(self) -> Body:
        """All lanes combined into the first."""
        if self.lanes is None:
            return ()
        return _by_halves(
            self.lanes.var.name,
            require_constant("fold_apart", self.lanes),
            self.parts,
            self.merged,
            self.place,
        )

    def finish(self) -> Accumulate:
        """What an iteration has, combined with what was there."""
        u, first = self.update, self.place(index.constant(0))
        return Accumulate(
            u.buffers, u.indices, self.merged, tuple(Load(p, first) for p in self.parts.values())
        )
