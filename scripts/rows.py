"""Programs for any number of rows: how many kernels they have, and what those cost.

    python scripts/rows.py [PROGRAM …]

Each is called with 50 numbers of rows: the kernels that the first call has had generated, those
for other numbers of rows in the background, and those that were generated later, of which there
are to be none; how long the first call takes, what is made in the background, and in the median
calls with other numbers, beside jax.jit's.  Then for some numbers the time of a call by shared
kernels, relative to kernels for that number alone, which those get that recur.  All results are
compared with jax.jit's.  Run it on an idle machine, with a new HLO_MLC_CACHE.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import threading
import time
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import export, lax
from rich.console import Console
from rich.progress import track
from rich.table import Table

from hlo_mlc import compile_stablehlo
from hlo_mlc.building import keeping
from hlo_mlc.interop.by_shapes import PREPARING
from hlo_mlc.interop.module import StablehloFunction

ROWS = -1
SIZES = (17, *range(1, 17), *range(18, 48), 100, 1000, 5000)
TIMED = (3, 7, 50, 64, 150, 1000)


def layers(x, w, v):
    return jax.nn.softmax(jax.nn.gelu(x @ w) @ v, -1)


def pointwise(x):
    return jnp.tanh(x) * 2 + x * x


def normalized(x):
    centered = x - x.mean(-1, keepdims=True)
    return centered / jnp.sqrt((centered**2).mean(-1, keepdims=True) + 1e-5)


def attention(q, k, v):
    scores = jax.nn.softmax(jnp.einsum("bhid,bhjd->bhij", q, k), -1)
    return jnp.einsum("bhij,bhjd->bhid", scores, v)


def convolved(x, kernel):
    return jax.nn.relu(
        lax.conv_general_dilated(
            x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
    )


def trained(x, y, w, v):
    def loss(w, v):
        return jnp.mean((jnp.tanh(x @ w) @ v - y) ** 2)

    return jax.value_and_grad(loss, (0, 1))(w, v)


def batch_norm(x, scale):
    mean = x.mean(0)
    variance = ((x - mean) ** 2).mean(0)
    return (x - mean) * lax.rsqrt(variance + 1e-5) * scale, mean, variance


def classifier(x, labels, w, v):
    def loss(w, v):
        logits = jax.nn.relu(x @ w) @ v
        wanted = jnp.argmax(labels, 1)[:, None]
        return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), wanted, 1))

    return jax.value_and_grad(loss, (0, 1))(w, v)


def adam(x, y, w, v, *moments):
    """A step of training two layers; `moments` are the first ones of both weights, then the
    second ones."""
    loss, gradients = trained(x, y, w, v)
    firsts = [0.9 * m + 0.1 * g for m, g in zip(moments[:2], gradients, strict=True)]
    seconds = [0.999 * m + 0.001 * g * g for m, g in zip(moments[2:], gradients, strict=True)]
    weights = [
        one - 1e-3 * first / (jnp.sqrt(jnp.abs(second)) + 1e-8)
        for one, first, second in zip((w, v), firsts, seconds, strict=True)
    ]
    return loss, *weights, *firsts, *seconds


def layer_norm(x, scale, shift):
    return normalized(x) * scale + shift


def block(x, qkv, projection, up, down, scale, shift):
    """A block of a transformer with 4 heads."""
    rows, length, width = x.shape
    q, k, v = (
        part.reshape(rows, length, 4, width // 4).transpose(0, 2, 1, 3)
        for part in jnp.split(layer_norm(x, scale, shift) @ qkv, 3, -1)
    )
    heads = attention(q / 4, k, v).transpose(0, 2, 1, 3)
    x = x + heads.reshape(rows, length, width) @ projection
    return x + jax.nn.gelu(layer_norm(x, scale, shift) @ up) @ down


def pooled(x, first, second, w):
    """Two convolutions, each with pooling, and a layer."""
    for kernel in (first, second):
        windows = (1, 2, 2, 1)
        x = lax.reduce_window(convolved(x, kernel), -jnp.inf, lax.max, windows, windows, "VALID")
    return x.reshape(x.shape[0], -1) @ w


def recurrent(x, w, v):
    """Over time, the second dimension."""

    def step(state, now):
        state = jnp.tanh(now @ w + state @ v / 8)  # by which states do not grow
        return state, state

    return lax.scan(step, jnp.zeros((x.shape[0], v.shape[0])), x.transpose(1, 0, 2))


def k_means(x, centers):
    """A step: where points belong, and the means of those that belong together."""
    distances = ((x[:, None] - centers) ** 2).sum(-1)
    nearest = jnp.argmin(distances, 1)
    belongs = jax.nn.one_hot(nearest, len(centers))
    means = belongs.T @ x / jnp.maximum(belongs.sum(0), 1)[:, None]
    return means, nearest, distances.min(1).mean()


def residual(x, w, scale, shift):
    return x + layer_norm(jax.nn.gelu(x @ w), scale, shift)


PROGRAMS: dict[str, tuple[Callable, Sequence[tuple[int, ...]]]] = {
    "layers": (layers, [(ROWS, 128), (128, 256), (256, 10)]),
    "product": (jnp.matmul, [(ROWS, 512), (512, 512)]),
    "pointwise": (pointwise, [(ROWS, 300)]),
    "normalized": (normalized, [(ROWS, 300)]),
    "attention": (attention, [(ROWS, 4, 32, 16)] * 3),
    "convolved": (convolved, [(ROWS, 16, 16, 8), (3, 3, 8, 16)]),
    "trained": (trained, [(ROWS, 128), (ROWS, 10), (128, 256), (256, 10)]),
    "batch_norm": (batch_norm, [(ROWS, 300), (300,)]),
    "classifier": (classifier, [(ROWS, 128), (ROWS, 10), (128, 256), (256, 10)]),
    "adam": (adam, [(ROWS, 64), (ROWS, 8), *[(64, 128), (128, 8)] * 3]),
    "block": (block, [(ROWS, 16, 64), (64, 192), (64, 64), (64, 256), (256, 64), (64,), (64,)]),
    "pooled": (pooled, [(ROWS, 16, 16, 3), (3, 3, 3, 8), (3, 3, 8, 16), (256, 10)]),
    "recurrent": (recurrent, [(ROWS, 12, 24), (24, 32), (32, 32)]),
    "k_means": (k_means, [(ROWS, 16), (12, 16)]),
    "residual": (residual, [(ROWS, 96), (96, 96), (96,), (96,)]),
}


def main() -> int:
    """Prints a table; 1 if a result is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("programs", nargs="*", metavar="PROGRAM", help=", ".join(PROGRAMS))
    names = parser.parse_args().programs or [*PROGRAMS]
    if unknown := {*names} - {*PROGRAMS}:
        parser.error(f"there is no program {', '.join(unknown)}; there are {', '.join(PROGRAMS)}")
    table = Table(
        "program",
        "kernels",
        "later",
        "first call",
        "background",
        "others",
        "jax.jit's",
        *(f"{rows} rows" for rows in TIMED),
        title=f"{len(SIZES)} numbers of rows",
    )
    wrong = []
    for name in track(names, "programs", transient=True):
        line, is_right = _measured(name)
        table.add_row(name, *line)
        wrong += [] if is_right else [name]
    Console().print(table)
    print("rows: time by kernels for any number / by kernels for this number alone")
    if wrong:
        print(f"wrong results: {', '.join(wrong)}")
    return bool(wrong)


def _measured(name: str) -> tuple[list[str], bool]:
    """A line of the table, and whether all results are right."""
    function, shapes = PROGRAMS[name]
    (rows,) = export.symbolic_shape("rows")
    exported = export.export(jax.jit(function))(
        *(
            jax.ShapeDtypeStruct([rows if d == ROWS else d for d in shape], np.float32)
            for shape in shapes
        )
    )
    shared, plain = compile_stablehlo(exported), jax.jit(function)
    generated, ours, theirs, is_right = [], [], [], True
    with keeping() as kept:
        for size in SIZES:
            args = _arguments(shapes, size)
            began = time.perf_counter()
            results = jax.block_until_ready(shared(*args))
            between = time.perf_counter()
            expected = jax.block_until_ready(plain(*args))
            theirs.append(time.perf_counter() - between)
            ours.append(between - began)
            if len(ours) == 1:
                background = _seconds_in_background()
            generated.append(len({built.kernel.fingerprint for built in kept}))
            is_right &= all(
                np.allclose(result, one, 2e-4, 2e-4)
                for result, one in zip(results, jax.tree.leaves(expected), strict=True)
            )
    ratios = [_ratio(function, shared, _arguments(shapes, size)) for size in TIMED]
    return [
        str(generated[0]),
        str(generated[-1] - generated[0]),
        f"{ours[0] * 1e3:.0f} ms",
        f"{background:.1f} s",
        *(f"{statistics.median(s[1:]) * 1e3:.0f} ms" for s in (ours, theirs)),
        *(f"{ratio:.2f}" for ratio in ratios),
    ], is_right


def _seconds_in_background() -> float:
    """Waits until nothing is made there for other numbers of rows."""
    began = time.perf_counter()
    for thread in threading.enumerate():
        if thread.name == PREPARING:
            thread.join()
    return time.perf_counter() - began


def _arguments(shapes: Sequence[tuple[int, ...]], rows: int) -> list[jax.Array]:
    rng = np.random.default_rng(rows)
    return [
        jnp.asarray(rng.standard_normal([rows if d == ROWS else d for d in shape]), np.float32)
        for shape in shapes
    ]


def _ratio(function: Callable, shared: StablehloFunction, args: Sequence[jax.Array]) -> float:
    """Of the least times of both kernels, taken in turns: few calls, or they would be the same."""
    types = [jax.ShapeDtypeStruct(one.shape, one.dtype) for one in args]
    alone = compile_stablehlo(export.export(jax.jit(function))(*types))
    times: dict[StablehloFunction, list[float]] = {shared: [], alone: []}
    for _ in range(24):
        for one, known in times.items():
            began = time.perf_counter()
            jax.block_until_ready(one(*args))
            known.append(time.perf_counter() - began)
    return min(times[shared]) / min(times[alone])


if __name__ == "__main__":
    sys.exit(main())
