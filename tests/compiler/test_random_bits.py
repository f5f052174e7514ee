"""JAX's random numbers: one kernel from the counter to the result, bit for bit those of JAX."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hlo_mlc import mlc_jit

KEY = jax.random.key_data(jax.random.key(7))


@pytest.fixture(params=[True, False], ids=["partitionable", "halves"])
def partitionable(request: pytest.FixtureRequest) -> Iterator[bool]:
    """Each way in which JAX numbers the counters."""
    with jax.threefry_partitionable(request.param):
        yield request.param


def of_key(function: Callable) -> Callable:
    """The function of raw key data, so that keys pass every interface."""
    return lambda data, *args: function(jax.random.wrap_key_data(data), *args)


DRAWS = {
    "bits": lambda key: jax.random.bits(key, (1003,)),
    "bits8": lambda key: jax.random.bits(key, (257,), jnp.uint8),
    "uniform": lambda key: jax.random.uniform(key, (33, 31), minval=-2.0, maxval=3.0),
    "bernoulli": lambda key: jax.random.bernoulli(key, 0.3, (500,)),
    "randint": lambda key: jax.random.randint(key, (300,), -5, 17),
    "split": lambda key: jax.random.key_data(jax.random.split(key, 5)),
    "fold_in": lambda key: jax.random.key_data(jax.random.fold_in(key, 3)),
    "one": lambda key: jax.random.uniform(key),
    "none": lambda key: jax.random.uniform(key, (0, 3)),
}


@pytest.mark.parametrize("name", DRAWS)
def test_draws_are_those_of_jax(check: Callable, partitionable: bool, name: str) -> None:
    report = check(of_key(DRAWS[name]), KEY, kernels=None)
    # randint splits its key first.
    assert len(report.kernels) <= 2


@pytest.mark.parametrize("shape", [(1 << 14,), (17, 129)])
def test_normals_take_one_nest_without_memory_in_between(shape: tuple[int, ...]) -> None:
    def function(data):
        return jax.random.normal(jax.random.wrap_key_data(data), shape)

    compiled = mlc_jit(function, choose="ours")
    actual, expected = np.asarray(compiled(KEY)), np.asarray(jax.jit(function)(KEY))
    # JAX's formula loses digits near the ends, where 1 - x**2 is small.
    np.testing.assert_allclose(actual, expected, rtol=2e-5, atol=2e-6)
    (kernel,) = compiled.report().kernels
    (nest,) = kernel.nests
    assert nest.template == "elementwise"
    assert kernel.bytes == expected.nbytes + KEY.nbytes


def test_draws_inside_loops(check: Callable, partitionable: bool) -> None:
    def function(key, x):
        def step(carry, _):
            key, x = carry
            key, inner = jax.random.split(key)
            kept = jax.random.bernoulli(inner, 0.75, x.shape)
            return (key, jnp.where(kept, x / 0.75, 0.5)), jnp.sum(x)

        (_, x), sums = jax.lax.scan(step, (key, x), None, length=12)
        return x, sums

    check(of_key(function), KEY, np.ones(321, np.float32))


def test_dropout_and_its_gradient(check: Callable, partitionable: bool) -> None:
    def loss(x, key):
        kept = jax.random.bernoulli(key, 0.9, x.shape)
        return jnp.sum(jnp.where(kept, x / 0.9, 0.0) ** 2)

    x = np.linspace(-2, 2, 35, dtype=np.float32).reshape(5, 7)
    check(of_key(lambda key, x: jax.grad(loss)(x, key)), KEY, x)


@pytest.mark.parametrize(
    "draw",
    [
        lambda key: jax.random.gamma(key, jnp.linspace(0.3, 9, 200)),
        lambda key: jax.random.poisson(key, jnp.linspace(0.3, 30, 200)),
        lambda key: jax.random.categorical(key, jnp.sin(jnp.arange(700.0)).reshape(100, 7)),
        lambda key: jax.random.beta(key, 0.7, 2.5, (100,)),
        lambda key: jax.random.permutation(key, 300),
    ],
    ids=["gamma", "poisson", "categorical", "beta", "permutation"],
)
def test_draws_by_rejection_and_by_order(check: Callable, draw: Callable) -> None:
    """Loops that go on until all are accepted, within kernels."""
    check(of_key(draw), KEY, ulps=64, kernels=None)
