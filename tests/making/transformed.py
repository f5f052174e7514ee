"""What a decorator is transformed by, or transforms: derivatives, batching, control flow.

A case is a function of the decorator alone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name
from jax.experimental import jet, sparse
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

Jit = Callable[..., Any]
Case = Callable[[Jit], Any]

CASES: dict[str, Case] = {}


def case(function: Case) -> Case:
    CASES[function.__name__] = function
    return function


def array(seed: int, *shape: int) -> jax.Array:
    return jnp.asarray(np.random.RandomState(seed).randn(*shape).astype(np.float32) * 0.3)


X, W = array(0, 8, 8), array(1, 8, 8)
BATCH = array(2, 3, 8, 8)
MESH = jax.make_mesh((8,), ("i",), axis_types=(AxisType.Auto,))
EXPLICIT_MESH = jax.make_mesh((8,), ("i",), axis_types=(AxisType.Explicit,))


def f(x: jax.Array, w: jax.Array) -> jax.Array:
    return jnp.tanh(x @ w) * jnp.maximum(x, 0.1) - x.sum()


def loss(function: Callable) -> Callable:
    return lambda *args: (function(*args) ** 2).sum()


def sharded(function: Callable, **options: Any) -> Callable:
    return jax.shard_map(function, mesh=MESH, in_specs=(P("i"), P()), out_specs=P("i"), **options)


# --- values and derivatives ---------------------------------------------------------------------


@case
def value(jit: Jit) -> Any:
    return jit(f)(X, W)


@case
def jit_outside(jit: Jit) -> Any:
    return jax.jit(lambda x, w: jit(f)(x, w) + 1)(X, W)


@case
def jit_inside(jit: Jit) -> Any:
    return jit(lambda x, w: jax.jit(f)(x, w) + jax.jit(f)(w, x))(X, W)


@case
def nested(jit: Jit) -> Any:
    inner = jit(lambda x: x * x + x)
    return jax.grad(jit(lambda x: (inner(x) * inner(x + 1)).sum()))(X)


@case
def called_inside_and_outside(jit: Jit) -> Any:
    inner = jit(lambda x: x * x + x)
    outer = jit(lambda x: inner(x) - 1)
    return jax.jit(lambda x: outer(x) + inner(x) + inner(inner(x)))(X)


@case
def grad(jit: Jit) -> Any:
    return jax.grad(loss(jit(f)), (0, 1))(X, W)


@case
def grad_inside(jit: Jit) -> Any:
    return jit(jax.grad(loss(f), (0, 1)))(X, W)


@case
def taylor_series(jit: Jit) -> Any:
    series = [[W, 0 * W, 0 * W], [X, X, 0 * X]]
    return jet.jet(jit(lambda x, y: jnp.sin(x) * y + jnp.exp(x * y)), (X, X + 1), series)


@case
def sparse_matrix(jit: Jit) -> Any:
    def product(m: Any, x: jax.Array, scale: jax.Array) -> Any:
        return -(m @ x) * scale, m * 2

    rows, matrix = sparse.sparsify(jit(product))(sparse.BCOO.fromdense(jnp.eye(8)), X, X[0, 0])
    return rows, matrix.todense()


@case
def jit_of_grad(jit: Jit) -> Any:
    return jax.jit(jax.grad(loss(jit(f))))(X, W)


@case
def value_and_grad(jit: Jit) -> Any:
    return jax.value_and_grad(loss(jit(f)))(X, W)


@case
def grad_with_aux(jit: Jit) -> Any:
    return jax.grad(jit(lambda x: ((x**3).sum(), {"aux": x + 1})), has_aux=True)(X)


@case
def grad_of_integer_argument(jit: Jit) -> Any:
    return jax.grad(jit(lambda x, n: (x * x * n.astype(x.dtype)).sum()))(X, jnp.arange(8))


@case
def jvp(jit: Jit) -> Any:
    return jax.jvp(jit(f), (X, W), (W, X))


@case
def jvp_of_one_argument(jit: Jit) -> Any:
    g = jit(f)
    return jax.jvp(lambda x: g(x, W), (X,), (W,))


@case
def jvp_with_zero_tangent_out(jit: Jit) -> Any:
    g = jit(lambda x, w: (x * 2 + x, w * w))
    return jax.jvp(lambda x: g(x, W), (X,), (X,))


@case
def vjp(jit: Jit) -> Any:
    return jax.vjp(jit(f), X, W)[1](X)


@case
def linearize(jit: Jit) -> Any:
    out, tangent = jax.linearize(jit(f), X, W)
    return out, tangent(W, X)


@case
def linear_transpose(jit: Jit) -> Any:
    return jax.linear_transpose(jit(lambda x: 2 * (x @ W)), X)(W)


@case
def jacfwd(jit: Jit) -> Any:
    return jax.jacfwd(jit(f))(X, W)


@case
def jacrev(jit: Jit) -> Any:
    return jax.jacrev(jit(f))(X, W)


@case
def hessian(jit: Jit) -> Any:
    return jax.hessian(loss(jit(f)))(X, W)


@case
def reverse_over_reverse(jit: Jit) -> Any:
    g = loss(jit(f))
    return jax.grad(lambda x: (jax.grad(g)(x, W) ** 2).sum())(X)


@case
def custom_vjp_inside(jit: Jit) -> Any:
    @jax.custom_vjp
    def cube(x: jax.Array) -> jax.Array:
        return x * x

    cube.defvjp(lambda x: (x * x, x), lambda x, t: (t * x * 3.0,))
    return jax.grad(jit(lambda x: (cube(x + x) * x).sum()))(X)


@case
def custom_vjp_outside(jit: Jit) -> Any:
    inner = jit(lambda x: x * x + x)

    @jax.custom_vjp
    def outer(x: jax.Array) -> jax.Array:
        return inner(x)

    outer.defvjp(lambda x: (inner(x), x), lambda x, t: (t * inner(x),))
    return jax.grad(lambda x: outer(x).sum())(X)


@case
def custom_jvp_inside(jit: Jit) -> Any:
    @jax.custom_jvp
    def square(x: jax.Array) -> jax.Array:
        return x * x

    square.defjvp(lambda primals, tangents: (square(*primals), 5 * primals[0] * tangents[0]))
    return jax.hessian(jit(lambda x: jax.nn.logsumexp(square(x) * jax.nn.silu(x))))(X[0])


# --- batching -----------------------------------------------------------------------------------


@case
def vmap(jit: Jit) -> Any:
    return jax.vmap(jit(f), (0, None))(BATCH, W)


@case
def vmap_of_inner_axes(jit: Jit) -> Any:
    return jax.vmap(jit(f), (2, None), 1)(jnp.moveaxis(BATCH, 0, 2), W)


@case
def vmap_of_grad(jit: Jit) -> Any:
    return jax.vmap(jax.grad(loss(jit(f))), (0, None))(BATCH, W)


@case
def grad_of_vmap(jit: Jit) -> Any:
    g = jax.vmap(jit(f), (0, None))
    return jax.grad(lambda batch: loss(g)(batch, W))(BATCH)


@case
def vmap_with_axis_name(jit: Jit) -> Any:
    g = jit(lambda x: x * jax.lax.psum(x, "b") + jax.lax.axis_index("b"))
    return jax.vmap(g, axis_name="b")(X)


@case
def vmap_inside(jit: Jit) -> Any:
    return jit(jax.vmap(f, (0, None)))(BATCH, W)


# --- control flow -------------------------------------------------------------------------------


def scan_over(function: Callable) -> Callable:
    def step(carry: jax.Array, w: jax.Array) -> tuple[jax.Array, jax.Array]:
        carry = function(carry, w) * 0.1
        return carry, carry.sum()

    return lambda x, ws: jax.lax.scan(step, x, ws)


def while_over(function: Callable) -> Callable:
    def step(state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        return state[0] + 1, function(state[1], W) * 0.1

    return lambda x: jax.lax.while_loop(lambda state: state[0] < 3, step, (0, x))[1]


@case
def scan_around(jit: Jit) -> Any:
    return jax.jit(scan_over(jit(f)))(X, BATCH)


@case
def scan_inside(jit: Jit) -> Any:
    return jit(scan_over(f))(X, BATCH)


@case
def grad_of_scan_around(jit: Jit) -> Any:
    return jax.grad(lambda x, w: scan_over(jit(f))(x, w)[1].sum(), (0, 1))(X, BATCH)


@case
def grad_of_scan_inside(jit: Jit) -> Any:
    return jax.grad(jit(lambda x, w: scan_over(f)(x, w)[1].sum()), (0, 1))(X, BATCH)


@case
def while_around(jit: Jit) -> Any:
    return jax.jit(while_over(jit(f)))(X)


@case
def while_inside(jit: Jit) -> Any:
    return jit(while_over(f))(X)


@case
def jvp_of_while(jit: Jit) -> Any:
    return jax.jvp(while_over(jit(f)), (X,), (W,)), jax.jvp(jit(while_over(f)), (X,), (W,))


@case
def grad_of_fori(jit: Jit) -> Any:
    return jax.grad(jit(lambda x: jax.lax.fori_loop(0, 3, lambda i, c: f(c, W), x).sum()))(X)


@case
def cond_around(jit: Jit) -> Any:
    g = loss(jit(f))

    def pick(x: jax.Array) -> jax.Array:
        return jax.lax.cond(x[0, 0] > 0, lambda x: g(x, W), jnp.sum, x)

    return pick(X), pick(-X), jax.grad(pick)(X), jax.grad(pick)(-X)


@case
def cond_inside(jit: Jit) -> Any:
    pick = jit(lambda x: jax.lax.cond(x[0, 0] > 0, lambda x: loss(f)(x, W), jnp.sum, x))
    return pick(X), pick(-X), jax.grad(pick)(X), jax.vmap(pick)(BATCH)


@case
def checkpoint(jit: Jit) -> Any:
    return jax.grad(loss(jax.checkpoint(jit(f))))(X, W)


@case
def checkpoint_with_policy(jit: Jit) -> Any:
    g = jax.checkpoint(jit(f), policy=jax.checkpoint_policies.dots_saveable)
    return jax.grad(loss(g))(X, W)


@case
def checkpoint_inside(jit: Jit) -> Any:
    return jax.grad(jit(loss(jax.checkpoint(f))))(X, W)


@case
def checkpoint_in_scan(jit: Jit) -> Any:
    g = jax.checkpoint(jit(f))
    return jax.grad(lambda x: scan_over(g)(x, BATCH)[1].sum())(X)


@contextlib.contextmanager
def newest_checkpoints() -> Iterator[None]:
    """JAX's third `checkpoint`: an operation that it rewrites before it lowers anything."""
    jax.config.update("jax_remat3", True)
    try:
        yield
    finally:
        jax.config.update("jax_remat3", False)


@case
@newest_checkpoints()
def new_checkpoint(jit: Jit) -> Any:
    return (
        jax.grad(loss(jax.checkpoint(jit(f))))(X, W),
        jit(jax.checkpoint(f))(X, W),
        jax.vmap(jit(jax.checkpoint(jit(f))), (0, None))(BATCH, W),
    )


@case
@newest_checkpoints()
def new_checkpoint_with_policy(jit: Jit) -> Any:
    def g(x: jax.Array) -> jax.Array:
        return jnp.sin(checkpoint_name(jnp.sin(x), "kept"))

    kept = jax.checkpoint_policies.save_only_these_names("kept")
    _, vjp = jax.vjp(jax.checkpoint(jit(g), policy=kept), X)
    residuals = sorted(leaf.shape for leaf in jax.tree.leaves(vjp))
    return (
        vjp(X),
        residuals,
        jit(jax.grad(loss(lambda x, _: jax.checkpoint(g, policy=kept)(x))))(X, W),
    )
