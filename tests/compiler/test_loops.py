"""Loops inside of kernels: what is carried, in which order, and for how many trips."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from making.left import by_xla

BODIES = {
    "in place": lambda i, s: (s[0] * 0.5 + i, s[1] + 1),
    "swapped": lambda i, s: (s[1], s[0]),
    "swapped and changed": lambda i, s: (s[1] * 0.5, s[0] + s[1]),
    "read after it is overwritten": lambda i, s: (s[0] * 0.5 + s[1], s[0] * 2 - s[1]),
    "shifted": lambda i, s: (jnp.roll(s[0], 1, 0) * 0.5 + s[1], jnp.flip(s[1], 1)),
    "one value twice": lambda i, s: (lambda v: (v, v))(s[0] * 0.5 + s[1]),
    "kept": lambda i, s: (s[0], s[1] * 0.5 + s[0]),
    "both from one": lambda i, s: (s[0].sum(0) * 0.1 + s[0], s[0] - 1),
    "constant": lambda i, s: (jnp.ones_like(s[0]) * 3, s[0] + s[1]),
    "row by counter": lambda i, s: (s[0].at[i % 8].set(s[0][i % 8 - 1] * 0.5 + 1), s[1] + s[0]),
    "rows read and set": lambda i, s: (s[0].at[1:].set(s[0][:-1] * 0.5 + s[1][1:]), s[1]),
    "stencil": lambda i, s: (
        s[0].at[1:-1, 1:-1].set((s[0][:-2, 1:-1] + s[0][2:, 1:-1] + s[0][1:-1, 2:]) * 0.3),
        s[1],
    ),
    "repeated places": lambda i, s: (
        s[0].at[np.array([0, 3, 3, 7, 0])].add(s[1][:5] * s[0][i % 8]),
        s[1] * 0.5,
    ),
    "places in the data": lambda i, s: (s[0].at[s[0][0].astype(int) % 8, 2].set(s[0][0, 0]), s[1]),
    "window at a moving place": lambda i, s: (
        lax.dynamic_update_slice(s[0], s[1][:2] + s[0][:2], (i - 1, 0)),
        s[1],
    ),
    "product": lambda i, s: (jnp.tanh(s[0] @ s[1].T @ s[0] * 0.1), s[1]),
    "row-wise": lambda i, s: (jax.nn.softmax(s[0] * s[1]), s[1] + s[0].max(1, keepdims=True)),
}


@pytest.mark.parametrize("name", BODIES)
def test_bodies(check, arrays, name):
    """Even and odd numbers of trips that are known, and one that is not."""
    x, y = arrays("float32", (8, 6), (8, 6))
    body = BODIES[name]

    def function(x, y, trips):
        return [lax.fori_loop(0, count, body, (x, y)) for count in (4, 5, trips)]

    check(function, x, y, np.int32(3), ulps=64)


@pytest.mark.parametrize("trips", [0, 1, 2, 7])
def test_numbers_of_trips(check, arrays, trips):
    (x,) = arrays("float32", (5, 17))

    def body(i, c):
        return c * 0.5 + i

    def function(x, start, end):
        return (
            lax.fori_loop(0, trips, body, x),
            lax.fori_loop(3, 3 + trips, body, x),
            lax.fori_loop(-4, end - 4, body, x),
            lax.fori_loop(start, start + trips, body, x),
            lax.fori_loop(np.int8(120), np.int8(120 + trips), body, x),
            lax.scan(lambda c, _: (body(1, c), None), x, None, trips)[0],
        )

    check(function, x, np.int32(-2), np.int32(trips))


@pytest.mark.parametrize("reverse", [False, True])
def test_scans(check, arrays, reverse):
    """Slices taken in and results stacked, in either direction, of several shapes."""
    x, y, z = arrays("float32", (9, 5), (9,), (5,))

    def function(x, y, z):
        def mix(c, v):
            new = c * v[1] + v[0]
            return new, (c, new.sum(), new[::-1])

        def pair(c, v):
            return (c[1], c[0] + v), (c[0], v * 2, c[0].max())

        return (
            lax.scan(mix, z, (x, y), reverse=reverse),
            lax.scan(pair, (z, z * 2), x, reverse=reverse),
            lax.scan(lambda c, v: (c + v.sum(), c), jnp.float32(0), x, reverse=reverse),
            lax.scan(lambda c, v: (v, c), z, x, reverse=reverse, unroll=4),
        )

    check(function, x, y, z)


@pytest.mark.parametrize(
    "body",
    [
        lambda i, c, y: lax.fori_loop(0, 4, lambda j, d: d * 0.9 + c + j, c) * 0.1 + y,
        lambda i, c, y: lax.fori_loop(0, i, lambda j, d: d * 0.5 + j, c),
        lambda i, c, y: lax.scan(lambda d, v: (d * 0.5 + v, d), c[0], y)[1],
        lambda i, c, y: lax.fori_loop(0, 3, lambda j, s: (s[1], s[0] + c), (c * 0.1, y))[0] * 0.5,
        lambda i, c, y: lax.while_loop(lambda d: d.sum() < 9, lambda d: d + 1.0 + i, c) * 0.1,
        lambda i, c, y: c.at[i].set(lax.fori_loop(0, 2, lambda j, d: jnp.roll(d, 1) + c[0], c[i])),
    ],
)
def test_nested_loops(check, arrays, body):
    x, y = arrays("float32", (6, 5), (6, 5))
    check(
        lambda x, y, n: [
            lax.fori_loop(0, count, lambda i, c: body(i, c, y), x) for count in (3, n)
        ],
        x,
        y,
        np.int32(4),
        ulps=64,
    )


@pytest.mark.parametrize("rows", [1, 2, 4])
@pytest.mark.parametrize("trips", [2, 5])
def test_trips_beyond_the_rows_that_they_update(check, arrays, rows, trips):
    """In some trips of a pair of trips no row is there to be updated, or in none."""
    (x,) = arrays("float32", (rows, 3))

    def body(i, s):
        chosen, c = s
        return chosen | (c < x), jnp.where(chosen, c.at[i].add(x[0]), c)

    check(lambda x: lax.fori_loop(0, trips, body, (x > 0, x)), x)


def test_conditions_on_data(check, arrays):
    (x,) = arrays("float32", (4, 9))

    def function(x):
        def halve(s):
            return s[0] * 0.7, s[1] + 1

        return (
            lax.while_loop(lambda s: jnp.sum(s[0] ** 2) > 1e-3, halve, (x, 0)),
            lax.while_loop(lambda s: (s[1] < 10) & (s[0].max() > 0.5), halve, (x, 0)),
            lax.while_loop(lambda s: jnp.sum(s[0] ** 2) < -1, halve, (x, 0)),
            lax.while_loop(
                lambda s: jnp.any(s[0] > s[1]), lambda s: (s[1], s[0] * 0.5), (x, x * 0.9)
            ),
            lax.while_loop(
                lambda s: ~s[1], lambda s: (s[0] * 2, jnp.all(s[0] > -9)), (x, jnp.array(False))
            ),
        )

    check(function, x)


def test_conditions_that_stay_as_they_are(check, arrays):
    """A constant, an operand, and what the loop hands on unchanged: such loops never begin."""
    (x,) = arrays("float32", (4, 9))

    def function(x, flag):
        def inside(row, _):
            return lax.while_loop(lambda c: flag, jnp.sin, row) * 0.5, row

        return (
            lax.while_loop(lambda c: False, lambda c: c + 1, x),
            lax.while_loop(lambda c: flag, lambda c: c + 1, x),
            lax.while_loop(lambda s: s[1] > 1, lambda s: (s[0] * 2, s[1]), (x, 0)),
            lax.while_loop(lambda s: s[1], lambda s: (s[0] * 2, s[1]), (x + 1, flag)),
            lax.scan(inside, x[0], None, length=7),
        )

    check(function, x, np.array(False))


def test_values_of_outer_loops_in_inner_ones(check, arrays):
    """An inner loop reads what its body computes before it and what comes from far outside."""
    x, y = arrays("float32", (5, 5), (5, 5))

    def function(x, y):
        scale = jnp.exp(y).sum(1)

        def outer(i, c):
            before = c * 0.5 + scale

            def inner(j, d):
                return d * 0.3 + before[j] + c[i] * scale

            after = lax.fori_loop(0, 5, inner, before)
            return after * 0.2 + before - c.T * 0.1

        return lax.fori_loop(0, 5, outer, x), scale

    check(function, x, y, ulps=64)


@pytest.mark.parametrize("dtype", ["int32", "bfloat16", "int8", "bool"])
def test_carried_types(check, arrays, dtype):
    x, y = arrays(dtype, (7, 17), (7, 17))

    def body(i, s):
        return jnp.where(s[1] == s[0], s[1], jnp.roll(s[0], 1, 1)), jnp.maximum(s[0], s[1])

    check(lambda x, y: lax.fori_loop(0, 5, body, (x, y)), x, y)


def test_recurrences(check, arrays):
    """An LSTM, a power iteration, Newton's method: products, row-wise chains, scalars carried."""
    xs, w, u, h = arrays("float32", (6, 9), (9, 32), (8, 32), (8,))

    def lstm(carry, x):
        h, c = carry
        i, f, g, o = jnp.split(x @ w + h @ u, 4)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    def power(_, v):
        new = (u @ u.T) @ v
        return new / jnp.linalg.norm(new)

    def newton(s):
        return s[0] - (s[0] ** 3 - 2) / (3 * s[0] ** 2), s[0]

    def function(xs, h):
        return (
            lax.scan(lstm, (h, h), xs),
            lax.fori_loop(0, 5, power, h),
            lax.while_loop(
                lambda s: jnp.abs(s[0] - s[1]) > 1e-6, newton, (jnp.float32(1), jnp.float32(0))
            ),
            jax.grad(lambda h: lax.scan(lstm, (h, h), xs)[1].sum())(h),
        )

    check(function, xs, h, ulps=64, coverage=0.9)


def test_carried_state_that_nobody_reads(check, arrays):
    x, y = arrays("float32", (5, 6), (5, 6))

    def body(i, s):
        return s[0] + 1, s[1] * s[0], s[2]

    check(lambda x, y: lax.fori_loop(0, 3, body, (x, y, x))[0], x, y)


def test_loops_that_stay_with_xla_keep_their_kernels(check, arrays):
    """A body with an op that we cannot compile still runs its other ops in kernels."""
    (x,) = arrays("float32", (6, 6))

    def body(i, c):
        return by_xla(c) * 0.5 + jax.nn.softmax(c) @ c

    check(lambda x: lax.fori_loop(0, 3, body, x), x, coverage=0.3, ulps=64)


@pytest.mark.parametrize(
    ("dtype", "start", "step", "limit"),
    [
        (np.uint32, 5, 2**32 - 1, 10),
        (np.uint8, 250, 10, 251),
        (np.int8, 0, 3, 125),
        (np.int8, 120, 5, 126),
    ],
)
def test_counters_that_wrap_around(run, dtype, start, step, limit):
    """A counter past the end of its type starts again.  XLA may not see that, so Python counts."""

    def function():
        return lax.while_loop(
            lambda s: s[0] < dtype(limit),
            lambda s: (s[0] + dtype(step), s[1] + 1),
            (jnp.asarray(dtype(start)), jnp.int32(0)),
        )

    value, trips = np.full((), start, dtype), 0
    with np.errstate(over="ignore"):
        while value < limit:
            value, trips = value + dtype(step), trips + 1
    assert [int(r) for r in run(function)] == [int(value), trips]


def test_other_values_that_count(check, arrays):
    """Carried integers that grow by a literal: down, in other steps and types, and wrapping."""
    (x,) = arrays("float32", (9, 5))

    def function(x):
        def body(i, s):
            down, wide, byte, c = s
            c = c.at[down].set(c[wide % 9] + byte.astype(c.dtype) * 0.1 + i)
            return down - 1, 2 + wide, byte + np.uint8(100), c

        start = jnp.int32(8), jnp.int16(-3), jnp.uint8(7), x
        return lax.fori_loop(0, 9, body, start), lax.fori_loop(
            5,
            7,
            lambda i, s: lax.fori_loop(0, 4, lambda j, t: (t[0] + i, t[1] + 1), s),
            (x, jnp.int32(0)),
        )

    check(function, x)


@pytest.mark.parametrize("reverse", [False, True])
def test_products_before_and_after_loops(check, arrays, reverse):
    """A recurrent layer and its gradient: products of all rows at once, as kernels of their own."""
    xs, w, u, h = arrays("float32", (6, 2, 9), (17, 24), (9,), (2, 8))

    def layer(xs, w, u, h):
        def step(h, x):
            gates = jnp.concatenate([x, h], 1) @ w
            h = jnp.tanh(gates[:, :8]) * jax.nn.sigmoid(gates[:, 8:16]) + gates[:, 16:] * 0.1
            return h, h * (x * u)[:, :8]

        return lax.scan(step, h, xs, reverse=reverse)

    def loss(*args):
        return sum((a**2).sum() for a in layer(*args))

    check(
        lambda *args: (layer(*args), jax.grad(loss, argnums=(0, 1, 2, 3))(*args)),
        xs,
        w * 0.3,
        u,
        h,
        ulps=256,
    )


def test_choices_in_loops(check, arrays):
    """Cheap branches are all computed, so that the loop can be a kernel."""
    (x,) = arrays("float32", (5, 9))

    def body(i, c):
        c = lax.cond(i % 2 == 0, lambda v: v * 0.5 + 1, lambda v: v[::-1] - i, c)
        return lax.switch(i, [lambda v: v, jnp.tanh, lambda v: v * 2], c)

    check(lambda x: lax.fori_loop(0, 5, body, x), x)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32"])
@pytest.mark.parametrize(
    "spec,terms,written",
    [
        ("ijn,jkn->ikn", 2, True),
        ("ijn,jkn->ikn", 8, True),
        ("ijn,jkn->ikn", 9, False),
        ("nxyc,mxyc->nmxy", 4, True),
        ("nxyc,mxyc->nmxy", 5, False),
        ("inj,jkn->ikn", 3, True),
        ("nij,njk->nik", 3, False),
        ("ijn,njk->ikn", 3, False),
        ("ijm,jkm->ikm", 3, False),
    ],
)
def test_products_along_many_matrices(check, arrays, spec, terms, written, dtype):
    """Vectors of elements of different matrices, where these lie side by side."""
    sizes = {"i": 3, "j": terms, "k": 5, "n": 19, "m": 15, "x": 2, "y": 21, "c": terms}
    x, y = arrays(dtype, *([sizes[c] for c in side] for side in spec[: spec.index("-")].split(",")))
    report = check(lambda x, y: jnp.einsum(spec, x, y), x, y, kernels=1)
    (nest,) = report.kernels[0].nests
    assert (nest.template == "elementwise") == written


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "int32"])
@pytest.mark.parametrize(
    "terms,results,written",
    [(3, 3, True), (1, 4, True), (4, 2, True), (5, 3, False), (3, 5, False), (3, 1, False)],
)
def test_points_by_a_small_matrix(check, arrays, terms, results, written, dtype):
    """A map, which what is computed of the results is part of."""
    x, a = arrays(dtype, (7, 37, terms), (terms, results))
    report = check(lambda x, a: jnp.maximum(x @ a, 1) * 3, x, a, kernels=1)
    templates = [nest.template for nest in report.kernels[0].nests]
    assert (templates == ["elementwise"]) == written


@pytest.mark.parametrize(
    "function",
    [
        lambda x, a: (x @ a).T,
        lambda x, a: x @ a @ a,
        lambda x, a: jnp.einsum("mi,ji->mj", x, a),
        lambda x, a: (x @ a)[:, None] - (x @ a)[None],
        lambda x, a: (x @ a, (x @ a).sum(0)),
        lambda x, a: jax.grad(lambda x, a: (jnp.tanh(x @ a) ** 2).sum(), (0, 1))(x, a),
        lambda x, a: jax.vmap(lambda v: v @ a)(x[::-1]),
    ],
)
def test_what_becomes_of_points_by_a_small_matrix(check, arrays, function):
    check(function, *arrays("float32", (41, 3), (3, 3), special=True))


def test_short_sums_are_written_out(check, arrays):
    """Sums over three coordinates between all pairs, and maxima of two; NaNs and infinities too."""
    x, m = arrays("float32", (21, 3), (21,), special=True)
    (y,) = arrays("float32", (17, 3))

    def forces(y):
        between = y[None] - y[:, None]
        return ((between**2).sum(-1) + 1e-2) ** -1.5, between.prod(-1), jnp.argmax(between, -1)

    check(lambda x, m, y: (x.sum(1), x.max(1), (x[:, :2] * m[:, None]).min(1), forces(y)), x, m, y)


def test_long_chains_of_moves(check, arrays):
    """Ops that only move elements do not pile up on the interpreter's stack."""
    (x,) = arrays("float32", (6, 6))

    def function(x):
        for _ in range(150):
            x = jnp.roll(-x.T, 1, 0)
        return x

    check(function, x)
