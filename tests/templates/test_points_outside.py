"""Loops that `vmap` makes of loops with conditions: each block of points until its last is done."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from hlo_mlc.loops.core import For, LoopKind, While, walk
from hlo_mlc.loops.interpret import interpret
from hlo_mlc.loops.verify import verify
from hlo_mlc.target.cpu import named
from hlo_mlc.templates.program import schedule_program
from hlo_mlc.tensor.points_apart import loops_apart

# What is expected of choices does not depend on the machine that the tests run on.
TARGET = named("x86-64-v4")


def _collatz(x, _):
    """Integers, of which nothing is rounded."""

    def body(s):
        return jnp.where(s[0] % 2 == 0, s[0] // 2, 3 * s[0] + 1), s[1] + 1

    return lax.while_loop(lambda s: s[0] > 1, body, (x.astype(jnp.int32) % 40 + 1, 0))[1]


def _root(x, _):
    """Floats decide, which are rounded."""

    def body(s):
        low, high, trips = s
        middle = (low + high) / 2
        below = middle * middle < x
        return jnp.where(below, middle, low), jnp.where(below, high, middle), trips + 1

    start = (jnp.zeros_like(x), x + 1, 0)
    return lax.while_loop(lambda s: (s[1] - s[0] > 1e-3) & (s[2] < 40), body, start)


def _stack(x, table):
    """A tree is walked, of which each point has some branches waiting."""

    def body(s):
        stack, top, total = s
        node = stack[top - 1]
        total = total + table[node]
        more = (node < 15) & (total < x)
        stack = stack.at[top - 1].set(jnp.where(more, 2 * node + 1, node))
        stack = stack.at[top].set(jnp.where(more, 2 * node + 2, stack[top]))
        return stack, jnp.where(more, top + 1, top - 1), total

    start = (jnp.zeros(9, jnp.int32), 1, jnp.zeros_like(x))
    return lax.while_loop(lambda s: s[1] > 0, body, start)[2]


def _rows(x, table):
    """Each point has a row, which is summed up, and another one that is multiplied with a table."""
    start = x * jnp.linspace(0.5, 1.5, table.shape[0], dtype=x.dtype)
    weights = jnp.outer(table, table) * 0.02

    def body(s):
        return weights @ s[0] + s[0] * 0.5, s[1] + 1

    return lax.while_loop(lambda s: (jnp.sum(s[0] ** 2) > 0.1) & (s[1] < 30), body, (start, 0))


def _looked_up(x, table):
    """What is asked is looked up at a place that is counted from the end."""

    def body(s):
        return s[0] - 1, s[1] * 0.5

    place = x.astype(jnp.int32) % 7 - 8
    return lax.while_loop(lambda s: (table[s[0]] < 2) & (s[1] > 0.01), body, (place, x + 1))


def _steps_of_steps(x, table):
    """Trips that have loops of their own, one counted and one not."""

    def body(s):
        y, far, trips = s
        y = lax.fori_loop(0, 3, lambda i, y: y * 0.9 + table[i] * 0.1, y)
        halves = lax.while_loop(lambda h: h[0] > 0.3, lambda h: (h[0] / 2, h[1] + 1), (y, 0))[1]
        return y, far + y * halves, trips + 1

    return lax.while_loop(lambda s: (s[0] > 0.2) & (s[2] < 30), body, (x, jnp.zeros_like(x), 0))


POINTS = {f.__name__[1:]: f for f in (_collatz, _root, _stack, _rows, _looked_up, _steps_of_steps)}


def _arguments(shape, dtype="float32"):
    x = np.random.default_rng(3).uniform(0, 9, shape).astype(dtype)
    return x, np.linspace(0.1, 1.9, 31).astype(dtype)


def _mapped(name, axes=1):
    function = POINTS[name]
    for _ in range(axes):
        function = jax.vmap(function, (0, None))
    return function


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(31,), (150,), (1000,), (3, 170), (170, 3), (7, 20)])
@pytest.mark.parametrize("name", POINTS)
def test_the_loops_mean_the_same(name, shape, dtype, take_apart, machine_code):
    """Whole blocks and what is left, several axes of points; for machine code, and where there are
    few points for the interpreter, which goes element by element."""
    function = _mapped(name, len(shape))
    with jax.enable_x64(dtype == "float64"):
        args = _arguments(shape, dtype)
        parts = take_apart(function, *args)
        expected = jax.tree.leaves(jax.jit(function)(*args))
    executions = [machine_code.executing()]
    if shape == (150,) and name != "stack":

        def interpreted(program, operands):
            scheduled, _ = schedule_program(program, machine_code.target)
            verify(scheduled)
            return interpret(scheduled, operands)

        executions.append(interpreted)
    for execute in executions:
        for actual, right in zip(parts.run(args, execute), expected, strict=True):
            np.testing.assert_allclose(actual, right, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("shape", [(1000,), (40, 25)])
@pytest.mark.parametrize("name", POINTS)
def test_each_block_ends_by_itself(name, shape, take_apart):
    programs = take_apart(_mapped(name, len(shape)), *_arguments(shape)).programs
    (program,) = [p for p in programs if loops_apart(p)]
    loops, _ = schedule_program(program, TARGET)
    whiles = [s for s in walk(loops.body) if isinstance(s, While)]
    tasks = [s for s in walk(loops.body) if isinstance(s, For) and s.kind is LoopKind.PARALLEL]
    inside = [s for task in tasks for s in walk(task.body) if isinstance(s, While)]
    assert whiles
    assert inside
    assert not [s for task in tasks for s in walk(task.body) if s in tasks]


@pytest.mark.parametrize("size", [8, 64])
def test_rows_of_large_products_go_together(size, take_apart):
    def walk_on(x, weights):
        def body(s):
            return jnp.tanh(weights @ s[0]), s[1] + 1

        return lax.while_loop(lambda s: (jnp.max(s[0]) > 0.1) & (s[1] < 30), body, (x, 0))

    x, weights = np.ones((500, size), np.float32), np.full((size, size), 0.9 / size, np.float32)
    programs = take_apart(jax.vmap(walk_on, (0, None)), x, weights).programs
    (program,) = [p for p in programs if loops_apart(p)]
    loops, _ = schedule_program(program, TARGET)
    blocks = [s for s in walk(loops.body) if isinstance(s, For) and s.var.name.endswith("_block")]
    assert bool(blocks) == (size == 8)


def _whole(goes_on, body):
    def function(x, table):
        return lax.while_loop(lambda s: jnp.any(goes_on(s[0])), lambda s: body(*s), (x, 0 * table))

    return function


def _halves(x):
    """A loop that halves all points as often as the largest needs."""
    return lax.while_loop(lambda y: jnp.any(y > 1), lambda y: y * 0.5, x)


@pytest.mark.parametrize(
    "function",
    [
        _whole(lambda x: x > 1, lambda x, t: (jnp.where(x > 1, x * 0.5, x + 0.1), t)),
        _whole(lambda x: x > 1, lambda x, t: (jnp.where(x > 1, x * 0.5, x[::-1]), t)),
        _whole(lambda x: x > 1, lambda x, t: (jnp.where(x > 1, x * 0.5 + x[0] * 0.1, x), t)),
        _whole(lambda x: x > 1, lambda x, t: (jnp.where(x > 1, x * 0.5, x), t + 1)),
        _whole(lambda x: x > 1, lambda x, t: (jnp.where(x > 0.5, x * 0.5, x), t)),
        _whole(lambda x: x > 1, lambda x, t: (jnp.where(x > 1, _halves(x), x), t)),
        lambda x, _: lax.while_loop(lambda x: jnp.all(x > 1), lambda x: x - jnp.sign(x - 1), x),
        lambda x, _: lax.while_loop(lambda x: jnp.any(x > 1), lambda x: x, x),
    ],
    ids=[
        *("go on", "change places", "read another", "count trips", "ask otherwise"),
        *("inside", "all", "none"),
    ],
)
def test_points_that_need_more_than_their_own_go_together(function, take_apart):
    x, table = _arguments((64,))
    for program in take_apart(function, x, table).programs:
        assert not loops_apart(program)


def test_loops_inside_whose_points_need_as_many_trips_go_together(run):
    """Points that are done inside are halved until the last one is."""

    def body(x):
        halved = lax.while_loop(lambda y: jnp.any(y > 1), lambda y: y * 0.5, x)
        return jnp.where(x > 0.1, halved * 0.5, x)

    def function(x):
        return lax.while_loop(lambda x: jnp.any(x > 0.1), body, x)

    x = np.linspace(0, 900, 1000, dtype=np.float32)
    expected = x
    while (expected > 0.1).any():
        halved = expected
        while (halved > 1).any():
            halved = halved / 2
        expected = np.where(expected > 0.1, halved / 2, expected)
    np.testing.assert_array_equal(run(function, x)[0], expected)


def test_a_lane_that_comes_back_is_not_left_behind(run):
    """An answer that has been no may be yes again where it asks for what other lanes have."""

    def function(x, y):
        def body(s):
            x, y, trips = s
            on = x * 0.5 < jnp.max(y)
            return jnp.where(on, x + 0.3, x), y * jnp.float32(1.05), trips + 1

        def goes_on(s):
            return jnp.any(s[0] * 0.5 < jnp.max(s[1])) & (s[2] < 20)

        return lax.while_loop(goes_on, body, (x, y, 0))

    x, y = np.linspace(0, 12, 40, dtype=np.float32), np.linspace(0, 2, 40, dtype=np.float32)
    for actual, right in zip(run(function, x, y), jax.jit(function)(x, y), strict=True):
        np.testing.assert_allclose(actual, right, rtol=1e-5)
