"""Donated arguments: kernels work in their memory where that is safe, and are right elsewhere."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from hlo_mlc import mlc_jit
from hlo_mlc.partition.fuse.limits import LIMITS

SHAPE = (37, 29)


@pytest.fixture(autouse=True)
def _sorts_stay_with_xla(monkeypatch):
    """Operations that XLA does in place, between kernels."""
    monkeypatch.setitem(LIMITS.left, "stablehlo.sort", "it is XLA's here")


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


def replaced(x, y):
    """What x is read for is replaced before anybody needs it."""
    return jax.vmap(lambda s: (s[None, :] * 2).at[0].set(3) + 1)(x), y - 1


def normalized(x):
    return x / jnp.sum(x * x, 1, keepdims=True)


def normalized_by_others(x):
    return x / jnp.sum(x[::-1] * x, 1, keepdims=True)


def gradients(scores, given):
    probabilities, back = jax.vjp(lambda s: jax.nn.softmax(s, -1), scores)
    return probabilities, *back(given)


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
    adam: 3,
    swap: 2,
    reverse: 1,
    neighbours: 1,
    read_again: 1,
    returned_too: 1,
    one_for_two: 1,
    replaced: 2,
    normalized: 1,
    normalized_by_others: 1,
    gradients: 2,
    later: 2,
    in_a_loop: 1,
    many: 1,
}


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


def compiled_as_for_users(lowered: jax.stages.Lowered) -> str:
    return lowered.compile({"xla_backend_optimization_level": 3}).as_text()


def test_an_optimizer_works_in_place():
    assert aliases(adam, (0, 1, 2)) == 3
    lowered = mlc_jit(adam, choose="ours", donate_argnums=(0, 1, 2)).lower(*arguments(adam))
    assert " copy(" not in compiled_as_for_users(lowered)


@pytest.mark.parametrize(
    ("function", "most"),
    [(reverse, 0), (neighbours, 0), (returned_too, 0), (later, 1), (swap, 1)],
    ids=lambda v: getattr(v, "__name__", ""),
)
def test_memory_is_not_taken_while_it_is_needed(function, most):
    assert aliases(function, tuple(range(FUNCTIONS[function]))) <= most


def test_rows_are_replaced_when_all_of_them_is_read():
    """By the stages of a nest, each in the memory of an operand."""
    assert aliases(normalized, (0,)) == 1
    assert aliases(gradients, (0, 1)) == 2


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
    for got, expected in zip(
        jax.tree.leaves(ours(*arrays)), jax.tree.leaves(jax.jit(function)(*arrays)), strict=True
    ):
        np.testing.assert_allclose(got, expected, rtol=1e-5)


def returned_and_read(x):
    y = jnp.sort(x, 0)
    return y, y * 2


def read_twice(x):
    y = jnp.sort(x, 0)
    return jnp.sort(y * 2, 1) + y


def only_read(x):
    return jnp.sort(jnp.sort(x, 0) * 2 + 1, 1) - 1


def captured(x):
    y = jnp.sort(x, 0)
    return lax.cond(x[0, 0] > 0, lambda z: jnp.sort(z - y, 0), lambda z: z + y, y * 2)


@pytest.mark.parametrize(
    ("function", "expected"),
    [(returned_and_read, 0), (read_twice, 1), (only_read, 2), (captured, 0)],
    ids=lambda v: getattr(v, "__name__", ""),
)
def test_results_take_over_what_only_they_read(function, expected):
    """Of operations of XLA's too; without a copy."""
    assert aliases(function, ()) == expected
    ours, arrays = mlc_jit(function, choose="ours"), arguments(function)
    if expected:
        assert " copy(" not in compiled_as_for_users(ours.lower(*arrays))
    results = (jax.tree.leaves(jit(*arrays)) for jit in (ours, jax.jit(function)))
    for got, right in zip(*results, strict=True):
        np.testing.assert_allclose(got, right, rtol=1e-6)


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


def heads(x):
    return jax.nn.softmax(x @ x.T * 0.1, -1) @ x


# What is computed in front of the memory that the result takes over, by each family of loops:
# their last tiles, squares and panels are where an element might be computed twice.
FAMILIES: dict[str, Callable] = {
    "elementwise": lambda x, y: jnp.tanh(x) + y,
    "transpose": lambda x, y: x.T + y,
    "transpose_of_every_other": lambda x, y: jnp.repeat(x, 2, 1)[:, ::2].T * y + y,
    "two_of_a_transpose": lambda x, y: (x.T * 2 + y, x.T - 1),
    "product": lambda x, y: (x @ x.T) @ y + y,
    "few_rows": lambda x, y: (x @ y[:3].T) @ x[:3] + y,
    "columns": lambda x, y: x.sum(0) + y,
    "rows": lambda x, y: jax.nn.softmax(x, -1) + y,
    "rows_of_its_own": lambda x, y: jax.nn.softmax(y, -1) * x,
    "gradients_of_rows": lambda x, y: jax.vjp(lambda s: jax.nn.softmax(s, -1), x)[1](y),
    "argmax": lambda x, y: jnp.argmax(x, 1)[:, None] + y,
    "scan": lambda x, y: jnp.cumsum(x, 1) * y,
    "windows": lambda x, y: lax.reduce_window(x, 0.0, lax.add, (3, 3), (1, 1), "SAME") + y,
    "attention": lambda x, y: heads(x) + y,
    "update": lambda x, y: y.at[jnp.array([3, 3, 1])].add(x[:3]),
    "slice": lambda x, y: lax.dynamic_update_slice(y, y[1:3] + x[:2], (x.shape[0] // 2, 0)),
    "carried": lambda x, y: lax.fori_loop(0, 3, lambda i, c: c * 0.5 + x + c[i], y),
    "carried_in_part": lambda x, y: lax.fori_loop(
        0, 3, lambda i, c: c.at[i].set(c[i + 1] + x[i]), y
    ),
    "carried_transpose": lambda x, y: lax.fori_loop(
        0, 3, lambda i, c: c + jnp.sin(x * 2 + i).T[: c.shape[1], : c.shape[0]].T, y
    ),
}
TRANSPOSED = ("transpose", "transpose_of_every_other", "two_of_a_transpose")


@pytest.mark.filterwarnings("ignore:Some donated buffers were not usable")
@pytest.mark.parametrize("shape", [(37, 29), (19, 131)])
@pytest.mark.parametrize("family", FAMILIES)
def test_no_element_is_computed_twice_in_place(family, shape):
    rng = np.random.default_rng(11)
    x, y = (rng.uniform(0.5, 2, shape).astype(np.float32) for _ in range(2))
    function = FAMILIES[family]
    y = y.T.copy() if family in TRANSPOSED else y
    expected = jax.tree.leaves(mlc_jit(function, choose="ours")(x, y))
    ours = mlc_jit(function, choose="ours", donate_argnums=1)
    for _ in range(2):
        for one, other in zip(jax.tree.leaves(ours(x, jnp.array(y))), expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("shape", [(16, 32), (37, 29), (130, 67), (9, 200)])
def test_squares_at_the_edges_are_not_stored_twice(shape):
    """What is added is in the memory of the sum, and all of it is done in squares."""
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    y = np.ones(shape[::-1], np.float32)
    ours = mlc_jit(lambda x, y: x.T + y, choose="ours", donate_argnums=1)
    assert ours.lower(x, y).as_text().count("output_operand_alias<") == 1
    (kernel,) = ours.report().kernels
    assert [nest.template for nest in kernel.nests] == ["transpose"]
    np.testing.assert_array_equal(ours(x, jnp.array(y)), x.T + 1)
