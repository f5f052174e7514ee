"""The compiler: a StableHLO module in, the same module with parts of it in our kernels out.

Read `compile_module` first: it is the path of every program, one line a stage.
"""

from __future__ import annotations

import functools
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from jaxlib.mlir import ir

from hlo_mlc.backends.base import Backend, BuiltKernel
from hlo_mlc.backends.cpu import cpu_backend
from hlo_mlc.building import build_kernels
from hlo_mlc.frontend.emit import emit_module
from hlo_mlc.frontend.importer import import_function, read_donations
from hlo_mlc.graph.core import Graph
from hlo_mlc.kept_programs import KeptProgram
from hlo_mlc.report import FAULT_ADVICE, Report
from hlo_mlc.reporting import report_on, say_outcome
from hlo_mlc.runtime import variants
from hlo_mlc.support.collection import no_collection
from hlo_mlc.support.dumps import Recorder
from hlo_mlc.support.faults import Contained, Fault
from hlo_mlc.support.lazy_imports import lazy_imports
from hlo_mlc.support.options import Options
from hlo_mlc.support.stack import on_one_stack

with lazy_imports():
    from hlo_mlc.frontend import parse
    from hlo_mlc.graph import text as graph_text
    from hlo_mlc.ops import registry
    from hlo_mlc.partition import drawing, planner
    from hlo_mlc.partition import plan as plans
    from hlo_mlc.partition.choose import predictions
    from hlo_mlc.passes import packed_integers, simplify

if TYPE_CHECKING:
    from hlo_mlc.partition.cluster import Cluster
    from hlo_mlc.partition.kernel import Kernel
    from hlo_mlc.partition.plan import Plan

PLAN_FILE = "31-plan.json"
"""What the dump calls the plan as data."""

_MOST_LOCATIONS = 8  # that the error of a kernel names: more say no more

# Lines of LLVM IR for a program, for each of its operations, for each that sums, for each that
# updates a part of an array, and for each that looks up elements.  A line took 40 to 60 us to print
# and compile; chains of 2,000 operations took XLA 0.2 to 0.7 ms for each (a step of a physics
# engine, 3,300 of them, 2), chains of 2,000 updates 4, chains of 50 and of 200 gathers 1.4 to 4
# (in matrices 18 to 58); layers of a product, or of a norm, and a few operations more took it 9 to
# 60 ms, and three times as long with gradients.  So a first call takes about twice as long as XLA's
# at most, or 1.5 s longer.  It also runs the program: what kernels save of that may be spent on
# them (some gradients of convolutions take XLA a second).
_LINES, _LINES_FOR_OPERATION, _LINES_FOR_SUM = 20_000, 2, 100
_LINES_FOR_UPDATE, _LINES_FOR_LOOKUP = 40, 20
_LINE_US = 50


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
def compile_module(
    module: ir.Module, options: Options, *, entry: str = "main", backend: Backend | None = None
) -> CompiledModule:
    """Compile what is worth it of the function `entry`, for the CPU that the options name or for
    another backend, whose machine need not be here.

    It predicts where `options.choose` is neither "ours" nor "xla": what needs a look at run times
    is decided above (interop/measuring.py).

    Raises: MlcError subclasses of the stage that fails.
    """
    began = time.perf_counter()
    backend = backend or cpu_backend(options)
    with Recorder.open(options.dump_dir, entry) as record:
        record.stage("receive", "00-stablehlo.mlir", lambda: str(module), of="module")
        kept = KeptProgram.of(module, options, entry, backend)
        faults = list[Fault]()
        if kept is not None and (recalled := _recalled(kept, module, record, began, faults)):
            return recalled
        came = graph = import_function(module, entry)
        record.stage("import", "10-graph.txt", lambda: graph_text.format_graph(graph), of="graph")
        donated = read_donations(module, entry)
        graph = _simplified(graph, options, backend)
        record.stage(
            "simplify", "20-simplified.txt", lambda: graph_text.format_graph(graph), of="graph"
        )
        plan, built, failed = _plan_and_build(graph, came, donated, options, backend, record, kept)
        emitted = (
            module
            if not plan.taken
            else emit_module(
                backend.completed(plan.graph, built), module, entry, variant=backend.variant
            )
        )
        record.stage("emit", "99-stablehlo.mlir", lambda: str(emitted), of="module")
    report = report_on(graph, plan, built, time.perf_counter() - began, record, backend.least_us)
    report = backend.reported(report, plan, options)
    report = replace(report, for_other_rows=_for_other_rows(plan, built, options, backend))
    if failed:
        report = replace(report, advice=FAULT_ADVICE)
    elif kept is not None:
        kernels = [one.kernel for one in built.values()]
        kept.keep(None if emitted is module else emitted, report, kernels)
    say_outcome(entry, report, built, options, backend)
    return CompiledModule(emitted, report, (*faults, *failed.values()))


def _recalled(
    kept: KeptProgram, module: ir.Module, record: Recorder, began: float, faults: list[Fault]
) -> CompiledModule | None:
    """The module as another process has compiled it, if one has. What fails here is added to the
    faults: then it is compiled anew."""
    found = None
    with Contained(kept.options.choose, faults.append):
        found = kept.recall(module, _made_again(kept))
    if found is None:
        return None
    record.stage("recall", "99-stablehlo.mlir", lambda: str(found.module or module))
    report = replace(
        found.report, seconds=time.perf_counter() - began, stage_seconds=record.seconds_by_stage()
    )
    say_outcome(kept.entry, report, found.built, kept.options, kept.backend)
    return CompiledModule(found.module or module, report)


def _made_again(kept: KeptProgram) -> Callable[[], Mapping[str, Kernel]]:
    """What finds the kernels of a program by their fingerprints, by doing again what was done."""

    @functools.cache
    def kernels() -> Mapping[str, Kernel]:
        module = parse.parse_module(kept.bytecode)
        _, plan = clusters_of(module, kept.options, entry=kept.entry, backend=kept.backend)
        return {
            kernel.fingerprint: kernel
            for cluster, _ in (*plan.taken, *plan.rejected)
            for kernel, _, _ in cluster.kernels
        }

    return kernels


def _simplified(graph: Graph, options: Options, backend: Backend) -> Graph:
    """The simplified graph, with bytes in place of integers of less, and complex numbers in parts
    where kernels gain by that."""
    graph, _ = simplify.simplify(packed_integers.in_bytes(graph), registry.references)
    return backend.in_parts(graph, options)


def _plan_and_build(
    graph: Graph,
    came: Graph,
    donated: Sequence[tuple[int, int]],
    options: Options,
    backend: Backend,
    record: Recorder,
    kept: KeptProgram | None,
) -> tuple[Plan, Mapping[str, BuiltKernel], Mapping[str, Fault]]:
    """The plan, its kernels, and why others could not be built: their clusters stay with XLA."""
    failed: dict[str, Fault] = {}
    refused: dict[str, str] = {}
    is_bounded = backend.is_bounded and options.choose != "ours"
    drawn = _drawn(graph, came, donated, options, backend, kept)
    most_lines = most_lines_for(graph, predictions.saved_us(drawn)) if is_bounded else sys.maxsize
    while True:
        plan = plans.without(drawn, graph, refused)
        if options.choose != "ours":
            plan = backend.weighed(plan, graph, refused)
        plan = backend.divided(plan, graph, refused)
        record.attach(PLAN_FILE, functools.partial(drawing.plan_json, graph, plan))
        record.stage("partition", "30-plan.txt", functools.partial(_plan_text, plan))
        kernels = predictions.by_gain(plan)
        if kept is not None:
            kept.note(kernels)
        result = build_kernels(kernels, options, backend, record, most_lines)
        if not result.failed and not result.refused:
            if options.check and backend.has_checks:
                _describe([cluster for cluster, _ in plan.taken], backend.variant)
            return plan, result.built, failed
        for cluster, _ in plan.taken:
            for kernel, _, _ in cluster.kernels:
                if fault := result.failed.get(kernel.fingerprint):
                    failed[kernel.fingerprint] = _located(fault, cluster)
        refused.update((kernel, fault.reason) for kernel, fault in result.failed.items())
        refused.update(result.refused)


def _drawn(
    graph: Graph,
    came: Graph,
    donated: Sequence[tuple[int, int]],
    options: Options,
    backend: Backend,
    kept: KeptProgram | None = None,
) -> Plan:
    chooser = backend.chooser(options)
    if kept is not None:
        chooser = kept.noting(chooser)
    plan = planner.partition(graph, chooser, backend.costs, donated, backend.limits)
    return replace(plan, came=came)


def most_lines_for(graph: Graph, saved_us: float = 0.0) -> int:
    """How much LLVM IR may be compiled for a program, by what XLA would have to do for it and what
    is saved of a call."""
    return _LINES + _lines_for_nodes(graph) + int(saved_us / _LINE_US)


def _lines_for_nodes(graph: Graph) -> int:
    own = sum(
        _LINES_FOR_SUM
        if node.op in registry.SUMMING
        else _LINES_FOR_UPDATE
        if node.op in registry.UPDATES
        else _LINES_FOR_LOOKUP
        if node.op == "stablehlo.gather"
        else _LINES_FOR_OPERATION
        for node in graph.nodes
    )
    return own + sum(_lines_for_nodes(r) for node in graph.nodes for r in node.regions)


def _located(fault: Fault, cluster: Cluster) -> Fault:
    """What failed for a cluster, with a line of the user's that it computes."""
    places = (node.location for node in cluster.nodes if node.location)
    return replace(fault, part=cluster.kernel.name, location=fault.location or next(places, ""))


def _describe(clusters: Sequence[Cluster], variant: str) -> None:
    """Tell the runtime which lines of the user's program the faults of kernels belong to."""
    places: dict[str, dict[str, list[str]]] = {}  # a kernel may stand for several parts of it
    for cluster in clusters:
        for kernel, _, _ in cluster.kernels:
            named = places.setdefault(kernel.fingerprint + variant, {})
            for name, location in cluster.locations.items():
                named.setdefault(name, []).append(location)
            named.setdefault("", []).extend(node.location for node in cluster.nodes)
    for kernel_id, named in places.items():
        variants.describe(
            kernel_id,
            {
                name: ", or ".join(list(dict.fromkeys(filter(None, locations)))[:_MOST_LOCATIONS])
                for name, locations in named.items()
            },
        )


def _for_other_rows(
    plan: Plan, built: Mapping[str, BuiltKernel], options: Options, backend: Backend
) -> tuple[BuiltKernel, ...]:
    """The kernels that other numbers of rows need, as far as they can be built and the program goes
    on."""
    found: dict[str, BuiltKernel] = {}
    for one in (one for cluster, _ in plan.taken for one in cluster.others):
        if one.fingerprint in built or one.fingerprint in found:
            continue
        if not threading.main_thread().is_alive():
            break
        found |= build_kernels([one], options.replace(choose="auto"), backend, Recorder(None)).built
    return tuple(found.values())


def clusters_of(
    module: ir.Module, options: Options, *, entry: str = "main", backend: Backend | None = None
) -> tuple[Graph, Plan]:
    """The simplified graph of a function and its clusters for CPUs, or for another backend, taken
    or not; nothing is built.

    Raises: MlcError subclasses of the stage that fails.
    """
    backend = backend or cpu_backend(options)
    donated = read_donations(module, entry)
    came = import_function(module, entry)
    graph = _simplified(came, options, backend)
    return graph, _drawn(graph, came, donated, options, backend)


def _plan_text(plan: Plan) -> str:
    """The rewritten graph and the reason behind every decision."""
    lines = [graph_text.format_graph(plan.graph)]
    for title, group in (("taken", plan.taken), ("left to XLA", plan.rejected)):
        for cluster, verdict in group:
            lines.append(
                f"{title}: {cluster.kernel.name}, {cluster.kernel.program.name} "
                f"({verdict.reason}; ours {verdict.ours_us:.1f} us, XLA "
                f"{verdict.xla_us:.1f} us)"
            )
            lines += [f"  {node.op} {node.location}" for node in cluster.nodes]
    lines += [f"not modelled: {node.op} {node.location}: {why}" for node, why in plan.left.items()]
    return "\n".join(lines) + "\n"
