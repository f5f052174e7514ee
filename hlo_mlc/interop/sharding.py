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

What is read after it was folded over a cut dimension has to wait for the other devices, which a
kernel cannot.  That is known no earlier than the partitioner asks: where a function is a part of
others, nothing says beforehand how its arguments lie.  So kernels are chosen as for one device, and
those that fold and read over what turns out to be cut are computed in pieces.

Kernels see the parts of complex numbers as one more dimension, which no other device has a part of.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy

from hlo_mlc.backends.base import BuiltKernel
from hlo_mlc.backends.cpu import ShardedCpuBackend, sharded_cpu_backend
from hlo_mlc.building import build_kernels
from hlo_mlc.expr.core import Buffer
from hlo_mlc.frontend.emit import KERNEL_TARGET
from hlo_mlc.frontend.walking import operations
from hlo_mlc.interop import compat_meshes
from hlo_mlc.interop.extraction import function_named
from hlo_mlc.partition.kernel import Kernel, make_kernel
from hlo_mlc.report import Report
from hlo_mlc.support.dumps import Recorder
from hlo_mlc.support.faults import Contained
from hlo_mlc.support.options import Options
from hlo_mlc.tensor.core import TensorProgram
from hlo_mlc.tensor.pieces import Piece, pieces
from hlo_mlc.tensor.sharding import Factor, factors


def _multiplied(array: jax.Array, names: tuple[str, ...]) -> jax.Array:
    """The product over devices, which JAX has no name for: each has all factors, and multiplies."""
    return jnp.prod(jax.lax.all_gather(array, names), 0, dtype=array.dtype)


_NO_MESH = jax.sharding.AbstractMesh((), ())
"""Whatever a user has set, nothing is sharded in the program of a device."""

_CONSTRAINT = "sdy.sharding_constraint"
_JOINED_BY = {"add": jax.lax.psum, "mul": _multiplied, "max": jax.lax.pmax, "min": jax.lax.pmin}


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

    def partition(
        self, mesh: Any, operands: Sequence[Any], results: Sequence[Any]
    ) -> tuple[Any, Any, Any, Any]:
        """What `custom_partitioning` asks for: the function of a device's parts, and how results
        and operands are to be sharded for it."""
        program = self.kernel.kernel.program
        (local, computed), names = self._built(program, {}), {}
        with self.contained():  # where it fails, each device computes all
            assigned = _assigned(
                self.factors, mesh.shape, program, _names(operands), _names(results)
            )
            local, computed = self._built(
                program,
                {f: prod(mesh.shape[name] for name in chosen) for f, chosen in assigned.items()},
            )
            names = assigned

        def run(*arrays: jax.Array) -> list[jax.Array]:
            with jax.sharding.use_abstract_mesh(_NO_MESH):
                return computed_by_a_device(*arrays)

        def computed_by_a_device(*arrays: jax.Array) -> list[jax.Array]:
            known = dict(zip(local.operands, map(_in_parts, arrays), strict=True))
            for piece, kernel in computed:
                given = [known[buffer] for buffer in piece.operands]
                known.update(
                    zip(piece.results, _call(kernel, self.backend.variant, given), strict=True)
                )
                for buffer, over, combiner in piece.joins:
                    chosen = tuple(name for factor in over for name in names[factor])
                    known[buffer] = _JOINED_BY[combiner](known[buffer], chosen)
            outs = [
                _whole(known[buffer], one.dtype)
                for buffer, one in zip(local.results, results, strict=False)
            ]
            return [*outs, np.uint8(0)] if len(outs) > 1 else outs

        def shardings(given: Sequence[Any], places: str) -> list[Any]:
            cut = {place: chosen for f, chosen in names.items() for place in getattr(f, places)}
            return [
                jax.sharding.NamedSharding(
                    mesh,
                    jax.sharding.PartitionSpec(
                        *(cut.get((number, d)) for d in range(len(one.shape)))
                    ),
                )
                for number, one in enumerate(given)
            ]

        return mesh, run, shardings(results, "results"), tuple(shardings(operands, "operands"))

    def _built(
        self, program: TensorProgram, parts: Mapping[Factor, int]
    ) -> tuple[TensorProgram, list[tuple[Piece, Kernel]]]:
        """What a device computes of factors in so many parts, and the kernels of its pieces."""
        local, found = pieces(program, parts)
        kernels = [make_kernel(p.steps, p.operands, p.results, p.aliases) for p in found]
        new = [k for k in kernels if k.fingerprint != self.kernel.kernel.fingerprint]
        if new:
            options = self.options.replace(choose="ours")  # what fails is raised
            self.keeps.extend(
                build_kernels(new, options, self.backend, Recorder(None)).built.values()
            )
        return local, list(zip(found, kernels, strict=True))


def _in_parts(array: jax.Array) -> jax.Array:
    """An array as kernels see it."""
    if not jnp.iscomplexobj(array):
        return array
    return jnp.stack((array.real, array.imag), -1)


def _whole(array: jax.Array, dtype: Any) -> jax.Array:
    """An array as the program has it."""
    if not jnp.issubdtype(dtype, jnp.complexfloating):
        return array
    return jax.lax.complex(array[..., 0], array[..., 1])


def _assigned(
    found: Sequence[Factor],
    sizes: Mapping[str, int],
    program: TensorProgram,
    operands: Sequence[Sequence[tuple[str, ...]]],
    results: Sequence[Sequence[tuple[str, ...]]],
) -> dict[Factor, tuple[str, ...]]:
    """The axes of the mesh that each factor is cut along: as the arrays are sharded, evenly, and
    each axis for one factor alone, that of which most bytes lie so already."""
    weighed = []
    for factor in found:
        cut: dict[tuple[str, ...], int] = {}
        for borders, places, buffers in (
            (operands, factor.operands, program.operands),
            (results, factor.results, program.results),
        ):
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
        *arrays, id=kernel.fingerprint + variant, dims=np.zeros(0, np.int64)
    )
    return list(outs)[: len(program.results)]


def make_partitionable(
    module: ir.Module,
    report: Report,
    options: Options,
    module_context: Any,
    mesh: Any,
    contained: Callable[[], Contained],
) -> None:
    """Has calls of kernels in a compiled module partitioned over a mesh by their rules; what fails
    then is `contained`."""
    mesh = compat_meshes.with_automatic_axes(mesh)
    backend = sharded_cpu_backend(options)
    kernels = {k.id + backend.variant: k.kept for k in report.kernels}
    known: dict[str, dict[str, ir.Attribute]] = {}
    for operation in operations(module, "stablehlo.custom_call"):
        attributes = operation.attributes
        if ir.StringAttr(attributes["call_target_name"]).value != KERNEL_TARGET or _is_of_a_device(
            operation
        ):
            continue
        kernel_id = attributes["backend_config"]["id"].value
        built = kernels[kernel_id]
        ranks = [[len(v.type.shape) for v in vs] for vs in (operation.operands, operation.results)]
        found, followed = (
            tuple(
                factor
                for factor in factors(built.kernel.program, may_run=may_run)
                if all(d < ranks[0][n] for n, d in factor.operands)
                and all(d < ranks[1][n] for n, d in factor.results)
            )
            for may_run in (False, True)
        )
        several = len(operation.results) > 1
        with module.context, operation.location, ir.InsertionPoint(operation):
            if kernel_id not in known:
                known[kernel_id] = compat_meshes.partitioned_call(
                    module_context,
                    mesh,
                    PartitionedKernel(built, backend, options, contained, found).partition,
                    len(operation.operands),
                    len(operation.results),
                )
            unread = [ir.RankedTensorType.get((), ir.IntegerType.get_unsigned(8))]
            types = [r.type for r in operation.results]
            call = ir.Operation.create(
                "stablehlo.custom_call",
                results=types[:-1] + unread if several else types,
                operands=list(operation.operands),
                attributes=known[kernel_id],
            )
            if operation.operands:  # Shardy takes no rules of others
                call.attributes["sdy.sharding_rule"] = _rule(
                    found, _beside(found, followed), built.kernel.program, ranks, several
                )
        for old, new in zip(operation.results, call.results, strict=True):
            if old.type == new.type:
                old.replace_all_uses_with(new)
        operation.erase()
    module.operation.verify()


def propagate_types(module: ir.Module, entry: str) -> None:
    """Leaves it to Shardy how values lie over explicit axes of a mesh, which are a part of types.

    JAX writes them behind each operation, where no kernel could reach over them:

        a = tanh(x);  b = constraint(a, P("i"));  c = b * b;  d = constraint(c, P("i"));  return d
        -> a = tanh(x);  c = a * a;  d = constraint(c, P("i"));  return d

    What stays is what a user asked for with `reshard`, and how results lie.
    """
    body = function_named(module, entry).regions[0].blocks[0]
    *_, terminator = body.operations
    dropped = [
        one
        for one in operations(module, _CONSTRAINT)
        if one.operands[0].owner != body and not _is_asked_for(one)
    ]
    for constraint in dropped:
        (value,), (result,) = constraint.operands, constraint.results
        for use in list(result.uses):
            if use.owner != terminator:
                use.owner.operands[use.operand_number] = value
        if not list(result.uses):
            constraint.erase()


def _is_asked_for(constraint: ir.Operation) -> bool:
    """Whether it changes how what JAX wrote one for lies, or may, as it is of a call's result."""
    maker = constraint.operands[0].owner
    if isinstance(maker, ir.Block) or maker.name not in (_CONSTRAINT, "func.call"):
        return False
    return (
        maker.name != _CONSTRAINT
        or maker.attributes["sharding"] != constraint.attributes["sharding"]
    )


def _beside(found: Sequence[Factor], others: Sequence[Factor]) -> list[Factor]:
    """Those others of which no dimension belongs to what was found, and that lead from operands to
    results."""
    operands, results = ({p for f in found for p in getattr(f, s)} for s in ("operands", "results"))
    return [
        f
        for f in others
        if f.operands
        and f.results
        and operands.isdisjoint(f.operands)
        and results.isdisjoint(f.results)
    ]


def _rule(
    found: Sequence[Factor],
    followed: Sequence[Factor],
    program: TensorProgram,
    ranks: Sequence[Sequence[int]],
    several: bool,
) -> ir.Attribute:
    """The factors for Shardy, and every other dimension, or the rest of one that a factor leads, as
    one that no device has a part of, and so those of which results are sharded as operands are for
    all that; the `ranks` are those that operands and results have in the program."""
    known = (*found, *followed)
    sizes = [factor.extent for factor in known]
    whole = [*range(len(found), len(known))]

    def mapped(buffers: Sequence[Buffer], of: Sequence[int], places: str) -> list[ir.Attribute]:
        numbers = {place: n for n, f in enumerate(known) for place in getattr(f, places)}
        mappings = []
        for number, buffer in enumerate(buffers):
            dimensions = []
            for d, extent in enumerate(buffer.shape[: of[number]]):
                made_of = [numbers[number, d]] if (number, d) in numbers else []
                rest = extent // sizes[made_of[0]] if made_of else extent
                if rest > 1 or not made_of:
                    made_of.append(len(sizes))
                    whole.append(len(sizes))
                    sizes.append(rest)
                dimensions.append(sdy.DimMappingAttr.get(made_of))
            mappings.append(sdy.TensorMappingAttr.get(dimensions))
        return mappings

    operands = mapped(program.operands, ranks[0], "operands")
    results = mapped(program.results, ranks[1], "results")
    unread = [sdy.TensorMappingAttr.get([])] if several else []
    return sdy.OpShardingRuleAttr.get(
        sizes,
        operands,
        results + unread,
        is_custom=True,
        need_replication_factors=whole,
        reduction_factors=[n for n, f in enumerate(found) if f.folds and not f.results],
    )


def _is_of_a_device(operation: ir.Operation) -> bool:
    """Whether a `shard_map` around an operation says what it is to each device: nothing is left to
    be partitioned, and XLA's partitioner ends the process where it is asked to."""
    while (above := operation.parent) is not None:
        operation = above.operation
        if operation.name == "sdy.manual_computation":
            return True
    return False
