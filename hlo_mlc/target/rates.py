"""How fast a machine runs our code and XLA's: what the cost model counts with, as plain data."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

KIB, MIB = 1 << 10, 1 << 20

NEAR_BYTES = 768 * KIB
FAR_BYTES = 12 * MIB
DISTANT_BYTES = 72 * MIB
"""How much a pass over memory reads and writes for which a speed is known: it fits into the second
level of two cores' caches; into the third, as a rule; nowhere. A third of the last is the largest
result for which malloc hands out the same pages again, so that nobody waits for fresh ones."""


@dataclass(frozen=True, slots=True)
class Rates:
    """The numbers that decide which side is predicted to be faster; all positive.

    The defaults stand for machines of which nothing is known: x86-64 servers, of which some cores
    may be used.  Measured ones come from `interop/calibration.py`.
    """

    # Our kernels on one core, per microsecond: simple operations and multiply-adds, of one vector.
    vector_operations: float = 3_500.0
    vector_products: float = 3_500.0
    # Bytes that a pass over memory reads and writes per microsecond with all cores, by its size.
    near_bytes: float = 120_000.0
    far_bytes: float = 90_000.0
    distant_bytes: float = 30_000.0
    # A call of ours in an XLA program, a thunk of XLA's, and one in a loop with a small body.
    call_us: float = 0.17
    thunk_us: float = 0.1
    loop_thunk_us: float = 0.04
    # What a thread does for one element after the other, by us or by XLA, takes so many times as
    # long as where that was measured (xla_figures.json, expr/ops.py).
    one_by_one: float = 1.0
    # JAX calling any program; XLA handing a larger one to another thread, and how long that mostly
    # sleeps on; waking the other threads for the first parallel loop, which both sides do in their
    # own way.
    dispatch_us: float = 5.0
    start_us: float = 5.0
    sleeping_us: float = 5.0
    fork_us: float = 5.0
    xla_fork_us: float = 15.0
    # XLA's time / ours for arithmetic on vectors, exponentials, passes over memory, sums of rows,
    # and products of matrices with up to 2^23 multiply-adds, up to 2^26, and more; the last in bf16
    # too, for which there may be instructions that we do not use.
    xla_arithmetic: float = 1.1
    xla_exp: float = 1.925
    xla_near: float = 1.2
    xla_far: float = 1.2
    xla_distant: float = 0.95
    xla_reduction: float = 1.3
    xla_small_product: float = 2.0
    xla_medium_product: float = 1.2
    xla_large_product: float = 1.02
    xla_narrow_product: float = 1.1

    @staticmethod
    def typical(cpu: str) -> Rates:
        """Those of a CPU that nobody has measured."""
        return _OF_FAMILIES.get(cpu, Rates())

    @property
    def are_sane(self) -> bool:
        """Whether every number is positive and finite."""
        return all(math.isfinite(v) and v > 0 for v in dataclasses.astuple(self))

    def bytes_per_us(self, moved_bytes: float) -> float:
        """How fast a pass over memory of this size is."""
        return _between(moved_bytes, self.near_bytes, self.far_bytes, self.distant_bytes)

    def pass_us(self, moved_bytes: float, held_bytes: float = 0) -> float:
        """How long it takes to read and write so much, of arrays that are larger than that: these
        decide where it comes from."""
        return moved_bytes / self.bytes_per_us(max(moved_bytes, held_bytes))

    def xla_pass(self, moved_bytes: float) -> float:
        """XLA's time / ours for a pass over memory of this size."""
        return _between(moved_bytes, self.xla_near, self.xla_far, self.xla_distant)


# What `hlo-mlc doctor` measured, by LLVM's names of CPUs, on two cores with JAX 0.10.2; what
# threads take to wake depends on more than these, and stays as it is.  What it had no time for, or
# others disturbed, is what rows of the bench show: products those of large_matmul, operations of
# exp, tanh, pow and cbrt, passes of exp and rmsnorm, calls of small_carry, and what goes one by one
# of pow, cbrt, cumsum and sort.
_OF_FAMILIES = {
    "znver3": Rates(  # two threads of one core of an AMD EPYC, and others busy, 2026-11-30
        vector_operations=3_600.0,
        vector_products=3_290.0,
        near_bytes=60_000.0,
        far_bytes=60_000.0,
        distant_bytes=40_000.0,
        call_us=0.25,
        thunk_us=0.2,
        one_by_one=2.2,
        dispatch_us=15.0,
        xla_arithmetic=1.2,
        xla_exp=1.45,
        xla_medium_product=1.3,
        xla_large_product=1.15,
    ),
    "znver4": Rates(  # of an AMD EPYC, 2026-11-30
        vector_operations=4_700.0,
        vector_products=3_330.0,
        near_bytes=70_000.0,
        far_bytes=100_000.0,
        distant_bytes=38_800.0,
        call_us=0.123,
        loop_thunk_us=0.028,
        dispatch_us=5.7,
        xla_arithmetic=1.5,
        xla_exp=2.02,
        xla_near=1.39,
        xla_far=1.39,
        xla_distant=0.98,
        xla_reduction=1.44,
        xla_small_product=1.76,
        xla_medium_product=1.32,
        xla_large_product=1.1,
    ),
    "znver5": Rates(  # of an AMD EPYC, 2026-11-29
        vector_operations=10_000.0,
        vector_products=8_000.0,
        near_bytes=167_000.0,
        far_bytes=195_000.0,
        distant_bytes=52_000.0,
        call_us=0.1,
        loop_thunk_us=0.019,
        one_by_one=0.73,
        dispatch_us=4.1,
        xla_arithmetic=1.78,
        xla_exp=2.45,
        xla_near=1.39,
        xla_far=1.39,
        xla_distant=0.98,
        xla_reduction=1.44,
        xla_small_product=1.98,
        xla_medium_product=1.34,
        xla_large_product=1.02,
        xla_narrow_product=1.13,
    ),
    "emeraldrapids": Rates(  # of an Intel Xeon, 2026-11-29
        vector_operations=3_500.0,
        vector_products=4_900.0,
        near_bytes=62_000.0,
        far_bytes=49_000.0,
        distant_bytes=31_000.0,
        call_us=0.155,
        loop_thunk_us=0.024,
        one_by_one=1.25,
        dispatch_us=7.5,
        xla_arithmetic=1.52,
        xla_exp=1.78,
        xla_near=1.39,
        xla_far=1.39,
        xla_reduction=1.44,
        xla_small_product=1.9,
        xla_medium_product=1.33,
        xla_narrow_product=1.5,
    ),
}


def _between(moved_bytes: float, near: float, far: float, distant: float) -> float:
    """What holds for a size, from what holds for three: straight lines on logarithmic scales.

    Caches that are shared with others have no sharp end.
    """
    if moved_bytes <= FAR_BYTES:
        small, large, low, high = NEAR_BYTES, FAR_BYTES, near, far
    else:
        small, large, low, high = FAR_BYTES, DISTANT_BYTES, far, distant
    share = math.log(max(moved_bytes, 1) / small) / math.log(large / small)
    return low * (high / low) ** min(max(share, 0.0), 1.0)
