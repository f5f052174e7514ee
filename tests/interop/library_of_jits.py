"""A stand-in for the libraries that programs import: every way in which they take `jax.jit`."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax import jit

jit_with_count = functools.partial(jit, static_argnames="count")


@jit
def at_import(x: jax.Array) -> jax.Array:
    return jnp.tanh(x) * 2


@functools.partial(jax.jit, static_argnums=(1,))
def at_import_with_options(x: jax.Array, count: int) -> jax.Array:
    return jnp.tanh(x) * count


def by_attribute():
    return jax.jit(lambda x: jnp.tanh(x) * 2)


def by_name():
    return jit(lambda x: jnp.tanh(x) * 2)


def as_decorator():
    @jit
    def decorated(x: jax.Array) -> jax.Array:
        return jnp.tanh(x) * 2

    return decorated


def as_factory():
    @jax.jit(donate_argnums=())
    def decorated(x: jax.Array) -> jax.Array:
        return jnp.tanh(x) * 2

    return decorated


def by_partial():
    doubled = functools.partial(jax.jit, static_argnames="count")(
        lambda x, count: jnp.tanh(x) * count
    )
    return functools.partial(doubled, count=2)


def by_partial_of_the_module():
    return functools.partial(jit_with_count(lambda x, count: jnp.tanh(x) * count), count=2)


def of_a_callable():
    class Model:
        def __call__(self, x: jax.Array) -> jax.Array:
            return jnp.tanh(x) * 2

    return jax.jit(Model())


def of_a_method():
    class Model:
        factor = 2

        @functools.partial(jax.jit, static_argnums=0)
        def apply(self, x: jax.Array) -> jax.Array:
            return jnp.tanh(x) * self.factor

    return Model().apply


def of_a_bound_method():
    class Model:
        def apply(self, x: jax.Array) -> jax.Array:
            return jnp.tanh(x) * 2

    return jax.jit(Model().apply)


def of_what_is_jitted():
    return jax.jit(jax.jit(at_import))


USES = (
    by_attribute,
    by_name,
    as_decorator,
    as_factory,
    by_partial,
    by_partial_of_the_module,
    of_a_callable,
    of_a_method,
    of_a_bound_method,
    of_what_is_jitted,
)
