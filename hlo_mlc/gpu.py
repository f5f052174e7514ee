"""The compiler for NVIDIA GPUs: the same path as for CPUs (compiler.py) up to the templates, then
launches of CUDA C++ kernels instead of one machine function.

How fast these kernels are has not been measured: what `choose="auto"` takes of them follows from a
model (partition/choose/gpu_cost.py).
"""

from __future__ import annotations

import functools
import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from jaxlib.mlir import ir

from hlo_mlc.building import nest_report
from hlo_mlc.codegen.cuda import compile as nvrtc
from hlo_mlc.codegen.cuda.compile import Compiled
from hlo_mlc.codegen.cuda.plan import CudaSource
from hlo_mlc.codegen.cuda.printer import print_program
from hlo_mlc.codegen.cuda.raw import raw_kernel
from hlo_mlc.compiler import CompiledModule, is_small_unit, located, plan_text, report_on
from hlo_mlc.expr.dtypes import F32
from hlo_mlc.frontend.emit import KERNEL_OP, emit_module
from hlo_mlc.frontend.importer import import_function, read_donations
from hlo_mlc.graph.core import Graph, Node
from hlo_mlc.graph.text import format_graph
from hlo_mlc.loops.prove import Proof, prove
from hlo_mlc.loops.text import program_text as loops_text
from hlo_mlc.ops.registry import references
from hlo_mlc.partition.choose.gpu_cost import choose_all, choose_predicted
from hlo_mlc.partition.fuse.nests import FusionLimits
from hlo_mlc.partition.kernel import Kernel
from hlo_mlc.partition.plan import Plan, partition, without
from hlo_mlc.passes.simplify import simplify
from hlo_mlc.report import NestReport
from hlo_mlc.runtime.cache import ObjectCache, object_cache
from hlo_mlc.support.dumps import Recorder, file_name
from hlo_mlc.support.errors import CodegenError
from hlo_mlc.support.faults import Contained, Fault
from hlo_mlc.support.locks import process_lock
from hlo_mlc.support.options import Options
from hlo_mlc.target import cpu
from hlo_mlc.target.cuda import CudaTarget
from hlo_mlc.templates.cuda.program import schedule_program
from hlo_mlc.templates.cuda.rows import kept_bytes
from hlo_mlc.templates.cuda.scatter import depends_on_order
from hlo_mlc.tensor.text import program_text

# Simple operations of a factor that each tile of a product does again: few beside the products of
# its 64 rows or columns or more.  Not measured.
PROLOGUE = 8
LEFT = {
    **dict.fromkeys(("stablehlo.sort", "chlo.top_k"), "on GPUs XLA has CUB sort"),
    **dict.fromkeys(("stablehlo.case", "stablehlo.if"), "on GPUs XLA chooses between branches"),
}


@dataclass(frozen=True, slots=True, eq=False)
class GpuKernel:
    """A kernel for GPUs: its CUDA C++ with the launches that run it, and its machine code."""

    kernel: Kernel
    nests: tuple[NestReport, ...]
    proof: Proof
    source: CudaSource
    compiled: Compiled
    target: CudaTarget
    depends_on_order: bool  # of threads: in last bits of sums of floats

    @property
    def resources(self) -> tuple[str, ...]:
        """What each function needs, a line each, and what else there is to say."""
        note = ("floats are added in the order in which threads arrive: last bits may differ "
                "between runs",) if self.depends_on_order else ()
        return (*resources(self.compiled, self.source), *note)

    def raw_kernel(self, launch: int = 0) -> object:
        """The function of one of the launches (`source.launches`) as a `cupy.RawKernel`.

        Raises: CodegenError where CuPy is missing.
        """
        return raw_kernel(self.source, self.source.launches[launch].function)


_built: dict[tuple[str, CudaTarget], GpuKernel] = {}
_building = process_lock()


def gpu_kernel(kernel_id: str, target: CudaTarget) -> GpuKernel | None:
    """The kernel with this id, if this process has compiled it for this target."""
    return _built.get((kernel_id, target))


def compile_for_gpu(module: ir.Module, options: Options, target: CudaTarget, *,
                    entry: str = "main") -> CompiledModule:
    """Compile what is worth it of the function `entry`; nothing is made known to XLA yet.

    Raises: MlcError subclasses of the stage that fails; CodegenError where there is no compiler
    for CUDA C++.
    """
    began = time.perf_counter()
    with Recorder.open(options.dump_dir, entry) as record:
        record.stage("receive", "00-stablehlo.mlir", lambda: str(module), of="module")
        graph = import_function(module, entry)
        record.stage("import", "10-graph.txt", lambda: format_graph(graph), of="graph")
        graph, _ = simplify(graph, references)
        record.stage("simplify", "20-simplified.txt", lambda: format_graph(graph), of="graph")
        plan, built, failed = _plan_and_build(graph, read_donations(module, entry), options,
                                              target, record)
        scratch = {name: k.source.scratch_bytes for name, k in built.items()}
        emitted = emit_module(_with_scratch(plan.graph, scratch), module, entry) \
            if plan.taken else module
        record.stage("emit", "99-stablehlo.mlir", lambda: str(emitted), of="module")
    report = report_on(graph, plan, built, time.perf_counter() - began, record,
                       lambda node: 0.0)  # there is no model of what it takes there
    kernels = tuple(replace(k, resources=built[k.id].resources) for k in report.kernels)
    return CompiledModule(emitted, replace(report, kernels=kernels), tuple(failed.values()))


def limits_of(target: CudaTarget) -> FusionLimits:
    """What kernels compute where it is needed."""
    return FusionLimits(kept_bytes(target) // F32.bytes, PROLOGUE, packs_constants=False,
                  folds_both_ways=False, left=LEFT)


def _plan_and_build(graph: Graph, donated: Sequence[tuple[int, int]], options: Options,
                    target: CudaTarget, record: Recorder
                    ) -> tuple[Plan, Mapping[str, GpuKernel], Mapping[str, Fault]]:
    """The plan, its kernels, and what failed; a cluster that no kernel can be generated for stays
    with XLA."""
    failed: dict[str, Fault] = {}
    refused: dict[str, str] = {}
    host = cpu.host()
    rule = choose_all if options.choose == "ours" else choose_predicted
    drawn = partition(graph, lambda cluster: rule(cluster, target),
                      lambda unit: is_small_unit(unit, host), donated, limits=limits_of(target))
    while True:
        plan = without(drawn, graph, refused)
        record.stage("partition", "30-plan.txt", lambda plan=plan: plan_text(plan))
        if plan.taken:
            nvrtc.require()
        known = len(refused)
        built = {}
        for cluster, _ in plan.taken:
            kernel = cluster.kernel
            with Contained(options.choose, functools.partial(failed.__setitem__,
                                                             kernel.fingerprint)):
                try:
                    built[kernel.fingerprint] = _build(kernel, options, target, record)
                except CodegenError as error:
                    refused[kernel.fingerprint] = str(error)
            if fault := failed.get(kernel.fingerprint):
                failed[kernel.fingerprint] = located(fault, cluster)
                refused[kernel.fingerprint] = fault.reason
        if len(refused) == known:
            return plan, built, failed


def _build(kernel: Kernel, options: Options, target: CudaTarget, record: Recorder) -> GpuKernel:
    """The kernel, which `gpu_kernel` finds from now on."""
    key = kernel.fingerprint, target
    with _building:
        known = _built.get(key)
        if known is not None and record.folder is None:  # a dump shows all stages every time
            return known
        name, file = kernel.name, file_name(kernel.name)
        record.stage(f"tensors {name}", f"40-{file}.tensors.txt",
                     lambda: program_text(kernel.program))
        loops, decisions = schedule_program(kernel.program, target)
        record.stage(f"schedule {name}", f"60-{file}.loops.txt", lambda: loops_text(loops))
        loops, proof = prove(loops)
        record.stage(f"prove {name}", f"70-{file}.proof.txt",
                     lambda: f"{proof}\n{loops_text(loops)}")
        source = print_program(loops, target)
        record.stage(f"print {name}", f"80-{file}.cu", lambda: source.text)
        compiled = _compiled(source, target, object_cache(options))
        record.stage(f"assemble {name}", f"90-{file}.resources.txt",
                     lambda: "\n".join(resources(compiled, source)) + "\n")
        depends = any(d.template.name == "scatter" and depends_on_order(d.nest)
                      for d in decisions)
        _built[key] = GpuKernel(kernel, tuple(map(nest_report, decisions)), proof, source,
                                compiled, target, depends)
        return _built[key]


def build_for_gpu(kernel: Kernel, options: Options, target: CudaTarget) -> GpuKernel:
    """The kernel for this target, whatever GPUs are here.

    Raises: CodegenError where there is no compiler for CUDA C++, or it rejects the kernel.
    """
    with Recorder.open(None, kernel.name) as record:
        return _build(kernel, options, target, record)


def _compiled(source: CudaSource, target: CudaTarget, cache: ObjectCache) -> Compiled:
    identity = f"{target}\n{nvrtc.version()}\n{nvrtc.OPTIONS}\n{source.text}"
    key = hashlib.sha256(identity.encode()).hexdigest()
    packed = cache.get(key)
    if packed is not None:
        return Compiled.unpack(packed)
    compiled = nvrtc.compile_source(source, target)
    cache.put(key, compiled.pack())
    return compiled


def resources(compiled: Compiled, source: CudaSource) -> tuple[str, ...]:
    """What each function needs, a line each."""
    asked = {launch.function: launch.shared_bytes for launch in source.launches}
    return tuple(f"{name}: {use.registers} registers, {use.shared_bytes + asked.get(name, 0)} "
                 f"bytes of shared memory, {use.spilled_bytes} bytes spilled"
                 for name, use in compiled.usage.items())


def _with_scratch(graph: Graph, scratch: Mapping[str, int]) -> Graph:
    """Each kernel with the scratch that its call is to be given: memory that is taken during an
    execution could not be captured into a command buffer."""
    nodes = tuple(_node_with_scratch(node, scratch) for node in graph.nodes)
    return graph if nodes == graph.nodes else replace(graph, nodes=nodes)


def _node_with_scratch(node: Node, scratch: Mapping[str, int]) -> Node:
    if node.op == KERNEL_OP:
        size = scratch[node.attributes["id"]]
        return replace(node, attributes={**node.attributes, "scratch_bytes": size}) if size \
            else node
    regions = tuple(_with_scratch(region, scratch) for region in node.regions)
    return node if regions == node.regions else replace(node, regions=regions)
