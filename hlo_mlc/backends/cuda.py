"""Kernels for NVIDIA GPUs: CUDA C++, and the launches that run its functions.

What `choose="auto"` takes of these kernels follows from a model (partition/choose/gpu_cost.py).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

from hlo_mlc.backends.base import BuiltKernel, KernelObject, Source
from hlo_mlc.backends.recorded import as_tuned, recorded_or, recorded_schedules
from hlo_mlc.codegen.cuda import compile as nvrtc
from hlo_mlc.codegen.cuda.compile import Compiled
from hlo_mlc.codegen.cuda.plan import CudaSource, Launch
from hlo_mlc.codegen.cuda.printer import print_program
from hlo_mlc.codegen.cuda.raw import raw_kernel
from hlo_mlc.expr.dtypes import F32
from hlo_mlc.frontend.emit import KERNEL_OP
from hlo_mlc.graph.core import BRANCHES, Graph, Node
from hlo_mlc.loops.core import Accumulate, LoopProgram, walk
from hlo_mlc.ops.registry import references
from hlo_mlc.partition.choose.gpu_cost import LARGE_PRODUCT, choose_all, choose_predicted
from hlo_mlc.partition.costs import Costs
from hlo_mlc.partition.fuse.limits import FusionLimits
from hlo_mlc.partition.kernel import Kernel
from hlo_mlc.partition.plan import Chooser, Plan
from hlo_mlc.partition.planner import partition
from hlo_mlc.passes.complex_parts import has_complex, split_complex
from hlo_mlc.passes.complex_transforms import is_transform
from hlo_mlc.passes.simplify import simplify
from hlo_mlc.report import Report
from hlo_mlc.runtime import cuda
from hlo_mlc.runtime.records import Schedules
from hlo_mlc.support.described import described, taken_apart
from hlo_mlc.support.errors import CodegenError, VerifyError
from hlo_mlc.support.options import Options
from hlo_mlc.target import cpu
from hlo_mlc.target.cuda import CudaTarget
from hlo_mlc.templates.cuda.rows import kept_bytes
from hlo_mlc.tuning.generator import CudaGenerator

# Simple operations of a factor that each tile of a product does again: few beside the products of
# its 64 rows or columns or more.  Not measured.
PROLOGUE = 8
LEFT = {
    "stablehlo.fft": "on GPUs XLA has cuFFT",
    **dict.fromkeys(("stablehlo.sort", "chlo.top_k"), "on GPUs XLA has CUB sort"),
    **dict.fromkeys(BRANCHES, "on GPUs XLA chooses between branches"),
}


def limits_of(target: CudaTarget) -> FusionLimits:
    """What kernels compute where it is needed."""
    return FusionLimits(
        kept_bytes(target) // F32.bytes,
        PROLOGUE,
        packs_constants=False,
        folds_both_ways=False,
        fills_rows=False,
        keeps_factors=False,
        takes_layouts=False,
        left=LEFT,
    )


def stays_complex(node: Node) -> bool:
    """What XLA's libraries do with whole complex numbers: ours would be four products of real
    numbers, and a sort by two keys that CUB does not know."""
    return node.op in LEFT or is_transform(node) or _is_large_product(node)


def _is_large_product(node: Node) -> bool:
    """Whether it is a product of matrices that is left to cuBLAS: two complex numbers that are
    multiplied and added to a sum are eight floating-point operations."""
    if node.op != "stablehlo.dot_general":
        return False
    shape = node.operands[0].type.shape
    summed = math.prod(shape[d] for d in node.attributes["lhs_contracting_dimensions"])
    return 8 * summed * node.results[0].type.size > LARGE_PRODUCT


@dataclass(frozen=True, slots=True)
class CudaCode:
    """What is kept of a kernel: CUDA C++ with the launches that run it, and its machine code."""

    source: CudaSource
    compiled: Compiled
    depends_on_order: bool  # of threads: in last bits of sums of floats

    @property
    def resources(self) -> tuple[str, ...]:
        """What each function needs, a line each, and what else there is to say."""
        asked = {launch.function: launch.shared_bytes for launch in self.source.launches}
        lines = (
            f"{name}: {use.registers} registers, {use.shared_bytes + asked.get(name, 0)} "
            f"bytes of shared memory, {use.spilled_bytes} bytes spilled"
            for name, use in self.compiled.usage.items()
        )
        note = (
            (
                "floats are added in the order in which threads arrive: last bits may differ "
                "between runs",
            )
            if self.depends_on_order
            else ()
        )
        return (*lines, *note)

    def pack(self) -> bytes:
        """All of it as bytes."""
        return described(
            {"source": asdict(self.source), "depends_on_order": self.depends_on_order},
            self.compiled.pack(),
        )

    @classmethod
    def unpack(cls, data: bytes) -> CudaCode:
        """What `pack` made bytes of."""
        about, end = taken_apart(data)
        source = about["source"]
        launches = tuple(
            Launch(
                **{**each, "buffers": tuple(each["buffers"]), "counters": tuple(each["counters"])}
            )
            for each in source["launches"]
        )
        return cls(
            CudaSource(source["text"], launches, source["scratch_bytes"]),
            Compiled.unpack(data[end:]),
            about["depends_on_order"],
        )


@dataclass(frozen=True, slots=True)
class NvrtcSource:
    """A kernel as CUDA C++."""

    symbol: str
    source: CudaSource
    depends_on_order: bool
    target: CudaTarget

    @property
    def text(self) -> str:
        return self.source.text

    @property
    def scratch_bytes(self) -> int:
        return self.source.scratch_bytes

    def assemble(self) -> bytes:
        """A `CudaCode`."""
        return CudaCode(
            self.source, nvrtc.compile_source(self.source, self.target), self.depends_on_order
        ).pack()


@dataclass(frozen=True, slots=True, eq=False)
class GpuKernel(BuiltKernel):
    """A kernel for GPUs: its CUDA C++ with the launches that run it, and its machine code, which
    is for the GPUs here or for others."""

    code: CudaCode
    target: CudaTarget
    id: str  # what programs call it by
    is_here: bool

    @property
    def source(self) -> CudaSource:
        """The CUDA C++ with its launches."""
        return self.code.source

    @property
    def compiled(self) -> Compiled:
        """The machine code of its functions."""
        return self.code.compiled

    @property
    def resources(self) -> tuple[str, ...]:
        """What each function needs, a line each, and what else there is to say."""
        return self.code.resources

    def raw_kernel(self, launch: int = 0) -> object:
        """The function of one of the launches (`source.launches`) as a `cupy.RawKernel`.

        Raises: CodegenError where CuPy is missing.
        """
        return raw_kernel(self.source, self.source.launches[launch].function)

    def publish(self) -> None:
        """Make it what programs call from now on, if they run on the GPUs here."""
        if self.is_here:
            cuda.publish(
                self.id,
                self.compiled.cubin,
                self.source.functions,
                self.source.plan,
                self.source.scratch_bytes,
            )


@dataclass(frozen=True, slots=True)
class CudaBackend:
    """NVIDIA GPUs, those here or others; `hlo_mlc/backends/base.py` says what each of these is."""

    target: CudaTarget
    is_here: bool = False
    pin: str = ""  # of the records that kernels are built by, if they are pinned
    deterministic: bool = False  # built by none

    machines = "GPUs"
    generator = CudaGenerator()
    refusals = (CodegenError, VerifyError)  # what is not proved to be safe stays with XLA
    has_checks = is_bounded = False
    promise = None  # calls of kernels depend on how they were compiled
    suffixes = ("cu", "resources.txt")
    decides = None  # what a first call takes there is XLA's and the CUDA compiler's

    @property
    def variant(self) -> str:
        """Programs by different records may be in one process, and each calls its own code."""
        return "-deterministic" * self.deterministic + (f"-{self.pin}" if self.pin else "")

    @property
    def limits(self) -> FusionLimits:
        return limits_of(self.target)

    @property
    def identity(self) -> str:
        return f"{self.target}\n{nvrtc.version()}\n{nvrtc.OPTIONS}"

    def require(self) -> None:
        nvrtc.require()

    def warm_up(self) -> None:
        pass

    def in_parts(self, graph: Graph, options: Options) -> Graph:
        if not has_complex(graph):
            return graph
        parts, _ = simplify(split_complex(graph, stays_complex), references)
        gains = options.choose == "ours" or self._gain_us(parts, options) > self._gain_us(
            graph, options
        )
        return parts if gains else graph

    def _gain_us(self, graph: Graph, options: Options) -> float:
        """What a program is predicted to gain by the kernels that are taken of it."""
        plan = partition(graph, self.chooser(options), self.costs, limits=self.limits)
        return sum(verdict.xla_us - verdict.ours_us for _, verdict in plan.taken)

    def chooser(self, options: Options) -> Chooser:
        rule = (
            choose_all
            if options.choose == "ours"
            else choose_predicted
            if self.deterministic
            else recorded_or(choose_predicted, options)
        )
        return lambda cluster: rule(cluster, self.target)

    @property
    def costs(self) -> Costs:
        return Costs(cpu.host(), scatters_in_turn=False, in_pairs=False)

    def weighed(self, plan: Plan, graph: Graph, refused: Mapping[str, str]) -> Plan:
        return plan

    def divided(self, plan: Plan, graph: Graph, refused: Mapping[str, str]) -> Plan:
        return plan

    def least_us(self, node: Node) -> float:
        return 0.0  # there is no model of what it takes there

    def schedules(self, kernel: Kernel, options: Options) -> Schedules:
        return {} if self.deterministic else recorded_schedules(kernel, self, options)

    def print(self, loops: LoopProgram, checked: bool, most_lines: int) -> NvrtcSource:
        return NvrtcSource(
            loops.name, print_program(loops, self.target), _depends_on_order(loops), self.target
        )

    def listing(self, made: KernelObject, source: Source | None) -> str:
        return "\n".join(CudaCode.unpack(made.code).resources) + "\n"

    def load(self, kernel: Kernel, made: KernelObject) -> GpuKernel:
        return GpuKernel(
            kernel,
            made.nests,
            made.lines,
            made.proof,
            CudaCode.unpack(made.code),
            self.target,
            kernel.fingerprint + self.variant,
            self.is_here,
        )

    def completed(self, graph: Graph, built: Mapping[str, BuiltKernel]) -> Graph:
        """Each kernel with the scratch that its call is to be given: memory that is taken during an
        execution could not be captured into a command buffer."""
        nodes = tuple(self._with_scratch(node, built) for node in graph.nodes)
        return graph if nodes == graph.nodes else replace(graph, nodes=nodes)

    def _with_scratch(self, node: Node, built: Mapping[str, BuiltKernel]) -> Node:
        if node.op == KERNEL_OP:
            kernel = built[str(node.attributes["id"])]
            size = kernel.source.scratch_bytes if isinstance(kernel, GpuKernel) else 0
            return (
                replace(node, attributes={**node.attributes, "scratch_bytes": size})
                if size
                else node
            )
        regions = tuple(self.completed(region, built) for region in node.regions)
        return node if regions == node.regions else replace(node, regions=regions)

    def reported(self, report: Report, plan: Plan, options: Options) -> Report:
        if self.deterministic:
            return report
        return replace(
            report, kernels=tuple(as_tuned(k, self.target, options) for k in report.kernels)
        )


def _depends_on_order(loops: LoopProgram) -> bool:
    """Whether last bits of results may differ from run to run."""
    return any(
        isinstance(stmt, Accumulate)
        and stmt.atomic
        and stmt.combiner.name in ("add", "mul")
        and stmt.buffers[0].dtype.is_float
        for stmt in walk(loops.body)
    )
