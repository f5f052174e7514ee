"""Whether what is taken is worth it: what a plan saves of a call, beside what it takes to compile
its kernels and to have XLA run what is around them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Container
from dataclasses import replace

from hlo_mlc.partition.calls import HOLDING
from hlo_mlc.partition.choose.predictions import lost_us
from hlo_mlc.partition.choose.shares import least_arithmetic_us
from hlo_mlc.partition.choose.xla_came import came_us
from hlo_mlc.partition.choose.xla_dispatch import START_OPERATIONS, counted_operations, starting_us
from hlo_mlc.partition.choose.xla_faults import fault
from hlo_mlc.partition.cluster import Cluster
from hlo_mlc.partition.costs import MARGIN
from hlo_mlc.partition.plan import Plan
from hlo_mlc.support.wording import duration
from hlo_mlc.target.cpu import CpuTarget
from hlo_mlc.tensor.canonical import stages
from hlo_mlc.tensor.classify import stage_cost

# Operations that a kernel has beyond those of the program that it computes, from which on it has
# to be worth compiling, and the share of a call that is next to nothing.  A transform of 64
# numbers, written out, is 2,000 of them, each of which takes 0.2 ms to compile: a quarter of the
# first call of a spherical transform went into five kernels that saved 0.5 % of each later one.
_MANY_OPERATIONS, _NEXT_TO_NOTHING = 500, 0.01


def worth_it(plan: Plan, target: CpuTarget) -> Plan:
    """The plan, or one that takes nothing where its kernels save next to nothing of the program.

    They are to be compiled, and XLA is to run what is around them apart from each other.  What is
    not modelled counts with what its arithmetic takes at least, so the share that is saved is no
    larger than it looks here; how often a loop of XLA's repeats its kernels is not known, so those
    count as worth it.
    """
    if any(cluster.in_loop or verdict.recorded or verdict.fault for cluster, verdict in plan.taken):
        return plan
    saved = sum(v.xla_us - v.ours_us for _, v in plan.taken)
    if saved > (1 - 1 / MARGIN) * _total_us(plan, target):
        return plan
    reason = f"what kernels would save, {duration(saved)}, is next to nothing of the program's time"
    left = [
        (cluster, replace(verdict, take=False, reason=reason)) for cluster, verdict in plan.taken
    ]
    return replace(plan, taken=[], rejected=[*plan.rejected, *left], remaining=plan.nodes)


def _total_us(plan: Plan, target: CpuTarget) -> float:
    """A call of the program as XLA computes it, loops of its own going round once."""
    return (
        target.rates.dispatch_us
        + sum(v.xla_us for _, v in (*plan.taken, *plan.rejected))
        + sum(least_arithmetic_us(node, target) for node in plan.left)
    )


def not_worth_compiling(plan: Plan, target: CpuTarget) -> dict[str, str]:
    """Kernels, by their fingerprints, that take long to compile and together save next to nothing
    of a call, and what each does; how often a loop of XLA's repeats some is not known, so these are
    not among them."""
    saved: Counter[str] = Counter()
    operations: dict[str, int] = {}
    for cluster, verdict in plan.taken:
        fingerprint = cluster.kernel.fingerprint
        stays = cluster.in_loop or verdict.recorded or verdict.fault
        saved[fingerprint] += math.inf if stays else verdict.xla_us - verdict.ours_us
        operations[fingerprint] = _operations_beyond(cluster)
    spare, left = _NEXT_TO_NOTHING * _total_us(plan, target), dict[str, str]()
    for fingerprint in sorted(operations, key=saved.__getitem__):
        if operations[fingerprint] > _MANY_OPERATIONS:
            spare -= saved[fingerprint]
            if spare < 0:
                break
            left[fingerprint] = (
                f"{operations[fingerprint]:,} operations would be compiled to save "
                f"{duration(saved[fingerprint])}, next to nothing of the program's time"
            )
    return left


def _operations_beyond(cluster: Cluster) -> int:
    """The operations of a cluster's stages that are none of the program's."""
    program = cluster.kernel.program
    own = sum(stage_cost(stage) for step in program.steps for stage in stages(step))
    inner = (node for outer in cluster.nodes for region in outer.regions for node in region.walk())
    return own - len(cluster.nodes) - sum(1 for _ in inner)


def in_place_of_what_came(
    plan: Plan, target: CpuTarget, failed: Container[str]
) -> tuple[Cluster, ...]:
    """What should be taken though XLA is no slower at it, if nothing is: what loses the least, so
    that XLA gets what our passes have made of the rest, where the program as it came takes it
    longer, as far as all of it is modelled, or XLA is wrong there.

    The rest alone is not handed on: that a program without kernels is the very module that came is
    promised, and is how measuring, settling and kept programs tell that nothing was taken.
    Clusters whose kernels `failed` stay with it.
    """
    open_to_us = [
        (cluster, verdict)
        for cluster, verdict in plan.rejected
        if not (cluster.in_loop or verdict.recorded or cluster.kernel.fingerprint in failed)
    ]
    if plan.taken or plan.came is None or not open_to_us:
        return ()
    cluster, verdict = max(open_to_us, key=lambda found: -lost_us(*found))
    if fault(plan.came.nodes):
        return (cluster,)
    changed = sum(v.xla_us for _, v in plan.rejected) + max(0.0, lost_us(cluster, verdict))
    is_better = not plan.left and came_us(plan.came, target.rates) > MARGIN * changed
    return (cluster,) if is_better else ()


def completion(plan: Plan, target: CpuTarget, failed: Container[str]) -> tuple[Cluster, ...]:
    """What should be taken as well, though XLA is faster at it, so that it starts no thread.

    Clusters whose kernels `failed` stay with it.
    """
    outside = [node for node in plan.left if node.op not in HOLDING]
    spare, more, clusters = START_OPERATIONS - counted_operations(outside), 0.0, []
    if not plan.taken or any(verdict.recorded for _, verdict in plan.rejected):
        return ()
    for cluster, verdict in sorted(plan.rejected, key=lambda found: -lost_us(*found)):
        operations = counted_operations(cluster.nodes)
        if operations < spare:
            spare -= operations
        elif cluster.kernel.fingerprint not in failed:
            clusters.append(cluster)
            more += lost_us(cluster, verdict)
        else:
            return ()
    return tuple(clusters) if spare > 0 and more < starting_us(target.rates) else ()
