"""Updates of zeros that are added to something update that."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from hlo_mlc import mlc_jit
from hlo_mlc.graph.core import Graph, Node, Value
from hlo_mlc.graph.rewrite import eliminate_dead_nodes
from hlo_mlc.graph.verify import verify_graph
from hlo_mlc.ops.registry import evaluate_graph, references
from hlo_mlc.passes.simplify import simplify
from hlo_mlc.passes.updates import update_in_place
from proving.inputs import same_bits

RNG = np.random.default_rng(0)
SPECIAL = np.array([0.0, -0.0, 1.5, -1.5, 3e38, 1e-40, np.inf, -np.inf, np.nan], np.float32)
# Every pair of special values, at places that nothing else lies at.
ONE, OTHER = (a.ravel() for a in np.meshgrid(SPECIAL, SPECIAL))
PLACES = jnp.arange(3, 3 + ONE.size)
ROWS = np.array([3, 0, 3, 7, -2], np.int32)
# Whole rows of updates, all of them for one place, since indices of no axes say where.
WHOLE, NOWHERE = lax.ScatterDimensionNumbers((1,), (), ()), np.zeros((2, 0), np.int32)


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def positive(x: jax.Array) -> jax.Array:
    """x without -0.0."""
    return x + jnp.zeros((), x.dtype)


def sliced(x: jax.Array, u: jax.Array, i: jax.Array) -> jax.Array:
    return lax.dynamic_update_slice(jnp.zeros_like(x), u, (i,))


def set_at(x: jax.Array, u: jax.Array, i: jax.Array) -> jax.Array:
    return jnp.zeros_like(x).at[i + PLACES].set(u, unique_indices=True, mode="drop")


def added_at(x: jax.Array, u: jax.Array, i: jax.Array) -> jax.Array:
    return jnp.zeros_like(x).at[i + PLACES].add(u, unique_indices=True, mode="drop")


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("update", [sliced, set_at, added_at])
def test_all_is_as_it_was_bit_by_bit(update: Callable, swapped: bool, traced: Callable) -> None:
    """Places in the middle, at both ends, and beyond them."""

    def function(x: jax.Array, u: jax.Array, i: jax.Array) -> jax.Array:
        x, change = positive(x), update(x, u, i)
        return change + x if swapped else x + change

    x = np.concatenate([SPECIAL[:3], ONE, SPECIAL])
    graph = traced(function, x, OTHER, np.int32(0))
    after = eliminate_dead_nodes(update_in_place(graph))
    assert _zeros(graph) and not _zeros(after)
    verify_graph(after)
    assert update_in_place(after) is after
    for place in (-90, -5, -1, 0, 1, 3, 8, 40, 99):
        args = [x, OTHER, np.int32(place)]
        assert all(map(same_bits, evaluate_graph(after, args), evaluate_graph(graph, args)))


@pytest.mark.parametrize(
    "function",
    [
        lambda x, u, i: x + sliced(x, u, i),
        lambda x, u, i: -positive(x) + sliced(x, u, i),
        lambda x, u, i: positive(x) * 0.5 + sliced(x, u, i),
        lambda x, u, i: jnp.concatenate([x[:9], positive(x[9:])]) + sliced(x, u, i),
        lambda x, u, i: jnp.where(x > 0, x, positive(x)) + sliced(x, u, i),
        lambda x, u, i: positive(x).at[i].set(u[0]) + sliced(x, u, i),
        lambda x, u, i: positive(x).at[i].multiply(u[0]) + sliced(x, u, i),
        lambda x, u, i: lax.pad(positive(x[1:]), jnp.float32(-0.0), [(1, 0, 0)]) + sliced(x, u, i),
        lambda x, u, i: sliced(x, u, i) + sliced(x, u, i + 1),
        lambda x, u, i: positive(x) - sliced(x, u, i),
        lambda x, u, i: positive(x) + lax.dynamic_update_slice(jnp.ones_like(x), u, (i,)),
        lambda x, u, i: positive(x) + lax.dynamic_update_slice(jnp.full_like(x, -0.0), u, (i,)),
        lambda x, u, i: positive(x) + jnp.zeros_like(x).at[i + ROWS].add(u[:5]),
        lambda x, u, i: positive(x) + jnp.zeros_like(x).at[i + PLACES].max(u, unique_indices=True),
        lambda x, u, i: (
            positive(x) + lax.scatter(jnp.zeros_like(x), NOWHERE, jnp.stack([x, x]), WHOLE)
        ),
        lambda x, u, i: (
            positive(x) + lax.scatter_add(jnp.zeros_like(x), NOWHERE, jnp.stack([x, x]), WHOLE)
        ),
        lambda x, u, i: lax.fori_loop(0, 3, lambda k, c: c * 1.0 + sliced(c, u, k), positive(x)),
        lambda x, u, i: lax.fori_loop(0, 3, lambda k, c: -(c + sliced(c, u, k)), positive(x)),
        lambda x, u, i: lax.fori_loop(
            0, 3, lambda k, c: (c[1] + sliced(x, u, k), x), (positive(x), positive(x))
        )[0],
        lambda x, u, i: lax.while_loop(
            lambda c: c[0] < 9,
            lambda c: (c[0] + 1, c[2] + sliced(x, u, i), c[3], -c[1]),
            (i, *[positive(x)] * 3),
        )[1],
    ],
)
def test_others_stay(function: Callable, traced: Callable) -> None:
    """What may be -0.0, or met twice, or not be zero, or not be added."""
    graph = traced(function, np.resize(SPECIAL, 100), OTHER, np.int32(3))
    assert update_in_place(graph) is graph


def written(
    kept: tuple, dropped: tuple, searched: tuple, batch: tuple, of_places: tuple
) -> Callable:
    """Windows of zeros [5, 7, 6, 4], set at places."""
    numbers = lax.ScatterDimensionNumbers(
        update_window_dims=kept,
        inserted_window_dims=dropped,
        scatter_dims_to_operand_dims=searched,
        operand_batching_dims=batch,
        scatter_indices_batching_dims=of_places,
    )

    def write(zeros: jax.Array, at: jax.Array, u: jax.Array) -> jax.Array:
        return lax.scatter(zeros, at, u, numbers, unique_indices=True)

    return write


@pytest.mark.parametrize("order", [(1, 0, 2, 3), (2, 3, 1, 0), (3, 0, 1, 2)])
@pytest.mark.parametrize(
    ("write", "places", "updates"),
    [
        (
            lambda z, at, u: lax.dynamic_update_slice(z, u, tuple(jnp.resize(at, 4))),
            (4,),
            (2, 3, 6, 1),
        ),
        (written((0, 1, 2, 3), (), (0, 2), (), ()), (2,), (2, 7, 3, 4)),
        (written((0, 1), (0, 2), (2, 0), (), ()), (2,), (3, 4)),
        (written((1, 2), (1,), (1,), (3,), (0,)), (4, 1), (4, 5, 6)),
        (written((1,), (), (2,), (0, 1, 3), (2, 1, 0)), (4, 7, 5, 1), (4, 2, 7, 5)),
    ],
)
def test_what_is_transposed_updates_other_axes(
    write: Callable, places: tuple, updates: tuple, order: tuple, traced: Callable
) -> None:
    """As gradients of what a loop looks up in a batch that does not come first."""

    def function(x: jax.Array, u: jax.Array, at: jax.Array) -> jax.Array:
        return positive(x) + write(jnp.zeros((5, 7, 6, 4), x.dtype), at, u).transpose(order)

    x, u = normal(*(np.array((5, 7, 6, 4))[list(order)])), normal(*updates)
    for at in (np.zeros(places, np.int32), RNG.integers(-1, 4, places, np.int32)):
        graph = traced(function, x, u, at)
        after = eliminate_dead_nodes(update_in_place(graph))
        assert _zeros(graph) and not _zeros(after)
        verify_graph(after)
        assert all(
            map(same_bits, evaluate_graph(after, [x, u, at]), evaluate_graph(graph, [x, u, at]))
        )


@pytest.mark.parametrize(
    "function",
    [
        lambda x, u, i: x + sliced(x, u, i),
        lambda x, u, i: x + jnp.zeros_like(x).at[i + ROWS].add(u[:5]),
        lambda x, u, i: lax.fori_loop(0, 3, lambda k, c: sliced(c, u, k) - c + sliced(c, u, i), x),
    ],
)
def test_integers_wrap_in_any_order(function: Callable, traced: Callable, same: Callable) -> None:
    args = [RNG.integers(-(2**31), 2**31, n).astype(np.int32) for n in (100, 9)]
    graph = traced(function, *args, np.int32(3))
    after = update_in_place(graph)
    assert after is not graph
    same(after, graph, [*args, np.int32(3)])


def looked_up(t: jax.Array, w: jax.Array, at: jax.Array) -> jax.Array:
    def step(h: jax.Array, i: jax.Array) -> tuple:
        return jnp.tanh(h + t[i]) * w, h

    return jnp.sum(lax.scan(step, w, at)[1])


def between(t: jax.Array, w: jax.Array, at: jax.Array) -> jax.Array:
    def step(h: jax.Array, i: jax.Array) -> tuple:
        return jnp.sin(h) + w * t[i] + t[(i + 1) % 8], h

    return jnp.sum(lax.scan(step, w, at)[0])


def remembered(t: jax.Array, w: jax.Array, at: jax.Array) -> jax.Array:
    def step(t: jax.Array, i: jax.Array) -> tuple:
        return t.at[i].set(jnp.sin(t[i - 1]) * w), None

    return jnp.sum(lax.scan(step, t, at)[0][1:])


def summed_up(t: jax.Array, w: jax.Array, at: jax.Array) -> jax.Array:
    def step(k: int, t: jax.Array) -> jax.Array:
        return lax.dynamic_update_index_in_dim(t, t[at[k]] * w + t[k], at[k] // 2, 0)

    return jnp.sum(lax.fori_loop(0, 5, step, t))


def computed_again(t: jax.Array, w: jax.Array, at: jax.Array) -> jax.Array:
    @jax.checkpoint
    def step(t: jax.Array, i: jax.Array) -> tuple:
        return t.at[i].set(jnp.sin(t[i - 1]) * w), None

    return jnp.sum(lax.scan(step, t, at)[0])


def of_each(t: jax.Array, w: jax.Array, at: jax.Array) -> jax.Array:
    return jnp.sum(jax.vmap(looked_up, (1, 0, None))(t, w, at))


@pytest.mark.parametrize(
    "loss", [looked_up, between, remembered, summed_up, computed_again, of_each]
)
def test_gradients_of_loops_add_to_what_they_update(
    loss: Callable, traced: Callable, same: Callable, run: Callable
) -> None:
    args = normal(8, 3), normal(3), ROWS
    gradient = jax.grad(loss, (0, 1))
    graph = traced(gradient, *args)
    after, _ = simplify(graph, references, verify=True)
    assert _zeros(graph) and not _zeros(after)
    same(after, graph, args, 1e-5)
    for table in (args[0], np.resize(SPECIAL, (8, 3))):
        results = run(gradient, table, *args[1:])
        for result, expected in zip(
            results, evaluate_graph(graph, [table, *args[1:]]), strict=True
        ):
            np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("dtype", "loss"),
    [*itertools.product(("float16", "bfloat16", "float64"), (looked_up, remembered))],
)
def test_other_floats(dtype: str, loss: Callable) -> None:
    with jax.enable_x64(True):
        args = [jnp.asarray(a, dtype) for a in (normal(8, 3), normal(3))]
        gradient = jax.grad(loss, (0, 1))
        compiled = mlc_jit(gradient, choose="ours")
        for result, expected in zip(compiled(*args, ROWS), gradient(*args, ROWS), strict=True):
            np.testing.assert_allclose(np.float64(result), np.float64(expected), 0.05, 0.05)
        assert compiled.report().coverage == 1


def _zeros(graph: Graph) -> list[str]:
    """The sums to which updates of arrays are added that are zero everywhere."""
    made = {v: node for node in graph.walk() for v in node.results}

    def behind(v: Value, op: str) -> Node | None:
        node = made.get(v)
        while node is not None and node.op == op:
            node = made.get(node.operands[0])
        return node

    def is_of_zeros(node: Node | None) -> bool:
        if node is None or node.op not in ("stablehlo.dynamic_update_slice", "stablehlo.scatter"):
            return False
        updated = behind(node.operands[0], "stablehlo.broadcast_in_dim")
        return updated is not None and updated.literal is not None and not updated.literal.any()

    return [
        node.op
        for node in graph.walk()
        if node.op == "stablehlo.add"
        for v in node.operands
        if is_of_zeros(behind(v, "stablehlo.transpose"))
    ]
