"""Scans: cumulative sums and their kin, along any axis, from either end.

    for b block:                               a line, or neighbouring lines
      carry = initial
      for o in tiles:
        for s thread, c thread: own[v] = fold of the terms up to v     some terms of a line each
        totals[s] = totals of threads up to s                          by doubling distances
        for s thread, c thread: results = carry and totals[s - 1] with own[v]
        carry = totals of all

Threads share a line; where lines and not terms are neighbours in memory, neighbouring threads have
neighbouring lines.  Few long lines are cut into chunks: their totals first, then what comes before
each of them.  The order of combination does not depend on the GPU at hand.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from hlo_mlc.expr import build, index
from hlo_mlc.expr.build import substitute, variable
from hlo_mlc.expr.combiner import Combiner
from hlo_mlc.expr.core import Buffer, Expr, Load, Var
from hlo_mlc.expr.dtypes import INDEX
from hlo_mlc.loops.core import Accumulate, For, If, LoopKind, Stmt, Store
from hlo_mlc.loops.lower import stores_at
from hlo_mlc.loops.rewrite import allocated, serial, unrolled, vectorized, when
from hlo_mlc.target.cuda import VECTOR_BYTES, WARP, CudaTarget
from hlo_mlc.templates.base import Parameters, Scheduled, decoded
from hlo_mlc.templates.cuda.base import (
    THREADS,
    below,
    equals,
    power_of_two,
    product,
    why_not_in_parts,
)
from hlo_mlc.templates.cuda.columns import ColumnsTemplate, why_not_columns
from hlo_mlc.templates.cuda.elementwise import ElementwiseTemplate
from hlo_mlc.templates.cuda.rows import MOST_THREADS, RowsTemplate
from hlo_mlc.templates.scan_loops import BLOCK
from hlo_mlc.tensor.access import linearize
from hlo_mlc.tensor.chunks import scan_in_chunks
from hlo_mlc.tensor.classify import stride
from hlo_mlc.tensor.coalesce import accesses
from hlo_mlc.tensor.combine import merging
from hlo_mlc.tensor.core import Nest, Stage, buffer_of

# Terms of a line that one thread has of a tile.
OWN = 4
# Lines and terms from which on lines are cut, the blocks that there are then about, and the terms
# that a chunk has at least.  Results must not depend on the GPU at hand.
FEW_LINES, LONG, BLOCKS, CHUNK = 64, 16_384, 256, 4096
# Terms of a chunk that there are at least, whatever is asked for.
CHUNK_LEAST = 64


@dataclass(frozen=True, slots=True)
class ScanTemplate:
    """Threads along the scanned axis, tile after tile."""

    name: str = "scan"

    def refusal(self, nest: Nest, target: CudaTarget) -> str:
        """Why the nest is not one scan for tiles; empty where it is."""
        if len(nest.stages) != 1 or nest.stages[0].scan is None:
            return "not a single scan"
        stage = nest.stages[0]
        if any(a.guard is not None for a in stage.assigns):
            return "it stores under a condition"
        if any(v.extent == 0 for v in stage.axes):
            return "an axis without elements"
        if reason := why_not_in_parts(stage, (stage.scan.axis,)):
            return reason
        if not set(stage.inputs).isdisjoint(stage.outputs):
            return "it reads what it overwrites"
        return ""

    def space(self, nest: Nest, target: CudaTarget) -> dict[str, tuple[int, ...]]:
        """Threads that share a line, terms of each, chunks of a line."""
        return {"team": (4, 16, 64, 256), "own": (1, 2, 4, 8), "chunks": (1, 4, 16, 64)}

    def default(self, nest: Nest, target: CudaTarget) -> Parameters:
        """A block for each line that is long enough; chunks where there are few lines."""
        stage = nest.stages[0]
        extent, across = stage.scan.axis.extent, _across(stage)
        lines = product(tuple(v for v in stage.axes if v is not stage.scan.axis))
        chunks = 1
        if lines <= FEW_LINES and extent >= LONG:
            chunks = min(-(-BLOCKS // lines), extent // CHUNK)
        most = THREADS // (1 if across is None else min(WARP, power_of_two(across.extent)))
        return {
            "team": min(most, power_of_two(-(-extent // (OWN * chunks)))),
            "own": OWN,
            "chunks": chunks,
        }

    def apply(self, nest: Nest, target: CudaTarget, parameters: Parameters) -> Scheduled:
        stage, chunks = nest.stages[0], parameters["chunks"]
        merged = merging(stage.combiner, stage.terms, (stage.scan.axis,))
        if chunks == 1 or stage.scan.axis.extent < chunks * CHUNK_LEAST:
            return Scheduled(_Lines(stage, merged, parameters, target).loops(), ())
        cut = scan_in_chunks(stage, chunks, BLOCK)
        within = cut.totals.scan.axis
        totals = replace(
            cut.totals,
            axes=tuple(v for v in cut.totals.axes if v is not within),
            reduce_axes=(within,),
            scan=None,
            assigns=cut.last,
        )
        body = [*_folded(totals, target), *_once(cut.begin, target)]
        for part in cut.scans:
            body += _Lines(part, merged, parameters, target).loops()
        return Scheduled(tuple(body), cut.scratch)


def _once(stage: Stage, target: CudaTarget) -> tuple[Stmt, ...]:
    return (
        ElementwiseTemplate()
        .apply(Nest((stage,), len(stage.axes)), target, {"threads": WARP, "unroll": 1})
        .body
    )


def _folded(stage: Stage, target: CudaTarget) -> tuple[Stmt, ...]:
    """The totals of chunks."""
    nest = Nest((stage,), len(stage.axes))
    if not why_not_columns(nest):
        return ColumnsTemplate().apply(nest, target, {"warps": 8, "chunks": 1}).body
    return (
        RowsTemplate()
        .apply(nest, target, {"team": THREADS, "rows": 1, "chunks": 1, "kept": 0})
        .body
    )


def _across(stage: Stage) -> Var | None:
    """The axis along which neighbouring lines lie side by side, where terms do not."""
    others = [v for v in stage.axes if v is not stage.scan.axis and v.extent > 1]
    if not others:
        return None
    votes = sum(
        (stride(a, others[-1]) == 1) - (stride(a, stage.scan.axis) in (1, -1))
        for a in accesses(stage)
    )
    return others[-1] if votes > 0 else None


class _Lines:
    """Builds the loops of one scan."""

    def __init__(
        self, stage: Stage, merged: Combiner, parameters: Parameters, target: CudaTarget
    ) -> None:
        self.stage, self.merged = stage, merged
        self.outer = LoopKind.SERIAL if target.is_one_block else LoopKind.BLOCK
        self.name, self.extent = stage.name, stage.scan.axis.extent
        self.own, self.team = parameters["own"], parameters["team"]
        self.across = _across(stage)
        count = 1 if self.across is None else min(WARP, power_of_two(self.across.extent))
        self.team = max(1, min(self.team, MOST_THREADS // count))
        self.member = variable(f"{self.name}_s", self.team)
        self.column = variable(f"{self.name}_c", count)
        groups = 1 if self.across is None else -(-self.across.extent // count)
        others = tuple(v for v in stage.axes if v not in (stage.scan.axis, self.across))
        self.block = Var(f"{self.name}_b", INDEX, groups * product(others))
        self.line = decoded(others, self.block // groups)
        self.exists = build.TRUE  # whether there is such a line
        if self.across is not None:
            first = linearize((self.block % groups, self.column), (groups, count))
            self.line[self.across] = first
            self.exists = below(first, self.across.extent)
        self.allocated: list[Buffer] = []
        values = stage.accumulators
        self.terms = self._buffers("own", (self.own,), "thread")
        self.results = self._buffers("all", (self.own,), "thread")
        self.running = self._buffers("run", (), "thread")
        self.totals = [self._buffers(f"total{n}", (self.team, count), "shared") for n in range(2)]
        self.carry = self._buffers("carry", (count,), "shared")
        self.neutral = stage.combiner.identity
        widest = max(
            [a.dtype.bytes for a in values] + [buffer_of(a).dtype.bytes for a in accesses(stage)]
        )
        # Whole vectors of a thread's terms, where they lie side by side.
        self.width = (
            self.own
            if self.across is None
            and self.extent % self.own == 0
            and self.own * widest <= VECTOR_BYTES
            else 1
        )

    def _buffers(self, name: str, shape: tuple[int, ...], scope: str) -> tuple[Buffer, ...]:
        if scope == "thread":
            shape = (self.team, self.column.extent, *shape)
        made = tuple(
            Buffer(f"{self.name}_{n}_{name}", v.dtype, shape, scope)
            for n, v in enumerate(self.stage.accumulators)
        )
        self.allocated += made
        return made

    def loops(self) -> tuple[Stmt, ...]:
        """All tiles of a line, and the loop over lines."""
        tiles = -(-self.extent // (self.team * self.own))
        start = self._threads(when(equals(self.member, 0), self._begun()))
        body: tuple[Stmt, ...] = (
            start,
            serial(f"{self.name}_o", tiles, lambda o: self._tile(o, tiles)),
        )
        body = allocated(self.allocated, body)
        return (For(self.block, index.constant(self.block.extent), self.outer, body),)

    def _begun(self) -> tuple[Stmt, ...]:
        """What comes before the first term; also of columns that do not exist, which are read."""

        def stores(values: Sequence[Expr]) -> tuple[Stmt, ...]:
            return tuple(
                Store(b, (self.column,), substitute(e, self.line))
                for b, e in zip(self.carry, values, strict=True)
            )

        if self.exists is build.TRUE:
            return stores(self.stage.initial)
        return (If(self.exists, stores(self.stage.initial), stores(self.neutral)),)

    def _threads(self, body: tuple[Stmt, ...]) -> For:
        return _thread_loop(self.member, (_thread_loop(self.column, body),))

    @property
    def _me(self) -> tuple[Expr, Expr]:
        return self.member, self.column

    def _tile(self, o: Expr, tiles: int) -> tuple[Stmt, ...]:
        source, rounds = self.totals[0], []
        for distance in [1 << n for n in range((self.team - 1).bit_length())]:
            target = self.totals[1] if source is self.totals[0] else self.totals[0]
            rounds.append(self._threads(self._doubled(source, target, distance)))
            source = target
        last = when(
            equals(self.member, self.team - 1),
            self._copied(self.carry, (self.column,), source, self._me),
        )
        return (
            self._threads((*self._folded(o), *self._total())),
            *rounds,
            self._threads(self._stored(o, source)),
            *((self._threads(last),) if tiles > 1 else ()),
        )

    def _copied(
        self,
        to: tuple[Buffer, ...],
        place: tuple[Expr, ...],
        source: tuple[Buffer, ...],
        indices: tuple[Expr, ...],
    ) -> tuple[Stmt, ...]:
        return tuple(Store(t, place, Load(s, indices)) for t, s in zip(to, source, strict=True))

    def _each(
        self,
        o: Expr,
        body: Callable[[Expr, Expr], tuple[Stmt, ...]],
        otherwise: Callable[[Expr], tuple[Stmt, ...]] | None = None,
    ) -> tuple[Stmt, ...]:
        """body(position, number among the thread's terms) in the order of memory."""
        first = linearize((o, self.member), (1, self.team))
        first = first * self.own

        def number(u: Expr) -> Expr:
            return u if not self.stage.scan.reverse else self.own - 1 - u

        def position(u: Expr) -> Expr:
            if not self.stage.scan.reverse:
                return first + u
            return self.extent - self.own - first + u

        def checked(
            condition: Expr, one: Callable[[Callable], tuple[Stmt, ...]]
        ) -> tuple[Stmt, ...]:
            inside = build.all_of(condition, self.exists)
            whole = one(lambda u: body(position(u), number(u)))
            if otherwise is None or inside is build.TRUE:
                return when(inside, whole)
            return (If(inside, whole, one(lambda u: otherwise(number(u)))),)

        if self.width > 1:
            return checked(
                below(first, self.extent), lambda one: _lanes(f"{self.name}_v", self.width, one)
            )
        return (
            unrolled(
                f"{self.name}_u",
                self.own,
                lambda u: checked(below(first + number(u), self.extent), lambda one: one(u)),
            ),
        )

    def _folded(self, o: Expr) -> tuple[Stmt, ...]:
        """A thread's terms, and then each with those before it."""

        def mapping(position: Expr) -> dict[Var, Expr]:
            return {**self.line, self.stage.scan.axis: position}

        loaded = self._each(
            o,
            lambda position, v: tuple(
                Store(b, (*self._me, v), substitute(t, mapping(position)))
                for b, t in zip(self.terms, self.stage.terms, strict=True)
            ),
            lambda v: tuple(
                Store(b, (*self._me, v), e) for b, e in zip(self.terms, self.neutral, strict=True)
            ),
        )

        def step(v: Expr) -> tuple[Stmt, ...]:
            terms = tuple(Load(b, (*self._me, v)) for b in self.terms)
            return (
                Accumulate(self.running, self._me, self.stage.combiner, terms),
                *self._copied(self.terms, (*self._me, v), self.running, self._me),
            )

        start = tuple(
            Store(b, self._me, e) for b, e in zip(self.running, self.neutral, strict=True)
        )
        return (*loaded, *start, unrolled(f"{self.name}_f", self.own, step))

    def _total(self) -> tuple[Stmt, ...]:
        """The first thread's total has in it what comes before."""
        first = equals(self.member, 0)
        start = tuple(
            Store(t, self._me, build.apply("select", first, Load(c, (self.column,)), e))
            for t, c, e in zip(self.totals[0], self.carry, self.neutral, strict=True)
        )
        return (
            *start,
            Accumulate(
                self.totals[0],
                self._me,
                self.merged,
                tuple(Load(b, self._me) for b in self.running),
            ),
        )

    def _doubled(
        self, source: tuple[Buffer, ...], target: tuple[Buffer, ...], distance: int
    ) -> tuple[Stmt, ...]:
        """Each total with that of the thread so many places before it."""
        before = self.member - distance
        joined = (
            *self._copied(target, self._me, source, (before, self.column)),
            Accumulate(target, self._me, self.merged, tuple(Load(s, self._me) for s in source)),
        )
        return (
            If(
                index.compare("ge", before, 0),
                joined,
                self._copied(target, self._me, source, self._me),
            ),
        )

    def _stored(self, o: Expr, totals: tuple[Buffer, ...]) -> tuple[Stmt, ...]:
        before = self.member - 1
        start = self._copied(self.running, self._me, self.carry, (self.column,))
        if self.team > 1:
            start = (
                If(
                    index.compare("ge", before, 0),
                    self._copied(self.running, self._me, totals, (before, self.column)),
                    start,
                ),
            )

        def joined(v: Expr) -> tuple[Stmt, ...]:
            return (
                *self._copied(self.results, (*self._me, v), self.running, self._me),
                Accumulate(
                    self.results,
                    (*self._me, v),
                    self.merged,
                    tuple(Load(b, (*self._me, v)) for b in self.terms),
                ),
            )

        def finish(position: Expr, v: Expr) -> tuple[Stmt, ...]:
            values = {
                a: Load(b, (*self._me, v))
                for a, b in zip(self.stage.accumulators, self.results, strict=True)
            }
            mapping = {**self.line, self.stage.scan.axis: position, **values}
            return stores_at(self.stage.assigns, mapping)

        return (*start, unrolled(f"{self.name}_j", self.own, joined), *self._each(o, finish))


def _thread_loop(var: Var, body: tuple[Stmt, ...]) -> For:
    """A loop over threads."""
    return For(var, index.constant(var.extent), LoopKind.THREAD, body)


def _lanes(name: str, width: int, body: Callable[[Expr], tuple[Stmt, ...]]) -> tuple[Stmt, ...]:
    """`body` for each lane of a vector; without a loop for vectors of one."""
    if width == 1:
        return body(index.constant(0))
    return (vectorized(name, width, body),)
