"""What ends loops, and what their trips go by."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

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
