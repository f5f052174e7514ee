"""More of the cases of transformed.py: values of other types, devices, arguments, effects."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from jax.experimental import checkify, hijax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from making.transformed import BATCH, EXPLICIT_MESH, MESH, Jit, W, X, case, f, loss, sharded


@dataclass(frozen=True)
class Pair:
    """A value of a type that JAX does not know."""

    first: jax.Array
    second: jax.Array


@dataclass(frozen=True)
class PairType(hijax.HiType):
    shape: tuple[int, ...]

    def lo_ty(self) -> list[Any]:
        return [hijax.ShapedArray(self.shape, jnp.dtype(jnp.float32))] * 2

    def lower_val(self, pair: Pair) -> list[jax.Array]:
        return [pair.first, pair.second]

    def raise_val(self, first: jax.Array, second: jax.Array) -> Pair:
        return Pair(first, second)


hijax.register_hitype(Pair, lambda pair: PairType(pair.first.shape))


@case
def values_of_other_types(jit: Jit) -> Any:
    pair = Pair(X, X + 1)
    swapped = jit(lambda pair, x: (x * 2, pair, x))
    results = [swapped(pair, X), jax.jit(swapped)(pair, X), jit(lambda x: (x * 3, pair))(X)]
    return jax.tree.map(lambda it: (it.first, it.second) if isinstance(it, Pair) else it, results)


# --- devices ------------------------------------------------------------------------------------


@case
def shard_map(jit: Jit) -> Any:
    return jax.jit(sharded(jit(f)))(X, W)


@case
def shard_map_grad(jit: Jit) -> Any:
    return jax.jit(jax.grad(loss(sharded(jit(f))), (0, 1)))(X, W)


@case
def shard_map_without_vma(jit: Jit) -> Any:
    return jax.jit(sharded(jit(f), check_vma=False))(X, W)


@case
def shard_map_inside(jit: Jit) -> Any:
    return jit(sharded(f))(X, W)


@case
def shard_map_with_collective(jit: Jit) -> Any:
    g = jit(lambda x, w: jax.lax.psum((x * w[:1] + x).sum(0), "i") * x)
    return jax.jit(jax.grad(lambda x, w: sharded(g)(x, w).sum(), (0, 1)))(X, W)


@case
def sharded_input(jit: Jit) -> Any:
    return jit(f)(jax.device_put(X, NamedSharding(MESH, P("i"))), W)


@case
def sharding_options(jit: Jit) -> Any:
    rows = NamedSharding(MESH, P("i"))
    g = jit(f, in_shardings=(rows, None), out_shardings=rows)
    out = g(X, W)
    assert out.sharding.is_equivalent_to(rows, out.ndim)
    return out


@case
def sharding_constraint_inside(jit: Jit) -> Any:
    rows = NamedSharding(MESH, P("i"))
    return jit(lambda x: jax.lax.with_sharding_constraint(x * x + x, rows) * x)(X)


@case
def explicit_sharding(jit: Jit) -> Any:
    with jax.set_mesh(EXPLICIT_MESH):
        x = jax.device_put(X, P("i", None))
        return jax.jit(jax.grad(lambda x: jit(lambda x: x * x * 2.5)(x).sum()))(x)


# --- arguments ----------------------------------------------------------------------------------


@case
def static_argnums(jit: Jit) -> Any:
    g = jit(lambda x, power, mode: x**power if mode == "m" else x, static_argnums=(1, 2))
    return g(X, 2, "m"), g(X, 3, "m"), g(X, 3, "n")


@case
def static_argnames(jit: Jit) -> Any:
    g = jit(lambda x, *, shape: x.reshape(shape), static_argnames="shape")
    return g(X, shape=(4, 16)), jax.vmap(functools.partial(g, shape=(64,)))(BATCH)


@case
def static_argument_of_own_type(jit: Jit) -> Any:
    class Configuration:
        scale = 3.0

    return jit(lambda x, c: x * c.scale, static_argnums=1)(X, Configuration())


@case
def pytrees_and_keywords(jit: Jit) -> Any:
    @jit
    def g(params: dict, nothing: None, *rest: Any, scale: Any, bias: Any = 1.0) -> dict:
        return {"y": params["a"] * params["b"][0] * scale + bias, "n": (None, rest)}

    return g({"a": X, "b": (W, [])}, None, 1, 2.5, scale=3), jax.grad(
        lambda a: g({"a": a, "b": (W,)}, None, scale=X)["y"].sum()
    )(X)


@case
def python_scalars(jit: Jit) -> Any:
    return jit(lambda x, a, b, c: (x * a + b, a, c))(X, 2, 0.5, True)


@case
def captured_array(jit: Jit) -> Any:
    return jit(lambda x: x * W + jnp.asarray(np.arange(8.0, dtype=np.float32)))(X)


@case
def captured_tracer(jit: Jit) -> Any:
    return jax.jit(lambda x, w: jit(lambda v: v * w + v)(x))(X, W)


@case
def captured_tracer_of_grad(jit: Jit) -> Any:
    return jax.grad(lambda w: (jit(lambda v: v * w + v)(X) ** 2).sum())(W)


@case
def captured_tracer_of_vmap(jit: Jit) -> Any:
    return jax.vmap(lambda w: jit(lambda v: v * w + v)(X))(BATCH)


@case
def typed_keys(jit: Jit) -> Any:
    g = jit(lambda k, x: (jax.random.split(k)[0], jax.random.normal(k, x.shape) * x))
    keys = jax.random.split(jax.random.key(0), 3)
    return g(keys[0], X), jax.vmap(g)(keys, BATCH)


@case
def raw_keys(jit: Jit) -> Any:
    g = jit(lambda k, x: (jax.random.split(k)[0], jax.random.uniform(k, x.shape) * x))
    keys = jax.random.split(jax.random.PRNGKey(0), 3)
    return g(keys[0], X), jax.vmap(g)(keys, BATCH)


@case
def zero_size_and_rank_zero(jit: Jit) -> Any:
    g = jit(lambda x, s: (x * x + x, s * s + s, x.sum() + s))
    empty = jnp.zeros((0, 3))
    return (
        g(empty, 2.0),
        jax.grad(lambda s: g(empty, s)[1])(2.0),
        jax.vmap(g)(jnp.zeros((2, 0)), jnp.ones(2)),
    )


@case
def dtypes(jit: Jit) -> Any:
    kinds = ("bool", "int8", "uint8", "int32", "uint32", "float16", "bfloat16", "complex64")
    return jit(lambda xs: [(x + x, x * 2, x == 1) for x in xs])(
        [np.arange(4).astype(jnp.dtype(kind)) for kind in kinds]
    )


@case
def x64(jit: Jit) -> Any:
    with jax.enable_x64(True):
        g = jit(lambda x, n: (jnp.sin(x) * n + 1.0).sum())
        x = np.linspace(0, 1, 5)
        return g(x, 3), jax.grad(g)(x, 3.0)


@case
def no_results(jit: Jit) -> Any:
    return jit(lambda x: ())(X), jit(lambda x: None)(X), jit(lambda: 1.0)()


@case
def forwarded_arguments(jit: Jit) -> Any:
    return jit(lambda x, w: (x, w, x))(X, W)


# --- effects ------------------------------------------------------------------------------------


@case
def pure_callback(jit: Jit) -> Any:
    def double(x: jax.Array) -> jax.Array:
        return jax.pure_callback(
            lambda v: np.asarray(v) * 2, jax.ShapeDtypeStruct(x.shape, x.dtype), x
        )

    return jit(lambda x: double(x) + x)(X)


@case
def references(jit: Jit) -> Any:
    ref = jax.new_ref(jnp.zeros(3))

    @jit
    def g(ref: Any, x: jax.Array) -> jax.Array:
        ref[...] += x[0, :3] * 2
        return x + x

    return g(ref, X), g(ref, X), ref[...]


@case
def checked(jit: Jit) -> Any:
    g = checkify.checkify(jit(lambda x: jnp.log(x)), errors=checkify.float_checks)
    bad, _ = g(-jnp.ones(3))
    good, out = g(jnp.ones(3))
    return bool(bad.get()), bool(good.get()), out


@case
def linear_solve_around(jit: Jit) -> Any:
    matrix = jit(lambda v: X @ X.T @ v + 8 * v)
    return jax.grad(lambda b: jax.scipy.sparse.linalg.cg(matrix, b)[0].sum())(W[0])


@case
def library_calls_inside(jit: Jit) -> Any:
    return jit(
        lambda x: (
            jnp.linalg.solve(x @ x.T + 8 * jnp.eye(8), x),
            jax.lax.top_k(x, 2),
            jnp.sort(x, 1),
            jax.lax.erf_inv(x * 0.1),
        )
    )(X)
