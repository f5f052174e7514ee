"""Random shapes, types and parameters of every class of kernel on the emulator.

Whole numbers keep every order of summation exact; several programs are compiled at once, since
g++ takes most of the time.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from hlo_mlc.target import cuda
from hlo_mlc.templates.cuda.program import schedule_program
from hlo_mlc.templates.cuda.registry import TEMPLATES

SM90 = cuda.named("sm_90")
DTYPES = ("float32", "float32", "bfloat16", "float16", "int32", "int8", "uint8")
EXTENTS = (0, 1, 2, 3, 4, 5, 7, 8, 16, 31, 32, 33, 64, 67, 128, 130)


def _places(y: jax.Array) -> jax.Array:
    return jnp.abs(y[:, 0].astype(jnp.int32))


def _weights(dtype: jnp.dtype, *shape: int) -> jax.Array:
    return jnp.asarray(np.arange(math.prod(shape)).reshape(shape) % 3, dtype)


def _chain(x: jax.Array) -> jax.Array:
    """What softmax and norms are made of, in exact arithmetic."""
    centred = x - x.max(-1, keepdims=True)
    return centred * 2 - jnp.minimum(jnp.maximum(centred, -1), 1).sum(-1, keepdims=True)


# Of x: [n, m], y: [n, m], z: [2, n, m], with small whole numbers.
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "map": lambda x, y, z: (x * 2 + y[::-1], jnp.abs(z) - 1),
    "broadcast": lambda x, y, z: (x + y[:, :1], x * y[:1], z + x),
    "compare": lambda x, y, z: (x > y, jnp.where(x > 0, x, y)),
    "transpose": lambda x, y, z: (x.T + 1, z.transpose(2, 0, 1) * 2, z.transpose(0, 2, 1) + 1),
    "two transposes": lambda x, y, z: x.T + y.T * 2,
    "slices": lambda x, y, z: (x.T[::2] * 2, x[:, 1:] + 1, jnp.concatenate([x, y, x[:1]])),
    "pad": lambda x, y, z: jnp.pad(x, ((1, 2), (0, 3))) * 2,
    "rows": lambda x, y, z: (x.sum(1), z.sum(2)),
    "largest of rows": lambda x, y, z: (x.max(1), z.min(2)),
    "columns": lambda x, y, z: (x.sum(0), z.sum(1)),
    "largest of columns": lambda x, y, z: (y.max(0), z.min(0)),
    "total": lambda x, y, z: (x.sum(), z.sum((0, 2)), z.sum((0, 1))),
    "flags": lambda x, y, z: ((x > 0).any(0), (x > y).all(1)),
    "argmax": lambda x, y, z: (jnp.argmax(x, 1), jnp.argmin(x, 0)),
    "chain": lambda x, y, z: (_chain(x), _chain(z)),
    "product": lambda x, y, z: (x @ y.T, x.T @ y),
    "product with more": lambda x, y, z: jnp.maximum(x @ (y * 2).T + x[:, :1], 0),
    "batched products": lambda x, y, z: jnp.einsum("bij,bkj->bik", z, z),
    "convolution": lambda x, y, z: lax.conv_general_dilated(
        z[None], _weights(x.dtype, 5, 2, 3, 3), (1, 1), "SAME"
    ),
    "depthwise convolution": lambda x, y, z: lax.conv_general_dilated(
        z.transpose(1, 2, 0)[None],
        _weights(x.dtype, 3, 3, 1, 2),
        (2, 1),
        "SAME",
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        feature_group_count=2,
    ),
    "pool": lambda x, y, z: lax.reduce_window(
        z, z.dtype.type(0), lax.add, (1, 3, 2), (1, 1, 1), "SAME"
    ),
    "cumulative": lambda x, y, z: (jnp.cumsum(x, 1), lax.cummax(x, 0)),
    "gather": lambda x, y, z: x[_places(y)],
    "scatter": lambda x, y, z: x.at[_places(y)].add(y),
    "scatter of products": lambda x, y, z: x.at[_places(y)].add(y * x),
    "largest at places": lambda x, y, z: x[:, 0].at[_places(y)].max(y[:, 0]),
    "last at places": lambda x, y, z: x.at[_places(y)].set(y),
    "window": lambda x, y, z: lax.dynamic_update_slice(x, y[:1, :1] + 1, (_places(y)[0], 0)),
    "loop": lambda x, y, z: lax.fori_loop(0, 3, lambda i, s: (s[1], s[0] - s[1] + 1), (x, y)),
    "loop with sums": lambda x, y, z: lax.fori_loop(
        0,
        3,
        lambda i, c: jnp.minimum(
            c + jnp.minimum(c.sum(0), 2).astype(c.dtype) - i.astype(c.dtype), 3
        ),
        x,
    ),
}
NEEDS_ELEMENTS = frozenset(
    (
        "largest of rows",
        "largest of columns",
        "argmax",
        "chain",
        "gather",
        "scatter",
        "scatter of products",
        "largest at places",
        "last at places",
        "window",
        "convolution",
        "depthwise convolution",
        "pool",
        "product with more",
    )
)


def _drawn(program, rng: np.random.Generator) -> dict[int, tuple[str, dict[str, int]]]:
    """Templates of every nest with their parameters, half of them the default ones."""
    if rng.random() < 0.5:
        return {}
    return {n: _any_way(d.nest, rng) for n, d in enumerate(schedule_program(program, SM90)[1])}


def _any_way(nest, rng: np.random.Generator) -> tuple[str, dict[str, int]]:
    template = rng.choice([t for t in TEMPLATES if not t.refusal(nest, SM90)])
    return template.name, {
        key: int(rng.choice(values)) for key, values in template.space(nest, SM90).items()
    }


@pytest.mark.parametrize("seed", range(2))
def test_random_kernels(seed, take_apart, emulator, cuda_source) -> None:
    rng = np.random.default_rng(seed)
    prepared = []
    for number, name in enumerate(rng.choice(sorted(FUNCTIONS), 8).tolist()):
        n, m = rng.choice(EXTENTS, 2).tolist()
        dtype = rng.choice(DTYPES)
        if name in NEEDS_ELEMENTS:
            n, m = max(1, n), max(1, m)
        low = 0 if dtype.startswith("u") else -2
        args = [
            rng.integers(low, 3, shape).astype(jnp.dtype(dtype))
            for shape in ((n, m), (n, m), (2, n, m))
        ]
        parts = take_apart(FUNCTIONS[name], *args)
        sources = {p: cuda_source(p, _drawn(p, rng)) for p in parts.programs}
        prepared.append((name, args, parts, sources, number))
    emulator.prepare(
        [source for *_, sources, _ in prepared for source in sources.values()], keep=False
    )
    for name, args, parts, sources, number in prepared:

        def execute(program, operands, sources=sources, number=number):
            return emulator.run(
                sources[program], program, operands, number % 9, ("end", "start")[number % 2]
            )

        # Op by op: jitted, XLA:CPU gets a chain of ui8 wrong (jaxlib 0.10.2 and 0.12.0.1).
        expected = jax.tree.leaves(FUNCTIONS[name](*map(jnp.asarray, args)))
        for ours, theirs in zip(parts.run(args, execute), expected, strict=True):
            assert ours.dtype == theirs.dtype
            np.testing.assert_array_equal(
                ours.astype(np.float64), np.asarray(theirs).astype(np.float64), name
            )
