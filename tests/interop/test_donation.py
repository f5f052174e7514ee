"""Donated arguments: kernels work in their memory where that is safe, and are right elsewhere."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from hlo_mlc import mlc_jit

SHAPE = (37, 29)


def adam(p, m, v, g):
    m = 0.9 * m + 0.1 * g
    v = 0.999 * v + 0.001 * g * g
    return p - 0.01 * m / (jnp.sqrt(v) + 1e-8), m, v


def swap(x, y):
    return y + 1, x * 2


def reverse(x):
    return x[::-1] * 2


def neighbours(x):
    return x.at[1:].add(x[:-1])


def read_again(x):
    return jnp.tanh(x), jnp.cumsum(jnp.sort(x, 0) + x, 0)


def returned_too(x):
    return x + 1, x


def one_for_two(x):
    return x + 1, x * x


def normalized(x):
    return x / jnp.sum(x * x, 1, keepdims=True)


def later(x, y):
    z = jnp.sum(x, 1)
    return x * 2 + y, z[:, None] + x


def in_a_loop(x):
    return lax.fori_loop(0, 5, lambda i, c: c * 0.5 + jnp.roll(c, 1), x)


def many(x):
    for _ in range(6):
        x = jnp.roll(x, 1, 0) + jnp.sin(x)
    return x


FUNCTIONS: dict[Callable, int] = {
    adam: 3, swap: 2, reverse: 1, neighbours: 1, read_again: 1, returned_too: 1, one_for_two: 1,
    normalized: 1, later: 2, in_a_loop: 1, many: 1}


def arguments(function: Callable) -> list[np.ndarray]:
    rng = np.random.default_rng(7)
    count = function.__code__.co_argcount
    return [rng.uniform(0.5, 2, SHAPE).astype(np.float32) for _ in range(count)]


@pytest.mark.filterwarnings("ignore:Some donated buffers were not usable")
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_results_are_those_without_donation(function):
    arrays = arguments(function)
    expected = jax.tree.leaves(jax.jit(function)(*arrays))
    donated = tuple(range(FUNCTIONS[function]))
    ours = mlc_jit(function, choose="ours", donate_argnums=donated)
    for _ in range(3):
        got = jax.tree.leaves(ours(*map(jnp.array, arrays)))
        for one, other in zip(got, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=2e-5, atol=1e-6)


def aliases(function: Callable, donated: tuple[int, ...]) -> int:
    """How many results of kernels take over the memory of operands."""
    lowered = mlc_jit(function, choose="ours", donate_argnums=donated).lower(*arguments(function))
    return lowered.as_text().count("output_operand_alias<")


def test_an_optimizer_works_in_place():
    assert aliases(adam, (0, 1, 2)) == 3
    lowered = mlc_jit(adam, choose="ours", donate_argnums=(0, 1, 2)).lower(*arguments(adam))
    assert " copy(" not in lowered.compile().as_text()


@pytest.mark.parametrize(("function", "most"), [
    (reverse, 0), (neighbours, 0), (returned_too, 0), (normalized, 0), (later, 0), (swap, 1)],
    ids=lambda v: getattr(v, "__name__", ""))
def test_memory_is_not_taken_while_it_is_needed(function, most):
    assert aliases(function, tuple(range(FUNCTIONS[function]))) <= most


def test_a_loop_that_stays_with_xla_carries_in_place():
    def function(x, y):
        def step(carry, _):
            x, y = carry
            x = jnp.tanh(x) * 0.5 + y
            return (x, jnp.sort(x + y, 0)), x[0, 0]
        return lax.scan(step, (x, y), None, length=4)

    arrays = arguments(swap)
    ours = mlc_jit(function, choose="ours")
    assert "output_operand_alias<" in ours.lower(*arrays).as_text()
    for got, expected in zip(jax.tree.leaves(ours(*arrays)),
                             jax.tree.leaves(jax.jit(function)(*arrays)), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5)


def test_nothing_is_taken_that_was_not_donated():
    assert aliases(adam, ()) == 0
    inner = mlc_jit(adam, choose="ours", donate_argnums=(0, 1, 2))
    arrays = [jnp.array(a) for a in arguments(adam)]
    outer = jax.jit(lambda *a: inner(*a))
    assert "output_operand_alias<" not in outer.lower(*arrays).as_text()
    outer(*arrays)
    assert not any(a.is_deleted() for a in arrays)


def test_a_function_within_a_donating_program():
    """The arguments are the program's, which uses one of them again after the call."""
    inner = mlc_jit(lambda x: x * 2 + 1, choose="ours")

    def program(x, y):
        z = inner(x)
        return z + y, x - z

    x, y = arguments(swap)
    expected = jax.jit(program)(x, y)
    got = jax.jit(program, donate_argnums=(0, 1))(jnp.array(x), jnp.array(y))
    for one, other in zip(got, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)
