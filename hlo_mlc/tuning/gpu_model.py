"""What a kernel takes on a GPU that is not here: a model of a multiprocessor.

Its loops tell what the warps of a block do; of accesses, the addresses of one warp are worked out,
so that sectors of memory and conflicts between banks are counted and not guessed. NVRTC says what
threads need, which decides how many blocks a multiprocessor has at a time. The model is for putting
schedules of one kernel in order: what it leaves out (what stays in the caches, in what order warps
run) is the same for many of them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from hlo_mlc.codegen.cuda.compile import Compiled
from hlo_mlc.codegen.cuda.plan import Launch
from hlo_mlc.expr import index
from hlo_mlc.expr.core import Apply, Buffer, Expr, Load, Var, walk
from hlo_mlc.expr.dtypes import INDEX
from hlo_mlc.expr.evaluate import evaluate
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
    folding,
)
from hlo_mlc.loops.core import walk as statements_in
from hlo_mlc.loops.rewrite import expressions
from hlo_mlc.partition.choose.gpu_cost import KERNEL_US
from hlo_mlc.runtime.measure import PairedTimes
from hlo_mlc.support.errors import CodegenError
from hlo_mlc.target.cuda import KIB, VECTOR_BYTES, WARP, CudaTarget
from hlo_mlc.tensor.classify import cost, cost_of_node
from hlo_mlc.tuning.bench import CandidateSource
from hlo_mlc.tuning.features import trips_of
from hlo_mlc.tuning.gpu_bench import Unpacker
from hlo_mlc.tuning.reach import UNKNOWN_TRIPS

# Of a multiprocessor.  Source: CUDA C++ Programming Guide 13.0, "Technical Specifications per
# Compute Capability", 8.0 and 9.0.
_REGISTERS, _THREADS, _BLOCKS, _RESERVED_BYTES = 64 * KIB, 2048, 32, KIB
_REGISTERS_AT_ONCE = 256  # for a warp
# Instructions of warps that begin in a cycle, bytes from the second cache (see gpu_cost.py), cycles
# of a microsecond.
_ISSUED, _CACHE_BYTES, _CYCLES_PER_US = 4, 64 * 2 / 3, 1700
# Cycles until a load from memory or from shared memory is there, and for a barrier; loads of so
# many rounds of a loop are on their way at a time, as nvcc unrolls it.
# Source: W. Luo et al., Benchmarking and Dissecting the Nvidia Hopper GPU Architecture, 2024.
_MEMORY_CYCLES, _SHARED_CYCLES, _BARRIER_CYCLES, _ROUNDS_AT_ONCE = 500, 30, 30, 4
_SECTOR_BYTES, _BANKS, _WORD_BYTES = 32, 32, 4
# A product of small matrices by a warp: its tensor core is busy for 8 cycles, and reads 6 vectors.
_PRODUCT_SLOTS, _PRODUCT_READS = 8, 6
_SHUFFLES = 2 * 5  # a value is passed on and combined, by halves of a warp
_PRIVATE = frozenset(("register", "thread", "stack"))


@dataclass(frozen=True, slots=True)
class BlockWork:
    """What one block of a function does, summed over its warps, and what all blocks touch."""

    instructions: float = 0.0
    sector_bytes: float = 0.0  # between it and the second cache
    shared_cycles: float = 0.0  # of shared memory, those of conflicts included
    waits: float = 0.0  # cycles that a warp waits for loads and for other warps
    memory_bytes: float = 0.0  # of the buffers that any block touches


def works_of(program: LoopProgram) -> dict[str, BlockWork]:
    """The work of each function that is printed of a kernel's loops, by its name."""
    loops = dict.fromkeys(
        stmt
        for stmt in statements_in(program.body)
        if isinstance(stmt, For) and stmt.kind is LoopKind.BLOCK
    )
    return {f"{program.name}_{number}": _work(loop) for number, loop in enumerate(loops)}


def predicted_us(
    works: Mapping[str, BlockWork],
    launches: Sequence[Launch],
    compiled: Compiled,
    target: CudaTarget,
) -> float:
    """The time of all launches, one after the other.

    Raises: CodegenError for a block that no multiprocessor has room for.
    """
    total = 0.0
    for launch in launches:
        work, usage = works[launch.function], compiled.usage[launch.function]
        resident = _resident(launch, usage.registers, usage.shared_bytes, target)
        spilled = usage.spilled_bytes * launch.threads
        busy = max(
            work.instructions / _ISSUED,
            work.shared_cycles,
            (work.sector_bytes + spilled) / _CACHE_BYTES,
        )
        blocks = math.ceil(launch.blocks / target.multiprocessors)
        cycles = max(blocks * busy, math.ceil(blocks / resident) * (work.waits + busy))
        total += KERNEL_US + max(
            cycles / _CYCLES_PER_US, work.memory_bytes / target.memory_bytes_per_us
        )
    return total


@dataclass(frozen=True, slots=True)
class ModelledSource(CandidateSource):
    """A candidate for a GPU that is not here, and what the blocks of each function do."""

    works: Mapping[str, BlockWork] = field(default_factory=dict)


class ModelBench:
    """A GPU that is not here. Nothing is run, and what candidates compute is not looked at: that
    their loops are proved to keep within bounds and free of races is all that is known."""

    def __init__(self, target: CudaTarget) -> None:
        self._target = target
        self._unpacker = Unpacker()

    def load(self, source: ModelledSource, code: bytes) -> Modelled:
        """What the model says of machine code.

        Raises: CodegenError where more registers spill than those of the first that was loaded, and
        for blocks that there is no room for.
        """
        return Modelled(
            predicted_us(source.works, source.launches, self._unpacker.compiled(code), self._target)
        )

    def time(self, a: Modelled, b: Modelled, seconds: float) -> PairedTimes:
        """What is predicted of both."""
        return PairedTimes.of([a.us], [b.us])


@dataclass(frozen=True, slots=True)
class Modelled:
    """A candidate of which the time is predicted."""

    us: float

    def run(self) -> None:
        """Does nothing: there is no such GPU."""

    def results(self) -> list[np.ndarray]:
        """Nothing was computed."""
        return []


def _resident(launch: Launch, registers: int, shared_bytes: int, target: CudaTarget) -> int:
    """How many blocks a multiprocessor has at a time."""
    warps = math.ceil(launch.threads / WARP)
    of_a_warp = -(-registers * WARP // _REGISTERS_AT_ONCE) * _REGISTERS_AT_ONCE
    shared = shared_bytes + launch.shared_bytes + _RESERVED_BYTES
    found = min(
        _BLOCKS,
        _THREADS // (warps * WARP),
        _REGISTERS // max(1, warps * of_a_warp),
        (target.shared_bytes + _RESERVED_BYTES) // shared,
    )
    if found < 1:
        raise CodegenError(
            f"A block of {launch.threads} threads with {registers} registers each "
            f"and {shared} bytes of shared memory has no room on {target.name}"
        )
    return found


def _work(loop: For) -> BlockWork:
    survey = _Survey()
    survey.over(loop.body, _Point())
    touched = {buffer: buffer.bytes for buffer in survey.touched}
    return BlockWork(**survey.found, memory_bytes=float(sum(touched.values())))


@dataclass(frozen=True, slots=True)
class _Point:
    """What stands around a statement in a block: how often it runs, the loops over threads, and
    that over the elements of a vector."""

    times: float = 1.0
    threads: tuple[For, ...] = ()
    vector: For | None = None

    @property
    def warps(self) -> int:
        return math.ceil(math.prod(trips_of(loop.extent) for loop in self.threads) / WARP)

    @property
    def lanes(self) -> dict[Var, np.ndarray]:
        """The variables of the loops over threads in the first warp: the innermost runs fastest."""
        rest = np.arange(WARP) % max(1, int(math.prod(trips_of(t.extent) for t in self.threads)))
        found = {}
        for loop in reversed(self.threads):
            extent = int(trips_of(loop.extent))
            found[loop.var], rest = rest % extent, rest // extent
        return found


class _Survey:
    """Counts what statements do."""

    def __init__(self) -> None:
        self.found: Counter[str] = Counter(
            {"instructions": 0.0, "sector_bytes": 0.0, "shared_cycles": 0.0, "waits": 0.0}
        )
        self.touched: dict[Buffer, None] = {}

    def over(self, statements: Sequence[Stmt], point: _Point) -> int:
        """Counts a list of statements, and gives how long a thread waits in it once: for what is
        loaded there side by side."""
        known: set[Expr] = set()  # what several of them compute is computed once
        return max((self._statement(stmt, point, known) for stmt in statements), default=0)

    def _statement(self, stmt: Stmt, point: _Point, known: set[Expr]) -> int:
        if isinstance(stmt, For):
            return self._loop(stmt, point)
        if isinstance(stmt, Store | Accumulate):
            return self._leaf(stmt, point, known)
        if isinstance(stmt, Allocate):
            return self.over(stmt.body, point)
        if isinstance(stmt, Call):
            return self.over(stmt.program.body, point)
        if isinstance(stmt, While):
            times = point.times * UNKNOWN_TRIPS
            self.found["waits"] += times * self.over(stmt.body, replace(point, times=times))
            return 0
        if isinstance(stmt, If):
            self.found["instructions"] += point.times * point.warps
            return max(self.over(body, point) for body in bodies(stmt))
        assert isinstance(stmt, Prefetch)
        return 0

    def _loop(self, loop: For, point: _Point) -> int:
        trips = trips_of(loop.extent)
        if loop.kind is LoopKind.THREAD:
            return self._threads(loop, point)
        if loop.kind is LoopKind.VECTORIZE:
            return self.over(loop.body, replace(point, vector=loop))
        if loop.kind is LoopKind.TENSOR:
            self.found["instructions"] += _PRODUCT_SLOTS * point.times * point.warps
            self.found["shared_cycles"] += _PRODUCT_READS * point.times * point.warps
            return _SHARED_CYCLES
        waits = self.over(loop.body, replace(point, times=point.times * trips))
        if loop.kind is LoopKind.UNROLL:
            return waits
        self.found["instructions"] += 2 * point.times * trips * point.warps
        rounds = trips if _has_threads(loop) else math.ceil(trips / _ROUNDS_AT_ONCE)
        self.found["waits"] += point.times * rounds * waits
        return 0

    def _threads(self, loop: For, point: _Point) -> int:
        inner = replace(point, threads=(*point.threads, loop))
        if folding(loop) is not None:
            self.found["instructions"] += _SHUFFLES * point.times * inner.warps
        waits = self.over(loop.body, inner)
        if not point.threads:  # all are done before what follows
            self.found["waits"] += point.times * (waits + _BARRIER_CYCLES)
            return 0
        return waits

    def _leaf(self, stmt: Store | Accumulate, point: _Point, known: set[Expr]) -> int:
        elements = 1 if point.vector is None else trips_of(point.vector.extent)
        runs, waits = point.times * point.warps, 0
        for node in walk(*expressions(stmt)):
            if node in known:
                continue
            known.add(node)
            if isinstance(node, Apply) and node.dtype is not INDEX:
                each = elements if point.vector is None or point.vector.var in node.free else 1
                self.found["instructions"] += runs * each * cost_of_node(node)
            elif isinstance(node, Load):
                waits = max(waits, self._access(node.source, node.indices, point))
        if isinstance(stmt, Accumulate):
            self.found["instructions"] += runs * elements * cost(*stmt.combiner.results)
        for buffer in stmt.buffers:
            again = 2 if isinstance(stmt, Accumulate) else 1  # it is read, too
            for _ in range(again):
                self._access(buffer, stmt.indices, point)
        return waits

    def _access(self, buffer: Buffer, indices: Sequence[Expr], point: _Point) -> int:
        """Counts an access of the warps, and gives how long a load of it takes."""
        if buffer.scope in _PRIVATE:
            return 0
        runs, width = point.times * point.warps, buffer.dtype.bytes
        starts = _addresses(buffer, indices, point)
        if point.vector is not None and any(point.vector.var in i.free for i in indices):
            elements = int(trips_of(point.vector.extent))
            if _is_contiguous(buffer, indices, point.vector.var):
                whole = elements * width
                width = min(whole, VECTOR_BYTES)
                runs *= math.ceil(whole / width)
            else:
                runs *= elements
        self.found["instructions"] += runs
        if buffer.scope == "shared":
            self.found["shared_cycles"] += runs * bank_cycles(starts, width)
            return _SHARED_CYCLES
        self.touched[buffer] = None
        self.found["sector_bytes"] += runs * _SECTOR_BYTES * sectors(starts, width)
        return _MEMORY_CYCLES


def _has_threads(loop: For) -> bool:
    return any(
        isinstance(stmt, For) and stmt.kind is LoopKind.THREAD for stmt in statements_in(loop.body)
    )


def _addresses(buffer: Buffer, indices: Sequence[Expr], point: _Point) -> np.ndarray:
    """The byte of the buffer at which each lane of the first warp begins, all other loops being at
    their first iteration; what depends on values lies anywhere."""
    lanes, total = point.lanes, np.zeros(WARP, np.int64)
    for i, stride in zip(indices, buffer.element_strides, strict=True):
        if any(isinstance(node, Load) for node in walk(i)):
            return np.arange(WARP, dtype=np.int64) * 33 * _SECTOR_BYTES
        values = {var: lanes.get(var, np.zeros(1, np.int64)) for var in i.free}
        total = total + np.asarray(evaluate(i, values)).astype(np.int64) * stride
    return np.broadcast_to(total * buffer.dtype.bytes, (WARP,))


def _is_contiguous(buffer: Buffer, indices: Sequence[Expr], var: Var) -> bool:
    """Whether neighbouring values of a variable are neighbouring elements."""
    step = 0
    for i, stride in zip(indices, buffer.element_strides, strict=True):
        for atom, factor in index.affine(i)[0].items():
            if atom is var:
                step += stride * factor
            elif var in atom.free:
                return False
    return step == 1


def sectors(starts: np.ndarray, width: int) -> int:
    """How many sectors of memory the lanes of a warp touch with so many bytes each."""
    first, last = starts // _SECTOR_BYTES, (starts + width - 1) // _SECTOR_BYTES
    return len(np.unique(np.concatenate((first, last))))


def bank_cycles(starts: np.ndarray, width: int) -> int:
    """In how many cycles shared memory answers the lanes of a warp: one for each part of the warp
    that asks for 128 bytes, more where different words of a bank are asked for.

    Source: CUDA C++ Programming Guide 13.0, "Shared Memory", compute capability 5.x and later.
    """
    words = max(1, width // _WORD_BYTES)
    lanes = WARP // words
    total = 0
    for part in starts.reshape(-1, lanes):
        asked = np.unique((part[:, None] // _WORD_BYTES + np.arange(words)).reshape(-1))
        total += int(np.bincount(asked % _BANKS).max())
    return total
