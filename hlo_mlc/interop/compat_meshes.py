"""What JAX knows of meshes, and takes from whoever has calls partitioned: from inside of it."""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax._src import config, custom_partitioning, sharding_impls
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy

from hlo_mlc.frontend.walking import operations


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
