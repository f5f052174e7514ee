"""Kernels for GPUs of more threads than proofs put in one by one, of extents that nothing divides:
by every template that takes them, with every value of its own parameters; nothing is compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from hlo_mlc.backends.cuda import CudaBackend
from hlo_mlc.compiler import clusters_of
from hlo_mlc.loops.prove import prove
from hlo_mlc.support.options import Options
from hlo_mlc.target import cuda
from hlo_mlc.target.cuda import CudaTarget
from hlo_mlc.templates.base import Way
from hlo_mlc.templates.cuda.program import decisions_of, schedule_program
from hlo_mlc.templates.cuda.registry import TEMPLATES
from hlo_mlc.tensor.core import TensorProgram

Shape = tuple[int, ...]
PROGRAMS: dict[str, tuple[Callable, tuple[Shape, ...]]] = {
    "map": (jnp.tanh, ((2999996,),)),
    "map with a rest": (jnp.tanh, ((2999999,),)),
    "rows with a rest": (lambda x, y: jnp.hypot(x, y), ((3001, 1003), (3001, 1003))),
    "outer": (lambda x, y: x[:, None] * y, ((103, 20, 20), (203, 20, 20))),
    "mirrored": (lambda x: jnp.pad(x, ((4, 4), (3, 2), (0, 0)), "reflect"), ((1600, 800, 3),)),
    "transpose": (lambda x: jnp.transpose(x, (0, 2, 1)) * 2, ((31, 301, 203),)),
    "update": (lambda x, y: x.at[5:1005, 7:1507].set(y), ((1203, 1801), (1000, 1500))),
    "sum of rows": (lambda x: jnp.tanh((x * x).sum(1)), ((300011, 101),)),
    "sum of columns": (lambda x: (x * x).sum(1), ((3001, 77, 1003),)),
    "softmax": (jax.nn.softmax, ((30011, 101),)),
    "scan": (lambda x: jnp.cumsum(x, 1), ((3001, 1003),)),
    "pool": (
        lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME"),
        ((7, 501, 403, 5),),
    ),
    "product": (lambda x, y: jnp.einsum("bij,bkj->bik", x, y) + 1, ((311, 301, 7), (311, 403, 7))),
}


def programs(name: str, target: CudaTarget) -> Iterator[TensorProgram]:
    function, shapes = PROGRAMS[name]
    traced = jax.jit(function).trace(*(jax.ShapeDtypeStruct(s, jnp.float32) for s in shapes))
    module = traced.lower(lowering_platforms=("cuda",)).compiler_ir("stablehlo")
    _, plan = clusters_of(module, Options(choose="ours"), backend=CudaBackend(target))
    yield from (cluster.kernel.program for cluster, _ in plan.taken)


def ways(program: TensorProgram, target: CudaTarget) -> Iterator[dict[int, Way]]:
    """None that is chosen, and every template with every value of each parameter."""
    yield {}
    for n, decision in enumerate(decisions_of(program, target)):
        for template in TEMPLATES:
            if not template.refusal(decision.nest, target):
                for parameter, values in template.space(decision.nest, target).items():
                    yield from ({n: (template.name, {parameter: value})} for value in values)


@pytest.mark.parametrize("target", cuda.names())
@pytest.mark.parametrize("name", PROGRAMS)
def test_all_is_proved_without_guards(name: str, target: str) -> None:
    gpu = cuda.named(target)
    found = [*programs(name, gpu)]
    assert found
    for program in found:
        for way in ways(program, gpu):
            loops, _ = schedule_program(program, gpu, way)
            assert prove(loops)[1].guarded == (), way
