"""The compiler: a StableHLO module in, the same module with parts of it in our kernels out.

Read `compile_module` first: it is the path of every program, one line a stage.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from jaxlib.mlir import ir

from hlo_mlc.building import BuiltKernel, build_kernels, scheduled, variant_of
from hlo_mlc.expr.dtypes import TensorType
from hlo_mlc.frontend.emit import emit_module
from hlo_mlc.frontend.importer import import_function, read_donations
from hlo_mlc.graph.core import Graph, Node
from hlo_mlc.graph.text import format_graph
from hlo_mlc.loops.text import program_text as loops_text
from hlo_mlc.ops.registry import SUMMING, UPDATES, references
from hlo_mlc.partition.choose.cost import (
    by_gain,
    choose_all,
    choose_predicted,
    completion,
    is_small,
    predict,
    predict_rejected,
    worth_it,
)
from hlo_mlc.partition.choose.shares import least_us, runs
from hlo_mlc.partition.fuse.groups import Unit
from hlo_mlc.partition.naming import named_at, short_line
from hlo_mlc.partition.plan import (
    CONTROL_FLOW,
    Chooser,
    Cluster,
    Plan,
    Verdict,
    partition,
    with_taken,
    without,
)
from hlo_mlc.passes.complex_parts import gains_in_parts, has_complex, split_complex
from hlo_mlc.passes.simplify import simplify
from hlo_mlc.report import FAULT_ADVICE, KernelReport, LeftReport, Report, nest_line
from hlo_mlc.runtime import variants
from hlo_mlc.runtime.rates import with_known_rates
from hlo_mlc.runtime.records import OURS, open_records, target_key
from hlo_mlc.support.collection import no_collection
from hlo_mlc.support.debug import Level, say
from hlo_mlc.support.dumps import Recorder
from hlo_mlc.support.faults import Fault
from hlo_mlc.support.options import Options
from hlo_mlc.support.stack import on_one_stack
from hlo_mlc.target.cpu import HOST, CpuTarget
from hlo_mlc.target.levels import planned_for
from hlo_mlc.tensor.core import Branch, Nest, Step

_MOST_LOCATIONS = 8  # that the error of a kernel names: more say no more


@dataclass(frozen=True, slots=True)
class CompiledModule:
    """A compiled module; it is the very module that was given if no part of it was taken.

    `faults` are the reasons why clusters that were to be taken were not.
    """

    module: ir.Module
    report: Report
    faults: tuple[Fault, ...] = ()


@no_collection()
@on_one_stack
def compile_module(module: ir.Module, options: Options, *, entry: str = "main",
                   target: CpuTarget | None = None) -> CompiledModule:
    """Compile what is worth it of the function `entry`, for the target that the options name, or
    for another one, which need not run here.

    It predicts where `options.choose` is neither "ours" nor "xla": what needs a look at run times
    is decided above (interop/measuring.py).

    Raises: MlcError subclasses of the stage that fails.
    """
    began = time.perf_counter()
    target = target or target_of(options)
    with Recorder.open(options.dump_dir, entry) as record:
        record.stage("receive", "00-stablehlo.mlir", lambda: str(module), of="module")
        graph = import_function(module, entry)
        record.stage("import", "10-graph.txt", lambda: format_graph(graph), of="graph")
        donated = read_donations(module, entry)
        graph = _simplified(graph, options)
        record.stage("simplify", "20-simplified.txt", lambda: format_graph(graph), of="graph")
        plan, built, failed = _plan_and_build(graph, donated, options, target, record)
        emitted = module if not plan.taken else emit_module(
            plan.graph, module, entry, variant=variant_of(target))
        record.stage("emit", "99-stablehlo.mlir", lambda: str(emitted), of="module")
    report = replace(report_on(graph, plan, built, time.perf_counter() - began, record,
                               lambda node: least_us(node, target)),
                     predicted=predict(plan, target), rejected=predict_rejected(plan),
                     advice=FAULT_ADVICE if failed else "",
                     level="" if target.name == HOST else target.name)
    report = replace(report, kernels=tuple(_as_tuned(k, options, target) for k in report.kernels))
    _say(entry, report, built, options, target)
    return CompiledModule(emitted, report, tuple(failed.values()))


# Lines of LLVM IR for a program, for each of its operations, for each that sums, and for each that
# updates a part of an array.  A line took 40 to 60 us to print and compile; chains of 2,000
# operations took XLA 0.2 to 0.7 ms for each, chains of 2,000 updates 4; layers of a product, or of
# a norm, and a few operations more took it 9 to 60 ms, and three times as long with gradients.  So
# a first call takes about twice as long as XLA's at most, or 1.5 s longer.
_LINES, _LINES_FOR_OPERATION, _LINES_FOR_SUM, _LINES_FOR_UPDATE = 20_000, 2, 100, 40


def most_lines_for(graph: Graph) -> int:
    """How much LLVM IR may be compiled for a program, by what XLA would have to do for it."""
    return _LINES + _lines_for_nodes(graph)


def _lines_for_nodes(graph: Graph) -> int:
    own = sum(_LINES_FOR_SUM if node.op in SUMMING else
              _LINES_FOR_UPDATE if node.op in UPDATES else _LINES_FOR_OPERATION
              for node in graph.nodes)
    return own + sum(_lines_for_nodes(r) for node in graph.nodes for r in node.regions)


def target_of(options: Options) -> CpuTarget:
    """The CPU to generate code for, and how fast it is, as far as that was measured.

    Raises: UnknownTargetError for what is no CPU, or one that has more than this machine.
    """
    target = planned_for(options.target)
    if options.threads is not None:
        target = replace(target, cores=options.threads)
    if options.deterministic:
        return replace(target, deterministic=True)
    return with_known_rates(target, options)


def _simplified(graph: Graph, options: Options) -> Graph:
    """The simplified graph, with complex numbers in parts where kernels gain by that."""
    graph, _ = simplify(graph, references)
    everything = options.choose == "ours"
    if not (has_complex if everything else gains_in_parts)(graph):
        return graph
    graph, _ = simplify(split_complex(graph, transforms=everything), references)
    return graph


def _drawn(graph: Graph, donated: Sequence[tuple[int, int]], options: Options,
           target: CpuTarget) -> Plan:
    return partition(graph, _chooser(options, target), lambda unit: is_small_unit(unit, target),
                     donated)


def _plan_and_build(graph: Graph, donated: Sequence[tuple[int, int]], options: Options,
                    target: CpuTarget, record: Recorder
                    ) -> tuple[Plan, Mapping[str, BuiltKernel], Mapping[str, Fault]]:
    """The plan, its kernels, and why others could not be built: their clusters stay with XLA."""
    failed: dict[str, Fault] = {}
    refused: dict[str, str] = {}
    most_lines = sys.maxsize if options.choose == "ours" else most_lines_for(graph)
    drawn = _drawn(graph, donated, options, target)
    while True:
        plan = without(drawn, graph, refused)
        if options.choose != "ours":
            plan = worth_it(plan, target)
            if more := completion(plan, target, refused):
                plan = with_taken(plan, graph, more, "but so little is left to XLA then that it "
                                  "starts no thread for it")
        record.stage("partition", "30-plan.txt", lambda plan=plan: plan_text(plan))
        result = build_kernels(by_gain(plan), options, target, record, most_lines)
        if not result.failed and not result.too_long:
            if options.check:
                _describe([cluster for cluster, _ in plan.taken], target)
            return plan, result.built, failed
        for cluster, _ in plan.taken:
            if fault := result.failed.get(cluster.kernel.fingerprint):
                failed[cluster.kernel.fingerprint] = located(fault, cluster)
        refused.update((kernel, fault.reason) for kernel, fault in result.failed.items())
        refused.update(result.too_long)


def located(fault: Fault, cluster: Cluster) -> Fault:
    """What failed for a cluster, with a line of the user's that it computes."""
    places = (node.location for node in cluster.nodes if node.location)
    return replace(fault, part=cluster.kernel.name, location=fault.location or next(places, ""))


def _describe(clusters: Sequence[Cluster], target: CpuTarget) -> None:
    """Tell the runtime which lines of the user's program the faults of kernels belong to."""
    places: dict[str, dict[str, list[str]]] = {}  # a kernel may stand for several parts of it
    for cluster in clusters:
        kernel_id = cluster.kernel.fingerprint + variant_of(target)
        named = places.setdefault(kernel_id, {})
        for name, location in cluster.locations.items():
            named.setdefault(name, []).append(location)
        named.setdefault("", []).extend(node.location for node in cluster.nodes)
    for kernel_id, named in places.items():
        variants.describe(kernel_id, {
            name: ", or ".join(list(dict.fromkeys(filter(None, locations)))[:_MOST_LOCATIONS])
            for name, locations in named.items()})


def _chooser(options: Options, target: CpuTarget) -> Chooser:
    rule = choose_all if options.choose == "ours" else _recorded_or_predicted(options)
    return lambda cluster: rule(cluster, target)


def _recorded_or_predicted(options: Options) -> Callable[[Cluster, CpuTarget], Verdict]:
    records = open_records(options)

    def choose(cluster: Cluster, target: CpuTarget) -> Verdict:
        predicted = choose_predicted(cluster, target)
        known = records.get(cluster.kernel.fingerprint, target_key(target))
        if known is None or not known.choice:
            return predicted
        found = known.measured
        return replace(predicted, take=known.choice == OURS, recorded=True,
                       ours_us=found.ours_us, xla_us=found.xla_us,
                       reason=f"recorded when it was tuned: XLA takes {found.xla_ratio:.2f} times "
                              "as long as ours")

    return choose


def clusters_of(module: ir.Module, options: Options, *, entry: str = "main") -> tuple[Graph, Plan]:
    """The simplified graph of a function and its clusters, taken or not; nothing is built.

    Raises: MlcError subclasses of the stage that fails.
    """
    target = target_of(options)
    donated = read_donations(module, entry)
    graph = _simplified(import_function(module, entry), options)
    return graph, _drawn(graph, donated, options, target)


def is_small_unit(unit: Unit, target: CpuTarget) -> bool:
    """Whether a unit is too small to deserve a kernel of its own."""
    nests = (Nest(joined.stages, joined.shared) for joined in unit.nests)
    return all(is_small(step, target) for step in (*unit.steps, *nests))


def plan_text(plan: Plan) -> str:
    """The rewritten graph and the reason behind every decision."""
    lines = [format_graph(plan.graph)]
    for title, group in (("taken", plan.taken), ("left to XLA", plan.rejected)):
        for cluster, verdict in group:
            lines.append(f"{title}: {cluster.kernel.name}, {cluster.kernel.program.name} "
                         f"({verdict.reason}; ours {verdict.ours_us:.1f} us, XLA "
                         f"{verdict.xla_us:.1f} us)")
            lines += [f"  {node.op} {node.location}" for node in cluster.nodes]
    lines += [f"not modelled: {node.op} {node.location}: {why}" for node, why in plan.left.items()]
    return "\n".join(lines) + "\n"


def report_on(graph: Graph, plan: Plan, built: Mapping[str, BuiltKernel], seconds: float,
              record: Recorder, least_us: Callable[[Node], float]) -> Report:
    """What became of a program: its kernels, and what is left to XLA, where `least_us` is what an
    operation that is not modelled takes."""
    kernels: dict[str, KernelReport] = {}
    times = runs(graph)
    for cluster, verdict in plan.taken:
        fingerprint = cluster.kernel.fingerprint
        calls = times.get(cluster.nodes[0], 1)
        if known := kernels.get(fingerprint):
            kernels[fingerprint] = replace(known, uses=known.uses + 1, calls=known.calls + calls)
            continue
        kernels[fingerprint] = replace(_kernel_report(cluster, verdict, built[fingerprint]),
                                       calls=calls)
    left = [LeftReport(n.op, n.location, why,
                       named_at(n.op.partition(".")[2], short_line(n.location)),
                       times.get(n, 1) * least_us(n)) for n, why in plan.left.items()]
    for cluster, verdict in plan.rejected:
        share_us = times.get(cluster.nodes[0], 1) * verdict.xla_us / len(cluster.nodes)
        left += [LeftReport(n.op, n.location, verdict.reason, cluster.kernel.name, share_us)
                 for n in cluster.nodes]
    taken = {n for cluster, _ in plan.taken for n in cluster.nodes}
    apart = tuple(LeftReport(n.op, n.location, why) for n, why in plan.apart.items() if n in taken)
    return Report(plan.coverage, kernels=tuple(kernels.values()), left=tuple(left), apart=apart,
                  seconds=seconds, stage_seconds=record.seconds_by_stage())


def _kernel_report(cluster: Cluster, verdict: Verdict, built: BuiltKernel) -> KernelReport:
    program = cluster.kernel.program
    predicted = verdict.estimate
    nodes = tuple(all_nodes(cluster.nodes))
    return KernelReport(
        id=cluster.kernel.fingerprint, name=cluster.kernel.name,
        ops=tuple(n.op for n in nodes),
        locations=tuple(dict.fromkeys(n.location for n in nodes if n.location)),
        nests=built.nests,
        operands=tuple(TensorType(b.shape, b.dtype) for b in program.operands),
        results=tuple(TensorType(b.shape, b.dtype) for b in program.results),
        bytes=predicted.bytes, operations=predicted.operations,
        contraction_flops=predicted.contraction_flops,
        data_dependent=any(map(is_data_dependent, program.steps)),
        ours_us=verdict.ours_us, xla_us=verdict.xla_us, reason=verdict.reason,
        proof=str(built.proof), kept=built)


def all_nodes(nodes: Iterable[Node]) -> Iterator[Node]:
    """The nodes, and those of the loops and branches among them."""
    for node in nodes:
        yield node
        if node.op in CONTROL_FLOW:
            for region in node.regions:
                yield from all_nodes(region.nodes)


def _as_tuned(kernel: KernelReport, options: Options, target: CpuTarget) -> KernelReport:
    """The report with what tuning measured of the kernel, if it is built as recorded."""
    known = open_records(options).get(kernel.id, target_key(target))
    if known is None or any(
            position >= len(kernel.nests) or template != kernel.nests[position].template
            or not parameters.items() <= kernel.nests[position].parameters.items()
            for position, (template, parameters) in known.schedules.items()):
        return kernel
    return replace(kernel, tuned=known.measured)


def is_data_dependent(step: Step) -> bool:
    """Whether how long a step takes depends on the values that it computes with."""
    if isinstance(step, Nest):
        return False
    return isinstance(step, Branch) or step.trip_count is None \
        or any(map(is_data_dependent, step.body))


def _say(entry: str, report: Report, built: Mapping[str, BuiltKernel], options: Options,
         target: CpuTarget) -> None:
    """What HLO_MLC_DEBUG asks to see of a function that was compiled."""
    debug = options.debug
    say(Level.FUNCTIONS, debug, [f"{entry}: {report.headline}"])
    for kernel in report.kernels:
        say(Level.KERNELS, debug, [
            f"  {kernel.name}: {'; '.join(map(nest_line, kernel.nests))}; predicted "
            f"{kernel.ours_us:.1f} us, XLA {kernel.xla_us:.1f} us ({kernel.reason})"])
        say(Level.REASONS, debug, [f"    not {template}: {why}" for nest in kernel.nests
                                   for template, why in nest.refused])
        if debug >= Level.LOOPS:
            loops, _ = scheduled(built[kernel.id].kernel, options, target)
            say(Level.LOOPS, debug, loops_text(loops).splitlines())
    say(Level.REASONS, debug, [f"  left to XLA: {line}" for line in report.left_lines()])
