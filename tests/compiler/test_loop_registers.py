"""What loops carry in registers is what they would carry in memory."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from hlo_mlc import mlc_jit
from hlo_mlc.expr.core import Buffer, loads
from hlo_mlc.loops.core import For, LoopKind, Store, walk
from hlo_mlc.loops.rewrite import expressions
from hlo_mlc.target.cpu import named
from hlo_mlc.templates.program import schedule_program

SIZE = 23
X = np.random.default_rng(0).integers(-9, 9, SIZE + 8).astype(np.int32)


def series(trips: int, far: int, reads: tuple[int, ...], step: int = 1):
    """y[n + far] = x[n] + 2 y[n + far - k] - …, forwards or backwards."""

    def place(n, k):
        return step * (n + far - k) + (0 if step > 0 else SIZE + 7)

    def function(y, x):
        def body(n, y):
            value = x[n]
            for sign, k in zip((2, -1, 3), reads, strict=False):
                value = value + sign * y[place(n, k)]
            return y.at[place(n, 0)].set(value)

        return lax.fori_loop(0, trips, body, y)

    def exact(y, x):
        y = y.copy()
        with np.errstate(over="ignore"):
            for n in range(trips):
                value = x[n]
                for sign, k in zip((2, -1, 3), reads, strict=False):
                    value = value + y.dtype.type(sign) * y[place(n, k)]
                y[place(n, 0)] = value
        return y

    return function, exact


def in_memory(take_apart, function, *args) -> set[Buffer]:
    """The results that a serial loop reads."""
    (program,) = take_apart(function, *args).programs
    loops, _ = schedule_program(program, named("x86-64-v3"))
    return {
        read.source
        for loop in walk(loops.body)
        if isinstance(loop, For) and loop.kind is LoopKind.SERIAL
        for stmt in walk(loop.body)
        if isinstance(stmt, Store)
        for e in expressions(stmt)
        for read in loads(e)
        if read.source.scope == "result"
    }


@pytest.mark.parametrize("step", [1, -1])
@pytest.mark.parametrize(
    "reads", [(1,), (2,), (1, 2), (2, 1, 3), (4,), (5,), (1, 6), (0, 1)], ids=str
)
@pytest.mark.parametrize("trips", [0, 1, 2, 3, SIZE])
@pytest.mark.parametrize("dtype", ["int32", "float32", "int8"])
def test_series(dtype, trips, reads, step):
    function, exact = series(trips, 6, reads, step)
    y, x = X[::-1].astype(dtype), (X if dtype != "float32" else X / 4).astype(dtype)
    ours = mlc_jit(function, choose="ours", donate_argnums=0)
    expected = exact(y, x)
    np.testing.assert_allclose(ours(jnp.asarray(y), x), expected, rtol=1e-5)
    assert ours.report(jnp.asarray(y), x).coverage == 1.0


@pytest.mark.parametrize(
    "reads,stays", [((1,), False), ((4, 2), False), ((5,), True), ((1, 5), True)], ids=str
)
def test_which_are_kept(take_apart, reads, stays):
    function, _ = series(SIZE, 6, reads)
    assert bool(in_memory(take_apart, function, X, X)) == stays


def test_places_that_a_quotient_moves_on_are_no_series(check):
    """What is two places before the one that is written was stored a trip before, or never."""

    def function(y, x):
        def body(n, y):
            place = 2 * n + lax.shift_right_logical(n, 2) + 4
            return y.at[place].set(x[n] + 2 * y[place - 2])

        return lax.fori_loop(0, SIZE, body, y)

    check(function, np.arange(3 * SIZE, dtype=np.int32), X)


def test_what_a_guard_or_the_data_say_stays_in_memory(check, arrays):
    (x,) = arrays("float32", (40,))
    places = np.random.default_rng(1).integers(-3, 45, 40).astype(np.int32)

    def by_data(x, places):
        def body(n, y):
            y = y.at[places[n]].set(y[n] * 0.5 + x[n], mode="drop")
            y = lax.cond(x[n] > 0, lambda y: y.at[n].set(x[n]), lambda y: y, y)
            return y.at[jnp.clip(n + 1, 0, 39)].add(y[places[n]] * 0.25)

        return lax.fori_loop(0, 40, body, x * 0)

    check(by_data, x, places)


@pytest.mark.parametrize("shape", [(), (3,), (2, 2)])
@pytest.mark.parametrize("trips", [0, 1, 9])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32"])
def test_small_carries(check, arrays, dtype, trips, shape):
    c, d, x = arrays(dtype, shape, shape, (9, *shape))
    half = 2 if dtype == "int32" else 0.5

    def swapped(c, d, x):
        def body(state, x):
            c, d = state
            return (d * half + x, c), (c, c - d)

        return lax.scan(body, (c, d), x[:trips])

    def nested(c, d, x):
        def outer(c, x):
            inner = lax.fori_loop(0, 3, lambda n, s: (s[1] + n, s[0] * half - x), (c, d))
            return inner[0] + c * half, inner[1]

        return lax.scan(outer, c, x[:trips], reverse=True)

    check(lambda *args: (swapped(*args), nested(*args)), c, d, x, ulps=64, kernels=None)


def test_loops_until_the_data_say(check):
    def function(c, least):
        def still(state):
            return (state[0] < least) & (state[1] < 50)

        def trip(state):
            c, n, seen = state
            return c * 1.25 + 1, n + 1, seen.at[n % 5].set(c)

        return lax.while_loop(still, trip, (c, 0, jnp.zeros(5)))

    for least in (-1.0, 2.0, 500.0, 1e30):  # none, one, some, and more than are counted
        check(function, np.float32(1.5), np.float32(least))


def test_bools_and_several_of_one_buffer(check, arrays):
    (x,) = arrays("float32", (30,))

    def function(x):
        def body(n, state):
            up, y = state
            turned = jnp.where(up, x[n] > 1, x[n] < -1)
            y = y.at[n].set(jnp.where(turned, y[jnp.maximum(n - 1, 0)] * 0.5, x[n]))
            return up ^ turned, y

        return lax.fori_loop(0, 30, body, (True, x * 2))

    check(function, x)


def test_a_loop_that_is_called_for_each_row(check, arrays):
    (x,) = arrays("float32", (17, 12))

    def along(x):
        return lax.fori_loop(1, 12, lambda n, y: y.at[n].set(y[n - 1] * 0.5 + x[n]), x)

    check(jax.vmap(along), x)
    check(jax.vmap(along, in_axes=1, out_axes=1), x)
    check(jax.grad(lambda x: (jax.vmap(along)(x) ** 2).sum()), x, ulps=256)


@pytest.mark.parametrize("limit", [-1, 0, 1, 7])
def test_loops_of_no_trip_leave_what_they_would_have_filled(check, arrays, limit):
    """Each trip writes all of what it carries before it reads any of it."""
    a, b = arrays("float32", (), (3,))

    def function(a, b, limit):
        def trip(state):
            n, a, b, _ = state
            a = n * 0.5 + 1
            b = jnp.stack([a, a * 2, a - 3])
            return n + 1, a, b, a + b[1]

        return lax.while_loop(lambda s: s[0] < limit, trip, (0, a, b, a - 1))[1:]

    def twice(a, b, limit):
        def outer(m, state):
            return function(*state[:2], limit - m)

        return lax.fori_loop(0, 3, outer, (a, b, a))

    check(function, a, b, np.int32(limit))
    check(twice, a, b, np.int32(limit))


@pytest.mark.parametrize("first", [-1.0, 1.0])
def test_what_one_side_of_a_branch_fills_is_not_full_behind_it(check, first):
    def function(x, limit):
        def filled(x):
            return lax.fori_loop(0, 4, lambda n, s: s * 0.5 + n, x)

        y = lax.cond(x > 0, filled, lambda x: x - 1, x)
        return lax.while_loop(
            lambda s: s[0] < limit, lambda s: (s[0] + 1, s[1] * y + s[0]), (jnp.float32(0), y)
        )

    for limit in (0.0, 5.0):
        check(function, np.float32(first), np.float32(limit))


@pytest.mark.parametrize("n", [5, 6, 7, 8])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_vectors(take_apart, n, dtype):
    """What trips hand on in vectors stays in registers, be their lanes all on or not."""
    with jax.enable_x64(dtype == "float64"):
        a = (X[: n * n] if n < 6 else np.resize(X, n * n)).reshape(n, n).astype(dtype) / (9 * n)
        w = (X[:n] / 9).astype(dtype)

        def function(a, w):
            return lax.fori_loop(0, 9, lambda _, w: jnp.tanh(a @ w), w)

        assert not in_memory(take_apart, function, a, w)
        expected = w
        for _ in range(9):
            expected = np.tanh(a @ expected)
        np.testing.assert_allclose(mlc_jit(function, choose="ours")(a, w), expected, rtol=1e-4)
