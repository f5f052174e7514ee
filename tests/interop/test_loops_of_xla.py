"""Kernels of ours in loops and branches that stay with XLA, whose passes must not take a call of
ours for what it is not (frontend/emit.py).  Each program runs within a limit of time: what went
wrong was that loops never ended."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from hlo_mlc import mlc_jit

Wrap = Callable[[Callable], Callable]
"""What stands around the parts that are to be kernels: `mlc_jit`, or nothing."""

PROGRAMS: dict[str, Callable[[Wrap], Callable]] = {}


def program(make: Callable[[Wrap], Callable]) -> Callable[[Wrap], Callable]:
    """One of `PROGRAMS`: a function of two matrices."""
    PROGRAMS[make.__name__] = make
    return make


@program
def until_the_data_says_so(wrap: Wrap) -> Callable:
    body = wrap(lambda c: (c[0] * 1.5, c[1] + c[0]))
    return lambda x, y: lax.while_loop(lambda c: c[0][0, 1] < 8, body, (x, y))


@program
def the_same_carried_twice(wrap: Wrap) -> Callable:
    body = wrap(lambda c: (c[0] * c[0], c[1] + c[0]))
    return lambda x, y: lax.while_loop(lambda c: c[0][0, 1] < 8, body, (x + 1.25, x + 1.25))


@program
def swapped(wrap: Wrap) -> Callable:
    body = wrap(lambda c: (c[1] * 1.5, c[0] + 1))
    return lambda x, y: lax.while_loop(lambda c: c[0][0, 1] < 8, body, (x, y))


@program
def permuted(wrap: Wrap) -> Callable:
    body = wrap(lambda i, c: (c[2] + 1, c[0] * 0.5, c[1] - c[0]))
    return lambda x, y: lax.fori_loop(0, 5, body, (x, y, x + y))


@program
def permuted_beside_a_kernel(wrap: Wrap) -> Callable:
    update = wrap(lambda a, b: (jnp.tanh(a), b + a))

    def body(i, c):
        a, b = update(c[0], c[1])
        return c[2], a, b

    return lambda x, y: lax.fori_loop(0, 5, body, (x, y, x + y))


@program
def unchanged(wrap: Wrap) -> Callable:
    body = wrap(lambda c: (c[0] + 0.5 * c[1], c[1], c[2] * 0.5))
    return lambda x, y: lax.while_loop(lambda c: c[0][0, 1] < 8, body, (x, jnp.abs(y) + 1, y))


@program
def unchanged_outside_of_the_kernel(wrap: Wrap) -> Callable:
    update = wrap(lambda a, b: (a + 0.5 * b, a * b))

    def body(c):
        a, product = update(c[0], c[1])
        return a, c[1], product

    return lambda x, y: lax.while_loop(lambda c: c[0][0, 1] < 8, body, (x, jnp.abs(y) + 1, y))


@program
def a_counter_with_a_static_bound(wrap: Wrap) -> Callable:
    body = wrap(lambda c: (c[0] + 1, c[1] * 0.5 + c[0], c[2] + c[1]))
    return lambda x, y: lax.while_loop(lambda c: c[0] < 5, body, (0, x, y))[1:]


@program
def a_counter_that_the_program_keeps(wrap: Wrap) -> Callable:
    update = wrap(lambda a, b: (a * 0.5, b + a))
    return lambda x, y: lax.while_loop(
        lambda c: c[0] < 5, lambda c: (c[0] + 1, *update(*c[1:])), (0, x, y)
    )[1:]


@program
def a_counter_behind_the_arrays(wrap: Wrap) -> Callable:
    body = wrap(lambda c: (c[0] * 0.5, c[1] + c[0], c[2] - 2))
    return lambda x, y: lax.while_loop(lambda c: c[2] > 0, body, (x, y, 9))[:2]


@program
def one_value(wrap: Wrap) -> Callable:
    body = wrap(lambda c: jnp.sin(c) + 0.5)
    return lambda x, y: lax.fori_loop(0, 4, lambda i, c: body(c), x) + y


@program
def no_trips(wrap: Wrap) -> Callable:
    body = wrap(lambda c: (c[0] + c[1], c[1] * 2))
    return lambda x, y: lax.while_loop(lambda c: c[0][0, 0] > 1e6, body, (x, y))


@program
def scanned(wrap: Wrap) -> Callable:
    body = wrap(lambda c, row: ((c[0] + row, c[1] * 0.5 + row), c[0] * row))
    return lambda x, y: lax.scan(body, (x[0], y[0]), x)


@program
def scanned_with_an_index(wrap: Wrap) -> Callable:
    body = wrap(lambda c, row: ((c[0] + 1, c[1] * 0.5 + row), c[1]))
    return lambda x, y: lax.scan(body, (0, y[0]), x)[1]


@program
def nested(wrap: Wrap) -> Callable:
    inner = wrap(lambda i, c: (c[1] * 0.5, c[0] + c[1]))
    outer = wrap(lambda a, b: (b + 1, a * 0.5))
    return lambda x, y: lax.fori_loop(
        0, 3, lambda i, c: outer(*lax.fori_loop(0, 4, inner, c)), (x, y)
    )


@program
def branches(wrap: Wrap) -> Callable:
    one, other = wrap(lambda a, b: (a + b, a * b)), wrap(lambda a, b: (b - a, jnp.sin(a)))
    return lambda x, y: lax.cond(x[0, 0] > 0, one, other, x, y)


@program
def branches_that_pass_on(wrap: Wrap) -> Callable:
    one = wrap(lambda a, b: (a + b, a * b))
    return lambda x, y: lax.cond(x[0, 0] > 0, one, lambda a, b: (b, a), x, y)


@program
def a_switch_in_a_loop(wrap: Wrap) -> Callable:
    ways = [
        wrap(lambda a, b: (b, a * 0.5 + b)),
        wrap(lambda a, b: (a - 1, b * 0.5)),
        lambda a, b: (a, b),
    ]
    return lambda x, y: lax.fori_loop(0, 7, lambda i, c: lax.switch(i % 3, ways, *c), (x, y))


@program
def a_loop_in_a_branch(wrap: Wrap) -> Callable:
    body = wrap(lambda i, c: (c[1] * 0.5, c[0] + c[1]))
    return lambda x, y: lax.cond(
        x[0, 0] > 0, lambda c: lax.fori_loop(0, 4, body, c), lambda c: c[::-1], (x, y)
    )


# Trips that the data decides have no reverse mode.
_ONLY_FORWARD = {
    "until_the_data_says_so",
    "the_same_carried_twice",
    "swapped",
    "unchanged",
    "unchanged_outside_of_the_kernel",
    "a_counter_with_a_static_bound",
    "a_counter_that_the_program_keeps",
    "a_counter_behind_the_arrays",
    "no_trips",
}
WAYS = ("plain", "donated", "jvp", "vjp", "vmap")


def _way(name: str, function: Callable) -> Callable:
    """The function of two matrices as it is called in this way."""
    if name == "jvp":
        return jax.jit(lambda x, y: jax.jvp(function, (x, y), (y, x)))
    if name == "vmap":
        return jax.jit(
            lambda x, y: jax.vmap(function)(jnp.stack([x, x + 0.25, y]), jnp.stack([y, x, y * 0.5]))
        )
    if name == "vjp":

        def pulled(x, y):
            results, pull = jax.vjp(function, x, y)
            return results, pull(results)

        return jax.jit(pulled)
    return jax.jit(function, donate_argnums=(0, 1) if name == "donated" else ())


def agrees(name: str, way: str) -> int:
    """Checks a program against one without us; how many of its calls are ours."""
    x = (np.arange(48 * 48, dtype=np.float32).reshape(48, 48) % 13 + 1) / 8
    y = np.cos(np.arange(48 * 48, dtype=np.float32)).reshape(48, 48)
    args = jnp.asarray(x), jnp.asarray(y)
    ours = _way(way, PROGRAMS[name](lambda f: mlc_jit(f, choose="ours"))).lower(*args)
    expected = jax.tree.map(
        np.asarray, _way(way, PROGRAMS[name](lambda f: f))(*map(jnp.array, args))
    )
    for actual, wanted in zip(
        jax.tree.leaves(ours.compile()(*args)), jax.tree.leaves(expected), strict=True
    ):
        np.testing.assert_allclose(actual, wanted, rtol=1e-5, atol=1e-5)
    return ours.as_text().count("@hlo_mlc_kernel(")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_end_and_agree(bounded, name: str, way: str) -> None:
    if way == "vjp" and name in _ONLY_FORWARD:
        pytest.skip("JAX has no reverse mode for it")
    assert bounded(agrees, name, way) > 0
