"""Pointwise loops, block by block: which they are, and that they mean the same."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from hlo_mlc.loops.core import For, LoopKind
from hlo_mlc.loops.interpret import interpret
from hlo_mlc.loops.verify import verify
from hlo_mlc.target.cpu import named
from hlo_mlc.templates.pointwise_loop import RUN, in_blocks
from hlo_mlc.templates.program import schedule_program
from hlo_mlc.tensor.core import Loop

# What is expected of choices does not depend on the machine that the tests run on.
TARGET = named("x86-64-v4")

BODIES = {
    "one": lambda i, x, y: (x * 0.5 + i.astype(x.dtype), y),
    "swapped": lambda i, x, y: (y, x * 0.5),
    "choice": lambda i, x, y: (jnp.where(x > y, x * 0.5, y), jnp.maximum(x, y) - 1),
    "row": lambda i, x, y: (x * 0.5 + y[:1], y),
    "row of the trip": lambda i, x, y: (x * 0.5 + y[i % y.shape[0]], y),
}


def _loop(body, trips: int):
    def function(x: jax.Array, y: jax.Array):
        return lax.fori_loop(0, trips, lambda i, s: body(jnp.int32(i), *s), (x, y))

    return function


def _loops(program) -> list[Loop]:
    return [step for step in program.steps if isinstance(step, Loop)]


@pytest.mark.parametrize("shape", [(3, RUN - 1), (5, RUN), (2, RUN + 1), (41, 97), (1, 4 * RUN)])
@pytest.mark.parametrize("trips", [4, 5])
@pytest.mark.parametrize("name", BODIES)
def test_the_loops_mean_the_same(name, trips, shape, take_apart, arrays, machine_code):
    """As machine code, and as the interpreter says; the loops pass the verifier."""
    args = arrays("float32", shape, shape)
    function = _loop(BODIES[name], trips)
    parts = take_apart(function, *args)
    expected = [np.asarray(r) for r in jax.tree.leaves(jax.jit(function)(*args))]

    def interpreted(program, operands):
        scheduled, _ = schedule_program(program, machine_code.target)
        verify(scheduled)
        return interpret(scheduled, operands)

    executions = [machine_code.executing()]
    if shape == (5, RUN):  # the interpreter goes element by element
        executions.append(interpreted)
    for execute in executions:
        for actual, right in zip(parts.run(args, execute), expected, strict=True):
            np.testing.assert_allclose(actual, right, rtol=1e-6, atol=1e-6)


def test_blocks_are_the_outermost_loop(take_apart, arrays):
    x, y = arrays("float32", (128, 128), (128, 128))
    program, = take_apart(_loop(BODIES["choice"], 50), x, y).programs
    loop, = _loops(program)
    first, *_ = in_blocks(loop, TARGET)
    assert isinstance(first, For)
    assert first.kind is LoopKind.PARALLEL
    (trips,) = first.body
    assert trips.var == loop.counter


@pytest.mark.parametrize("body", [
    lambda i, x, y: (x.at[1:].set(x[:-1]), y),
    lambda i, x, y: (x * 0.5 + y.sum(), y - 1),
    lambda i, x, y: (x * 0.5 + y[0], y * 2),
    lambda i, x, y: (x.at[i].set(y[0]), y),
], ids=["stencil", "reduction", "row that changes", "one row"])
def test_loops_whose_points_depend_on_each_other_stay(body, take_apart, arrays):
    x, y = arrays("float32", (128, 128), (128, 128))
    for program in take_apart(_loop(body, 9), x, y).programs:
        for loop in _loops(program):
            assert in_blocks(loop, TARGET) is None


def test_what_one_block_holds_stays(take_apart, arrays):
    x, y = arrays("float32", (3, 7), (3, 7))
    program, = take_apart(_loop(BODIES["choice"], 9), x, y).programs
    assert all(in_blocks(loop, TARGET) is None for loop in _loops(program))
