"""Slices move in front of what they take a part of, conversions in front of sums, where nothing
else reads these."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from hlo_mlc.graph.core import Graph
from hlo_mlc.graph.rewrite import eliminate_dead_nodes
from hlo_mlc.passes.common import merge_common_nodes
from hlo_mlc.passes.narrowing import narrow_results

RNG = np.random.default_rng(0)
X, W, B = (RNG.standard_normal(shape).astype(np.float32) for shape in ((6, 4), (4, 5), (5,)))
Q, K = (RNG.standard_normal(shape).astype(np.float32) for shape in ((3, 6, 4), (3, 4, 5)))


def shape_of(graph: Graph, op: str) -> tuple[int, ...]:
    (node,) = (n for n in graph.walk() if n.op == f"stablehlo.{op}")
    return node.results[0].type.shape


@pytest.mark.parametrize(
    ("op", "shape", "function", "args"),
    [
        ("dot_general", (1, 5), lambda x, w, b: (x @ w + b)[-1:], (X, W, B)),
        ("dot_general", (6, 2), lambda x, w: jnp.tanh(x @ w)[:, 1::2], (X, W)),
        ("dot_general", (2, 3), lambda x, w: (x @ w)[1:5:2, 2:], (X, W)),
        ("dot_general", (1, 2, 5), lambda q, k: (q @ k)[2:, 1:3], (Q, K)),
        (
            "dot_general",
            (3, 2, 4),
            lambda q, k: jnp.einsum("hij,hjk->hik", q, k)[:, :2, :4],
            (Q, K),
        ),
        ("sine", (2, 4), lambda x: jnp.sin(x * 2 + 1)[2:4], (X,)),
        ("transpose", (4, 2), lambda x: jnp.sin(x).T[:, 1:3], (X,)),
        ("select", (2, 4), lambda x, w: lax.select(w[0, 0] > 0, x, -x)[:2], (X, W)),
    ],
)
def test_what_is_computed_is_what_is_read(
    op: str,
    shape: tuple[int, ...],
    function: Callable,
    args: tuple,
    traced: Callable,
    same: Callable,
) -> None:
    graph = traced(function, *args)
    narrow = eliminate_dead_nodes(narrow_results(graph))
    assert shape_of(narrow, op) == shape
    same(narrow, graph, args, 1e-6)
    assert narrow_results(narrow) is narrow


def two_users(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    y = jnp.sin(x)
    return y[:2], y.sum()


def in_a_loop(x: jax.Array) -> jax.Array:
    y = jnp.sin(x)
    return lax.fori_loop(0, 3, lambda i, c: c + y[:2], x[:2])


@pytest.mark.parametrize(
    "function",
    [
        two_users,
        lambda x: (lambda y: (y, y[1:]))(jnp.sin(x)),  # a result
        lambda x: jnp.cumsum(x, 0)[:2],
        in_a_loop,
    ],
)
def test_what_others_read_or_loops_repeat_stays(function: Callable, traced: Callable) -> None:
    graph = traced(function, X)
    assert narrow_results(graph) is graph


def as_bytes(x: jax.Array) -> jax.Array:
    return lax.reduce(x.astype(jnp.uint8).astype(jnp.uint32), jnp.uint32(7), lax.add, (1,))


def test_sums_that_are_read_as_fewer_bits_wrap_earlier(traced: Callable, same: Callable) -> None:
    graph = traced(lambda x: as_bytes(x).astype(jnp.uint8), X * 99)
    narrow = eliminate_dead_nodes(narrow_results(graph))
    (total,) = (n for n in narrow.walk() if n.op == "stablehlo.reduce")
    assert total.results[0].type.dtype.name == "ui8"
    same(narrow, graph, (X * 99,), 0)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: as_bytes(x).astype(jnp.float32),
        lambda x: (as_bytes(x), as_bytes(x).astype(jnp.uint8)),  # it would be summed twice
    ],
)
def test_sums_that_are_read_as_what_they_are_stay(function: Callable, traced: Callable) -> None:
    graph = merge_common_nodes(traced(function, X))
    assert not [
        n
        for n in narrow_results(graph).walk()
        if n.op == "stablehlo.reduce" and n.results[0].type.dtype.name != "ui32"
    ]
