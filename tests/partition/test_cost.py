"""What choose="auto" takes: the directions that were measured, not their amounts."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from hlo_mlc import mlc_jit
from hlo_mlc.partition.choose import cost
from hlo_mlc.partition.choose.cost import choose_predicted, estimate
from hlo_mlc.partition.choose.surroundings import Surroundings
from hlo_mlc.partition.choose.xla_figures import figure
from hlo_mlc.partition.costs import Costs
from hlo_mlc.partition.estimate import Estimate
from hlo_mlc.partition.kernel import Kernel
from hlo_mlc.target.cpu import CpuTarget
from hlo_mlc.tensor.core import Loop
from making.left import by_xla
from making.predicted import MILLION, TARGET, cluster_of, indices, plan_of, times, xla_us


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


@pytest.mark.parametrize("updates", [1 << 12, MILLION])
@pytest.mark.parametrize("elements", [8, 2000])
def test_takes_updates_of_single_elements(updates: int, elements: int) -> None:
    """Some are written out, and many of few elements shared out."""

    def function(x: jax.Array, i: jax.Array) -> jax.Array:
        return jax.ops.segment_sum(x, i, elements)

    ((_, verdict),) = plan_of(function, (updates,), indices(updates)).taken
    assert verdict.estimate.kind == "scatter"
    assert verdict.estimate.forks == (updates == MILLION)


@pytest.mark.parametrize("has_pairs", [True, False])
def test_products_of_bytes_stay_where_they_go_one_by_one(
    monkeypatch: pytest.MonkeyPatch, has_pairs: bool
) -> None:
    """Others of integers go, which XLA has no fast code for."""
    monkeypatch.setattr(CpuTarget, "has_pairs", has_pairs)

    def product(a: jax.Array, b: jax.Array) -> jax.Array:
        return lax.dot(a, b, preferred_element_type=jnp.int32)

    for dtype, is_taken in ((jnp.int8, has_pairs), (jnp.uint8, True), (jnp.int32, True)):
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


def test_each_of_many_small_products_has_its_call() -> None:
    tiny = times(jnp.matmul, (512, 8, 8), (512, 8, 8))
    assert tiny.xla_us > 50


def test_what_is_computed_for_a_factor_serves_many_products() -> None:
    narrow = jax.ShapeDtypeStruct((256, 256), jnp.bfloat16)
    plan = plan_of(jnp.matmul, narrow, narrow)
    ((_, verdict),) = [*plan.taken, *plan.rejected]
    assert verdict.estimate.operations < 256**3 / 4


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
                {
                    "xla_dump_to": str(tmp_path / str(size)),
                    "xla_dump_emitter_re": ".*",  # without which JAX 0.12 writes no code
                    "xla_backend_optimization_level": 3,
                }
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


def test_where_an_array_lies_decides_how_fast_a_part_of_it_comes() -> None:
    """Rows of a matrix that no cache holds, one in each trip."""

    def rows(count: int) -> Callable:
        def step(i: jax.Array, total: jax.Array, x: jax.Array) -> jax.Array:
            return total + lax.dynamic_index_in_dim(x, i, 0, keepdims=False)

        return lambda x: lax.fori_loop(0, count, lambda i, v: step(i, v, x), x[0])

    few, many = (times(rows(100), (n, 8192)) for n in (100, 10_000))
    assert many.ours_us > 1.5 * few.ours_us
    assert many.xla_us > 1.5 * few.xla_us


def test_lanes_that_stay_empty_are_empty() -> None:
    """In XLA's code; in ours, short rows have a lane each."""
    short, long = (
        times(lambda x: jnp.sum(jnp.exp(x) * x, -1), shape) for shape in ((65536, 7), (1792, 256))
    )
    assert short.xla_us > 1.5 * long.xla_us
    assert short.ours_us < 1.1 * long.ours_us


def test_rows_of_different_elements_are_computed_for_their_places_alone() -> None:
    """By us, and what each reads lies beside what the next one of its kind does."""

    def one_behind_the_other(x: jax.Array, y: jax.Array) -> jax.Array:
        return jnp.stack([x[::2] + y, x[::2] * y, x[::2] - y], axis=1).ravel()

    def after_each_other(x: jax.Array, y: jax.Array) -> jax.Array:
        return jnp.concatenate([x[::2] + y, x[::2] * y, x[::2] - y])

    interleaved, apart = (
        times(f, (MILLION,), (MILLION // 2,)) for f in (one_behind_the_other, after_each_other)
    )
    assert interleaved.ours_us < 2 * apart.ours_us
    assert interleaved.xla_us > interleaved.ours_us


def test_updates_one_by_one_take_no_less_where_rows_are_added() -> None:
    """They have no vectors, however what they add is counted."""

    def rows(x: jax.Array, y: jax.Array, i: jax.Array) -> jax.Array:
        return jax.ops.segment_sum((x[:, None] * y).reshape(-1), i, 100_000)

    def elements(x: jax.Array, i: jax.Array) -> jax.Array:
        return jax.ops.segment_sum(x, i, 100_000)

    of_rows = times(rows, (100_000,), (3,), indices(300_000))
    assert of_rows.ours_us >= times(elements, (300_000,), indices(300_000)).ours_us


def test_a_pointwise_loop_stays_in_the_first_cache() -> None:
    def repeated(step: Callable) -> Callable:
        return lambda x: lax.fori_loop(0, 50, lambda _, v: step(v), x)

    apart = times(repeated(lambda v: v * 0.5 + v[::-1]), (1 << 18,))
    pointwise = times(repeated(lambda v: v * 0.5 + 1), (1 << 18,))
    assert apart.ours_us > 1.5 * pointwise.ours_us


def test_blocks_of_points_that_end_by_themselves_are_shared_by_threads() -> None:
    """And stay in the first cache, unlike points that go together as one asks for another."""

    def halved(change: Callable) -> Callable:
        return lambda x: lax.while_loop(
            lambda x: jnp.any(x > 1), lambda x: jnp.where(x > 1, change(x) * 0.5, x), x
        )

    alone, shared = (
        times(halved(lambda x: x), (MILLION,), target=replace(TARGET, cores=n)) for n in (1, 4)
    )
    assert not alone.forks and shared.forks
    assert 3 < alone.ours_us / shared.ours_us < 5
    together = times(halved(lambda x: x[::-1]), (MILLION,), target=replace(TARGET, cores=1))
    assert together.ours_us > 1.5 * alone.ours_us


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


@pytest.mark.parametrize(
    ("shape", "kept"), [((1 << 22,), 100), ((1 << 16,), 1), ((4, 1 << 18), 50)]
)
def test_the_first_few_of_long_rows_are_found_faster(shape: tuple[int, ...], kept: int) -> None:
    verdict = choose_predicted(cluster_of(lambda x: lax.top_k(x, kept), shape), TARGET)
    assert verdict.take and verdict.xla_us > 2 * verdict.ours_us


def test_each_cluster_is_estimated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    estimated = []

    def counting(kernel: Kernel, target: CpuTarget, around: Surroundings) -> Estimate:
        estimated.append(kernel.fingerprint)
        return estimate(kernel, target, around)

    monkeypatch.setattr(cost, "estimate", counting)
    report = mlc_jit(lambda x: by_xla(jnp.exp(x)) @ x, choose="auto").report(jnp.ones((300, 300)))
    assert report.kernels
    assert len(estimated) == len(set(estimated)) >= 2


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
