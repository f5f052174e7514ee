"""What differs between JAX 0.10, 0.11 and 0.12, and all that we take from inside JAX but for the
rules of a call (`call_rules.py`)."""

from __future__ import annotations

import dataclasses
import inspect
import io
import math
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.extend.core as jex
from jax._src import (
    api,
    api_util,
    compiler,
    config,
    core,
    custom_partitioning,
    sharding_impls,
    source_info_util,
    traceback_util,
)
from jax._src import linear_util as lu
from jax._src.export import _export
from jax._src.interpreters import batching, mlir
from jax._src.interpreters import partial_eval as pe
from jax._src.state.types import AbstractRef
from jax._src.util import fun_name
from jax.extend.backend import get_backend
from jaxlib import _jax
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy

from hlo_mlc.frontend.walking import operations
from hlo_mlc.support.lazy_imports import lazy_imports

with lazy_imports():
    from hlo_mlc.partition.choose import xla_faults

jit = api.jit
"""JAX's own `jit`, whatever `jax.jit` stands for: it may be replaced by ours."""

UNSPECIFIED = inspect.signature(jit).parameters["in_shardings"].default
"""What `jax.jit` takes as "no sharding given"."""

NOT_SPECIFIED = inspect.signature(jit).parameters["fun"].default
"""What it takes as "no function given": it is to return a decorator."""

check_callable = api_util.check_callable
"""Raises the TypeError that `jax.jit` raises for what it cannot be applied to."""

name_of = fun_name
"""What JAX calls a function; a second argument says it of what has no name."""

hide_frames = traceback_util.register_exclusion
"""Leaves the frames of a folder's files out of the tracebacks that JAX filters."""

detach_constants = pe.separate_consts
"""Closed jaxpr -> (jaxpr that takes its constants as leading arguments, those constants)."""


def is_being_traced() -> bool:
    """Whether what runs now is written down, as `jax.jit` does, rather than computed."""
    return isinstance(core.trace_ctx.trace, pe.DynamicJaxprTrace)


def is_computing() -> bool:
    """Whether what runs now is neither written down nor transformed: calls compute results."""
    return isinstance(core.trace_ctx.trace, core.EvalTrace) and not jax.config.jax_disable_jit


def context() -> Any:
    """What JAX compiles for besides a function and its arguments: equal where that is the same."""
    return config.trace_context()


def described(value: Any) -> Any:
    """What `lower` takes in place of an argument that may be gone by then."""
    if not isinstance(value, jax.Array):
        return value
    return jax.ShapeDtypeStruct(
        value.shape,
        value.dtype,
        weak_type=value.weak_type,
        sharding=value.sharding if value.committed else None,
    )


def is_mutable(value: Any) -> bool:
    """Whether it is one of JAX 0.10's values of a type of their own that functions may change; JAX
    0.12 has none."""
    aval = (
        value.aval
        if isinstance(value, core.Tracer)
        else core.typeof(value)
        if core.valid_jaxtype(value)
        else None
    )
    return getattr(aval, "has_qdd", False)


@dataclass(frozen=True, slots=True)
class Arguments:
    """Those of a call that `jax.jit` traces: what is traced, and what is static to it.

    Arguments without tracers are static to `jax.jit`, whatever they consist of: the function gets
    the very same objects.
    """

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    static_argnums: tuple[int, ...]
    static_argnames: tuple[str, ...]
    operands: tuple[Any, ...]
    in_tree: Any

    @classmethod
    def of(cls, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Arguments:
        """Takes them apart."""

        def is_static(value: Any) -> bool:
            return not any(isinstance(leaf, core.Tracer) for leaf in jax.tree.leaves(value))

        argnums = tuple(i for i, value in enumerate(args) if is_static(value))
        argnames = tuple(name for name, value in kwargs.items() if is_static(value))
        given = (
            [value for i, value in enumerate(args) if i not in argnums],
            {name: value for name, value in kwargs.items() if name not in argnames},
        )
        operands, in_tree = jax.tree.flatten(given)
        return cls(args, kwargs, argnums, argnames, tuple(operands), in_tree)

    @property
    def types(self) -> list[Any]:
        return [core.typeof(value) for value in self.operands]

    @property
    def kind(self) -> tuple[Any, ...]:
        """Equal where the function is the same to `jax.jit`."""
        return (
            self.in_tree,
            self.types,
            self.static_argnums,
            self.static_argnames,
            [self.args[i] for i in self.static_argnums],
            [self.kwargs[name] for name in self.static_argnames],
        )


def trace(fun: Callable[..., Any], given: Arguments) -> tuple[Any, Callable[[Sequence[Any]], Any]]:
    """A function as a closed jaxpr, within the trace of the `jax.jit` that was given these
    arguments; and what makes the function's result of those of the jaxpr.

    It is traced in no other way, nor counted a second time: whoever has JAX count or explain its
    traces sees one.
    """
    out_tree, wrong = None, {}

    def flat(*leaves: Any) -> list[Any]:
        nonlocal out_tree
        traced, named = jax.tree.unflatten(given.in_tree, leaves)
        remaining = iter(traced)
        outs, out_tree = jax.tree.flatten(
            fun(
                *(
                    value if i in given.static_argnums else next(remaining)
                    for i, value in enumerate(given.args)
                ),
                **{**given.kwargs, **named},
            )
        )
        wrong.update((n, out) for n, out in enumerate(outs) if not core.valid_jaxtype(out))
        return [0 if n in wrong else out for n, out in enumerate(outs)]

    debug_info = api_util.debug_info(
        "jit",
        fun,
        given.args,
        dict(given.kwargs),
        static_argnums=given.static_argnums,
        static_argnames=given.static_argnames,
    )
    jaxpr, _, constants = pe.trace_to_jaxpr_dynamic(
        lu.wrap_init(flat, debug_info=debug_info), given.types
    )

    def result(outs: Sequence[Any]) -> Any:
        # What is no array goes back to `jax.jit`, which says so, and which of the results it is.
        return jax.tree.unflatten(out_tree, [wrong.get(n, out) for n, out in enumerate(outs)])

    return jex.ClosedJaxpr(jaxpr, constants), result


def bind_again(equation: Any, operands: Sequence[Any]) -> Sequence[Any]:
    """The results of an equation's primitive for other operands, as if it stood where it does."""
    primitive, source = equation.primitive, equation.source_info
    names = source_info_util.current_name_stack() + source.name_stack
    with source_info_util.user_context(source.traceback, name_stack=names), equation.ctx.manager:
        results = primitive.bind(*operands, **primitive.get_bind_params(equation.params))
    return results if primitive.multiple_results else [results]


def has_effects(code: Any) -> bool:
    """Whether running a jaxpr, or an equation, does more than compute results (prints, callbacks
    with effects), or concerns references.

    Use of a mapped axis is an effect to JAX, but not to us.
    """
    if any(not isinstance(effect, core.NamedAxisEffect) for effect in code.effects):
        return True
    return any(isinstance(v.aval, AbstractRef) for v in (*code.invars, *code.outvars))


def equation_like(
    equation: Any,
    operands: Sequence[Any],
    results: Sequence[Any],
    primitive: Any,
    parameters: dict[str, Any],
    effects: Any,
) -> Any:
    """Another equation, as if it stood where this one does."""
    return core.new_jaxpr_eqn(
        list(operands),
        list(results),
        primitive,
        parameters,
        effects,
        equation.source_info,
        equation.ctx,
    )


def without_names(debug_info: Any) -> Any:
    """What is known of a function, but for the names of its arguments and results."""
    return debug_info._replace(arg_names=None, result_paths=None)


def equation_line(equation: Any) -> str:
    """Where an equation comes from: `model.py:7 print`; "" where nobody knows."""
    frame = source_info_util.user_frame(equation.source_info.traceback)
    if frame is None:
        return ""
    return f"{frame.file_name}:{frame.start_line} {equation.primitive.name}"


def partition_count(axis_context: Any) -> int:
    """Over how many devices the partitioner will split what is lowered in this context.

    Axes that `shard_map` made manual do not count: there, the program of one device is written.
    """
    if hasattr(axis_context, "num_devices"):
        return axis_context.num_devices
    mesh = axis_context.mesh
    return math.prod(
        size for name, size in mesh.shape.items() if name not in axis_context.manual_axes
    )


def mesh_of(module_context: Any, types: Sequence[Any]) -> Any | None:
    """The mesh of all devices that values of these types may be sharded over by JAX's propagation
    (Shardy), if there are several, and it is used for all axes.

    Types of arguments that were on no device say nothing; where the program wants them does.
    """
    axis_context = module_context.axis_context
    count = partition_count(axis_context)
    if count == 1 or hasattr(axis_context, "mesh") or not config.use_shardy_partitioner.value:
        return None
    known = {t.sharding.mesh for t in types if hasattr(t, "sharding") and not t.sharding.mesh.empty}
    known = known or _meshes_named(module_context.module)
    if len(known) != 1:
        return None
    (mesh,) = known
    return None if mesh._any_axis_manual or mesh.size != count else mesh


def with_automatic_axes(mesh: Any) -> Any:
    """The mesh as the partitioner sees it, which knows nothing of what axes are to the user."""
    return mesh.update_axis_types(dict.fromkeys(mesh.axis_names, jax.sharding.AxisType.Auto))


def _meshes_named(module: ir.Module) -> set[Any]:
    """The meshes over which a module, as far as it is written, says that something is sharded."""
    shardings = [
        one.attributes["sharding"] for one in operations(module, "sdy.sharding_constraint")
    ]
    shardings += [
        value["sdy.sharding"]
        for function in operations(module, "func.func")
        for name in ("arg_attrs", "res_attrs")
        if name in function.attributes
        for value in function.attributes[name]
        if "sdy.sharding" in value
    ]
    meshes = {sdy.TensorShardingAttr(sharding).mesh_or_ref for sharding in shardings}
    named = {
        tuple((axis.name, axis.size) for axis in map(sdy.MeshAxisAttr, mesh.axes))
        for mesh in map(sdy.MeshAttr, filter(sdy.MeshAttr.isinstance, meshes))
    }
    return {
        jax.sharding.AbstractMesh(
            tuple(size for _, size in axes),
            tuple(name for name, _ in axes),
            axis_types=(jax.sharding.AxisType.Auto,) * len(axes),
        )
        for axes in named
        if axes
    }


def partitioned_call(
    module_context: Any,
    mesh: Any,
    partition: Callable[..., Any],
    operand_count: int,
    result_count: int,
) -> dict[str, ir.Attribute]:
    """The attributes of a custom call that is partitioned over a mesh as `custom_partitioning` of
    JAX has it done; `partition` is kept as long as the program is."""
    info = custom_partitioning._ShardingCallbackInfo(
        None,
        partition,
        lambda sharding, rank: _named_sharding(sharding, rank, mesh),
        jax.tree.structure((0,) * operand_count),
        jax.tree.structure([0] * result_count),
        None,
        module_context,
        mesh,
        (),
    )
    # No other process finds the program in JAX's cache on disk, and then no kernels for it.
    key = secrets.token_hex(16)
    custom_partitioning._sharding_callbacks[key.encode()] = info
    module_context.add_keepalive(info)
    return {
        "call_target_name": ir.StringAttr.get(custom_partitioning._CUSTOM_PARTITIONING_CALL_NAME),
        "has_side_effect": ir.BoolAttr.get(False),
        "api_version": ir.IntegerAttr.get(ir.IntegerType.get_signless(32), 2),
        "called_computations": ir.ArrayAttr.get([]),
        "backend_config": ir.StringAttr.get(key),
        "mhlo.frontend_attributes": ir.DictAttr.get({"hlo_mlc": ir.StringAttr.get(key)}),
    }


def _named_sharding(sharding: Any, rank: int, mesh: Any) -> Any:
    """What XLA calls a sharding, in the names of a mesh; as if each device had all where these do
    not say it, such as for parts of an axis."""
    try:
        (spec, *_) = sharding_impls.parse_flatten_op_sharding(sharding, mesh)
    except Exception:  # which it is depends on the sharding and on JAX's version
        spec = ()
    return jax.sharding.NamedSharding(
        mesh, jax.sharding.PartitionSpec(*spec, *(None,) * (rank - len(spec)))
    )


def is_for_export(module_context: Any) -> bool:
    """Whether `jax.export` asks for the module that is being lowered."""
    return module_context.lowering_parameters.for_export


def has_symbolic_sizes(module_context: Any) -> bool:
    """Whether the module that is being lowered calls exported functions with symbolic sizes."""
    return module_context.shape_poly_state.uses_dim_vars


def resolved(module: ir.Module) -> ir.Module:
    """The module, whose @main has arguments of known sizes, with all others that follow from them,
    in the same context; what it asserts of them holds.

    Raises: ValueError where some do not follow, or what it asserts does not hold.
    """
    found = io.BytesIO()
    mlir.refine_polymorphic_shapes(module).operation.write_bytecode(found)
    with module.context:
        return ir.Module.parse(found.getvalue())


def symbols_of(exported: jax.export.Exported) -> dict[str, bool]:
    """The symbols in the sizes of an exported function's arguments, and of each whether some
    argument begins with it."""
    found: dict[str, bool] = {}
    for aval in exported.in_avals:
        for position, size in enumerate(aval.shape):
            for name in sorted(size._get_vars()) if jax.export.is_symbolic_dim(size) else ():
                found[name] = found.get(name, False) or position == 0
    return found


def with_sizes(
    exported: jax.export.Exported, sizes: Mapping[str, int]
) -> list[jax.ShapeDtypeStruct] | None:
    """The types of an exported function's arguments with these sizes for its symbols; None where
    it is not for such."""
    try:
        types = [
            jax.ShapeDtypeStruct(
                [
                    size._evaluate(sizes) if jax.export.is_symbolic_dim(size) else size
                    for size in aval.shape
                ],
                aval.dtype,
            )
            for aval in exported.in_avals
        ]
        args, kwargs = jax.tree.unflatten(exported.in_tree, types)
        jax.eval_shape(exported.call, *args, **kwargs)
    except (TypeError, ValueError):
        return None
    return types


def source_line(jaxpr: Any) -> tuple[str, int] | None:
    """The file and the line at which the function that a jaxpr was made from begins."""
    info = jaxpr.jaxpr.debug_info
    if info is None or info.func_filename is None or info.func_lineno is None:
        return None
    return info.func_filename, info.func_lineno


def refusing_vjp(
    exported: jax.export.Exported, refuse: Callable[[Any], Any]
) -> jax.export.Exported:
    """The exported function, which calls `refuse` where JAX asks for a derivative of a higher
    order than it has."""
    given = exported._get_vjp
    derivative = refuse if given is None else lambda it: refusing_vjp(given(it), refuse)
    return dataclasses.replace(exported, _get_vjp=derivative)


def map_calls_of_exported_functions() -> None:
    """Has `vmap` of an exported function call it for one element after the other, unless JAX knows
    better: without, it is an error."""
    primitive = _export.call_exported_p
    if primitive not in batching.fancy_primitive_batchers:
        batching.primitive_batchers[primitive] = partial(map_calls, primitive)


def map_calls(
    primitive: jex.Primitive, args: Sequence[Any], dims: Sequence[Any], **params: Any
) -> tuple[list[Any], list[int]]:
    """A batching rule: calls with one element of the batch after the other."""
    is_mapped = [dim is not None for dim in dims]
    mapped = [
        jax.numpy.moveaxis(arg, dim, 0)
        for arg, dim, chosen in zip(args, dims, is_mapped, strict=True)
        if chosen
    ]

    def call(elements: Sequence[Any]) -> list[Any]:
        remaining = iter(elements)
        operands = [
            next(remaining) if chosen else arg for arg, chosen in zip(args, is_mapped, strict=True)
        ]
        return primitive.bind(*operands, **params)

    results = jax.lax.map(call, mapped)
    return results, [0] * len(results)


def compile_for(
    module: ir.Module, platform: str = "cpu"
) -> Callable[[Sequence[Any]], tuple[jax.Array, ...]]:
    """Compiles a module with an entry `main` for one device of a platform, past `jax.jit`.

    What it returns takes NumPy or JAX arrays of exactly the entry's types, 64-bit ones also where
    JAX runs without `jax_enable_x64`.
    """
    client = get_backend(platform)
    device = client.local_devices()[0]
    with module.context:
        options = compiler.get_compile_options(
            num_replicas=1, num_partitions=1, env_options_overrides=_without_faults(module)
        )
        executable = client.compile_and_load(module, _jax.DeviceList((device,)), options)

    def execute(arrays: Sequence[Any]) -> tuple[jax.Array, ...]:
        results = executable.execute_sharded([place_on(array, platform) for array in arrays])
        return tuple(shards[0] for shards in results.disassemble_into_single_device_arrays())

    return execute


def _without_faults(module: ir.Module) -> dict[str, str | bool]:
    """XLA's options without which the program may kill this process, or come out wrong."""
    reductions = operations(module, "stablehlo.reduce")
    rank = max((len(one.operands[0].type.shape) for one in reductions), default=0)
    loops, transposes = (operations(module, f"stablehlo.{op}") for op in ("while", "transpose"))
    return xla_faults.options_without(rank, bool(loops and transposes))


def place_on(array: Any, platform: str = "cpu") -> jax.Array:
    """The array, of exactly its type, on the device that `compile_for` compiles for."""
    device = get_backend(platform).local_devices()[0]
    if isinstance(array, jax.Array) and array.devices() == {device}:
        return array
    with jax.enable_x64(True):
        return jax.device_put(array, device, may_alias=False)
