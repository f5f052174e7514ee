"""What scripts/gpu_check.py measures besides the registry's cases: one or more functions for each
template, of sizes that are worth a GPU."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

Function = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Subject:
    """A function to measure, its arguments as (shape, type), and the same for torch."""

    name: str
    function: Function
    arguments: tuple[tuple[tuple[int, ...], str], ...]
    in_torch: Callable[[Any], Function] | None = None
    flops: int = 0
    eps: float | None = None  # of the arithmetic, where it is not that of the result's type


def _norm(x: jax.Array) -> jax.Array:
    centred = x - x.mean(-1, keepdims=True)
    return centred * lax.rsqrt((centred * centred).mean(-1, keepdims=True) + 1e-5)


def _root_mean_square(x: jax.Array) -> jax.Array:
    return x * lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5)


def movement(rows: int, columns: int) -> Iterator[Subject]:
    """Functions whose time is that of reading and writing."""
    yield from _maps((rows, columns))
    yield from _row_wise((rows, columns))
    yield from _folds_and_scans((rows, columns))


def _maps(shape: tuple[int, int]) -> Iterator[Subject]:
    """Each element of one."""
    one, two = ((shape, "float32"),), ((shape, "float32"),) * 2
    yield Subject(
        "chain",
        lambda x, y: jnp.tanh(x * 2 + y) * y,
        two,
        lambda torch: lambda x, y: torch.tanh(x * 2 + y) * y,
    )
    yield Subject(
        "gelu_bf16",
        jax.nn.gelu,
        ((shape, "bfloat16"),),
        lambda torch: lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    )
    yield Subject(
        "transpose", lambda x: x.T + 1, one, lambda torch: lambda x: (x.T + 1).contiguous()
    )


def _row_wise(shape: tuple[int, int]) -> Iterator[Subject]:
    """Each row of what is known of all of it."""
    rows, columns = shape
    one = ((shape, "float32"),)
    yield Subject("softmax", jax.nn.softmax, one, lambda torch: lambda x: torch.softmax(x, -1))
    yield Subject(
        "layer_norm",
        _norm,
        one,
        lambda torch: lambda x: torch.nn.functional.layer_norm(x, x.shape[-1:]),
    )
    yield Subject(
        "layer_norm_bf16",
        _norm,
        ((shape, "bfloat16"),),
        lambda torch: lambda x: torch.nn.functional.layer_norm(x, x.shape[-1:]),
    )
    yield Subject(
        "rms_norm",
        _root_mean_square,
        one,
        lambda torch: lambda x: x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5),
    )
    yield Subject(
        "softmax_long_rows",
        jax.nn.softmax,
        (((rows // 16, columns * 8), "float32"),),
        lambda torch: lambda x: torch.softmax(x, -1),
    )
    yield Subject(
        "softmax_bf16",
        jax.nn.softmax,
        ((shape, "bfloat16"),),
        lambda torch: lambda x: torch.softmax(x, -1),
    )


def _folds_and_scans(shape: tuple[int, int]) -> Iterator[Subject]:
    """Along rows, columns, and both."""
    rows, columns = shape
    one = ((shape, "float32"),)
    yield Subject("sum_rows", lambda x: x.sum(1), one, lambda torch: lambda x: x.sum(1))
    yield Subject("sum_columns", lambda x: x.sum(0), one, lambda torch: lambda x: x.sum(0))
    yield Subject("sum_all", lambda x: x.sum(), one, lambda torch: lambda x: x.sum())
    yield Subject(
        "argmax",
        lambda x: jnp.argmax(x, 1),
        one,
        lambda torch: lambda x: torch.argmax(x, 1).to(torch.int32),
    )
    yield Subject(
        "cumsum_rows", lambda x: jnp.cumsum(x, 1), one, lambda torch: lambda x: torch.cumsum(x, 1)
    )
    yield Subject(
        "cumsum_columns",
        lambda x: jnp.cumsum(x, 0),
        one,
        lambda torch: lambda x: torch.cumsum(x, 0),
    )
    yield Subject(
        "cumsum_all",
        lambda x: jnp.cumsum(jnp.abs(x)),
        (((rows * columns // 16,), "float32"),),
        lambda torch: lambda x: torch.cumsum(torch.abs(x), 0),
    )
    yield Subject(
        "cummax_rows",
        lambda x: lax.cummax(x, 1),
        one,
        lambda torch: lambda x: torch.cummax(x, 1).values,
    )


def products(size: int, with_tf32: bool) -> Iterator[Subject]:
    """Matrix products of `size` and smaller."""
    kinds = [("bf16", "bfloat16", None, None), ("f32", "float32", "highest", None)]
    if with_tf32:  # XLA has it on GPUs only
        kinds.append(("tf32", "float32", lax.DotAlgorithmPreset.TF32_TF32_F32, 2.0**-11))
    for kind, dtype, precision, eps in kinds:
        product = functools.partial(jnp.dot, precision=precision)
        for n in (64, 128):
            yield Subject(
                f"plain_{n}_{kind}", product, (((n, n), dtype),) * 2, flops=2 * n**3, eps=eps
            )
        for m, n, k in ((16, size, size), (size, size, size // 4), (size, size, size)):
            yield Subject(
                f"gelu_{m}x{n}x{k}_{kind}",
                lambda x, w, b, product=product: jax.nn.gelu(product(x, w) + b),
                (((m, k), dtype), ((k, n), dtype), ((n,), dtype)),
                lambda torch: (
                    lambda x, w, b: torch.nn.functional.gelu(x @ w + b, approximate="tanh")
                ),
                2 * m * n * k,
                eps,
            )
    yield Subject(
        f"long_64x64x{size * 16}_bf16",
        lambda x, w: jnp.tanh(x @ w),
        (((64, size * 16), "bfloat16"), ((size * 16, 64), "bfloat16")),
        flops=2 * 64 * 64 * size * 16,
    )
    yield Subject(
        "exp_96x128x128x64_bf16",
        lambda x, y: jnp.exp(jnp.einsum("bik,bjk->bij", x, y) * 0.125),
        (((96, 128, 64), "bfloat16"),) * 2,
        flops=2 * 96 * 128 * 128 * 64,
    )


def compute(size: int) -> Iterator[Subject]:
    """Functions of the other templates."""
    images = ((8, size // 8, size // 8, 64), "float32")
    layout = ("NHWC", "HWIO", "NHWC")
    yield Subject(
        "depthwise",
        lambda x, w: lax.conv_general_dilated(
            x, w, (1, 1), "SAME", dimension_numbers=layout, feature_group_count=64
        ),
        (images, ((3, 3, 1, 64), "float32")),
    )
    yield Subject(
        "max_pool",
        lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME"),
        (images,),
    )
    yield Subject(
        "segment_sum",
        lambda x: jnp.zeros((size // 4, 64), x.dtype).at[jnp.arange(size * 8) % (size // 4)].add(x),
        (((size * 8, 64), "float32"),),
    )
    yield Subject(
        "gather",
        lambda x: x[(jnp.arange(size * 8) * 7919) % x.shape[0]] * 2,
        (((size * 4, 64), "float32"),),
    )
    yield Subject("rnn_1000_steps", _rnn, (((1000, 64), "float32"), ((64, 64), "float32")))
    yield Subject(
        "heat_100_steps",
        lambda x: lax.fori_loop(
            0, 100, lambda i, c: c + 0.1 * (jnp.roll(c, 1) + jnp.roll(c, -1) - 2 * c), x
        ),
        (((size,), "float32"),),
    )


def _rnn(xs: jax.Array, w: jax.Array) -> jax.Array:
    def step(h: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        h = jnp.tanh(x + 0.1 * h * w[0])
        return h, h

    return lax.scan(step, jnp.zeros_like(xs[0]), xs)[1]
