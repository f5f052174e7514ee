"""What is predicted of functions, for a CPU that is named."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from hlo_mlc.frontend.importer import import_function
from hlo_mlc.ops.registry import references
from hlo_mlc.partition.choose.cost import choose_predicted, estimate
from hlo_mlc.partition.cluster import Cluster
from hlo_mlc.partition.costs import Costs
from hlo_mlc.partition.estimate import Estimate
from hlo_mlc.partition.plan import Plan
from hlo_mlc.partition.planner import partition
from hlo_mlc.passes.simplify import simplify
from hlo_mlc.target.cpu import CpuTarget, named

TARGET = named("x86-64-v4")
MILLION = 1 << 20


def plan_of(function: Callable, *shapes: tuple[int, ...] | jax.ShapeDtypeStruct) -> Plan:
    """The predicted plan of a function; every unit is a kernel of its own."""
    args = [
        s if isinstance(s, jax.ShapeDtypeStruct) else jax.ShapeDtypeStruct(s, jnp.float32)
        for s in shapes
    ]
    module = jax.jit(function).trace(*args).lower().compiler_ir()
    graph, _ = simplify(import_function(module), references)
    return partition(
        graph, lambda cluster: choose_predicted(cluster, TARGET), Costs(TARGET, merges=False)
    )


def cluster_of(function: Callable, *shapes: tuple[int, ...]) -> Cluster:
    plan = plan_of(function, *shapes)
    ((cluster, _),) = [*plan.taken, *plan.rejected]
    return cluster


def indices(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.int32)


def times(function: Callable, *shapes: tuple[int, ...], target: CpuTarget = TARGET) -> Estimate:
    return estimate(cluster_of(function, *shapes).kernel, target)


def xla_us(function: Callable, *shapes: tuple[int, ...] | jax.ShapeDtypeStruct) -> float:
    plan = plan_of(function, *shapes)
    return sum(verdict.xla_us for _, verdict in (*plan.taken, *plan.rejected))
