"""How templates for GPUs lay out threads and elements.

A nest becomes loops over blocks; where one block runs a whole loop, which is a machine of its own
(`CudaTarget.one_block`), the same loops are serial, and barriers stand between them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from hlo_mlc.expr import index
from hlo_mlc.expr.build import apply
from hlo_mlc.expr.core import Expr, Load, Var
from hlo_mlc.schedule.core import Schedule
from hlo_mlc.target.cuda import VECTOR_BYTES, CudaTarget
from hlo_mlc.templates.base import Scheduled, open_stage
from hlo_mlc.tensor.access import Pair
from hlo_mlc.tensor.coalesce import accesses
from hlo_mlc.tensor.combine import merging
from hlo_mlc.tensor.core import Assign, Nest, Stage, buffer_of

# Threads of a block: enough warps to hide latencies, few enough that each has 255 registers.
THREADS = 256


def why_not_in_parts(stage: Stage, axes: Sequence[Var]) -> str:
    """Why threads cannot fold parts of the terms along some axes; empty where they can."""
    if stage.combiner.identity is None:
        return "its combiner has no identity to start from"
    return "" if merging(stage.combiner, stage.terms, axes) else "its combiner takes terms in order"


def told_apart(stage: Stage) -> Stage:
    """A fold with what combines its partial results in the place of its combiner: where these are
    what is folded, their places do not tell which terms come first."""
    merged = merging(stage.combiner, stage.terms, stage.reduce_axes)
    return stage if merged is None else replace(stage, combiner=merged)


def power_of_two(number: int) -> int:
    """The smallest power of two that is not less."""
    return 1 << max(0, number - 1).bit_length()


def lane_bytes(stage: Stage, along: Var) -> int:
    """Bytes of the widest elements, or pairs of elements, that lie side by side along an axis."""
    side_by_side = (a for a in accesses(stage) if any(along in i.free for i in a.indices))
    return max(map(_bytes_at_once, side_by_side), default=1)


def _bytes_at_once(access: Load | Assign) -> int:
    buffer = buffer_of(access)
    pair = Pair.of(buffer, access.indices) if access.indices else None
    return buffer.dtype.bytes if pair is None else min(VECTOR_BYTES, 2 * buffer.dtype.bytes)


def vector_width(stage: Stage, along: Var) -> int:
    """Elements along an axis that one thread loads and stores at once, such that no vector
    straddles a row."""
    return math.gcd(VECTOR_BYTES // lane_bytes(stage, along), along.extent)


def by_threads(
    schedule: Schedule, name: str, threads: int, target: CudaTarget, unroll: int = 1
) -> tuple[Schedule, tuple[str, ...]]:
    """The iterations of a loop, neighbouring ones for neighbouring threads, `unroll` for each, and
    the loops that are to be bound to blocks and threads; or to threads alone where one block does
    it all, round by round."""
    schedule = schedule.split(name, threads * unroll, "guard")
    block, thread = f"{name}.o", f"{name}.i"
    if target.is_one_block:
        return schedule.reorder(thread, block), (thread,)
    if unroll == 1:
        return schedule, (block, thread)
    schedule, each = schedule.split(thread, threads), f"{thread}.o"
    return schedule.reorder(f"{thread}.i", each).unroll(each), (block, f"{thread}.i")


def bound(schedule: Schedule, loops: Sequence[str]) -> Schedule:
    """The last of these loops bound to threads, one around it to blocks."""
    *blocks, threads = loops
    for block in blocks:
        schedule = schedule.bind(block, "block")
    return schedule.bind(threads, "thread")


def by_one_thread(nest: Nest, stage: Stage, target: CudaTarget) -> Scheduled:
    """The naive loops of a stage, done by a single thread."""
    block, thread = f"{stage.name}_b", f"{stage.name}_t"
    schedule = open_stage(stage, nest).add_unit_loop(thread)
    if target.is_one_block:
        return Scheduled.of(bound(schedule, (thread,)))
    return Scheduled.of(bound(schedule.add_unit_loop(block), (block, thread)))


def below(position: Expr, extent: int) -> Expr:
    """The condition position < extent, decided where the bounds decide it."""
    return index.compare("lt", position, extent)


def product(axes: Sequence[Var]) -> int:
    """How many points nested loops have."""
    return math.prod(v.extent for v in axes)


def equals(e: Expr, value: int) -> Expr:
    """The condition that an index has a value."""
    return apply("eq", e, index.constant(value))
