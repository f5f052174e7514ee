"""Folds of what is put together are folds of its parts."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hlo_mlc.graph.rewrite import eliminate_dead_nodes
from hlo_mlc.ops.registry import evaluate_graph
from hlo_mlc.passes.fold_parts import fold_parts
from hlo_mlc.passes.simplify import simplify

RNG = np.random.default_rng(0)


def arrays(*shapes: tuple[int, ...], dtype: type = np.float32) -> list[np.ndarray]:
    return [(RNG.standard_normal(shape) * 4).astype(dtype) for shape in shapes]


def joined(axis: int, *parts: jax.Array) -> jax.Array:
    return jnp.concatenate(parts, axis)


ROWS, COLUMNS = ((3, 17), (3, 1), (3, 16)), ((7, 5), (16, 5), (1, 5))


@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (lambda *a: joined(1, *a).sum(1), ROWS),
        (lambda *a: joined(0, *a).max(0), COLUMNS),
        (lambda *a: joined(1, *a).min(), ROWS),
        (lambda *a: jnp.sqrt(jnp.sum(joined(0, *[x.ravel() for x in a]) ** 2)), ROWS * 5),
        (lambda *a: jnp.prod(jnp.where(joined(1, *a) > 0, joined(1, *a), 1.0), 1), ROWS),
        (lambda *a: jnp.any(joined(0, *a) > 3, 0), COLUMNS),
        (lambda x, y, s: jnp.sum(jnp.exp(joined(0, x, y) * s), (0, 1)), ((4, 5), (2, 5), ())),
    ],
)
def test_parts_are_folded_apart(
    function: Callable,
    shapes: tuple,
    traced: Callable,
    same: Callable,
    ops_of: Callable,
    check: Callable,
) -> None:
    args = arrays(*shapes)
    graph = traced(function, *args)
    apart = eliminate_dead_nodes(fold_parts(graph))
    assert "concatenate" in ops_of(graph)
    assert "concatenate" not in ops_of(apart)
    parts = sum(1 for shape in shapes if shape)
    assert ops_of(apart).count("reduce") == parts
    same(apart, graph, args, 1e-5)
    assert fold_parts(apart) is apart
    check(function, *args)


def kept_as_well(x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
    both = joined(1, x, y)
    return both, both.sum(1)


def read_twice(x: jax.Array, y: jax.Array) -> jax.Array:
    both = joined(1, x, y)
    return jnp.exp(both - both.max(1, keepdims=True)).sum(1)


@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (lambda x, y: joined(0, x, y).sum(1), ((4, 5), (2, 5))),  # along another axis
        (lambda x, y: jnp.sum(joined(0, x, y) * joined(0, y, x), 0), ((4, 5), (2, 5))),
        (lambda x, y, z: jnp.sum(joined(0, x, y) * z, 0), ((4, 5), (2, 5), (6, 5))),
        (lambda x, y: jnp.argmax(joined(1, x, y), 1), ((4, 5), (4, 2))),
        (kept_as_well, ((4, 5), (4, 2))),
        (read_twice, ((4, 5), (4, 2))),
    ],
)
def test_others_stay(function: Callable, shapes: tuple, traced: Callable, check: Callable) -> None:
    args = arrays(*shapes)
    graph = traced(function, *args)
    assert fold_parts(graph) is graph
    check(function, *args)


def test_what_a_sum_starts_from_counts_once(traced: Callable, run: Callable) -> None:
    """XLA itself counts it for each part."""

    def function(x, y):
        return jax.lax.reduce(joined(0, x, y), jnp.ones((), x.dtype), jax.lax.add, (0,))

    args = arrays((4, 5), (2, 5))
    graph = traced(function, *args)
    assert fold_parts(graph) is graph
    (result,) = run(function, *args)
    np.testing.assert_allclose(result, 1 + np.concatenate(args).sum(0), rtol=1e-5)


def test_sums_of_narrow_floats_stay_and_their_maxima_do_not(traced: Callable) -> None:
    args = arrays((4, 5), (2, 5), dtype=jnp.bfloat16)
    graph = traced(
        lambda x, y: jax.lax.reduce(joined(0, x, y), jnp.bfloat16(0), jax.lax.add, (0,)), *args
    )
    assert fold_parts(graph) is graph
    graph = traced(lambda x, y: joined(0, x, y).max(0), *args)
    assert fold_parts(graph) is not graph


def test_long_functions_of_many_parts_stay(traced: Callable, ops_of: Callable) -> None:
    """Computed for each part, they would be a program of its own."""
    args = arrays(*[(3,)] * 16)

    def function(length, *parts):
        whole = joined(0, *parts)
        for _ in range(length):
            whole = jnp.sin(whole)
        return whole.sum()

    graph = traced(lambda *a: function(40, *a), *args)
    assert fold_parts(graph) is graph
    small = eliminate_dead_nodes(fold_parts(traced(lambda *a: function(4, *a), *args)))
    assert ops_of(small).count("sine") == 4 * 16


def test_the_simplifier_keeps_its_promises(traced: Callable) -> None:
    graph = traced(lambda *a: jnp.sum(joined(0, *a) ** 2), *arrays((4,), (6,)))
    tidy, _ = simplify(graph, {}, verify=True)
    assert not any(node.op == "stablehlo.concatenate" for node in tidy.nodes)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: jnp.broadcast_to(x, (6, 4, 5)).sum(),
        lambda x: (jnp.broadcast_to(x, (6, 4, 5)) * 2).mean((0, 2)),
        lambda x: jnp.broadcast_to(x, (6, 4, 5)).max((0, 1)),
    ],
)
def test_what_is_repeated_is_folded_once(
    function: Callable, traced: Callable, check: Callable
) -> None:
    (x,) = arrays((4, 1))
    tidy, _ = simplify(traced(function, x), {}, verify=True)
    largest = [max(v.type.size for v in node.operands) for node in tidy.nodes if node.operands]
    assert max(largest) <= 4 * 5
    check(function, x)


def test_no_part_is_multiplied_beyond_what_the_sum_is(traced: Callable) -> None:
    x = np.array([[3e38], [-3e38], [1.0]], np.float32)
    tidy, _ = simplify(traced(lambda x: jnp.sum(jnp.broadcast_to(x, (4, 3, 5))), x), {})
    assert evaluate_graph(tidy, [x])[0] == 20


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.int8])
def test_where_a_product_would_be_another_number_all_is_summed(
    dtype: jnp.dtype, traced: Callable
) -> None:
    graph = traced(
        lambda x: jax.lax.reduce(jnp.broadcast_to(x, (6, 300)), dtype(0), jax.lax.add, (0, 1)),
        *arrays((6, 1), dtype=dtype),
    )
    tidy, _ = simplify(graph, {}, verify=True)
    assert not any(node.op == "stablehlo.multiply" for node in tidy.nodes)
