"""Branches that become selections, and those that stay."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from hlo_mlc.graph.rewrite import apply_rules, eliminate_dead_nodes
from hlo_mlc.ops.registry import references
from hlo_mlc.passes.branches import BRANCH_RULES, MOST_WORK
from hlo_mlc.passes.simplify import simplify

X = np.linspace(-2, 2, 12, dtype=np.float32).reshape(3, 4)


@pytest.mark.parametrize("choice", [False, True])
def test_an_if(choice: bool, traced: Callable, same: Callable, ops_of: Callable) -> None:
    graph = traced(
        lambda p, x: lax.cond(p, lambda y: (jnp.sin(y), y[0]), lambda y: (-y, y[1]), x), choice, X
    )
    after = eliminate_dead_nodes(apply_rules(graph, BRANCH_RULES))
    assert {"case", "if"} & set(ops_of(graph))
    assert not {"case", "if"} & set(ops_of(after, True))
    assert ops_of(after).count("select") == 2
    same(after, graph, [np.asarray(choice), X])


def test_a_branch_that_maps(read: Callable, same: Callable, ops_of: Callable) -> None:
    """What is computed for each element comes along."""
    graph = read(
        "%p: tensor<i1>, %x: tensor<3xf32>",
        """
        %r = "stablehlo.if"(%p) ({
          %y = "stablehlo.map"(%x) ({
          ^bb0(%one: tensor<f32>):
            %two = stablehlo.add %one, %one : tensor<f32>
            stablehlo.return %two : tensor<f32>
          }) {dimensions = array<i64: 0>} : (tensor<3xf32>) -> tensor<3xf32>
          stablehlo.return %y : tensor<3xf32>
        }, {
          stablehlo.return %x : tensor<3xf32>
        }) : (tensor<i1>) -> tensor<3xf32>
        return %r : tensor<3xf32>""",
    )
    after = eliminate_dead_nodes(apply_rules(graph, BRANCH_RULES))
    assert {"map", "select"} <= set(ops_of(after)) and "if" not in ops_of(after)
    for choice in (True, False):
        same(after, graph, [np.asarray(choice), X[0, :3]])


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


def test_a_case_of_one(read: Callable, ops_of: Callable) -> None:
    """Whatever the number, it is the only branch."""
    graph = read(
        "%k: tensor<i32>, %x: tensor<3xf32>",
        """
        %r = "stablehlo.case"(%k) ({
          %y = stablehlo.negate %x : tensor<3xf32>
          stablehlo.return %y : tensor<3xf32>
        }) : (tensor<i32>) -> tensor<3xf32>
        return %r : tensor<3xf32>""",
    )
    assert ops_of(apply_rules(graph, BRANCH_RULES)) == ["negate"]


K = np.arange(5, dtype=np.int32)
C = np.arange(40, dtype=np.float32).reshape(10, 4)


def one_or_the_other(p, k, c):
    return lax.switch(
        p, [lambda c: c.at[k[0]].set(c[k[1]] * 2), lambda c: c.at[k[2]].add(-1.0), lambda c: c], c
    )


def several_arrays(p, k, c):
    def swap(c, d):
        return c.at[k[0], :2].set(d[k[1], :2]), d.at[k[1], :2].set(c[k[0], :2])

    return lax.cond(p == 1, swap, lambda c, d: (c, d), c, c + 100)


def whole_or_part(p, k, c):
    return lax.switch(p, [lambda c: c * 0.5, lambda c: c.at[k].mul(3.0), lambda c: -c], c)


def one_after_the_other(p, k, c):
    def twice(c):
        return lax.dynamic_update_slice(c.at[1].set(c[0] + 1), c[3:5, :2] * 2, (k[3], k[0]))

    return lax.cond(p == 0, twice, lambda c: lax.dynamic_update_slice(c, c[:1], (k[4], 0)), c)


def branches_in_branches(p, k, c):
    return lax.cond(
        p > 0,
        lambda c: lax.cond(
            c[0, 1] > p, lambda c: c.at[k[1]].set(7.0), lambda c: c.at[k[2], 1].set(8.0), c
        ),
        lambda c: c,
        c,
    )


def out_of_bounds(p, k, c):
    return lax.cond(
        p == 0,
        lambda c: c.at[k * 4].set(5.0, mode="drop"),
        lambda c: c.at[k - 2].add(1.0, mode="drop"),
        c,
    )


UPDATES = (
    one_or_the_other,
    several_arrays,
    whole_or_part,
    one_after_the_other,
    branches_in_branches,
    out_of_bounds,
)


@pytest.mark.parametrize("function", UPDATES)
def test_updates_in_branches(
    function: Callable, traced: Callable, same: Callable, ops_of: Callable
) -> None:
    graph = traced(function, np.int32(0), K, C)
    after = eliminate_dead_nodes(apply_rules(graph, BRANCH_RULES))
    assert {"case", "if"} & set(ops_of(graph))
    assert not {"case", "if"} & set(ops_of(after, True))
    for number in (-1, 0, 1, 2, 5):
        same(after, graph, [np.int32(number), K, C])


@pytest.mark.parametrize("function", UPDATES)
def test_loops_that_choose_what_to_update_are_kernels(function: Callable, check: Callable) -> None:
    def loop(k, c):
        def body(i, c):
            new = function(i % 4, (k + i) % 5, c)
            return new[0] + new[1] * 0.5 if isinstance(new, tuple) else new

        return lax.fori_loop(0, 11, body, c)

    check(loop, K, C)


def pushed(p, k, c):
    return jnp.where(p > 0, c.at[k[0]].set(p * 2.0), c)


def pushed_elsewhere(p, k, c):
    return jnp.where(p == 1, c, lax.dynamic_update_slice(c, c[:2] + 1, (k[1],)))


def pushed_twice(p, k, c):
    return jnp.where(p >= 0, c.at[k[0]].add(1.0).at[k[1]].mul(3.0), c)


SELECTED = (pushed, pushed_elsewhere, pushed_twice)
ROW = np.arange(30, dtype=np.float32)
MANY = np.arange(300, dtype=np.float32)
ROWS = ROW * np.arange(1, 4, dtype=np.float32)[:, None]


@pytest.mark.parametrize("function", SELECTED)
def test_selected_updates(
    function: Callable, traced: Callable, same: Callable, ops_of: Callable
) -> None:
    """Places are selected, not arrays."""
    graph = traced(function, np.int32(0), K, ROW)
    after = eliminate_dead_nodes(apply_rules(graph, BRANCH_RULES))
    selected = [node for node in after.nodes if node.op == "stablehlo.select"]
    assert selected
    assert all(node.results[0].type.size < ROW.size for node in selected)
    for number in (-1, 0, 1):
        same(after, graph, [np.int32(number), K, ROW])


@pytest.mark.parametrize("function", SELECTED[::2])
def test_selected_updates_of_batches(function: Callable, traced: Callable, same: Callable) -> None:
    numbers, places = np.int32([0, 1, -1]), np.int32([[3, 40], [5, -2], [0, 29]])
    graph = traced(jax.vmap(function), numbers, places, ROWS)
    after = eliminate_dead_nodes(apply_rules(graph, BRANCH_RULES))
    assert all(node.results[0].type.size < ROWS.size for node in after.nodes if "select" in node.op)
    same(after, graph, [numbers, places, ROWS])


def test_large_selected_updates_stay(traced: Callable) -> None:
    graph = traced(lambda p, c: jnp.where(p, c.at[:9].set(1.0), c), np.bool_(1), ROW)
    assert apply_rules(graph, BRANCH_RULES) is graph


def test_updates_that_others_read_are_not_computed_again_and_again(
    traced: Callable, same: Callable, ops_of: Callable
) -> None:
    def function(p: jax.Array, c: jax.Array) -> list[jax.Array]:
        found, new = [], c
        for k in range(20):
            new = lax.dynamic_update_slice(new, c[:1] + k, (k,))
            found.append(jnp.where(p, new, c)[k + 1 :])
        return found

    graph = traced(function, np.bool_(1), MANY)
    after = eliminate_dead_nodes(apply_rules(graph, BRANCH_RULES))
    assert 0 < ops_of(after).count("dynamic_update_slice") < 40
    same(after, graph, [np.bool_(1), MANY])


def test_a_loop_of_lanes_updates_in_place(check: Callable) -> None:
    """Where a lane is done, its row stays; nothing of the size of all rows is copied in a trip."""

    def lane(c: jax.Array, n: jax.Array) -> jax.Array:
        return lax.while_loop(
            lambda s: s[1] < n,
            lambda s: (s[0].at[s[1] * 7 % 30].set(s[0][s[1]] + 1), s[1] + 1),
            (c, 0),
        )[0]

    check(jax.vmap(lane), ROWS, np.int32([0, 5, 11]))


def reads_what_it_updated(p, k, c):
    def both(c):
        new = c.at[k[0]].set(1.0)
        return new, new.sum()

    return lax.cond(p == 0, both, lambda c: (c, c[0, 0]), c)


def updates_what_it_computed(p, k, c):
    return lax.cond(p == 0, lambda c: jnp.sin(c).at[k[0]].set(1.0), lambda c: c, c)


def updates_one_of_two(p, k, c):
    d = c + 1
    return lax.cond(p == 0, lambda: c.at[k[0]].set(1.0), lambda: d.at[k[0]].set(1.0))


@pytest.mark.parametrize(
    "function", [reads_what_it_updated, updates_what_it_computed, updates_one_of_two]
)
def test_other_updates_stay(function: Callable, traced: Callable, ops_of: Callable) -> None:
    after = apply_rules(traced(function, np.int32(0), K, C), BRANCH_RULES)
    assert {"case", "if"} & set(ops_of(after))


def test_a_known_choice(read: Callable, ops_of: Callable, same: Callable) -> None:
    graph = read(
        "%a: tensor<4xf32>",
        """
      %k = stablehlo.constant dense<5> : tensor<i32>
      %0 = "stablehlo.case"(%k) ({
        stablehlo.return %a : tensor<4xf32>
      }, {
        %1 = stablehlo.negate %a : tensor<4xf32>
        stablehlo.return %1 : tensor<4xf32>
      }) : (tensor<i32>) -> tensor<4xf32>
      return %0 : tensor<4xf32>""",
    )
    after = eliminate_dead_nodes(apply_rules(graph, BRANCH_RULES))
    assert ops_of(after) == ["negate"]
    same(after, graph, [np.arange(4, dtype=np.float32)])


def test_a_known_choice_of_anything(traced: Callable, ops_of: Callable, same: Callable) -> None:
    """A sort, a product and a loop with another known choice in it."""

    def chosen(x: jax.Array) -> jax.Array:
        y = lax.fori_loop(
            0, 3, lambda i, y: lax.switch(jnp.int32(1), [jnp.sort, lambda y: y @ y.T @ y], y), x
        )
        return jnp.sort(y, 0), y

    graph = traced(lambda x: lax.switch(jnp.int32(7), [lambda x: (x, x), chosen], x), X)
    after, _ = simplify(graph, references, verify=True)
    assert "case" in ops_of(graph)
    assert {"while", "sort"} <= set(ops_of(after))
    assert "case" not in ops_of(after, True)
    same(after, graph, [X])


@pytest.mark.parametrize(
    "branch",
    [
        lambda y: y @ y.T @ y,
        lambda y: jnp.sort(y),
        lambda y: lax.while_loop(lambda v: v.sum() < 9, lambda v: v + 1, y),
        lambda y: y + jnp.sum(jnp.broadcast_to(y[0, 0], (MOST_WORK,))),
    ],
    ids=["product", "sort", "loop", "reduction"],
)
def test_costly_branches_stay(branch: Callable, traced: Callable) -> None:
    graph = traced(lambda p, x: lax.cond(p, branch, lambda y: -y, x), True, X)
    assert apply_rules(graph, BRANCH_RULES) is graph


def test_large_branches_stay(traced: Callable) -> None:
    wide = np.zeros(MOST_WORK, np.float32)
    graph = traced(lambda p, x: lax.cond(p, lambda y: y + 1, lambda y: -y, x), True, wide)
    assert apply_rules(graph, BRANCH_RULES) is graph


def test_a_branch_may_hold_what_gives_nothing(read: Callable, ops_of: Callable) -> None:
    """A loop that carries nothing: what it computed was dead."""
    graph = read(
        "%a: tensor<4xf32>, %k: tensor<i32>, %p: tensor<i1>",
        """
      %0 = "stablehlo.case"(%k) ({
        "stablehlo.while"() ({
          stablehlo.return %p : tensor<i1>
        }, {
          stablehlo.return
        }) : () -> ()
        stablehlo.return %a : tensor<4xf32>
      }, {
        %1 = stablehlo.negate %a : tensor<4xf32>
        stablehlo.return %1 : tensor<4xf32>
      }) : (tensor<i32>) -> tensor<4xf32>
      return %0 : tensor<4xf32>""",
    )
    assert apply_rules(graph, BRANCH_RULES) is graph
