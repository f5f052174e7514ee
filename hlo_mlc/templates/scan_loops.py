"""The loops of scans: strips of lanes, each running a scan of its own.

Where the scanned axis is the one whose neighbours are neighbours in memory, square blocks are
transposed in registers on their way in and out.  Inexact folds are built up block by block, which
rounds far less often in a row than one long chain does:

    strip of lanes:
      carry[lanes] = initial
      for each block of 16 steps:
        prefix = neutral
        for each step: prefix = combine(prefix, term);  result = finish(combine(carry, prefix))
        carry = combine(carry, prefix)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from hlo_mlc.expr import index
from hlo_mlc.expr.build import load, substitute
from hlo_mlc.expr.combiner import Combiner
from hlo_mlc.expr.core import Apply, Buffer, Expr, Var, loads, walk
from hlo_mlc.expr.dtypes import INDEX
from hlo_mlc.loops.core import Accumulate, If, LoopKind, Stmt, Store
from hlo_mlc.loops.lower import stores_at
from hlo_mlc.loops.rewrite import Body, Steps, allocated, loop, serial, unrolled, vectorized
from hlo_mlc.target.cpu import CpuTarget
from hlo_mlc.templates.base import decoded, lanes, work
from hlo_mlc.templates.by_hand import bounded, shared_out
from hlo_mlc.tensor.classify import cost, stride
from hlo_mlc.tensor.coalesce import accesses
from hlo_mlc.tensor.core import Assign, Nest, Stage

Elements = tuple[Buffer, ...]  # one for each accumulator

# Steps of one block at most, and lanes of one vector: 16 rows of 16 fill half of the largest
# register file while they are transposed.
BLOCK = 16
# Blocks in one chain; longer ones get a second level, so that no more roundings than about twice
# the square root of their number follow each other.  1,024 terms then err as in XLA's trees.
CHAIN = 16
# Simple operations that the steps of a block may take written out: code size.
WRITTEN_OUT = 1500


@dataclass(frozen=True, slots=True)
class Layout:
    """How a scan is laid out: the axis that lanes lie along, and the other ones around it."""

    lane: Var
    outer: tuple[Var, ...]
    width: int  # lanes of one vector
    transposes: bool  # the scanned axis, not the lanes', is the one without gaps in memory

    @property
    def block(self) -> int:
        """Steps of one block: square ones are transposed."""
        return self.width if self.transposes else BLOCK

    @staticmethod
    def of(stage: Stage, target: CpuTarget) -> Layout:
        """The layout in which most accesses are to neighbours."""
        axis, width = stage.scan.axis, min(BLOCK, lanes((stage,), target))
        others = [v for v in stage.axes if v is not axis]
        if not others:  # one lane
            return Layout(Var(f"{axis.name}_one", INDEX, 1), (), width, True)

        def neighbours(v: Var) -> int:
            return sum(stride(access, v) in (1, -1) for access in accesses(stage))

        best = max(others, key=neighbours)
        transposes = neighbours(axis) >= neighbours(best)
        if transposes:
            best = max(others, key=lambda v: (v.extent % width == 0, v.extent))
        return Layout(best, tuple(v for v in others if v is not best), width, transposes)


def strips(stage: Stage, target: CpuTarget, vectors: int, last: tuple[Assign, ...] = ()) -> Body:
    """All strips of lanes, shared out over tasks where that is worth it; `last` is stored at the
    end of each scan."""
    layout = Layout.of(stage, target)
    if layout.transposes:
        vectors = 1
    whole, rest = divmod(layout.lane.extent, layout.width)
    count = -(-whole // vectors)
    each = count + (rest > 0)
    tasks = each * math.prod(v.extent for v in layout.outer)
    name = stage.scan.axis.name

    def task(t: Expr) -> Body:
        number = t % each
        at = decoded(layout.outer, t // each)
        short = _Strip(stage, last, layout, at, "rest", index.constant(whole), 1, 1, rest)
        if not whole:
            return short.loops()
        first = bounded(number, count) * vectors
        size = index.minimum(vectors, whole - first)
        full = _Strip(
            stage, last, layout, at, "full", first, size, min(vectors, whole), layout.width, whole
        )
        if not rest:
            return full.loops()
        return (If(index.compare("lt", number, count), full.loops(), short.loops()),)

    return shared_out(name, tasks, work(Nest((stage,), len(stage.axes))), task)


@dataclass(frozen=True, slots=True)
class _Strip:
    """The loops of one strip: `count` vectors, at most `most`, of `live` lanes from vector `first`
    on, of `whole` in all."""

    stage: Stage
    last: tuple[Assign, ...]
    layout: Layout
    at: dict[Var, Expr]
    name: str
    first: Expr
    count: Expr | int
    most: int
    live: int
    whole: int = 0

    def loops(self) -> Body:
        """Levels of carries around the blocks, then what is left of the axis."""
        blocks, rest = divmod(self.stage.scan.axis.extent, self.layout.block)
        neutral = self.stage.combiner.identity
        inexact = self._is_inexact
        chained = inexact and blocks > CHAIN
        levels = self._levels(inexact, chained)
        carry, first = levels[-1], levels[0]

        def block(b: Expr, steps: int = self.layout.block) -> Steps:
            return self._each(lambda v: self._block(levels, v, b, steps))

        def chain(s: Var) -> Steps:
            start = s * group
            size = index.minimum(group, blocks - start)
            return (
                serial(f"{self._axis}_block", size, lambda b: block(bounded(start + b, blocks))),
                self._each(
                    lambda v: (
                        self._fold(levels[-2], v, lambda lane: _read(carry, self._slot(v, lane))),
                        self._set(carry, v, neutral),
                    )
                ),
            )

        body: list[Steps] = []
        for buffers in levels:
            initial = self.stage.initial if buffers is first else neutral
            body.append(self._each(lambda v, b=buffers, e=initial: self._set(b, v, e)))
        if chained:
            group = math.isqrt(blocks)
            body.append(serial(f"{self._axis}_chain", -(-blocks // group), chain))
        elif blocks:
            body.append(serial(f"{self._axis}_block", blocks, block))
        if rest:
            body.append(block(index.constant(blocks), rest))
        if self.last:
            body.append(self._each(lambda v: self._finish(levels, v)))
        return allocated(reversed([b for buffers in levels for b in buffers]), body)

    def _levels(self, inexact: bool, chained: bool) -> tuple[Elements, ...]:
        """What is accumulated before a block, outermost first: what came before the scan, where
        that is more than a neutral value and sums are not to be added to it one by one; finished
        chains; the blocks of this chain."""
        given = inexact and any(loads(e) for e in self.stage.initial)
        names = ("given",) * given + ("total",) * chained + ("carry",)
        return tuple(map(self._buffers, names))

    @property
    def _is_inexact(self) -> bool:
        """Whether blocks are folded by themselves first."""
        return not self.stage.trips and _is_inexact(self.stage.combiner)

    @property
    def _axis(self) -> str:
        return f"{self.stage.scan.axis.name}_{self.name}"

    def _buffers(self, what: str) -> Elements:
        """An element for each lane of the strip and each accumulator."""
        scope = "register" if self.most == 1 else "stack"
        return tuple(
            Buffer(
                f"{self.stage.name}.{v.name}_{self.name}_{what}",
                v.dtype,
                (self.most * self.layout.width,),
                scope,
            )
            for v in self.stage.accumulators
        )

    def _registers(self, what: str) -> Elements:
        return tuple(
            replace(b, shape=(self.layout.width,), scope="register") for b in self._buffers(what)
        )

    def _each(self, body: Callable[[Expr], Steps]) -> Steps:
        """`body` for each vector of the strip."""
        if self.most == 1:
            return body(index.constant(0))
        return serial(f"{self._axis}_v", self.count, lambda v: body(bounded(v, self.most)))

    def _lanes(self, what: str, body: Callable[[Expr], Steps]) -> Stmt:
        return vectorized(f"{self._axis}_{what}", self.live, body)

    def _slot(self, v: Expr, lane: Expr) -> Expr:
        return v * self.layout.width + lane

    def _lane(self, v: Expr, lane: Expr) -> Expr:
        """The position along the lanes' axis."""
        vector = self.first + v
        return self._slot(bounded(vector, self.whole) if self.whole else vector, lane)

    def _point(self, v: Expr, lane: Expr, step: Expr) -> dict[Var, Expr]:
        """The axes at a step of the scan, counted from where it starts."""
        axis = self.stage.scan.axis
        if self.stage.scan.reverse:
            step = axis.extent - 1 - step
        return {**self.at, self.layout.lane: self._lane(v, lane), axis: step}

    def _set(self, buffers: Elements, v: Expr, values: tuple[Expr, ...]) -> Stmt:
        """An initial value, which may depend on the lane."""
        start = index.constant(0)
        return self._lanes(
            "s",
            lambda lane: [
                Store(b, (self._slot(v, lane),), substitute(e, self._point(v, lane, start)))
                for b, e in zip(buffers, values, strict=True)
            ],
        )

    def _fold(self, into: Elements, v: Expr, terms: Callable[[Expr], tuple[Expr, ...]]) -> Stmt:
        return self._lanes(
            "f",
            lambda lane: Accumulate(into, (self._slot(v, lane),), self.stage.combiner, terms(lane)),
        )

    def _block(self, levels: tuple[Elements, ...], v: Expr, block: Expr, steps: int) -> Body:
        """Some steps of one vector of lanes."""
        stage, width = self.stage, self.layout.width
        carry = levels[-1]
        inexact = self._is_inexact
        prefix = self._registers("prefix") if inexact else ()
        base = self._registers("base") if inexact else ()
        result = self._registers("result") if inexact and stage.assigns else ()
        begin = block * self.layout.block
        square = self.layout.transposes and steps == width == self.live
        tiles = {
            a: Buffer(f"{stage.name}.{a.buffer.name}_tile", a.buffer.dtype, (width, width), "stack")
            for a in stage.assigns
            if square and stride(a, stage.scan.axis) == 1
        }

        def at_lane(c: Expr, lane: Expr) -> Steps:
            point = self._point(v, lane, begin + c)
            terms = tuple(substitute(t, point) for t in stage.terms)
            if not inexact:
                place = self._slot(v, lane)
                fold = Accumulate(carry, (place,), stage.combiner, terms)
                return (fold, results(c, lane, point, _read(carry, place)))
            fold = Accumulate(prefix, (lane,), stage.combiner, terms)
            if not stage.assigns:
                return fold
            both = stage.combiner.combined(_read(base, lane), _read(prefix, lane))
            found = [Store(b, (lane,), e) for b, e in zip(result, both, strict=True)]
            return (fold, found, results(c, lane, point, _read(result, lane)))

        def results(c: Expr, lane: Expr, point: Mapping[Var, Expr], found: Sequence[Expr]) -> Steps:
            where = {**point, **dict(zip(stage.accumulators, found, strict=True))}
            return [
                Store(tiles[a], (c, lane), s.value) if a in tiles else s
                for a, s in zip(stage.assigns, stores_at(stage.assigns, where), strict=True)
            ]

        each = cost(*stage.expressions) + 2 * cost(*stage.combiner.results)
        kind = LoopKind.UNROLL if steps * each <= WRITTEN_OUT else LoopKind.SERIAL
        taken = loop(
            f"{self._axis}_k", steps, kind, lambda c: self._lanes("l", lambda r: at_lane(c, r))
        )
        return allocated(
            reversed((*prefix, *base, *result, *tiles.values())),
            (
                self._start(levels, base, prefix, v) if inexact else (),
                taken,
                self._fold(carry, v, lambda lane: _read(prefix, lane)) if inexact else (),
                self._written_out(tiles, v, begin) if tiles else (),
            ),
        )

    def _written_out(self, tiles: Mapping[Assign, Buffer], v: Expr, begin: Expr) -> Stmt:
        """Squares of results, by rows of what is stored."""
        stage, width = self.stage, self.layout.width

        def at(r: Expr, w: Expr) -> Steps:
            place = width - 1 - w if stage.scan.reverse else w
            point = self._point(v, r, begin + place)
            return [
                Store(
                    a.buffer, tuple(substitute(i, point) for i in a.indices), load(tile, (place, r))
                )
                for a, tile in tiles.items()
            ]

        return unrolled(
            f"{self._axis}_r",
            width,
            lambda r: vectorized(f"{self._axis}_w", width, lambda w: at(r, w)),
        )

    def _start(
        self, levels: tuple[Elements, ...], base: Elements, prefix: Elements, v: Expr
    ) -> Stmt:
        """What was accumulated before a block, and the neutral start of its own prefix."""
        return self._lanes(
            "b",
            lambda lane: [
                Store(b, (lane,), e)
                for b, e in zip(
                    (*base, *prefix),
                    (*self._before(levels, v, lane), *self.stage.combiner.identity),
                    strict=True,
                )
            ],
        )

    def _finish(self, levels: tuple[Elements, ...], v: Expr) -> Stmt:
        """What is stored at the end of the scans."""

        def finish(lane: Expr) -> Body:
            where = self._point(v, lane, index.constant(0))
            where |= zip(self.stage.accumulators, self._before(levels, v, lane), strict=True)
            return stores_at(self.last, where)

        return self._lanes("e", finish)

    def _before(self, levels: tuple[Elements, ...], v: Expr, lane: Expr) -> tuple[Expr, ...]:
        """All levels combined."""
        *outer, values = (_read(buffers, self._slot(v, lane)) for buffers in levels)
        for left in reversed(outer):
            values = self.stage.combiner.combined(left, values)
        return values


def _read(buffers: Elements, at: Expr) -> tuple[Expr, ...]:
    return tuple(load(b, (at,)) for b in buffers)


def _is_inexact(combiner: Combiner) -> bool:
    """Whether combining rounds, so that the order matters."""
    return any(
        isinstance(node, Apply) and node.dtype.is_float and node.op not in ("max", "min", "select")
        for node in walk(*combiner.results)
    )
