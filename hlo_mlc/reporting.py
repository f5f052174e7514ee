"""What became of a program that was compiled: its report, and what HLO_MLC_DEBUG asks to see."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from hlo_mlc.backends.base import Backend, BuiltKernel
from hlo_mlc.expr.dtypes import TensorType
from hlo_mlc.kernel_objects import scheduled
from hlo_mlc.report import KernelReport, LeftReport, Report, nest_line
from hlo_mlc.support.debug import Level, say
from hlo_mlc.support.dumps import Recorder
from hlo_mlc.support.lazy_imports import lazy_imports
from hlo_mlc.support.options import Options
from hlo_mlc.support.wording import named_at, short_line

with lazy_imports():
    from hlo_mlc.loops import text
    from hlo_mlc.partition import calls as partition_calls
    from hlo_mlc.partition.choose import shares
    from hlo_mlc.tensor import core as tensor

if TYPE_CHECKING:
    from hlo_mlc.graph.core import Graph, Node
    from hlo_mlc.partition.cluster import Cluster
    from hlo_mlc.partition.kernel import Kernel
    from hlo_mlc.partition.plan import Plan, Verdict
    from hlo_mlc.tensor.core import Step


def report_on(
    graph: Graph,
    plan: Plan,
    built: Mapping[str, BuiltKernel],
    seconds: float,
    record: Recorder,
    least_us: Callable[[Node], float],
) -> Report:
    """What became of a program: its kernels, and what is left to XLA, where `least_us` is what an
    operation that is not modelled takes."""
    kernels: dict[str, KernelReport] = {}
    times = shares.runs(graph)
    for cluster, verdict in plan.taken:
        for kernel, count, share in cluster.kernels:
            fingerprint, calls = kernel.fingerprint, count * times.get(cluster.nodes[0], 1)
            if known := kernels.get(fingerprint):
                kernels[fingerprint] = replace(
                    known, uses=known.uses + 1, calls=known.calls + calls
                )
                continue
            made = _kernel_report(kernel, cluster, verdict, share, built[fingerprint])
            kernels[fingerprint] = replace(made, calls=calls)
    left = [
        LeftReport(
            n.op,
            n.location,
            why,
            named_at(n.op.partition(".")[2], short_line(n.location)),
            times.get(n, 1) * least_us(n),
        )
        for n, why in plan.left.items()
    ]
    for cluster, verdict in plan.rejected:
        share_us = times.get(cluster.nodes[0], 1) * verdict.xla_us / len(cluster.nodes)
        left += [
            LeftReport(n.op, n.location, verdict.reason, cluster.kernel.name, share_us)
            for n in cluster.nodes
        ]
    taken = {n for cluster, _ in plan.taken for n in cluster.nodes}
    apart = tuple(LeftReport(n.op, n.location, why) for n, why in plan.apart.items() if n in taken)
    return Report(
        plan.coverage,
        kernels=tuple(kernels.values()),
        left=tuple(left),
        apart=apart,
        seconds=seconds,
        stage_seconds=record.seconds_by_stage(),
    )


def say_outcome(
    entry: str, report: Report, built: Mapping[str, BuiltKernel], options: Options, backend: Backend
) -> None:
    """What HLO_MLC_DEBUG asks to see of a function that was compiled."""
    debug = options.debug
    say(Level.FUNCTIONS, debug, [f"{entry}: {report.headline}"])
    for kernel in report.kernels:
        say(
            Level.KERNELS,
            debug,
            [
                f"  {kernel.name}: {'; '.join(map(nest_line, kernel.nests))}; predicted "
                f"{kernel.ours_us:.1f} us, XLA {kernel.xla_us:.1f} us ({kernel.reason})"
            ],
        )
        say(
            Level.REASONS,
            debug,
            [
                f"    not {template}: {why}"
                for nest in kernel.nests
                for template, why in nest.refused
            ],
        )
        if debug >= Level.LOOPS:
            loops, _ = scheduled(built[kernel.id].kernel, options, backend)
            say(Level.LOOPS, debug, text.program_text(loops).splitlines())
    say(Level.REASONS, debug, [f"  left to XLA: {line}" for line in report.left_lines()])


def _kernel_report(
    kernel: Kernel, cluster: Cluster, verdict: Verdict, share: float, built: BuiltKernel
) -> KernelReport:
    """What is known of a kernel that computes a share of a cluster."""
    program = kernel.program
    predicted = verdict.estimate
    nodes = tuple(all_nodes(cluster.nodes))
    return KernelReport(
        id=kernel.fingerprint,
        name=kernel.name,
        ops=tuple(n.op for n in nodes),
        locations=tuple(dict.fromkeys(n.location for n in nodes if n.location)),
        nests=built.nests,
        operands=tuple(TensorType(b.shape, b.dtype) for b in program.operands),
        results=tuple(TensorType(b.shape, b.dtype) for b in program.results),
        bytes=round(share * predicted.bytes),
        operations=round(share * predicted.operations),
        contraction_flops=round(share * predicted.contraction_flops),
        data_dependent=any(map(is_data_dependent, program.steps)),
        ours_us=share * verdict.ours_us,
        xla_us=share * verdict.xla_us,
        reason=verdict.reason,
        fault=verdict.fault,
        proof=str(built.proof),
        resources=built.resources,
        kept=built,
    )


def all_nodes(nodes: Iterable[Node]) -> Iterator[Node]:
    """The nodes, and those of the loops and branches among them."""
    for node in nodes:
        yield node
        if node.op in partition_calls.HOLDING:
            for region in node.regions:
                yield from all_nodes(region.nodes)


def is_data_dependent(step: Step) -> bool:
    """Whether how long a step takes depends on the values that it computes with."""
    if isinstance(step, tensor.Nest):
        return False
    return (
        isinstance(step, tensor.Branch)
        or step.trip_count is None
        or any(map(is_data_dependent, step.body))
    )
