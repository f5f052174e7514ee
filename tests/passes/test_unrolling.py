"""Loops of a few trips over elementwise bodies become straight lines, other loops stay."""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from hlo_mlc.graph.core import Graph
from hlo_mlc.ops.registry import evaluate_graph, references
from hlo_mlc.passes.simplify import simplify
from hlo_mlc.passes.unrolling import MAX_TRIPS

X = np.linspace(-1, 1, 6, dtype=np.float32)


def loops(graph: Graph) -> int:
    return sum(node.op == "stablehlo.while" for node in graph.walk())


def simplified(traced: Callable, function: Callable, *args: np.ndarray) -> Graph:
    graph = traced(function, *args)
    result, _ = simplify(graph, references, verify=True)
    for before, after in zip(
        evaluate_graph(graph, args), evaluate_graph(result, args), strict=True
    ):
        np.testing.assert_array_equal(after, before)
    return result


@pytest.mark.parametrize(
    ("start", "limit", "left"),
    [(0, 0, 0), (0, 1, 0), (3, 8, 0), (0, MAX_TRIPS, 0), (0, MAX_TRIPS + 1, 1), (5, 2, 0)],
)
def test_trips_are_counted(traced: Callable, start: int, limit: int, left: int) -> None:
    def function(x):
        return lax.fori_loop(start, limit, lambda i, x: x * 1.5 + i.astype(x.dtype), x)

    assert loops(simplified(traced, function, X)) == left


def test_tables_that_a_body_indexes_become_numbers(traced: Callable) -> None:
    table = np.array([13, 15, 26, 6], np.uint32)

    def function(x):
        def body(i, carry):
            x, first, second = carry
            return x + first[2] * second[1], second, first

        return lax.fori_loop(0, 3, body, (x, jnp.asarray(table), jnp.asarray(table[::-1])))[0]

    graph = simplified(traced, function, np.arange(5, dtype=np.uint32))
    assert loops(graph) == 0
    assert not any(node.op == "stablehlo.slice" for node in graph.nodes)


@pytest.mark.parametrize(
    "body", [lambda i, x: x + x[::-1], lambda i, x: x + jnp.sum(x), lambda i, x: jnp.cumsum(x)]
)
def test_bodies_that_are_not_elementwise_stay_loops(traced: Callable, body: Callable) -> None:
    assert loops(simplified(traced, lambda x: lax.fori_loop(0, 3, body, x), X)) == 1


def test_loops_that_data_ends_stay(traced: Callable) -> None:
    def function(x):
        return lax.while_loop(
            lambda c: c[0] < c[1],
            lambda c: (c[0] + 1, c[1], c[2] * 2),
            (jnp.int32(0), jnp.int32(x[0] + 3), x),
        )[2]

    assert loops(simplified(traced, function, X)) == 1


def test_a_counter_that_wraps_is_not_counted(read: Callable) -> None:
    graph = read(
        "%a: tensor<3xf32>",
        """
      %s = stablehlo.constant dense<126> : tensor<i8>
      %0:2 = stablehlo.while(%i = %s, %x = %a) : tensor<i8>, tensor<3xf32>
      cond {
        %l = stablehlo.constant dense<127> : tensor<i8>
        %p = stablehlo.compare LT, %i, %l, SIGNED : (tensor<i8>, tensor<i8>) -> tensor<i1>
        stablehlo.return %p : tensor<i1>
      } do {
        %t = stablehlo.constant dense<5> : tensor<i8>
        %j = stablehlo.add %i, %t : tensor<i8>
        %y = stablehlo.add %x, %x : tensor<3xf32>
        stablehlo.return %j, %y : tensor<i8>, tensor<3xf32>
      }
      return %0#1 : tensor<3xf32>""",
    )
    assert loops(simplify(graph, references)[0]) == 1


def test_loops_within_loops(traced: Callable) -> None:
    def inner(i, x):
        return lax.fori_loop(0, 4, lambda j, x: x * 0.5 + 1, x)

    graph = simplified(traced, lambda x: lax.fori_loop(0, 100, inner, x), X)
    assert loops(graph) == 1
