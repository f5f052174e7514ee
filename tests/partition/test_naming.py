"""What people call kernels: by what they compute, whatever it is called in the user's code."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hlo_mlc.partition.fuse.limits import LIMITS
from hlo_mlc.partition.naming import role, told_apart
from hlo_mlc.tensor.core import TensorProgram

X, Y = np.ones((64, 128), np.float32), np.ones((128, 96), np.float32)
IMAGE, FILTERS = np.ones((1, 16, 16, 8), np.float32), np.ones((3, 3, 8, 16), np.float32)


def layer_norm(x: jax.Array) -> jax.Array:
    centered = x - x.mean(-1, keepdims=True)
    return centered * jax.lax.rsqrt((centered**2).mean(-1, keepdims=True) + 1e-6)


def attention(q: jax.Array, k: jax.Array) -> jax.Array:
    return jax.nn.softmax(q @ k.T) @ k


def recurrence(x: jax.Array) -> jax.Array:
    return jax.lax.fori_loop(0, 9, lambda _, h: jnp.tanh(h @ x.T @ x), x)


def convolution(x: jax.Array, w: jax.Array) -> jax.Array:
    return jax.lax.conv_general_dilated(
        x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


@pytest.mark.parametrize(
    ("expected", "function", "args"),
    [
        ("softmax", jax.nn.softmax, (X,)),
        ("log_softmax", jax.nn.log_softmax, (X,)),
        ("logsumexp", lambda x: jax.nn.logsumexp(x, -1), (X,)),
        ("layer_norm", layer_norm, (X,)),
        ("rms_norm", lambda x: x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6), (X,)),
        ("attention", attention, (X, X)),
        ("matmul", jnp.matmul, (X, Y)),
        ("matmul+relu", lambda x, y: jax.nn.relu(x @ y + 1), (X, Y)),
        ("matmul+gelu", lambda x, y: jax.nn.gelu(x @ y), (X, Y)),
        ("matmul+gelu", lambda x, y: jax.nn.gelu(x @ y, approximate=False), (X, Y)),
        ("matmul+erf", lambda x, y: jnp.tanh(x @ y) * jax.lax.erf(x @ y), (X, Y)),
        ("matmul+silu", lambda x, y: jax.nn.silu(x @ y), (X, Y)),
        ("matvec", lambda x, v: x @ v, (X, Y[:, 0])),
        ("dot", lambda u, v: u @ v, (X[0], Y[:, 0])),
        ("conv", convolution, (IMAGE, FILTERS)),
        (
            "max_pool",
            lambda x: jax.lax.reduce_window(
                x, -jnp.inf, jax.lax.max, (1, 3, 3, 1), (1, 1, 1, 1), "SAME"
            ),
            (IMAGE,),
        ),
        ("sum", lambda x: x.sum(0), (X,)),
        ("sum", lambda x: (x * x).sum(-1), (X,)),
        ("exp+sum", lambda x: jnp.exp(x).sum(-1), (X,)),
        ("max", lambda x: x.max(-1), (X,)),
        ("argmax", lambda x: x.argmax(-1), (X,)),
        ("argmin", lambda x: x.argmin(-1), (X,)),
        ("cumsum", lambda x: jnp.cumsum(x, -1), (X,)),
        ("cummax", lambda x: jax.lax.cummax(x, 1), (X,)),
        ("sort", lambda x: jnp.sort(x, -1), (X,)),
        ("transpose", lambda x: x.T, (X,)),
        ("reverse", lambda x: x[:, ::-1], (X,)),
        ("gather", lambda x, i: x[i], (X, np.arange(9))),
        ("scatter", lambda x, i: x.at[i].add(1), (X, np.arange(9))),
        ("sin", jnp.sin, (X,)),
        ("tanh", jnp.tanh, (X,)),
        ("relu", jax.nn.relu, (X,)),
        ("silu", jax.nn.silu, (X,)),
        ("sigmoid", jax.nn.sigmoid, (X,)),
        ("add", lambda x: x + 1, (X,)),
        ("elementwise", lambda x: (x + 1) * x / (x - 2), (X,)),
        (
            "random",
            lambda k: jax.random.bits(jax.random.wrap_key_data(k), (64,)),
            (np.zeros(2, np.uint32),),
        ),
        ("loop(matmul+tanh)", recurrence, (X,)),
        (
            "loop(matmul+tanh)",
            lambda x: jax.lax.fori_loop(0, 5, lambda _, h: recurrence(h) + 1, x),
            (X,),
        ),
    ],
)
def test_what_is_computed(
    take_apart: Callable, expected: str, function: Callable, args: tuple[np.ndarray, ...]
) -> None:
    programs: list[TensorProgram] = take_apart(function, *args, limits=LIMITS).programs
    assert expected in list(map(role, programs))


def test_the_name_of_the_function_says_nothing(take_apart: Callable) -> None:
    def softmax(x: jax.Array) -> jax.Array:
        return jnp.sin(x)

    assert list(map(role, take_apart(softmax, X).programs)) == ["sin"]


def test_kernels_are_named_by_the_line_too(take_apart: Callable) -> None:
    (kernel,) = take_apart(lambda x: jnp.sin(x), X).kernels.values()
    assert kernel.name.startswith("sin@test_naming.py:")
    (known,) = take_apart(lambda y: jnp.sin(y), X).kernels.values()
    assert known.name != kernel.name and known.fingerprint == kernel.fingerprint


def test_different_kernels_of_one_line_are_told_apart(take_apart: Callable) -> None:
    names = [
        k.name
        for k in take_apart(
            lambda x, y: (jnp.sin(x), jnp.cumsum(y, 0), jnp.cumsum(y, 1)), X, Y
        ).kernels.values()
    ]
    first, second = sorted(name for name in names if "cumsum" in name)
    assert second.startswith("cumsum@") and first == second.replace("cumsum", "cumsum#2")


def test_equal_names_are_told_apart() -> None:
    assert told_apart(["a@f:1", "b", "a@f:1", "b", "a@f:2"]) == [
        "a@f:1",
        "b",
        "a#2@f:1",
        "b#2",
        "a@f:2",
    ]
