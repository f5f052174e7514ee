"""What XLA is predicted to need for a kernel: the directions that were measured."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace

import jax
import jax.numpy as jnp
import jaxlib
import numpy as np
import pytest
from jax import lax

from hlo_mlc.partition.choose.cost import choose_predicted, estimate
from hlo_mlc.partition.choose.predictions import predict
from hlo_mlc.partition.choose.xla_figures import figure
from hlo_mlc.partition.choose.xla_time import xla_threads
from hlo_mlc.target.cpu import named
from hlo_mlc.tensor.canonical import stages
from making.left import by_xla
from making.predicted import MILLION, TARGET, cluster_of, indices, plan_of, times, xla_us


def test_places_of_several_numbers_are_written_side_by_side_there() -> None:
    def counts(places: jax.Array) -> jax.Array:
        return jnp.zeros(5, jnp.int32).at[places].add(1)

    def scattered_us(function: Callable, shape: tuple[int, ...]) -> float:
        plan = plan_of(function, indices(*shape))
        return sum(v.xla_us for _, v in plan.taken if v.estimate.kind == "scatter")

    apart_us = 602_000 * 2 * figure("scatter_place_ns") / 1e3
    by_rows, at_once = scattered_us(jax.vmap(counts), (301, 2000)), scattered_us(counts, (602_000,))
    assert by_rows - at_once == pytest.approx(apart_us, rel=0.2)


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


@pytest.mark.parametrize(
    ("shape", "axis"), [((512, 2, 8, 160), 1), ((3, 200_000), 0), ((200_000, 4), 1)], ids=str
)
def test_reductions_of_few_terms_are_xlas_to_compute(shape: tuple[int, ...], axis: int) -> None:
    """We write them out into what reads their sum, so that no stage of ours is one."""
    summed = cluster_of(lambda x: jnp.tanh(x.sum(axis)), shape)
    parts = [lax.index_in_dim(jnp.ones(shape), k, axis, False).shape for k in range(shape[axis])]
    added = cluster_of(lambda *parts: jnp.tanh(sum(parts[1:], parts[0])), *parts)
    assert choose_predicted(summed, TARGET).xla_us > 1.5 * choose_predicted(added, TARGET).xla_us


def test_factors_of_products_in_loops_are_as_large_as_these() -> None:
    """However often loops around them go round."""

    def rows(x: jax.Array) -> jax.Array:
        def row(i: jax.Array, done: jax.Array) -> jax.Array:
            found = jnp.where(jnp.arange(512) < i, x[i], 0.0) @ jnp.where(x[:, i] > 0, x[:, i], 1.0)
            return done.at[i].set(found)

        return lax.fori_loop(0, 512, row, jnp.zeros(512))

    assert times(rows, (512, 512)).xla_us < 512 * 5


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


def test_a_lookup_costs_xla_no_vectors_for_what_is_computed_of_it() -> None:
    def computed(x: jax.Array) -> jax.Array:
        return jnp.tanh(x) * x + 1

    shapes = (MILLION,), indices(MILLION)
    plain = times(computed, shapes[0]).xla_us
    looked_up = times(lambda x, i: computed(x[i]), *shapes).xla_us
    assert plain < looked_up < 5 * plain


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
