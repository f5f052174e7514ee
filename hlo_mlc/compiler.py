"""The compiler: a StableHLO module in, the same module with parts of it in our kernels out.

Read `compile_module` first: it is the path of every program, one line a stage.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

from jaxlib.mlir import ir

from hlo_mlc.codegen.cpu.assemble import assembly, compile_ir
from hlo_mlc.codegen.cpu.printer import print_program
from hlo_mlc.expr.dtypes import TensorType
from hlo_mlc.frontend.emit import emit_module
from hlo_mlc.frontend.importer import import_function
from hlo_mlc.graph.text import format_graph
from hlo_mlc.loops.core import LoopProgram
from hlo_mlc.loops.text import program_text as loops_text
from hlo_mlc.ops.registry import references
from hlo_mlc.partition.cost import choose_all, choose_predicted, estimate, is_small
from hlo_mlc.partition.kernel import Kernel
from hlo_mlc.partition.plan import Cluster, Plan, Verdict, partition
from hlo_mlc.partition.units import Unit
from hlo_mlc.passes.simplify import simplify
from hlo_mlc.report import KernelReport, LeftReport, NestReport, Report, nest_line
from hlo_mlc.runtime import variants
from hlo_mlc.runtime.cache import ObjectCache, object_cache
from hlo_mlc.runtime.variants import KernelCode
from hlo_mlc.support.debug import Level, say
from hlo_mlc.support.dumps import Recorder
from hlo_mlc.support.options import Options
from hlo_mlc.target import cpu as targets
from hlo_mlc.target.cpu import CpuTarget
from hlo_mlc.templates.program import Decision, schedule_program
from hlo_mlc.tensor.core import Nest, Step
from hlo_mlc.tensor.text import program_text


@dataclass(frozen=True, slots=True)
class CompiledModule:
    """A compiled module; it is the very module that was given if no part of it was taken."""

    module: ir.Module
    report: Report


def compile_module(module: ir.Module, options: Options, *, entry: str = "main") -> CompiledModule:
    """Compile what is worth it of the function `entry`.

    It predicts where `options.choose` is neither "ours" nor "xla": what needs a look at run times
    is decided above (interop/measuring.py).

    Raises: MlcError subclasses of the stage that fails.
    """
    began = time.perf_counter()
    target = target_of(options)
    with Recorder.open(options.dump_dir, entry) as record:
        record.stage("receive", "00-stablehlo.mlir", lambda: str(module), of="module")
        graph = import_function(module, entry)
        record.stage("import", "10-graph.txt", lambda: format_graph(graph), of="graph")
        graph, _ = simplify(graph, references)
        record.stage("simplify", "20-simplified.txt", lambda: format_graph(graph), of="graph")
        plan = partition(graph, _chooser(options, target), lambda unit: _is_small(unit, target))
        record.stage("partition", "30-plan.txt", lambda: plan_text(plan))
        built = build_kernels([c.kernel for c, _ in plan.taken], options, target, record)
        emitted = emit_module(plan.graph, module, entry) if plan.taken else module
        record.stage("emit", "99-stablehlo.mlir", lambda: str(emitted), of="module")
    report = _report(plan, built, time.perf_counter() - began, record, target)
    _say(entry, report, built, options.debug)
    return CompiledModule(emitted, report)


def target_of(options: Options) -> CpuTarget:
    """The CPU to generate code for."""
    target = targets.host() if options.target == "cpu" else targets.named(options.target)
    return target if options.threads is None else replace(target, cores=options.threads)


@dataclass(frozen=True, slots=True)
class BuiltKernel:
    """A kernel that can be called, and how it was made."""

    kernel: Kernel
    decisions: tuple[Decision, ...]
    loops: LoopProgram
    code: KernelCode


_built: dict[tuple[str, CpuTarget], BuiltKernel] = {}
_building = threading.Lock()


def built_kernel(kernel_id: str, options: Options) -> BuiltKernel | None:
    """The kernel with this id, if this process has compiled it with such options."""
    return _built.get((kernel_id, target_of(options)))


def build_kernels(kernels: list[Kernel], options: Options, target: CpuTarget,
                  record: Recorder) -> dict[str, BuiltKernel]:
    """Generate, or fetch from the cache, every kernel, and make it callable by its fingerprint."""
    if not kernels:
        return {}
    cache = object_cache(options)
    result: dict[str, BuiltKernel] = {}
    for kernel in kernels:
        key = kernel.fingerprint, target
        if kernel.fingerprint in result:
            continue
        with _building:
            built = _built.get(key)
            if built is None or record.folder is not None:  # a dump shows all stages every time
                built = _built[key] = _build(kernel, target, cache, record, built)
        result[kernel.fingerprint] = built
    return result


def _build(kernel: Kernel, target: CpuTarget, cache: ObjectCache, record: Recorder,
           known: BuiltKernel | None) -> BuiltKernel:
    name = kernel.program.name
    record.stage(f"tensors {name}", f"40-{name}.tensors.txt", lambda: program_text(kernel.program))
    loops, decisions = schedule_program(kernel.program, target)
    record.stage(f"schedule {name}", f"60-{name}.loops.txt", lambda: loops_text(loops))
    source = print_program(loops, target)
    record.stage(f"print {name}", f"80-{name}.ll", lambda: source)
    code = known.code if known is not None else _assemble(source, loops, target, cache)
    variants.publish(kernel.fingerprint, code)
    record.stage(f"assemble {name}", f"90-{name}.s", lambda: assembly(source, target))
    return BuiltKernel(kernel, decisions, loops, code)


def _assemble(source: str, loops: LoopProgram, target: CpuTarget, cache: ObjectCache) -> KernelCode:
    key = hashlib.sha256(f"{target}\n{source}".encode()).hexdigest()
    code = cache.get(key)
    if code is None:
        code = compile_ir(source, target)
        cache.put(key, code)
    return variants.load_object(code, loops.name, loops.scratch_bytes)


def _chooser(options: Options, target: CpuTarget):
    rule = choose_all if options.choose == "ours" else choose_predicted

    def choose(cluster: Cluster) -> Verdict:
        return rule(cluster, target)

    return choose


def _is_small(unit: Unit, target: CpuTarget) -> bool:
    if unit.joined is not None:
        return is_small(Nest(unit.joined.stages, unit.joined.shared), target)
    return all(is_small(step, target) for step in unit.steps)


def plan_text(plan: Plan) -> str:
    """The rewritten graph and the reason behind every decision."""
    lines = [format_graph(plan.graph)]
    for title, group in (("taken", plan.taken), ("left to XLA", plan.rejected)):
        for cluster, verdict in group:
            lines.append(f"{title}: {cluster.kernel.program.name} ({verdict.reason}; ours "
                         f"{verdict.ours_us:.1f} us, XLA {verdict.xla_us:.1f} us)")
            lines += [f"  {node.op} {node.location}" for node in cluster.nodes]
    lines += [f"not modelled: {node.op} {node.location}: {why}" for node, why in plan.left.items()]
    return "\n".join(lines) + "\n"


def _report(plan: Plan, built: Mapping[str, BuiltKernel], seconds: float, record: Recorder,
            target: CpuTarget) -> Report:
    kernels: dict[str, KernelReport] = {}
    for cluster, verdict in plan.taken:
        fingerprint = cluster.kernel.fingerprint
        if fingerprint in kernels:
            kernels[fingerprint] = replace(kernels[fingerprint],
                                           uses=kernels[fingerprint].uses + 1)
            continue
        kernels[fingerprint] = _kernel_report(cluster, verdict, built[fingerprint], target)
    left = [LeftReport(n.op, n.location, why) for n, why in plan.left.items()]
    left += [LeftReport(n.op, n.location, verdict.reason)
             for cluster, verdict in plan.rejected for n in cluster.nodes]
    return Report(plan.coverage, kernels=tuple(kernels.values()), left=tuple(left),
                  seconds=seconds, stage_seconds=record.seconds_by_stage())


def _kernel_report(cluster: Cluster, verdict: Verdict, built: BuiltKernel,
                   target: CpuTarget) -> KernelReport:
    nests = tuple(NestReport(d.template.name, dict(d.parameters), d.refused, _nest_text(d.nest))
                  for d in built.decisions)
    program = cluster.kernel.program
    predicted = estimate(cluster.kernel, target)
    return KernelReport(
        id=cluster.kernel.fingerprint, name=program.name,
        ops=tuple(n.op for n in cluster.nodes),
        locations=tuple(dict.fromkeys(n.location for n in cluster.nodes if n.location)),
        nests=nests,
        operands=tuple(TensorType(b.shape, b.dtype) for b in program.operands),
        results=tuple(TensorType(b.shape, b.dtype) for b in program.results),
        bytes=predicted.bytes, operations=predicted.operations,
        contraction_flops=predicted.contraction_flops,
        data_dependent=any(map(_is_data_dependent, program.steps)),
        ours_us=verdict.ours_us, xla_us=verdict.xla_us, reason=verdict.reason)


def _is_data_dependent(step: Step) -> bool:
    if isinstance(step, Nest):
        return False
    return step.trip_count is None or any(map(_is_data_dependent, step.body))


def _nest_text(nest: Nest) -> str:
    parts = []
    for stage in nest.stages:
        axes = "x".join(str(v.extent) for v in stage.axes) or "scalar"
        reduced = "x".join(str(v.extent) for v in stage.reduce_axes)
        parts.append(f"{axes} over {reduced}" if reduced else axes)
    return ", ".join(parts)


def _say(entry: str, report: Report, built: Mapping[str, BuiltKernel], debug: int) -> None:
    """What HLO_MLC_DEBUG asks to see of a function that was compiled."""
    say(Level.FUNCTIONS, debug, [f"{entry}: {report.headline}"])
    for kernel in report.kernels:
        say(Level.KERNELS, debug, [
            f"  {kernel.name}: {'; '.join(map(nest_line, kernel.nests))}; predicted "
            f"{kernel.ours_us:.1f} us, XLA {kernel.xla_us:.1f} us ({kernel.reason})"])
        say(Level.REASONS, debug, [f"    not {template}: {why}" for nest in kernel.nests
                                   for template, why in nest.refused])
        if debug >= Level.LOOPS:
            say(Level.LOOPS, debug, loops_text(built[kernel.id].loops).splitlines())
    say(Level.REASONS, debug, [f"  left to XLA:{line}" for line in report.left_lines()])
