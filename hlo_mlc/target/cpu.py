"""CPU targets: this machine, and the named levels that code is generated for ahead of time."""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import re
from dataclasses import dataclass, field
from pathlib import Path

import llvmlite.binding as llvm

from hlo_mlc.support.errors import UnknownTargetError
from hlo_mlc.target.rates import Rates

HOST = "host"
"""What this machine is called where levels are."""

KIB = 1024
MIB = 1024 * KIB
CACHE_LINE_BYTES = 64  # of all processors that we know
PAIR = 2  # products of i16 that one instruction adds to an i32 (`CpuTarget.has_pairs`)
WIDEST_STEP = 4
"""Elements between lanes of a vector up to which shuffles bring them together: those further apart
are accessed one by one, since as many vectors would be loaded as lanes are apart."""
MOST_PIECES = 4
"""Vectors that the lanes of one are picked from at most, if their numbers say where each one is."""


@dataclass(frozen=True, slots=True)
class CpuTarget:
    """A CPU as code generation sees it; `features` are LLVM's, `registers` counts vector registers.

    `has_masked_access`: contiguous loads and stores under a mask, of 4- and 8-byte elements;
    `has_masked_bytes`: of 1- and 2-byte elements too.  Cache sizes are those of one core, but
    `l3_bytes`, which all `cores` share.  `rates` say how long things take, not what the machine
    is: targets that differ in nothing else are equal.  `deterministic` is asked for, too: schedules
    for such a target are those of analysis, whose sums have an order that `cores` do not change.
    """

    name: str
    triple: str
    cpu: str
    features: str
    vector_bytes: int
    registers: int
    has_fma: bool
    has_f16c: bool
    has_rounding: bool  # floor, ceil, trunc and round-to-even as instructions
    has_masked_access: bool
    has_masked_bytes: bool
    l1_bytes: int
    l2_bytes: int
    l3_bytes: int
    cores: int
    deterministic: bool = False
    rates: Rates = field(default=Rates(), repr=False, compare=False)

    @property
    def is_x86(self) -> bool:
        return self.triple.startswith("x86_64")

    @property
    def blends_before_stores(self) -> bool:
        """Whether a vector some lanes of which keep what is there is loaded, blended and stored
        whole: AVX2's masked stores take AMD's processors 18 to 42 operations (Source: uops.info),
        and what is loaded from there next waits for the cache on all."""
        return self.has_masked_access and not self.has_masked_bytes

    @property
    def key(self) -> str:
        """What it is called in records: equal for targets on which schedules mean the same."""
        identity = (
            self.triple,
            self.cpu,
            self.features,
            self.cores,
            self.l1_bytes,
            self.l2_bytes,
            self.l3_bytes,
            *(["deterministic"] * self.deterministic),
        )
        digest = hashlib.sha256(repr(identity).encode()).hexdigest()
        return f"{re.sub(r'[^A-Za-z0-9_.+-]', '_', self.cpu)}-{self.cores}-{digest[:12]}"

    @property
    def accumulators(self) -> int:
        """Sums that registers hold: factors and an address or two take the rest."""
        return self.registers * 3 // 4

    @property
    def has_ldexp(self) -> bool:
        """Whether y * 2**n is one instruction (AVX-512's VSCALEF)."""
        return self.is_x86 and self.vector_bytes == 64

    @property
    def has_pick(self) -> bool:
        """Whether a lane of 16 f32 chosen for each lane is one instruction (AVX-512's VPERMPS)."""
        return self.is_x86 and self.vector_bytes == 64

    @property
    def has_pairs(self) -> bool:
        """Whether the products of a pair of i16 for each i32 are added up at once (PMADDWD, with
        the sum as well VPDPWSSD)."""
        return self.is_x86

    @property
    def has_fast_division(self) -> bool:
        """Whether a division of vectors takes less than the seven multiply-adds of a reciprocal."""
        return self.cpu.startswith(_FAST_DIVIDERS) or (
            self.is_x86 and self.vector_bytes < 64 and self.cpu not in _SLOW_DIVIDERS
        )

    @property
    def shifts_beside(self) -> bool:
        """Whether shifts of vectors run beside the multiply-adds of a product."""
        return self.cpu.startswith(_SHIFT_BESIDE) and self.vector_bytes == 64

    @property
    def has_fast_gather(self) -> bool:
        """Whether one gather takes less time than a load for each lane, at places that are known
        to be a constant apart."""
        return self.cpu.startswith(_FAST_GATHERERS)

    @property
    def has_fast_lookup(self) -> bool:
        """Whether one gather takes less time than a load for each lane, at places that are not
        known."""
        return self.cpu.startswith(_FAST_LOOKUPS)

    def lanes(self, element_bytes: int) -> int:
        """Elements of this size in one vector register."""
        return self.vector_bytes // element_bytes


# Processors by LLVM's names.  Zen 4 begins a division of 16 f32 every 6 cycles, of 8 f64 every 9,
# Golden Cove every 16.  Half as wide ones take half as long there and on all since Skylake, 5 and 8
# cycles beside what else there is to do; twice and three times that on two cores before.
# Source: measured on Zen 4 and 5; uops.info.
_FAST_DIVIDERS = "znver"
_SLOW_DIVIDERS = ("haswell", "broadwell")
# On Golden Cove both pipes for 512 bits multiply, and one of them shifts; on Zen 4 a bf16 factor of
# a product that was widened for every use ran 3 to 7 % faster than one widened beforehand.  With 16
# registers there are as many shifts and broadcasts to a step as multiply-adds, and one pipe of two
# that shift multiplies as well: widened beforehand, products took 0.7 of the time on Zen 3.
# Source: measured on Zen 3 and 4; uops.info.
_SHIFT_BESIDE = "znver"
# AMD advises against gathers of what is known to be where: on Zen 4 single loads take 0.4 of a
# gather's time, single stores 0.65 of a scatter's.  They are faster on Redwood Cove and Crestmont,
# too, but slower on Skylake's cores with AVX-512.  Levels are for all of these.
# Source: measured on Zen 4; AMD's Software Optimization Guide for it (57647), 2.11.2; and
# ARM-software/astc-encoder#511.
_FAST_GATHERERS = ("skylake-avx512", "cascadelake", "cooperlake")
# Those of Intel's with AVX-512 that no microcode has to keep from leaking what they gather.
# Source: measured on Emerald Rapids; Intel's list of processors that Gather Data Sampling affects.
_FAST_LOOKUPS = ("sapphirerapids", "emeraldrapids", "graniterapids", "diamondrapids")

_X86_TRIPLE = "x86_64-unknown-linux-gnu"
_AARCH64_TRIPLE = "aarch64-unknown-linux-gnu"


def _x86(
    name: str,
    triple: str,
    cpu: str,
    features: str,
    has: frozenset[str],
    caches: tuple[int, int, int],
    cores: int,
) -> CpuTarget:
    avx512 = {"avx512f", "avx512bw", "avx512dq", "avx512vl"} <= has
    avx2 = "avx2" in has
    return CpuTarget(
        name,
        triple,
        cpu,
        features,
        vector_bytes=64 if avx512 else 32 if avx2 else 16,
        registers=32 if avx512 else 16,
        has_fma="fma" in has,
        has_f16c="f16c" in has,
        has_rounding="sse4.1" in has,
        has_masked_access=avx2,
        has_masked_bytes=avx512,
        l1_bytes=caches[0],
        l2_bytes=caches[1],
        l3_bytes=caches[2],
        cores=cores,
    )


def _aarch64(
    name: str, triple: str, cpu: str, features: str, caches: tuple[int, int, int], cores: int
) -> CpuTarget:
    return CpuTarget(
        name,
        triple,
        cpu,
        features,
        vector_bytes=16,
        registers=32,
        has_fma=True,
        has_f16c=True,
        has_rounding=True,
        has_masked_access=False,
        has_masked_bytes=False,
        l1_bytes=caches[0],
        l2_bytes=caches[1],
        l3_bytes=caches[2],
        cores=cores,
    )


# Sizes that the machines of a level have at least, nearly all of them: schedules for machines
# that we have not seen should not overrun a cache.
_SMALL_CACHES = (32 * KIB, 256 * KIB, 8 * MIB)
_LARGE_CACHES = (32 * KIB, 1 * MIB, 16 * MIB)
_LEVEL_CORES = 4

# Source: x86-64 psABI, "Micro-Architecture Levels".
_V2 = frozenset({"sse4.1"})
_V3 = _V2 | {"avx2", "fma", "f16c"}
_V4 = _V3 | {"avx512f", "avx512bw", "avx512dq", "avx512vl"}

_LEVELS = {
    target.name: target
    for target in (
        _x86("x86-64", _X86_TRIPLE, "x86-64", "", frozenset(), _SMALL_CACHES, _LEVEL_CORES),
        _x86("x86-64-v2", _X86_TRIPLE, "x86-64-v2", "", _V2, _SMALL_CACHES, _LEVEL_CORES),
        _x86("x86-64-v3", _X86_TRIPLE, "x86-64-v3", "", _V3, _SMALL_CACHES, _LEVEL_CORES),
        _x86("x86-64-v4", _X86_TRIPLE, "x86-64-v4", "", _V4, _LARGE_CACHES, _LEVEL_CORES),
        _aarch64("aarch64", _AARCH64_TRIPLE, "generic", "", _LARGE_CACHES, _LEVEL_CORES),
    )
}


def names() -> tuple[str, ...]:
    """The names that `named` knows."""
    return (HOST, *_LEVELS)


def named(name: str) -> CpuTarget:
    """The CPU called `name`: "host" or a level such as "x86-64-v3".

    Raises: UnknownTargetError for any other name.
    """
    if name == HOST:
        return host()
    if name not in _LEVELS:
        raise UnknownTargetError(
            f"There is no CPU target {name!r}; expected one of {', '.join(names())}"
        )
    return _LEVELS[name]


@functools.cache
def host() -> CpuTarget:
    """The machine this process runs on, with the cores that it may use.

    Raises: UnknownTargetError on a processor that is neither x86-64 nor aarch64.
    """
    triple = llvm.get_process_triple()
    cpu = llvm.get_host_cpu_name()
    features = llvm.get_host_cpu_features()
    present = frozenset(name for name, on in features.items() if on)
    caches, cores = read_caches(), len(os.sched_getaffinity(0))
    architecture = triple.partition("-")[0]
    if architecture == "x86_64":
        return _x86(HOST, triple, cpu, features.flatten(), present, caches, cores)
    if architecture in ("aarch64", "arm64"):
        return _aarch64(HOST, triple, cpu, features.flatten(), caches, cores)
    raise UnknownTargetError(
        f"This machine is a {architecture}; code can be generated for x86-64 and aarch64"
    )


def model_name() -> str:
    """The name that the processor gives itself."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() in ("model name", "CPU implementer", "Model"):
                return value.strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def read_caches(folder: Path = Path("/sys/devices/system/cpu/cpu0/cache")) -> tuple[int, int, int]:
    """Sizes of the data caches of levels 1 to 3 in bytes; containers may hide them."""
    sizes = dict(zip((1, 2, 3), _SMALL_CACHES, strict=True))
    for cache in sorted(folder.glob("index*")):
        try:
            level = int((cache / "level").read_text())
            kind = (cache / "type").read_text().strip()
            size = (cache / "size").read_text().strip()
        except (OSError, ValueError):
            continue
        if kind != "Instruction" and level in sizes and size[:-1].isdecimal():
            sizes[level] = int(size[:-1]) * {"K": KIB, "M": MIB}.get(size[-1], 1)
    return sizes[1], sizes[2], sizes[3]
