"""JAX programs that between them use most of what a lowering can contain."""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jaxlib.mlir import ir

PROGRAMS: dict[str, tuple[Callable, tuple]] = {}


def _program(*args: object) -> Callable[[Callable], Callable]:
    def register(function: Callable) -> Callable:
        PROGRAMS[function.__name__] = (function, args)
        return function

    return register


X = np.linspace(-1, 1, 16, dtype=np.float32).reshape(4, 4)
V = np.arange(8, dtype=np.float32)
KEY = np.array([1, 2], np.uint32)


@_program(X, X)
def mlp(x, w):
    return jax.nn.softmax(jax.nn.gelu(x @ w + 1.0), axis=-1)


@_program(X, X)
def scan(x, w):
    def step(carry, y):
        carry = jnp.tanh(carry @ w) + y
        return carry, carry.sum()

    return lax.scan(step, x, jnp.arange(3.0))


@_program(X, X)
def grad_of_scan(x, w):
    return jax.grad(lambda w: scan(x, w)[1].sum())(w)


@_program(X)
def cond(x):
    return lax.cond(x.sum() > 0, lambda: jnp.sin(x), lambda: x * 2.0)


@_program(X, 1)
def switch(x, i):
    return lax.switch(i, [jnp.sin, jnp.cos, lambda y: y @ x], x)


@_program(V, V)
def while_with_captures(x, y):
    limit = y.sum()
    return lax.while_loop(lambda c: c.sum() < limit, lambda c: c + jnp.sort(y), x)


@_program(V, V.astype(np.int32))
def sort(x, y):
    return jnp.sort(x), jnp.argsort(x), lax.sort((x, y), num_keys=2, is_stable=False)


@_program(X)
def top_k_and_argmax(x):
    return lax.top_k(x, 2), jnp.argmax(x, axis=1), jnp.argmin(x)


@_program(X, np.array([0, 3, 1, 2]))
def gather(x, i):
    return x[i], jnp.take_along_axis(x, i[None], axis=0, mode="clip"), x[:, ::-1][1:3]


@_program(X, np.array([0, 3]))
def scatter(x, i):
    return x.at[i].add(2.0), x.at[i, i].set(1.0), x.at[1:3, 2].multiply(3.0)


@_program(np.ones((2, 8, 8, 3), np.float32), np.ones((3, 3, 3, 4), np.float32))
def convolution(x, w):
    def loss(x, w):
        return lax.conv_general_dilated(
            x, w, (2, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        ).sum()

    return jax.grad(loss, argnums=(0, 1))(x, w)


@_program(np.ones((1, 8, 8, 3), np.float32))
def pooling(x):
    def pool(x):
        return lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")

    return pool(x), jax.grad(lambda x: pool(x).sum())(x), lax.cumsum(x, 1), lax.cummax(x, 2)


@_program(KEY)
def random(key):
    key = jax.random.wrap_key_data(key)
    return jax.random.normal(key, (3,)), jax.random.bernoulli(key, 0.5, (4,))


@_program(np.array([1, 2, 3, 4], np.uint32))
def random_bits(key):
    # The state of rng_uniform is XLA's own: only what does not depend on it can be compared.
    return lax.rng_bit_generator(key, (5,)), lax.rng_uniform(0.0, 1.0, (3,)) < 2.0


@jax.custom_vjp
def _clipped(x):
    return jnp.clip(x, 0, 1)


_clipped.defvjp(lambda x: (_clipped(x), x), lambda x, g: (g * (x > 0.5),))


@_program(V)
def custom_vjp(x):
    return jax.value_and_grad(lambda x: _clipped(x).sum())(x)


@_program(X)
def complex_numbers(x):
    z = x + 1j * jnp.cos(x)
    table = np.array([[1 + 2j, -1j, complex(np.inf, 0), 3]], np.complex64)
    return jnp.abs(z), jnp.fft.fft(z), z.real, jnp.conj(z) * table * (2 + 1j)


@_program(X)
def linear_algebra(x):
    square = x @ x.T + jnp.eye(4)
    return jnp.linalg.cholesky(square), jnp.linalg.eigh(square), jnp.linalg.solve(square, x)


@_program(X)
def effects(x):
    jax.debug.print("sum {}", x.sum(), ordered=True)
    return jax.pure_callback(np.sin, jax.ShapeDtypeStruct(x.shape, x.dtype), x)


@_program(X)
def ordered_effect_in_loop(x):
    def step(i, x):
        jax.debug.print("{}", i, ordered=True)
        return x + i

    return lax.fori_loop(0, 3, step, x)


@_program(np.ones((4, 8), jnp.bfloat16), np.ones((8, 2), np.float16))
def narrow_floats(x, y):
    table = np.arange(8, dtype=np.float32).astype(jnp.bfloat16)
    large = np.arange(200, dtype=np.float32).astype(jnp.bfloat16)
    return lax.dot(
        x * table, y.astype(jnp.bfloat16), precision="highest", preferred_element_type=jnp.float32
    ), (large * 2).sum()


@_program(V)
def float8_and_int4(x):
    return x.astype(jnp.float8_e4m3fn).astype(jnp.float32), x.astype(jnp.int4).astype(jnp.int8)


@_program(V)
def constants(x):
    table = np.array([np.nan, np.inf, -0.0, 1e-40, 1, 2, 3, 4], np.float32)
    flags = np.array([True, False] * 4)
    zeros = np.zeros((8,), np.float32)
    big = np.arange(5000, dtype=np.float32)
    empty = np.zeros((0, 3), np.float32)
    return jnp.where(flags, x + zeros, table), big[:8] * x, empty + 1, np.arange(8, dtype=np.int8)


@_program(V)
def special_functions(x):
    return (
        lax.lgamma(x),
        lax.digamma(x),
        lax.erf_inv(x),
        lax.erf(x),
        lax.bessel_i1e(x),
        lax.igamma(x, x),
        lax.nextafter(x, x),
        lax.reduce_precision(x, 5, 10),
    )


@_program(np.int32(3), np.arange(8, dtype=np.uint8))
def integers(i, x):
    return (
        lax.population_count(x),
        lax.clz(x),
        x >> 2,
        i // 2,
        i**3,
        ~x,
        lax.bitcast_convert_type(x, np.int8),
    )


@_program(X, np.int32(1))
def slices(x, i):
    window = lax.dynamic_slice(x, (i, 0), (2, 4))
    padded = lax.pad(window, 0.0, ((1, 0, 2), (0, -1, 0)))
    return lax.dynamic_update_slice(x, window, (0, i)), padded, jnp.concatenate([x, window])


@_program(X)
def checkpointed(x):
    @functools.partial(jax.checkpoint, policy=jax.checkpoint_policies.dots_saveable)
    def layer(x):
        return jnp.sin(x @ x)

    return jax.grad(lambda x: layer(layer(x)).sum())(x)


@_program(np.ones((2, 4, 8), np.float32))
def batched_attention(x):
    def attend(q):
        return jax.nn.dot_product_attention(q[:, None], q[:, None], q[:, None])

    return jax.vmap(attend)(x)


@_program(np.ones((8, 4), np.float32), np.ones((2, 4, 5), np.float32), np.array([3, 5], np.int32))
def ragged_dot(x, w, sizes):
    return lax.ragged_dot(x, w, sizes)


@_program(X)
def sharded_map(x):
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("d",))
    spec = jax.sharding.PartitionSpec("d")

    @functools.partial(jax.shard_map, mesh=mesh, in_specs=spec, out_specs=spec)
    def body(x):
        return jnp.sin(x) + lax.psum(x, "d") * lax.axis_index("d")

    return lax.with_sharding_constraint(body(x), jax.sharding.NamedSharding(mesh, spec))


@pytest.fixture(params=PROGRAMS)
def stage(request: pytest.FixtureRequest) -> tuple[jax.stages.Lowered, tuple]:
    """One program, lowered, with its arguments."""
    function, args = PROGRAMS[request.param]
    return jax.jit(function).lower(*args), args


@pytest.fixture
def lowered(stage: tuple[jax.stages.Lowered, tuple]) -> ir.Module:
    """The module of the program as JAX hands it to XLA, with its calls."""
    return stage[0].compiler_ir("stablehlo")


@pytest.fixture
def run(stage: tuple[jax.stages.Lowered, tuple]) -> Callable[[ir.Module], list[np.ndarray]]:
    """Runs a module in the place of the program's own."""
    program, args = stage

    def run_module(module: ir.Module) -> list[np.ndarray]:
        # There is no public way to compile a changed module together with its callbacks.
        program._lowering._hlo = module
        return [np.asarray(leaf) for leaf in jax.tree.leaves(program.compile()(*args))]

    return run_module
