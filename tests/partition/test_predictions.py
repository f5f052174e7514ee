"""What is predicted of whole programs, and what is worth taking of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from hlo_mlc import mlc_jit
from hlo_mlc.frontend.importer import import_function
from hlo_mlc.graph.core import Node, Value
from hlo_mlc.ops.registry import references
from hlo_mlc.partition.choose import predictions
from hlo_mlc.partition.choose.cost import choose_all, choose_predicted
from hlo_mlc.partition.choose.predictions import by_gain, predict
from hlo_mlc.partition.choose.shares import least_arithmetic_us
from hlo_mlc.partition.choose.worth import (
    completion,
    in_place_of_what_came,
    not_worth_compiling,
    worth_it,
)
from hlo_mlc.partition.choose.xla_came import came_us
from hlo_mlc.partition.choose.xla_dispatch import START_OPERATIONS, counted_operations
from hlo_mlc.partition.choose.xla_figures import figure
from hlo_mlc.partition.costs import Costs
from hlo_mlc.partition.estimate import Estimate
from hlo_mlc.partition.plan import Plan, Verdict
from hlo_mlc.partition.planner import partition
from hlo_mlc.passes.simplify import simplify
from making.left import by_xla
from making.predicted import MILLION, TARGET, cluster_of, indices, plan_of, times


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
