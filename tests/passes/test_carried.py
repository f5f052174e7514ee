"""What loops carry."""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from jax import lax

from hlo_mlc.graph.core import Graph
from hlo_mlc.graph.verify import verify_graph
from hlo_mlc.passes.carried import close_loops

X = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)


def _read_loop(read: Callable, body: str, results: str, condition: str = "%n") -> Graph:
    """A loop over (i, x, w, z) with the results `results` of its body; i and x are read after."""
    return read(
        "%n: tensor<i1>, %a: tensor<4xf32>, %b: tensor<4xf32>",
        f"""
      %0:4 = stablehlo.while(%c = %n, %x = %a, %w = %b, %z = %b)
        : tensor<i1>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>
      cond {{
        stablehlo.return {condition.replace("%n", "%c")} : tensor<i1>
      }} do {{
        {body}
        stablehlo.return {results} : tensor<i1>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>
      }}
      return %0#1 : tensor<4xf32>""",
    )


def test_what_does_not_change_is_taken_from_outside(read: Callable, same: Callable) -> None:
    graph = _read_loop(
        read,
        """
      %y = stablehlo.multiply %x, %w : tensor<4xf32>
      %p = stablehlo.not %c : tensor<i1>""",
        "%p, %y, %w, %z",
    )
    closed = close_loops(graph)
    (loop,) = closed.nodes
    assert loop.operands == graph.parameters[:2]
    assert loop.regions[1].captures == graph.parameters[2:]
    same(closed, graph, [np.array(True), *np.float32([[1, 2, 3, 4], [5, 6, 7, 8]])])
    assert close_loops(closed) is closed


def test_what_nobody_reads_is_dropped_with_what_it_is_made_of(
    read: Callable, same: Callable, ops_of: Callable
) -> None:
    graph = _read_loop(
        read,
        """
      %p = stablehlo.not %c : tensor<i1>
      %y = stablehlo.add %x, %x : tensor<4xf32>
      %v = stablehlo.exponential %w : tensor<4xf32>
      %u = stablehlo.add %v, %z : tensor<4xf32>""",
        "%p, %y, %v, %u",
    )
    closed = close_loops(graph)
    (loop,) = closed.nodes
    assert len(loop.operands) == 2
    assert ops_of(loop.regions[1]) == ["not", "add"]
    same(closed, graph, [np.array(True), *np.float32([[1, 2, 3, 4], [5, 6, 7, 8]])])


def test_what_is_only_handed_on_as_another_value_is_needed(read: Callable, same: Callable) -> None:
    """x = w reads w, though no node does; z is dropped."""
    graph = _read_loop(
        read,
        """
      %p = stablehlo.not %c : tensor<i1>
      %y = stablehlo.add %x, %x : tensor<4xf32>""",
        "%p, %w, %y, %y",
    )
    closed = close_loops(graph)
    verify_graph(closed)
    (loop,) = closed.nodes
    assert len(loop.operands) == 3
    same(closed, graph, [np.array(True), *np.float32([[1, 2, 3, 4], [5, 6, 7, 8]])])


def test_a_loop_that_changes_nothing_is_left(read: Callable) -> None:
    graph = _read_loop(read, "", "%c, %x, %w, %z")
    assert close_loops(graph) is graph


def test_inner_loops_take_from_far_outside(
    traced: Callable, same: Callable, loops_of: Callable
) -> None:
    def function(x: jnp.ndarray, w: jnp.ndarray) -> jnp.ndarray:
        def outer(i: int, c: jnp.ndarray) -> jnp.ndarray:
            return lax.fori_loop(0, 3, lambda j, d: d * w + x, c)

        return lax.fori_loop(0, 2, outer, x)

    graph = traced(function, X, X)  # closes loops
    outer, inner = loops_of(graph)
    assert len(outer.operands) == len(inner.operands) == 2
    assert set(inner.regions[1].captures) == set(graph.parameters)


def test_what_the_condition_alone_reads_stays(traced: Callable, loops_of: Callable) -> None:
    graph = traced(
        lambda x, n: lax.while_loop(
            lambda s: s[1] < n, lambda s: (s[0] * 2, s[1] + s[0].sum()), (x, n - 3)
        )[0],
        X,
        np.float32(3),
    )
    (loop,) = loops_of(graph)
    assert len(loop.operands) == 2
