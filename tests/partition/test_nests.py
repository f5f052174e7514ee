"""Which stages share a nest, and that no order of operations is ever broken by it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from hlo_mlc.expr.core import Apply, walk
from hlo_mlc.partition.fuse.limits import ROW_LIMIT
from hlo_mlc.partition.fuse.nests import COST_LIMIT
from hlo_mlc.target.cpu import CpuTarget
from hlo_mlc.tensor.chain import Chain, chain
from hlo_mlc.tensor.classify import is_map, stage_cost
from making.left import by_xla


def nests(parts) -> list:
    (program,) = parts.programs
    return list(program.steps)


@pytest.fixture
def nests_of(take_apart, arrays):
    """`nests_of(function, *shapes)`: the nests of the one kernel that it becomes."""
    return lambda function, *shapes: nests(take_apart(function, *arrays("float32", *shapes)))


def test_elementwise_chains_become_one_stage(nests_of):
    def function(x, y):
        a = jnp.exp(x) + y
        return a * 2, jnp.tanh(a) - x, a.astype(jnp.bfloat16)

    (nest,) = nests_of(function, (9, 20), (9, 20))
    (stage,) = nest.stages
    assert is_map(stage)
    assert len(stage.assigns) == 3
    assert nest.private == ()


@pytest.mark.parametrize(
    "function",
    [
        jax.nn.softmax,
        lambda x: x - x.mean(1, keepdims=True),
        jax.nn.log_softmax,
        lambda x: (x - x.mean(1, keepdims=True)) * lax.rsqrt(x.var(1, keepdims=True) + 1e-5),
    ],
)
def test_row_wise_chains_are_one_nest(nests_of, function):
    (nest,) = nests_of(function, (9, 50))
    assert nest.shared == 1
    assert {v.extent for stage in nest.stages for v in stage.axes[:1]} == {9}


def test_little_maps_of_a_row_are_one_pass(nests_of, check, arrays):
    """Their values are handed on, and no row of them is kept; long ones have their own."""

    def function(x, between):
        y = between(x - x.sum(1, keepdims=True))
        z = between(y * y)
        return y * z + z, (z - y).max(1)

    for between, rows in ((lambda y: y * 2 + 1, 0), (lambda y: jnp.tanh(y) * jnp.exp(y), 1)):
        (nest,) = nests_of(lambda x, f=between: function(x, f), (9, 50))
        assert len(nest.stages) == 2 + rows
        assert len([b for b in nest.private if b.shape == (9, 50)]) == rows
        check(lambda x, f=between: function(x, f), *arrays("float32", (9, 50)), ulps=256)


def test_stages_of_a_nest_have_only_the_shared_axes_in_common(nests_of):
    """Else a transformation of one stage's loop would hit another's."""

    def function(x):
        clipped = jnp.clip(x, -1, 1)
        return jnp.concatenate([lax.cummax(clipped, axis=2), clipped, x], 1)[:, :40]

    for nest in nests_of(function, (5, 33, 7)):
        own = [{*s.axes[nest.shared :], *s.reduce_axes} for s in nest.stages]
        assert sum(map(len, own)) == len(set().union(*own))


def test_reductions_of_the_same_rows_share_a_pass(nests_of):
    (nest,) = nests_of(lambda x: (x.sum(1), x.max(1), x.min(1)), (9, 50))
    assert len(nest.stages) == 3


def test_epilogues_join_a_product(nests_of):
    (nest,) = nests_of(lambda x, w, b: jax.nn.gelu(x @ w + b), (9, 20), (20, 30), (30,))
    (stage,) = nest.stages
    assert stage.combiner.name == "add"
    assert len(stage.assigns) == 1


def test_epilogues_in_another_layout_join_a_product(nests_of):
    """Splitting heads is a way of storing the product."""
    (nest,) = nests_of(
        lambda x, w: (x @ w).reshape(9, 5, 6).transpose(1, 0, 2) * 2, (9, 20), (20, 30)
    )
    (stage,) = nest.stages
    assert stage.assigns[0].buffer.shape == (5, 9, 6)


def test_rows_and_columns_do_not_share_a_nest(nests_of):
    assert len(nests_of(lambda x: x.sum(0) + x.sum(1), (50, 50))) > 1


@pytest.mark.parametrize(
    ("function", "shape"),
    [
        (lambda x: (x.sum(), (x * x).sum(), x.max()), (9, 50)),
        (lambda x: (x.min(0), x.max(0), x.sum(0) / 9), (9, 50)),
        (lambda x: (x.sum((0, 1)), (x > 0).any((0, 1))), (5, 9, 7)),
    ],
)
def test_several_folds_of_one_tensor_take_one_pass(nests_of, check, arrays, function, shape):
    (nest,) = nests_of(function, shape)
    (stage,) = nest.stages
    assert len(stage.accumulators) == len(function(jnp.zeros(shape)))
    check(function, *arrays("float32", shape, special=True), ulps=64)


def test_what_does_not_share_a_pass(nests_of):
    """Too many partial results, sums of other tensors, and a fold that needs the other's result."""
    assert len(nests_of(lambda x: (x.sum(), x.max(), x.min(), jnp.abs(x).max()), (9, 50))) == 2
    assert len(nests_of(lambda x, y: (x.sum(), y.sum()), (9, 50), (9, 50))) == 2
    assert len(nests_of(lambda x: (x.mean(0), x.var(0)), (9, 50))) == 2


def attention(q, k, v):
    return jax.nn.softmax(q @ k.T * 0.125) @ v


def test_attention_is_one_nest_and_its_scores_are_private(nests_of):
    (nest,) = nests_of(attention, (20, 8), (30, 8), (30, 5))
    assert nest.shared == 1
    assert {b.shape for b in nest.private} == {(20, 30), (20,)}
    assert nest.stages[-1].axes[-1].extent == 5


@pytest.mark.parametrize(
    ("function", "shapes", "reason"),
    [
        (attention, ((20, 300), (30, 300), (30, 5)), "more than 256 terms or columns in a product"),
        (attention, ((7, 8), (30, 8), (30, 5)), "fewer than 8 rows with the same keys"),
        (
            lambda q, k, v: jnp.tanh(q @ k.T) @ v,
            ((20, 8), (30, 8), (30, 5)),
            "two products whose rows stay in the caches",
        ),
        (
            lambda q, k, v: (p := jax.nn.softmax(q @ k.T), p @ v),
            ((20, 8), (30, 8), (30, 5)),
            "what is between the two products is needed elsewhere",
        ),
        (
            lambda q, k, v: jnp.cumsum(q @ k.T, 1) @ v,
            ((20, 8), (30, 8), (30, 5)),
            "a stage in between walks over something else than the rows and their columns",
        ),
        (
            lambda q, k, v: (s := q @ k.T, (s / s.sum(0)) @ v)[1],
            ((30, 8), (30, 8), (30, 5)),
            "a stage does not walk over the rows of the first product",
        ),
        (
            lambda q, k, v: (s := q @ k.T, (s @ s.T) @ v)[1],
            ((20, 8), (30, 8), (20, 5)),
            "it reads the rows at other places than they are computed",
        ),
    ],
)
def test_chains_that_stay_apart_say_why(check, arrays, function, shapes, reason):
    report = check(function, *arrays("float32", *shapes), ulps=64)
    (item,) = (item for item in report.apart if item.reason == reason)
    assert item.op == "stablehlo.dot_general"
    assert f"  {reason}\n    dot_general at " in report.explain()


@pytest.mark.parametrize(
    ("has_pairs", "values", "is_chain"),
    [(False, "int8", True), (True, "int8", False), (True, "float32", True)],
)
def test_two_products_in_pairs_stay_apart(
    take_apart, check, monkeypatch, has_pairs, values, is_chain
):
    """Products of bytes are added two at a time where both factors are laid out so."""

    def layers(x, w, v):
        hidden = lax.dot(x, w, preferred_element_type=jnp.int32).astype(jnp.float32)
        scale = jnp.abs(hidden).max(1, keepdims=True) / 127
        whole = jnp.round(hidden / scale).astype(v.dtype)
        return lax.dot(whole, v, preferred_element_type="int32" if v.dtype == "int8" else v.dtype)

    rng = np.random.default_rng(0)
    shapes = (20, 64), (64, 96), (96, 32)
    args = [rng.integers(-128, 128, shape).astype(np.int8) for shape in shapes]
    args[2] = args[2].astype(values)
    monkeypatch.setattr(CpuTarget, "has_pairs", has_pairs)
    programs = take_apart(layers, *args).programs
    found = [isinstance(chain(nest), Chain) for program in programs for nest in program.steps]
    assert any(found) == is_chain
    check(layers, *args)


def test_an_operation_of_xla_between_two_products(check, arrays):
    def function(q, k, v):
        scores = q @ k.T
        return (jnp.exp(scores) * by_xla(scores)) @ v

    report = check(function, *arrays("float32", (20, 8), (30, 8), (30, 5)), coverage=0.5)
    assert "another operation runs between the two products" in {r.reason for r in report.apart}


def test_chains_after_each_other_keep_their_order(check, arrays):
    """Two layers and what is computed beside them; the chains take the places of their ends."""
    q, k, v = arrays("float32", (20, 8), (30, 8), (30, 8))

    def function(q, k, v):
        beside = by_xla(q)
        first = attention(q, k, v) + beside
        second = attention(first, v, k)
        return second, jnp.cumsum(first, 0), attention(second * beside, k, jnp.tanh(v)).sum(1)

    report = check(function, q, k, v, coverage=0.9, ulps=64)
    templates = [nest.template for kernel in report.kernels for nest in kernel.nests]
    assert sum(t == "attention" for t in templates) >= 2


def test_rows_that_do_not_fit_the_cache_are_walked_several_times(take_apart, arrays):
    def count(extent):
        (x,) = arrays("float32", (2, extent))
        return sum(len(program.steps) for program in take_apart(jax.nn.softmax, x).programs)

    assert count(ROW_LIMIT) == 1
    assert count(ROW_LIMIT + 1) > 1


def bilateral(x: jax.Array, reach: int = 3) -> jax.Array:
    """Each weight is read by two sums."""
    p, n = jnp.pad(x, reach, mode="reflect"), x.shape[0]
    total = weights = jnp.float32(0)
    for i in range(2 * reach + 1):
        for j in range(2 * reach + 1):
            y = p[i : i + n, j : j + n]
            w = jnp.exp(-((i - reach) ** 2 + (j - reach) ** 2) / 8 - (y - x) ** 2)
            total, weights = total + w * y, weights + w
    return total / weights


def test_values_for_one_reader_need_no_memory_however_many_there_are(take_apart, check, arrays):
    (x,) = arrays("float32", (20, 20))
    *_, last = take_apart(bilateral, x).programs
    (nest,) = last.steps
    (stage,) = nest.stages
    assert stage_cost(stage) > COST_LIMIT
    assert len(stage.assigns) == 1 and not last.temporaries
    check(bilateral, x)


def test_long_chains_are_cut_where_little_is_handed_over(take_apart, check, arrays):
    def chain(x, y):
        for _ in range(24):
            x, y = jnp.sin(x + y * 0.3), jnp.cos(y - x * 0.2)
        return x, y

    given = arrays("float32", (7, 33), (7, 33))
    found = [nest for program in take_apart(chain, *given).programs for nest in program.steps]
    assert len(found) > 1
    assert all(sum(map(stage_cost, nest.stages)) <= COST_LIMIT for nest in found)
    check(chain, *given)


@pytest.mark.parametrize("levels", (3, 6))
def test_joined_parts_of_any_length_are_filled_one_by_one(nests_of, check, arrays, levels):
    def haar(x):
        details = []
        for _ in range(levels):
            details.append((x[:, ::2] - x[:, 1::2]) * 0.7071)
            x = (x[:, ::2] + x[:, 1::2]) * 0.7071
        return jnp.concatenate([x, *details[::-1]], 1)

    written = [
        nest
        for nest in nests_of(haar, (8, 64 << levels))
        if any(a.buffer.name.startswith("r") for s in nest.stages for a in s.assigns)
    ]
    assert len(written) == levels  # sums and differences of the last level share one
    assert not any(
        node.op == "select"
        for nest in written
        for stage in nest.stages
        for e in stage.expressions
        for node in walk(e)
        if isinstance(node, Apply)
    )
    short = arrays("float32", (8, 1 << levels))
    check(haar, *short)


@pytest.mark.parametrize("shape", [(128, 96, 96), (101, 103, 105)])
def test_folds_of_nearly_the_same_elements_take_one_pass(check, nests_of, arrays, shape):
    """Differences of neighbours, of which there is one less along each axis."""

    def function(x):
        apart = [jnp.square(jnp.diff(x, axis=axis)) for axis in range(3)]
        return jnp.sum(apart[0]), jnp.max(apart[1]), jnp.sum(apart[2])

    check(function, *arrays("float32", shape), magnitude=float(np.prod(shape)) ** 0.5)
    (nest,) = nests_of(function, shape)
    assert [len(stage.terms) for stage in nest.stages] == [3]


@pytest.mark.parametrize("rows", [3585, 4099])
def test_folds_of_nearly_the_same_columns_take_one_pass(check, nests_of, arrays, rows):
    def function(x):
        return jnp.min(jnp.diff(x, axis=0), 0), jnp.sum(x, 0)

    check(function, *arrays("float32", (rows, 300)), magnitude=float(rows) ** 0.5)
    (nest,) = nests_of(function, (rows, 300))
    assert len(nest.stages[0].terms) == 2


@pytest.mark.parametrize("rows, first", [(4096, 2048), (100, 99)])
def test_folds_of_other_elements_have_passes_of_their_own(take_apart, arrays, rows, first):
    """Where many elements of one are none of the other's, or all lie near."""
    parts = take_apart(lambda x: (jnp.sum(x[:first]), jnp.max(x)), *arrays("float32", (rows, 300)))
    stages = [s for program in parts.programs for nest in program.steps for s in nest.stages]
    assert [len(stage.terms) for stage in stages] == [1, 1]


def test_dead_stores_are_left_out(take_apart, arrays):
    """What only its own nest reads is never written to memory outside."""
    (x,) = arrays("float32", (9, 50))
    (program,) = take_apart(jax.nn.softmax, x).programs
    assert len(program.results) == 1
    assert {b.name for b in program.temporaries} == {
        b.name for nest in program.steps for b in nest.private
    }


def test_an_operation_of_xla_stays_between(check, arrays):
    """Neither what it needs nor what needs it may move across it."""
    (x,) = arrays("float32", (9, 20))

    def function(x):
        before = jnp.exp(x)
        middle = by_xla(before)
        after = before + middle
        return after, jnp.cumsum(by_xla(after), 0) * before, before.sum()

    check(function, x, coverage=0.5)


def test_a_guarded_value_is_not_forwarded_unguarded(check, arrays):
    x, y = arrays("float32", (6,), (6,))
    check(lambda x, y: (jnp.exp(x), jnp.concatenate([jnp.exp(x)[:3], y[3:]]) + 1), x, y)


@pytest.mark.parametrize("seed", range(6))
def test_many_small_operations_in_any_order(check, arrays, seed):
    """A web of values of two shapes, half of them results."""
    rng = np.random.default_rng(seed)
    choices = rng.integers(0, 1000, (18, 3))

    def function(x, y):
        values = [x, y]
        for kind, one, other in choices:
            a, b = values[one % len(values)], values[other % len(values)]
            match kind % 6:
                case 0:
                    values.append(jnp.round(a) + b.sum())
                case 1:
                    values.append(jnp.maximum(a, a.T) if a.shape[0] == a.shape[-1] else a + 1)
                case 2:
                    values.append(by_xla(jnp.clip(a, -3, 3)))
                case 3:
                    values.append(jnp.clip(a - b if a.shape == b.shape else a, -2, 2))
                case 4:
                    values.append(jnp.clip(a.sum(0, keepdims=True) - a, -5, 5))
                case _:
                    values.append(a[::-1] * 2)
            values[-1] = jnp.clip(values[-1], -8, 8)
        return values[2::2]

    x, y = (np.round(a) for a in arrays("float32", (7, 7), (5, 9), seed=seed))
    check(function, x, y, coverage=0.5, ulps=0)


def _lengths_and_sums(x, y):
    parts = jnp.tanh(x)
    lengths = jnp.sum(parts * parts, 1)
    sums = jnp.einsum("bi,bi->b", jnp.exp(parts) * y, y)
    return lengths / sums, lengths


@pytest.mark.parametrize("columns", [2, 5])
def test_what_follows_a_fold_reads_rows_that_were_stored_along_it(
    take_apart, check, arrays, columns
):
    """A sum of few terms, written out, of what the fold before it computes element by element."""
    x, y = arrays("float32", *[(6, columns)] * 2)
    (program,) = take_apart(_lengths_and_sums, x, y).programs
    assert len(program.operands) == 2
    assert check(_lengths_and_sums, x, y).coverage == 1


def test_rows_stored_along_a_fold_are_read_after_it_in_loops(check, arrays):
    x, y = arrays("float32", *[(6, 5)] * 2)

    def function(x, y):
        def step(_, x):
            return x * 0.5 + jnp.stack(_lengths_and_sums(x, y)).sum(0)[:, None] * 0.01

        return lax.fori_loop(0, 3, step, x)

    assert check(function, x, y).coverage == 1
