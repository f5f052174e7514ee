"""rfactor: splitting one running reduction into many that run side by side."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hlo_mlc.expr import build, index
from hlo_mlc.expr.combiner import Combiner
from hlo_mlc.expr.core import Buffer, Expr, Load, Var
from hlo_mlc.loops.core import MAX_LANES, Accumulate, For, LoopKind, LoopProgram, Stmt, Store, walk
from hlo_mlc.loops.dependence import Memory, accesses, carried
from hlo_mlc.loops.rewrite import (
    Body,
    allocated,
    guarded,
    loops_named,
    serial,
    substitute,
    transform,
    unrolled,
    vectorized,
    with_body,
)
from hlo_mlc.loops.text import headline
from hlo_mlc.schedule.loops import refuse, refuse_inside, require_constant, require_loops
from hlo_mlc.support.errors import ScheduleError
from hlo_mlc.tensor.combine import merging


def rfactor(
    program: LoopProgram, name: str, lanes: int, count: int = 1, *, checked: bool = True
) -> LoopProgram:
    """Reduce into `count` vectors of `lanes` partial results, which are combined at the end.

        for k in 0..43:
          sum[] <- add x[k]
        ->
        alloc sum.k: 2x8xf32 register:
          for k.u in 0..2 unroll:
            for k.v in 0..8 vectorize:
              sum.k[k.u, k.v] = -0.0:f32
          for k.o in 0..2:
            for k.u in 0..2 unroll:
              for k.v in 0..8 vectorize:
                sum.k[k.u, k.v] <- add x[k.o * 16 + k.u * 8 + k.v]
          for k.v in 0..8 vectorize:
            sum.k[0, k.v] <- add x[k.v + 32]
          for k.v in 0..8 vectorize:
            sum.k[1, k.v] <- add x[k.v + 40] where k.v < 3
          for k.v in 0..8 vectorize:
            sum.k[0, k.v] <- add sum.k[1, k.v]
            sum[] <- add sum.k[0, k.v]

    Whole vectors that are left over are an unrolled loop `k.t` where there are several; a last
    vector that is not full is masked by a guard.  Partial results start from the combiner's
    identity, or from the first terms where it has none.  They live outside of all loops that
    only continue the same reduction.  The order of combination depends on shape and schedule
    alone.  A combiner that does not commute is refused, unless there is one partial result, or it
    is a selection whose positions tell which of two comes first.  `count` is lowered for extents
    of fewer than `count` vectors.  Halide and TVM: rfactor.
    """
    require_loops(program, "rfactor", name)
    if not 1 <= lanes <= MAX_LANES or count < 1:
        raise ScheduleError(
            f"rfactor: expected 1 to {MAX_LANES} lanes and a count of at least 1 "
            f"for {name!r}, got {lanes} and {count}"
        )
    if lanes > 1:
        refuse_inside(program, "rfactor", name, LoopKind.VECTORIZE)
    memory = Memory.of(program) if checked else None

    def visit(stmt: Stmt) -> Body | None:
        if not isinstance(stmt, For):
            return None
        if stmt.var.name == name:
            target = stmt
        else:
            target = _continued(stmt, name)
            if target is None:
                return None
        plan = _plan(stmt, target, lanes, count, memory)
        inside = transform((stmt,), lambda s: plan.loops() if s is target else None)
        return allocated(plan.partial.values(), (*plan.start(), *inside, *plan.finish()))

    return with_body(program, transform(program.body, visit))


def _continued(stmt: For, name: str) -> For | None:
    """The one loop called `name` inside `stmt`, if `stmt` does nothing to the accumulators of
    that loop but continue their reduction."""
    if stmt.kind not in (LoopKind.SERIAL, LoopKind.UNROLL):
        return None
    found = loops_named(stmt.body, name)
    if len(found) != 1 or not _only_loops_above(stmt.body, found[0]):
        return None
    target = found[0]
    updates = _updates(target)
    buffers = {b for u in updates for b in u.buffers}
    inner = {s.var for s in walk((stmt,)) if isinstance(s, For)}
    fixed = all(i.free.isdisjoint(inner) for u in updates for i in u.indices)
    # Without an identity the first terms start the partial results, and only the loop itself
    # knows which those are.
    neutral = all(u.combiner.identity is not None for u in updates)
    if not (updates and fixed and neutral):
        return None
    others = any(a.buffer in buffers and a.stmt not in updates for a in accesses(stmt.body))
    return None if others else target


def _only_loops_above(body: Body, target: For) -> bool:
    return any(
        s is target
        or (
            isinstance(s, For)
            and s.kind in (LoopKind.SERIAL, LoopKind.UNROLL)
            and _only_loops_above(s.body, target)
        )
        for s in body
    )


def _updates(target: For) -> list[Accumulate]:
    """The statements of the loop that fold all its iterations into one element."""
    return [
        s
        for s in target.body
        if isinstance(s, Accumulate) and all(target.var not in i.free for i in s.indices)
    ]


def _plan(outer: For, target: For, lanes: int, count: int, memory: Memory | None) -> _Plan:
    if target.kind is not LoopKind.SERIAL:
        raise refuse("rfactor", target, "must be serial")
    extent = require_constant("rfactor", target)
    nested = next((s for s in target.body if not isinstance(s, Store | Accumulate)), None)
    if nested is not None:
        raise refuse(
            "rfactor",
            target,
            f"must hold only stores and updates, not "
            f"`{headline(nested)}`; reorder or distribute first",
        )
    updates = _updates(target)
    if not updates:
        raise refuse(
            "rfactor",
            target,
            "does not reduce: no update in it hits the same element in every iteration",
        )
    conflict = memory and carried(target, memory, reductions_are_free=True)
    if conflict is not None:
        raise refuse("rfactor", target, f"has dependent iterations: {conflict}")
    buffers = [b for u in updates for b in u.buffers]
    if (
        memory
        and extent == 1
        and any(a.buffer in buffers and a.stmt not in updates for a in accesses(target.body))
    ):
        raise refuse("rfactor", target, "uses what it adds up meanwhile")
    for update in updates:
        if update.combiner.identity is None and (extent < lanes or update.guard is not None):
            raise refuse(
                "rfactor",
                target,
                f"needs at least {lanes} unguarded terms, because "
                f"the combiner of `{headline(update)}` has no identity to start from",
            )
    axes = [s.var for s in walk((outer,)) if isinstance(s, For) and target in walk((s,))]
    in_order = lanes == 1 and min(count, extent) == 1
    merged = {u: u.combiner if in_order else merging(u.combiner, u.terms, axes) for u in updates}
    for update, combiner in merged.items():
        if combiner is None:
            raise refuse(
                "rfactor",
                target,
                f"would change the order of terms, and the combiner "
                f"of `{headline(update)}` does not commute",
            )
    if len(set(buffers)) < len(buffers):
        raise refuse("rfactor", target, "updates one accumulator in two places; distribute first")
    count = min(count, max(1, extent // lanes))
    partial = {
        b: Buffer(f"{b.name}.{target.var.name}", b.dtype, (count, lanes), "register")
        for b in buffers
    }
    return _Plan(target, merged, extent, lanes, count, partial)


@dataclass(frozen=True, slots=True, eq=False)
class _Plan:
    """The pieces that replace one reduction loop."""

    target: For
    updates: dict[Accumulate, Combiner]  # and what combines their partial results
    extent: int
    lanes: int
    count: int
    partial: dict[Buffer, Buffer]

    @property
    def neutral(self) -> bool:
        return all(u.combiner.identity is not None for u in self.updates)

    def start(self) -> Body:
        """Partial results before the first term."""
        if not self.neutral:
            return ()
        return self._across(
            self.count,
            "u",
            lambda u, v: tuple(
                Store(self.partial[b], (u, v), e)
                for update in self.updates
                for b, e in zip(update.buffers, update.combiner.identity, strict=True)
            ),
        )

    def loops(self) -> Body:
        """The terms: whole blocks, whole vectors, one masked vector."""
        block = self.lanes * self.count
        first: Body = ()
        blocks, rest = divmod(self.extent, block)
        if not self.neutral:
            first = self._across(
                self.count,
                "u",
                lambda u, v: self._body(
                    self._position(u, v, index.constant(0)), u, v, starting=True
                ),
            )
            blocks -= 1
        skipped = index.constant(0 if self.neutral else block)

        def main(outer: Var) -> Body:
            base = outer * block + skipped
            return self._across(
                self.count, "u", lambda u, v: self._body(self._position(u, v, base), u, v)
            )

        whole = (serial(self._name("o"), blocks, main),) if blocks else ()
        vectors, last = divmod(rest, self.lanes)
        base = index.constant(self.extent - rest)
        tail = self._across(vectors, "t", lambda u, v: self._body(self._position(u, v, base), u, v))
        if last:
            slot = index.constant(vectors)
            tail += self._lanes(
                lambda v: self._body(
                    self._position(slot, v, base),
                    slot,
                    v,
                    guard=build.apply("lt", v, index.constant(last)),
                )
            )
        return (*first, *whole, *tail)

    def finish(self) -> Body:
        """Vectors combined by halves, then the lanes of the last one."""

        def combine(v: Expr) -> Body:
            steps: list[Stmt] = []
            live = self.count
            while live > 1:
                half = (live + 1) // 2
                for u in range(live - half):
                    steps += self._fold(index.constant(u), index.constant(u + half), v)
                live = half
            return (
                *steps,
                *(
                    Accumulate(
                        u.buffers, u.indices, combiner, self._partials(u, index.constant(0), v)
                    )
                    for u, combiner in self.updates.items()
                ),
            )

        return self._lanes(combine)

    def _fold(self, into: Expr, source: Expr, v: Expr) -> list[Stmt]:
        return [
            Accumulate(
                tuple(self.partial[b] for b in u.buffers),
                (into, v),
                combiner,
                self._partials(u, source, v),
            )
            for u, combiner in self.updates.items()
        ]

    def _partials(self, update: Accumulate, u: Expr, v: Expr) -> tuple[Expr, ...]:
        return tuple(Load(self.partial[b], (u, v)) for b in update.buffers)

    def _body(
        self, position: Expr, u: Expr, v: Expr, guard: Expr | None = None, starting: bool = False
    ) -> Body:
        """One iteration, its updates going to partial result (u, v)."""
        result: list[Stmt | None] = []
        for stmt in substitute(self.target.body, {self.target.var: position}):
            if isinstance(stmt, Accumulate) and stmt.buffers[0] in self.partial:
                buffers = tuple(self.partial[b] for b in stmt.buffers)
                if starting:
                    result += [
                        Store(b, (u, v), t) for b, t in zip(buffers, stmt.terms, strict=True)
                    ]
                    continue
                stmt = Accumulate(buffers, (u, v), stmt.combiner, stmt.terms, stmt.guard)
            result.append(guarded(stmt, guard))
        return tuple(s for s in result if s is not None)

    def _position(self, u: Expr, v: Expr, base: Expr) -> Expr:
        return base + (u * self.lanes + v)

    def _across(self, vectors: int, suffix: str, body: Callable[[Expr, Expr], Body]) -> Body:
        """`body` for every lane of some vectors."""
        if vectors == 0:
            return ()
        if vectors == 1:
            return self._lanes(lambda v: body(index.constant(0), v))
        return (unrolled(self._name(suffix), vectors, lambda u: self._lanes(lambda v: body(u, v))),)

    def _lanes(self, body: Callable[[Expr], Body]) -> Body:
        if self.lanes == 1:
            return body(index.constant(0))
        return (vectorized(self._name("v"), self.lanes, body),)

    def _name(self, suffix: str) -> str:
        return f"{self.target.var.name}.{suffix}"
