"""A plan as data for whoever draws it."""

from __future__ import annotations

import json

import jax
import jax.numpy as jnp
from jax import lax

from hlo_mlc.backends.cpu import CpuBackend
from hlo_mlc.compiler import clusters_of
from hlo_mlc.partition.drawing import plan_json
from hlo_mlc.support.options import Options
from hlo_mlc.target.cpu import named
from making.left import by_xla


def test_kernels_in_a_loop_of_xlas_are_parts_of_it() -> None:
    def function(x: jax.Array) -> jax.Array:
        return lax.fori_loop(0, 5, lambda _, v: by_xla(jnp.sin(v) * 2), jnp.cos(x))

    module = jax.jit(function).lower(jnp.ones((64, 64))).compiler_ir("stablehlo")
    backend = CpuBackend(named("x86-64-v4"))
    graph, plan = clusters_of(module, Options(choose="ours"), backend=backend)
    assert any(cluster.in_loop for cluster, _ in plan.taken)
    drawn = json.loads(plan_json(graph, plan))
    (loop,) = (number for number, unit in enumerate(drawn["units"]) if unit[1].endswith("while"))
    assert [one[3] for one in drawn["operations"] if one[0].endswith("while")] == [loop]
    ours = [unit[0] for unit in drawn["units"] if unit[0]]
    assert len(ours) == sum(not cluster.in_loop for cluster, _ in plan.taken)
