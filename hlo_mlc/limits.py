"""What this machine can do at most, measured with our own kernels and remembered."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from hlo_mlc.codegen.cpu.assemble import compile_ir
from hlo_mlc.codegen.cpu.printer import print_program
from hlo_mlc.expr.build import const, load, variable
from hlo_mlc.expr.core import Buffer, Var
from hlo_mlc.expr.dtypes import F32
from hlo_mlc.loops.prove import prove
from hlo_mlc.partition.kernel import Kernel, make_kernel
from hlo_mlc.runtime.busyness import BUSY, SHARE, observed, share_in, supersedes
from hlo_mlc.runtime.measure import aligned_empty, bind_kernel
from hlo_mlc.runtime.notes import read_note, write_note
from hlo_mlc.runtime.variants import load_object
from hlo_mlc.support.options import Options
from hlo_mlc.target.cpu import MIB, CpuTarget, host, model_name
from hlo_mlc.templates.program import schedule_program
from hlo_mlc.tensor.combine import named_combiner
from hlo_mlc.tensor.core import Assign, Nest, Stage

# A product of matrices of this size: three of 576 KiB, so that panels lie in L1 and L2.
_MATRIX = 384
# Copies move half of what the caches of the cores hold, a share of the L3 cache, which others use
# too, and a multiple of it.
_SHARE_OF_CACHE = 0.25
_MULTIPLE_OF_CACHE = 4
_LARGEST_BYTES = 256 * MIB
_SECONDS_EACH = 0.1
_FEWEST_RUNS = 5


@dataclass(frozen=True, slots=True)
class Level:
    """A level of the memory: a kernel that touches up to `capacity` bytes works from there, at
    `gb_s` read plus written on all cores."""

    capacity: int
    gb_s: float


@dataclass(frozen=True, slots=True)
class MachineLimits:
    """The most that kernels reach on all cores: f32 multiply-adds, and bytes read plus written from
    the caches, the smallest first, and from memory."""

    gflops: float
    caches: tuple[Level, ...]
    memory_gb_s: float

    def least_us(self, moved_bytes: int, flops: int) -> float:
        """The time below which no kernel can move these bytes and do these f32 operations."""
        bandwidth = next(
            (level.gb_s for level in self.caches if moved_bytes <= level.capacity), self.memory_gb_s
        )
        return max(moved_bytes / bandwidth, flops / self.gflops) / 1e3


def machine_limits(options: Options, refresh: bool = False) -> MachineLimits:
    """The limits of this machine: those in the cache folder, measured in a second if there are
    none, if they were measured while it was busy, or if `refresh` asks for it."""
    target = host()
    path = note_path(options.cache_dir, target)
    known = _from_note(path)
    earlier = None if known is None else others_share(path)
    if known is not None and earlier <= BUSY and not refresh:
        return known
    found, share = observed(lambda: measure_limits(target))
    if known is not None and not supersedes(share, earlier):
        return known
    write_note(path, {"cpu": model_name(), "cores": target.cores, SHARE: share, **asdict(found)})
    return found


def others_share(path: Path) -> float:
    """The share of the CPUs' time that other programs had when these limits were measured."""
    return share_in(read_note(path))


def note_path(cache_dir: Path, target: CpuTarget) -> Path:
    """Where the limits of this machine are remembered."""
    machine = f"{model_name()}, {target.cores} cores, L3 {target.l3_bytes}"
    return cache_dir / f"limits-{hashlib.sha256(machine.encode()).hexdigest()[:12]}.json"


def _from_note(path: Path) -> MachineLimits | None:
    note = read_note(path) or {}
    try:
        limits = MachineLimits(
            float(note["gflops"]),
            tuple(Level(int(level["capacity"]), float(level["gb_s"])) for level in note["caches"]),
            float(note["memory_gb_s"]),
        )
    except (KeyError, TypeError, ValueError):
        return None
    figures = (
        limits.gflops,
        limits.memory_gb_s,
        *(f for level in limits.caches for f in (level.capacity, level.gb_s)),
    )
    return limits if limits.caches and all(math.isfinite(f) and f > 0 for f in figures) else None


def measure_limits(target: CpuTarget) -> MachineLimits:
    """Runs four kernels on all cores, each for a tenth of a second, and takes their best times."""
    own = target.cores * target.l2_bytes // 2
    shared = max(int(target.l3_bytes * _SHARE_OF_CACHE), 2 * target.l2_bytes)
    memory_bytes = min(max(target.l3_bytes * _MULTIPLE_OF_CACHE, 16 * MIB), _LARGEST_BYTES)
    product_us = _best_us(_product(_MATRIX), target)
    caches = tuple(Level(size, _bandwidth(size, target)) for size in sorted({own, shared}))
    return MachineLimits(
        2 * _MATRIX**3 / product_us / 1e3, caches, _bandwidth(memory_bytes, target)
    )


def _bandwidth(moved_bytes: int, target: CpuTarget) -> float:
    """GB/s of a copy that touches so many bytes."""
    return moved_bytes / _best_us(_copy(moved_bytes // 2), target) / 1e3


def _product(size: int) -> Kernel:
    """result[m, n] = sum over k of lhs[m, k] * rhs[k, n]."""
    m, n, k = variable("m", size), variable("n", size), variable("k", size)
    lhs, rhs, result = (Buffer(name, F32, (size, size)) for name in ("lhs", "rhs", "result"))
    total = Var("total", F32)
    stage = Stage(
        "product",
        (m, n),
        (Assign(result, (m, n), total),),
        (k,),
        named_combiner("add", F32),
        (load(lhs, (m, k)) * load(rhs, (k, n)),),
        (const(0.0, F32),),
        (total,),
    )
    return make_kernel([Nest((stage,), 2)], (lhs, rhs), (result,))


def _copy(size_bytes: int) -> Kernel:
    """result[i] = -source[i]: a copy that does arithmetic, as kernels do."""
    count = size_bytes // F32.bytes
    i = variable("i", count)
    source, result = Buffer("source", F32, (count,)), Buffer("result", F32, (count,))
    stage = Stage("copy", (i,), (Assign(result, (i,), -load(source, (i,))),))
    return make_kernel([Nest((stage,), 1)], (source,), (result,))


def _best_us(kernel: Kernel, target: CpuTarget) -> float:
    loops, _ = prove(schedule_program(kernel.program, target)[0])
    object_code = compile_ir(print_program(loops, target), target)
    code = load_object(object_code, loops.name, loops.scratch_bytes)
    operands, results = (
        [aligned_empty(b.shape, b.dtype.numpy) for b in buffers]
        for buffers in (kernel.program.operands, kernel.program.results)
    )
    for array in operands:
        array.fill(1)
    return best_us(bind_kernel(code, operands, results, threads=target.cores), _SECONDS_EACH)


def best_us(run: Callable[[], None], seconds: float) -> float:
    """The shortest time of one run, out of those that fit into so many seconds (some at least)."""
    run()
    best, runs = math.inf, 0
    end = time.perf_counter() + seconds
    while runs < _FEWEST_RUNS or time.perf_counter() < end:
        start = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - start)
        runs += 1
    return best * 1e6
