"""Loop-invariant code motion: what moves before a loop, and what stays."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from hlo_mlc.passes.invariant import hoist_invariants

RNG = np.random.default_rng(0)
X, W = (RNG.standard_normal((3, 3)).astype(np.float32) for _ in range(2))


def test_what_depends_on_nothing_in_the_loop_moves(
    traced: Callable, same: Callable, loops_of: Callable, ops_of: Callable
) -> None:
    graph = traced(
        lambda x, w: lax.fori_loop(
            0, 4, lambda i, c: c * jnp.tanh(w @ w) + jnp.exp(w).sum() * i, x
        ),
        X,
        W,
    )
    moved = hoist_invariants(graph)
    (loop,) = loops_of(moved)
    assert {"dot_general", "tanh", "exponential", "reduce"} <= set(ops_of(moved))
    assert not {"dot_general", "tanh", "exponential", "reduce"} & set(ops_of(loop.regions[1]))
    same(moved, graph, [X, W], 1e-6)
    assert hoist_invariants(moved) is moved


def test_inner_loops_first_then_outer_ones(
    traced: Callable, same: Callable, loops_of: Callable, ops_of: Callable
) -> None:
    def function(x: jax.Array, w: jax.Array) -> jax.Array:
        def outer(i: int, c: jax.Array) -> jax.Array:
            return lax.fori_loop(0, 3, lambda j, d: d + jnp.exp(w) * jnp.sin(c), c)

        return lax.fori_loop(0, 2, outer, x)

    graph = traced(function, X, W)
    moved = hoist_invariants(graph)
    outer, inner = loops_of(moved)
    assert "exponential" in ops_of(moved)
    assert "sine" in ops_of(outer.regions[1])
    assert not {"sine", "exponential", "multiply"} & set(ops_of(inner.regions[1]))
    same(moved, graph, [X, W], 1e-6)


@pytest.mark.parametrize("trips", [4, None])
def test_loops_move_out_of_loops_that_run(
    traced: Callable, same: Callable, loops_of: Callable, trips: int | None
) -> None:
    """With what they take from outside, which is computed on both sides where that costs nothing;
    they stay where nobody knows whether they would run, since they need not end."""

    def function(x: jax.Array, w: jax.Array) -> jax.Array:
        def outer(c: jax.Array) -> jax.Array:
            wide = jnp.broadcast_to(w[0], (3, 3))
            inner = lax.fori_loop(0, 5, lambda j, d: jnp.sin(d) + wide, wide * 2)
            return c + inner * wide

        if trips is None:
            return lax.while_loop(lambda c: c.sum() < 100, outer, jnp.abs(x))
        return lax.fori_loop(0, trips, lambda i, c: outer(c), x)

    graph = traced(function, X, jnp.abs(W))
    moved = hoist_invariants(graph)
    within = [
        loop
        for loop in loops_of(moved)
        if any(node.op == "stablehlo.while" for node in loop.regions[1].nodes)
    ]
    assert len(within) == (trips is None)
    same(moved, graph, [X, np.abs(W)], 1e-6)


@pytest.mark.parametrize("trips", [4, None])
def test_branches_move_with_what_they_take_from_outside(
    traced: Callable, same: Callable, trips: int | None
) -> None:
    def function(x: jax.Array, w: jax.Array) -> jax.Array:
        def outer(c: jax.Array) -> jax.Array:
            wide = jnp.broadcast_to(w[0], (3, 3))
            chosen = lax.cond(w[1, 1] > 0, lambda: jnp.sort(jnp.sin(wide) + w), lambda: wide @ w)
            return c + jnp.abs(chosen) + wide

        if trips is None:
            return lax.while_loop(lambda c: c.sum() < 100, outer, jnp.abs(x))
        return lax.fori_loop(0, trips, lambda i, c: outer(c), x)

    graph = traced(function, X, np.abs(W))
    same(hoist_invariants(graph), graph, [X, np.abs(W)], 1e-6)


def test_conditions_too(traced: Callable, loops_of: Callable, ops_of: Callable) -> None:
    graph = traced(
        lambda x, w: lax.while_loop(lambda c: c.sum() < jnp.exp(w).sum(), lambda c: c + 1, x), X, W
    )
    (loop,) = loops_of(hoist_invariants(graph))
    assert "exponential" not in ops_of(loop.regions[0])


@pytest.mark.parametrize(
    ("op", "body"),
    [
        ("broadcast_in_dim", lambda c, w: c + jnp.broadcast_to(w[0, 0], (3, 3))),
        ("iota", lambda c, w: c * jnp.arange(3.0)),
        (
            "subtract",  # cheap, and larger than what it is made of
            lambda c, w: (c[0, 0] + (jnp.ravel(w)[:, None] - jnp.ravel(w)[None])).sum(0)[:3] + c,
        ),
        (
            "select",  # a few operations on what takes no memory
            lambda c, w: (
                c + jnp.where(jnp.arange(3)[:, None] * 2 >= jnp.arange(3)[None], w[0, 0], 0.0)
            ),
        ),
        ("optimization_barrier", lambda c, w: c + lax.optimization_barrier(w)),
    ],
)
def test_what_is_free_or_unsafe_stays(
    op: str, body: Callable, traced: Callable, loops_of: Callable, ops_of: Callable
) -> None:
    graph = traced(lambda x, w: lax.fori_loop(0, 4, lambda i, c: body(c, w), x), X, W)
    moved = hoist_invariants(graph)
    assert op in ops_of(loops_of(moved)[0].regions[1])
    assert ops_of(moved).count(op) == ops_of(graph).count(op)


def test_many_cheap_operations_are_worth_a_load(
    traced: Callable, loops_of: Callable, ops_of: Callable
) -> None:
    def body(c: jax.Array) -> jax.Array:
        mask = jnp.arange(3.0)
        for factor in (2, 3, 5, 7):
            mask = jnp.maximum(mask * factor - 1, 0)
        return c + mask

    moved = hoist_invariants(
        traced(lambda x, w: lax.fori_loop(0, 4, lambda i, c: body(c), x), X, W)
    )
    (loop,) = loops_of(moved)
    assert ops_of(moved).count("multiply") == 4
    assert ops_of(loop.regions[1]).count("multiply") < 2


def test_a_single_trip_gains_nothing(traced: Callable) -> None:
    graph = traced(
        lambda x, w: lax.while_loop(
            lambda s: s[0] < 1, lambda s: (s[0] + 1, s[1] * jnp.exp(w)), (0, x)
        )[1],
        X,
        W,
    )
    assert hoist_invariants(graph) is graph


def test_a_free_value_is_copied_where_both_sides_need_it(
    traced: Callable, same: Callable, loops_of: Callable, ops_of: Callable
) -> None:
    """The broadcast stays for the sum and goes outside for the sine of it."""
    graph = traced(
        lambda x, w: lax.fori_loop(
            0,
            3,
            lambda i, c: (
                c + jnp.broadcast_to(w[:, :1], (3, 3)) * jnp.sin(jnp.broadcast_to(w[:, :1], (3, 3)))
            ),
            x,
        ),
        X,
        W,
    )
    moved = hoist_invariants(graph)
    (loop,) = loops_of(moved)
    assert "sine" in ops_of(moved)
    assert "sine" not in ops_of(loop.regions[1])
    same(moved, graph, [X, W], 1e-6)
