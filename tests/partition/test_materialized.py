"""What XLA has in memory between its loops, against the programs that it makes."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from hlo_mlc.frontend.importer import import_function
from hlo_mlc.graph.core import Graph
from hlo_mlc.ops.registry import references
from hlo_mlc.partition.choose.materialized import fresh_us, in_memory, least_us
from hlo_mlc.passes.simplify import simplify
from hlo_mlc.target.rates import Rates

RATES = Rates(near_bytes=1e3, far_bytes=1e3, distant_bytes=1e3, xla_near=1, xla_far=1)
SIDE = 128


def lowered(function: Callable, *shapes: tuple[int, ...]) -> jax.stages.Lowered:
    return jax.jit(function).lower(*[jax.ShapeDtypeStruct(s, jnp.float32) for s in shapes])


def graph_of(function: Callable, *shapes: tuple[int, ...]) -> Graph:
    module = lowered(function, *shapes).compiler_ir()
    return simplify(import_function(module), references)[0]


def differences(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Each is summed up, and goes into a gradient."""
    d = x[1:] - x[:-1]
    return jnp.sum(d * d), jnp.pad(d, ((0, 1), (0, 0))) * 2 - jnp.pad(d, ((1, 0), (0, 0)))


@pytest.mark.parametrize(
    ("function", "operands"),
    [
        (lambda x, y: (x * y + 1) * y, 2),
        (lambda x, y: ((x + y) @ y, (x + y) * 2), 2),
        (lambda x: jnp.exp(x[::-1] * 2).sum(0), 1),
        (lambda x, y: (x + y).sum() + (x + y).max(), 2),
        (differences, 1),
        (lambda x: jnp.square(jnp.diff(x, axis=0)).sum(), 1),
        (lambda x: (jnp.tanh(x) @ x, jnp.tanh(x).sum(0)), 1),
        (lambda x: (x * 2).T @ (x * 2), 1),
        (lambda x: jnp.where(x > 0, x, 0).sum(0), 1),
        (lambda x: jax.nn.softmax(x), 1),
        (lambda x: (x - x.mean(1, keepdims=True)) / jnp.sqrt(x.var(1, keepdims=True) + 1), 1),
        (lambda x, y: jnp.concatenate([x * 2, y + 1]).max(1), 2),
        (lambda x, y: jnp.sin(x) * y + jnp.sin(x)[::-1], 2),
    ],
)
def test_as_many_values_are_in_memory_as_xla_has_there(function: Callable, operands: int) -> None:
    """All but the results of sums and what is computed of those."""
    shapes = [(SIDE, SIDE)] * operands
    graph = graph_of(function, *shapes)
    written = in_memory(graph.nodes, graph.results)
    sizes = sorted(v.type.size for node in written for v in node.results if v.type.size > SIDE)
    compiled = lowered(function, *shapes).compile({"xla_backend_optimization_level": 3})
    made = re.findall(
        r"= f32\[([\d,]*)\]\S* (?!parameter|constant|bitcast|get-tuple-element)\w",
        _entry(compiled.as_text()),
    )
    there = [jnp.prod(jnp.array([int(d) for d in shape.split(",") if d])) for shape in made]
    assert sizes == sorted(int(size) for size in there if size > SIDE)


def _entry(text: str) -> str:
    return text[text.index("ENTRY") :]


def test_what_is_in_memory_is_written_and_read() -> None:
    """Two arrays read, one written and read twice, two results."""
    graph = graph_of(lambda x, y: ((x + y) @ y, (x + y) * 2), (SIDE, SIDE), (SIDE, SIDE))
    passes = 3 + 3 + 2  # the sum, the product, and what it is doubled for
    assert least_us(graph.nodes, graph.results, RATES) == pytest.approx(
        passes * SIDE * SIDE * 4 / 1e3
    )


def test_parts_are_read_as_far_as_they_are_used() -> None:
    graph = graph_of(lambda x: x[:16] * 2, (SIDE, SIDE))
    assert least_us(graph.nodes, graph.results, RATES) == pytest.approx(2 * 16 * SIDE * 4 / 1e3)


def test_no_faster_than_its_passes_over_memory_are() -> None:
    graph = graph_of(lambda x: x * 2, (SIDE, SIDE))
    slow, fast = (
        least_us(graph.nodes, graph.results, replace(RATES, xla_near=ratio)) for ratio in (2, 0.5)
    )
    assert fast == pytest.approx(slow / 2)


def test_large_buffers_have_fresh_pages() -> None:
    assert fresh_us(32 << 20) == 0
    assert fresh_us(64 << 20) > 5_000
    small, large = (graph_of(differences, (rows, 1 << 10)) for rows in (1 << 12, 1 << 15))
    each_us = [
        least_us(g.nodes, g.results, RATES) / g.parameters[0].type.size for g in (small, large)
    ]
    assert each_us[1] > each_us[0] + 1e-4
    again = least_us(large.nodes, large.results, RATES, repeated=True)
    assert again < least_us(large.nodes, large.results, RATES) - 5_000


def test_of_what_is_updated_a_part_is_written() -> None:
    def function(x: jax.Array, part: jax.Array) -> jax.Array:
        return lax.dynamic_update_slice(x, part * 2, (3, 0))

    graph = graph_of(function, (1 << 12, SIDE), (16, SIDE))
    assert least_us(graph.nodes, graph.results, RATES) == pytest.approx(4 * 16 * SIDE * 4 / 1e3)
