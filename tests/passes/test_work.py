"""Passes are linear: twice the program takes twice the calls, whatever its shape.

Counts calls of Python functions, which do not depend on how busy the machine is.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from hlo_mlc.expr.dtypes import F32, TensorType
from hlo_mlc.graph.core import Graph
from hlo_mlc.ops.registry import references
from hlo_mlc.passes.simplify import simplify
from making.graphs import GraphBuilder

VECTOR = TensorType((8,), F32)
# Twice the program, and what differs in its fixed parts.
MOST_GROWTH = 2.2


def _chain(size: int, traced: Callable) -> Graph:
    """Ops one after another, some of which cancel."""
    builder = GraphBuilder()
    value = builder.parameter(VECTOR)
    for _ in range(size):
        value = builder.add("stablehlo.sine", [value], VECTOR)
        value = builder.add("stablehlo.negate", [value], VECTOR)
        value = builder.add("stablehlo.negate", [value], VECTOR)
        value = builder.add("stablehlo.reverse", [value], VECTOR, {"dimensions": (0,)})
    return builder.graph(value)


def _wide(size: int, traced: Callable) -> Graph:
    """A graph in which values have many users, near and far."""
    generator = np.random.default_rng(0)
    builder = GraphBuilder()
    values = [builder.parameter(VECTOR)]
    for number in range(4 * size):
        op = ("add", "multiply", "maximum")[number % 3]
        near, far = (
            generator.integers(max(0, len(values) - 20), len(values)),
            generator.integers(0, len(values)),
        )
        values.append(builder.add(f"stablehlo.{op}", [values[near], values[far]], VECTOR))
    return builder.graph(*values[-9:])


def _long_body(size: int, traced: Callable) -> Graph:
    """One loop with many ops, of which some do not change."""

    def step(c: jnp.ndarray, x: jnp.ndarray, w: jnp.ndarray) -> tuple:
        for _ in range(size):
            c = jnp.sin(c) * jnp.exp(w).sum(0) + x @ w
            w = jnp.cos(w)
        return c, c

    return traced(
        lambda xs, w: lax.scan(lambda c, x: step(c, x, w), xs[0], xs),
        np.ones((9, 8), np.float32),
        np.ones((8, 8), np.float32),
    )


def _many_loops(size: int, traced: Callable) -> Graph:
    """Loops one after another."""

    def function(x: jnp.ndarray, w: jnp.ndarray) -> jnp.ndarray:
        for number in range(size):
            x = lax.fori_loop(0, 9, lambda i, c, n=number: jnp.tanh(c @ w + (w * n).sum()), x)
        return x

    return traced(function, np.ones((9, 8), np.float32), np.ones((8, 8), np.float32))


def _much_carried(size: int, traced: Callable) -> Graph:
    """A loop that carries many arrays, each made from its neighbour."""

    def body(i: int, s: tuple) -> tuple:
        return tuple(s[(k + 1) % len(s)] * 0.5 for k in range(len(s)))

    return traced(lambda *xs: lax.fori_loop(0, 9, body, xs), *[np.ones(8, np.float32)] * size)


def _nested(size: int, traced: Callable) -> Graph:
    """Loops in loops that all take a value from far outside."""

    def nest(depth: int, c: jnp.ndarray, w: jnp.ndarray) -> jnp.ndarray:
        if not depth:
            return jnp.sin(c)
        return lax.fori_loop(0, 3, lambda i, s: nest(depth - 1, s + w * i, w) * 0.5, c)

    return traced(
        lambda x, w: nest(size // 2, x, w), np.ones(8, np.float32), np.ones(8, np.float32)
    )


@pytest.mark.parametrize("make", [_chain, _wide, _long_body, _many_loops, _much_carried, _nested])
def test_twice_the_program_takes_twice_the_calls(make: Callable, traced: Callable) -> None:
    size = 24
    once, twice = (_calls(make(n, traced)) for n in (size, 2 * size))
    assert twice <= MOST_GROWTH * once


def _calls(graph: Graph) -> int:
    """How many Python functions are called to simplify a graph."""
    count = 0

    def note(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(note)
    try:
        simplify(graph, references)
    finally:
        sys.setprofile(None)
    return count
