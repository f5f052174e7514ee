"""Products of rows before and after loops."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from hlo_mlc.graph.rewrite import eliminate_dead_nodes
from hlo_mlc.ops.registry import references
from hlo_mlc.passes import products_before_loops
from hlo_mlc.passes.invariant import hoist_invariants
from hlo_mlc.passes.products_after_loops import multiply_after_loops
from hlo_mlc.passes.products_before_loops import multiply_before_loops
from hlo_mlc.passes.simplify import simplify

RNG = np.random.default_rng(1)
T, B, N, M = 5, 2, 9, 11


def _normal(*shape: int) -> np.ndarray:
    return (RNG.standard_normal(shape) / 3).astype(np.float32)


XS, W, U, H = _normal(T, B, N), _normal(N, M), _normal(M, M), _normal(B, M)


def _dots(graph, loops_of: Callable) -> tuple[int, int]:
    """(products outside of loops, products in them), of those whose results are used"""
    graph = eliminate_dead_nodes(graph)
    outside = sum(node.op == "stablehlo.dot_general" for node in graph.nodes)
    return outside, sum(node.op == "stablehlo.dot_general" for node in graph.walk()) - outside


def _scan(step: Callable, reverse: bool = False) -> Callable:
    def function(xs: jax.Array, w: jax.Array, u: jax.Array, h: jax.Array) -> jax.Array:
        return lax.scan(lambda h, x: step(h, x, w, u), h, xs, reverse=reverse)

    return function


STEPS = {
    "plain": lambda h, x, w, u: (jnp.tanh(x @ w + h @ u), h),
    "from the right": lambda h, x, w, u: (jnp.tanh((w.T @ x.T).T + h @ u), h),
    "vector": lambda h, x, w, u: (jnp.tanh(x[0] @ w + h @ u), h),
    "scaled": lambda h, x, w, u: (jnp.tanh((x * 2 + 1) @ w * 0.5 + h @ u), h),
    "chosen": lambda h, x, w, u: (jnp.tanh(jnp.where(x[0, 0] > 0, x, -x) @ w + h @ u), h),
    "transposed": lambda h, x, w, u: (h @ u + (x.T[:, ::-1].T[:, None] @ w)[:, 0], h),
    "batched": lambda h, x, w, u: (h @ u + jnp.einsum("bi,bij->bj", x, jnp.stack([w, w * 2])), h),
    "joined": lambda h, x, w, u: (
        jnp.tanh(jnp.concatenate([x, h], 1) @ jnp.concatenate([w, u])),
        h,
    ),
    "joined thrice": lambda h, x, w, u: (
        jnp.tanh(jnp.concatenate([x, h, x], 1) @ jnp.concatenate([w, u, w])),
        h,
    ),
}


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("name", STEPS)
def test_products_of_rows_move_before_the_loop(
    name: str, reverse: bool, traced: Callable, same: Callable, loops_of: Callable
) -> None:
    graph = hoist_invariants(traced(_scan(STEPS[name], reverse), XS, W, U, H))
    assert _dots(graph, loops_of)[0] == 0
    moved = multiply_before_loops(graph)
    assert _dots(moved, loops_of)[0] >= 1
    assert _dots(moved, loops_of)[1] == 1
    same(moved, graph, [XS, W, U, H], 1e-5)
    again = multiply_before_loops(moved)
    assert again is moved


def test_rows_in_any_order(traced: Callable, same: Callable, loops_of: Callable) -> None:
    """Which row a trip reads may depend on data, as long as there are not fewer trips."""

    def function(xs: jax.Array, order: jax.Array, w: jax.Array) -> jax.Array:
        def body(i: int, h: jax.Array) -> jax.Array:
            return jnp.tanh(h + lax.dynamic_index_in_dim(xs, order[i], keepdims=False) @ w)

        return lax.fori_loop(0, 7, body, jnp.zeros((B, M)))

    order = np.array([4, 4, 0, 1, 9, 2, -1], np.int32)
    graph = traced(function, XS, order, W)
    moved = multiply_before_loops(graph)
    assert _dots(moved, loops_of) == (1, 0)
    same(moved, graph, [XS, order, W], 1e-5)


@pytest.mark.parametrize(
    "function",
    [
        lambda xs, w, u, h: lax.fori_loop(0, 3, lambda i, c: c + xs[i] @ w, h),
        lambda xs, w, u, h: lax.fori_loop(0, w[0, 0].astype(int), lambda i, c: c + xs[i] @ w, h),
        lambda xs, w, u, h: lax.fori_loop(0, 5, lambda i, c: c @ u, h),
        lambda xs, w, u, h: lax.fori_loop(0, 9, lambda i, c: c + xs[i, :, :3] @ w[:3], h),
    ],
    ids=["fewer trips than rows", "unknown trips", "no rows", "few terms"],
)
def test_what_does_not_pay_stays(function: Callable, traced: Callable) -> None:
    graph = hoist_invariants(traced(function, XS, W, U, H))
    assert multiply_before_loops(graph) is graph


def test_memory_is_bounded(traced: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = traced(_scan(STEPS["plain"]), XS, W, U, H)
    monkeypatch.setattr(products_before_loops, "MOST_BYTES", T * B * M * 4 - 1)
    assert multiply_before_loops(graph) is graph


def _gradient(step: Callable, reverse: bool = False) -> Callable:
    def loss(xs: jax.Array, w: jax.Array, u: jax.Array, h: jax.Array) -> jax.Array:
        return sum((a**2).sum() for a in _scan(step, reverse)(xs, w, u, h))

    return jax.grad(loss, argnums=(0, 1, 2, 3))


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("name", [n for n in STEPS if n != "chosen"])
def test_gradients_multiply_after_the_loop(
    name: str, reverse: bool, traced: Callable, same: Callable, loops_of: Callable
) -> None:
    """Of each step's gradient the product of the carried state stays in the loop; also what is
    padded or taken apart on its way out."""
    graph = traced(_gradient(STEPS[name], reverse), XS, W, U, H)
    simple, _ = simplify(graph, references, verify=True)
    staying = 2 if name in ("plain", "from the right", "scaled") else 3
    assert _dots(simple, loops_of)[1] == staying
    assert _dots(simple, loops_of)[0] >= 1
    same(simple, graph, [XS, W, U, H], 1e-4)


def test_rows_of_a_product_and_sums_of_products(
    traced: Callable, same: Callable, loops_of: Callable, ops_of: Callable
) -> None:
    def function(xs: jax.Array, w: jax.Array, u: jax.Array, h: jax.Array) -> tuple:
        def body(s: tuple, x: jax.Array) -> tuple:
            h, total = s
            h = jnp.tanh(h + x[:, :1])
            return (h, total + h.T @ x), h @ u

        return lax.scan(body, (h, w.T), xs)

    graph = traced(function, XS, W, U, H)
    moved = multiply_after_loops(graph)
    assert _dots(graph, loops_of) == (0, 2)
    assert _dots(moved, loops_of) == (2, 0)
    (loop,) = loops_of(moved)
    assert ops_of(loop.regions[1]).count("dynamic_update_slice") == 1  # one stack for both
    same(moved, graph, [XS, W, U, H], 1e-5)
    assert multiply_after_loops(moved) is moved


@pytest.mark.parametrize(
    "body",
    [
        lambda s, x, u: ((jnp.tanh(s[0] + x[:, :1]), s[1] + (s[0] @ u) * s[1]), None),
        lambda s, x, u: ((jnp.tanh(s[0] + x[:, :1]), (s[1] + s[0] @ u) * 2), None),
        lambda s, x, u: ((jnp.tanh(s[0] + s[1]), s[1] + s[0] @ u), None),
        lambda s, x, u: ((jnp.tanh(s[0] + x[:, :1]), s[1]), (s[0] @ u, (s[0] @ u).sum())),
    ],
    ids=["read", "scaled", "read elsewhere", "used twice"],
)
def test_what_is_needed_in_the_loop_stays(body: Callable, traced: Callable) -> None:
    graph = traced(
        lambda xs, w, u, h: lax.scan(lambda s, x: body(s, x, u), (h, h), xs), XS, W, U, H
    )
    assert multiply_after_loops(graph) is graph


def test_rows_that_are_not_all_written_stay(traced: Callable) -> None:
    def function(ys: jax.Array, u: jax.Array, h: jax.Array) -> jax.Array:
        def body(i: int, s: tuple) -> tuple:
            h = jnp.tanh(s[0])
            return h, s[1].at[i].set(h @ u)

        return lax.fori_loop(0, 4, body, (h, ys))

    graph = traced(function, _normal(T, B, M), U, H)
    assert multiply_after_loops(graph) is graph


def test_narrow_sums_are_rounded_in_every_trip(traced: Callable) -> None:
    def function(xs: jax.Array, s: jax.Array) -> jax.Array:
        return lax.scan(lambda s, x: (s + x.T @ x, None), s, xs)[0]

    arguments = (jnp.asarray(XS, jnp.bfloat16), jnp.zeros((N, N), jnp.bfloat16))
    graph = traced(function, *arguments)
    assert multiply_after_loops(graph) is graph
