"""What ends loops, and what their trips go by."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from hlo_mlc.expr.dtypes import BOOL
from hlo_mlc.passes.conditions import carry_conditions

X = np.linspace(0.5, 3, 6, dtype=np.float32)


def _lanes(goes_on: Callable, step: Callable) -> Callable:
    return jax.vmap(lambda x: lax.while_loop(goes_on, step, x))


@pytest.mark.parametrize(
    "goes_on",
    [
        lambda x: jnp.abs(jnp.exp(x) - 2) > 0.6,
        lambda x: (x * x > 0.5) & (x > 0),
        lambda x: jnp.sum(jnp.stack([x, 2 * x]) ** 2) > 2,
    ],
)
def test_what_lanes_go_by_is_computed_once(
    traced: Callable, same: Callable, loops_of: Callable, ops_of: Callable, goes_on: Callable
) -> None:
    """Rounded otherwise in the condition than in the body, it would never end a loop."""
    graph = traced(_lanes(goes_on, lambda x: x - (jnp.exp(x) - 2) / 4 - x / 8), X)
    carried = carry_conditions(graph)
    same(carried, graph, [X])
    (loop,) = loops_of(carried)
    assert {op.removeprefix("stablehlo.") for op in ops_of(loop.regions[0])} == {
        "constant",
        "reduce",
    }
    assert carry_conditions(carried) is carried


def test_an_inner_loop_in_what_lanes_go_by_is_copied_whole(
    traced: Callable, same: Callable
) -> None:
    graph = traced(
        _lanes(
            lambda x: lax.fori_loop(0, 3, lambda i, s: s * x + i.astype(s.dtype), x) > 4,
            lambda x: x * 0.75,
        ),
        X,
    )
    carried = carry_conditions(graph)
    assert carried is not graph
    same(carried, graph, [X])


@pytest.mark.parametrize(
    ("goes_on", "x"),
    [
        (lambda x: x > 1, X),  # nothing is rounded
        (lambda x: x * 3 % 7 > 1, np.arange(6, dtype=np.int32)),
    ],
)
def test_what_cannot_be_rounded_is_left(traced: Callable, goes_on: Callable, x: np.ndarray) -> None:
    graph = traced(_lanes(goes_on, lambda x: x // 2), x)
    assert carry_conditions(graph) is graph


def test_what_the_condition_alone_asks_is_left(traced: Callable) -> None:
    graph = traced(lambda x: lax.while_loop(lambda x: jnp.sum(x * x) > 1, lambda x: x * 0.75, x), X)
    assert carry_conditions(graph) is graph


def _answers_that_stay(graph, loops_of: Callable) -> bool:
    """Whether a lane that is done is so for good: its answer is carried with what it was before."""
    (loop,) = loops_of(carry_conditions(graph))
    body = loop.regions[1]
    made = {node.results[0]: node for node in body.nodes}
    (answer,) = (k for k, v in enumerate(body.parameters) if v.type.dtype is BOOL)
    later = made[body.results[answer]]
    return later.op == "stablehlo.and" and body.parameters[answer] in later.operands


@pytest.mark.parametrize(
    "goes_on",
    [
        lambda x: jnp.abs(jnp.exp(x) - 2) > 0.6,
        lambda x: (x * x > 0.5) & (x > 0),
        lambda x: jnp.sum(jnp.stack([x, 2 * x]) ** 2) > 2,
    ],
)
def test_lanes_that_are_done_are_so_for_good(
    traced: Callable, loops_of: Callable, goes_on: Callable
) -> None:
    graph = traced(_lanes(goes_on, lambda x: x - (jnp.exp(x) - 2) / 4 - x / 8), X)
    assert _answers_that_stay(graph, loops_of)


def test_rows_that_are_done_are_so_for_good(
    traced: Callable, same: Callable, loops_of: Callable
) -> None:
    x = np.linspace(0.2, 2, 12, dtype=np.float32).reshape(4, 3)
    function = jax.vmap(
        lambda x: lax.while_loop(lambda x: jnp.sum(x[1:] * x[:2]) > 0.3, lambda x: x * 0.75, x)
    )
    graph = traced(function, x)
    assert _answers_that_stay(graph, loops_of)
    same(carry_conditions(graph), graph, [x])


@pytest.mark.parametrize(
    ("goes_on", "step"),
    [
        (lambda x: x * x > jnp.max(x) * 0.5, lambda on, x: jnp.where(on, x * 0.8, x)),
        (lambda x: x * x > x[::-1] * 0.5, lambda on, x: jnp.where(on, x * 0.8, x)),
        (lambda x: x * x > 0.5, lambda on, x: jnp.where(on, x * 0.8, x + 0.001)),
        (lambda x: x * x > 0.5, lambda on, x: jnp.where(on | (x > 1.5), x * 0.8, x)),
        (lambda x: jnp.cumsum(x * x) > 0.5, lambda on, x: jnp.where(on, x * 0.8, x)),
    ],
    ids=["the largest", "in turn", "changes", "another question", "those before"],
)
def test_lanes_that_may_come_back_are_left(
    traced: Callable, same: Callable, loops_of: Callable, goes_on: Callable, step: Callable
) -> None:
    """They ask for what others have, or change what they are asked for."""

    def function(x):
        return lax.while_loop(lambda x: jnp.any(goes_on(x)), lambda x: step(goes_on(x), x), x)

    graph = traced(function, X)
    assert not _answers_that_stay(graph, loops_of)
    same(carry_conditions(graph), graph, [X])


def test_lanes_that_ask_for_those_across_are_left(traced: Callable, loops_of: Callable) -> None:
    def goes_on(x):
        return (x * x > 0.5).T

    def function(x):
        return lax.while_loop(
            lambda x: jnp.any(goes_on(x)), lambda x: jnp.where(goes_on(x), x * 0.8, x), x
        )

    x = np.linspace(0.2, 2, 9, dtype=np.float32).reshape(3, 3)
    graph = traced(function, x)
    (loop,) = loops_of(carry_conditions(graph))
    assert "stablehlo.and" not in {node.op for node in loop.regions[1].nodes}
