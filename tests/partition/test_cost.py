"""What choose="auto" takes: the directions that were measured, not their amounts."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import jaxlib
import numpy as np
import pytest
from jax import lax

from hlo_mlc import mlc_jit
from hlo_mlc.frontend.importer import import_function
from hlo_mlc.graph.core import Node, Value
from hlo_mlc.ops.registry import references
from hlo_mlc.partition.choose import cost, predictions
from hlo_mlc.partition.choose.cost import choose_all, choose_predicted, estimate
from hlo_mlc.partition.choose.predictions import by_gain, predict
from hlo_mlc.partition.choose.shares import least_arithmetic_us
from hlo_mlc.partition.choose.surroundings import Surroundings
from hlo_mlc.partition.choose.worth import (
    completion,
    in_place_of_what_came,
    not_worth_compiling,
    worth_it,
)
from hlo_mlc.partition.choose.xla_came import came_us
from hlo_mlc.partition.choose.xla_dispatch import START_OPERATIONS, counted_operations
from hlo_mlc.partition.choose.xla_figures import figure
from hlo_mlc.partition.choose.xla_time import xla_threads
from hlo_mlc.partition.cluster import Cluster
from hlo_mlc.partition.costs import Costs
from hlo_mlc.partition.estimate import Estimate
from hlo_mlc.partition.kernel import Kernel
from hlo_mlc.partition.plan import Plan, Verdict
from hlo_mlc.partition.planner import partition
from hlo_mlc.passes.simplify import simplify
from hlo_mlc.target.cpu import CpuTarget, named
from hlo_mlc.tensor.canonical import stages
from hlo_mlc.tensor.core import Loop
from making.left import by_xla

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


@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (jax.nn.gelu, [(MILLION,)]),
        (jnp.sin, [(1 << 14,)]),
        (lambda x: jax.nn.softmax(x), [(1024, 1024)]),
        (lambda x: jnp.argmax(x, -1), [(4096, 1024)]),
        (lambda x: jnp.sum(x, 0), [(1024, 1024)]),
        (lambda x: x.T * 2, [(2048, 2048)]),
        (jnp.matmul, [(16, 256), (256, 1024)]),
        (jnp.matmul, [(128, 768), (768, 3072)]),
        (lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (2, 2), (2, 2), "VALID"), [(512, 512)]),
        (lambda x: lax.fori_loop(0, 100, lambda _, v: jnp.roll(v, 1) + jnp.sum(v), x), [(100,)]),
        (lambda x: jnp.cumsum(x, 1), [(2048, 2048)]),
        (lambda x: lax.cumlogsumexp(x, 0), [(64, 64)]),
        (lambda x: x.transpose(0, 3, 1, 2), [(16, 224, 224, 3)]),
        (lambda x, y: x % y, [indices(1 << 14), indices(1 << 14)]),
        (lambda x, i: jax.ops.segment_sum(x, i, 1000), [(10_000, 64), indices(10_000)]),
        (lambda x, y: lax.div(x, y), [jax.ShapeDtypeStruct((MILLION,), jnp.uint8)] * 2),
    ],
)
def test_takes_what_was_measured_faster(function: Callable, shapes: list) -> None:
    plan = plan_of(function, *shapes)
    assert plan.coverage == 1, [verdict.reason for _, verdict in plan.rejected]
    assert all(verdict.ours_us < verdict.xla_us for _, verdict in plan.taken)


def test_takes_rows_that_are_looked_up() -> None:
    """The rows, not what makes places of the numbers given."""
    plan = plan_of(lambda x, i: jnp.take(x, i, axis=0, mode="wrap"), (50_000, 64), indices(1 << 14))
    assert "move" in {verdict.reason.partition(":")[0] for _, verdict in plan.taken}


@pytest.mark.parametrize(
    ("function", "shapes", "kind"),
    [
        (lambda x: x + 1, [(8,)], "map"),
        (lambda x: x[::-1], [(2048, 2048)], "move"),
        (lambda x: x + 1, [(4096, 4096)], "map"),
    ],
)
def test_leaves_what_was_measured_slower(function: Callable, shapes: list, kind: str) -> None:
    plan = plan_of(function, *shapes)
    assert kind in {verdict.reason.partition(":")[0] for _, verdict in plan.rejected}
    assert all("predicted no faster" in verdict.reason for _, verdict in plan.rejected)


def test_places_of_several_numbers_are_written_side_by_side_there() -> None:
    def counts(places: jax.Array) -> jax.Array:
        return jnp.zeros(5, jnp.int32).at[places].add(1)

    def scattered_us(function: Callable, shape: tuple[int, ...]) -> float:
        plan = plan_of(function, indices(*shape))
        return sum(v.xla_us for _, v in plan.taken if v.estimate.kind == "scatter")

    apart_us = 602_000 * 2 * figure("scatter_place_ns") / 1e3
    by_rows, at_once = scattered_us(jax.vmap(counts), (301, 2000)), scattered_us(counts, (602_000,))
    assert by_rows - at_once == pytest.approx(apart_us, rel=0.2)


@pytest.mark.parametrize("updates", [1 << 12, MILLION])
@pytest.mark.parametrize("elements", [8, 2000])
def test_takes_updates_of_single_elements(updates: int, elements: int) -> None:
    """Some are written out, and many of few elements shared out."""

    def function(x: jax.Array, i: jax.Array) -> jax.Array:
        return jax.ops.segment_sum(x, i, elements)

    ((_, verdict),) = plan_of(function, (updates,), indices(updates)).taken
    assert verdict.estimate.kind == "scatter"
    assert verdict.estimate.forks == (updates == MILLION)


def test_products_of_bytes_stay_but_others_of_integers_go() -> None:
    def product(a: jax.Array, b: jax.Array) -> jax.Array:
        return lax.dot(a, b, preferred_element_type=jnp.int32)

    for dtype, is_taken in ((jnp.int8, False), (jnp.uint8, True), (jnp.int32, True)):
        plan = plan_of(product, *(jax.ShapeDtypeStruct((256, 256), dtype) for _ in range(2)))
        assert bool(plan.taken) == is_taken, dtype


def test_a_border_can_tip_the_balance() -> None:
    cluster = cluster_of(lambda x: x * 2 + 1, (512, 512))
    alone = choose_predicted(cluster, TARGET)
    between = choose_predicted(replace(cluster, border_bytes=1 << 30), TARGET)
    assert alone.take
    assert not between.take
    assert "for passing values" in between.reason


def test_the_border_is_what_passes_to_and_from_other_nodes() -> None:
    def around_one_of_xla(x: jax.Array) -> jax.Array:
        return jnp.tanh(by_xla(jnp.sin(x)))

    plan = plan_of(around_one_of_xla, (1 << 16,))
    clusters = [c for c, _ in (*plan.taken, *plan.rejected)]
    assert [c.border_bytes for c in clusters] == [4 << 16] * 2
    assert not any(c.is_whole for c in clusters)
    whole = cluster_of(lambda x: jnp.tanh(x), (1 << 16,))
    assert whole.border_bytes == 0
    assert whole.is_whole


def test_trips_of_loops_multiply() -> None:
    def repeated(count: int) -> Callable:
        return lambda x: lax.fori_loop(0, count, lambda _, v: jnp.sin(v) * 0.5, x)

    few, many = (estimate(cluster_of(repeated(n), (4096,)).kernel, TARGET) for n in (10, 1000))
    assert 50 < many.operations / few.operations < 150
    assert 50 < many.ours_us / few.ours_us < 150
    assert many.bytes == few.bytes


def test_more_work_takes_longer() -> None:
    sizes = [estimate(cluster_of(jnp.tanh, (1 << n,)).kernel, TARGET) for n in (12, 16, 22)]
    assert sizes[0].ours_us < sizes[1].ours_us < sizes[2].ours_us
    assert sizes[0].xla_us < sizes[1].xla_us < sizes[2].xla_us


def test_small_steps() -> None:
    small, large = (
        cluster_of(lambda x: x + 1, (n,)).kernel.program.steps[0] for n in (100, MILLION)
    )
    costs = Costs(TARGET)
    assert costs.are_small([small])
    assert not costs.are_small([large])
    assert not Costs(TARGET, merges=False).are_small([small])
    loop = cluster_of(lambda x: lax.fori_loop(0, 1000, lambda _, v: v * 2, x), (4,))
    (step,) = [s for s in loop.kernel.program.steps if isinstance(s, Loop)]
    assert not costs.are_small([step])


def times(function: Callable, *shapes: tuple[int, ...], target: CpuTarget = TARGET) -> Estimate:
    return estimate(cluster_of(function, *shapes).kernel, target)


def test_each_of_many_small_products_has_its_call() -> None:
    tiny = times(jnp.matmul, (512, 8, 8), (512, 8, 8))
    assert tiny.xla_us > 50


def test_what_is_computed_for_a_factor_serves_many_products() -> None:
    narrow = jax.ShapeDtypeStruct((256, 256), jnp.bfloat16)
    plan = plan_of(jnp.matmul, narrow, narrow)
    ((_, verdict),) = [*plan.taken, *plan.rejected]
    assert verdict.estimate.operations < 256**3 / 4


def test_every_parallel_loop_of_xla_has_a_fork() -> None:
    """But for small ones, and what one thread does anyhow."""

    def forks(function: Callable, *shapes: tuple[int, ...]) -> bool:
        rates = replace(TARGET.rates, vector_operations=1e9, near_bytes=1e9)  # which take no time
        free = replace(TARGET, cores=4, rates=rates)
        return (
            times(function, *shapes, target=free).xla_us
            - times(function, *shapes, target=replace(free, cores=1)).xla_us
            > figure("fork_us") / 2
        )

    assert forks(lambda x: x * 2 + 1, (1 << 16,))
    assert forks(lambda x: x.sum(0), (512, 512))
    assert not forks(lambda x: x * 2 + 1, (1 << 12,))
    assert not forks(lambda x: jnp.sort(x), (1 << 16,))


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="XLA has one thread here")
@pytest.mark.parametrize("size", [32, 96, 128, 192, 256, 1024])  # KiB of f32
@pytest.mark.parametrize(
    ("function", "operands"),
    [
        (lambda x: x + 1, 1),
        (lambda x, y: x * y, 2),
        (lambda a, b, c, d: -(a * b + c * d), 4),
        (lambda x: ((((x * x + 1) * x + 2) * x + 3) * x + 4) * x, 1),
        (jnp.sin, 1),
        (jnp.sqrt, 1),
        (lambda x: x.T + 1, 1),
    ],
)
def test_xla_has_as_many_threads_as_it_says(function: Callable, operands: int, size: int) -> None:
    """Against the loops that XLA makes of single operations and of chains of them."""
    shape = (4 * size, 64)
    program = jax.jit(function).lower(*[jax.ShapeDtypeStruct(shape, jnp.float32)] * operands)
    compiled = program.compile({"xla_backend_optimization_level": 3})
    has_several = "outer_dimension_partitions" in compiled.as_text()
    cluster = cluster_of(function, *[shape] * operands)
    (stage,) = (s for step in cluster.kernel.program.steps for s in stages(step))
    assert (xla_threads(stage, replace(TARGET, cores=2)) > 1) == has_several


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="XLA has one thread here")
@pytest.mark.parametrize(
    ("function", "size", "slows"),
    [  # sizes of which XLA makes two parts
        (lambda x: jax.nn.gelu(x) * 3, 3000, True),
        (lambda x: jnp.log1p(x) * 2, 1 << 16, True),
        (lambda x: jnp.exp(x) * 2 + 1, 1 << 16, False),
        (jnp.tanh, 1 << 16, False),
    ],
)
def test_loops_that_two_threads_cannot_share_evenly(
    tmp_path: Path, function: Callable, size: int, slows: bool
) -> None:
    """Against the code that XLA makes of them."""

    def has_vectors(size: int) -> bool:
        program = (
            jax.jit(function)
            .lower(jax.ShapeDtypeStruct((size,), jnp.float32))
            .compile(
                {"xla_dump_to": str(tmp_path / str(size)), "xla_backend_optimization_level": 3}
            )
        )
        assert re.search(r'"outer_dimension_partitions":\["2"\]', program.as_text())
        (code,) = (tmp_path / str(size)).glob("*with-opt.ll")
        return re.search(r"<(8|16) x float>", code.read_text()) is not None

    def predicted_us(size: int) -> float:
        return times(function, (size,), target=replace(TARGET, cores=2)).xla_us

    assert has_vectors(size)
    assert has_vectors(size + 1) != slows
    assert (predicted_us(MILLION + 1) > 1.5 * predicted_us(MILLION)) == slows
    assert predicted_us(MILLION + 2) < 1.1 * predicted_us(MILLION)


def test_matrices_that_a_library_gets_one_by_one() -> None:
    plan = plan_of(jnp.linalg.slogdet, (10_000, 4, 4))
    ((_, verdict),) = plan.taken
    assert verdict.xla_us > 10_000 * 4 * figure("lu_column_ns") / 1e3


def test_loops_of_xla_stay_on_one_thread_while_they_are_small() -> None:
    """Smaller ones take longer for each element then, though that lies in a nearer cache."""

    def each_us(size: int) -> float:
        def repeated(x: jax.Array) -> jax.Array:
            return lax.fori_loop(0, 100, lambda _, v: v[::-1] * 2 + v, x)

        return times(repeated, (size,), target=replace(TARGET, cores=4)).xla_us / size

    assert each_us(1 << 14) > 1.25 * each_us(1 << 20)


def test_where_an_array_lies_decides_how_fast_a_part_of_it_comes() -> None:
    """Rows of a matrix that no cache holds, one in each trip."""

    def rows(count: int) -> Callable:
        def step(i: jax.Array, total: jax.Array, x: jax.Array) -> jax.Array:
            return total + lax.dynamic_index_in_dim(x, i, 0, keepdims=False)

        return lambda x: lax.fori_loop(0, count, lambda i, v: step(i, v, x), x[0])

    few, many = (times(rows(100), (n, 8192)) for n in (100, 10_000))
    assert many.ours_us > 1.5 * few.ours_us
    assert many.xla_us > 1.5 * few.xla_us


def test_what_xla_computes_one_by_one_takes_as_long_on_wide_vectors() -> None:
    def functions_us(level: str) -> float:
        with jax.enable_x64(True):
            kernel = cluster_of(jnp.sin, jax.ShapeDtypeStruct((MILLION,), jnp.float64)).kernel
        return estimate(kernel, replace(named(level), cores=2)).xla_us

    assert functions_us("x86-64-v4") == pytest.approx(functions_us("x86-64-v3"), rel=0.1)


def test_short_rows_and_sums_without_a_library_take_xla_longer() -> None:
    def scaled(x: jax.Array) -> jax.Array:
        return x * x[0] + x[1]

    few = replace(TARGET, cores=2)
    short, long = (times(scaled, shape, target=few) for shape in ((1 << 12, 16), (1 << 8, 1 << 8)))
    assert short.xla_us > 1.4 * long.xla_us
    assert short.ours_us == pytest.approx(long.ours_us, rel=0.1)

    def summed(x: jax.Array, y: jax.Array) -> jax.Array:
        return (x[:, :, None] * y[None]).sum(1)

    by_hand = cluster_of(summed, (256, 256), (256, 256))
    by_library = cluster_of(jnp.matmul, (256, 256), (256, 256))
    assert (
        choose_predicted(by_hand, TARGET).xla_us > 1.5 * choose_predicted(by_library, TARGET).xla_us
    )


def test_convolutions_by_constants_are_convolutions_there() -> None:
    """Though their weights are part of our expressions."""
    weights = np.asarray([1, 4, 6, 4, 1], np.float32).reshape(1, 1, 5)
    given = cluster_of(lambda x, w: lax.conv(x, w, (1,), "SAME"), (512, 1, 512), (1, 1, 5))
    constant = cluster_of(lambda x: lax.conv(x, weights, (1,), "SAME"), (512, 1, 512))
    xla_us = choose_predicted(given, TARGET).xla_us
    assert choose_predicted(constant, TARGET).xla_us == pytest.approx(xla_us, rel=0.5)


def test_positions_of_maxima_are_found_one_by_one_there() -> None:
    few, many = (times(lambda x: jnp.argmax(x, -1), (n, 1024)) for n in (512, 4096))
    assert many.xla_us == pytest.approx(8 * few.xla_us, rel=0.1)
    assert many.xla_us > 2_000


@pytest.mark.parametrize(
    "fold",
    [lambda x: jnp.argmax(x, -1), lambda x: lax.cumsum(x, 1), lambda x: lax.sort(x, dimension=1)],
)
def test_what_they_are_computed_of_takes_time_there_as_well(fold: Callable) -> None:
    shapes = [(512, 64)] * 2
    plain = times(lambda x, y: fold(x), *shapes)
    computed = times(lambda x, y: fold(jnp.log(jnp.exp(x) + jnp.exp(y))), *shapes)
    assert computed.xla_us > plain.xla_us + 10


def test_what_overwrites_a_part_is_computed_one_by_one_there() -> None:
    def whole(x: jax.Array) -> jax.Array:
        return x * 0.5 + 1

    def inner(x: jax.Array) -> jax.Array:
        return x.at[1:-1, 1:-1].set(whole(x[1:-1, 1:-1]))

    def repeated(step: Callable) -> Callable:
        return lambda x: lax.fori_loop(0, 100, lambda _, v: step(v), x)

    assert times(repeated(inner), (512, 512)).xla_us > 3 * times(repeated(whole), (512, 512)).xla_us


def test_a_program_of_its_own_pays_for_waking_threads() -> None:
    cluster = cluster_of(lambda x: x * 2 + 1, (512, 512))
    asleep = replace(TARGET, rates=replace(TARGET.rates, fork_us=7.0, xla_fork_us=90.0))
    before, after = (choose_predicted(cluster, target) for target in (TARGET, asleep))
    assert after.ours_us - before.ours_us == pytest.approx(7.0 - TARGET.rates.fork_us)
    assert after.xla_us - before.xla_us == pytest.approx(90.0 - TARGET.rates.xla_fork_us)
    inside = replace(cluster, is_whole=False)
    before, after = (choose_predicted(inside, target) for target in (TARGET, asleep))
    assert (before.ours_us, before.xla_us) == (after.ours_us, after.xla_us)
    alone = replace(asleep, cores=1)
    assert choose_predicted(cluster, alone).xla_us == pytest.approx(
        choose_predicted(inside, alone).xla_us + TARGET.rates.start_us
    )


@pytest.mark.parametrize(
    ("shape", "axis"), [((512, 2, 8, 160), 1), ((3, 200_000), 0), ((200_000, 4), 1)], ids=str
)
def test_reductions_of_few_terms_are_xlas_to_compute(shape: tuple[int, ...], axis: int) -> None:
    """We write them out into what reads their sum, so that no stage of ours is one."""
    summed = cluster_of(lambda x: jnp.tanh(x.sum(axis)), shape)
    parts = [lax.index_in_dim(jnp.ones(shape), k, axis, False).shape for k in range(shape[axis])]
    added = cluster_of(lambda *parts: jnp.tanh(sum(parts[1:], parts[0])), *parts)
    assert choose_predicted(summed, TARGET).xla_us > 1.5 * choose_predicted(added, TARGET).xla_us


def test_lanes_that_stay_empty_are_empty() -> None:
    """In XLA's code; in ours, short rows have a lane each."""
    short, long = (
        times(lambda x: jnp.sum(jnp.exp(x) * x, -1), shape) for shape in ((65536, 7), (1792, 256))
    )
    assert short.xla_us > 1.5 * long.xla_us
    assert short.ours_us < 1.1 * long.ours_us


def test_a_pointwise_loop_stays_in_the_first_cache() -> None:
    def repeated(step: Callable) -> Callable:
        return lambda x: lax.fori_loop(0, 50, lambda _, v: step(v), x)

    apart = times(repeated(lambda v: v * 0.5 + v[::-1]), (1 << 18,))
    pointwise = times(repeated(lambda v: v * 0.5 + 1), (1 << 18,))
    assert apart.ours_us > 1.5 * pointwise.ours_us


def test_xla_starts_a_thread_for_what_it_counts() -> None:
    """Not for transcendental functions and moves; loops are as long as their bodies."""

    def counted(function: Callable, *shapes: tuple[int, ...]) -> int:
        args = [jax.ShapeDtypeStruct(s, jnp.float32) for s in shapes]
        graph, _ = simplify(
            import_function(jax.jit(function).trace(*args).lower().compiler_ir()), references
        )
        return counted_operations(graph.nodes)

    assert counted(lambda x: jnp.exp(x), (2000,)) == 0
    assert counted(lambda x: x[::-1], (2000,)) == 0
    assert counted(lambda x: jnp.exp(x) + 1, (2000,)) == 2000
    assert counted(lambda x, y: x @ y, (20, 30), (30, 40)) == 2 * 20 * 30 * 40
    assert counted(lambda x: x.sum(), (2000,)) == 2000
    once = counted(lambda x: lax.while_loop(lambda v: v[0] < 9, lambda v: v + 1, x), (2000,))
    assert 2000 <= once < 4000


def test_rates_decide() -> None:
    cluster = cluster_of(jnp.exp, (MILLION,))
    for xla_exp, take in ((4.0, True), (0.25, False)):
        rates = replace(TARGET.rates, xla_exp=xla_exp, xla_far=0.5)
        assert choose_predicted(cluster, replace(TARGET, rates=rates)).take is take


def test_threads_are_woken_for_what_they_share() -> None:
    """Not for much that is done by one of them, bit by bit."""
    short = plan_of(lambda x: jnp.tanh(x) @ (jnp.sin(x) @ jnp.cos(x)), (32, 32))
    long = plan_of(lambda x: jnp.tanh(x), (512, 512))
    for plan, forks in ((short, False), (long, True)):
        for _, verdict in (*plan.taken, *plan.rejected):
            assert verdict.estimate.forks == forks


def test_factors_of_products_in_loops_are_as_large_as_these() -> None:
    """However often loops around them go round."""

    def rows(x: jax.Array) -> jax.Array:
        def row(i: jax.Array, done: jax.Array) -> jax.Array:
            found = jnp.where(jnp.arange(512) < i, x[i], 0.0) @ jnp.where(x[:, i] > 0, x[:, i], 1.0)
            return done.at[i].set(found)

        return lax.fori_loop(0, 512, row, jnp.zeros(512))

    assert times(rows, (512, 512)).xla_us < 512 * 5


def test_the_prediction_for_a_program() -> None:
    def around_one_of_xla(x: jax.Array) -> jax.Array:
        return jnp.tanh(by_xla(jnp.sin(x)))

    assert predict(plan_of(around_one_of_xla, (1 << 16,)), TARGET) is None
    plan = plan_of(lambda x: jnp.sin(x), (1 << 16,))
    ((_, verdict),) = plan.taken
    predicted = predict(plan, TARGET)
    assert predicted.ours_us == TARGET.rates.dispatch_us + verdict.ours_us
    assert predicted.xla_us == TARGET.rates.dispatch_us + verdict.xla_us
    left = predict(plan_of(lambda x: x[::-1], (2048, 2048)), TARGET)
    assert left.ours_us == left.xla_us


def test_every_result_is_an_array_to_make() -> None:
    one, three = (
        predict(plan_of(lambda x, n=n: [x + k for k in range(1, n + 1)], (8,)), TARGET)
        for n in (1, 3)
    )
    assert three.ours_us > one.ours_us + 2
    assert three.xla_us > one.xla_us + 2


def test_scalars_in_loops_of_xla_stay_there() -> None:
    """A call costs more than they do: XLA compiles the body of such a loop as one function."""

    def machine(memory: jax.Array) -> jax.Array:
        def step(state: tuple) -> tuple:
            at, sum_, left = state
            found = memory[at % 32] * 3
            sum_ = lax.switch(
                at % 3,
                [
                    lambda: sum_ + found,
                    lambda: sum_ ^ found,
                    lambda: by_xla(memory * 0.5).astype(int)[found % 32],
                ],
            )
            return (at + jnp.where(sum_ & 1, 1, 3)) % 64, sum_, left - 1

        return lax.while_loop(lambda state: state[2] > 0, step, (0, jnp.int32(1), 300))[1]

    plan = plan_of(machine, indices(32))
    assert plan.rejected
    assert all(cluster.in_loop and not cluster.is_whole for cluster, _ in plan.rejected)
    assert not plan.taken


def _filter(count: int) -> Callable:
    """A scan that carries so many scalars, each of which follows from the one before."""

    def function(x: jax.Array) -> jax.Array:
        def step(state: tuple, value: jax.Array) -> tuple:
            following = []
            for old in state:
                value = old + jnp.tanh(value) * 0.5
                following.append(value)
            return tuple(following), value

        return lax.scan(step, (x[0],) * count, x)[1]

    return function


def test_many_scalars_in_a_loop_have_calls_of_their_own_there() -> None:
    """A loop of few is one function there as well."""
    few, many = (choose_predicted(cluster_of(_filter(count), (600,)), TARGET) for count in (3, 200))
    assert many.take and many.xla_us > 3 * many.ours_us
    assert few.xla_us < 2.5 * few.ours_us


@pytest.mark.parametrize(
    ("shape", "kept"), [((1 << 22,), 100), ((1 << 16,), 1), ((4, 1 << 18), 50)]
)
def test_the_first_few_of_long_rows_are_found_faster(shape: tuple[int, ...], kept: int) -> None:
    verdict = choose_predicted(cluster_of(lambda x: lax.top_k(x, kept), shape), TARGET)
    assert verdict.take and verdict.xla_us > 2 * verdict.ours_us


def test_next_to_nothing_is_not_worth_it() -> None:
    """A few tanh beside a large reversal."""

    def mostly_moves(x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
        return x[::-1], jnp.tanh(y)

    plan = plan_of(mostly_moves, (4096, 4096), (4096,))
    assert plan.taken
    left = worth_it(plan, TARGET)
    assert not left.taken
    assert left.coverage == 0
    assert all(
        "next to nothing" in v.reason or "predicted no faster" in v.reason for _, v in left.rejected
    )
    tuned = replace(plan, taken=[(c, replace(v, recorded=True)) for c, v in plan.taken])
    assert worth_it(tuned, TARGET) is tuned
    plan = plan_of(mostly_moves, (4, 4), (MILLION,))
    assert worth_it(plan, TARGET) is plan


def test_transforms_of_planes_count_with_both_axes() -> None:
    """An elementwise kernel beside them saves next to nothing of what the library takes."""

    def beside_transforms(x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
        for _ in range(16):
            x = jnp.fft.irfft2(jnp.fft.rfft2(x) * x[0, 0])
        return x, jnp.tanh(y)

    plan = plan_of(beside_transforms, (256, 256), (40_000,))
    transforms = [node for node in plan.left if node.op == "stablehlo.fft"]
    assert len(transforms) == 32 and plan.taken
    each = 5 / 2 * 256**2 * 16 * figure("row_transform_operation_ns") / 1e3
    assert least_arithmetic_us(transforms[0], TARGET) == pytest.approx(
        each * TARGET.rates.one_by_one
    )
    assert not worth_it(plan, TARGET).taken


def test_long_code_has_to_save_some_of_a_call() -> None:
    """Eigenvalues of 4 x 4, written out, beside much that XLA is as fast at."""

    def function(matrices: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jnp.linalg.eigvalsh(matrices), x * 2

    plan = plan_of(function, (2, 4, 4), (16 * MILLION,))
    ((cluster, verdict),) = plan.taken
    ((kernel, reason),) = not_worth_compiling(plan, TARGET).items()
    assert kernel == cluster.kernel.fingerprint
    assert "next to nothing" in reason
    for kept in (replace(cluster, in_loop=True), verdict), (cluster, replace(verdict, fault="bad")):
        assert not not_worth_compiling(replace(plan, taken=[kept]), TARGET)
    for many, few in ((64, 16 * MILLION), (2, 4096)):
        plan = plan_of(function, (many, 4, 4), (few,))
        assert plan.taken
        assert not not_worth_compiling(plan, TARGET)


def test_what_is_not_modelled_counts_with_its_arithmetic() -> None:
    """A few tanh beside Fourier transforms, and beside one that takes no longer than they do."""

    def transform(x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jnp.fft.rfft2(x), jnp.tanh(y)

    def power(x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jnp.exp(lax.complex(x, x)), jnp.tanh(y)

    for function in (transform, power):
        plan = plan_of(function, (512, 512), (4096,))
        assert plan.taken
        assert not worth_it(plan, TARGET).taken
        plan = plan_of(function, (8, 8), (MILLION,))
        assert worth_it(plan, TARGET) is plan


def test_the_rest_is_taken_where_nothing_else_is_left() -> None:
    """Few sums by number, were they slower in a kernel, alone would make XLA start a thread."""

    def function(x: jax.Array, y: jax.Array, i: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jnp.sin(x), jax.ops.segment_sum(y, i, 64)

    def planned(count: int, other: Callable = function) -> Plan:
        plan = plan_of(other, (1 << 16,), (count,), indices(count))
        left = [
            (c, replace(v, take=False, xla_us=0.9 * v.ours_us))
            for c, v in plan.taken
            if v.estimate.kind == "scatter"
        ]
        kept = [found for found in plan.taken if found[1].estimate.kind != "scatter"]
        return replace(plan, taken=kept, rejected=[*plan.rejected, *left])

    least, few, many = planned(1 << 8), planned(1 << 10), planned(MILLION)
    for plan in (few, many):
        assert plan.taken
        assert plan.rejected
    ((cluster, _),) = few.rejected
    assert completion(few, TARGET, ()) == (cluster,)
    assert not completion(few, TARGET, (cluster.kernel.fingerprint,))
    tuned = replace(few, rejected=[(c, replace(v, recorded=True)) for c, v in few.rejected])
    assert not completion(tuned, TARGET, ())
    assert not completion(many, TARGET, ())
    assert not completion(least, TARGET, ()), "XLA runs so little at once"
    sorts = planned(1 << 10, lambda x, y, i: (*function(x, y, i), jnp.fft.fft(y)))
    assert not completion(sorts, TARGET, ())
    arguments = jnp.ones(1 << 16), jnp.ones(1 << 10), jnp.ones(1 << 10, jnp.int32)
    assert mlc_jit(function, choose="auto").report(*arguments).coverage == 1


def test_the_rest_is_taken_around_calls_of_libraries() -> None:
    """XLA counts no operations in them; of the rest it may keep what it runs at once."""

    def function(x: jax.Array, y: jax.Array) -> tuple[jax.Array, ...]:
        return jnp.sin(x), jnp.linalg.cholesky(y @ y.T + 4 * jnp.eye(32)), x[:20] + 1

    plan = plan_of(function, (1 << 12,), (32, 32))
    assert any(node.op == "lapack.potrf" for node in plan.left)
    more = completion(plan, TARGET, ())
    assert len(more) < len(plan.rejected)
    left = [node for c, _ in plan.rejected if c not in more for node in c.nodes]
    assert counted_operations(left) < START_OPERATIONS
    compiled = mlc_jit(function, choose="auto")
    x, y = jax.random.normal(jax.random.key(0), (1 << 12,)), jnp.eye(32)
    for actual, expected in zip(compiled(x, y), jax.jit(function)(x, y), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)


def test_each_cluster_is_estimated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    estimated = []

    def counting(kernel: Kernel, target: CpuTarget, around: Surroundings) -> Estimate:
        estimated.append(kernel.fingerprint)
        return estimate(kernel, target, around)

    monkeypatch.setattr(cost, "estimate", counting)
    report = mlc_jit(lambda x: by_xla(jnp.exp(x)) @ x, choose="auto").report(jnp.ones((300, 300)))
    assert report.kernels
    assert len(estimated) == len(set(estimated)) >= 2


def test_what_saves_about_the_same_stays_in_the_order_of_the_program() -> None:
    """What is left is one piece then; what saves much more comes first wherever it is."""

    def function(x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
        for n in range(3):
            x = by_xla(sum((x * k for k in range(n)), jnp.sin(x)))
        return x, by_xla(jnp.sin(y))

    args = [jax.ShapeDtypeStruct((n,), jnp.float32) for n in (10_000, 1_000_000)]
    graph, _ = simplify(
        import_function(jax.jit(function).trace(*args).lower().compiler_ir()), references
    )
    plan = partition(
        graph, lambda cluster: choose_all(cluster, TARGET), Costs(TARGET, merges=False), ()
    )
    *small, large = [cluster.kernel.fingerprint for cluster, _ in plan.taken]
    assert len(set(small)) == 3
    assert [kernel.fingerprint for kernel in by_gain(plan)] == [large, *small]


def test_a_lookup_costs_xla_no_vectors_for_what_is_computed_of_it() -> None:
    def computed(x: jax.Array) -> jax.Array:
        return jnp.tanh(x) * x + 1

    shapes = (MILLION,), indices(MILLION)
    plain = times(computed, shapes[0]).xla_us
    looked_up = times(lambda x, i: computed(x[i]), *shapes).xla_us
    assert plain < looked_up < 5 * plain


def test_threads_that_several_kernels_share_are_woken_once() -> None:
    plan = plan_of(lambda x: (jnp.tanh(x), by_xla(x).sum()), (MILLION,))
    plan = replace(plan, left={})
    slow = replace(TARGET, cores=4, rates=replace(TARGET.rates, fork_us=50.0, xla_fork_us=70.0))
    fast = replace(slow, rates=replace(slow.rates, fork_us=5.0, xla_fork_us=7.0))
    twice = replace(plan, taken=[*plan.taken, *plan.taken])
    assert predict(twice, slow).ours_us - predict(twice, fast).ours_us == pytest.approx(45)
    assert predict(twice, slow).xla_us - predict(twice, fast).xla_us == pytest.approx(63)


def test_says_where_it_only_guesses_how_often_a_loop_runs() -> None:
    until = plan_of(lambda x: lax.while_loop(lambda v: v[0] > 1, lambda v: v * 0.5, x), (64,))
    assert predict(until, TARGET).guesses_trips
    assert "nobody knows" in str(predict(until, TARGET))
    counted = plan_of(lambda x: lax.fori_loop(0, 9, lambda _, v: jnp.sin(v), x), (64,))
    assert not predict(counted, TARGET).guesses_trips


def test_a_small_loop_in_a_large_one_is_a_function_of_its_own_there() -> None:
    def smoothed(x: jax.Array) -> jax.Array:
        def row(n: jax.Array, x: jax.Array) -> jax.Array:
            return lax.fori_loop(1, 64, lambda k, x: x.at[n, k].add(x[n, k - 1]), x * 0.5)

        return lax.fori_loop(0, 64, row, x)

    inner = (
        times(smoothed, (64, 64)).xla_us
        - times(lambda x: lax.fori_loop(0, 64, lambda _, x: x * 0.5, x), (64, 64)).xla_us
    )
    assert inner < 64 * 63 * TARGET.rates.loop_thunk_us


def test_a_side_of_a_branch_runs_half_of_the_time() -> None:
    def stepped(x: jax.Array, is_it: Callable[[jax.Array], jax.Array]) -> jax.Array:
        return lax.fori_loop(
            0, 100, lambda n, x: lax.cond(is_it(x), lambda x: jnp.sin(x), lambda x: x, x), x
        )

    always = times(lambda x: lax.fori_loop(0, 100, lambda _, x: jnp.sin(x), x), (4096,))
    sometimes = times(lambda x: stepped(x, lambda x: x[0] > 0), (4096,))
    assert sometimes.ours_us < 0.75 * always.ours_us
    assert sometimes.xla_us < 0.75 * always.xla_us


def test_what_a_branch_does_is_counted_whole() -> None:
    found = times(
        lambda x, y: lax.fori_loop(
            0, 4, lambda _, x: lax.cond(x[0, 0] > 0, lambda: x @ y, lambda: x), x
        ),
        (65, 65),
        (65, 65),
    )
    assert found.contraction_flops == 4 * 2 * 65**3
    assert isinstance(found.contraction_flops, int)
    assert isinstance(found.operations, int)


def test_terms_that_are_nothing_take_us_no_time() -> None:
    close, apart = (
        times(
            lambda x, kernel, by=by: lax.conv_general_dilated(
                x, kernel, (1, 1), [(1, 1)] * 2, (by, by), feature_group_count=16
            ),
            (1, 16, 32, 32),
            (16, 1, 3, 3),
        )
        for by in (1, 3)
    )
    assert apart.ours_us < 9 * close.ours_us  # nine times as many results, of one term each


def test_what_xla_writes_out_in_a_loop_counts_in_each_trip() -> None:
    def lengths(x: jax.Array) -> jax.Array:
        return jnp.sqrt(jnp.sum(x * x, -1))

    def of(trips: int) -> float:
        plan = plan_of(
            lambda x: lax.fori_loop(0, trips, lambda _, x: x * lengths(x)[:, None], x), (4096, 3)
        )
        ((_, verdict),) = [*plan.taken, *plan.rejected]
        return verdict.xla_us

    assert of(90) > 2.5 * of(30) > 6 * of(10)


def test_a_branch_that_a_counter_chooses_runs_as_often_as_that_says() -> None:
    def every(number: int) -> Estimate:
        return times(
            lambda x: lax.fori_loop(
                0, 100, lambda n, x: lax.cond(n % number == 0, lax.digamma, lambda x: x * 0.5, x), x
            ),
            (1 << 14,),
        )

    assert every(2).xla_us > 3 * every(10).xla_us
    assert every(2).ours_us > 1.5 * every(10).ours_us


@pytest.mark.parametrize(
    ("read", "is_copied"),
    [
        (lambda before, after, k: 1.0, False),
        (lambda before, after, k: after[k - 1, 0], False),
        (lambda before, after, k: before[k - 1, 0], True),
        (lambda before, after, k: before[k, 0], True),  # also what is just overwritten
        (lambda before, after, k: lax.dynamic_slice(before, (k, 0), (1, 8)).sum(), True),
    ],
)
def test_arrays_that_are_read_beside_their_update_are_copied_there(
    read: Callable, is_copied: bool
) -> None:
    def step(k: jax.Array, state: tuple) -> tuple:
        array, total = state
        after = array.at[k].set(2.0)
        return after, total + read(array, after, k)

    def xla_us(size: int) -> float:
        plan = plan_of(lambda x: lax.fori_loop(1, 100, step, (x, jnp.float32(0))), (size, 8))
        ((_, verdict),) = [*plan.taken, *plan.rejected]
        return verdict.xla_us

    grown = xla_us(1 << 14) - xla_us(1 << 10)
    assert (grown > 300.0) == is_copied, grown


def test_functions_that_are_computed_in_f64_take_longer() -> None:
    of_f32 = times(lambda x: lax.lgamma(x), (MILLION,)).ours_us
    assert of_f32 > 2 * times(lambda x: lax.erfc(x), (MILLION,)).ours_us
    order_known = times(lambda x: lax.polygamma(jnp.float32(1.0), x), (MILLION,)).ours_us
    assert order_known < times(lambda n, x: lax.polygamma(n, x), (MILLION,), (MILLION,)).ours_us / 3


def test_loops_of_many_operations_take_xla_longer_for_each() -> None:
    """Threads ask which of them are ready."""

    def each_us(count: int, size: int) -> float:
        def repeated(*arrays: jax.Array) -> tuple:
            return lax.fori_loop(0, 100, lambda _, c: tuple(v * 0.5 + 1 for v in c), arrays)

        # Of different lengths, so that no two are computed together.
        return times(repeated, *((size + n,) for n in range(count))).xla_us / count

    assert each_us(16, 256) > 1.5 * each_us(4, 256)
    assert each_us(4, 256) == pytest.approx(each_us(2, 256), rel=0.2)


def xla_us(function: Callable, *shapes: tuple[int, ...] | jax.ShapeDtypeStruct) -> float:
    plan = plan_of(function, *shapes)
    return sum(verdict.xla_us for _, verdict in (*plan.taken, *plan.rejected))


def test_what_is_put_together_is_not_overwritten() -> None:
    padded = xla_us(lambda x: jnp.pad(x, ((4, 4), (4, 4)), mode="reflect"), (1024, 1024))
    inner = xla_us(lambda x: x.at[1:-1, 1:-1].set(x[1:-1, 1:-1] * x[1:-1, :-2]), (1024, 1024))
    assert inner > 2 * padded


def test_long_rows_that_are_rolled_are_loops_of_their_own() -> None:
    def rolled_us(axis: int, *shape: int) -> float:
        return xla_us(lambda x: jnp.roll(x, 1, axis) - x, shape)

    joined = 512 * 512 * figure("joined_ns") / 1e3
    assert rolled_us(1, 512, 512) == pytest.approx(rolled_us(0, 512, 512) + joined)
    assert rolled_us(1, 4096, 64) == pytest.approx(rolled_us(0, 4096, 64))  # of short ones
    assert xla_us(lambda x: jnp.roll(x, 1, 1), (512, 512)) < joined  # nothing is computed of them


def test_columns_of_small_matrices_are_what_lapack_takes() -> None:
    def factors_us(size: int) -> float:
        return xla_us(jnp.linalg.cholesky, (10_000, size, size))

    assert factors_us(8) == pytest.approx(10_000 * 8 * figure("cholesky_column_ns") / 1e3, rel=0.3)
    assert factors_us(4) < 0.6 * factors_us(8)


def test_convolutions_of_groups_take_xla_longer_than_of_one_channel() -> None:
    def convolution(groups: int, dims: int = 2) -> float:
        def function(x: jax.Array, kernel: jax.Array) -> jax.Array:
            return lax.conv_general_dilated(
                x, kernel, (1,) * dims, "SAME", feature_group_count=groups
            )

        shapes = (4, groups, *(16,) * dims), (groups, 1, *(3,) * dims)
        return xla_us(function, *shapes) / groups

    assert convolution(8) > 1.3 * convolution(1)
    assert convolution(1, dims=3) > 60 * convolution(1)


def test_convolutions_of_groups_in_f64_take_xla_as_long_as_of_all_with_all() -> None:
    def convolved(groups: int, dtype: type) -> float:
        def function(x: jax.Array, kernel: jax.Array) -> jax.Array:
            return lax.conv_general_dilated(x, kernel, (1, 1), "SAME", feature_group_count=groups)

        with jax.enable_x64(True):
            shapes = (4, groups, 16, 16), (groups, 1, 3, 3)
            return xla_us(function, *(jax.ShapeDtypeStruct(s, dtype) for s in shapes)) / groups

    assert convolved(512, jnp.float64) > 1.8 * convolved(256, jnp.float64)
    assert convolved(512, jnp.float32) < 1.2 * convolved(256, jnp.float32)


def test_windows_that_have_more_places_than_the_image_become_the_image_there() -> None:
    """And no library does it then: the gradients of patches took XLA forty times as long."""

    def full(frames: int, size: int) -> float:
        def function(x: jax.Array, windows: jax.Array) -> jax.Array:
            return lax.conv_general_dilated(
                x, windows, (1,), [(size - 1, size - 1)], dimension_numbers=("NWC", "WIO", "NWC")
            )

        return xla_us(function, (4, frames, 16), (size, 16, 16))

    assert full(120, 128) > 5 * full(136, 128)
    assert full(60, 512) == pytest.approx(full(120, 512) / 2, rel=0.3)  # places, not terms


@pytest.mark.parametrize("is_slow", [True, False])
def test_what_came_decides_where_nothing_is_taken(is_slow: bool) -> None:
    """XLA gets that, not what our passes have made of it."""

    def function(x: jax.Array, windows: jax.Array) -> jax.Array:
        return lax.conv_transpose(
            x, windows, (32,), "VALID", dimension_numbers=("NWC", "WIO", "NWC")
        )

    size = 128 if is_slow else 16
    plan = plan_of(function, (4, 64, 64), (size, 64, 16))
    left = [(cluster, replace(verdict, take=False)) for cluster, verdict in plan.taken]
    module = jax.jit(function).lower(jnp.ones((4, 64, 64)), jnp.ones((size, 64, 16)))
    came = import_function(module.compiler_ir())
    plan = replace(plan, taken=[], rejected=[*plan.rejected, *left], came=came)
    changed = sum(verdict.xla_us for _, verdict in plan.rejected)
    assert (came_us(came, TARGET.rates) > 2 * changed) is is_slow
    found = predict(plan, TARGET)
    assert (found.xla_us > 2 * changed) is is_slow
    assert found.ours_us == found.xla_us
    least = in_place_of_what_came(plan, TARGET, ())
    assert len(least) == is_slow
    assert in_place_of_what_came(plan, TARGET, {c.kernel.fingerprint for c, _ in left}) == ()
    recorded = [(cluster, replace(verdict, recorded=True)) for cluster, verdict in plan.rejected]
    for other in replace(plan, taken=left[:1]), replace(plan, rejected=recorded):
        assert in_place_of_what_came(other, TARGET, ()) == ()


def test_convolutions_without_a_result_take_no_time() -> None:
    """Our passes make constants of them, so that only what came has such."""

    def function(x: jax.Array, windows: jax.Array) -> jax.Array:
        return lax.conv(x, windows, (1, 1), "SAME")

    module = jax.jit(function).lower(jnp.ones((1, 3, 8, 8)), jnp.ones((0, 3, 3, 3)))
    assert came_us(import_function(module.compiler_ir()), TARGET.rates) == 0


def test_each_operand_and_result_takes_a_call_longer() -> None:
    def many(count: int) -> float:
        def function(*arrays: jax.Array) -> list[jax.Array]:
            return [x * 2 for x in arrays]

        return predict(plan_of(function, *[(8,)] * count), TARGET).xla_us

    assert 50 < many(101) - many(51) < 200


def test_scatters_of_windows_across_lines_go_element_by_element() -> None:
    def summed(axis: int) -> float:
        def function(values: jax.Array, places: jax.Array) -> jax.Array:
            return jax.vmap(
                lambda one: jax.ops.segment_sum(one, places, 300), in_axes=axis, out_axes=axis
            )(values)

        return xla_us(function, (100, 10_000) if axis == 0 else (10_000, 100), indices(10_000))

    elements_us = 1_000_000 * figure("scatter_apart_ns") / 1e3
    assert summed(0) >= elements_us > 2 * summed(1)


def test_what_a_thread_does_one_by_one_follows_its_speed() -> None:
    rates = replace(TARGET.rates, one_by_one=3 * TARGET.rates.one_by_one)

    def us(function: Callable, *shapes: tuple[int, ...] | jax.ShapeDtypeStruct) -> list[float]:
        cluster = cluster_of(function, *shapes)
        found = [choose_predicted(cluster, replace(TARGET, rates=r)) for r in (TARGET.rates, rates)]
        return [found[1].ours_us / found[0].ours_us, found[1].xla_us / found[0].xla_us]

    assert us(jnp.sin, (MILLION,)) == [1.0, pytest.approx(3, rel=0.1)]
    assert us(lambda x: jnp.sort(x, 1), (1024, 1024)) == pytest.approx([3, 3], rel=0.2)
    assert us(lambda x: x * 2, (MILLION,)) == [1.0, 1.0]


@pytest.mark.parametrize("is_last", [True, False])
def test_convolutions_in_loops_are_not_laid_out_for_a_library(is_last: bool) -> None:
    layout = ("NHWC", "HWIO", "NHWC") if is_last else ("NCHW", "OIHW", "NCHW")
    shapes = ((1, 16, 16, 64), (3, 3, 64, 64)) if is_last else ((1, 64, 16, 16), (64, 64, 3, 3))

    def convolved(x: jax.Array, kernel: jax.Array) -> jax.Array:
        return lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=layout)

    def again(x: jax.Array, kernel: jax.Array) -> jax.Array:
        return lax.fori_loop(0, 10, lambda _, x: convolved(x, kernel), x)

    def perhaps(x: jax.Array, kernel: jax.Array) -> jax.Array:
        return lax.cond(x[0, 0, 0, 0] > 0, lambda: by_xla(convolved(x, kernel)), lambda: x)

    once = xla_us(convolved, *shapes)
    assert (xla_us(again, *shapes) > 100 * once) == (not is_last)
    assert (xla_us(perhaps, *shapes) > 10 * once) == (not is_last)


def test_products_of_transposed_factors_in_f64() -> None:
    def product_us(function: Callable, dtype: type) -> float:
        with jax.enable_x64(True):
            return xla_us(function, *[jax.ShapeDtypeStruct((600, 600), dtype)] * 2)

    for dtype, is_longer in ((jnp.float64, True), (jnp.float32, False)):
        across = product_us(lambda x, y: x.T @ y, dtype)
        assert (across > 1.5 * product_us(lambda x, y: x @ y, dtype)) == is_longer


def test_what_is_picked_out_of_one_sort_is_sorted_once_there() -> None:
    plan = plan_of(lambda x: jnp.median(x, -1), (512, 1000))
    assert sum(verdict.estimate.kind == "sort" for _, verdict in plan.taken) == 2
    once = predict(plan_of(lambda x: jnp.sort(x, -1), (512, 1000)), TARGET).xla_us
    assert predict(plan, TARGET).xla_us < 1.5 * once


def test_results_that_malloc_does_not_keep_are_fresh_pages() -> None:
    kept, fresh = (
        predict(plan_of(lambda x: x * 2 + 1, (n,)), TARGET) for n in (8 << 20, (8 << 20) + 1024)
    )
    for side in ("ours_us", "xla_us"):
        assert getattr(fresh, side) > getattr(kept, side) + 2_000


def test_what_a_program_is_given_comes_from_where_all_of_it_lies() -> None:
    """Each call goes through all of it before the same array is read again."""

    def both(x: jax.Array, w: jax.Array, other: jax.Array) -> tuple[jax.Array, jax.Array]:
        return x @ w, by_xla(other).sum(0)

    def product(count: int) -> Verdict:
        plan = plan_of(both, (8, 1024), (1024, 1024), (count, 1024))
        (found,) = (v for _, v in (*plan.taken, *plan.rejected) if v.estimate.kind == "product")
        return found

    alone, beside = product(8), product(1 << 16)
    assert beside.ours_us > 1.5 * alone.ours_us
    assert beside.xla_us > 1.5 * alone.xla_us


@pytest.mark.parametrize(("version", "is_slow"), [("0.10.2", True), ("0.12.0", False)])
def test_folds_whose_results_have_long_rows_go_column_by_column_there(
    monkeypatch: pytest.MonkeyPatch, version: str, is_slow: bool
) -> None:
    monkeypatch.setattr(jaxlib, "__version__", version)
    short, long = (times(lambda x: jnp.sum(x, 0), (64, n)).xla_us for n in (1 << 14, 1 << 15))
    assert (long > 10 * short) == is_slow
    along, columns = (
        times(lambda x, axis=axis: jnp.max(x, axis), (1 << 12, 1 << 10)).xla_us for axis in (1, 0)
    )
    assert columns > 1.5 * along


def test_a_program_of_several_clusters_takes_xla_its_passes_over_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All of its operations are looked at together, each after what it uses."""
    plan = plan_of(lambda x, y: (jnp.sum(x + y), (x + y)[::-1], jnp.sort(x)), *[(64, 64)] * 2)
    clusters = [*plan.taken, *plan.rejected]
    every = {node for cluster, _ in clusters for node in cluster.all_nodes}
    assert len(clusters) > 1

    def looked_at(nodes: Sequence[Node], results: Collection[Value], *_: object) -> float:
        later = {value for node in nodes for value in node.results}
        for node in nodes:
            later.difference_update(node.results)
            assert not any(value in later for value in node.operands)
        assert set(nodes) == every
        assert set(results) == set(plan.graph.results)
        return 1e6

    monkeypatch.setattr(predictions, "least_us", looked_at)
    assert predict(plan, TARGET).xla_us > 1e6
