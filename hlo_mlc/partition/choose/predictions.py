"""What a call of a whole program is predicted to take, by a plan and by XLA alone."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from hlo_mlc.graph.rewrite import operands_first
from hlo_mlc.partition.choose.materialized import fresh_us, least_us
from hlo_mlc.partition.choose.xla_came import came_us
from hlo_mlc.partition.choose.xla_dispatch import waking_us, xla_waking_us
from hlo_mlc.partition.choose.xla_figures import figure
from hlo_mlc.partition.cluster import Cluster
from hlo_mlc.partition.estimate import Prediction
from hlo_mlc.partition.kernel import Kernel
from hlo_mlc.partition.plan import Plan, Verdict
from hlo_mlc.target.cpu import CpuTarget
from hlo_mlc.target.rates import Rates
from hlo_mlc.tensor.core import UNKNOWN_TRIPS, Loop, Nest, Step

# JAX making an array of each result but the first, and looking at each operand but the first, where
# a call takes it the `dispatch_us` of machines that nobody has measured: 4 and 16 results took 4
# and 19 us more than one, 100 operands 18 and 400 of them 71.
_RESULT_US, _OPERAND_US = 1.2, 0.18


def predict(plan: Plan, target: CpuTarget) -> Prediction | None:
    """The time of a whole program; None where a part of it is something that we do not model."""
    if plan.left:
        return None
    clusters = (*plan.taken, *plan.rejected)
    verdicts = [verdict for _, verdict in clusters]
    left = _sorted_once([(c, v) for c, v in clusters if not v.take])
    ours = sum(v.ours_us for v in verdicts if v.take) + sum(v.xla_us for v in left)
    xla = sum(v.xla_us for v in _sorted_once(clusters))
    passed_us = _RESULT_US * max(0, len(plan.graph.results) - 1)
    passed_us += _OPERAND_US * max(0, len(plan.graph.parameters) - 1)
    called = target.rates.dispatch_us * (1 + passed_us / Rates().dispatch_us)
    called += sum(
        fresh_us(value.type.bytes) for value in plan.graph.results if value.type is not None
    )
    if len(verdicts) > 1:  # what is alone has these in its verdict
        forks = any(v.estimate.forks for v in verdicts if v.take)
        ours += waking_us(forks, target.rates)
        ours += xla_waking_us(
            not forks and any(v.estimate.xla_forks for v in left), plan.graph.nodes, target.rates
        )
        every = (node for cluster, _ in clusters for node in cluster.all_nodes)
        makers = {value: node for node in every for value in node.results}
        nodes = operands_first(dict.fromkeys(makers.values()), makers.get)
        xla = max(xla, least_us(nodes, plan.graph.results, target.rates, xla))
        xla += xla_waking_us(any(v.estimate.xla_forks for v in verdicts), nodes, target.rates)
    if plan.came is not None:
        xla = max(xla, came_us(plan.came, target.rates))
    return Prediction(
        called + (ours if plan.taken else xla),
        called + xla,
        deviation(target),
        any(
            _guesses_trips(step)
            for cluster, _ in (*plan.taken, *plan.rejected)
            for step in cluster.kernel.program.steps
        ),
    )


def _sorted_once(clusters: Iterable[tuple[Cluster, Verdict]]) -> list[Verdict]:
    """The verdicts on what XLA computes: it picks several elements out of one sort, for each of
    which we have a kernel of its own."""
    once = {
        (cluster.operands, verdict.xla_us) if verdict.estimate.kind == "sort" else cluster: verdict
        for cluster, verdict in clusters
    }
    return list(once.values())


def _guesses_trips(step: Step) -> bool:
    if isinstance(step, Nest):
        return False
    return (isinstance(step, Loop) and step.trip_count is None) or any(
        _guesses_trips(inner) for inner in step.inner
    )


def deviation(target: CpuTarget) -> float:
    """What the logarithm of a predicted ratio is off by: more on machines that nobody measured.

    It hardly depends on what a program does: of products, maps, sorts or loops it is much the same,
    and forests that had learned from the bench what is off where (extra trees over what the stages
    do, 491 programs) were no nearer to what 275 others took.
    """
    if target.rates == Rates():
        return figure("off_unmeasured")
    return figure("off")


def predict_clusters(
    clusters: Sequence[tuple[Cluster, Verdict]], target: CpuTarget
) -> Prediction | None:
    """The time of some of what a plan takes or leaves to XLA, loops around it running once; None
    where there is nothing, or where that was measured."""
    verdicts = [verdict for _, verdict in clusters]
    if not verdicts or any(verdict.recorded for verdict in verdicts):
        return None
    return Prediction(
        sum(v.ours_us for v in verdicts), sum(v.xla_us for v in verdicts), deviation(target)
    )


def saved_us(plan: Plan) -> float:
    """What kernels are predicted to save of one call, where that can be known before it."""
    return sum(
        max(0.0, verdict.xla_us - verdict.ours_us)
        for cluster, verdict in plan.taken
        if not any(map(_guesses_trips, cluster.kernel.program.steps))
    )


def by_gain(plan: Plan) -> list[Kernel]:
    """The kernels of what is taken, those that save the most time in all their places first; such
    as save about the same in the order of the program, so that XLA gets what is left in one piece.
    """
    saved: dict[str, float] = {}
    kernels: dict[str, Kernel] = {}
    for cluster, verdict in plan.taken:
        for kernel, count, share in cluster.kernels:
            fingerprint = kernel.fingerprint
            kernels.setdefault(fingerprint, kernel)
            saved[fingerprint] = saved.get(fingerprint, 0.0) - count * share * lost_us(
                cluster, verdict
            )
    return sorted(
        kernels.values(),  # by powers of two
        key=lambda kernel: -math.frexp(max(saved[kernel.fingerprint], 0.0))[1],
    )


def lost_us(cluster: Cluster, verdict: Verdict) -> float:
    trips = UNKNOWN_TRIPS if cluster.in_loop else 1
    return trips * (verdict.ours_us - verdict.xla_us)
