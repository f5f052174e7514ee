"""Programs that are partitioned over devices: our kernels compute the parts that a device has.

Where arrays lie on which device is decided by JAX's propagation of shardings (Shardy) and by XLA's
partitioner, over the whole program, when it is compiled.  Neither looks into a custom call: its
operands would be gathered on every device.  So a call of ours is one of JAX's
`custom_partitioning`, which both know: it carries a rule, derived from the kernel's tensor
expressions (`tensor/sharding.py`), that shardings propagate by, and when the partitioner comes to
it, it asks us for what a device is to run.  That is the kernel for the device's parts, cut out of
the same tensor program, and a fold over devices of what was folded over a dimension that was cut.

There are two other ways.  To propagate shardings first and compile the program of one device takes
Shardy's conversion of global programs to local ones, which in jaxlib 0.10 ends the process with
programs as simple as a gradient.  To put all of a function into one `shard_map` takes shardings
that are known while it is traced, and helps only where all follow one axis.

What is read after it was folded over a cut dimension has to wait for the other devices.  Kernels
cannot, so they end there: `part_at_folds` asks Shardy which folds those are, given what is known
of the operands so far.  It is a matter of speed alone: where nothing is known, a kernel may fold
and read, and then that dimension is gathered.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import jax
import numpy as np
from jaxlib.mlir import ir, passmanager
from jaxlib.mlir.dialects import sdy, stablehlo

from hlo_mlc.backends.base import BuiltKernel
from hlo_mlc.backends.cpu import ShardedCpuBackend, sharded_cpu_backend
from hlo_mlc.building import build_kernels
from hlo_mlc.expr.core import Buffer
from hlo_mlc.frontend.emit import KERNEL_TARGET
from hlo_mlc.interop import compat
from hlo_mlc.interop.extraction import MAIN, function_named
from hlo_mlc.partition.kernel import Kernel, make_kernel
from hlo_mlc.partition.plan import CONSTRAINT
from hlo_mlc.report import Report
from hlo_mlc.support.dumps import Recorder
from hlo_mlc.support.faults import Contained
from hlo_mlc.support.options import Options
from hlo_mlc.tensor.core import TensorProgram
from hlo_mlc.tensor.sharding import Factor, factors, part_of

_SHARDING = "sdy.sharding"
_NUMBER = "hlo_mlc.number"
_PRODUCT = "stablehlo.dot_general"
_FOLDS = (_PRODUCT, "stablehlo.reduce")
_PROPAGATE = "builtin.module(sdy-propagation-pipeline)"
_JOINED_BY = {"add": jax.lax.psum, "max": jax.lax.pmax, "min": jax.lax.pmin}


@dataclass(frozen=True, slots=True)
class PartitionedKernel:
    """A kernel in a program that is yet to be partitioned; what it `keeps` can be called as long as
    somebody has it."""

    kernel: BuiltKernel
    backend: ShardedCpuBackend
    options: Options
    contained: Callable[[], Contained]
    factors: tuple[Factor, ...]
    keeps: list[BuiltKernel] = field(default_factory=list)

    def partition(self, mesh: Any, operands: Sequence[Any], results: Sequence[Any]
                  ) -> tuple[Any, Any, Any, Any]:
        """What `custom_partitioning` asks for: the function of a device's parts, and how results
        and operands are to be sharded for it."""
        program = self.kernel.kernel.program
        local, names = self.kernel.kernel, {}
        with self.contained():  # where it fails, each device computes all
            assigned = _assigned(self.factors, mesh.shape, program, _names(operands),
                                 _names(results))
            local = self._built(part_of(program, {f: prod(mesh.shape[name] for name in chosen)
                                                  for f, chosen in assigned.items()}))
            names = assigned

        def run(*arrays: jax.Array) -> list[jax.Array]:
            outs = _call(local, self.backend.variant, arrays)
            for factor, chosen in names.items():
                for number, combiner in factor.joined:
                    outs[number] = _JOINED_BY[combiner](outs[number], chosen)
            return outs

        def shardings(given: Sequence[Any], places: str) -> list[Any]:
            cut = {place: chosen for f, chosen in names.items() for place in getattr(f, places)}
            return [jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(
                *(cut.get((number, d)) for d in range(len(one.shape)))))
                for number, one in enumerate(given)]

        return mesh, run, shardings(results, "results"), tuple(shardings(operands, "operands"))

    def _built(self, program: TensorProgram) -> Kernel:
        kernel = make_kernel(program.steps, program.operands, program.results, program.aliases)
        if kernel.fingerprint != self.kernel.kernel.fingerprint:
            options = self.options.replace(choose="ours")  # what fails is raised
            self.keeps.extend(build_kernels([kernel], options, self.backend,
                                            Recorder(None)).built.values())
        return kernel


def _assigned(found: Sequence[Factor], sizes: Mapping[str, int], program: TensorProgram,
              operands: Sequence[Sequence[tuple[str, ...]]],
              results: Sequence[Sequence[tuple[str, ...]]]) -> dict[Factor, tuple[str, ...]]:
    """The axes of the mesh that each factor is cut along: as the arrays are sharded, evenly, and
    each axis for one factor alone, that of which most bytes lie so already."""
    weighed = []
    for factor in found:
        cut: dict[tuple[str, ...], int] = {}
        for borders, places, buffers in ((operands, factor.operands, program.operands),
                                         (results, factor.results, program.results)):
            for number, d in places:
                names = borders[number][d]
                cut[names] = cut.get(names, 0) + buffers[number].bytes
        cut.pop((), None)
        if cut:
            names = max(cut, key=cut.__getitem__)
            weighed.append((cut[names], factor, names))
    assigned: dict[Factor, tuple[str, ...]] = {}
    taken: set[str] = set()
    for _, factor, names in sorted(weighed, key=lambda one: -one[0]):
        names = tuple(name for name in names if name not in taken)
        while names and factor.extent % prod(sizes[name] for name in names):
            names = names[:-1]
        if names:
            assigned[factor] = names
            taken.update(names)
    return assigned


def _names(arrays: Sequence[Any]) -> list[list[tuple[str, ...]]]:
    """The axes of the mesh along which each dimension of some arrays is sharded."""
    def listed(names: Any) -> tuple[str, ...]:
        return () if names is None else (names,) if isinstance(names, str) else tuple(names)

    return [[*map(listed, array.sharding.spec)] for array in arrays]


def _call(kernel: Kernel, variant: str, arrays: Sequence[jax.Array]) -> list[jax.Array]:
    """The results of a kernel; several have one more, as `frontend/emit.py` says."""
    program = kernel.program
    types = [jax.ShapeDtypeStruct(b.shape, b.dtype.numpy) for b in program.results]
    if len(types) > 1:
        types.append(jax.ShapeDtypeStruct((0,), np.uint8))
    aliases = {program.operands.index(o): program.results.index(r) for r, o in program.aliases}
    outs = jax.ffi.ffi_call(KERNEL_TARGET, types, input_output_aliases=aliases)(
        *arrays, id=kernel.fingerprint + variant, dims=np.zeros(0, np.int64))
    return [*outs[:-1], np.uint8(0)] if len(types) > 1 else list(outs)


def make_partitionable(module: ir.Module, report: Report, options: Options, module_context: Any,
                       mesh: Any, contained: Callable[[], Contained]) -> None:
    """Has calls of kernels in a compiled module partitioned over a mesh by their rules; what fails
    then is `contained`."""
    backend = sharded_cpu_backend(options)
    kernels = {k.id + backend.variant: k.kept for k in report.kernels}
    known: dict[str, dict[str, ir.Attribute]] = {}
    for operation in _operations(module, "stablehlo.custom_call"):
        attributes = operation.attributes
        if ir.StringAttr(attributes["call_target_name"]).value != KERNEL_TARGET:
            continue
        kernel_id = attributes["backend_config"]["id"].value
        built = kernels[kernel_id]
        found = factors(built.kernel.program)
        several = len(operation.results) > 1
        with module.context, operation.location, ir.InsertionPoint(operation):
            if kernel_id not in known:
                known[kernel_id] = compat.partitioned_call(
                    module_context, mesh,
                    PartitionedKernel(built, backend, options, contained, found).partition,
                    len(operation.operands), len(operation.results))
            unread = [ir.RankedTensorType.get((), ir.IntegerType.get_unsigned(8))]
            types = [r.type for r in operation.results]
            call = ir.Operation.create(
                "stablehlo.custom_call", results=types[:-1] + unread if several else types,
                operands=list(operation.operands),
                attributes=known[kernel_id])
            if operation.operands:  # Shardy takes no rules of others
                call.attributes["sdy.sharding_rule"] = _rule(found, built.kernel.program, several)
        for old, new in zip(operation.results, call.results, strict=True):
            if old.type == new.type:
                old.replace_all_uses_with(new)
        operation.erase()
    module.operation.verify()


def _rule(found: Sequence[Factor], program: TensorProgram, several: bool) -> ir.Attribute:
    """The factors for Shardy, and every other dimension as one that no device has a part of."""
    sizes = [factor.extent for factor in found]
    whole: list[int] = []

    def mapped(buffers: Sequence[Buffer], places: str) -> list[ir.Attribute]:
        numbers = {place: n for n, f in enumerate(found) for place in getattr(f, places)}
        mappings = []
        for number, buffer in enumerate(buffers):
            dimensions = []
            for d, extent in enumerate(buffer.shape):
                if (number, d) not in numbers:
                    numbers[number, d] = len(sizes)
                    whole.append(len(sizes))
                    sizes.append(extent)
                dimensions.append(sdy.DimMappingAttr.get([numbers[number, d]]))
            mappings.append(sdy.TensorMappingAttr.get(dimensions))
        return mappings

    operands, results = mapped(program.operands, "operands"), mapped(program.results, "results")
    unread = [sdy.TensorMappingAttr.get([])] if several else []
    return sdy.OpShardingRuleAttr.get(
        sizes, operands, results + unread, is_custom=True, need_replication_factors=whole,
        reduction_factors=[n for n, f in enumerate(found) if f.joined and not f.results])


def part_at_folds(extracted: ir.Module, module: ir.Module, call: ir.Operation,
                  mesh: Any) -> None:
    """Puts a constraint that constrains nothing behind each fold over what devices have parts of,
    in the function that a call of the program's calls, taken out: no kernel reaches over it.

    That is known where the program as far as it is written leads to the call.
    """
    program = call.parent.operation
    if program.name != "func.func" or program.attributes["sym_name"].value != MAIN:
        return
    copy, folds = _ending_here(module), []
    for function in _operations(extracted, "func.func"):
        twin = function_named(copy, function.attributes["sym_name"].value).operation
        for fold, its in zip(_operations(function, *_FOLDS), _operations(twin, *_FOLDS),
                             strict=True):
            with module.context:
                its.attributes[_NUMBER] = ir.IntegerAttr.get(ir.IndexType.get(), len(folds))
            folds.append(fold)
    with module.context:
        passmanager.PassManager.parse(_PROPAGATE).run(copy.operation)
    for number in {o.attributes[_NUMBER].value for o in _operations(copy, *_FOLDS)
                   if _NUMBER in o.attributes and _is_over_parts(o)}:
        _part_behind(folds[number], mesh)


def _ending_here(module: ir.Module) -> ir.Module:
    """A copy of a program that is being written, as if the last call so far were the last."""
    with module.context, ir.Location.unknown():
        copy = ir.Module.create()
        for operation in module.body.operations:
            operation.operation.clone(ip=ir.InsertionPoint(copy.body))
        main = function_named(copy, MAIN)
        body = main.regions[0].blocks[0]
        call = _operations(body, "func.call")[-1]
        main.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(
            main.type.inputs, [result.type for result in call.results]))
        del main.attributes["res_attrs"]
        ir.Operation.create("func.return", operands=list(call.results), ip=ir.InsertionPoint(body))
    return copy


def _part_behind(fold: ir.Operation, mesh: Any) -> None:
    with fold.context, fold.location:
        axes = [sdy.MeshAxisAttr.get(name, size) for name, size in mesh.shape.items()]
        for result in fold.results:
            anything = sdy.TensorShardingAttr.get(sdy.MeshAttr.get(axes), [
                sdy.DimensionShardingAttr.get([], is_closed=False)
                for _ in range(ir.RankedTensorType(result.type).rank)])
            readers = [(use.owner, use.operand_number) for use in result.uses]
            border = ir.Operation.create(
                CONSTRAINT, results=[result.type], operands=[result],
                attributes={"sharding": anything}, ip=ir.InsertionPoint(fold))
            border.move_after(fold)
            for reader, number in readers:
                reader.operands[number] = border.result


def _is_over_parts(fold: ir.Operation) -> bool:
    """Whether a product or a reduction folds a dimension that is sharded."""
    if fold.name == _PRODUCT:
        numbers = stablehlo.DotDimensionNumbers(fold.attributes["dot_dimension_numbers"])
        over = [numbers.lhs_contracting_dimensions, numbers.rhs_contracting_dimensions]
    else:
        over = [fold.attributes["dimensions"]] * (len(fold.operands) // 2)
    return any(_is_sharded(fold.operands[n], d) for n, folded in enumerate(over) for d in folded)


def _is_sharded(value: ir.Value, dimension: int) -> bool:
    """Whether shardings were propagated to a dimension of a value."""
    if isinstance(value.owner, ir.Block):
        number, holder = ir.BlockArgument(value).arg_number, value.owner.owner.operation
        if holder.name == "func.func":
            described = holder.attributes["arg_attrs"][number] \
                if "arg_attrs" in holder.attributes else {}
            return _SHARDING in described and _cuts(described[_SHARDING], dimension)
    else:
        number, holder = ir.OpResult(value).result_number, value.owner
    if _SHARDING not in holder.attributes:
        return False
    shardings = sdy.TensorShardingPerValueAttr(holder.attributes[_SHARDING]).shardings
    return number < len(shardings) and _cuts(shardings[number], dimension)


def _cuts(sharding: ir.Attribute, dimension: int) -> bool:
    dimensions = sdy.TensorShardingAttr(sharding).dimension_shardings
    return bool(sdy.DimensionShardingAttr(dimensions[dimension]).axes)


def _operations(within: ir.Module | ir.Operation | ir.Block, *names: str) -> list[ir.Operation]:
    """The operations of these names, in order."""
    found = []

    def visit(operation: ir.Operation) -> ir.WalkResult:
        if operation.name in names:
            found.append(operation)
        return ir.WalkResult.ADVANCE

    for one in within.operations if isinstance(within, ir.Block) else [within]:
        one.operation.walk(visit)
    return found
