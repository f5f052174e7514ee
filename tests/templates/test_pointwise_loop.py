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
from hlo_mlc.templates.pointwise_loop import RUN, in_blocks, pointwise
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


def _interpreting(target):
    def execute(program, operands):
        scheduled, _ = schedule_program(program, target)
        verify(scheduled)
        return interpret(scheduled, operands)

    return execute


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

    executions = [machine_code.executing()]
    if shape == (5, RUN):  # the interpreter goes element by element
        executions.append(_interpreting(machine_code.target))
    for execute in executions:
        for actual, right in zip(parts.run(args, execute), expected, strict=True):
            np.testing.assert_allclose(actual, right, rtol=1e-6, atol=1e-6)


# Where a trip writes, and what.
RECURRENCES = {
    "rows": lambda i, y, x: (np.s_[:, i + 2], 0.5 * y[:, i + 1] - 0.25 * y[:, i] + x[:, i]),
    "columns": lambda i, y, x: (np.s_[i + 2], 0.5 * y[i + 1] - 0.25 * y[i] + x[i]),
    "backwards": lambda i, y, x: (np.s_[:, 8 - i], 0.5 * y[:, 9 - i] + x[:, 9 - i]),
    "two axes": lambda i, y, x: (np.s_[..., i + 1], 0.5 * y[..., i] + x[..., i]),
    "table": lambda i, y, x: (np.s_[:, i + 1], x[0, i] * y[:, i] + x[:, 1]),
}


def _recurring(name: str, trips: int):
    def body(i, y, x):
        place, value = RECURRENCES[name](i, y, x)
        return y.at[place].set(value.astype(y.dtype))

    return lambda y, x: lax.fori_loop(0, trips, lambda i, y: body(i, y, x), y)


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "int16"])
@pytest.mark.parametrize("points", [9, 129, 1000])
@pytest.mark.parametrize("name", RECURRENCES)
def test_recurrences_mean_the_same(name, points, dtype, take_apart, arrays, machine_code):
    """Points outside, trips inside, for machine code and the interpreter."""
    shape = {"columns": (12, points), "two axes": (points // 3, 3, 12)}.get(name, (points, 12))

    function = _recurring(name, 7)
    with jax.enable_x64(dtype == "float64"):
        args = arrays(dtype, shape, shape)
        parts = take_apart(function, *args)
        expected = np.asarray(jax.jit(function)(*args))
    tolerance = {"int16": 0, "bfloat16": 2e-2}.get(dtype, 1e-5)
    executions = [machine_code.executing()]
    if points < 10:  # the interpreter goes element by element
        executions.append(_interpreting(machine_code.target))
    for execute in executions:
        (actual,) = parts.run(args, execute)
        np.testing.assert_allclose(
            actual.astype(np.float64), expected.astype(np.float64), rtol=tolerance, atol=tolerance
        )


@pytest.mark.parametrize("name", RECURRENCES)
def test_recurrences_go_point_by_point(name, take_apart, arrays):
    shape = {"columns": (500, 1200), "two axes": (300, 4, 500)}.get(name, (1200, 500))
    function = _recurring(name, 8 if name == "backwards" else 490)
    for program in take_apart(function, *arrays("float32", shape, shape)).programs:
        for loop in _loops(program):
            first, *rest = in_blocks(loop, TARGET)
            assert isinstance(first, For)
            (trips,) = first.body
            assert trips.var == loop.counter
            # The cores have done all but little when the last points begin.
            size = pointwise(loop, TARGET).block(TARGET)
            assert 1200 % size <= 1200 // 8
            assert len(rest) <= 1


def test_blocks_are_the_outermost_loop(take_apart, arrays):
    x, y = arrays("float32", (128, 128), (128, 128))
    (program,) = take_apart(_loop(BODIES["choice"], 50), x, y).programs
    (loop,) = _loops(program)
    first, *_ = in_blocks(loop, TARGET)
    assert isinstance(first, For)
    assert first.kind is LoopKind.PARALLEL
    (trips,) = first.body
    assert trips.var == loop.counter


@pytest.mark.parametrize(
    "body",
    [
        lambda i, x, y: (x.at[1:].set(x[:-1]), y),
        lambda i, x, y: (x * 0.5 + y.sum(), y - 1),
        lambda i, x, y: (x * 0.5 + y[0], y * 2),
        lambda i, x, y: (x.at[i].set(x[i + 1, ::-1]), y),
        lambda i, x, y: (x.at[i].set(x[:, i + 1]), y),
    ],
    ids=["stencil", "reduction", "row that changes", "other columns", "a column for a row"],
)
def test_loops_whose_points_depend_on_each_other_stay(body, take_apart, arrays):
    x, y = arrays("float32", (128, 128), (128, 128))
    for program in take_apart(_loop(body, 9), x, y).programs:
        for loop in _loops(program):
            assert in_blocks(loop, TARGET) is None


def test_what_one_block_holds_stays(take_apart, arrays):
    x, y = arrays("float32", (3, 7), (3, 7))
    (program,) = take_apart(_loop(BODIES["choice"], 9), x, y).programs
    assert all(in_blocks(loop, TARGET) is None for loop in _loops(program))
