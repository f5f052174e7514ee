"""Cutting a graph into kernels is linear: twice the program takes twice the calls.

Counts calls of functions, which do not depend on how busy the machine is.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxlib.mlir import passmanager

from hlo_mlc.frontend.importer import import_function
from hlo_mlc.graph.core import Graph
from hlo_mlc.partition.choose.cost import choose_predicted
from hlo_mlc.partition.costs import Costs
from hlo_mlc.partition.planner import partition
from hlo_mlc.target.cpu import named

# Twice the program, what differs in its fixed parts, and nests that fill up at other places.
MOST_GROWTH = 2.3


def _chain(size: int, x: jax.Array) -> jax.Array:
    """Ops one after another, each of which reads its neighbours' results."""
    for _ in range(size):
        x = jnp.sin(x) + x[::-1]
    return x


def _readers(size: int, x: jax.Array) -> jax.Array:
    """One value that everything reads, and folds that go into one sum."""
    return sum(jnp.sum(jnp.sin(x * k)) for k in range(size))


def _products(size: int, x: jax.Array) -> jax.Array:
    """Matrix products, each of the results of the one before."""
    for _ in range(size):
        x = jnp.tanh(x @ x.T @ x) * 0.5 + x
    return x


def _rows(size: int, x: jax.Array) -> jax.Array:
    """Rows normalized again and again."""
    for _ in range(size):
        x = jax.nn.softmax(x) + x
    return x


def _graph(make: Callable, size: int) -> Graph:
    shape = (8, 24) if make is not _chain else (24,)
    module = jax.jit(lambda x: make(size, x)).lower(np.ones(shape, np.float32)).compiler_ir()
    with module.context:
        passmanager.PassManager.parse("builtin.module(inline)").run(module.operation)
    return import_function(module)


def _calls(graph: Graph) -> int:
    """How many functions are called to partition a graph."""
    count, target = 0, named("x86-64-v4")

    def note(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        partition(graph, lambda cluster: choose_predicted(cluster, target), Costs(target))
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("make", [_chain, _readers, _products, _rows])
def test_twice_the_program_takes_twice_the_calls(make: Callable) -> None:
    size = 24
    once, twice = (_calls(_graph(make, n)) for n in (size, 2 * size))
    assert twice <= MOST_GROWTH * once
