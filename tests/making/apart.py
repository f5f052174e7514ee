"""Functions as the compiler takes them apart: kernels, and what connects them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import jax
import numpy as np
from jaxlib.mlir import ir, passmanager

from hlo_mlc.backends.cuda import limits_of, stays_complex
from hlo_mlc.expr.layout import restored, stored
from hlo_mlc.frontend.emit import KERNEL_OP
from hlo_mlc.frontend.importer import import_function
from hlo_mlc.graph.core import Graph, Node
from hlo_mlc.ops.registry import evaluate_graph, references
from hlo_mlc.partition.choose.cost import choose_all
from hlo_mlc.partition.costs import Costs
from hlo_mlc.partition.fuse.limits import LIMITS, FusionLimits
from hlo_mlc.partition.kernel import Kernel
from hlo_mlc.partition.planner import partition
from hlo_mlc.passes.complex_parts import nothing, split_complex
from hlo_mlc.passes.packed_integers import in_bytes
from hlo_mlc.passes.simplify import simplify
from hlo_mlc.target import cuda
from hlo_mlc.target.cpu import named
from hlo_mlc.tensor.core import TensorProgram

GPU = limits_of(cuda.named("sm_90"))
PLANNED = named("x86-64-v4")  # what functions are taken apart for, wherever the parts run then
Arrays = Sequence[np.ndarray]
Execute = Callable[[TensorProgram, Arrays], list[np.ndarray]]


@dataclass(frozen=True, slots=True)
class Parts:
    """A function as the compiler takes it apart: kernels, and the graph that connects them."""

    graph: Graph
    kernels: Mapping[str, Kernel]

    @property
    def programs(self) -> list[TensorProgram]:
        return [kernel.program for kernel in self.kernels.values()]

    def run(self, args: Arrays, execute: Execute) -> list[np.ndarray]:
        """The results of the function, with `execute` running its kernels.

        Raises: UnsupportedOpError for what only XLA can run.
        """

        def kernel(node: Node, operands: Arrays) -> Arrays:
            given, found = (
                [layout[::-1] for layout in node.attributes.get(name, [()] * len(values))]
                for values, name in (
                    (node.operands, "operand_layouts"),
                    (node.results, "result_layouts"),
                )
            )
            laid = (stored(a, order) for a, order in zip(operands, given, strict=True))
            parts = [np.stack((a.real, a.imag), -1) if a.dtype.kind == "c" else a for a in laid]
            results = execute(self.kernels[node.attributes["id"]].program, parts)
            return [
                restored(r, v.type, order)
                for r, v, order in zip(results, node.results, found, strict=True)
            ]

        return list(evaluate_graph(self.graph, args, instead={**references, KERNEL_OP: kernel}))


def take_apart(
    function: Callable, *args: object, platform: str = "cpu", limits: FusionLimits | None = None
) -> Parts:
    traced = jax.jit(function, keep_unused=True).trace(*args)
    module = traced.lower(lowering_platforms=(platform,)).compiler_ir()
    return take_module_apart(module, limits or (GPU if platform == "cuda" else LIMITS))


def take_module_apart(module: ir.Module, limits: FusionLimits = LIMITS) -> Parts:
    with module.context:
        passmanager.PassManager.parse("builtin.module(inline,symbol-dce,canonicalize,cse)").run(
            module.operation
        )
    graph, _ = simplify(in_bytes(import_function(module)), references, verify=True)
    stays = nothing if limits == LIMITS else stays_complex
    graph, _ = simplify(split_complex(graph, stays), references, verify=True)
    plan = partition(
        graph, lambda cluster: choose_all(cluster, PLANNED), Costs(PLANNED), limits=limits
    )
    return Parts(plan.graph, {c.kernel.fingerprint: c.kernel for c, _ in plan.taken})
