"""The schedule of a row-wise chain: which threads have what of a row, and how they combine it.

naive loops  ->  inline, contract  ->  split "guard"  ->  fold_apart, reorder  ->  begin_inside
             ->  expand, add_loops, replicate, distribute  ->  vectorize, unroll  ->  bind

for b block:                             some rows
  for r thread, w thread, l thread:      warps of a row, and their lanes
    fold every so manyth vector of the row in registers
  for r thread, w thread, l thread:  lanes of a warp combined
  for r thread, w thread:            warps combined
  for r thread, w thread, l thread:  elements of the row, or by one thread what it has one of
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from hlo_mlc.expr import build, index
from hlo_mlc.expr.build import variable
from hlo_mlc.expr.core import Buffer, Expr, Var, loads
from hlo_mlc.loops.core import Allocate, Store, walk
from hlo_mlc.loops.lower import lower_nest
from hlo_mlc.loops.rewrite import constant_extent
from hlo_mlc.schedule.core import Schedule
from hlo_mlc.support.errors import ScheduleError
from hlo_mlc.target.cuda import KIB, VECTOR_BYTES, WARP, CudaTarget
from hlo_mlc.templates.base import Parameters, decoded, open_schedule
from hlo_mlc.templates.cuda.base import product, vector_width
from hlo_mlc.tensor.access import linearize
from hlo_mlc.tensor.classify import cost, is_map, offset
from hlo_mlc.tensor.coalesce import coalesce
from hlo_mlc.tensor.core import Nest, Stage
from hlo_mlc.tensor.rewrite import map_expressions

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
    return math.gcd(
        VECTOR_BYTES,
        *(
            vector_width(s, _inner(s, 0)[-1])
            for s in stages
            if _inner(s, 0) and (not is_map(s) or row_length(s, 0) > 1)
        ),
    )


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


def row_schedule(nest: Nest, parameters: Parameters, target: CudaTarget) -> Schedule:
    """All stages of a chain, for groups of rows."""
    return _Rows(nest, parameters).schedule(target)


class _Rows:
    """How the rows of a chain are shared out."""

    def __init__(self, nest: Nest, parameters: Parameters) -> None:
        shared = shared_axes(nest)
        self.nest, self.axes, self.name = nest, nest.stages[0].axes[:shared], nest.stages[0].name
        self.width, self.most_kept = row_width(nest), most_kept(nest)
        self.team, self.kept = parameters["team"], parameters["kept"] * KIB
        self.count = max(1, min(parameters["rows"], MOST_THREADS // self.team))
        self.total = product(self.axes)
        inner = [coalesce(replace(s, axes=s.axes[shared:])) for s in nest.stages]
        self.stages = [
            _in_a_row(s, f"{self.name}_k" if self._written_out(s) else f"{self.name}_s")
            for s in inner
        ]
        # The loops along rows, whose vectors are written out or not; those that threads do.
        self.along = tuple(dict.fromkeys(v.name for s in self.stages for v in _inner(s, 0)))
        self.threads = {f"{self.name}_w": self.team // WARP} if self.team > WARP else {}
        self.threads |= {f"{self.name}_l": min(self.team, WARP)}

    def schedule(self, target: CudaTarget) -> Schedule:
        """The rewrites of naive loops."""
        rows = [v.name for v in self.axes] or [f"{self.name}_r"]
        schedule = open_schedule(self.nest, lower_nest(self.axes, self.stages), checked=False)
        if not self.axes:
            schedule = schedule.add_unit_loop(*rows)
        schedule, heavy = self._values(schedule)
        schedule, own = self._rows_kept(schedule)
        schedule, name = schedule.fuse(*rows), ".".join(rows)
        schedule = schedule.split(name, self.count, "shorten")
        group, row = f"{self.name}_b", f"{self.name}_r"
        schedule = schedule.rename(f"{name}.o", "", group).rename(f"{name}.i", "", row)
        for along in self.along:
            schedule = self._by_threads(schedule, along)
        schedule = self._begun(schedule)
        for buffer, chunks in own.items():
            schedule = self._by_places(schedule, buffer, chunks)
        schedule = schedule.expand(row, "stack")
        if any(isinstance(s, Store) for s in schedule.loops(row)[0].body):
            schedule = schedule.add_loops(tuple(self.threads), tuple(self.threads.values()), row)
        for buffer in reversed(heavy):
            schedule = _tried(
                schedule, lambda s, name=buffer.name: s.replicate(name, tuple(self.threads))
            )
        schedule = schedule.distribute(row)
        for along in self.along:
            schedule = self._in_vectors(schedule, along)
        if not target.is_one_block:
            schedule = schedule.bind(group, "block")
        *warps, lane = self.threads
        combining = [name for warp in warps for name in (warp, f"{warp}.e", f"{self.name}_z")]
        return schedule.bind((row, *combining, lane), "thread")

    # What is kept of rows

    def _values(self, schedule: Schedule) -> tuple[Schedule, list[Buffer]]:
        """Private values of which a row has one: computed where they are used, or, those that are
        returned, once by each thread."""
        heavy = []
        for stage in self.stages:
            for assign in stage.assigns if not is_map(stage) or not stage.axes else ():
                if (
                    assign.buffer not in self.nest.private
                    or assign.guard is not None
                    or not self._is_single(assign.buffer)
                ):
                    continue
                name = assign.buffer.name
                stores = [
                    s
                    for s in walk(schedule.program.body)
                    if isinstance(s, Store) and s.buffer == assign.buffer
                ]
                contracted = _tried(schedule, lambda s, name=name: s.contract(name))
                if contracted is schedule or len(stores) > 1:
                    continue
                if cost(stores[0].value) >= HEAVY:
                    schedule = contracted
                    heavy.append(assign.buffer)
                else:
                    schedule = _tried(contracted, lambda s, name=name: s.inline(name))
        return schedule, heavy

    def _rows_kept(self, schedule: Schedule) -> tuple[Schedule, dict[Buffer, int]]:
        """Private buffers of rows: in registers where each thread reads them where it has written,
        in loops that are written out, with the vectors that it has of them; or in shared memory."""
        own: dict[Buffer, int] = {}
        for buffer in sorted(self.nest.private, key=lambda b: b.name):
            if self._is_single(buffer):
                continue
            users = [s for s in self.stages if buffer in (*s.inputs, *s.outputs)]
            lengths = {row_length(s, 0) for s in users}
            if (
                len(lengths) == 1
                and lengths != {1}
                and all(map(self._written_out, users))
                and all(self._at_own_place(s, buffer) for s in users)
            ):
                own[buffer] = self._chunks(users[0])
            elif self._by_rows(buffer):
                bytes_needed = self.count * (buffer.size // self.total) * buffer.dtype.bytes
                if bytes_needed > self.kept:
                    continue
                self.kept -= bytes_needed
            else:
                continue
            contracted = _tried(schedule, lambda s, name=buffer.name: s.contract(name))
            if contracted is schedule:  # nobody sees that rows keep apart
                own.pop(buffer, None)
                continue
            schedule = contracted
            shape = _shape(schedule, buffer)
            if len(shape) > 1:
                schedule = schedule.transform_layout(
                    buffer.name, shape, (" ".join(map(str, range(len(shape)))),)
                )
        return schedule, own

    def _by_rows(self, buffer: Buffer) -> bool:
        """Whether the stages touch of the buffer what belongs to their own row only."""
        if buffer.size % self.total:
            return False
        first = linearize(self.axes, [v.extent for v in self.axes]) * (buffer.size // self.total)
        return all(
            not loads(place) and (first + self._in_row(buffer, indices)) is place
            for s in self.stages
            for indices in _touched(s, buffer)
            for place in (offset(buffer, indices),)
        )

    def _in_row(self, buffer: Buffer, indices: tuple[Expr, ...]) -> Expr:
        """Where in its row an element of the buffer is."""
        start = {v: index.constant(0) for v in self.axes}
        return build.substitute(offset(buffer, indices), start)

    def _at_own_place(self, stage: Stage, buffer: Buffer) -> bool:
        """Whether a stage touches the buffer at its own position of the row only."""
        if any(
            load.guard is not None
            for e in stage.expressions
            for load in loads(e)
            if load.source == buffer
        ):
            return False
        if not is_map(stage) and any(a.buffer == buffer for a in stage.assigns):
            return False
        inner = _inner(stage, 0)
        position = linearize(inner, [v.extent for v in inner])
        return all(self._in_row(buffer, indices) is position for indices in _touched(stage, buffer))

    def _is_single(self, buffer: Buffer) -> bool:
        """Whether a row has one element of this buffer."""
        return buffer.size == self.total

    # Threads

    def _chunks(self, stage: Stage) -> int:
        """How many vectors of a stage's row a thread takes."""
        return -(-row_length(stage, 0) // (self.team * self.width))

    def _written_out(self, stage: Stage) -> bool:
        elements = self._chunks(stage) * self.width
        return elements <= self.most_kept and elements * cost(*stage.expressions) <= WRITTEN_OUT

    def _vector(self, along: str) -> str:
        """The loop over vectors."""
        return f"{along}.o" if self.width > 1 else along

    def _chunk(self, along: str) -> str:
        """The loop over the vectors of a thread."""
        return f"{along}_c"

    def _by_threads(self, schedule: Schedule, along: str) -> Schedule:
        """The iterations along rows, vector by vector by neighbouring threads; these fold what they
        have, then the lanes of a warp combine it, and then warps."""
        vector = self._vector(along)
        lanes = f"{along}.i" if self.width > 1 else ""
        if lanes:
            schedule = schedule.split(along, self.width)
        schedule, team = schedule.split(vector, self.team, "guard"), f"{vector}.i"
        schedule = schedule.rename(f"{vector}.o", "", self._chunk(along))
        if self.team > WARP:
            schedule, own = schedule.split(team, WARP), (f"{team}.o", f"{team}.i")
        else:
            own = (team,)
        for name, common in zip(own, self.threads, strict=True):
            schedule = schedule.rename(name, "", common)
        threads = tuple(self.threads)
        stages = [s for s in self.stages if along in (v.name for v in _inner(s, 0))]
        if not all(map(is_map, stages)):
            for name in threads:
                schedule = schedule.fold_apart(name, lanes if name == threads[-1] else "")
        if any(map(is_map, stages)):
            schedule = schedule.reorder(*threads, self._chunk(along))
        return schedule

    def _begun(self, schedule: Schedule) -> Schedule:
        """What folds begin with stored by a thread each, before its own fold."""
        *warps, lane = self.threads
        for warp in warps:
            schedule = schedule.expand(warp, "stack").distribute(warp, lane, "e")
        for name in self.threads:
            schedule = schedule.begin_inside(name)
        for warp in warps:  # the first threads of each row combine them
            rest = f"{self.name}_z"
            schedule = schedule.add_loops(
                (rest,), (self.team // self.threads[warp],), warp
            ).reorder(rest, warp)
        return schedule

    def _by_places(self, schedule: Schedule, buffer: Buffer, chunks: int) -> Schedule:
        """A row's elements by the threads that have them."""
        parts = (chunks, *self.threads.values(), self.width)
        missing = math.prod(parts) - math.prod(_shape(schedule, buffer))
        if missing:
            schedule = schedule.pad(buffer.name, missing)
        threads = [str(n + 1) for n in range(len(self.threads))]
        return schedule.transform_layout(buffer.name, parts, (*threads, "0", str(len(parts) - 1)))

    def _in_vectors(self, schedule: Schedule, along: str) -> Schedule:
        """The elements of a vector as lanes, the vectors of a thread written out where few."""
        lanes, chunk = f"{along}.i", self._chunk(along)
        half = self.width // 2
        while half:
            if schedule.loops(f"{lanes}.{half}"):
                schedule = schedule.write_out(f"{lanes}.{half}")
            half //= 2
        if self.width > 1:
            schedule = schedule.vectorize(lanes)
        if all(constant_extent(s) == 1 for s in schedule.loops(chunk)):
            return schedule.write_out(chunk)
        return schedule.unroll(chunk) if along == f"{self.name}_k" else schedule


def _in_a_row(stage: Stage, name: str) -> Stage:
    """A stage over one axis of that name along its row, or over none where there is one element."""
    inner, length = _inner(stage, 0), row_length(stage, 0)
    single = is_map(stage) and length == 1
    axis = () if single else (variable(name, length),)
    place = decoded(inner, index.constant(0) if single else axis[0])
    stage = map_expressions(stage, lambda e: build.substitute(e, place))
    return replace(stage, axes=axis) if is_map(stage) else replace(stage, reduce_axes=axis)


def _tried(schedule: Schedule, rewrite: Callable[[Schedule], Schedule]) -> Schedule:
    """A schedule with one more rewrite, unless that is refused."""
    try:
        return rewrite(schedule)
    except ScheduleError:
        return schedule


def _shape(schedule: Schedule, buffer: Buffer) -> tuple[int, ...]:
    """That of a private buffer by now."""
    return next(
        s.buffer.shape
        for s in walk(schedule.program.body)
        if isinstance(s, Allocate) and s.buffer.name == buffer.name
    )
