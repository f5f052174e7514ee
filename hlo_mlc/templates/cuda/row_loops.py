"""The loops of a row-wise chain: which threads have what of a row, and how they combine it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from hlo_mlc.expr import build, index
from hlo_mlc.expr.build import variable
from hlo_mlc.expr.combiner import Combiner
from hlo_mlc.expr.core import Buffer, Expr, Load, Var, loads
from hlo_mlc.expr.dtypes import INDEX
from hlo_mlc.loops.core import Accumulate, For, LoopKind, Stmt, Store
from hlo_mlc.loops.rewrite import allocated, loop, when
from hlo_mlc.target.cuda import KIB, VECTOR_BYTES, WARP
from hlo_mlc.templates.base import Parameters
from hlo_mlc.templates.cuda.base import (
    at,
    below,
    equals,
    flat,
    lanes,
    product,
    thread_loop,
    vector_width,
)
from hlo_mlc.tensor.classify import cost, is_map, offset
from hlo_mlc.tensor.coalesce import coalesce
from hlo_mlc.tensor.combine import merging
from hlo_mlc.tensor.core import Assign, Nest, Stage

MOST_THREADS = 1024  # of a block, on every architecture
REGISTER_BYTES = 4
# Registers of a thread for the elements of a row, for each buffer: one for each element, however
# narrow it is, and two for one of 64 bits.
KEPT = 32
# Simple operations from which on each thread computes a value of its row once: roots and quotients
# are branches in machine code, which NVRTC leaves in loops.
HEAVY = 4
# Simple operations that a thread's share of a row may take written out: code size.
WRITTEN_OUT = 2000


def shared_axes(nest: Nest) -> int:
    """How many first axes of the stages say which row it is."""
    return nest.shared if len(nest.stages) > 1 else len(nest.stages[0].axes)


def _inner(stage: Stage, shared: int) -> tuple[Var, ...]:
    """The axes that a stage's row lies along."""
    return stage.axes[shared:] if is_map(stage) else stage.reduce_axes


def row_length(stage: Stage, shared: int) -> int:
    """How many elements of a row a stage goes through."""
    return product(_inner(stage, shared))


def row_width(nest: Nest) -> int:
    """Elements of a row that one thread loads at once, in all stages."""
    shared = shared_axes(nest)
    stages = [coalesce(replace(s, axes=s.axes[shared:])) for s in nest.stages]
    # What computes one value of a row has no elements to lie along it.
    return math.gcd(VECTOR_BYTES, *(vector_width(s, _inner(s, 0)[-1]) for s in stages if
                                    _inner(s, 0) and (not is_map(s) or row_length(s, 0) > 1)))


def most_kept(nest: Nest) -> int:
    """Elements of a row that one thread keeps in registers."""
    rows = (s for s in nest.stages if row_length(s, shared_axes(nest)) > 1)
    widest = max((b.dtype.bytes for s in rows for b in (*s.inputs, *s.outputs)), default=1)
    return KEPT // -(-widest // REGISTER_BYTES)


def _touched(stage: Stage, buffer: Buffer) -> tuple[tuple[Expr, ...], ...]:
    """The indices of a buffer's elements that a stage reads or writes."""
    read = (load.indices for e in stage.expressions for load in loads(e) if load.source == buffer)
    written = (a.indices for a in (*stage.along, *stage.assigns) if a.buffer == buffer)
    return (*read, *written)


class RowLoops:
    """Builds the loops of one row-wise chain."""

    def __init__(self, nest: Nest, parameters: Parameters, outer: LoopKind) -> None:
        shared = shared_axes(nest)
        self.outer = outer
        self.axes = nest.stages[0].axes[:shared]
        self.stages = [coalesce(replace(s, axes=s.axes[shared:])) for s in nest.stages]
        self.private = set(nest.private)
        self.name = nest.stages[0].name
        self.width, self.most_kept = row_width(nest), most_kept(nest)
        self.team, self.kept = parameters["team"], parameters["kept"] * KIB
        self.count = max(1, min(parameters["rows"], MOST_THREADS // self.team))
        self.total = product(self.axes)
        self.row = variable(f"{self.name}_r", self.count)
        self.warp = variable(f"{self.name}_w", max(1, self.team // WARP))
        self.lane = variable(f"{self.name}_l", min(self.team, WARP))
        self.group = Var(f"{self.name}_b", INDEX, -(-self.total // self.count))
        self.here = at(flat((self.group, 1), (self.row, self.count)), self.axes)
        self.owned: dict[Buffer, Buffer] = {}  # private buffers of which threads keep their part
        self.shared: dict[Buffer, Buffer] = {}  # those of which a block keeps its rows
        self.known: dict[Buffer, Expr] = {}  # private buffers that hold one value a row
        self.allocated: list[Buffer] = []

    def loops(self) -> tuple[Stmt, ...]:
        """All stages for a group of rows, and the loop over groups."""
        self._keep()
        body = tuple(stmt for stage in self.stages for stmt in self._stage(stage))
        body = allocated(self.allocated, body)
        return (For(self.group, index.constant(self.group.extent), self.outer, body),)

    # Threads

    def _threads(self, body: tuple[Stmt, ...], warps: int | None = None,
                 lanes: int | None = None) -> For:
        """What the threads of all rows do; the first ones of each row where numbers are given."""
        nest = thread_loop(self.lane, body, lanes)
        nest = thread_loop(self.warp, (nest,), warps)
        return self._of_rows(nest)

    def _of_rows(self, nest: For) -> For:
        left = index.subtract(index.constant(self.total),
                              index.multiply(self.group, index.constant(self.count)))
        return thread_loop(self.row, (nest,), index.minimum(index.constant(self.count), left))

    @property
    def _member(self) -> Expr:
        """The number of a thread among those of its row."""
        return flat((self.warp, 1), (self.lane, self.lane.extent))

    @property
    def _own(self) -> tuple[Expr, ...]:
        return self.row, self.warp, self.lane

    def _allocate(self, name: str, like: Expr | Buffer, shape: tuple[int, ...],
                  scope: str) -> Buffer:
        if scope == "thread":
            shape = (*(v.extent for v in self._own), *shape)
        buffer = Buffer(name, like.dtype, shape, scope)
        self.allocated.append(buffer)
        return buffer

    # Rows

    def _chunks(self, stage: Stage) -> int:
        """How many vectors of a stage's row a thread takes."""
        return -(-row_length(stage, 0) // (self.team * self.width))

    def _written_out(self, stage: Stage) -> bool:
        elements = self._chunks(stage) * self.width
        return elements <= self.most_kept and elements * cost(*stage.expressions) <= WRITTEN_OUT

    def _along(self, stage: Stage, body: Callable[[Expr, Expr, Expr], tuple[Stmt, ...]]
               ) -> tuple[Stmt, ...]:
        """body(position in the row, chunk, lane of the vector) for each element of a thread."""
        length = row_length(stage, 0)

        def chunk(c: Expr) -> tuple[Stmt, ...]:
            first = index.multiply(flat((c, 1), (self._member, self.team)),
                                   index.constant(self.width))
            return when(below(first, length), lanes(
                f"{stage.name}_v", self.width, lambda v: body(index.add(first, v), c, v)))

        chunks = self._chunks(stage)
        if chunks == 1:
            return chunk(index.constant(0))
        kind = LoopKind.UNROLL if self._written_out(stage) else LoopKind.SERIAL
        return (loop(f"{stage.name}_c", chunks, kind, chunk),)

    def _keep(self) -> None:
        """Decide which private buffers are registers: those that each thread reads where it has
        written, in loops that are written out; and of which others rows are in shared memory."""
        for buffer in sorted(self.private, key=lambda b: b.name):
            users = [s for s in self.stages if buffer in (*s.inputs, *s.outputs)]
            lengths = {row_length(s, 0) for s in users}
            if len(lengths) == 1 and lengths != {1} and all(map(self._written_out, users)) \
                    and all(self._at_own_place(s, buffer) for s in users):
                shape = (self._chunks(users[0]), self.width)
                self.owned[buffer] = self._allocate(f"{buffer.name}_own", buffer, shape, "thread")
            elif not self._is_single(buffer) and self._by_rows(buffer):
                shape = (self.count, buffer.size // self.total)
                bytes_needed = self.count * shape[1] * buffer.dtype.bytes
                if bytes_needed <= self.kept:
                    self.kept -= bytes_needed
                    self.shared[buffer] = self._allocate(f"{buffer.name}_row", buffer, shape,
                                                         "shared")

    def _by_rows(self, buffer: Buffer) -> bool:
        """Whether the stages touch of the buffer what belongs to their own row only."""
        if buffer.size % self.total:
            return False
        first = index.multiply(flat(*((v, v.extent) for v in self.axes)),
                               index.constant(buffer.size // self.total))
        return all(not loads(place) and index.add(first, self._in_row(buffer, indices)) is place
                   for s in self.stages for indices in _touched(s, buffer)
                   for place in (offset(buffer, indices),))

    def _in_row(self, buffer: Buffer, indices: tuple[Expr, ...]) -> Expr:
        """Where in its row an element of the buffer is."""
        start = {v: index.constant(0) for v in self.axes}
        return build.substitute(offset(buffer, indices), start)

    def _at_own_place(self, stage: Stage, buffer: Buffer) -> bool:
        """Whether a stage touches the buffer at its own position of the row only."""
        if any(load.guard is not None for e in stage.expressions for load in loads(e)
               if load.source == buffer):
            return False
        if not is_map(stage) and any(a.buffer == buffer for a in stage.assigns):
            return False
        position = flat(*((v, v.extent) for v in _inner(stage, 0)))
        rows = {v: index.constant(0) for v in self.axes}
        return all(build.substitute(offset(buffer, indices), rows) is position
                   for indices in _touched(stage, buffer))

    # Stages

    def _stage(self, stage: Stage) -> tuple[Stmt, ...]:
        if is_map(stage):
            return self._map(stage)
        return self._fold(stage)

    def _map(self, stage: Stage) -> tuple[Stmt, ...]:
        if row_length(stage, 0) == 1:
            return self._of_row(stage.assigns, {v: index.constant(0) for v in stage.axes})
        return (self._threads(self._along(
            stage, lambda position, c, v: self._stores(
                stage.assigns, {**self.here, **at(position, stage.axes)}, c, v))),)

    def _of_row(self, assigns: tuple[Assign, ...], mapping: dict[Var, Expr]) -> tuple[Stmt, ...]:
        """Values of which a row has one: private ones are computed where they are used, or once
        by each thread."""
        stored, kept = [], []
        for assign in assigns:
            value = self._rewritten(assign.value, {**self.here, **mapping})
            if assign.buffer in self.private and assign.guard is None \
                    and self._is_single(assign.buffer):
                if cost(value) >= HEAVY:
                    kept.append(self._kept(f"{assign.buffer.name}_own", value))
                    value = Load(kept[-1].buffer, self._own)
                self.known[assign.buffer] = value
            else:
                stored.append(assign)
        zero = index.constant(0)
        result = (self._threads(tuple(kept)),) if kept else ()
        if stored:
            result += (self._threads(self._stores(
                tuple(stored), {**self.here, **mapping}, zero, zero), warps=1, lanes=1),)
        return result

    def _kept(self, name: str, value: Expr) -> Store:
        """What puts one value of a row into a register of each of its threads."""
        return Store(self._allocate(name, value, (), "thread"), self._own, value)

    def _is_single(self, buffer: Buffer) -> bool:
        """Whether a row has one element of this buffer."""
        return buffer.size == self.total

    def _stores(self, assigns: tuple[Assign, ...], mapping: dict[Var, Expr], c: Expr,
                v: Expr) -> tuple[Stmt, ...]:
        result = []
        for assign in assigns:
            value = self._rewritten(assign.value, mapping, c, v)
            guard = None if assign.guard is None else self._rewritten(assign.guard, mapping, c, v)
            own = self.owned.get(assign.buffer)
            if own is not None:
                result.append(Store(own, (*self._own, c, v), value, guard))
            elif assign.buffer in self.shared:
                place = self._rewritten(self._in_row(assign.buffer, assign.indices), mapping, c, v)
                result.append(Store(self.shared[assign.buffer], (self.row, place), value, guard))
            else:
                indices = tuple(self._rewritten(i, mapping, c, v) for i in assign.indices)
                result.append(Store(assign.buffer, indices, value, guard))
        return tuple(result)

    def _rewritten(self, e: Expr, mapping: dict[Var, Expr], c: Expr | None = None,
                   v: Expr | None = None) -> Expr:
        """An expression of a stage, at one element of the row."""

        def rule(node: Expr) -> Expr | None:
            if not isinstance(node, Load):
                return None
            if node.source in self.owned:
                return Load(self.owned[node.source], (*self._own, c, v))
            if node.source in self.shared:
                place = self.row, self._in_row(node.source, node.indices)
                return Load(self.shared[node.source], place, node.guard, node.default)
            value = self.known.get(node.source)
            if value is None or node.guard is None:
                return value
            return build.apply("select", node.guard, value, node.default)

        return build.substitute(build.transform(e, rule), mapping)

    def _fold(self, stage: Stage) -> tuple[Stmt, ...]:
        """Each thread folds its elements; then threads of a warp combine, and then warps."""
        merged = merging(stage.combiner, stage.terms, stage.reduce_axes)
        parts, totals, of_warps = [], [], []
        for number, accumulator in enumerate(stage.accumulators):
            name = f"{stage.name}_{number}"
            parts.append(self._allocate(f"{name}_part", accumulator, (self.width,), "thread"))
            totals.append(self._allocate(f"{name}_all", accumulator, (self.count,), "shared"))
            if self.team > WARP:
                of_warps.append(self._allocate(f"{name}_warp", accumulator,
                                               (self.count, self.warp.extent), "shared"))
        result = [self._threads((*self._begin(stage, parts, of_warps, totals),
                                 *self._along(stage, lambda position, c, v: self._terms(
                                     stage, parts, position, c, v)),
                                 *self._join_lanes(parts, merged)))]
        zero = index.constant(0)
        ours = tuple(Load(p, (*self._own, zero)) for p in parts)
        if self.team > WARP:
            result += [
                self._threads((Accumulate(tuple(of_warps), (self.row, self.warp), merged, ours),)),
                self._across_warps(of_warps, totals, merged)]
        else:
            result.append(self._threads((Accumulate(tuple(totals), (self.row,), merged, ours),)))
        values = {a: Load(t, (self.row,)) for a, t in zip(stage.accumulators, totals, strict=True)}
        return (*result, *self._of_row(stage.assigns, values))

    def _begin(self, stage: Stage, parts: list[Buffer], of_warps: list[Buffer],
               totals: list[Buffer]) -> tuple[Stmt, ...]:
        """Everything that is folded into holds the identity, the results the initial values."""
        neutral = stage.combiner.identity
        first = equals(self.lane, 0)
        result = list(lanes(f"{stage.name}_i", self.width, lambda v: tuple(
            Store(p, (*self._own, v), e) for p, e in zip(parts, neutral, strict=True))))
        result += [Store(b, (self.row, self.warp), e, first)
                   for b, e in zip(of_warps, neutral, strict=False)]
        if self.warp.extent > 1:
            first = build.all_of(first, equals(self.warp, 0))
        return (*result, *(Store(t, (self.row,), self._rewritten(e, self.here), first)
                           for t, e in zip(totals, stage.initial, strict=True)))

    def _terms(self, stage: Stage, parts: list[Buffer], position: Expr, c: Expr,
               v: Expr) -> tuple[Stmt, ...]:
        mapping = {**self.here, **at(position, stage.reduce_axes)}
        terms = tuple(self._rewritten(t, mapping, c, v) for t in stage.terms)
        return (*self._stores(stage.along, mapping, c, v),
                Accumulate(tuple(parts), (*self._own, v), stage.combiner, terms))

    def _join_lanes(self, parts: list[Buffer], merged: Combiner) -> tuple[Stmt, ...]:
        """The elements of a thread's vector, by halves."""
        result, half = [], self.width // 2
        while half:
            for v in range(half):
                terms = tuple(Load(p, (*self._own, index.constant(v + half))) for p in parts)
                result.append(Accumulate(tuple(parts), (*self._own, index.constant(v)), merged,
                                         terms))
            half //= 2
        return tuple(result)

    def _across_warps(self, of_warps: list[Buffer], totals: list[Buffer],
                      merged: Combiner) -> For:
        warps = self.warp.extent
        p = variable(f"{self.name}_p", warps)
        rest = variable(f"{self.name}_z", self.team // warps)
        fold = Accumulate(tuple(totals), (self.row,), merged,
                          tuple(Load(b, (self.row, p)) for b in of_warps))
        return self._of_rows(thread_loop(rest, (thread_loop(p, (fold,)),), 1))
