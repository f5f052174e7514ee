"""Kernels for CPUs: LLVM IR, one machine function each, linked into this process."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from hlo_mlc.backends.base import BuiltKernel, KernelObject, PromisedKernel, Source
from hlo_mlc.backends.recorded import as_tuned, pinned, recorded_or, recorded_schedules
from hlo_mlc.codegen.cpu.assemble import assembly, compile_ir, warm_up
from hlo_mlc.partition.fuse.limits import LIMITS
from hlo_mlc.report import Report
from hlo_mlc.runtime import variants
from hlo_mlc.runtime.rates import with_known_rates
from hlo_mlc.runtime.variants import KernelCode, Lease, Promise
from hlo_mlc.support.errors import CodeLimitError
from hlo_mlc.support.lazy_imports import lazy_imports
from hlo_mlc.support.options import Options
from hlo_mlc.target.cpu import HOST, CpuTarget
from hlo_mlc.target.levels import planned_for

with lazy_imports():
    from hlo_mlc.backends import interpreted
    from hlo_mlc.codegen.cpu import printer
    from hlo_mlc.ops import registry
    from hlo_mlc.partition import costs, row_blocks
    from hlo_mlc.partition import plan as plans
    from hlo_mlc.partition.choose import cost, predictions, shares, worth, xla_faults
    from hlo_mlc.passes import complex_parts, complex_transforms, simplify
    from hlo_mlc.tensor import sharding
    from hlo_mlc.tuning import generator

if TYPE_CHECKING:
    from hlo_mlc.graph.core import Graph, Node
    from hlo_mlc.loops.core import LoopProgram
    from hlo_mlc.partition.cluster import Cluster
    from hlo_mlc.partition.costs import Costs
    from hlo_mlc.partition.kernel import Kernel
    from hlo_mlc.partition.plan import Chooser, Plan, Verdict
    from hlo_mlc.runtime.records import Schedules
    from hlo_mlc.tuning.generator import TemplateGenerator


@dataclass(frozen=True, slots=True)
class LlvmSource:
    """A kernel as LLVM IR."""

    symbol: str
    scratch_bytes: int
    text: str
    target: CpuTarget

    def assemble(self) -> bytes:
        """A relocatable object file."""
        return compile_ir(self.text, self.target)


@dataclass(frozen=True, slots=True, eq=False)
class CpuKernel(PromisedKernel):
    """A kernel in this process, or one that will be."""

    lease: Lease
    loaded: Future[KernelCode]
    promise: Promise | None = None

    @property
    def code(self) -> KernelCode:
        """Where it lies, as soon as it does."""
        return self.loaded.result()

    def publish(self) -> None:
        """Make it what programs call from now on."""
        if self.loaded.done() and self.wait():  # programs that call it wait for it otherwise
            variants.publish(self.lease.kernel_id, self.code)

    def keep(self, loaded: BuiltKernel) -> None:
        assert isinstance(loaded, CpuKernel)
        self._keep(loaded.code)

    def wait(self) -> bool:
        return self.loaded.exception() is None and not self.code.is_interpreted

    def give_up(self, loops: LoopProgram) -> None:
        assert self.promise is not None
        try:
            self._keep(interpreted.interpreted(loops))
        except BaseException as error:
            self.promise.break_()
            self.loaded.set_exception(error)

    def _keep(self, code: KernelCode) -> None:
        assert self.promise is not None
        self.promise.keep(code)
        self.loaded.set_result(code)


@dataclass(frozen=True, slots=True)
class CpuBackend:
    """CPUs; `hlo_mlc/backends/base.py` says what each of these is."""

    target: CpuTarget
    pin: str = ""  # of the records that kernels are built by, if they are pinned
    # Programs are compiled for one number of rows after the other. Their kernels are as others are.
    any_rows: bool = field(default=False, compare=False)
    # And those that other numbers of rows need are built with them.
    all_rows: bool = field(default=False, compare=False)
    # Where that is known, the axes along which parameters have rows, by their numbers.
    row_axes: Mapping[int, int] = field(default_factory=dict, compare=False)

    machines = "CPUs"
    refusals = (CodeLimitError,)
    has_checks = is_bounded = True
    suffixes = ("ll", "s")
    limits = LIMITS

    @property
    def generator(self) -> TemplateGenerator:
        return generator.TemplateGenerator()

    @property
    def variant(self) -> str:
        """Programs for this machine and for levels below it, and by different records, may be in
        one process, and each calls its own code."""
        kinds = (
            [] if self.target.name == HOST else [self.target.name],
            ["deterministic"] * self.target.deterministic,
            [self.pin] if self.pin else [],
        )
        return "".join(f"-{one}" for kind in kinds for one in kind)

    @property
    def identity(self) -> str:
        return str(self.target)

    @property
    def decides(self) -> str | None:  # kernels for any rows serve more than one program
        return None if self.any_rows else f"{self}\n{self.target.rates}\n{self.identity}"

    def require(self) -> None:
        pass

    def warm_up(self) -> None:
        warm_up(self.target)

    def in_parts(self, graph: Graph, options: Options) -> Graph:
        everything = options.choose == "ours"
        gains = complex_parts.has_complex if everything else complex_parts.gains_in_parts
        if not gains(graph):
            return graph
        # Transforms by products are not known to be faster.
        stays = complex_parts.nothing if everything else complex_transforms.is_transform
        split = complex_parts.split_complex(graph, stays)
        return simplify.simplify(split, registry.references)[0]

    def chooser(self, options: Options) -> Chooser:
        rule = (
            cost.choose_all
            if options.choose == "ours"
            else recorded_or(cost.choose_predicted, options)
        )
        return lambda cluster: rule(cluster, self.target)

    @property
    def costs(self) -> Costs:
        return costs.Costs(self.target, row_blocks.MOST_ROWS if self.any_rows else None)

    def weighed(self, plan: Plan, graph: Graph, refused: Mapping[str, str]) -> Plan:
        wrong = xla_faults.fault(plan.came.nodes)
        plan = worth.worth_it(plan, self.target)
        long = worth.not_worth_compiling(plan, self.target)
        plan = plans.without(plan, graph, long)
        if least := worth.in_place_of_what_came(plan, self.target, {*refused, *long}):
            reason = wrong or "but what came takes XLA longer than what is made of it here"
            plan = plans.with_taken(plan, graph, least, reason)
        if more := worth.completion(plan, self.target, {*refused, *long}):
            plan = plans.with_taken(
                plan,
                graph,
                more,
                "but so little is left to XLA then that it starts no thread for it",
            )
        return plans.with_fault(plan, wrong)

    def divided(self, plan: Plan, graph: Graph, refused: Mapping[str, str]) -> Plan:
        if not self.any_rows:
            return plan
        return plans.in_row_blocks(
            plan, graph, self.target.l2_bytes // 2, refused, self.row_axes, self.all_rows
        )

    def least_us(self, node: Node) -> float:
        return shares.least_us(node, self.target)

    def schedules(self, kernel: Kernel, options: Options) -> Schedules:
        return recorded_schedules(kernel, self, options)

    def print(self, loops: LoopProgram, checked: bool, most_lines: int) -> LlvmSource:
        return LlvmSource(
            loops.name,
            loops.scratch_bytes,
            printer.print_program(loops, self.target, checked, most_lines),
            self.target,
        )

    def listing(self, made: KernelObject, source: Source | None) -> str:
        return "" if source is None else assembly(source.text, self.target)

    def load(self, kernel: Kernel, made: KernelObject) -> CpuKernel:
        code: Future[KernelCode] = Future()
        code.set_result(variants.load_object(made.code, made.symbol, made.scratch_bytes))
        return CpuKernel(kernel, made.nests, made.lines, made.proof, self._lease(kernel), code)

    def promise(self, kernel: Kernel, draft: KernelObject) -> CpuKernel:
        lease = self._lease(kernel)
        return CpuKernel(
            kernel,
            draft.nests,
            draft.lines,
            draft.proof,
            lease,
            Future(),
            Promise(lease.kernel_id, draft.scratch_bytes),
        )

    def _lease(self, kernel: Kernel) -> Lease:
        return variants.lease(kernel.fingerprint + self.variant)

    def completed(self, graph: Graph, built: Mapping[str, BuiltKernel]) -> Graph:
        return graph

    def reported(self, report: Report, plan: Plan, options: Options) -> Report:
        return replace(
            report,
            predicted=predictions.predict(plan, self.target),
            taken=predictions.predict_clusters(plan.taken, self.target),
            rejected=predictions.predict_clusters(plan.rejected, self.target),
            level="" if self.target.name == HOST else self.target.name,
            kernels=tuple(as_tuned(k, self.target, options) for k in report.kernels),
        )


_WHOLE = "devices cannot compute parts of it: each would have to gather all that it reads"


@dataclass(frozen=True, slots=True)
class ShardedCpuBackend(CpuBackend):
    """CPUs among several devices, each of which has parts of the arrays: what it takes can be cut
    into parts as well."""

    limits = replace(LIMITS, takes_layouts=False)  # parts lie row by row
    decides = None  # how devices share kernels is asked of their programs

    def chooser(self, options: Options) -> Chooser:
        rule = CpuBackend.chooser(self, options)

        def choose(cluster: Cluster) -> Verdict:
            verdict, program = rule(cluster), cluster.kernel.program
            if verdict.fault or all(operand.size < 2 for operand in program.operands):
                return verdict
            # Along which dimension arrays are sharded is not known yet.
            found = sharding.factors(program)
            if (found and options.choose == "ours") or sharding.pays_to_share(program, found):
                return verdict
            return replace(verdict, take=False, reason=_WHOLE, opens=True)

        return choose

    @property
    def costs(self) -> Costs:  # what can be cut is not computed together with what cannot
        return costs.Costs(self.target, merges=False)

    def weighed(self, plan: Plan, graph: Graph, refused: Mapping[str, str]) -> Plan:
        plan, wrong = worth.worth_it(plan, self.target), xla_faults.fault(plan.came.nodes)
        # For nothing else what is rejected is taken: devices may have to gather all that it reads.
        if wrong and (least := worth.in_place_of_what_came(plan, self.target, refused)):
            plan = plans.with_taken(plan, graph, least, wrong)
        return plans.with_fault(plan, wrong)

    def reported(self, report: Report, plan: Plan, options: Options) -> Report:
        programs = {c.kernel.fingerprint: c.kernel.program for c, _ in plan.taken}
        report = CpuBackend.reported(self, report, plan, options)
        return replace(
            report,
            kernels=tuple(
                replace(k, reason=f"{k.reason}; devices share {sharding.described(programs[k.id])}")
                for k in report.kernels
            ),
        )


def cpu_backend(options: Options) -> CpuBackend:
    """The CPU that the options name."""
    return CpuBackend(target_of(options), pinned(options))


def sharded_cpu_backend(options: Options) -> ShardedCpuBackend:
    """The same among several devices."""
    return ShardedCpuBackend(target_of(options), pinned(options))


def rows_cpu_backend(options: Options) -> CpuBackend:
    """The same for any number of rows."""
    return replace(cpu_backend(options), any_rows=True)


def all_rows_cpu_backend(options: Options) -> CpuBackend:
    """The same with all that other numbers of rows need."""
    return replace(rows_cpu_backend(options), all_rows=True)


def target_of(options: Options) -> CpuTarget:
    """The CPU to generate code for, and how fast it is, as measured or as is typical of it.

    Raises: UnknownTargetError for what is no CPU, or one that has more than this machine.
    """
    target = planned_for(options.target)
    if options.threads is not None:
        target = replace(target, cores=options.threads)
    if options.deterministic:
        return replace(target, deterministic=True)
    return with_known_rates(target, options)
