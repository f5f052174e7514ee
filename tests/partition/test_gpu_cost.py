"""What choose="auto" takes on GPUs, by a model: directions only, and what they follow from."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from hlo_mlc.backends.cuda import limits_of
from hlo_mlc.frontend.importer import import_function
from hlo_mlc.ops.registry import references
from hlo_mlc.partition.choose.gpu_cost import (
    KERNEL_US,
    LARGE_PRODUCT,
    choose_all,
    choose_predicted,
    estimate,
)
from hlo_mlc.partition.cluster import Cluster
from hlo_mlc.partition.costs import Costs
from hlo_mlc.partition.plan import Plan
from hlo_mlc.partition.planner import partition
from hlo_mlc.passes.simplify import simplify
from hlo_mlc.target import cuda
from hlo_mlc.target.cpu import named
from hlo_mlc.target.cuda import CudaTarget
from hlo_mlc.tensor.core import Step
from making.left import by_xla

TARGET = cuda.named("sm_90")


class AsOne(Costs):
    """All that can be one kernel is."""

    def are_small(self, steps: Sequence[Step]) -> bool:
        return True


def plan_of(
    function: Callable,
    *args: tuple[int, ...] | jax.ShapeDtypeStruct,
    target: CudaTarget = TARGET,
    choose: Callable = choose_predicted,
) -> Plan:
    shapes = [
        a if isinstance(a, jax.ShapeDtypeStruct) else jax.ShapeDtypeStruct(a, jnp.float32)
        for a in args
    ]
    module = jax.jit(function).trace(*shapes).lower(lowering_platforms=("cuda",)).compiler_ir()
    graph, _ = simplify(import_function(module), references)
    return partition(
        graph,
        lambda cluster: choose(cluster, target),
        AsOne(named("x86-64-v4")),
        limits=limits_of(target),
    )


def cluster_of(function: Callable, *shapes: tuple[int, ...]) -> Cluster:
    plan = plan_of(function, *shapes)
    ((cluster, _),) = [*plan.taken, *plan.rejected]
    return cluster


def rnn(xs: jax.Array, w: jax.Array) -> jax.Array:
    def step(h: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        h = jnp.tanh(x + h @ w)
        return h, h

    return lax.scan(step, jnp.zeros_like(xs[0]), xs)[1]


def heat(x: jax.Array) -> jax.Array:
    return lax.fori_loop(0, 100, lambda i, c: c + 0.1 * (jnp.roll(c, 1) - c), x)


def until(x: jax.Array) -> jax.Array:
    return lax.while_loop(lambda c: jnp.sum(c) > 1, lambda c: c * 0.9, x)


def draws(x: jax.Array) -> jax.Array:
    def step(carry: tuple, _: None) -> tuple:
        key, c = carry
        key, one = jax.random.split(key)
        return (key, c + jax.random.normal(one, c.shape)), None

    return lax.scan(step, (jax.random.PRNGKey(0), x), None, length=200)[0][1]


def normalized_with_place(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    y = jax.nn.softmax(x)
    return y * jnp.argmax(x, -1, keepdims=True), jnp.argmax(y, -1)


@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (rnn, [(1000, 16, 64), (64, 64)]),
        (heat, [(4096,)]),
        (until, [(256,)]),
        (draws, [(300,)]),
        (lambda x: lax.cummax(x, 1), [(4096, 1024)]),
        (lambda x: lax.cumprod(x, 0), [(8192, 512)]),
        (normalized_with_place, [(8192, 4096)]),
    ],
)
def test_takes_what_xla_runs_in_many_kernels(function: Callable, shapes: list) -> None:
    plan = plan_of(function, *shapes)
    assert plan.coverage == 1, [verdict.reason for _, verdict in plan.rejected]
    for _, verdict in plan.taken:
        assert 1.5 * verdict.ours_us < verdict.xla_us
        assert "by a model" in verdict.reason


@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (lambda x: jnp.tanh(x) * 2, [(4096, 4096)]),
        (jax.nn.softmax, [(4096, 4096)]),
        (lambda x: x - x.mean(-1, keepdims=True), [(4096, 4096)]),
        (lambda x: x.sum(0), [(4096, 4096)]),
        (lambda x: x.T + 1, [(4096, 4096)]),
        (lambda x: jnp.argmax(x, 1), [(4096, 4096)]),
        (lambda x: jnp.cumsum(x, 1), [(4096, 1024)]),
        (lambda x: lax.cumlogsumexp(x, 1), [(4096, 1024)]),  # ours goes through rows one by one
        (lambda x, y: jax.nn.gelu(x @ y), [(1024, 1024), (1024, 1024)]),
        (lambda x: jnp.zeros((10, 64)).at[jnp.arange(4096) % 10].add(x), [(4096, 64)]),
        (lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (3, 3), (2, 2), "SAME"), [(512, 512)]),
        (heat, [(1 << 24,)]),  # rounds that take the whole GPU
        (until, [(1 << 22,)]),  # one block would do them all
        (lambda x, w: rnn(x, w), [(100, 512, 1024), (1024, 1024)]),
    ],
)
def test_leaves_what_xla_should_be_as_good_at(function: Callable, shapes: list) -> None:
    plan = plan_of(function, *shapes)
    assert not plan.taken
    assert all("XLA is expected to be about as fast" in v.reason for _, v in plan.rejected)


def test_values_that_pass_between_kernels_count() -> None:
    """What fusions of XLA's would have handed over in registers is written and read again."""

    def scan_of(x: jax.Array) -> jax.Array:
        return lax.cummax(x, 1)

    def scan_amid(x: jax.Array) -> jax.Array:
        return by_xla(lax.cummax(by_xla(x), 1))

    alone, amid = plan_of(scan_of, (2048, 1024)), plan_of(scan_amid, (2048, 1024))
    ((_, one),) = alone.taken
    ((_, other),) = [*amid.taken, *amid.rejected]
    passed = 2 * 2 * 2048 * 1024 * 4 / TARGET.memory_bytes_per_us
    assert other.ours_us - one.ours_us == pytest.approx(passed)


def test_times_follow_the_memory_of_the_card() -> None:
    cluster = cluster_of(lambda x: jnp.tanh(x) * 2, (4096, 4096))
    for kind, rate in (("NVIDIA H100 80GB HBM3", 3.35e6), ("NVIDIA H200", 4.8e6)):
        predicted = estimate(cluster.kernel, cuda.for_device("9.0", kind))
        assert predicted.ours_us == pytest.approx(KERNEL_US + 2 * 4096 * 4096 * 4 / rate)
        assert predicted.xla_us == predicted.ours_us


def test_counts_what_the_kernel_does() -> None:
    predicted = estimate(cluster_of(lambda x, y: x @ y, (64, 32), (32, 16)).kernel, TARGET)
    assert predicted.contraction_flops == 2 * 64 * 32 * 16
    assert predicted.bytes == 4 * (64 * 32 + 32 * 16 + 64 * 16)
    rounds = estimate(cluster_of(rnn, (10, 16, 64), (64, 64)).kernel, TARGET)
    assert rounds.contraction_flops == 10 * 2 * 16 * 64 * 64


def test_ours_leaves_large_products_that_stand_alone() -> None:
    size = round((LARGE_PRODUCT / 2) ** (1 / 3))
    for n, taken in ((size, True), (2 * size, False)):
        plan = plan_of(lambda x, y: x @ y, (n, n), (n, n), choose=choose_all)
        assert bool(plan.taken) is taken
    ((_, verdict),) = plan.rejected
    assert "cuBLAS" in verdict.reason
    assert plan_of(lambda x, y: jnp.tanh(x @ y), (512, 512), (512, 512), choose=choose_all).taken
