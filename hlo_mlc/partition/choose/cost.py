"""What a cluster costs, in our kernels and in XLA's: the numbers behind `choose="auto"`.

Both are what its stages take (stage_cost.py), and what XLA takes for operations that stages have no
trace of (xla_nodes.py).  Absolute times are rough; the ratios between both sides decide.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from hlo_mlc.expr.dtypes import TensorType
from hlo_mlc.graph.core import Node
from hlo_mlc.ops.registry import UPDATES
from hlo_mlc.partition.calls import HOLDING
from hlo_mlc.partition.choose.materialized import least_us
from hlo_mlc.partition.choose.stage_cost import parts_of
from hlo_mlc.partition.choose.surroundings import Surroundings
from hlo_mlc.partition.choose.xla_convolutions import convolutions_us
from hlo_mlc.partition.choose.xla_copies import copied_bytes
from hlo_mlc.partition.choose.xla_dispatch import waking_us, xla_waking_us
from hlo_mlc.partition.choose.xla_faults import fault
from hlo_mlc.partition.choose.xla_figures import figure
from hlo_mlc.partition.choose.xla_nodes import (
    copying_us,
    joined_us,
    libraries_us,
    scattered_us,
    written_out_us,
)
from hlo_mlc.partition.cluster import Cluster
from hlo_mlc.partition.costs import APART_NS, MARGIN
from hlo_mlc.partition.estimate import Estimate
from hlo_mlc.partition.kernel import Kernel
from hlo_mlc.partition.plan import Verdict
from hlo_mlc.support.wording import duration
from hlo_mlc.target.cpu import CpuTarget
from hlo_mlc.target.rates import Rates
from hlo_mlc.templates.base import points
from hlo_mlc.tensor.core import Loop, Nest, Stage, Step, TensorProgram

# What passes between a cluster and the rest might have stayed in registers in one of XLA's
# fusions; mostly it would not have, so this is more than memory gives.  In bytes per microsecond.
BORDER_BYTES = 200_000

_WHOLE = Surroundings()


def estimate(kernel: Kernel, target: CpuTarget, around: Surroundings = _WHOLE) -> Estimate:
    """Predict both sides from the kernel's stages and from where XLA computes them."""
    parts = parts_of(kernel.program, target, around)
    largest = max(parts, key=lambda part: part.ours_us, default=None)
    return Estimate(
        sum(part.ours_us for part in parts) + target.rates.call_us,
        sum(part.xla_us for part in parts),
        sum(part.operations for part in parts),
        border_bytes(kernel.program),
        sum(part.contraction_flops for part in parts),
        largest.kind if largest is not None else "nothing",
        any(part.forks for part in parts),
        any(part.xla_forks for part in parts),
    )


def border_bytes(program: TensorProgram) -> int:
    """Bytes of operands and results that a kernel touches."""
    touched = dict.fromkeys((*program.operands, *program.results), 0)
    for stage, trips in _stages_with_trips(program.steps, 1):
        for buffer in touched.keys() & {*stage.inputs, *stage.outputs}:
            touched[buffer] += trips * points(stage) * buffer.dtype.bytes
    return sum(min(buffer.bytes, count) for buffer, count in touched.items())


def _stages_with_trips(steps: Iterable[Step], trips: int) -> Iterator[tuple[Stage, int]]:
    for step in steps:
        if isinstance(step, Nest):
            yield from ((stage, trips) for stage in step.stages)
        else:
            yield from _stages_with_trips(step.inner, trips * step.likely_trips)


def choose_all(cluster: Cluster, target: CpuTarget) -> Verdict:
    """choose="ours": take whatever can be compiled."""
    return replace(choose_predicted(cluster, target), take=True, reason='choose="ours"')


def choose_predicted(cluster: Cluster, target: CpuTarget) -> Verdict:
    """choose="auto": take what is predicted to be faster, its border included."""
    rates = target.rates

    def of_all(us: Callable[[Sequence[Node], Rates], float]) -> float:
        return _of_all(lambda nodes: us(nodes, rates), cluster.nodes, cluster.trips)

    lapack_us = of_all(libraries_us)
    predicted = estimate(
        cluster.kernel,
        target,
        Surroundings(
            cluster.in_loop,
            calls_libraries(cluster.nodes),
            lapack_us > 0,
            updates=holds(cluster.nodes, UPDATES),
            given=cluster.given,
            held_bytes=cluster.held_bytes,
        ),
    )
    ours = predicted.ours_us
    xla = predicted.xla_us + of_all(written_out_us) + lapack_us
    copies = _of_all if cluster.in_loop else _of_inner
    xla += copies(
        lambda nodes: copying_us(copied_bytes(nodes), target), cluster.nodes, cluster.trips
    )
    xla += of_all(joined_us)

    is_entry = not (cluster.in_loop or cluster.in_branch)

    def convolving_us(nodes: Sequence[Node]) -> float:
        return convolutions_us(nodes, is_entry and nodes is cluster.nodes, rates)

    xla = max(xla, _of_all(convolving_us, cluster.nodes, cluster.trips), of_all(scattered_us))
    results, known = frozenset(cluster.results), 0.0 if cluster.trips else xla

    def passes_us(nodes: Sequence[Node]) -> float:
        again = cluster.in_loop or nodes is not cluster.all_nodes
        return least_us(nodes, results, rates, known, repeated=again)

    xla = max(xla, _of_all(passes_us, cluster.all_nodes, cluster.trips))
    if cluster.is_whole and not any(isinstance(s, Loop) for s in cluster.kernel.program.steps):
        # XLA counts the body of a loop once, and does not expect more of it.
        ours += waking_us(predicted.forks, rates)
        xla += xla_waking_us(predicted.xla_forks, cluster.nodes, rates)
    if copied := 2 * cluster.copied_bytes:  # read and written
        ours += rates.pass_us(copied)
    ours += sum(_transposed_us(value.type, target) for value in cluster.transposed)
    if failure := fault(cluster.nodes, makers=cluster.makers):
        return Verdict(True, failure, predicted, ours, xla, fault=failure)
    border = cluster.border_bytes / BORDER_BYTES
    take = MARGIN * (ours + border) < xla
    reason = f"{predicted.kind}: predicted {'faster' if take else 'no faster than by XLA'}"
    if MARGIN * ours < xla and not take:
        reason += f" with {duration(border)} for passing values to and from it"
    return Verdict(take, reason, predicted, ours, xla)


def _transposed_us(given: TensorType, target: CpuTarget) -> float:
    """XLA's time for changing the layout of an array."""
    return figure("across") * max(
        APART_NS * target.rates.one_by_one * given.size / target.cores / 1e3,
        target.rates.pass_us(2 * given.bytes),
    )


def _of_all(
    us: Callable[[Sequence[Node]], float], nodes: Sequence[Node], trips: Mapping[Node, int]
) -> float:
    """The time of operations, with those inside loops and branches as often as they run."""
    return us(nodes) + _of_inner(us, nodes, trips)


def _of_inner(
    us: Callable[[Sequence[Node]], float], nodes: Sequence[Node], trips: Mapping[Node, int]
) -> float:
    return sum(
        trips.get(node, 1)
        / (1 if node in trips else len(node.regions))
        * _of_all(us, region.nodes, trips)
        for node in nodes
        if node.op in HOLDING
        for region in node.regions
    )


def calls_libraries(nodes: Iterable[Node]) -> bool:
    """Whether there are products or convolutions among them, or in their regions."""
    return holds(nodes, ("stablehlo.dot_general", "stablehlo.convolution"))


def holds(nodes: Iterable[Node], ops: Container[str]) -> bool:
    """Whether any of these nodes, or of those in their regions, is one of these ops."""
    return any(
        node.op in ops or any(holds(region.nodes, ops) for region in node.regions) for node in nodes
    )
