"""Whole programs as people write them, of every kind that we could think of, against `jax.jit`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import pytest
from jax import lax, nn, random


def normal(*shape: int, seed: int = 1) -> jax.Array:
    return random.normal(random.key(seed), shape)


@dataclass(frozen=True, slots=True)
class Program:
    """A function of arrays, and the share of its operations that our kernels must cover."""

    function: Callable
    arguments: Callable[[], tuple[jax.Array, ...]]
    coverage: float
    ulps: float


PROGRAMS: dict[str, Program] = {}


def program(arguments: Callable, coverage: float = 1.0, ulps: float = 64.0) -> Callable:
    def register(function: Callable) -> Callable:
        PROGRAMS[function.__name__] = Program(function, arguments, coverage, ulps)
        return function

    return register


def images() -> tuple[jax.Array, ...]:
    return normal(2, 16, 16, 3), normal(3, 3, 3, 8, seed=2), normal(3, 3, 8, 8, seed=3)


@program(images)
def convolutional_network(x, first, second):
    numbers = ("NHWC", "HWIO", "NHWC")
    x = nn.relu(lax.conv_general_dilated(x, first, (1, 1), "SAME", dimension_numbers=numbers))
    x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    x = nn.relu(lax.conv_general_dilated(x, second, (2, 2), "SAME", dimension_numbers=numbers))
    return x.mean((1, 2))


@program(images, coverage=0.9)
def convolutional_network_gradients(x, first, second):
    def loss(first, second):
        return jnp.sum(convolutional_network(x, first, second) ** 2)

    return jax.grad(loss, (0, 1))(first, second)


def sequences() -> tuple[jax.Array, ...]:
    return normal(8, 10, 12), normal(12, 30, seed=2), normal(10, 30, seed=3)


@program(sequences)
def gated_recurrent_unit(x, w, u):
    def step(h, x):
        gates = x @ w
        z, r, _ = jnp.split(nn.sigmoid(gates), 3, -1)
        candidate = jnp.tanh(gates[:, 20:] + r * (h @ u)[:, 20:])
        h = (1 - z) * candidate + z * h
        return h, h

    return lax.scan(step, jnp.zeros((10, 10)), x)


@program(sequences)
def gated_recurrent_unit_gradients(x, w, u):
    def loss(w, u):
        return jnp.sum(gated_recurrent_unit(x, w, u)[1] ** 2)

    return jax.grad(loss, (0, 1))(w, u)


@program(lambda: (normal(20, 5), normal(5, 5, seed=2)))
def hidden_markov_model(observed, logits):
    transition = nn.log_softmax(logits)

    def step(alpha, emission):
        alpha = nn.logsumexp(alpha[:, None] + transition, 0) + emission
        return alpha, alpha

    return lax.scan(step, observed[0], observed[1:])


@program(lambda: (normal(4, 4), normal(30, 4, seed=4)), coverage=0.85, ulps=512)
def kalman_filter(a, measured):
    a, q, r, one = a * 0.3, jnp.eye(4) * 0.1, jnp.eye(4), jnp.eye(4)

    def step(state, z):
        mean, covariance = state
        mean, covariance = a @ mean, a @ covariance @ a.T + q
        gain = covariance @ jnp.linalg.inv(covariance + r)
        mean = mean + gain @ (z - mean)
        return (mean, (one - gain) @ covariance), mean

    return lax.scan(step, (jnp.zeros(4), one), measured)[1]


@program(lambda: (normal(3),), ulps=4096)
def runge_kutta(y):
    def slope(y):
        return jnp.array(
            [10 * (y[1] - y[0]), y[0] * (28 - y[2]) - y[1], y[0] * y[1] - 8 / 3 * y[2]]
        )

    def step(y, _):
        h = 0.01
        first = slope(y)
        second = slope(y + h / 2 * first)
        third = slope(y + h / 2 * second)
        y = y + h / 6 * (first + 2 * second + 2 * third + slope(y + h * third))
        return y, y

    return lax.scan(step, y, None, length=30)


@program(lambda: ((normal(32, 32) > 0.5).astype(jnp.int32),))
def game_of_life(board):
    def step(_, board):
        around = sum(
            jnp.roll(board, (i, j), (0, 1))
            for i in (-1, 0, 1)
            for j in (-1, 0, 1)
            if (i, j) != (0, 0)
        )
        return jnp.where((around == 3) | ((board == 1) & (around == 2)), 1, 0)

    return lax.fori_loop(0, 10, step, board)


@program(lambda: (normal(100, 3), normal(5, 3, seed=9)))
def k_means(points, centres):
    def step(_, centres):
        distances = ((points[:, None] - centres[None]) ** 2).sum(-1)
        nearest = nn.one_hot(jnp.argmin(distances, 1), 5)
        return (nearest.T @ points) / jnp.maximum(nearest.sum(0)[:, None], 1)

    return lax.fori_loop(0, 5, step, centres)


@program(lambda: (normal(6, 6), normal(6, seed=2)), coverage=0.5, ulps=1024)
def solved_in_a_loop(a, b):
    """What a kernel computes before a loop of XLA's is read by those inside it."""
    matrix = jnp.tanh(a @ a.T) + 6 * jnp.eye(6)

    def step(_, x):
        return x + jnp.linalg.solve(matrix + jnp.diag(x * x), b - jnp.sin(matrix) @ x)

    return lax.fori_loop(0, 5, step, b), matrix


def tokens() -> tuple[jax.Array, ...]:
    return normal(4, 32, 16), normal(16, 48, seed=2) * 0.25, normal(16, 16, seed=3) * 0.25


@program(tokens)
def causal_attention(x, projections, output):
    def heads(t):
        return t.reshape(4, 32, 4, 4).transpose(0, 2, 1, 3)

    q, k, v = map(heads, jnp.split(x @ projections, 3, -1))
    scores = jnp.where(jnp.tril(jnp.ones((32, 32), bool)), q @ k.swapaxes(-1, -2) / 2, -jnp.inf)
    mixed = nn.softmax(scores) @ v
    return mixed.transpose(0, 2, 1, 3).reshape(4, 32, 16) @ output


@program(tokens, ulps=256)
def causal_attention_gradients(x, projections, output):
    def loss(*arguments):
        return jnp.sum(causal_attention(*arguments) ** 2)

    return jax.grad(loss, (0, 1, 2))(x, projections, output)


@program(
    lambda: (
        normal(64, 16),
        normal(16, 8, seed=2),
        normal(8, 16, 32, seed=3),
        normal(8, 32, 16, seed=4),
    ),
    coverage=0.9,
)
def mixture_of_experts(x, gate, expand, contract):
    chosen, which = lax.top_k(nn.softmax(x @ gate), 2)
    weights = jnp.zeros((64, 8)).at[jnp.arange(64)[:, None], which].set(chosen)
    hidden = nn.gelu(jnp.einsum("nd,edh->enh", x, expand))
    return jnp.einsum("end,ne->nd", jnp.einsum("enh,ehd->end", hidden, contract), weights)


@program(lambda: (jnp.uint32(7),))
def random_numbers(seed):
    first, second, third = random.split(random.key(seed), 3)
    return (
        random.normal(first, (100,)),
        random.uniform(second, (33,)),
        random.bernoulli(third, 0.3, (50,)),
        random.randint(first, (20,), 0, 100),
    )


@program(lambda: (normal(50, 8), normal(8, 8, seed=2)), ulps=256)
def layer_norm_gradients(x, w):
    def loss(x, w):
        y = x @ w
        return jnp.sum(
            jnp.sin((y - y.mean(-1, keepdims=True)) / jnp.sqrt(y.var(-1, keepdims=True) + 1e-5))
        )

    return jax.value_and_grad(loss, (0, 1))(x, w)


@program(lambda: (jnp.arange(60) % 7, normal(7, 16), normal(60, 16, seed=2)))
def embedding_gradients(ids, table, direction):
    return jax.grad(lambda table: jnp.sum(table[ids] * direction))(table)


@program(lambda: (jnp.arange(60) % 7, normal(60, 3)))
def segments(ids, x):
    return (
        jax.ops.segment_sum(x, ids, 7),
        jax.ops.segment_max(x, ids, 7),
        jnp.bincount(ids, length=7),
    )


@program(lambda: (normal(40, 30),))
def cumulative(x):
    return (
        jnp.cumsum(x, 0),
        jnp.cumsum(x, 1),
        lax.cummax(x, 1, reverse=True),
        jnp.cumprod(x * 0.5, 0),
        lax.cumlogsumexp(x, axis=1),
        lax.associative_scan(jnp.add, x, axis=1),
    )


@program(lambda: (normal(64, 64),))
def mandelbrot(z):
    c = z * 0.5

    def step(state):
        i, x, y, inside = state
        x, y = x * x - y * y + c, 2 * x * y + c.T
        near = x * x + y * y < 4
        return i + 1, jnp.where(near, x, 0), jnp.where(near, y, 0), inside + near

    start = (0, jnp.zeros_like(z), jnp.zeros_like(z), jnp.zeros(z.shape, jnp.int32))
    return lax.while_loop(lambda state: state[0] < 20, step, start)[3]


@program(lambda: (normal(30, 30),), coverage=0.8, ulps=512)
def linear_algebra(x):
    a = x @ x.T + 30 * jnp.eye(30)
    return jnp.linalg.cholesky(a), jnp.linalg.solve(a, x), jnp.linalg.norm(x), jnp.trace(a)


@program(lambda: (normal(16, 33),), coverage=0.7)
def transforms_and_sorts(x):
    return (
        jnp.abs(jnp.fft.rfft(x)),
        jnp.sort(x),
        jnp.argsort(x, 1),
        jnp.median(x),
        jnp.quantile(x, 0.3),
    )


@program(lambda: (normal(7, 9), normal(9, 7, seed=2)))
def shapes_of_all_kinds(x, y):
    return (
        jnp.where(x > 0, x, y.T),
        jnp.clip(x, -1, 1),
        jnp.einsum("ij,jk->ki", x, y),
        jnp.outer(x[0], y[:, 0]),
        jnp.tril(x),
        jnp.pad(x, ((1, 2), (0, 3)), mode="edge"),
        jnp.concatenate([x, y.T], 1)[:, ::-3],
        x[jnp.array([3, 1, 1])],
        jnp.diff(x),
        jnp.stack([x, y.T]).std(0),
        jnp.floor(x * 3) % 2,
        jnp.kron(x[:2, :2], y[:2, :2]),
        jnp.unravel_index(jnp.argmax(x), (7, 9)),
    )


@program(lambda: (normal(6, 5), normal(5, 4, seed=2), normal(4, seed=3)), ulps=512)
def hessian(x, w, b):
    def loss(b):
        return jnp.sum(nn.softplus(jnp.tanh(x @ w + b) @ jnp.ones(4)))

    return jax.hessian(loss)(b)


@program(lambda: (normal(12, 6),))
def scans_in_a_batch(x):
    def one(row):
        return lax.scan(lambda c, v: (c * 0.9 + v, jnp.sin(c)), 0.0, row)

    return jax.vmap(one)(x)


@program(lambda: (normal(8, 8),), coverage=0.7)
def branches(x):
    return (
        lax.cond(x.sum() > 0, lambda x: jnp.sin(x) @ x, lambda x: x * 2, x),
        lax.switch(jnp.int32(2), [lambda x: x, lambda x: x + 1, lambda x: x.T * x], x),
    )


@program(lambda: (normal(5, 128, 128).astype(jnp.bfloat16),))
def narrow_floats(x):
    return nn.softmax(x), nn.gelu(x) @ x, x.sum(-1), x.transpose(2, 0, 1)


@program(lambda: (normal(3, 5), normal(17, seed=2)))
def updates(x, y):
    return (
        lax.dynamic_update_slice(y, x[0], (4,)),
        lax.dynamic_slice(y, (jnp.int32(20),), (3,)),
        y.at[jnp.array([1, 1, 3])].add(1.0),
        y.at[2:5].mul(x[0, :3]),
    )


@program(lambda: (normal(2, 8, 8, 4),), coverage=0.7)
def pooling(x):
    def largest(x):
        return lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")

    sums = lax.reduce_window(x, 0.0, lax.add, (1, 3, 3, 1), (1, 1, 1, 1), "SAME")
    return sums, jax.grad(lambda x: jnp.sum(largest(x) ** 2))(x)


@program(lambda: (normal(2, 9, 9, 6), normal(3, 3, 1, 6, seed=2)))
def depthwise_convolution(x, w):
    def convolve(x, w):
        return lax.conv_general_dilated(
            x, w, (1, 1), "SAME", feature_group_count=6, dimension_numbers=("NHWC", "HWIO", "NHWC")
        )

    return convolve(x, w), jax.grad(lambda *a: jnp.sum(convolve(*a) ** 2), (0, 1))(x, w)


@program(lambda: (normal(30, 2),))
def bodies_that_attract_each_other(positions):
    def acceleration(p):
        apart = p[None] - p[:, None]
        squared = (apart**2).sum(-1) + 0.1
        return (apart / squared[..., None] ** 1.5).sum(1)

    def step(_, state):
        p, v = state
        v = v + 0.01 * acceleration(p)
        return p + 0.01 * v, v

    return lax.fori_loop(0, 10, step, (positions, jnp.zeros_like(positions)))


def decoder() -> tuple[jax.Array, ...]:
    return normal(20, 8), normal(8, 24, seed=2), jnp.zeros((2, 12, 8))


@program(decoder)
def greedy_decoding_with_a_cache(embedding, projections, cache):
    def step(state, position):
        cache, token = state
        x = embedding[token]
        q, k, v = jnp.split(x @ projections, 3)
        cache = lax.dynamic_update_slice(cache, jnp.stack([k, v])[:, None], (0, position, 0))
        scores = jnp.where(jnp.arange(12) <= position, cache[0] @ q, -jnp.inf)
        logits = embedding @ (x + nn.softmax(scores) @ cache[1])
        token = jnp.argmax(logits).astype(jnp.int32)
        return (cache, token), token

    return lax.scan(step, (cache, jnp.int32(3)), jnp.arange(12))


@program(lambda: (normal(2, 24, 6), -jnp.abs(normal(6, 4, seed=2)), normal(6, 4, seed=3)))
def selective_state_space(x, a, b):
    step = nn.softplus(x)
    decay = jnp.exp(step[..., None] * a)
    added = step[..., None] * (x @ b)[:, :, None] * x[..., None]

    def after(first, second):
        return first[0] * second[0], second[0] * first[1] + second[1]

    return lax.associative_scan(after, (decay, added), axis=1)[1].sum(-1)


@program(lambda: (normal(30, 6), normal(6, 6, seed=2)), coverage=0.9)
def most_likely_path(emissions, transitions):
    def forward(best, emission):
        scores = best[:, None] + transitions
        return scores.max(0) + emission, scores.argmax(0)

    best, pointers = lax.scan(forward, emissions[0], emissions[1:])
    first, path = lax.scan(lambda at, row: (row[at], at), best.argmax(), pointers, reverse=True)
    return jnp.concatenate([first[None], path]), best.max()


@program(lambda: (jnp.arange(17) * 5 % 4, jnp.arange(23) * 7 % 4))
def edit_distance(a, b):
    def row(above, letter):
        first = above[0] + 1

        def cell(left, column):
            other, up, diagonal = column
            value = jnp.minimum(jnp.minimum(left, up) + 1, diagonal + (letter != other))
            return value, value

        values = lax.scan(cell, first, (b, above[1:], above[:-1]))[1]
        return jnp.concatenate([first[None], values]), None

    return lax.scan(row, jnp.arange(24), a)[0][-1]


@program(lambda: (normal(100) > 0.3, normal(100, 3), normal(40, seed=2)))
def compaction_by_running_sums(chosen, rows, table):
    place = jnp.cumsum(chosen) - 1
    kept = jnp.zeros_like(rows).at[jnp.where(chosen, place, 100)].set(rows, mode="drop")
    return kept, rows[place], table[place % 40], jnp.nonzero(chosen, size=60)[0]


@program(lambda: (random.randint(random.key(3), (90,), 0, 50),), coverage=0.9)
def distinct_values(x):
    return jnp.unique(x, size=50), jnp.searchsorted(jnp.arange(0, 50, 3), x)


@program(lambda: (normal(9, 30, 30) * 0.02 + 1,))
def lattice_boltzmann(f):
    x, y = (jnp.array(a) for a in ((0, 1, 0, -1, 0, 1, -1, -1, 1), (0, 0, 1, 0, -1, 1, 1, -1, -1)))
    weights = jnp.array([16, 4, 4, 4, 4, 1, 1, 1, 1])[:, None, None] / 36

    def step(_, f):
        f = jnp.stack([jnp.roll(f[i], (int(i % 3), -int(i % 2)), (0, 1)) for i in range(9)])
        density = f.sum(0)
        u, v = jnp.tensordot(x, f, 1) / density, jnp.tensordot(y, f, 1) / density
        along = x[:, None, None] * u + y[:, None, None] * v
        calm = weights * density * (1 + 3 * along + 4.5 * along**2 - 1.5 * (u**2 + v**2))
        return f + (calm - f) / 0.8

    return lax.fori_loop(0, 6, step, f)


@program(lambda: (normal(5, 8),), ulps=512)
def rays_that_march(directions):
    def distance(p):
        return jnp.minimum(jnp.linalg.norm(p - jnp.array([0, 0, 3.0])) - 1, p[1] + 1)

    def march(direction):
        def goes_on(state):
            return (state[1] > 1e-3) & (state[0] < 20) & (state[2] < 40)

        def step(state):
            near = distance(direction * state[0])
            return state[0] + near, near, state[2] + 1

        along = lax.while_loop(goes_on, step, (0.0, 1.0, 0))[0]
        return jnp.where(along < 20, jax.grad(distance)(direction * along)[1], 0.0)

    pixels = jnp.concatenate([directions[:, :2] * 0.3, jnp.ones((5, 1))], 1)
    return jax.vmap(march)(pixels / jnp.linalg.norm(pixels, axis=1, keepdims=True))


@program(lambda: (normal(24, 32), normal(32, 40, seed=2)))
def quantised_product(x, w):
    row, column = (jnp.max(jnp.abs(a), axis, keepdims=True) / 127 for a, axis in ((x, 1), (w, 0)))
    whole = [jnp.clip(jnp.round(a), -128, 127).astype(jnp.int8) for a in (x / row, w / column)]
    return lax.dot(*whole, preferred_element_type=jnp.int32).astype(jnp.float32) * row * column


@program(
    lambda: (
        jnp.array(
            [
                jnp.nan,
                jnp.inf,
                -jnp.inf,
                3e9,
                -3e9,
                255.9,
                256.0,
                -0.9,
                -1.5,
                2.5,
                0.0,
                65535.5,
                127.5,
                -128.5,
                70000.0,
            ]
            * 3
        ),
    )
)
def bounds_of_numbers(x):
    whole = (jnp.int8, jnp.uint8, jnp.int16, jnp.uint16, jnp.int32, jnp.uint32)
    return (
        [x.astype(dtype) for dtype in whole],
        jnp.minimum(x, jnp.nan),
        jnp.maximum(jnp.nan, x),
        jnp.clip(x, -1, 1),
        jnp.nanmax(x),
        jnp.round(x),
    )


@program(lambda: (normal(32, 3, 9, 9), normal(32, 3, 9, 4, seed=2)), ulps=256)
def attention_in_shifted_windows(scores, values):
    o = (nn.softmax(scores, -1) @ values).transpose(0, 2, 1, 3)
    image = o.reshape(2, 4, 4, 3, 3, 12).transpose(0, 1, 3, 2, 4, 5).reshape(2, 12, 12, 12)
    return jnp.roll(image, (1, 2), (1, 2))


@program(
    lambda: (
        random.permutation(random.key(1), 256).astype(jnp.uint8),
        random.bits(random.key(2), (50, 16), jnp.uint8),
        random.bits(random.key(3), (5, 16), jnp.uint8),
    )
)
def rounds_of_a_block_cipher(substitution, state, keys):
    places = jnp.array([0, 5, 10, 15, 4, 9, 14, 3, 8, 13, 2, 7, 12, 1, 6, 11])

    def step(state, key):
        state = substitution[state][:, places].reshape(-1, 4, 4)
        beside = state ^ jnp.roll(state, -1, 2)
        column = state[:, :, :1] ^ state[:, :, 1:2] ^ state[:, :, 2:3] ^ state[:, :, 3:]
        doubled = (beside << 1) ^ jnp.where(beside & 128, jnp.uint8(27), jnp.uint8(0))
        return (state ^ column ^ doubled).reshape(-1, 16) ^ key, None

    return lax.scan(step, state, keys)[0]


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program(check, name):
    one = PROGRAMS[name]
    check(one.function, *one.arguments(), coverage=one.coverage, ulps=one.ulps)
