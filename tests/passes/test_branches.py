"""Branches that become selections, and those that stay."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from hlo_mlc.graph.rewrite import apply_rules, eliminate_dead_nodes
from hlo_mlc.passes.branches import BRANCH_RULES, MOST_WORK

X = np.linspace(-2, 2, 12, dtype=np.float32).reshape(3, 4)


@pytest.mark.parametrize("choice", [False, True])
def test_an_if(choice: bool, traced: Callable, same: Callable, ops_of: Callable) -> None:
    graph = traced(lambda p, x: lax.cond(p, lambda y: (jnp.sin(y), y[0]), lambda y: (-y, y[1]), x),
                   choice, X)
    after = eliminate_dead_nodes(apply_rules(graph, BRANCH_RULES))
    assert {"case", "if"} & set(ops_of(graph))
    assert not {"case", "if"} & set(ops_of(after, True))
    assert ops_of(after).count("select") == 2
    same(after, graph, [np.asarray(choice), X])


@pytest.mark.parametrize("number", [-1, 0, 1, 2, 7])
def test_a_case_of_three(number: int, traced: Callable, same: Callable, ops_of: Callable) -> None:
    """A number out of range means the last branch."""
    branches = [lambda y: y * 2, lambda y: y + 1, lambda y: jnp.tanh(y)]

    def function(k: jax.Array, x: jax.Array) -> jax.Array:
        return lax.switch(k, branches, x)

    graph = traced(function, np.int32(number), X)
    after = eliminate_dead_nodes(apply_rules(graph, BRANCH_RULES))
    assert "case" not in ops_of(after)
    assert ops_of(after).count("select") == 2
    same(after, graph, [np.int32(number), X])


def test_a_known_choice(read: Callable, ops_of: Callable, same: Callable) -> None:
    graph = read("%a: tensor<4xf32>", """
      %k = stablehlo.constant dense<5> : tensor<i32>
      %0 = "stablehlo.case"(%k) ({
        stablehlo.return %a : tensor<4xf32>
      }, {
        %1 = stablehlo.negate %a : tensor<4xf32>
        stablehlo.return %1 : tensor<4xf32>
      }) : (tensor<i32>) -> tensor<4xf32>
      return %0 : tensor<4xf32>""")
    after = eliminate_dead_nodes(apply_rules(graph, BRANCH_RULES))
    assert ops_of(after) == ["negate"]
    same(after, graph, [np.arange(4, dtype=np.float32)])


@pytest.mark.parametrize("branch", [
    lambda y: y @ y.T @ y,
    lambda y: jnp.sort(y),
    lambda y: lax.while_loop(lambda v: v.sum() < 9, lambda v: v + 1, y),
    lambda y: y + jnp.sum(jnp.broadcast_to(y[0, 0], (MOST_WORK,))),
], ids=["product", "sort", "loop", "reduction"])
def test_costly_branches_stay(branch: Callable, traced: Callable) -> None:
    graph = traced(lambda p, x: lax.cond(p, branch, lambda y: -y, x), True, X)
    assert apply_rules(graph, BRANCH_RULES) is graph


def test_large_branches_stay(traced: Callable) -> None:
    wide = np.zeros(MOST_WORK, np.float32)
    graph = traced(lambda p, x: lax.cond(p, lambda y: y + 1, lambda y: -y, x), True, wide)
    assert apply_rules(graph, BRANCH_RULES) is graph
