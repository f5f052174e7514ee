"""What a kernel's loops do on a CPU, in numbers: what the cost model knows of a schedule.

They are read off the scheduled loops, not off the parameters of a template, so that they mean the
same for all templates and kernels, and for schedules that nobody wrote a template for.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Sequence, Set
from dataclasses import astuple, dataclass, field, fields, replace

import numpy as np

from hlo_mlc.expr import index
from hlo_mlc.expr.core import Apply, Buffer, Expr, Load, Var, walk
from hlo_mlc.expr.dtypes import INDEX, DType
from hlo_mlc.expr.ops import OPS, Accuracy
from hlo_mlc.loops.core import (
    Accumulate,
    Allocate,
    Call,
    For,
    If,
    LoopKind,
    LoopProgram,
    Prefetch,
    Stmt,
    Store,
    While,
    bodies,
)
from hlo_mlc.loops.rewrite import expressions
from hlo_mlc.loops.text import program_text
from hlo_mlc.target.cpu import CpuTarget
from hlo_mlc.tensor.classify import cost, cost_of_node
from hlo_mlc.tuning.reach import UNKNOWN_TRIPS, Reach, Region, held

_UNKNOWN_SHARE = 0.5  # of the runs in which a condition on values holds
_DIVIDER = ("div", "rem", "sqrt", "rsqrt")


@dataclass(frozen=True, slots=True)
class Features:
    """Numbers of one run of a kernel, none below 0.

    Instructions are those of whole vectors: what a loop does not change counts once for the loop,
    what parts that are written out share counts once for all of them, and those of tasks are
    divided by how many of them run at a time.
    """

    simple: float = 0.0  # cheap arithmetic
    functions: float = 0.0  # operations of exp, sin and what else is a polynomial
    divided: float = 0.0  # divisions and roots, during which the divider takes nothing else
    index_divisions: float = 0.0  # quotients and remainders of indices
    contiguous_loads: float = 0.0  # of a vector of neighbours
    uniform_loads: float = 0.0  # of one element for all lanes, or outside of vectors
    apart_loads: float = 0.0  # elements that lie apart from those of the next lanes
    contiguous_stores: float = 0.0
    uniform_stores: float = 0.0
    apart_stores: float = 0.0
    streaming_stores: float = 0.0  # of the stores, those past the caches
    prefetches: float = 0.0
    guarded: float = 0.0  # loads and stores under a condition
    branches: float = 0.0
    chain: float = 0.0  # operations that wait for the one before them
    folded_lanes: float = 0.0  # vectors whose lanes are combined with each other
    entered: float = 0.0  # how often a loop begins
    iterations: float = 0.0  # of loops that are neither written out nor lanes
    l1_bytes: float = 0.0  # brought into a core's first cache
    l2_bytes: float = 0.0  # into its second
    l3_bytes: float = 0.0  # into the one that all cores share
    footprint: float = 0.0  # bytes touched in all
    scratch_bytes: float = 0.0
    forks: float = 0.0  # how often work is shared out
    tasks: float = 0.0
    parallel: float = 0.0  # how many times as fast tasks make the instructions, on average
    registers: float = 0.0  # vector registers that hold accumulators at a time
    spilled: float = 0.0  # of these, more than the target has
    written: float = 0.0  # statements and operations, those of loops that are written out as often
    idle_lanes: float = 0.0  # share of the vectors' bytes that no lane is in
    unvectorized: float = 0.0  # share of the operations outside of vectors
    cycles: float = 0.0  # of all this on a machine that overlaps all it can

    @property
    def vector(self) -> np.ndarray:
        """The logarithms: differences tell how many times as much one schedule does of a thing."""
        return np.log1p(np.array(astuple(self), np.float32))


NAMES = tuple(f.name for f in fields(Features))
"""What the elements of a vector are, in order."""

VOCABULARY = hashlib.sha256(" ".join(NAMES).encode()).hexdigest()[:8]
"""Equal where vectors mean the same."""


@dataclass(frozen=True, slots=True)
class Description:
    """What is seen of a candidate before it is built: equal digests are equal loops."""

    features: Features
    digest: str


def description_of(program: LoopProgram, target: CpuTarget) -> Description:
    """The description of a kernel's loops."""
    digest = hashlib.sha256(program_text(program).encode()).hexdigest()[:24]
    return Description(features_of(program, target), digest)


def features_of(program: LoopProgram, target: CpuTarget) -> Features:
    """The features of a kernel's loops."""
    survey = _Survey(target)
    whole = survey.over(program.body, _Point())
    found, work = survey.found, max(survey.work, 1.0)
    for name, capacity, shared in (
        ("l1_bytes", target.l1_bytes, False),
        ("l2_bytes", target.l2_bytes, False),
        ("l3_bytes", target.l3_bytes, True),
    ):
        found[name] = sum(region.traffic(capacity, shared) for region in whole)
    found["footprint"] = held([reach for region in whole for reach in region.reaches])
    if found["footprint"] <= target.l3_bytes:
        found["l3_bytes"] = 0.0  # there since it was written
    found["scratch_bytes"] = program.scratch_bytes
    found["spilled"] = max(0.0, found["registers"] - target.registers)
    found["parallel"] = work / max(survey.critical, 1.0)
    found["idle_lanes"] = survey.idle / work
    found["unvectorized"] = survey.scalar / work
    found["cycles"] = _cycles(found)
    return Features(**found)


def _cycles(found: Counter[str]) -> float:
    """A roofline: what takes longest of arithmetic, accesses and waiting, and what comes on top.

    Two vector instructions and two loads or one store begin in a cycle, results wait for 4; 32, 16
    and 6 bytes of a cycle come from the second cache, the third and memory; sharing out takes about
    1 us.  Source: uops.info and Agner Fog's tables for Zen 4 and Golden Cove, rounded.
    """
    loads = found["contiguous_loads"] + found["uniform_loads"] + found["apart_loads"]
    stores = found["contiguous_stores"] + found["uniform_stores"] + found["apart_stores"]
    arithmetic = (found["simple"] + found["functions"] + 8 * found["divided"]) / 2
    return (
        max(arithmetic, loads / 2 + stores, 4 * found["chain"])
        + 8 * found["index_divisions"]
        + 4 * found["folded_lanes"]
        + found["branches"]
        + found["iterations"]
        + 4 * found["entered"]
        + found["l1_bytes"] / 32
        + found["l2_bytes"] / 16
        + found["l3_bytes"] / 6
        + 3000 * found["forks"]
    )


@dataclass(frozen=True, slots=True)
class _Level:
    """A loop around a statement."""

    var: Var
    trips: float
    kind: LoopKind


@dataclass(frozen=True, slots=True)
class _Point:
    """What stands around a statement: loops, the share of their iterations in which conditions let
    it happen, and by what tasks divide its time."""

    levels: tuple[_Level, ...] = ()
    share: float = 1.0
    speed: float = 1.0
    lanes: _Level | None = None
    registers: float = 0.0

    @property
    def times(self) -> float:
        """How often the statement is executed, all of its lanes being once."""
        return self.share * math.prod(level.trips for level in self.levels)

    def times_of(self, free: Set[Var]) -> float:
        """How often what depends on these variables alone is evaluated."""
        total = inner = written_out = 1.0
        for level in self.levels:
            if level.kind is LoopKind.UNROLL:
                written_out *= level.trips if level.var in free else 1.0
            else:
                inner *= level.trips
                if level.var in free:
                    total, inner = total * inner, 1.0
        return self.share * total * written_out

    def within(self, loop: For, target: CpuTarget) -> _Point:
        """The same inside of a loop."""
        level = _Level(loop.var, trips_of(loop.extent), loop.kind)
        if loop.kind is LoopKind.VECTORIZE:
            return replace(self, lanes=level)
        speed = self.speed
        if loop.kind is LoopKind.PARALLEL and speed == 1:
            speed = level.trips / math.ceil(level.trips / target.cores)
        return replace(self, levels=(*self.levels, level), speed=max(1.0, speed))


def trips_of(extent: Expr) -> float:
    """How often a loop is gone through at most, as far as that is known."""
    _, high = index.bounds(extent)
    return max(0.0, high) if math.isfinite(high) else UNKNOWN_TRIPS


def _share(condition: Expr) -> float:
    """In how many of the iterations a condition holds, if values are evenly spread."""
    if (
        isinstance(condition, Apply)
        and condition.op in ("lt", "le", "gt", "ge")
        and condition.args[0].dtype is INDEX
    ):
        low, high = index.bounds(index.subtract(*condition.args))
        if math.isfinite(high - low):
            below = -low if condition.op in ("lt", "ge") else 1 - low
            below = min(1.0, max(0.0, below / (high - low + 1)))
            return below if condition.op in ("lt", "le") else 1 - below
    return _UNKNOWN_SHARE


@dataclass(slots=True)
class _Survey:
    target: CpuTarget
    found: Counter[str] = field(default_factory=Counter)
    work: float = 0.0  # operations
    critical: float = 0.0  # those of them that are not done at the same time by other tasks
    scalar: float = 0.0  # those outside of vectors
    idle: float = 0.0  # in operations, what vectors have no lanes for

    def over(self, statements: Sequence[Stmt], point: _Point) -> list[Region]:
        """Counts what statements do."""
        return [self._statement(stmt, point) for stmt in statements]

    def _statement(self, stmt: Stmt, point: _Point) -> Region:
        if isinstance(stmt, For):
            return self._loop(stmt, point)
        if isinstance(stmt, If):
            self.found["branches"] += point.times / point.speed
            share = _share(stmt.condition)
            parts = [
                region
                for body, part in zip(bodies(stmt), (share, 1 - share), strict=True)
                for region in self.over(body, replace(point, share=point.share * part))
            ]
            return Region.around(parts, point.times, point.speed)
        if isinstance(stmt, While):
            counter = _Level(Var("trip", INDEX, None), UNKNOWN_TRIPS, LoopKind.SERIAL)
            inner = replace(point, levels=(*point.levels, counter))
            return Region.around(self.over(stmt.body, inner), point.times, point.speed)
        if isinstance(stmt, Allocate):
            return Region.around(
                self.over(stmt.body, self._allocated(stmt.buffer, point)), point.times, point.speed
            )
        if isinstance(stmt, Call):
            return Region.around(self.over(stmt.program.body, point), point.times, point.speed)
        return self._leaf(stmt, point)

    def _loop(self, loop: For, point: _Point) -> Region:
        inner = point.within(loop, self.target)
        if loop.kind is LoopKind.PARALLEL:
            self.found["forks"] += point.times
            self.found["tasks"] += inner.times
        elif loop.kind not in (LoopKind.UNROLL, LoopKind.VECTORIZE):
            self.found["entered"] += point.times / point.speed
            self.found["iterations"] += inner.times / point.speed
        parts = self.over(loop.body, inner)
        trips = trips_of(loop.extent)
        for part in parts:
            for reach in part.reaches:
                reach.grow(loop.var, trips)
        return Region.around(parts, point.times, point.speed)

    def _allocated(self, buffer: Buffer, point: _Point) -> _Point:
        if buffer.scope != "register":
            return point
        registers = point.registers + math.ceil(buffer.bytes / self.target.vector_bytes)
        self.found["registers"] = max(self.found["registers"], registers)
        return replace(point, registers=registers)

    def _leaf(self, stmt: Store | Accumulate | Prefetch, point: _Point) -> Region:
        found, roots = self.found, expressions(stmt)
        written_out = math.prod(
            level.trips for level in point.levels if level.kind is LoopKind.UNROLL
        )
        found["written"] += written_out
        if isinstance(stmt, Prefetch):
            found["prefetches"] += point.times / point.speed
            return Region(point.times, point.speed, 0.0, (), ())
        reaches = []
        for node in walk(*roots):
            if isinstance(node, Apply):
                found["written"] += written_out * (node.dtype is not INDEX)
                self._operation(node, point)
            elif isinstance(node, Load) and node.source.scope != "register":
                reaches.append(reach := Reach.at(node.source, node.indices))
                self._access(reach, "loads", node.guard, point.times_of(node.free), point)
        if isinstance(stmt, Accumulate):
            self._combined(stmt, point)
        for buffer in stmt.buffers:
            if buffer.scope != "register":
                reaches.append(reach := Reach.at(buffer, stmt.indices))
                self._access(reach, "stores", stmt.guard, point.times, point)
                if isinstance(stmt, Store) and stmt.streaming:
                    found["streaming_stores"] += point.times / point.speed
        return Region(point.times, point.speed, held(reaches), (), reaches)

    def _operation(self, node: Apply, point: _Point) -> None:
        times = point.times_of(node.free)
        if node.dtype is INDEX:
            if node.op in ("floordiv", "floormod"):
                self.found["index_divisions"] += times / point.speed
            return
        times *= self._vectors(node.dtype, node.free, point)
        kind = (
            "divided"
            if node.op in _DIVIDER and node.dtype.is_float
            else "functions"
            if OPS[node.op].accuracy is Accuracy.APPROXIMATE
            else "simple"
        )
        self._count(
            kind,
            times,
            1 if kind == "divided" else cost_of_node(node),
            node.dtype,
            node.free,
            point,
        )

    def _combined(self, stmt: Accumulate, point: _Point) -> None:
        """The combining of an update, and how long it waits for the update before."""
        operations = max(1, cost(*stmt.combiner.results))
        place = frozenset().union(*(i.free for i in stmt.indices))
        dtype = stmt.terms[0].dtype
        lanes = frozenset((point.lanes.var,)) if point.lanes is not None else frozenset[Var]()
        self._count(
            "simple",
            point.times * self._vectors(dtype, lanes, point),
            operations,
            dtype,
            lanes,
            point,
        )
        if lanes and not lanes & place:
            self.found["folded_lanes"] += point.times / point.speed
        if (
            not point.levels
            or point.levels[-1].var not in place
            or any(level.var not in place for level in point.levels)
        ):
            steps = point.share * math.prod(
                level.trips
                for level in point.levels
                if level.kind is not LoopKind.UNROLL or level.var not in place
            )
            self.found["chain"] += steps * operations / point.speed

    def _count(
        self,
        kind: str,
        times: float,
        operations: float,
        dtype: DType,
        free: Set[Var],
        point: _Point,
    ) -> None:
        self.found[kind] += times * operations / point.speed
        self.work += times * operations
        self.critical += times * operations / point.speed
        if point.lanes is None or point.lanes.var not in free:
            self.scalar += times * operations
        else:
            used = point.lanes.trips * _width(dtype)
            held = self._vectors(dtype, free, point) * self.target.vector_bytes
            self.idle += times * operations * (1 - used / held)

    def _access(
        self, reach: Reach, kind: str, guard: Expr | None, times: float, point: _Point
    ) -> None:
        step = 0 if point.lanes is None else reach.step(point.lanes.var)
        if step == 0:
            name = f"uniform_{kind}"
        elif step == 1:
            name = f"contiguous_{kind}"
            times *= math.ceil(
                point.lanes.trips * reach.buffer.dtype.bytes / self.target.vector_bytes
            )
        else:
            name = f"apart_{kind}"
            times *= point.lanes.trips
        if point.lanes is not None:
            reach.grow(point.lanes.var, point.lanes.trips)
        self.found[name] += times / point.speed
        if guard is not None:
            self.found["guarded"] += times / point.speed

    def _vectors(self, dtype: DType, free: Set[Var], point: _Point) -> int:
        """How many registers the lanes of a value fill."""
        if point.lanes is None or point.lanes.var not in free:
            return 1
        return math.ceil(point.lanes.trips * _width(dtype) / self.target.vector_bytes)


def _width(dtype: DType) -> int:
    """Bytes of a lane: narrow floats are computed in 32 bits."""
    return 4 if dtype.is_narrow_float else dtype.bytes
